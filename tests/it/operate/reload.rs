//! Reloads of the configuration while requests wait and run.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use penstock::config::watch::{ReloadOutcome, ReloadReport};
use penstock::core::model::snapshot::ReplicaStatus;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::client::{Answer, Call, Raw};
use crate::support::gateway::{
    PATIENCE, Rig, RigOptions, TENANT, chat, head, key_of, pool_lines, soon, tenant_lines, until,
};

const CHAT: &str = "/v1/chat/completions";
const RELOADS: u64 = 1_000;
const CLIENTS: u64 = 24;
/// Tokens of a stream that runs until its engine is slow no longer: 50 s, then half a second.
const HELD: u32 = 1_000;

/// A good file that differs from every other. What it always has: tenants
/// `alpha` and `beta`, the classes, the model `sim` alias `gpt-4o` on the
/// engines 0 and 1. All else comes and goes.
fn good(round: u64, urls: &[String]) -> String {
    let every = |nth: u64| round.is_multiple_of(nth);
    let weight = 1 + round % 5;
    let class = ["interactive", "standard", "batch"][usize::try_from(round % 3).unwrap()];
    // A client whose tenant comes and goes fails all the time.
    let mut text = head("") + "auth: {failures: {per_minute: 0}}\ntenants:\n";
    let queue = if every(2) { "queue: {requests: 500}" } else { "" };
    text += &tenant_lines("alpha", &format!("weight: {weight}\ndefault_class: {class}\n{queue}"));
    text += &tenant_lines("beta", &format!("weight: 2.5\ndefault_class: {class}"));
    if every(4) {
        text += &tenant_lines("gamma", "models: [sim]");
    }
    let known = if every(5) { urls.len() } else { urls.len() - 1 };
    let seqs = 2 + round % 3;
    text += "pools:\n";
    text += &pool_lines("main", &format!("engine: vllm\nmodels: [sim]\nmax_seqs: {seqs}"), &urls[..known]);
    if every(6) {
        text += &pool_lines("side", "engine: vllm\nmodels: {other: sim}", &urls[2..]);
    }
    let alias = if every(3) { ", passing" } else { "" };
    text += &format!("models: {{sim: {{aliases: [gpt-4o{alias}]}}}}\n");
    if every(7) {
        text += "classes:\n  interactive: {rank: 0, max_wait: 10m}\n  standard: {rank: 1, min_share: 0.2, max_wait: 10m}\n  \
                 batch: {rank: 2, min_share: 0.1, max_wait: 1h}\n";
    } else {
        text += "classes:\n  interactive: {rank: 0, max_wait: 5m}\n  standard: {rank: 1, min_share: 0.1, max_wait: 5m}\n  \
                 batch: {rank: 2, min_share: 0.05, max_wait: 1h}\n";
        if every(8) {
            text += "  express: {rank: 3, max_wait: 1m}\n";
        }
    }
    text + &format!("queue: {{requests: {}}}\n# round {round}\n", 5_000 + round)
}

/// Broken in a different way each time.
fn broken(round: u64, urls: &[String]) -> String {
    let good = good(round, urls);
    match round / 3 % 6 {
        0 => good + "pools: [\n",
        1 => good + "colour: blue\n",
        2 => good.replace("http://", "gopher://"),
        3 => head(""),
        4 => good.replace("weight: 2.5", "weight: -1"),
        _ => String::new(),
    }
}

async fn reload(rig: &Rig) -> ReloadReport {
    soon("a reload", rig.gateway.reload_handle().reload("test".into())).await.unwrap()
}

/// Puts a good file in place and in force. The watch may be quicker than the
/// demand to reload.
async fn apply(rig: &Rig, text: &str) {
    let before = rig.generation();
    rig.put(text);
    let report = reload(rig).await;
    assert_ne!(report.outcome, ReloadOutcome::Failed, "{:?}", report.problems);
    assert_eq!((report.generation, rig.generation()), (before + 1, before + 1));
}

/// A client that sends one request after the other.
struct Client {
    number: u64,
    key: String,
    to: std::net::SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Client {
    async fn run(self, may_fail: bool) -> u64 {
        let mut sent = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let stream = !(self.number + sent).is_multiple_of(3);
            let mut body = chat(u32::try_from(4 + (self.number * 7 + sent) % 20).unwrap(), stream);
            if sent.is_multiple_of(2) {
                body["model"] = json!("gpt-4o");
            }
            let id = format!("r-{}-{sent}", self.number);
            let call = Call::post(CHAT, &body).key(&self.key).header("x-request-id", &id);
            let answer = call.send(self.to).await;
            sent += 1;
            if may_fail {
                assert!([200, 401, 403, 404].contains(&answer.status), "{id}: {answer:?}");
                sleep(Duration::from_millis(10)).await;
            } else {
                assert_eq!((answer.status, answer.is_done()), (200, stream), "{id}: {answer:?}");
                assert!(answer.whole, "{id}: {answer:?}");
            }
        }
        sent
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_reloads_under_load_drop_nothing() {
    let engines = start_fleet((1..=3).map(|seed| SimOptions { seed, ..SimOptions::default() }).collect())
        .await
        .unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    for engine in &engines {
        engine.control().add(FaultKind::Slow { factor: 4.0 }).unwrap();
    }
    let rig = Rig::with_file(&good(1, &urls), engines, ["alpha", "beta"]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let key = key_of(if number % 2 == 0 { "alpha" } else { "beta" }).text;
        clients.spawn(Client { number, key, to: rig.address(), stop: Arc::clone(&stop) }.run(false));
    }
    let passing =
        Client { number: 1000, key: key_of("gamma").text, to: rig.address(), stop: Arc::clone(&stop) };
    let passing = tokio::spawn(passing.run(true));

    let (mut generation, mut last_good, mut most_waiting) = (1, good(1, &urls), 0);
    for round in 2..2 + RELOADS {
        let is_broken = round % 3 == 0;
        let text = if is_broken { broken(round, &urls) } else { good(round, &urls) };
        rig.put(&text);
        let report = reload(&rig).await;
        if is_broken {
            assert_eq!(report.outcome, ReloadOutcome::Failed, "{text}");
            assert!(!report.problems.is_empty());
        } else {
            // The watch may have been quicker than the demand.
            assert_ne!(report.outcome, ReloadOutcome::Failed, "{:?}\n{text}", report.problems);
            generation += 1;
            last_good = text;
        }
        assert_eq!((report.generation, rig.generation()), (generation, generation), "round {round}");
        most_waiting = most_waiting.max(rig.waiting());
        if round % 50 < 3 {
            let successful = rig.metric("penstock_config_last_reload_successful").await;
            assert_eq!(successful == 1.0, !is_broken, "round {round}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    let served: u64 = soon("the clients' last answers", clients.join_all()).await.into_iter().sum();
    soon("the passing tenant's last answer", passing).await.unwrap();
    println!("{served} requests served, up to {most_waiting} waited");
    assert!(served > 10 * CLIENTS, "only {served} requests");
    assert!(most_waiting > 0, "nothing ever waited");
    assert_eq!(generation, 1 + RELOADS - RELOADS / 3);

    // What is in force is the last good file.
    rig.put(&last_good);
    let report = reload(&rig).await;
    assert_ne!(report.outcome, ReloadOutcome::Failed);
    assert_eq!(rig.generation(), generation, "putting the file back changes nothing");
    assert_eq!(rig.metric("penstock_config_last_reload_successful").await, 1.0);
    assert_eq!(rig.metric("penstock_config_generation").await, generation as f64);
    rig.emptied_within(PATIENCE).await;
    assert_eq!(rig.snapshot().broken_invariants, 0);
    let lines = rig.finished();
    let ours = |line: &&serde_json::Value| line["tenant"] == "alpha" || line["tenant"] == "beta";
    assert_eq!(lines.iter().filter(ours).count() as u64, served);
    assert!(lines.iter().filter(ours).all(|line| line["outcome"] == "success"));
}

/// A rig whose engines can hold one request each, slow ones.
async fn narrow_rig(engines: usize) -> (Rig, Vec<String>) {
    let engines = start_fleet(vec![SimOptions::default(); engines]).await.unwrap();
    let urls: Vec<String> = engines.iter().map(SimHandle::url).collect();
    for engine in &engines {
        engine.control().add(FaultKind::Slow { factor: 100.0 }).unwrap();
    }
    let rig = Rig::with_file(&narrow(&urls, ""), engines, ["alpha", "beta"]).await;
    (rig, urls)
}

fn narrow(urls: &[String], more: &str) -> String {
    let mut text = head("") + "tenants:\n" + &tenant_lines("alpha", "") + &tenant_lines("beta", "");
    text += "pools:\n";
    text += &pool_lines("main", "engine: vllm\nmodels: [sim]\nmax_seqs: 1", urls);
    text + "classes: {standard: {max_wait: 5m}}\n" + more
}

fn begin(rig: &Rig, tenant: &str, tokens: u32) -> tokio::task::JoinHandle<Answer> {
    tokio::spawn(Call::post(CHAT, &chat(tokens, true)).key(rig.key(tenant)).send(rig.address()))
}

#[tokio::test]
async fn what_waits_survives_reloads() {
    let (rig, urls) = narrow_rig(1).await;
    let mut answers = vec![begin(&rig, "alpha", HELD)];
    until("one runs", || rig.snapshot().replicas[0].running == 1).await;
    for tenant in ["alpha", "beta"].repeat(5) {
        answers.push(begin(&rig, tenant, 2));
    }
    until("ten wait", || rig.waiting() == 10).await;
    for round in 0..10 {
        apply(&rig, &narrow(&urls, &format!("queue: {{requests: {}}}\n", 5 + round))).await;
        assert_eq!(rig.snapshot().jobs, 11, "round {round}");
    }
    rig.engine(0).clear();
    for answer in answers {
        assert!(soon("an answer", answer).await.unwrap().is_done());
    }
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn streams_on_a_removed_replica_finish() {
    let (rig, urls) = narrow_rig(2).await;
    let streams = [begin(&rig, "alpha", HELD), begin(&rig, "alpha", HELD)];
    until("both replicas work", || rig.snapshot().replicas.iter().all(|replica| replica.running == 1)).await;
    apply(&rig, &narrow(&urls[..1], "")).await;
    let removed = |rig: &Rig| {
        rig.snapshot().replicas.iter().filter(|replica| replica.state == ReplicaStatus::Removed).count()
    };
    assert_eq!(removed(&rig), 1);
    let later: Vec<_> = (0..3).map(|_| begin(&rig, "beta", 2)).collect();
    (0..2).for_each(|engine| rig.engine(engine).clear());
    for stream in streams.into_iter().chain(later) {
        assert!(soon("a stream", stream).await.unwrap().is_done());
    }
    until("the removed replica is forgotten", || removed(&rig) == 0).await;
    assert_eq!(rig.engine(1).state().total, 1, "it got no new work");
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_removed_tenants_streams_finish_and_its_queue_is_refused() {
    let (rig, urls) = narrow_rig(1).await;
    let stream = begin(&rig, "beta", HELD);
    until("it runs", || rig.snapshot().replicas[0].running == 1).await;
    let queued = begin(&rig, "beta", 2);
    let other = begin(&rig, "alpha", 2);
    until("two wait", || rig.waiting() == 2).await;
    apply(&rig, &narrow(&urls, "").replace(&tenant_lines("beta", ""), "")).await;
    let refused = soon("the refusal", queued).await.unwrap();
    assert_eq!((refused.status, refused.header("x-should-retry")), (403, "false"), "{refused:?}");
    rig.engine(0).clear();
    assert!(soon("the stream", stream).await.unwrap().is_done());
    assert!(soon("the other tenant's", other).await.unwrap().is_done());
    assert_eq!(begin(&rig, "beta", 2).await.unwrap().code(), "invalid_api_key");
    rig.emptied_within(PATIENCE).await;
}

/// An engine that is still being connected to, or asked, when its replica is
/// moved to another address: the request goes on elsewhere.
#[tokio::test]
async fn a_request_survives_the_move_of_its_replica() {
    let (rig, urls) = narrow_rig(2).await;
    apply(&rig, &narrow(&urls[..1], "")).await;
    rig.engine(0).add(FaultKind::Silent { after_tokens: 0, before_head: true }).unwrap();
    let answer = begin(&rig, "alpha", 2);
    until("it runs", || rig.snapshot().replicas.iter().any(|replica| replica.running == 1)).await;
    apply(&rig, &narrow(&urls[1..], "")).await;
    rig.engines[0].control().terminate(penstock::sim::server::Terminate::KillServer);
    assert!(soon("an answer", answer).await.unwrap().is_done());
}

/// What the kubelet does to a mounted ConfigMap.
fn swap_data(mount: &Path, version: u32, text: &str) {
    let fresh = format!("..version_{version}");
    std::fs::create_dir(mount.join(&fresh)).unwrap();
    std::fs::write(mount.join(&fresh).join("penstock.yaml"), text).unwrap();
    symlink(&fresh, mount.join("..data_tmp")).unwrap();
    std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    if version > 1 {
        std::fs::remove_dir_all(mount.join(format!("..version_{}", version - 1))).unwrap();
    }
}

#[tokio::test]
async fn a_config_map_swap_takes_effect_by_itself() {
    let engines = start_fleet(vec![SimOptions::default()]).await.unwrap();
    let urls = vec![engines[0].url()];
    let folder = tempfile::tempdir().unwrap();
    swap_data(folder.path(), 1, &narrow(&urls, ""));
    let path = folder.path().join("penstock.yaml");
    symlink("..data/penstock.yaml", &path).unwrap();
    let rig = Rig::at(folder, path, engines, ["alpha", "beta"]).await;
    for version in 2..4 {
        let alias = format!("models: {{sim: {{aliases: [v{version}]}}}}\n");
        swap_data(rig.folder.path(), version, &narrow(&urls, &alias));
        until("the new file is in force", || rig.generation() == u64::from(version)).await;
        let mut body = chat(1, false);
        body["model"] = json!(format!("v{version}"));
        assert_eq!(rig.post(CHAT, &body).await.ok().json()["model"], format!("v{version}"));
    }
}

#[tokio::test]
async fn a_written_file_a_nudge_and_the_admin_port_reload() {
    let rig = Rig::start(RigOptions::default()).await;
    let text = std::fs::read_to_string(&rig.path).unwrap();
    std::fs::write(&rig.path, format!("{text}# written\n")).unwrap();
    until("the written file is in force", || rig.generation() == 2).await;

    // What SIGHUP does.
    rig.put(&format!("{text}# nudged\n"));
    rig.gateway.reload_handle().request_reload();
    until("the nudged file is in force", || rig.generation() == 3).await;

    rig.put(&format!("{text}# posted\n"));
    let answer = rig.admin(Method::POST, "/admin/v1/reload").await.ok();
    assert_eq!(answer.json()["generation"], 4);
    assert_eq!(rig.generation(), 4);

    rig.put(&text.replace("engine: vllm", "engine: wllm"));
    let answer = rig.admin(Method::POST, "/admin/v1/reload").await;
    assert_eq!((answer.status, &answer.json()["outcome"]), (422, &json!("failed")));
    assert!(answer.text().contains("vllm"), "it suggests the right name: {}", answer.text());
    assert_eq!(rig.generation(), 4);
    assert_eq!(rig.metric("penstock_config_last_reload_successful").await, 0.0);
    rig.post(CHAT, &chat(1, true)).await.ok();

    // Undone by hand: nothing changes, and nothing is wrong any more.
    rig.put(&format!("{text}# posted\n"));
    let answer = rig.admin(Method::POST, "/admin/v1/reload").await.ok();
    assert_eq!((&answer.json()["outcome"], rig.generation()), (&json!("unchanged"), 4));
    assert_eq!(rig.metric("penstock_config_last_reload_successful").await, 1.0);
}

/// A body that is being sent while its tenant's rules change.
#[tokio::test]
async fn a_body_under_way_is_judged_by_rules_that_still_hold() {
    let (rig, urls) = narrow_rig(1).await;
    rig.engine(0).clear();
    let call = Call::post(CHAT, &chat(2, true)).key(rig.key(TENANT)).header("expect", "100-continue");
    let bytes = call.bytes();
    let (start, rest) = bytes.split_at(bytes.len() - 30);
    let mut client = Raw::open(rig.address()).await;
    client.write(start).await.unwrap();
    soon("100", client.read_past("\r\n\r\n")).await.unwrap();
    apply(&rig, &narrow(&urls, "models: {sim: {aliases: [late]}}\n")).await;
    client.write(rest).await.unwrap();
    let answer = soon("the answer", client.read_past("[DONE]")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
