//! Tests of the work routes' answers.

use serde_json::{Value, json};

use super::client::{CLOSE, End, Open, chat, get, open, options, post, reach, request, slow, start};
use crate::server::{SimOptions, VllmFlags};

fn streamed_text(events: &[Value]) -> String {
    let deltas = events.iter().filter_map(|event| event.pointer("/choices/0/delta/content")?.as_str());
    deltas.collect()
}

#[tokio::test]
async fn text_is_fixed_by_the_seed_and_usage_is_exact() {
    let (one, two) = (start(options()).await, start(options()).await);
    let other = start(SimOptions { seed: 1, ..options() }).await;
    let path = "/v1/chat/completions";
    let plain = post(one.addr, path, &chat(40, false)).await.json();
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let mut body = chat(40, true);
    body["stream_options"] = json!({"include_usage": true});
    let events = post(two.addr, path, &body).await.events();
    assert_eq!(streamed_text(&events), text);
    assert_eq!(text.split_whitespace().count(), 40);
    let usage = &events[events.len() - 2]["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(8), &json!(40)));
    assert_eq!(usage["total_tokens"], plain["usage"]["total_tokens"]);
    let differs = post(other.addr, path, &chat(40, false)).await.json();
    assert_ne!(differs["choices"][0]["message"]["content"], plain["choices"][0]["message"]["content"]);
}

#[tokio::test]
async fn n_counts_in_usage_and_every_choice_finishes() {
    let engine = start(options()).await;
    let mut body = chat(6, true);
    body["n"] = json!(3);
    body["stream_options"] = json!({"include_usage": true});
    let events = post(engine.addr, "/v1/chat/completions", &body).await.events();
    assert_eq!(events[events.len() - 2]["usage"]["completion_tokens"], 18);
    for index in 0..3 {
        let of_choice = |event: &&Value| event.pointer("/choices/0/index") == Some(&json!(index));
        let reason = events.iter().rfind(of_choice).unwrap()["choices"][0]["finish_reason"].clone();
        assert_eq!(reason, "length");
    }
}

#[tokio::test]
async fn a_text_stops_by_itself_unless_told_otherwise() {
    let engine = start(SimOptions { mean_output_tokens: 5, ..options() }).await;
    let body = json!({"prompt": "kalo mine", "max_tokens": 2000});
    let answer = post(engine.addr, "/v1/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
    let words = answer["choices"][0]["text"].as_str().unwrap().split_whitespace().count() as u64;
    assert_eq!(words + 1, tokens, "the stop token counts and has no text");
    let clamped = json!({"prompt": vec![7; 2040], "max_tokens": 100, "ignore_eos": true});
    let answer = post(engine.addr, "/v1/completions", &clamped).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 2048, "prompt and output share the window");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn prompts_beyond_the_window_are_refused_with_the_reason() {
    let engine = start(options()).await;
    let long = json!({"prompt": "kalo mine pura si to ve. ".repeat(1500), "max_tokens": 4});
    let error = post(engine.addr, "/v1/completions", &long).await;
    assert_eq!(error.status, 400);
    let expected = "This model's maximum context length is 2048 tokens. However, your prompt contains 37500 \
                    characters (more than 26624 characters, which is the upper bound for 2048 input tokens). \
                    Please reduce the length of the input prompt. (parameter=input_text, value=37500)";
    assert_eq!(error.json()["error"]["message"], expected);
    let ids = |count: usize| json!({"prompt": vec![3; count], "max_tokens": 4});
    let error = post(engine.addr, "/v1/completions", &ids(2049)).await.json();
    assert_eq!(error["error"]["param"], "input_tokens");
    let error = post(engine.addr, "/v1/completions", &ids(2048)).await.json();
    let expected = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)";
    assert_eq!(error["error"]["message"], expected);
    assert_eq!(
        post(engine.addr, "/v1/completions", &ids(2047)).await.json()["usage"]["completion_tokens"],
        1
    );
    let cut = json!({"prompt": "ka ".repeat(20_000), "truncate_prompt_tokens": 100, "max_tokens": 4});
    assert_eq!(post(engine.addr, "/v1/completions", &cut).await.json()["usage"]["prompt_tokens"], 100);
}

#[tokio::test]
async fn repeated_prefixes_show_as_cached_tokens() {
    let engine = start(options()).await;
    let body = json!({"prompt": "kalo mine pura si. ".repeat(40), "max_tokens": 2});
    let first = post(engine.addr, "/v1/completions", &body).await.json();
    let second = post(engine.addr, "/v1/completions", &body).await.json();
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    // 760 bytes are 190 tokens, 11 full blocks of 16.
    assert_eq!((cached(&first), cached(&second)), (json!(0), json!(176)));
    let mut salted = body.clone();
    salted["cache_salt"] = json!("tenant-b");
    assert_eq!(cached(&post(engine.addr, "/v1/completions", &salted).await.json()), 0);
}

#[tokio::test]
async fn a_required_tool_is_called_with_valid_arguments() {
    let engine = start(SimOptions { mean_output_tokens: 20, ..options() }).await;
    let body = |stream: bool| {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let tool = json!({"type": "function", "function": {"name": "weather", "parameters": parameters}});
        json!({
            "messages": [{"role": "user", "content": "sun?"}], "tools": [tool], "tool_choice": "required",
            "stream": stream
        })
    };
    let answer = post(engine.addr, "/v1/chat/completions", &body(false)).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "weather");
    let arguments = call["arguments"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(arguments).unwrap()["city"].is_string(), "{arguments}");
    let events = post(engine.addr, "/v1/chat/completions", &body(true)).await.events();
    let pieces = "/choices/0/delta/tool_calls/0/function/arguments";
    let streamed: String = events.iter().filter_map(|event| event.pointer(pieces)?.as_str()).collect();
    assert_eq!(streamed, arguments);
}

#[tokio::test]
async fn pooling_routes_answer() {
    let engine = start(options()).await;
    let at = engine.addr;
    let answer = post(at, "/v1/embeddings", &json!({"input": ["kalo", "mine pura"]})).await.json();
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
    assert_eq!(
        answer["usage"],
        json!({
            "prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 0}
        })
    );
    let base64 = post(at, "/v1/embeddings", &json!({"input": "kalo", "encoding_format": "base64"})).await;
    assert_eq!(base64.json()["data"][0]["embedding"].as_str().unwrap().len(), (32 * 4usize).div_ceil(3) * 4);
    let body = json!({"query": "ka", "documents": ["lo", {"text": "mi"}, "ne"], "top_n": 2});
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let answer = post(at, path, &body).await.json();
        let scores: Vec<f64> = answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["relevance_score"].as_f64().unwrap())
            .collect();
        assert!(scores.len() == 2 && scores[0] >= scores[1], "{answer}");
    }
    let answer = post(at, "/score", &json!({"text_1": "ka", "text_2": ["lo", "mi"]})).await.json();
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
    assert_eq!(post(at, "/classify", &json!({"input": "ka"})).await.json()["data"][0]["num_classes"], 2);
    assert_eq!(post(at, "/pooling", &json!({"input": "ka"})).await.json()["data"][0]["object"], "pooling");
    let state = engine.control().state();
    assert_eq!((state.inside, state.running, state.waiting, state.cancelled), (0, 0, 0, 0));
}

#[tokio::test]
async fn a_sound_is_transcribed() {
    let engine = start(options()).await;
    let form = |stream: &str| {
        let mut body = format!(
            "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n\
             --b\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\n{stream}\r\n\
             --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n"
        )
        .into_bytes();
        body.extend(vec![0xAB; 64_000]);
        body.extend(b"\r\n--b--\r\n");
        let headers = "Connection: close\r\nContent-Type: multipart/form-data; boundary=b\r\n";
        request("POST", "/v1/audio/transcriptions", headers, &body)
    };
    let answer = Open::send(engine.addr, &form("false")).await.unwrap().end().await.json();
    assert_eq!(answer["text"].as_str().unwrap().split_whitespace().count(), 6, "2 s of 3 words");
    assert_eq!(answer["usage"], json!({"type": "duration", "seconds": 2}));
    let events = Open::send(engine.addr, &form("true")).await.unwrap().end().await.events();
    assert_eq!(events[0]["object"], "transcription.chunk");
    assert_eq!(streamed_text(&events), answer["text"].as_str().unwrap());
    let bad =
        Open::send(engine.addr, &request("POST", "/v1/audio/translations", CLOSE, b"{}")).await.unwrap();
    assert_eq!(bad.end().await.status, 400);
}

#[tokio::test]
async fn the_queue_limit_refuses_with_the_recorded_words() {
    let vllm = VllmFlags { max_queued_reqs: Some(1), ..VllmFlags::default() };
    let engine = start(SimOptions { vllm, ..slow() }).await;
    let mut first = open(engine.addr, "/v1/chat/completions", &chat(2000, true)).await;
    first.until("\"role\"").await;
    let (reply, recorded) = super::client::replay(engine.addr, "err/admission_queue_full_messages").await;
    assert_eq!((reply.status, reply.text()), (503, recorded.text()));
    drop(first);
    reach(&engine.control(), "room again", |state| state.inside == 0).await;
    assert_eq!(post(engine.addr, "/v1/chat/completions", &chat(1, false)).await.status, 200);
}

#[tokio::test]
async fn ids_come_from_the_request_id_header() {
    let engine = start(options()).await;
    let headers = format!("{CLOSE}X-Request-Id: gw-1\r\n");
    let body = chat(2, true).to_string();
    let request = request("POST", "/v1/chat/completions", &headers, body.as_bytes());
    let reply = Open::send(engine.addr, &request).await.unwrap().end().await;
    assert_eq!(reply.events()[0]["id"], "chatcmpl-gw-1");
    assert_eq!(reply.header("x-request-id"), None, "only echoed when switched on");
    assert_eq!(reply.end, End::Whole);
    let created = get(engine.addr, "/v1/models").await.json()["data"][0]["created"].as_u64().unwrap();
    assert!(created >= SimOptions::default().epoch);
}
