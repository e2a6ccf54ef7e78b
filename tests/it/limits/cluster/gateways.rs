//! Gateways that share limits through a real Redis, as clients and operators see them.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep};

use crate::support::certificates::{Authority, put};
use crate::support::client::Answer;
use crate::support::free_port;
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, chat, soon, until};
use crate::support::redis::RedisServer;

const CHAT: &str = "/v1/chat/completions";

pub(super) async fn rig(limits: &'static str, more: String) -> Rig {
    Rig::start(RigOptions { tenants: vec![(TENANT, limits)], more, ..RigOptions::default() }).await
}

/// Two gateways with one limit.
async fn pair(limits: &'static str, server: &RedisServer) -> [Rig; 2] {
    let more = || format!("cluster: {{valkey: {{url: '{}'}}}}\n", server.url());
    let rigs = [rig(limits, more()).await, rig(limits, more()).await];
    gateways(&rigs[0], 2).await;
    rigs
}

pub(super) async fn status(rig: &Rig) -> Value {
    rig.admin(Method::GET, "/admin/v1/status").await.ok().json()["cluster"].clone()
}

/// Waits until the gateway knows of so many.
pub(super) async fn gateways(rig: &Rig, count: usize) {
    for _ in 0..600 {
        if status(rig).await["gateways"].as_array().is_some_and(|ids| ids.len() == count) {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("not {count} gateways: {}", status(rig).await);
}

/// When each gateway told the store last that it is there.
fn signs(store: &mut redis::Connection) -> BTreeMap<String, String> {
    let signs: BTreeMap<String, String> =
        redis::cmd("HGETALL").arg("penstock:v1:{gateways}").query(store).expect("the gateways");
    let times = signs.into_iter().filter(|(id, _)| !id.starts_with('_'));
    times.map(|(id, said)| (id, said.split(' ').next().unwrap_or_default().to_owned())).collect()
}

/// Waits until each gateway has reported what it uses now and has its leases: until it has begun another two
/// turns.
async fn turn(server: &RedisServer) {
    let mut store = block_in_place(|| server.connect());
    for _ in 0..2 {
        let before = signs(&mut store);
        until("each gateway's next turn", || {
            let now = signs(&mut store);
            now.len() == before.len() && before.iter().all(|(id, time)| now.get(id) != Some(time))
        })
        .await;
    }
}

/// Asks the gateways one after the other until so many were served in all, and then some times more. Returns
/// how many were.
pub(super) async fn served_in_all(rigs: &[&Rig], mut sum: usize, limit: usize) -> usize {
    let begun = Instant::now();
    while sum < limit && begun.elapsed() < PATIENCE {
        for rig in rigs {
            sum += served(rig, 1).await;
        }
        sleep(Duration::from_millis(10)).await;
    }
    for rig in rigs {
        sum += served(rig, 10).await;
    }
    sum
}

/// Sends requests one after the other, and returns how many were served.
pub(super) async fn served(rig: &Rig, requests: usize) -> usize {
    let mut served = 0;
    for _ in 0..requests {
        let answer = rig.post(CHAT, &chat(2, false)).await;
        assert!(matches!(answer.status, 200 | 429), "{}", answer.text());
        served += usize::from(answer.status == 200);
        sleep(Duration::from_millis(5)).await;
    }
    served
}

/// The first refusal that is not for a moment: until the gateways have told each other what they used, each takes
/// the rest to be with another.
async fn refused_for_good(rig: &Rig) -> Answer {
    loop {
        let answer = rig.post(CHAT, &chat(2, false)).await;
        match (answer.status, answer.code().as_str()) {
            (429, "insufficient_quota") => return answer,
            (429, "rate_limit_exceeded") => sleep(Duration::from_millis(20)).await,
            _ => panic!("{}: {}", answer.status, answer.text()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_gateways_serve_a_days_limit_together_and_a_restart_does_not_renew_it() {
    let server = block_in_place(RedisServer::start);
    let [one, two] = pair("limits: {per_day: {requests: 40}}", &server).await;
    let mut sum = 0;
    for _ in 0..6 {
        turn(&server).await;
        sum += served(&one, 4).await + served(&two, 2).await;
    }
    // The last few, two for each gateway, may be refused for a moment: another gateway has them.
    assert!((32..=36).contains(&sum), "{sum}");
    two.gateway.drain().await;
    gateways(&one, 1).await;
    let more = format!("cluster: {{valkey: {{url: '{}'}}}}\n", server.url());
    let third = rig("limits: {per_day: {requests: 40}}", more).await;
    assert_eq!(served_in_all(&[&third, &one], sum, 40).await, 40);
    let answer = soon("a refusal for the rest of the day", refused_for_good(&third)).await;
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn while_the_store_is_away_leases_go_on_and_operators_see_it() {
    let mut server = block_in_place(RedisServer::start);
    let [one, two] = pair("limits: {per_day: {requests: 80}}", &server).await;
    assert_eq!(served(&one, 2).await + served(&two, 2).await, 4);
    turn(&server).await;
    // A pause is as good as an answer that is late.
    block_in_place(|| server.signal("STOP"));
    assert_eq!(served(&one, 3).await, 3);
    block_in_place(|| server.signal("CONT"));
    gateways(&two, 2).await;
    sleep(Duration::from_millis(2_500)).await;
    turn(&server).await;
    block_in_place(|| server.kill());
    assert!((one.metric("penstock_cluster_gateways").await - 2.0).abs() < 1e-9);
    // Each has a quarter of what remains, and never the whole limit.
    assert_eq!(served(&one, 15).await, 15);
    let of_two = served(&two, 60).await;
    assert!((18..=19).contains(&of_two), "{of_two}");
    assert!(one.metric("penstock_cluster_store_up").await < 0.5);
    let told = status(&one).await;
    assert_eq!(told["up"], false, "{told}");
    let problem = told["problem"].as_str().unwrap();
    assert!(
        problem.contains("refused") || problem.contains("dropped") || problem.contains("closed"),
        "{problem}"
    );
    assert!(one.telemetry.captured_log().contains("the store of the cluster is away"));
    // It comes back empty: what was used is not forgotten.
    block_in_place(|| server.restart());
    until("the store is heard", || one.telemetry.captured_log().contains("the store of the cluster is back"))
        .await;
    gateways(&one, 2).await;
    sleep(Duration::from_millis(2_500)).await;
    assert_eq!(served_in_all(&[&one, &two], 4 + 3 + 15 + of_two, 80).await, 80);
    assert!(one.metric("penstock_cluster_store_up").await > 0.5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_starts_without_the_store() {
    let mut server = block_in_place(RedisServer::start);
    block_in_place(|| server.kill());
    let more = format!("cluster: {{valkey: {{url: '{}'}}}}\n", server.url());
    let rig = rig("limits: {per_day: {requests: 80}}", more).await;
    assert_eq!(served(&rig, 30).await, 10, "an eighth");
    block_in_place(|| server.restart());
    gateways(&rig, 1).await;
    sleep(Duration::from_millis(2_500)).await;
    assert_eq!(served_in_all(&[&rig], 10, 80).await, 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_store_may_ask_for_a_user_a_password_and_tls() {
    let authority = Authority::new();
    let folder = TempDir::new().unwrap();
    authority.server().put(folder.path(), "store");
    let place = |name: &str| folder.path().join(name).display().to_string();
    put(&folder.path().join("ca.crt"), &authority.pem());
    put(&folder.path().join("password"), "of-the-user\n");
    put(&folder.path().join("wrong"), "of-nobody\n");
    let tls_port = free_port().to_string();
    let (cert, key, ca) = (place("store.crt"), place("store.key"), place("ca.crt"));
    let user = "gateway on >of-the-user ~penstock:* resetchannels -@all +evalsha +eval +time +hgetall +hset \
                +hdel +hexists +expire +zadd +zrange +zremrangebyscore";
    put(&folder.path().join("users.acl"), &format!("user default on nopass ~* &* +@all\nuser {user}\n"));
    let users = place("users.acl");
    let server = block_in_place(|| {
        RedisServer::with_options(&[
            "--tls-port",
            &tls_port,
            "--tls-cert-file",
            &cert,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            "no",
            "--aclfile",
            &users,
        ])
    });
    let section = |url: &str, password: &str, tls: bool| {
        let tls = if tls { format!(", tls: {{ca: {}}}", place("ca.crt")) } else { String::new() };
        let password = place(password);
        format!(
            "cluster: {{valkey: {{url: '{url}', username: gateway, password: {{file: {password}}}{tls}}}}}\n"
        )
    };
    let sealed = format!("rediss://127.0.0.1:{tls_port}");
    let limits = "limits: {per_day: {requests: 80}}";
    for more in [section(&sealed, "password", true), section(&server.url(), "password", false)] {
        let rig = rig(limits, more).await;
        gateways(&rig, 1).await;
        let told = status(&rig).await;
        assert_eq!(told["up"], true, "{told}");
        assert_eq!(served(&rig, 5).await, 5);
        rig.gateway.drain().await;
    }
    let cases = [
        (section(&server.url(), "wrong", false), "authentication failed"),
        (section(&sealed, "password", false), "ertificate"),
    ];
    for (more, why) in cases {
        let rig = rig(limits, more).await;
        until("the problem is told", || rig.telemetry.captured_log().contains("is away")).await;
        let told = status(&rig).await;
        let problem = told["problem"].as_str().unwrap();
        assert!(problem.contains(why), "{problem}");
        assert!(!rig.telemetry.captured_log().contains("of-nobody"));
    }
}

/// After `cluster.outage` nothing that has a limit passes, and operators are told so once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_end_of_leases_is_told() {
    let mut server = block_in_place(RedisServer::start);
    let more = format!("cluster: {{valkey: {{url: '{}'}}, outage: 4s}}\n", server.url());
    let rig = rig("limits: {per_day: {requests: 80}}", more).await;
    gateways(&rig, 1).await;
    assert_eq!(served(&rig, 2).await, 2);
    let over = async || rig.metric("penstock_cluster_leases_over").await > 0.5;
    assert!(!over().await);
    block_in_place(|| server.kill());
    let ended = "the leases of limits have ended";
    until("the end of leases is told", || rig.telemetry.captured_log().contains(ended)).await;
    assert!(over().await);
    assert_eq!(served(&rig, 2).await, 0);
    let told = status(&rig).await;
    assert_eq!(told["leases_end_in_seconds"], 0.0, "{told}");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(rig.telemetry.captured_log().matches(ended).count(), 1);
    block_in_place(|| server.restart());
    gateways(&rig, 1).await;
    until("the store is heard", || rig.telemetry.captured_log().contains("is back")).await;
    sleep(Duration::from_millis(2_500)).await;
    turn(&server).await;
    assert!(!over().await);
    assert!(served(&rig, 4).await > 0);
}

/// What a later version appends to its reports is ignored, and what it says of itself counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reports_of_another_version_are_read() {
    let server = block_in_place(RedisServer::start);
    let mut store = block_in_place(|| server.connect());
    let now = jiff::Timestamp::now().as_millisecond();
    let sign = |store: &mut redis::Connection, at: i64| {
        let value = format!("{at} 7 of a later version");
        redis::cmd("HSET").arg("penstock:v1:{gateways}").arg("later").arg(value).exec(store).unwrap();
    };
    let day = jiff::Timestamp::now().strftime("%Y%m%d");
    let key = format!("penstock:v1:{{t/{TENANT}}}:requests:per_day:{day}");
    // seq used held ceiling missed demand seen, and what nobody here knows.
    let report = format!("5 30 31 35 0 9 {now} 17 eighteen");
    redis::cmd("HSET").arg(&key).arg("later.1").arg(report).exec(&mut store).unwrap();
    block_in_place(|| sign(&mut store, now));
    let more = format!("cluster: {{valkey: {{url: '{}'}}}}\n", server.url());
    let rig = rig("limits: {per_day: {requests: 40}}", more).await;
    // It says nothing more, and stays for a minute all the same.
    block_in_place(|| sign(&mut store, now + 60_000));
    gateways(&rig, 2).await;
    assert_eq!(served(&rig, 10).await, 5, "the other one has a lease of 35");
}
