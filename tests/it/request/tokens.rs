//! Tokens of prompts and context windows end to end: what is counted, what is refused, and what is
//! lowered.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use penstock::sim::server::SimOptions;
use penstock::tokens::counter::{MediaCosts, PromptForm, TokenCounter};
use serde_json::{Value, json};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT};

const CHAT: &str = "/v1/chat/completions";
/// What is left for the answer when more was asked for.
const MAX_TOKENS: &str = "x-penstock-max-tokens";

fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/byte-level")
}

/// A chat with tools, in several scripts.
fn body(model: &str, max_tokens: Option<u64>) -> Value {
    let mut body = json!({
        "model": model,
        "messages": [
            { "role": "system", "content": "Antworte kurz. 简短回答。" },
            { "role": "user", "content": [{ "type": "text", "text": "Как высока вода? 😀 ".repeat(20) }] },
        ],
        "tools": [{ "type": "function", "function": { "name": "level", "parameters": { "type": "object" } } }],
        "tool_choice": "none",
        "ignore_eos": true,
    });
    if let Some(max_tokens) = max_tokens {
        body["max_tokens"] = max_tokens.into();
    }
    body
}

fn tokens(body: &Value) -> u64 {
    let counter = TokenCounter::open(&tokenizer()).unwrap();
    let never = AtomicBool::new(false);
    counter
        .count(PromptForm::Chat, body.to_string().as_bytes(), &MediaCosts::default(), 0, &never)
        .unwrap()
        .total
}

/// A gateway with one model for each window, all of them the engine's one.
async fn rig(windows: &[(&str, u64, &str)]) -> Rig {
    let mut pool = "engine: vllm\nmodels: {".to_owned();
    let mut models = "models:\n".to_owned();
    for (name, window, more) in windows {
        pool += &format!("{name}: sim, ");
        models += &format!("  {name}: {{max_model_len: {window}, tokenizer: {:?}{more}}}\n", tokenizer());
    }
    pool += "}";
    let engine = SimOptions { max_model_len: 1 << 20, speed: 100.0, ..SimOptions::default() };
    Rig::start(RigOptions {
        engines: vec![engine],
        pool: Some(Box::leak(pool.into_boxed_str())),
        more: models,
        ..RigOptions::default()
    })
    .await
}

async fn post(rig: &Rig, body: &Value) -> Answer {
    Call::post(CHAT, body).key(rig.key(TENANT)).send(rig.address()).await
}

#[tokio::test]
async fn the_boundary_is_exact() {
    let prompt = tokens(&body("m", None));
    let output = 20;
    let rejects = ", context: {policy: reject}";
    let rig = rig(&[
        ("less", prompt - 1, ""),
        ("same", prompt, ""),
        ("one-more", prompt + 1, ""),
        ("fits", prompt + output, rejects),
        ("one-short", prompt + output - 1, rejects),
        ("clamped", prompt + output - 1, ""),
    ])
    .await;
    for (model, status, param, said, lowered) in [
        ("less", 400, "messages", format!("length is {} tokens", prompt - 1), None),
        ("same", 400, "messages", format!("your prompt has {prompt} tokens"), None),
        ("one-more", 200, "", String::new(), Some(1)),
        ("fits", 200, "", String::new(), None),
        (
            "one-short",
            400,
            "max_tokens",
            format!("{} tokens ({prompt} in the prompt, {output}", prompt + output),
            None,
        ),
        ("clamped", 200, "", String::new(), Some(output - 1)),
    ] {
        let answer = post(&rig, &body(model, Some(output))).await;
        let text = answer.text();
        assert_eq!(answer.status, status, "{model}: {text}");
        let lowered: Option<u64> = lowered;
        assert_eq!(
            answer.header(MAX_TOKENS),
            lowered.map_or(String::new(), |left| left.to_string()),
            "{model}"
        );
        let json: Value = serde_json::from_str(&text).unwrap();
        if status == 400 {
            let error = &json["error"];
            assert_eq!(
                (&error["code"], &error["param"]),
                (&"context_length_exceeded".into(), &param.into()),
                "{text}"
            );
            assert!(error["message"].as_str().unwrap().contains(&said), "{text}");
        } else {
            let most = lowered.unwrap_or(output);
            assert_eq!(json["usage"]["completion_tokens"], most, "{model}: the engine was told");
        }
    }
    let answer = post(&rig, &body("fits", Some(output))).await;
    let line = rig.line_of(answer.header("x-request-id")).await;
    assert_eq!((&line["prompt_tokens"], &line["prompt_source"]), (&prompt.into(), &"exact".into()));
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_prompt_far_below_the_window_is_not_tokenized() {
    let rig = rig(&[("large", 131_072, ""), ("small", 1000, "")]).await;
    let desk = &rig.gateway.proxy().token_counters.threads;
    for _ in 0..10 {
        let answer = post(&rig, &body("large", Some(5))).await;
        assert_eq!(answer.status, 200);
        let line = rig.line_of(answer.header("x-request-id")).await;
        assert_eq!((&line["prompt_source"], desk.requested()), (&"bound".into(), 0));
    }
    assert_eq!(post(&rig, &body("small", Some(5))).await.status, 200);
    assert_eq!(desk.requested(), 1);
}

#[tokio::test]
async fn a_prompt_is_cut_only_where_that_is_allowed() {
    let prompt = tokens(&body("m", None));
    let rig = rig(&[("whole", prompt, ""), ("cut", prompt, ", context: {truncate: allow}")]).await;
    let ask = |model, cut: Value| {
        let mut body = body(model, Some(5));
        body["truncate_prompt_tokens"] = cut;
        body
    };
    for (model, cut, status) in [
        ("whole", json!(10), 400),
        ("whole", json!(-1), 400),
        ("whole", json!(null), 400),
        ("cut", json!(10), 200),
        ("cut", json!(-1), 200),
        ("cut", json!(prompt), 400),
    ] {
        let answer = post(&rig, &ask(model, cut.clone())).await;
        assert_eq!(answer.status, status, "{model} {cut}: {}", answer.text());
        let is_about_it = answer.text().contains("\"param\":\"truncate_prompt_tokens\"");
        assert_eq!(is_about_it, model == "whole" && !cut.is_null(), "{}", answer.text());
    }
}

#[tokio::test]
async fn estimates_learn_from_what_engines_count() {
    let rig = Rig::start(RigOptions::default()).await;
    let text = json!({ "model": "sim", "max_tokens": 1,
        "messages": [{ "role": "user", "content": "a b c d e f g h ".repeat(200) }] });
    let mut lines = Vec::new();
    for _ in 0..10 {
        let answer = post(&rig, &text).await;
        assert_eq!(answer.status, 200);
        lines.push(rig.line_of(answer.header("x-request-id")).await);
    }
    let off = |line: &Value| {
        let said = line["prompt_tokens"].as_f64().unwrap();
        (said / line["input_tokens"].as_f64().unwrap()).ln().abs()
    };
    assert!(["estimate", "bound"].map(Value::from).contains(&lines[0]["prompt_source"]), "{}", lines[0]);
    let (first, last) = (off(&lines[0]), off(&lines[9]));
    assert!(last < 0.1 && last <= first, "{first} {last}");
}
