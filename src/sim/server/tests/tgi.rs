//! Tests of the TGI dialect.

use serde_json::{Value, json};

use super::client::{End, Open, get, open, post, reach, request, start};
use crate::faults::{Fault, FaultKind};
use crate::server::{ServerDialect, SimOptions};

fn options() -> SimOptions {
    SimOptions {
        dialect: ServerDialect::Tgi,
        models: vec!["org/model".into()],
        max_model_len: 512,
        max_concurrent_requests: 2,
        ..SimOptions::default()
    }
}

fn body(tokens: u32) -> Value {
    json!({"inputs": "kalo mine pura si", "parameters": {"max_new_tokens": tokens, "details": true}})
}

#[tokio::test]
async fn generate_answers_with_details_and_timing_headers() {
    let engine = start(options()).await;
    let reply = post(engine.addr, "/generate", &body(3)).await;
    assert_eq!(reply.status, 200);
    let answer = reply.json();
    let details = &answer["details"];
    assert_eq!((&details["generated_tokens"], &details["finish_reason"]), (&json!(3), &json!("length")));
    assert_eq!(details["tokens"].as_array().unwrap().len(), 3);
    for name in ["x-queue-time", "x-inference-time", "x-total-time", "x-time-per-token", "x-validation-time"]
    {
        assert!(reply.header(name).is_some_and(|value| value.parse::<u64>().is_ok()), "{name}");
    }
    // 17 bytes at four bytes per token.
    assert_eq!((reply.header("x-prompt-tokens"), reply.header("x-generated-tokens")), (Some("5"), Some("3")));
    let compat = post(engine.addr, "/", &body(3)).await.json();
    assert_eq!(compat[0]["generated_text"], answer["generated_text"]);
}

#[tokio::test]
async fn streams_have_one_event_for_each_token() {
    let engine = start(options()).await;
    let plain = post(engine.addr, "/generate", &body(6)).await.json();
    let reply = post(engine.addr, "/generate_stream", &body(6)).await;
    assert_eq!((reply.end, reply.header("content-type")), (End::Whole, Some("text/event-stream")));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    assert!(reply.text().starts_with("data:{"));
    let events = reply.events();
    assert_eq!(events.len(), 6);
    assert!(events[..5].iter().all(|event| event["generated_text"].is_null()));
    assert_eq!(events[5]["generated_text"], plain["generated_text"]);
    let text: String = events.iter().filter_map(|event| event["token"]["text"].as_str()).collect();
    assert_eq!(text, plain["generated_text"].as_str().unwrap());
}

#[tokio::test]
async fn the_openai_routes_answer() {
    let engine = start(options()).await;
    let mut chat = json!({"model": "tgi", "messages": [{"role": "user", "content": "ka"}], "max_tokens": 4});
    let answer = post(engine.addr, "/v1/chat/completions", &chat).await.json();
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("org/model")));
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    chat["stream"] = json!(true);
    chat["stream_options"] = json!({"include_usage": true});
    let events = post(engine.addr, "/v1/chat/completions", &chat).await.events();
    let deltas = events.iter().filter_map(|event| event.pointer("/choices/0/delta/content")?.as_str());
    assert_eq!(deltas.collect::<String>(), text);
    assert_eq!(events[events.len() - 2]["usage"]["total_tokens"], answer["usage"]["total_tokens"]);
    assert_eq!(events.last().unwrap(), "[DONE]");
    let completion = json!({"model": "tgi", "prompt": "ka", "max_tokens": 2});
    let answer = post(engine.addr, "/v1/completions", &completion).await.json();
    assert!(answer["choices"][0]["text"].is_string());
}

#[tokio::test]
async fn invalid_input_is_422_and_overload_is_429() {
    let engine = start(options()).await;
    let over = post(engine.addr, "/generate", &body(600)).await;
    assert_eq!(over.status, 422);
    assert_eq!(
        over.json(),
        json!({
            "error": "`inputs` tokens + `max_new_tokens` must be <= 512. Given: 5 `inputs` tokens and 600 \
                      `max_new_tokens`",
            "error_type": "validation"
        })
    );
    let long = json!({"inputs": "kalo".repeat(600), "parameters": {}});
    assert!(post(engine.addr, "/generate", &long).await.text().contains("must have less than 511 tokens"));
    assert_eq!(post(engine.addr, "/generate", &json!({"text": 1})).await.status, 422);
    engine.control().add(FaultKind::Freeze).unwrap();
    let held = (
        open(engine.addr, "/generate", &body(9)).await,
        open(engine.addr, "/generate_stream", &body(9)).await,
    );
    reach(&engine.control(), "two inside", |state| state.inside == 2).await;
    let busy = post(engine.addr, "/generate_stream", &body(9)).await;
    assert_eq!(busy.status, 429);
    assert_eq!(busy.json(), json!({"error": "Model is overloaded", "error_type": "overloaded"}));
    drop(held);
    reach(&engine.control(), "empty", |state| state.inside == 0 && state.cancelled == 2).await;
    let page = get(engine.addr, "/metrics").await.text();
    assert!(page.contains("tgi_request_failure{err=\"overloaded\"} 1"), "{page}");
}

#[tokio::test]
async fn info_health_and_metrics_are_there() {
    let engine = start(options()).await;
    let locked = start(SimOptions { api_key: Some("SeKret".into()), ..options() }).await;
    assert_eq!(post(locked.addr, "/generate", &body(3)).await.status, 401);
    assert_eq!(get(locked.addr, "/info").await.status, 200);
    let headers = "Connection: close\r\nAuthorization: Bearer sekRET\r\n";
    let request = request("POST", "/generate", headers, body(3).to_string().as_bytes());
    assert_eq!(Open::send(locked.addr, &request).await.unwrap().end().await.status, 200);
    let info = get(engine.addr, "/info").await.json();
    assert_eq!((&info["max_concurrent_requests"], &info["max_total_tokens"]), (&json!(2), &json!(512)));
    assert_eq!(get(engine.addr, "/health").await.status, 200);
    assert_eq!(get(engine.addr, "/v1/models").await.json()["data"][0]["id"], "org/model");
    assert_eq!(get(engine.addr, "/nothing").await.status, 404);
    assert_eq!(get(engine.addr, "/generate").await.status, 405);
    post(engine.addr, "/generate", &body(3)).await;
    let page = get(engine.addr, "/metrics").await.text();
    for line in
        ["tgi_queue_size 0", "tgi_batch_current_size 0", "tgi_request_success 1", "tgi_request_count 1"]
    {
        assert!(page.lines().any(|found| found == line), "{line}:\n{page}");
    }
    assert!(page.contains("tgi_request_generated_tokens_sum 3"));
}

#[tokio::test]
async fn errors_in_streams_are_events() {
    let engine = start(options()).await;
    engine.control().add(Fault::from(FaultKind::EngineDead { after_tokens: 2 }).times(1)).unwrap();
    let events = post(engine.addr, "/generate_stream", &body(9)).await.events();
    assert_eq!((events.len(), &events[2]["error_type"]), (3, &json!("generation")));
    engine.control().add(Fault::from(FaultKind::Abort { after_tokens: 2 }).times(1)).unwrap();
    let reply = post(engine.addr, "/generate", &body(9)).await;
    assert_eq!((reply.status, &reply.json()["error_type"]), (500, &json!("incomplete_generation")));
}
