//! Affinity of adapters, sessions and prompts to a replica, end to end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock::sim::engine::EngineOptions;
use penstock::sim::server::{SimOptions, Terminate, VllmFlags};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::client::Call;
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, chat, soon, until};

const CHAT: &str = "/v1/chat/completions";
/// Public names of the adapters; the engines call them `lora-0` and so on.
const ADAPTERS: [&str; 4] = ["sql", "law", "med", "fin"];

/// An engine with all adapters, and slots for some of them.
fn engine(slots: u32) -> SimOptions {
    let load =
        EngineOptions { max_loras: slots, lora_load: Duration::from_millis(60), ..EngineOptions::default() };
    let loras = (0..ADAPTERS.len()).map(|number| format!("lora-{number}")).collect();
    SimOptions { loras, engine: load, ..SimOptions::default() }
}

fn options(slots: u32, replicas: usize, pool: &'static str, more: &str) -> RigOptions {
    let engines = (0..replicas).map(|_| engine(slots)).collect();
    RigOptions { engines, pool: Some(pool), more: more.to_owned(), ..RigOptions::default() }
}

fn ask(model: &str, tokens: u32) -> Value {
    let mut body = chat(tokens, true);
    body["model"] = model.into();
    body
}

/// Three clients for each adapter, each with one request after the other. Gives the
/// loads of all engines, and how many requests of each adapter were answered.
async fn under_load(pool: &'static str) -> (u64, BTreeMap<&'static str, u64>) {
    let rig = Arc::new(Rig::start(options(2, 2, pool, "")).await);
    let mut clients = JoinSet::new();
    for client in 0..12 {
        let (rig, name) = (Arc::clone(&rig), ADAPTERS[client % 4]);
        clients.spawn(async move {
            for number in 0..12 {
                let answer = rig.post(CHAT, &ask(name, 5 + (number * 7 + client as u32) % 11)).await;
                let text = answer.text();
                assert_eq!(answer.status, 200, "{text}");
                assert!(text.contains(&format!("\"model\":\"{name}\"")) && !text.contains("lora-"), "{text}");
            }
            (name, 12)
        });
    }
    let mut answered = BTreeMap::new();
    while let Some(done) = clients.join_next().await {
        let (name, count) = done.unwrap();
        *answered.entry(name).or_default() += count;
    }
    rig.emptied_within(PATIENCE).await;
    let loads = rig.engines.iter().map(|engine| engine.control().state().adapter_loads).sum();
    (loads, answered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_stay_where_they_are_loaded() {
    let known = "engine: vllm\nmodels: [sim]\nadapter_slots: 2\n\
                 adapters: {sql: lora-0, law: lora-1, med: lora-2, fin: lora-3}";
    let unknown = "engine: vllm\nmodels: {sim: sim, sql: lora-0, law: lora-1, med: lora-2, fin: lora-3}";
    let (with, answered) = under_load(known).await;
    let (without, _) = under_load(unknown).await;
    println!("loads: {with} with, {without} without");
    assert!(answered.values().all(|count| *count == 36), "{answered:?}");
    assert!((4..=12).contains(&with), "{with} loads of 4 adapters in 4 slots");
    assert!(without >= 3 * with, "{without} loads without, {with} with");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_adapters_than_slots_are_all_served() {
    let pool = "engine: vllm\nmodels: [sim]\nadapter_slots: 1\n\
                adapters: {sql: lora-0, law: lora-1, med: lora-2, fin: lora-3}";
    let rig = Arc::new(Rig::start(options(1, 1, pool, "")).await);
    let mut clients = JoinSet::new();
    // Those of one adapter come until the others have been answered, and a little longer.
    let answered = Arc::new(AtomicUsize::new(0));
    for client in 0..8 {
        let (rig, answered) = (Arc::clone(&rig), Arc::clone(&answered));
        clients.spawn(async move {
            let post = async |name| assert_eq!(rig.post(CHAT, &ask(name, 10)).await.status, 200);
            if client < 6 {
                while answered.load(Ordering::SeqCst) < 4 {
                    post("sql").await;
                }
                for _ in 0..5 {
                    post("sql").await;
                }
            } else {
                for _ in 0..2 {
                    post(ADAPTERS[client - 5]).await;
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
    while let Some(done) = soon("the clients' answers", clients.join_next()).await {
        done.unwrap();
    }
    rig.emptied_within(PATIENCE).await;
    until("every line", || rig.finished().len() as u64 == rig.engine(0).state().total).await;
    // One that comes while others run with theirs waits here, not in the engine.
    let lines = rig.finished();
    let last = lines.iter().rposition(|line| line["model"] != "sql").unwrap();
    assert!(last + 20 < lines.len(), "the others came in between: {last} of {}", lines.len());
    assert!(lines.iter().all(|line| line["outcome"] == "success" && !line["adapter"].is_null()), "{lines:?}");
}

#[tokio::test]
async fn the_engines_word_counts_where_the_file_says_nothing() {
    let pool = "engine: vllm\nmodels: [sim]\nadapters: {sql: lora-0, law: lora-1}\nscrape_interval: 100ms";
    let rig = Rig::start(options(1, 1, pool, "")).await;
    let model_list = rig.admin(http::Method::GET, "/admin/v1/config").await.text();
    assert!(model_list.contains("\"adapters\""), "{model_list}");
    let mut fits = Vec::new();
    for number in 0..100 {
        assert_eq!(rig.post(CHAT, &ask(ADAPTERS[number % 2], 2)).await.status, 200);
        fits = rig.finished().iter().map(|line| line["adapter"].clone()).collect();
        if fits.last() == Some(&json!("evicts")) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((fits.first(), fits.last()), (Some(&json!("room")), Some(&json!("evicts"))), "{fits:?}");
}

/// The replicas of the requests from this one on, of so many, in the order of their ends.
async fn replicas(rig: &Rig, from: usize, count: usize) -> BTreeSet<String> {
    until("every line", || rig.finished().len() == from + count).await;
    rig.finished()[from..].iter().map(|line| line["replica"].to_string()).collect()
}

#[tokio::test]
async fn a_session_keeps_to_its_replica_until_that_is_gone() {
    let more = "routing: {session: {header: X-Session-Id, body: [prompt_cache_key, user]}}\n";
    let rig = Rig::start(options(1, 3, "engine: vllm\nmodels: [sim]", more)).await;
    let call = |body: &Value| Call::post(CHAT, body).key(rig.key(TENANT));
    for _ in 0..6 {
        let answer = call(&ask("sim", 2)).header("x-session-id", "secret-session").send(rig.address()).await;
        assert_eq!(answer.status, 200);
    }
    let of_header = replicas(&rig, 0, 6).await;
    assert_eq!(of_header.len(), 1, "{of_header:?}");
    for (from, field) in [(6, "prompt_cache_key"), (12, "user")] {
        let mut body = ask("sim", 2);
        body[field] = format!("secret-{field}").into();
        for _ in 0..6 {
            assert_eq!(call(&body).send(rig.address()).await.status, 200);
        }
        let own = replicas(&rig, from, 6).await;
        assert_eq!(own.len(), 1, "{field}: {own:?}");
    }
    let own = of_header.first().unwrap().clone();
    let gone = rig.engines.iter().find(|engine| own.contains(&engine.url())).unwrap();
    gone.control().terminate(Terminate::KillServer);
    for _ in 0..6 {
        let answer = call(&ask("sim", 2)).header("x-session-id", "secret-session").send(rig.address()).await;
        assert_eq!(answer.status, 200);
    }
    let moved = replicas(&rig, 18, 6).await;
    assert!(moved.len() == 1 && !moved.contains(&own), "{moved:?}");
    let log = rig.telemetry.captured_log();
    let metrics = rig.admin(http::Method::GET, "/metrics").await.text();
    assert!(log.contains("\"choice\":\"session\""), "{log}");
    assert!(
        !log.contains("secret-") && !metrics.contains("secret-"),
        "names of sessions are nobody's business"
    );
}

/// What the gateway expected to be cached of the last of many equal prompts, and whether that
/// answer told that anything was.
async fn last_expected(prefix_cache: bool, prompt_tokens_details: bool) -> (u64, bool) {
    let engine = SimOptions {
        engine: EngineOptions { prefix_cache, ..EngineOptions::default() },
        vllm: VllmFlags { prompt_tokens_details, ..VllmFlags::default() },
        ..SimOptions::default()
    };
    let pool = "engine: vllm\nmodels: [sim]\nscrape_interval: 1h";
    let rig =
        Rig::start(RigOptions { engines: vec![engine], pool: Some(pool), ..RigOptions::default() }).await;
    let mut body = chat(1, true);
    body["messages"][0]["content"] = "some words ".repeat(800).into();
    for _ in 0..40 {
        assert_eq!(rig.post(CHAT, &body).await.status, 200);
    }
    until("every line", || rig.finished().len() == 40).await;
    let last = rig.finished().pop().unwrap();
    (last["expected_cached_tokens"].as_u64().unwrap(), last["cached_tokens"].as_u64().unwrap() > 0)
}

#[tokio::test]
async fn an_engine_without_a_prefix_cache_is_found_out_by_its_answers() {
    assert_eq!(last_expected(false, true).await, (0, false));
    let (expected, found) = last_expected(true, true).await;
    assert!(expected > 1_500 && found, "{expected}");
    let (expected, found) = last_expected(false, false).await;
    assert!(expected > 1_500 && !found, "it does not tell: {expected}");
}
