//! Peers: several gateways behind one Service all report the same number.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use hickory_resolver::proto::rr::RecordType;
use http::Method;
use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use rcgen::SanType;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::setup::{Keda, MAIN, METRIC, SEEN, file, fleet, sees, trigger};
use crate::support::certificates::{Authority, put, uri};
use crate::support::client::{Answer, Call};
use crate::support::dns::{Names, Says, a};
use crate::support::free_port;
use crate::support::gateway::{Rig, TENANT, chat, soon, until};

const CHAT: &str = "/v1/chat/completions";

fn places(count: usize) -> Vec<SocketAddr> {
    (0..count).map(|_| SocketAddr::from(([127, 0, 0, 1], free_port()))).collect()
}

fn urls(places: &[SocketAddr]) -> String {
    let urls: Vec<String> = places.iter().map(|place| format!("'http://{place}'")).collect();
    format!(", peers: {{urls: [{}]}}", urls.join(", "))
}

/// A gateway whose scaler is there; `scale` are more keys of the section.
async fn gateway(at: SocketAddr, replicas: &[String], scale: &str) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    gateway_in(folder, at, replicas, scale).await
}

async fn gateway_in(folder: tempfile::TempDir, at: SocketAddr, replicas: &[String], scale: &str) -> Rig {
    put(&folder.path().join("demand.json"), SEEN);
    let path = folder.path().join("penstock.yaml");
    let text = file(replicas, &format!(", state_file: demand.json{scale}"));
    let text = text.replace("scale: {listen: \"127.0.0.1:0\"", &format!("scale: {{listen: \"{at}\""));
    put(&path, &text);
    Rig::at(folder, path, Vec::new(), [TENANT]).await
}

/// So many gateways that know of each other, none older than the one before.
async fn gateways(count: usize, replicas: &[String]) -> Vec<Rig> {
    let places = places(count);
    let mut rigs = Vec::new();
    for place in &places {
        rigs.push(gateway(*place, replicas, &urls(&places)).await);
        sleep(Duration::from_millis(2)).await;
    }
    for rig in &rigs {
        sees(rig, count).await;
    }
    rigs
}

async fn keda_of(rigs: &[Rig]) -> Vec<Keda> {
    let mut all = Vec::new();
    for rig in rigs {
        all.push(Keda::of(rig).await);
    }
    all
}

fn begin(rig: &Rig, tokens: u32) -> JoinHandle<Answer> {
    tokio::spawn(Call::post(CHAT, &chat(tokens, true)).key(rig.key(TENANT)).send(rig.address()))
}

/// What each says, one after the other, for so long; when it was said, in
/// seconds.
async fn polls(all: &[Keda], time: Duration) -> Vec<(f64, usize, u64)> {
    let (begun, mut said) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        for (at, keda) in all.iter().enumerate() {
            said.push((begun.elapsed().as_secs_f64(), at, keda.desired().await));
        }
        sleep(Duration::from_millis(20)).await;
    }
    said
}

#[tokio::test]
async fn each_says_what_one_with_all_requests_would_say() {
    let rigs = gateways(3, &[]).await;
    let lone = gateway(places(1)[0], &[], "").await;
    assert_eq!(fleet(&lone).await, Value::Null, "without `peers` there is nobody else");
    let all = keda_of(&rigs).await;
    let held: Vec<_> = [0, 0, 0, 1, 1, 2].map(|at: usize| begin(&rigs[at], 30)).into();
    let same: Vec<_> = (0..6).map(|_| begin(&lone, 30)).collect();
    until("all are held", || rigs.iter().map(Rig::waiting).sum::<u64>() == 6 && lone.waiting() == 6).await;
    let said = polls(&all, Duration::from_secs(9)).await;
    // Who repeats may be behind for a moment: never for long, and nobody goes back.
    for at in 0..3 {
        let own: Vec<u64> =
            said.iter().filter(|(_, who, _)| *who == at).map(|(.., number)| *number).collect();
        assert!(own.is_sorted(), "{at}: {own:?}");
    }
    let (mut most, mut since) = (0, 0.0);
    for (second, at, number) in &said {
        if *number > most {
            (most, since) = (*number, *second);
        }
        assert!(
            *number == most || second - since < 3.0,
            "{at} said {number} {:.2} s after {most}",
            second - since
        );
    }
    let wanted = Keda::of(&lone).await.desired().await;
    assert!(wanted >= 4, "{wanted}");
    assert!(most.abs_diff(wanted) <= 1, "{most} {wanted}");
    println!("three with 3, 2 and 1 of 6 requests say {most}, one with all says {wanted}");
    for rig in &rigs {
        let row = rig.admin(Method::GET, "/scale/v1/main").await.json();
        assert_eq!((&row["queued"], &row["active"]), (&Value::from(6), &Value::from(true)));
    }
    let deciders: Vec<Value> = [fleet(&rigs[0]).await, fleet(&rigs[1]).await, fleet(&rigs[2]).await].into();
    assert!(deciders.iter().all(|fleet| fleet["decider"] == deciders[0]["id"]), "the eldest: {deciders:?}");
    assert_eq!(rigs[1].metric("penstock_scale_peers").await, 2.0);
    held.into_iter().chain(same).for_each(|request| request.abort());
}

#[tokio::test]
async fn the_first_request_at_one_is_told_by_a_stream_at_another() {
    let rigs = gateways(2, &[]).await;
    let all = keda_of(&rigs).await;
    let stream = soon("a stream", all[0].client.clone().stream_is_active(trigger(MAIN))).await;
    let mut stream = stream.unwrap().into_inner();
    let mut word = async || soon("a word", stream.message()).await.unwrap().unwrap().result;
    assert!(!word().await);
    let mut took = Vec::new();
    for _ in 0..9 {
        let begun = Instant::now();
        let held = begin(&rigs[1], 3);
        assert!(word().await, "it begins there");
        took.push(begun.elapsed().as_millis());
        held.abort();
        assert!(!word().await, "and ends there");
    }
    took.sort_unstable();
    println!("first request to `true` at another gateway: {took:?} ms");
    assert!(took[4] < 400, "{took:?} ms; 50 on a machine with nothing else to do");
}

#[tokio::test]
async fn when_who_decides_is_killed_the_next_one_goes_on_without_a_fall() {
    let mut rigs = gateways(3, &[]).await;
    let held: Vec<_> = [0, 0, 1, 1, 2].map(|at: usize| begin(&rigs[at], 30)).into();
    let mut all = keda_of(&rigs).await;
    sleep(Duration::from_secs(6)).await;
    let before = all[1].desired().await;
    assert!(before >= 3, "{before}");
    let next = fleet(&rigs[1]).await["id"].clone();
    all.remove(0);
    // It says no goodbye: its threads are gone from one moment to the next.
    let killed = rigs.remove(0);
    soon("its end", tokio::task::spawn_blocking(move || drop(killed))).await.unwrap();
    for (second, at, number) in polls(&all, Duration::from_secs(13)).await {
        assert!(number >= before, "{at} said {number} after {before}, {second} s after the end");
    }
    for rig in &rigs {
        let fleet = fleet(rig).await;
        assert_eq!((&fleet["decider"], &fleet["silent"]), (&next, &Value::from(1)), "{fleet}");
        assert_eq!(fleet["replayed"], 1, "{fleet}");
    }
    held.into_iter().for_each(|request| request.abort());
}

#[tokio::test]
async fn who_drains_counts_until_it_is_empty_and_is_gone_at_once() {
    let engines = start_fleet(vec![SimOptions::default()]).await.unwrap();
    let replicas: Vec<String> = engines.iter().map(SimHandle::url).collect();
    let mut rigs = gateways(2, &replicas).await;
    let all = keda_of(&rigs).await;
    engines[0].control().add(penstock::sim::faults::FaultKind::Slow { factor: 50.0 }).unwrap();
    let running = begin(&rigs[0], 2_000);
    until("it runs", || rigs[0].snapshot().replicas[0].running == 1).await;
    all[1].becomes(true).await;
    let Rig { gateway, .. } = rigs.remove(0);
    let drained = tokio::spawn(gateway.drain());
    let own = fleet(&rigs[0]).await["id"].clone();
    let handed = async {
        while fleet(&rigs[0]).await["decider"] != own {
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon("the other one decides", handed).await;
    assert!(all[1].is_active(MAIN).await.unwrap(), "what runs there still counts");
    assert_eq!(fleet(&rigs[0]).await["live"], 2);
    engines[0].control().clear();
    assert!(soon("the answer", running).await.unwrap().is_done());
    soon("the drain", drained).await.unwrap();
    let gone = Instant::now();
    all[1].becomes(false).await;
    assert!(gone.elapsed() < Duration::from_secs(8), "nothing is replayed after a goodbye");
    // The pool may be idle a moment before the departure is heard.
    let left = async {
        while fleet(&rigs[0]).await["known"] != 1 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon("the departure", left).await;
    assert!(gone.elapsed() < Duration::from_secs(8), "it is not missed");
    let fleet = fleet(&rigs[0]).await;
    assert_eq!((&fleet["replayed"], &fleet["silent"]), (&0.into(), &0.into()));
}

#[tokio::test]
async fn nothing_is_known_when_more_than_a_third_cannot_be_heard() {
    let places = places(4);
    // Of two that should be there one is not, nor ever was.
    let lone = gateway(places[0], &[], &urls(&[places[0], places[3]])).await;
    let known = async {
        while fleet(&lone).await["known"] != 2 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    soon("it knows itself", known).await;
    let keda = Keda::of(&lone).await;
    let codes =
        [keda.values(MAIN, METRIC).await.unwrap_err().code(), keda.is_active(MAIN).await.unwrap_err().code()];
    assert_eq!(codes, [Code::Unavailable; 2]);
    assert_eq!(keda.specs(MAIN).await.unwrap().len(), 1, "the metric is known at any time");
    let refused = lone.admin(Method::GET, "/scale/v1/main").await;
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("1 of 2 gateways cannot be heard"), "{}", refused.text());
    // That something waits needs no second opinion.
    let held = begin(&lone, 3);
    let told = async {
        while keda.is_active(MAIN).await.ok() != Some(true) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    soon("it is active", told).await;
    assert_eq!(keda.values(MAIN, METRIC).await.unwrap_err().code(), Code::Unavailable);
    held.abort();
    until("it is told", || lone.telemetry.captured_log().contains("another gateway cannot be heard")).await;
    drop(keda);
    // One of three may be missing.
    let three = [places[1], places[2], places[3]];
    let second = gateway(places[1], &[], &urls(&three)).await;
    let third = gateway(places[2], &[], &urls(&three)).await;
    for rig in [&second, &third] {
        let heard = async {
            while Keda::of(rig).await.values(MAIN, METRIC).await.is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        soon("a number", heard).await;
        assert_eq!(fleet(rig).await["silent"], 1);
    }
}

#[tokio::test]
async fn certificates_are_asked_for_on_both_sides() {
    let (ca, other) = (Authority::new(), Authority::new());
    let places = places(3);
    let mut rigs = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let address = SanType::IpAddress([127, 0, 0, 1].into());
        // The third one shows a certificate that the others do not know.
        let authority = if at == 2 { &other } else { &ca };
        ca.leaf(vec![address, uri("spiffe://test/penstock")]).put(folder.path(), "scale");
        authority.leaf(vec![uri("spiffe://test/penstock")]).put(folder.path(), "peer");
        put(&folder.path().join("ca.crt"), &ca.pem());
        let scale = secured(&places);
        rigs.push(gateway_in(folder, *place, &[], &scale).await);
    }
    // The first two hear each other, and hear nothing from the third, which does
    // not let itself in either.
    let seen = |rig| async move {
        let reached = async {
            while fleet(rig).await["live"] != 3 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        soon("the others", reached).await;
    };
    seen(&rigs[0]).await;
    seen(&rigs[1]).await;
    let third = fleet(&rigs[2]).await;
    assert_eq!((&third["live"], third["decider"].is_null()), (&1.into(), true), "{third}");
    until("it is told", || rigs[2].telemetry.captured_log().contains("another gateway cannot be heard"))
        .await;
    // With a certificate that is known it is let in: the next try reads it.
    ca.leaf(vec![uri("spiffe://test/penstock")]).put(rigs[2].folder.path(), "peer");
    until("it is loaded", || rigs[2].telemetry.captured_log().contains("scale.peers")).await;
    sees(&rigs[2], 3).await;
}

fn secured(places: &[SocketAddr]) -> String {
    let urls: Vec<String> = places.iter().map(|place| format!("'https://{place}'")).collect();
    format!(
        ", tls: {{cert: scale.crt, key: scale.key, client_ca: ca.crt, require_client_cert: true}}, \
         client_certs: [{{uri: 'spiffe://test/penstock'}}], \
         peers: {{urls: [{}], ca: ca.crt, cert: peer.crt, key: peer.key}}",
        urls.join(", ")
    )
}

#[tokio::test]
async fn a_name_leads_to_all_of_them() {
    let names = Names::start().await;
    // All have one port, as the pods of a Service do.
    let port = free_port();
    let place = |last: u8| SocketAddr::from(([127, 0, 0, last], port));
    let say = |hosts: &[&str]| {
        let records = hosts.iter().map(|host| a(host)).collect();
        names.say("gateways.test.", RecordType::A, Says::Records(records, 1));
    };
    say(&["127.0.0.1"]);
    let peers =
        format!(", peers: {{dns: {{name: gateways.test., port: {port}, servers: ['{}']}}}}", names.address);
    let first = gateway(place(1), &[], &peers).await;
    sees(&first, 1).await;
    say(&["127.0.0.1", "127.0.0.2"]);
    let second = gateway(place(2), &[], &peers).await;
    sees(&first, 2).await;
    sees(&second, 2).await;
    let Rig { gateway, .. } = second;
    soon("the drain", gateway.drain()).await;
    sees(&first, 1).await;
    assert!(Path::new(&first.path).exists());
}
