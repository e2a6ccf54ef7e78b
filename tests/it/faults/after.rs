//! Faults after the first token: the client gets an error in its own dialect, and no broken stream
//! looks complete.

use std::sync::Arc;

use penstock::sim::server::SimOptions;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::before::assert_good;
use super::reply::{End, Reply};
use super::setup::{MODEL, Rig, Setup, chat, engine, tgi};
use super::table::{Effect, Row, TABLE, What};
use crate::support::gateway::until;

/// Streams that run at the same time.
const AT_ONCE: usize = 12;
/// Tokens of a stream that ends well.
const TOKENS: u32 = 60;
/// Tokens of a stream that breaks: 10 s of them, so that a fault told of at the first token
/// comes before the last on a machine that is busy otherwise, too.
const MANY: u32 = 1_000;
/// Tokens before a fault of a single request.
const FEW: u32 = 40;
/// For engines that say nothing; others may be as slow as the machine is.
const LIMITS: &str = "upstream: {stream_idle_timeout: 1500ms}\n";

/// A stream of one protocol: what to ask, and how to see its first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Chat,
    Completions,
    Messages,
    Responses,
    Tgi,
}

impl Protocol {
    const ALL: [Self; 5] = [Self::Chat, Self::Completions, Self::Messages, Self::Responses, Self::Tgi];

    fn call(self, tokens: u32) -> (&'static str, Value) {
        let prompt = "tell me something";
        let messages = json!([{"role": "user", "content": prompt}]);
        match self {
            Self::Chat => ("/v1/chat/completions", chat(tokens, true)),
            Self::Completions => (
                "/v1/completions",
                json!({"model": MODEL, "max_tokens": tokens, "ignore_eos": true, "stream": true, "prompt": prompt}),
            ),
            Self::Messages => (
                "/v1/messages",
                json!({"model": MODEL, "max_tokens": tokens, "ignore_eos": true, "stream": true, "messages": messages}),
            ),
            Self::Responses => (
                "/v1/responses",
                json!({"model": MODEL, "max_output_tokens": tokens, "ignore_eos": true, "stream": true, "input": prompt}),
            ),
            Self::Tgi => (
                "/generate_stream",
                json!({"inputs": prompt, "parameters": {"max_new_tokens": tokens, "details": true}}),
            ),
        }
    }

    /// A few tokens' time each, so that there is time for a fault between.
    fn engine(self) -> SimOptions {
        let one = if self == Self::Tgi { tgi() } else { engine() };
        SimOptions { speed: 0.03, mean_output_tokens: 1_000_000, ..one }
    }

    fn first_token(self) -> &'static str {
        match self {
            Self::Chat => "\"content\":\"",
            Self::Completions => "\"text\":\"",
            Self::Messages => "text_delta",
            Self::Responses => "output_text.delta",
            Self::Tgi => "\"token\":{",
        }
    }

    /// The engine's own way to say that all is well.
    fn good_ends(self) -> &'static [&'static str] {
        match self {
            Self::Chat | Self::Completions => &["[DONE]", "\"finish_reason\":\""],
            Self::Messages => &["[DONE]", "message_stop", "\"stop_reason\":\""],
            Self::Responses => &["[DONE]", "response.completed", "response.incomplete"],
            Self::Tgi => &["[DONE]", "\"generated_text\":\"", "\"finish_reason\":\""],
        }
    }

    /// Checks the last event: an error that this protocol's SDKs raise.
    fn check_error(self, reply: &Reply) {
        let text = reply.text();
        let last = reply.events().pop().unwrap();
        let named = text.rsplit_once("event: ").is_some_and(|(_, last)| last.starts_with("error\n"));
        match self {
            Self::Chat | Self::Completions => {
                assert_eq!(last["error"]["code"], "upstream_broken", "{text}");
                assert!(last["error"]["message"].is_string() && !text.contains("event:"), "{text}");
            }
            Self::Messages => {
                assert_eq!((&last["type"], &last["error"]["type"]), (&"error".into(), &"api_error".into()));
                assert!(named, "{text}");
            }
            Self::Responses => {
                assert_eq!((&last["type"], &last["code"]), (&"error".into(), &"upstream_broken".into()));
                assert!(named && last["error"]["message"].is_string(), "{text}");
            }
            Self::Tgi => {
                assert!(last["error"].is_string(), "{text}");
                assert_eq!(last["error_type"], "generation", "{text}");
            }
        }
    }
}

async fn run(row: Row, protocol: Protocol) {
    let rig = Rig::start(Setup {
        engines: vec![protocol.engine()],
        yaml: if row.after.is_silence() { LIMITS } else { "" }.into(),
        ..Setup::default()
    });
    let rig = rig.await;
    let tokens = if matches!(row.after, Effect::None) { TOKENS } else { MANY };
    let (path, body) = protocol.call(tokens);
    let reply = match row.what {
        What::Request { .. } => {
            row.what.begin_after(FEW, &rig.engine(0));
            rig.post(path, &body).await
        }
        What::Reuse { .. } | What::Engine { .. } | What::End { .. } => {
            let mut open = rig.open(path, &body).await;
            open.until(protocol.first_token()).await;
            row.what.begin(&rig.engines[0]).await;
            open.finish().await
        }
    };
    rig.settled().await;
    match row.after {
        Effect::None => {
            assert_good(path, &reply);
            assert_eq!(rig.line_of(reply.request_id()).await["outcome"], "success");
        }
        Effect::Fails(faults) | Effect::Ejects(faults) | Effect::Either(faults) => {
            broken(&rig, protocol, &reply, faults).await;
            let ejected = || !rig.log("replica ejected").is_empty();
            until("the ejection", || row.after.ejects().is_none_or(|ejects| ejected() == ejects)).await;
        }
    }
}

/// The client knows, the log knows, the metrics know.
async fn broken(rig: &Rig, protocol: Protocol, reply: &Reply, faults: &[&str]) {
    let text = reply.text();
    assert_eq!(reply.status, 200);
    assert_eq!(reply.end, End::Short, "no good end of the body: {text}");
    assert!(text.contains(protocol.first_token()), "{text}");
    for end in protocol.good_ends() {
        assert!(!text.contains(end), "{end} in {text}");
    }
    assert!(!text.contains("EngineCore") && !text.contains("abort\""), "{text}");
    protocol.check_error(reply);

    let line = rig.line_of(reply.request_id()).await;
    assert_eq!((&line["outcome"], &line["attempts"]), (&"failed".into(), &1.into()), "{line}");
    let expected = |fault: &Value| fault.as_str().is_some_and(|fault| faults.contains(&fault));
    assert!(expected(&line["reason"]), "{line}");
    assert!(line["usage"] == "partial" || line["usage"] == "exact", "{line}");
    let output = line["output_tokens"].as_u64().unwrap();
    assert!((1..u64::from(MANY)).contains(&output), "{line}");
    assert_eq!(rig.log("stream broken").len(), 1);
    assert_eq!(rig.metric("penstock_streams_broken_total").await, 1.0);
    assert_eq!(rig.metric("penstock_requeues_total").await, 0.0);
}

/// vLLM ends an aborted answer of these two protocols like a good one; only
/// that it says nothing at all would give it away.
fn is_hidden(row: &Row, protocol: Protocol) -> bool {
    let aborts = row.after.faults().contains(&"aborted") && !row.what.json().contains("no_finish");
    let aborts = aborts && !row.what.json().contains("malformed");
    aborts && matches!(protocol, Protocol::Messages | Protocol::Responses)
}

/// TGI has its own words: an abort is an error there. Anthropic's error event
/// has no status, and the simulator's has the type of a busy engine.
fn words(row: Row, protocol: Protocol) -> Row {
    let after = match row.after {
        Effect::Ejects(_)
            if protocol == Protocol::Messages && row.what.json().contains("\"error_event\"") =>
        {
            Effect::Fails(&["busy"])
        }
        Effect::Ejects(faults) if protocol == Protocol::Tgi && faults.contains(&"aborted") => {
            Effect::Ejects(&["aborted", "error_event"])
        }
        other => other,
    };
    Row { after, ..row }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_never_looks_whole() {
    let limit = Arc::new(Semaphore::new(AT_ONCE));
    let mut streams = JoinSet::new();
    for row in TABLE.iter().filter(|row| !matches!(row.what, What::Request { late: false, .. })) {
        for protocol in Protocol::ALL.into_iter().filter(|protocol| !is_hidden(row, *protocol)) {
            let limit = Arc::clone(&limit);
            streams.spawn(async move {
                let _permit = limit.acquire().await.unwrap();
                let row = words(*row, protocol);
                (row, protocol, tokio::spawn(run(row, protocol)).await)
            });
        }
    }
    let mut failed = Vec::new();
    while let Some(done) = streams.join_next().await {
        if let (row, protocol, Err(problem)) = done.unwrap() {
            failed.push(format!("{} {protocol:?}: {problem}", row.what.json()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
