//! Tests against recordings of the real vLLM: errors must match word for word,
//! other answers by keys and types.

use std::collections::BTreeSet;

use serde_json::Value;

use super::client::{End, Reply, fixture, get, options, post, replay, start};
use crate::server::{SimHandle, SimOptions, VllmFlags};

fn recorded_engine() -> SimOptions {
    let vllm = VllmFlags { request_id_headers: true, ..VllmFlags::default() };
    SimOptions { vllm, ..options() }
}

/// Keys and types of a value; for a list those of the first element.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(items) => format!("[{}]", items.first().map(shape).unwrap_or_default()),
        Value::Object(map) => {
            let fields: Vec<_> = map.iter().map(|(key, value)| format!("{key}:{}", shape(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
    }
}

/// Header names that do not depend on the connection or the server's clock.
fn header_names(reply: &Reply) -> BTreeSet<&str> {
    let names = reply.headers.iter().map(|(name, _)| name.as_str());
    names.filter(|name| !["connection", "x-request-id"].contains(name)).collect()
}

#[tokio::test]
async fn errors_are_word_for_word() {
    let engine = start(recorded_engine()).await;
    let names = [
        "err/bad_json",
        "err/bad_stop",
        "err/bad_token_ids",
        "err/bad_utf8",
        "err/completion_max_tokens_too_big",
        "err/empty_body",
        "err/empty_messages",
        "err/image_input",
        "err/json_array",
        "err/max_tokens_0",
        "err/max_tokens_neg",
        "err/max_tokens_too_big",
        "err/max_tokens_too_big_stream",
        "err/messages_unknown_model",
        "err/missing_messages",
        "err/n_0",
        "err/n_big",
        "err/no_content_type",
        "err/priority_string",
        "err/responses_unknown_id",
        "err/seed_bad",
        "err/stream_options_without_stream",
        "err/temperature_negative",
        "err/text_content_type",
        "err/tokenize_unknown_model",
        "err/tool_choice_auto_disabled",
        "err/top_p_2",
        "err/unknown_model",
        "err/unknown_model_stream",
        "err/unknown_path",
        "err/wrong_method",
        "err/wrong_method_delete",
        "meta/health_head",
        "meta/model_one",
        "meta/options_chat",
    ];
    for name in names {
        let (reply, recorded) = replay(engine.addr, name).await;
        assert_eq!(reply.status, recorded.status, "{name}: {}", reply.text());
        assert_eq!(reply.text(), recorded.text().trim_end(), "{name}");
        assert_eq!(header_names(&reply), header_names(&recorded), "{name}");
    }
}

#[tokio::test]
async fn answers_in_one_piece_have_the_recorded_shape() {
    let engine = start(recorded_engine()).await;
    let names = [
        "ok/chat",
        "ok/chat_logprobs",
        "ok/chat_alias",
        "ok/chat_request_id",
        "ok/completion",
        "ok/completion_batch",
        "ok/completion_token_ids",
        "ok/messages",
        "ok/messages_count_tokens",
        "ok/responses",
        "ok/chat_orca_json",
        "ok/chat_orca_text",
        "err/priority_huge",
        "err/unknown_field",
        "meta/models",
        "meta/load",
        "meta/version",
        "meta/tokenize_prompt",
        "meta/tokenize_chat",
        "meta/is_paused",
        "meta/is_sleeping",
        "admin/abort_requests",
        "admin/reset_prefix_cache",
        "auth/nokey_invocations",
    ];
    for name in names {
        let (reply, recorded) = replay(engine.addr, name).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        assert_eq!(header_names(&reply), header_names(&recorded), "{name}");
        if name != "auth/nokey_invocations" {
            assert_eq!(shape(&reply.json()), shape(&recorded.json()), "{name}");
        }
    }
    for name in ["meta/health", "meta/ping", "meta/ping_post"] {
        let (reply, recorded) = replay(engine.addr, name).await;
        assert_eq!((reply.status, reply.body()), (200, Vec::new()), "{name}");
        assert_eq!(header_names(&reply), header_names(&recorded), "{name}");
    }
}

/// The distinct shapes of a stream's events, in order.
fn event_shapes(reply: &Reply) -> Vec<String> {
    let mut shapes: Vec<_> = reply.events().iter().map(shape).collect();
    shapes.dedup();
    shapes
}

#[tokio::test]
async fn streams_have_the_recorded_events() {
    let engine = start(recorded_engine()).await;
    let names = [
        "ok/chat_stream_usage",
        "ok/chat_stream_continuous_usage",
        "ok/chat_stream_n2",
        "ok/completion_stream_usage",
        "ok/messages_stream",
        "ok/responses_stream",
    ];
    for name in names {
        let (reply, recorded) = replay(engine.addr, name).await;
        assert_eq!((reply.status, reply.end), (200, End::Whole), "{name}");
        assert_eq!(header_names(&reply), header_names(&recorded), "{name}");
        assert!(reply.chunks.iter().all(|chunk| chunk.ends_with(b"\n\n")), "{name}: one chunk for one event");
        let (ours, theirs) = (event_shapes(&reply), event_shapes(&recorded));
        // Load decides how tokens are merged into events. One side may
        // therefore lack an event kind in the middle; the first and last kinds
        // are always there.
        let known: BTreeSet<_> = theirs.iter().collect();
        assert!(ours.iter().all(|shape| known.contains(shape)), "{name}:\n{ours:#?}\n{theirs:#?}");
        assert_eq!(ours.first(), theirs.first(), "{name}");
        assert_eq!(ours.last(), theirs.last(), "{name}");
    }
}

#[tokio::test]
async fn a_stream_without_usage_ends_like_the_recorded_one() {
    let engine = start(recorded_engine()).await;
    let (reply, recorded) = replay(engine.addr, "ok/chat_stream").await;
    let last = |reply: &Reply| {
        let events = reply.events();
        shape(&events[events.len() - 2])
    };
    assert_eq!(last(&reply), last(&recorded));
    assert_eq!(reply.events().last(), recorded.events().last());
}

#[tokio::test]
async fn a_slash_too_many_redirects_to_the_engine_itself() {
    let engine = start(recorded_engine()).await;
    let (reply, recorded) = replay(engine.addr, "err/trailing_slash").await;
    assert_eq!(reply.status, 307);
    assert_eq!(reply.header("location"), recorded.header("location"), "from the Host header");
    assert_eq!(header_names(&reply), header_names(&recorded));
}

#[tokio::test]
async fn keys_guard_what_vllm_guards_and_no_more() {
    let engine = start(SimOptions { api_key: Some("sekret".into()), ..recorded_engine() }).await;
    for name in ["auth/no_key", "auth/bad_key"] {
        let (reply, recorded) = replay(engine.addr, name).await;
        assert_eq!((reply.status, reply.text()), (recorded.status, recorded.text()), "{name}");
    }
    assert_eq!(replay(engine.addr, "auth/nokey_invocations").await.0.status, 200);
    assert_eq!(get(engine.addr, "/metrics").await.status, 200);
    assert_eq!(get(engine.addr, "/v1/models").await.status, 401);
}

fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| line.starts_with("vllm:"));
    lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

async fn metrics(engine: &SimHandle) -> String {
    get(engine.addr, "/metrics").await.text()
}

#[tokio::test]
async fn metrics_have_vllm_names_and_exact_counts() {
    let engine = start(recorded_engine()).await;
    post(engine.addr, "/v1/chat/completions", &super::client::chat(7, false)).await;
    let page = metrics(&engine).await;
    let recorded = fixture("metrics/under_load").1;
    let (ours, theirs) = (series(&page), series(&recorded.text()));
    assert!(ours.is_subset(&theirs), "unknown: {:?}", ours.difference(&theirs).collect::<Vec<_>>());
    let reply = get(engine.addr, "/metrics").await;
    assert_eq!(reply.header("content-type"), recorded.header("content-type"));
    for (name, value) in [
        ("vllm:generation_tokens_total", "7.0"),
        ("vllm:prompt_tokens_total", "8.0"),
        ("vllm:num_requests_running", "0.0"),
        ("vllm:time_to_first_token_seconds_count", "1.0"),
        ("vllm:inter_token_latency_seconds_count", "6.0"),
    ] {
        let line = format!("{name}{{engine=\"0\",model_name=\"tiny\"}} {value}");
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    for line in [
        "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"tiny\"} 1.0",
        "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"capacity\"} 0.0",
        "vllm:engine_sleep_state{engine=\"0\",model_name=\"tiny\",sleep_state=\"awake\"} 1.0",
        "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"+Inf\",model_name=\"tiny\"} 1.0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
}
