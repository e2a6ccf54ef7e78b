//! Hostile requests: requests that would hurt others before they are admitted. Other tenants are
//! served at once, no engine is ejected, and the ledgers are empty.

use std::path::Path;
use std::time::Duration;

use penstock::sim::faults::FaultKind;
use penstock::sim::server::{ServerDialect, SimOptions, SimServer};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::client::{Answer, Call, Raw};
use crate::support::gateway::{MODEL, PATIENCE, Rig, RigOptions, chat, until};
use crate::support::recorder::Tap;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const CLASS: &str = "x-penstock-class";
const EVIL: &str = "evil";
const GOOD: &str = "good";
/// The longest that the other tenant may wait in the queue, in milliseconds: the streams that would
/// hold it up run for longer.
const SOON: f64 = 1000.0;
/// Tokens of such a stream: 5 s of a slow engine.
const HELD: u32 = 1_000;
const MIB: usize = 1 << 20;

async fn rig(engines: usize, pool: &'static str, evil: &'static str, more: &str) -> Rig {
    Rig::start(RigOptions {
        engines: (0..engines).map(|_| SimOptions::default()).collect(),
        pool: Some(pool),
        tenants: vec![(EVIL, evil), (GOOD, "")],
        more: more.to_owned(),
        ..RigOptions::default()
    })
    .await
}

async fn ask(rig: &Rig, tenant: &str, path: &str, body: &Value) -> Answer {
    Call::post(path, body).key(rig.key(tenant)).send(rig.address()).await
}

/// The other tenant's request is served, and did not wait.
async fn good_is_served(rig: &Rig, class: &str, id: &str) {
    let call = Call::post(CHAT, &chat(4, true)).key(rig.key(GOOD)).header(CLASS, class);
    let answer = call.header("x-request-id", id).send(rig.address()).await;
    assert!(answer.is_done(), "{answer:?}");
    let waited = rig.line_of(id).await["queue_ms"].as_f64().unwrap();
    assert!(waited < SOON, "waited {waited} ms");
}

async fn no_harm_is_left(rig: &Rig) {
    rig.emptied_within(PATIENCE).await;
    assert_eq!(rig.metric("penstock_ejections_total").await, 0.0);
}

/// Classes whose pace no slow engine misses: nobody is held back for its sake.
const PATIENT: &str =
    "classes: {interactive: {rank: 0, itl: 1m}, standard: {rank: 1, max_wait: 2m, itl: 1m}}\n";

/// Makes the engines take 5 ms for a token, for streams that run until they are slow no longer.
fn slow_down(rig: &Rig) {
    rig.engines.iter().for_each(|engine| _ = engine.control().add(FaultKind::Slow { factor: 10.0 }).unwrap());
}

fn speed_up(rig: &Rig) {
    rig.engines.iter().for_each(|engine| engine.control().clear());
}

/// Streams of the other tenant, in class `interactive`.
fn streams(rig: &Rig, count: usize, tokens: u32) -> JoinSet<Answer> {
    let mut streams = JoinSet::new();
    for _ in 0..count {
        let call = Call::post(CHAT, &chat(tokens, true)).key(rig.key(GOOD)).header(CLASS, "interactive");
        streams.spawn(call.send(rig.address()));
    }
    streams
}

fn wide(n: u64) -> Value {
    let mut body = chat(4, false);
    body["n"] = n.into();
    body
}

#[tokio::test]
async fn a_refused_number_of_choices_holds_nobody_up() {
    let rig = rig(1, "engine: vllm\nmodels: [sim]\nmax_seqs: 64", "", PATIENT).await;
    // How long an interactive request holds a place is known.
    assert!(streams(&rig, 4, 8).join_all().await.iter().all(Answer::is_done));
    slow_down(&rig);
    let running = streams(&rig, 4, HELD);
    until("the streams run", || rig.snapshot().replicas[0].running == 4).await;
    good_is_served(&rig, "standard", "before").await;
    for round in 0..5 {
        let call = Call::post(CHAT, &wide(u64::from(u32::MAX))).key(rig.key(EVIL));
        let answer = call.header(CLASS, "interactive").send(rig.address()).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!("n")), "{answer:?}");
        assert!(error["message"].as_str().unwrap().contains("Ask for at most 64"), "{error}");
        assert_eq!(answer.header("x-should-retry"), "false");
        good_is_served(&rig, "standard", &format!("after-{round}")).await;
    }
    speed_up(&rig);
    assert!(running.join_all().await.iter().all(Answer::is_done));
    no_harm_is_left(&rig).await;
    let evil = rig.finished().into_iter().find(|line| line["tenant"] == EVIL).unwrap();
    assert_eq!((&evil["outcome"], &evil["status"]), (&json!("client_error"), &json!(400)));
}

#[tokio::test]
async fn no_replica_is_drained_for_a_job_that_none_can_take() {
    let rig = rig(2, "engine: vllm\nmodels: [sim]\nmax_seqs: 64", "", PATIENT).await;
    slow_down(&rig);
    let running = streams(&rig, 12, HELD);
    until("the streams run", || rig.snapshot().replicas.iter().map(|at| at.running).sum::<u32>() == 12).await;
    for _ in 0..100 {
        assert_eq!(ask(&rig, EVIL, CHAT, &wide(60_000)).await.status, 400);
    }
    good_is_served(&rig, "standard", "beside").await;
    speed_up(&rig);
    assert!(running.join_all().await.iter().all(Answer::is_done));
    no_harm_is_left(&rig).await;
    let seen: u64 = (0..2).map(|engine| rig.engine(engine).state().total).sum();
    assert_eq!(seen, 13, "no engine saw one of them");
}

#[tokio::test]
async fn what_is_too_wide_is_named_and_the_widest_passes() {
    let rig = rig(1, "engine: vllm\nmodels: [sim]\nmax_seqs: 64", "", "").await;
    let prompts = |count: usize| -> Value { vec!["a b c"; count].into() };
    let completion = |prompt: Value, n: u32, best_of: u32| json!({"model": MODEL, "prompt": prompt, "n": n, "best_of": best_of, "max_tokens": 2});
    for (path, body, field, most) in [
        (CHAT, wide(65), "n", 64),
        (COMPLETIONS, completion("a".into(), 1, 65), "best_of", 64),
        (COMPLETIONS, completion(prompts(65), 1, 1), "prompt", 64),
        (COMPLETIONS, completion(prompts(65), 2, 2), "prompt", 32),
        (COMPLETIONS, completion(prompts(9), 8, 8), "n", 7),
    ] {
        let answer = ask(&rig, EVIL, path, &body).await;
        let error = &answer.json()["error"];
        let told = (answer.status, error["param"].as_str(), error["code"].as_str(), error["type"].as_str());
        assert_eq!(
            told,
            (400, Some(field), Some("invalid_value"), Some("invalid_request_error")),
            "{answer:?}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("takes 64") && message.contains(&format!("at most {most} ")), "{message}");
    }
    assert_eq!(rig.engine(0).state().total, 0);
    let answer = ask(&rig, EVIL, CHAT, &wide(64)).await.ok();
    assert_eq!(answer.json()["choices"].as_array().unwrap().len(), 64);
    let answer = ask(&rig, EVIL, COMPLETIONS, &completion(prompts(8), 8, 8)).await.ok();
    assert_eq!(answer.json()["choices"].as_array().unwrap().len(), 64);
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn tgi_best_of_is_bounded_too() {
    let engine = SimOptions { dialect: ServerDialect::Tgi, ..SimOptions::default() };
    let rig = Rig::start(RigOptions {
        engines: vec![engine],
        pool: Some("engine: tgi\nmodels: [sim]\nmax_seqs: 8"),
        tenants: vec![(EVIL, "")],
        ..RigOptions::default()
    })
    .await;
    let body = json!({"inputs": "a b", "parameters": {"best_of": 9, "max_new_tokens": 2}});
    let answer = ask(&rig, EVIL, "/generate", &body).await;
    let json = answer.json();
    assert_eq!((answer.status, json["error_type"].as_str()), (422, Some("validation")), "{answer:?}");
    assert!(json["error"].as_str().unwrap().starts_with("`parameters.best_of` asks for 9"), "{json}");
}

/// Opens a request with a body of so many bytes and sends the first of them.
async fn begun(rig: &Rig, length: usize, sent: usize) -> Raw {
    let mut raw = Raw::open(rig.address()).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nauthorization: Bearer {}\r\n\
         content-length: {length}\r\n\r\n",
        rig.key(EVIL)
    );
    raw.write(head).await.unwrap();
    // A refusal may close the connection before all is sent.
    let _refused = raw.write(vec![b' '; sent]).await;
    raw
}

const BODIES: &str = "requests: {max_body: 1MiB, max_total_body: 4MiB}\n";

#[tokio::test]
async fn bodies_that_drip_refuse_nobody_else() {
    let rig = rig(1, "engine: vllm\nmodels: [sim]\nmax_seqs: 8", "", BODIES).await;
    let mut dripping = Vec::new();
    for _ in 0..33 {
        dripping.push(begun(&rig, MIB, 1).await);
    }
    until("they are being read", || rig.gateway.proxy().memory.bodies.held() == 33).await;
    good_is_served(&rig, "interactive", "small").await;
    let padded = " ".repeat(MIB - 1000) + &chat(4, false).to_string();
    Call::post_text(CHAT, &padded).key(rig.key(GOOD)).send(rig.address()).await.ok();
    drop(dripping);
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn one_tenant_s_bodies_leave_room_for_another_s() {
    let rig = rig(1, "engine: vllm\nmodels: [sim]\nmax_seqs: 8", "", BODIES).await;
    let mut large = Vec::new();
    for _ in 0..8 {
        large.push(begun(&rig, MIB, 900 << 10).await);
    }
    let mut refused = JoinSet::new();
    for mut raw in large {
        refused.spawn(async move { raw.read_past("\r\n\r\n").await.map(|head| (head, raw)) });
    }
    // Two fit the half that one tenant may hold; six do not.
    for _ in 0..6 {
        let (head, _) = refused.join_next().await.unwrap().unwrap().unwrap();
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("retry-after: 1"), "{head}");
    }
    assert!(rig.gateway.proxy().memory.bodies.held() <= 2 * MIB as u64);
    let padded = " ".repeat(MIB - 1000) + &chat(4, false).to_string();
    Call::post_text(CHAT, &padded).key(rig.key(GOOD)).send(rig.address()).await.ok();
    refused.abort_all();
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn a_body_that_is_slower_than_the_least_rate_is_ended() {
    let rig = Rig::start(RigOptions {
        tenants: vec![(EVIL, "")],
        server: "body_timeout: 4s",
        more: "requests: {min_body_rate: 1MiB}\n".to_owned(),
        ..RigOptions::default()
    })
    .await;
    let mut raw = begun(&rig, MIB, 1).await;
    // Never silent for as long as `body_timeout`.
    let head = loop {
        tokio::select! {
            head = raw.read_past("bytes a second") => break head,
            () = sleep(Duration::from_millis(100)) => {}
        }
        let _ended = raw.write(" ").await;
    };
    assert!(head.unwrap().starts_with("HTTP/1.1 408 "));
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn at_a_full_port_the_slowest_bodies_end_for_newcomers() {
    let rig = Rig::start(RigOptions {
        tenants: vec![(EVIL, ""), (GOOD, "")],
        server: "max_connections: 6, max_address_connections: 100",
        ..RigOptions::default()
    })
    .await;
    let mut slow = Vec::new();
    for sent in [9_000, 1, 1, 1, 1, 1] {
        slow.push(begun(&rig, MIB, sent).await);
    }
    for number in 0..3 {
        good_is_served(&rig, "standard", &format!("newcomer-{number}")).await;
    }
    let mut fast = slow.remove(0);
    let mut ended = 0;
    for mut raw in slow {
        tokio::select! {
            biased;
            answer = raw.read_past("more slowly than others") => {
                // Nothing, where the close overtakes the answer.
                assert!(answer.is_none_or(|answer| answer.starts_with("HTTP/1.1 408 ")));
                ended += 1;
            }
            () = sleep(Duration::from_millis(200)) => {}
        }
    }
    assert!((1..=3).contains(&ended), "{ended} ended for three newcomers");
    let body = format!("{}{}", " ".repeat(MIB - 9_000 - chat(4, false).to_string().len()), chat(4, false));
    fast.write(body).await.unwrap();
    let answer = fast.read_past("\r\n\r\n").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    no_harm_is_left(&rig).await;
}

/// Everything in a usage folder, its journal among it.
fn journal_text(folder: &Path) -> String {
    let texts =
        std::fs::read_dir(folder).unwrap().filter_map(|file| std::fs::read(file.unwrap().path()).ok());
    texts.map(|text| String::from_utf8_lossy(&text).into_owned()).collect()
}

#[tokio::test]
async fn a_flood_of_refusals_leaves_few_lines_and_rows_that_count_each() {
    const REFUSED: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let usage = format!("usage: {{folder: {}}}\n", folder.path().join("usage").display());
    let rig = rig(1, "engine: vllm\nmodels: [sim]", "limits: {per_minute: {requests: 2}}", &usage).await;
    let began = Instant::now();
    for _ in 0..REFUSED + 2 {
        let call = Call::post(CHAT, &chat(1, false)).key(rig.key(EVIL)).header("x-request-id", "mine");
        call.send(rig.address()).await;
    }
    good_is_served(&rig, "interactive", "somebody").await;
    let rows = || -> Vec<Value> {
        let text = journal_text(&folder.path().join("usage"));
        let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        rows.filter(|row| row["tenant"] == EVIL && row["status"] == 429).collect()
    };
    let counted = || rows().iter().filter_map(|row| row["requests"].as_u64()).sum::<u64>();
    until("each is counted", || counted() == REFUSED).await;
    let seconds = began.elapsed().as_secs() + 2;
    let rows = rows();
    assert!(rows.len() as u64 <= 11 * seconds, "{} rows in {seconds} s", rows.len());
    let whole = rows.iter().find(|row| row["requests"] == 1).unwrap();
    assert!(whole["gateway_id"].as_str().unwrap().starts_with("req_") && whole["request_id"] == "mine");
    let log = rig.telemetry.captured_log();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<Value> = lines.filter(|line| line["tenant"] == EVIL && line["status"] == 429).collect();
    let kept_back: u64 = lines.iter().filter_map(|line| line["kept_back"].as_u64()).sum();
    let own = lines.iter().filter(|line| line["message"] == "request finished").count() as u64;
    assert_eq!((own + kept_back, lines.len()), (REFUSED, rows.len()), "a line for each row");
    let met = log.matches("\"limit met\"").count() as u64;
    assert_eq!(met, own, "the lines of one request stand together");
    assert_eq!(rig.metric("penstock_limits_met_total").await, REFUSED as f64);
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn nobody_s_requests_leave_no_rows_and_few_lines() {
    let folder = tempfile::tempdir().unwrap();
    let usage = format!("usage: {{folder: {}}}\n", folder.path().join("usage").display());
    let rig = rig(1, "engine: vllm\nmodels: [sim]", "", &usage).await;
    for _ in 0..60 {
        let call = Call::post(CHAT, &chat(4, false)).header("x-request-id", "nobody");
        assert_eq!(call.send(rig.address()).await.status, 401);
    }
    good_is_served(&rig, "interactive", "somebody").await;
    let journal = || journal_text(&folder.path().join("usage"));
    // Rows are written in the order of the requests.
    until("its row", || journal().contains("somebody")).await;
    assert!(!journal().contains("nobody"), "{}", journal());
    let lines = rig.finished().iter().filter(|line| line["request_id"] == "nobody").count();
    let kept_back = rig.metric("penstock_log_lines_kept_back_total").await;
    assert_eq!(lines as f64 + kept_back, 60.0, "each is logged or counted");
    assert_eq!(rig.metric("penstock_auth_failures_total").await, 60.0);
    no_harm_is_left(&rig).await;
}

/// A gateway whose one engine counts prompts, behind a tap.
async fn counting(evil: &'static str) -> (Rig, Tap) {
    let sim = SimServer::start(SimOptions { max_model_len: 2048, ..SimOptions::default() }).await.unwrap();
    let tap = Tap::before(sim.addr).await;
    let mut rig = Rig::start(RigOptions {
        urls: vec![tap.url.clone()],
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 8"),
        tenants: vec![(EVIL, evil), (GOOD, "")],
        more: "models: {sim: {max_model_len: 2048}}\n".to_owned(),
        ..RigOptions::default()
    })
    .await;
    rig.engines.push(sim);
    (rig, tap)
}

/// A chat whose prompt may or may not fit 2,048 tokens, by its bytes.
fn near_window() -> Value {
    let mut body = chat(4, false);
    body["messages"][0]["content"] = "how high is the water? ".repeat(300).into();
    body
}

fn asked(tap: &Tap) -> usize {
    tap.posts().iter().filter(|post| post.path == "/tokenize").count()
}

#[tokio::test]
async fn no_engine_counts_a_prompt_that_a_limit_refuses() {
    for at_once in [false, true] {
        let (rig, tap) = counting("limits: {per_minute: {requests: 1}}").await;
        let mut answers = Vec::new();
        if at_once {
            let mut calls = JoinSet::new();
            for _ in 0..5 {
                calls.spawn(Call::post(CHAT, &near_window()).key(rig.key(EVIL)).send(rig.address()));
            }
            answers = calls.join_all().await;
        } else {
            for _ in 0..5 {
                answers.push(ask(&rig, EVIL, CHAT, &near_window()).await);
            }
        }
        let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
        assert_eq!((count(200), count(429)), (1, 4), "{answers:?}");
        assert_eq!(asked(&tap), 1, "at once: {at_once}");
        ask(&rig, GOOD, CHAT, &near_window()).await.ok();
        assert_eq!(asked(&tap), 2, "the other tenant's is counted");
        no_harm_is_left(&rig).await;
    }
}

#[tokio::test]
async fn no_engine_counts_what_no_window_holds() {
    let (rig, tap) = counting("").await;
    let mut body = near_window();
    body["messages"][0]["content"] = "how high is the water? ".repeat(8000).into();
    let answer = ask(&rig, EVIL, CHAT, &body).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "context_length_exceeded"), "{answer:?}");
    assert_eq!(asked(&tap), 0, "the engine that would serve it says so itself");
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_tried_once_and_blames_nobody() {
    let pool = "engine: vllm\nmodels: [sim]\nmax_seqs: 8";
    let rig = rig(2, pool, "", "requests: {max_answer: 16KiB}\n").await;
    for round in 0..6 {
        let body = json!({"model": MODEL, "input": vec!["the water"; 64], "dimensions": 1024});
        let id = format!("large-{round}");
        let call = Call::post("/v1/embeddings", &body).key(rig.key(EVIL)).header("x-request-id", &id);
        let answer = call.send(rig.address()).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, answer.code().as_str()), (400, "answer_too_large"), "{answer:?}");
        assert_eq!((error["param"].as_str(), answer.header("x-should-retry")), (Some("input"), "false"));
        assert!(error["message"].as_str().unwrap().contains("base64"), "{error}");
        let line = rig.line_of(&id).await;
        let told = (line["attempts"].as_u64(), line["usage"].as_str(), line["reason"].as_str());
        assert_eq!(told, (Some(1), Some("unknown"), Some("answer_too_large")));
        good_is_served(&rig, "interactive", &format!("good-{round}")).await;
    }
    let mut body = chat(3000, false);
    body["model"] = MODEL.into();
    let answer = ask(&rig, EVIL, CHAT, &body).await;
    assert_eq!(answer.code(), "answer_too_large", "{answer:?}");
    assert!(answer.text().contains(r#"\"stream\": true"#), "{answer:?}");
    assert_eq!(rig.metric("penstock_requeues_total").await, 0.0);
    no_harm_is_left(&rig).await;
}

/// `max_tokens` of 2^64 - 1, where not every engine is vLLM.
#[tokio::test]
async fn the_largest_number_overflows_nothing() {
    let pool = "engine: openai\nmodels: [sim]\nmax_seqs: 8";
    let rig = rig(1, pool, "", "models: {sim: {max_model_len: 2048}}\n").await;
    let mut body = near_window();
    for field in ["max_tokens", "n"] {
        body[field] = u64::MAX.into();
        let answer = ask(&rig, EVIL, CHAT, &body).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        good_is_served(&rig, "interactive", field).await;
    }
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn nothing_steers_an_engine_past_the_gateway() {
    let sim = SimServer::start(SimOptions::default()).await.unwrap();
    let tap = Tap::before(sim.addr).await;
    let mut rig = Rig::start(RigOptions {
        urls: vec![tap.url.clone()],
        tenants: vec![(EVIL, ""), (GOOD, "")],
        more: "upstream: {request_headers: [x-team-*], answer_headers: [x-cost]}\n".to_owned(),
        ..RigOptions::default()
    })
    .await;
    rig.engines.push(sim);
    for (field, value) in [
        ("kv_transfer_params", json!({ "remote_host": "169.254.169.254" })),
        ("bootstrap_host", json!("169.254.169.254")),
        ("data_parallel_rank", json!(1)),
        ("background", json!(true)),
        ("previous_response_id", json!("resp_of_another")),
        ("request_id", json!("request-of-another")),
        ("rid", json!("request-of-another")),
        ("routed_dp_rank", json!(1)),
        ("id_slot", json!(0)),
        ("lora_path", json!("adapter-of-another")),
        ("session_params", json!({ "id": "session-of-another" })),
        ("input_ids", json!([1, 2, 3])),
    ] {
        let mut body = chat(4, false);
        body[field] = value;
        let answer = ask(&rig, EVIL, CHAT, &body).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some(field)));
    }
    assert_eq!(tap.posts().len(), 0);
    let mut body = chat(4, false);
    body["priority"] = (-100).into();
    let call = Call::post(CHAT, &body).key(rig.key(EVIL));
    let call = call.header("x-prefiller-host-port", "10.0.0.1:80").header("x-team-name", "blue");
    call.header("x-envoy-original-dst-host", "10.0.0.1:80").send(rig.address()).await.ok();
    let posts = tap.posts();
    let sent: Value = serde_json::from_slice(&posts[0].body).unwrap();
    assert_eq!(sent["priority"], 0, "{sent}");
    let names = || posts[0].headers.keys().map(http::HeaderName::as_str);
    assert!(names().all(|name| !name.starts_with("x-prefiller") && !name.starts_with("x-envoy")));
    assert_eq!(posts[0].headers["x-team-name"], "blue");
    ask(&rig, GOOD, CHAT, &chat(4, false)).await.ok();
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn a_tenant_s_prompts_are_found_in_the_cache_by_nobody_else() {
    let sim = SimServer::start(SimOptions::default()).await.unwrap();
    let tap = Tap::before(sim.addr).await;
    let mut rig = Rig::start(RigOptions {
        urls: vec![tap.url.clone()],
        tenants: vec![(EVIL, ""), (GOOD, "isolate_prefix_cache: true")],
        ..RigOptions::default()
    })
    .await;
    rig.engines.push(sim);
    let salts = || -> Vec<Option<String>> {
        let body = |post: &[u8]| serde_json::from_slice::<Value>(post).unwrap();
        tap.posts().iter().map(|post| body(&post.body)["cache_salt"].as_str().map(str::to_owned)).collect()
    };
    let mut guess = chat(4, false);
    ask(&rig, GOOD, CHAT, &guess).await.ok();
    ask(&rig, GOOD, CHAT, &guess).await.ok();
    ask(&rig, EVIL, CHAT, &guess).await.ok();
    let seen = salts();
    assert!(seen[0].is_some() && seen[0] == seen[1] && seen[2].is_none(), "{seen:?}");
    guess["cache_salt"] = seen[0].clone().into();
    ask(&rig, EVIL, CHAT, &guess).await.ok();
    ask(&rig, GOOD, CHAT, &guess).await.ok();
    let seen = salts();
    let different: std::collections::HashSet<_> = seen.iter().collect();
    assert_eq!(different.len(), 4, "none, that of good, and one for each tenant's own: {seen:?}");
    no_harm_is_left(&rig).await;
}

#[tokio::test]
async fn no_engine_is_sent_to_its_own_network_for_a_picture() {
    let rig = rig(1, "engine: vllm\nmodels: [sim]\nmax_seqs: 4", "", "").await;
    let picture = |url: &str| {
        let mut body = chat(4, false);
        body["messages"][0]["content"] = json!([{ "type": "image_url", "image_url": { "url": url } }]);
        body
    };
    for url in ["http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "http://vllm-0:8000/sleep"] {
        let answer = ask(&rig, EVIL, CHAT, &picture(url)).await;
        assert_eq!(
            (answer.status, answer.json()["error"]["param"].as_str()),
            (400, Some("messages")),
            "{url}"
        );
        assert!(!answer.text().contains("169.254"), "the URL is not repeated: {}", answer.text());
    }
    for url in ["data:image/png;base64,AAAA", "https://images.example.com/a.png"] {
        let answer = ask(&rig, GOOD, CHAT, &picture(url)).await;
        assert!(answer.text().contains("not a multimodal model"), "the engine decides: {}", answer.text());
    }
    no_harm_is_left(&rig).await;
}
