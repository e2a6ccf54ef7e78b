//! Continuations: streams that break after their first token and go on at another engine. The
//! client sees one stream, the same as without the fault.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use penstock::sim::faults::{Fault, FaultKind};
use penstock::sim::server::{SimOptions, Terminate};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::reply::{End, Reply};
use super::setup::{MODEL, Rig, Setup, chat, engine};
use crate::support::client::Call;
use crate::support::gateway::until;

const CHAT: &str = "/v1/chat/completions";
const TOKENS: u32 = 40;
/// Tokens of a stream that never comes to its end: 20 s of them at a slow engine.
const MANY: u32 = 4_000;

/// A few milliseconds for each token, so that there is time for a fault.
fn slow() -> SimOptions {
    SimOptions { speed: 0.1, mean_output_tokens: 60, ..engine() }
}

/// Streams that run at the same time.
struct Streams {
    replies: JoinSet<(u32, Reply)>,
    /// How many of them have a token.
    begun: Arc<AtomicU32>,
}

impl Streams {
    /// Sends the requests to engines that are slowed down until their faults are cleared: no stream
    /// ends before.
    fn held(rig: &Arc<Rig>, bodies: impl IntoIterator<Item = Value>) -> Self {
        for engine in 0..2 {
            rig.engine(engine).add(FaultKind::Slow { factor: 20.0 }).unwrap();
        }
        Self::of(rig, bodies)
    }

    fn of(rig: &Arc<Rig>, bodies: impl IntoIterator<Item = Value>) -> Self {
        let (mut replies, begun) = (JoinSet::new(), Arc::<AtomicU32>::default());
        for (number, body) in (0..).zip(bodies) {
            let (rig, begun) = (Arc::clone(rig), Arc::clone(&begun));
            replies.spawn(async move {
                let mut open = rig.open(CHAT, &body).await;
                open.until("\"content\":\" ").await;
                begun.fetch_add(1, Ordering::Relaxed);
                (number, open.finish().await)
            });
        }
        Self { replies, begun }
    }

    /// Waits until so many have a token, and each engine runs some of them.
    async fn have_begun(&self, rig: &Rig, count: u32) {
        until("they have a token", || self.begun.load(Ordering::Relaxed) == count).await;
        assert!(rig.snapshot().replicas.iter().all(|replica| replica.running > 0));
    }

    /// The answers, by the numbers of the requests.
    async fn seen(self) -> BTreeMap<u32, Seen> {
        let replies = self.replies.join_all().await;
        replies.into_iter().map(|(number, reply)| (number, seen(&reply))).collect()
    }
}

async fn rig(engines: Vec<SimOptions>, yaml: &str) -> Rig {
    Rig::start(Setup { engines, retry: String::new(), yaml: yaml.into(), ..Setup::default() }).await
}

/// An answer as its client reads it, without what differs from call to call.
#[derive(Debug, PartialEq)]
struct Seen {
    text: String,
    roles: usize,
    ends: Vec<Value>,
    usages: Vec<Value>,
    done: bool,
}

/// Checks that it is one answer: one id, one time, one name.
fn seen(reply: &Reply) -> Seen {
    assert_eq!((reply.status, reply.end), (200, End::Whole), "{}", reply.text());
    let mut events = reply.events();
    let done = events.pop() == Some("[DONE]".into());
    let head = |event: &Value| ["id", "object", "created", "model"].map(|name| event[name].clone());
    let first = head(&events[0]);
    assert_eq!(first[3], MODEL);
    let choices = || events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    let text = |choice: &Value| {
        choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default().to_owned()
    };
    for event in &events {
        assert_eq!(head(event), first, "{}", reply.text());
    }
    let usage = |event: &&Value| event["choices"] == json!([]);
    // Not the part that came from a cache.
    let counts = |event: &Value| {
        ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| event["usage"][name].clone()).into()
    };
    Seen {
        text: choices().map(text).collect(),
        roles: choices().filter(|choice| choice["delta"]["role"].is_string()).count(),
        ends: choices().map(|choice| choice["finish_reason"].clone()).filter(|end| !end.is_null()).collect(),
        usages: events.iter().filter(usage).map(counts).collect(),
        done,
    }
}

/// Streams of both calls, with and without the usage event, by length and by
/// their own end.
fn requests() -> Vec<(&'static str, Value)> {
    let mut requests = Vec::new();
    for (path, prompt) in [(CHAT, "messages"), ("/v1/completions", "prompt")] {
        for more in [
            json!({"max_tokens": TOKENS, "ignore_eos": true}),
            json!({"max_tokens": TOKENS, "ignore_eos": true, "stream_options": {"include_usage": true}}),
            json!({"temperature": 0, "seed": 7, "n": 1, "logprobs": null,
                "stream_options": {"include_usage": true, "continuous_usage_stats": true}}),
        ] {
            let mut body = json!({"model": MODEL, "stream": true});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let text = format!("what comes after {}?", requests.len());
            body[prompt] =
                if path == CHAT { json!([{"role": "user", "content": text}]) } else { text.into() };
            requests.push((path, body));
        }
    }
    requests
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_sees_the_stream_that_it_would_have_seen() {
    let mut streams = JoinSet::new();
    for (path, body) in requests() {
        streams.spawn(broken_in_every_way(path, body));
    }
    while let Some(done) = streams.join_next().await {
        done.unwrap();
    }
}

async fn broken_in_every_way(path: &'static str, body: Value) {
    // Each fault may eject its engine.
    let health = "health: {probe_min: 20ms, probe_max: 50ms, slow_start: 10ms}\n";
    let engine = || SimOptions { speed: 0.2, mean_output_tokens: 60, ..engine() };
    let rig = rig(vec![engine(), engine()], health).await;
    let cut = |after_tokens| FaultKind::Cut { after_tokens };
    let faults = [
        cut(1),
        cut(7),
        // All tokens, but no end.
        cut(TOKENS),
        FaultKind::NoFinish { after_tokens: TOKENS },
        FaultKind::ErrorEvent { after_tokens: 3, status: 503 },
        FaultKind::EngineDead { after_tokens: 5 },
        FaultKind::Abort { after_tokens: 4 },
        FaultKind::NoFinish { after_tokens: 4 },
        FaultKind::MalformedChunk { after_tokens: 6 },
        FaultKind::MalformedSse { after_tokens: 6 },
        FaultKind::MalformedJson { after_tokens: 6 },
    ];
    let whole = seen(&rig.post(path, &body).await);
    assert!(whole.done && whole.ends.len() == 1 && whole.roles == usize::from(path == CHAT), "{whole:?}");
    let mut continued = 0;
    for fault in &faults {
        for engine in 0..2 {
            rig.engine(engine).add(Fault::from(fault.clone()).times(1)).unwrap();
        }
        let reply = rig.post(path, &body).await;
        assert_eq!(seen(&reply), whole, "{fault:?} {body}");
        let line = rig.line_of(reply.request_id()).await;
        // An attempt whose tokens and fault are read at once is repeated, and not continued.
        let parts = line["continued"].as_u64().unwrap_or(0);
        assert!((parts + 1..=3).contains(&line["attempts"].as_u64().unwrap()), "{fault:?} {line}");
        let tokens = whole.text.split(' ').count() as u64 - 1 + stop(&whole);
        assert_eq!(line["output_tokens"].as_u64(), Some(tokens), "{line}");
        assert_eq!((&line["outcome"], &line["usage"]), (&"success".into(), &"exact".into()), "{line}");
        continued += parts;
        (0..2).for_each(|engine| rig.engine(engine).clear());
    }
    rig.settled().await;
    assert!(continued >= faults.len() as u64, "{continued} continuations");
    assert_eq!(rig.metric("penstock_continuations_total").await, continued as f64);
    assert_eq!(rig.metric("penstock_streams_broken_total").await, 0.0);
    assert_eq!(rig.log("stream continuation").len() as u64, continued);
}

/// The token that ends an answer has no text.
fn stop(seen: &Seen) -> u64 {
    u64::from(seen.ends == ["stop"])
}

/// All streams of an engine break at once, and both kinds of work wait.
#[tokio::test(flavor = "multi_thread")]
async fn all_streams_of_an_engine_that_dies_go_on() {
    for end in [Terminate::Sigterm, Terminate::KillEngine, Terminate::KillServer] {
        let rig = Arc::new(rig(vec![slow(), slow()], "").await);
        let body = |number: u32| {
            let mut body = chat(TOKENS, true);
            body["messages"][0]["content"] = format!("tell me of {number}").into();
            body["stream_options"] = json!({"include_usage": true});
            body
        };
        let streams = Streams::held(&rig, (0..24).map(body));
        streams.have_begun(&rig, 16).await;
        rig.engine(0).terminate(end);
        (0..2).for_each(|engine| rig.engine(engine).clear());
        let texts = streams.seen().await;
        rig.settled().await;
        assert!(rig.metric("penstock_continuations_total").await >= 8.0, "{end:?}");
        assert_eq!(rig.metric("penstock_streams_broken_total").await, 0.0);
        assert_eq!(texts, Streams::of(&rig, (0..24).map(body)).seen().await, "{end:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_engine_is_left() {
    let rig = rig(vec![slow(), slow()], "upstream: {stream_idle_timeout: 2s}\n").await;
    let whole = seen(&rig.post(CHAT, &chat(TOKENS, true)).await);
    for engine in 0..2 {
        rig.engine(engine)
            .add(Fault::from(FaultKind::Silent { after_tokens: 5, before_head: false }).times(1))
            .unwrap();
    }
    assert_eq!(seen(&rig.post(CHAT, &chat(TOKENS, true)).await), whole);
    rig.settled().await;
}

/// An engine that freezes keeps its connections; its streams go on elsewhere
/// long before their own patience ends.
#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_an_engine_that_freezes_go_on_within_seconds() {
    let engines = || vec![slow(), slow()];
    let rig = Arc::new(rig(engines(), "").await);
    let body = |number: u32| {
        let mut body = chat(TOKENS, true);
        body["messages"][0]["content"] = format!("tell me of {number}").into();
        body["temperature"] = 0.into();
        body["stream_options"] = json!({"include_usage": true});
        body
    };
    // Engines that have never answered are given time to warm up.
    for number in 0..2 {
        rig.post(CHAT, &body(number)).await;
    }
    let streams = Streams::held(&rig, (0..12).map(body));
    streams.have_begun(&rig, 12).await;
    rig.engine(0).add(FaultKind::Freeze).unwrap();
    rig.engine(1).clear();
    let begun = tokio::time::Instant::now();
    let texts = streams.seen().await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    rig.settled().await;
    assert!(rig.metric("penstock_continuations_total").await >= 1.0);
    assert!(rig.log("stream continuation").iter().all(|line| line["fault"] == "silent"));
    assert_eq!(rig.metric("penstock_streams_broken_total").await, 0.0);
    rig.engine(0).clear();
    assert_eq!(texts, Streams::of(&rig, (0..12).map(body)).seen().await);
}

/// A stream of a replica whose machine will be taken away does not wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_leaves_a_replica_whose_time_is_over() {
    let rig = Arc::new(rig(vec![slow(), slow()], "health: {drain: 300ms, slow_start: 1ms}\n").await);
    let whole = seen(&rig.post(CHAT, &chat(TOKENS, true)).await);
    let streams = Streams::held(&rig, (0..4).map(|_| chat(TOKENS, true)));
    streams.have_begun(&rig, 4).await;
    let ask = json!({"name": rig.replica(0)});
    let path = "/admin/v1/replicas/spot-notice";
    Call::post(path, &ask).send(rig.gateway.admin_address()).await.ok();
    until("it is empty", || rig.snapshot().replicas[0].running == 0).await;
    rig.engine(0).terminate(Terminate::KillServer);
    rig.engine(1).clear();
    for moved in streams.seen().await.into_values() {
        assert_eq!(moved, whole);
    }
    rig.settled().await;
    let moved = rig.log("stream continuation");
    assert!(!moved.is_empty() && moved.iter().all(|line| line["fault"] == "draining"), "{moved:?}");
    assert_eq!(rig.log("replica ejected").len(), 0, "nobody is blamed");
}

/// What cannot be continued ends as it always did.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_more_than_plain_text_stays_broken() {
    let rig = rig(vec![engine(), engine()], "").await;
    for more in [
        json!({"n": 2}),
        json!({"logprobs": true}),
        json!({"presence_penalty": 0.5}),
        json!({"response_format": {"type": "json_object"}}),
        json!({"nobody_knows": 1}),
        json!({"continue_final_message": true, "add_generation_prompt": false}),
    ] {
        rig.engine(0).add(Fault::from(FaultKind::Cut { after_tokens: 3 })).unwrap();
        rig.engine(1).add(Fault::from(FaultKind::Cut { after_tokens: 3 })).unwrap();
        let mut body = chat(TOKENS, true);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = rig.post(CHAT, &body).await;
        (0..2).for_each(|engine| rig.engine(engine).clear());
        assert_eq!(reply.end, End::Short, "{more}");
        assert!(reply.text().contains("upstream_broken") && !reply.text().contains("[DONE]"), "{more}");
        assert_eq!(rig.line_of(reply.request_id()).await["attempts"], 1, "{more}");
    }
    assert_eq!(rig.metric("penstock_continuations_total").await, 0.0);
    rig.settled().await;
}

/// Engines that break every stream, one token each.
#[tokio::test(flavor = "multi_thread")]
async fn the_attempts_are_bounded() {
    let rig = rig(vec![engine(), engine()], "").await;
    for engine in 0..2 {
        rig.engine(engine).add(FaultKind::Cut { after_tokens: 1 }).unwrap();
    }
    let reply = rig.post(CHAT, &chat(TOKENS, true)).await;
    assert_eq!(reply.end, End::Short, "{}", reply.text());
    assert!(reply.text().contains("upstream_broken") && !reply.text().contains("[DONE]"));
    rig.settled().await;
    let line = rig.line_of(reply.request_id()).await;
    assert_eq!((&line["attempts"], &line["continued"]), (&4.into(), &3.into()), "{line}");
    assert_eq!((&line["outcome"], &line["reason"]), (&"failed".into(), &"reset".into()), "{line}");
    assert_eq!((&line["usage"], &line["output_tokens"]), (&"partial".into(), &4.into()), "{line}");
    assert_eq!(rig.metric("penstock_streams_broken_total").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_its_stream_waits_leaves_nothing() {
    let rig = rig(vec![slow()], "").await;
    let mut open = rig.open(CHAT, &chat(MANY, true)).await;
    open.until("\"content\":\" ").await;
    rig.engine(0).add(FaultKind::Refuse).unwrap();
    rig.engine(0).terminate(Terminate::KillServer);
    until("the stream waits", || rig.waiting() == 1).await;
    drop(open);
    rig.settled().await;
    until("the request's line", || rig.finished().len() == 1).await;
    assert_eq!(rig.finished()[0]["outcome"], "client_gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_finds_no_replica_in_time_is_told() {
    let rig = rig(vec![slow()], "upstream: {stream_idle_timeout: 2s}\n").await;
    let mut open = rig.open(CHAT, &chat(MANY, true)).await;
    open.until("\"content\":\" ").await;
    rig.engine(0).terminate(Terminate::KillServer);
    let reply = tokio::time::timeout(Duration::from_secs(20), open.finish()).await.unwrap();
    assert_eq!(reply.end, End::Short);
    assert!(reply.text().contains("upstream_broken") && !reply.text().contains("[DONE]"));
    rig.settled().await;
    let line = rig.line_of(reply.request_id()).await;
    assert_eq!((&line["continued"], &line["attempts"]), (&Value::Null, &1.into()), "{line}");
    assert_eq!(rig.metric("penstock_continuations_total").await, 1.0);
}
