//! Habits of real clients, one test each: what SDKs, load tools, chat
//! front ends and probes send, and what they expect back.

pub(crate) mod calls;

use std::time::Duration;

use http::Method;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Frame;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimConnections, SimOptions};
use serde_json::{Value, json};

use crate::support::client::{Answer, Call, H2, Raw, Session, in_pieces};
use crate::support::gateway::{MODEL, PATIENCE, Rig, RigOptions, TENANT, chat, soon, until};
use crate::support::recorder::Tap;

const CHAT: &str = "/v1/chat/completions";

/// A rig whose engine is behind a tap.
async fn tapped(options: RigOptions, engine: SimOptions) -> (Rig, Tap) {
    let sim = penstock::sim::server::SimServer::start(engine).await.unwrap();
    let tap = Tap::before(sim.addr).await;
    let mut rig = Rig::start(RigOptions { urls: vec![tap.url.clone()], ..options }).await;
    rig.engines.push(sim);
    (rig, tap)
}

/// A rig whose connection to its engine lasts for the whole test.
async fn plain_tapped() -> (Rig, Tap) {
    let connections = SimConnections { keep_alive: Duration::from_secs(600), ..SimConnections::default() };
    let more = "upstream: {keep_alive: 5m}\n".to_owned();
    let engine = SimOptions { connections, ..SimOptions::default() };
    tapped(RigOptions { more, ..RigOptions::default() }, engine).await
}

async fn rig() -> Rig {
    Rig::start(RigOptions::default()).await
}

/// openai-python (sync), guidellm: the connection is closed at `[DONE]`,
/// before the last chunk.
#[tokio::test]
async fn fin_right_after_done_is_success() {
    let (rig, tap) = plain_tapped().await;
    for round in 0..10 {
        let id = format!("fin-{round}");
        let call = Call::post(CHAT, &chat(5, true)).key(rig.key(TENANT)).header("x-request-id", &id);
        let mut client = Raw::open(rig.address()).await;
        client.write(call.bytes()).await.unwrap();
        soon("[DONE]", client.read_past("[DONE]")).await.unwrap();
        if round % 2 == 0 {
            drop(client);
        } else {
            client.reset();
        }
        let line = rig.line_of(&id).await;
        assert_eq!((&line["outcome"], &line["usage"]), (&json!("success"), &json!("exact")), "{line}");
        assert_eq!((&line["status"], &line["output_tokens"]), (&json!(200), &json!(5)));
        rig.emptied_within(PATIENCE).await;
    }
    let posts = tap.posts();
    assert_eq!(posts.len(), 10);
    assert!(posts.iter().all(|post| post.wire == posts[0].wire), "one upstream connection for all");
    assert_eq!(rig.engine(0).state().cancelled, 0, "the engine was never cancelled");
}

/// vllm bench serve: /tokenize at the base URL, without a key.
#[tokio::test]
async fn tokenize_without_a_key_is_401_in_json() {
    let rig = rig().await;
    let answer = Call::post("/tokenize", &json!({"model": MODEL, "prompt": "x"})).send(rig.address()).await;
    assert_eq!((answer.status, answer.code().as_str()), (401, "missing_api_key"));
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("x-should-retry"), "false");
    let tokens = rig.post("/tokenize", &json!({"model": MODEL, "prompt": "12345678"})).await.ok().json();
    assert_eq!(tokens["count"], 2);
}

/// vllm bench serve: ids that are no UUIDs.
#[tokio::test]
async fn a_bench_request_id_is_kept_sent_on_and_answered() {
    let (rig, tap) = plain_tapped().await;
    let id = "bench-3f2a9c-17";
    let call = Call::post(CHAT, &chat(3, false)).key(rig.key(TENANT)).header("x-request-id", id);
    let answer = call.send(rig.address()).await.ok();
    assert_eq!(answer.header("x-request-id"), id);
    assert_eq!(answer.json()["id"], format!("chatcmpl-{id}"));
    assert_eq!(tap.only_post(CHAT).headers["x-request-id"], id);
    assert_eq!(rig.line_of(id).await["outcome"], "success");
    // Without one, the gateway's own goes the same ways.
    let answer = rig.post(CHAT, &chat(3, false)).await.ok();
    let made = answer.header("x-request-id").to_owned();
    assert!(made.starts_with("req_"), "{made}");
    assert_eq!(answer.json()["id"], format!("chatcmpl-{made}"));
}

/// guidellm, load balancers: /health on the data port, with and without a key.
#[tokio::test]
async fn health_is_200_on_the_data_port() {
    let rig = rig().await;
    for method in [Method::GET, Method::HEAD] {
        let call = Call::new(method.clone(), "/health");
        assert_eq!(call.clone().send(rig.address()).await.status, 200);
        assert_eq!(call.key(rig.key(TENANT)).send(rig.address()).await.status, 200);
        assert_eq!(Call::new(method, "/ping").key("wrong").send(rig.address()).await.status, 200);
    }
}

/// aiperf: HEAD /metrics first, then GET.
#[tokio::test]
async fn metrics_answers_head_and_get_on_the_admin_port() {
    let rig = rig().await;
    let head = rig.admin(Method::HEAD, "/metrics").await.ok();
    assert!(head.body.is_empty());
    let get = rig.admin(Method::GET, "/metrics").await.ok();
    assert!(get.text().contains("penstock_"));
    assert!(get.header("content-type").starts_with("text/plain"), "{get:?}");
}

/// instructor, litellm, aiperf, aider: `model` after `messages`; and there is
/// a megabyte in front of it.
#[tokio::test]
async fn model_may_come_last_even_after_a_megabyte() {
    let engine = SimOptions { max_model_len: 1 << 20, ..SimOptions::default() };
    let rig = Rig::start(RigOptions { engines: vec![engine], ..RigOptions::default() }).await;
    for words in [1, 200_000] {
        let text = "water ".repeat(words);
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"{text}"}}],"max_tokens":2,"stream":false,"model":"{MODEL}"}}"#
        );
        let answer = Call::post_text(CHAT, &body).key(rig.key(TENANT)).send(rig.address()).await;
        if words == 1 {
            answer.ok();
        } else {
            // Too long for the engine's window, and it is the engine that says so.
            assert!(answer.status == 200 || answer.code() == "context_length_exceeded", "{answer:?}");
        }
    }
}

/// aiohttp and requests users: JSON escapes, in the prompt and in names.
#[tokio::test]
async fn escapes_are_understood_and_reach_the_engine_as_written() {
    let (rig, tap) = plain_tapped().await;
    let body = r#"{"\u006dodel":"\u0073im","messages":[{"role":"user","content":"\u6c34\u306e\u9ad8\u3055 \ud83d\udca7"}],"max_tokens":2}"#;
    let answer = Call::post_text(CHAT, body).key(rig.key(TENANT)).send(rig.address()).await;
    answer.ok();
    assert_eq!(tap.only_post(CHAT).body, body.as_bytes());
}

/// guidellm, vllm bench: content parts, `max_completion_tokens`, `ignore_eos`,
/// fields nobody knows. All of it reaches the engine byte for byte.
#[tokio::test]
async fn fields_the_gateway_does_not_know_reach_the_engine_untouched() {
    let (rig, tap) = plain_tapped().await;
    let body = r#" { "model" : "sim",
        "messages":[{"role":"user","content":[{"type":"text","text":"how high?"}]}],
        "max_completion_tokens":7, "ignore_eos" : true, "x_new_field":{"a":[1.50,2e3,"\u00e9"]},
        "repetition_penalty": 1.00 }"#;
    let answer = Call::post_text(CHAT, body).key(rig.key(TENANT)).send(rig.address()).await.ok();
    assert_eq!(answer.json()["usage"]["completion_tokens"], 7);
    let post = tap.only_post(CHAT);
    assert_eq!(post.body, body.as_bytes());
    assert_eq!(answer.body, post.answer);
}

/// guidellm: usage in every event, which passes as it came.
#[tokio::test]
async fn continuous_usage_passes_unchanged() {
    let (rig, tap) = plain_tapped().await;
    let mut body = chat(6, true);
    body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let answer = rig.post(CHAT, &body).await.ok();
    assert!(answer.is_done());
    assert_eq!(answer.body, tap.only_post(CHAT).answer);
    let events = answer.events();
    assert!(events.iter().all(|event| event["usage"]["prompt_tokens"].is_u64()), "{events:?}");
}

/// About half of the clients do not ask for usage: it is asked for, read, and
/// taken out again.
#[tokio::test]
async fn usage_nobody_asked_for_is_read_and_taken_out() {
    let (rig, tap) = plain_tapped().await;
    for (number, options) in [Value::Null, json!({"include_usage": false}), json!({})].iter().enumerate() {
        let mut body = chat(4, true);
        if !options.is_null() {
            body["stream_options"] = options.clone();
        }
        let id = format!("usage-{number}");
        let call = Call::post(CHAT, &body).key(rig.key(TENANT)).header("x-request-id", &id);
        let answer = call.send(rig.address()).await.ok();
        assert!(answer.is_done());
        for event in answer.events() {
            assert!(event.get("usage").is_none(), "{event}");
            assert_ne!(event["choices"], json!([]), "{event}");
        }
        let sent: Value = serde_json::from_slice(&tap.last_post().body).unwrap();
        assert_eq!(sent["stream_options"]["include_usage"], true);
        let line = rig.line_of(&id).await;
        assert_eq!((&line["usage"], &line["output_tokens"]), (&json!("exact"), &json!(4)), "{line}");
    }
    let mut body = chat(4, true);
    body["stream_options"] = json!({"include_usage": true});
    let answer = rig.post(CHAT, &body).await.ok();
    assert_eq!(answer.events().last().unwrap()["usage"]["completion_tokens"], 4);
}

/// Anthropic's SDKs: `Authorization: Bearer`, a timeout that is no number,
/// and `request-id` read from every answer.
#[tokio::test]
async fn anthropic_sdks_are_understood() {
    let rig = rig().await;
    let body = json!({
        "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}], "model": MODEL,
    });
    let call = |path, body: &Value| {
        Call::post(path, body)
            .key(rig.key(TENANT))
            .header("anthropic-version", "2026-10-21")
            .header("x-stainless-timeout", "NOT_GIVEN")
            .header("x-stainless-read-timeout", "30")
    };
    let answer = call("/v1/messages", &body).send(rig.address()).await.ok();
    assert_eq!(answer.json()["type"], "message");
    assert!(!answer.header("request-id").is_empty());
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));

    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let answer = call("/v1/messages", &streamed).send(rig.address()).await.ok();
    assert!(answer.text().contains("event: message_stop"), "{answer:?}");
    assert!(!answer.header("request-id").is_empty());

    let mut unknown = body.clone();
    unknown["model"] = json!("nothing");
    let answer = call("/v1/messages", &unknown).send(rig.address()).await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (404, &json!("not_found_error")));
    assert!(!answer.header("request-id").is_empty());

    let answer = call("/v1/messages/count_tokens", &body).send(rig.address()).await.ok();
    assert!(answer.json()["input_tokens"].as_u64().unwrap() > 0);
    assert!(!answer.header("request-id").is_empty());

    let by_x_api_key = Call::post("/v1/messages", &body).header("x-api-key", rig.key(TENANT));
    by_x_api_key.send(rig.address()).await.ok();
}

/// A deadline in a header of its own, for clients without an SDK.
#[tokio::test]
async fn x_request_timeout_ms_is_a_deadline() {
    let rig = Rig::start(RigOptions {
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 1"),
        ..RigOptions::default()
    })
    .await;
    rig.engine(0).add(FaultKind::Slow { factor: 1000.0 }).unwrap();
    let mut holder = Raw::open(rig.address()).await;
    let hold = Call::post(CHAT, &chat(100, true)).key(rig.key(TENANT));
    holder.write(hold.bytes()).await.unwrap();
    until("the replica is full", || rig.snapshot().replicas[0].running == 1).await;
    let begun = tokio::time::Instant::now();
    let hurried =
        Call::post(CHAT, &chat(1, false)).key(rig.key(TENANT)).header("x-request-timeout-ms", "300");
    let answer = hurried.send(rig.address()).await;
    assert_eq!((answer.status, answer.code().as_str()), (504, "deadline_unmeetable"));
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// lm-eval: log-likelihoods by `echo` and `logprobs`.
#[tokio::test]
async fn echo_with_logprobs_passes() {
    let (rig, tap) = plain_tapped().await;
    let body = json!({
        "prompt": "the water is", "max_tokens": 1, "echo": true, "logprobs": 1, "seed": 1234, "model": MODEL,
    });
    let answer = rig.post("/v1/completions", &body).await.ok();
    let post = tap.only_post("/v1/completions");
    assert_eq!(answer.body, post.answer);
    let choice = &answer.json()["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with("the water is"), "{choice}");
    assert!(choice["logprobs"]["token_logprobs"][0].is_f64(), "{choice}");
}

/// Chunked bodies, and `Expect: 100-continue`, which curl sends.
#[tokio::test]
async fn chunked_bodies_and_expect_100_work() {
    let (rig, tap) = plain_tapped().await;
    let body = chat(2, false).to_string();
    let (first, second) = body.split_at(20);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {}\r\n",
        rig.key(TENANT)
    );
    let mut client = Raw::open(rig.address()).await;
    client
        .write(format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n", first.len()))
        .await
        .unwrap();
    client.write(format!("{:x}\r\n{second}\r\n0\r\n\r\n", second.len())).await.unwrap();
    let answer = soon("the answer's head", client.read_past("\r\n\r\n")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(tap.only_post(CHAT).body, body.as_bytes());

    let mut client = Raw::open(rig.address()).await;
    let length = body.len();
    client.write(format!("{head}content-length: {length}\r\nexpect: 100-continue\r\n\r\n")).await.unwrap();
    let go_on = soon("100", client.read_past("\r\n\r\n")).await.unwrap();
    assert!(go_on.starts_with("HTTP/1.1 100"), "{go_on}");
    client.write(&body).await.unwrap();
    let answer = soon("the answer's head", client.read_past("\r\n\r\n")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(tap.last_post().headers.get("expect").is_none());
}

/// A request that is refused by its head alone is refused before its body.
#[tokio::test]
async fn expect_100_with_a_bad_key_gets_401_and_no_100() {
    let rig = rig().await;
    let mut client = Raw::open(rig.address()).await;
    let head = "content-type: application/json\r\ncontent-length: 1000\r\nexpect: 100-continue\r\n";
    client.write(format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n{head}\r\n")).await.unwrap();
    let answer = soon("an answer", client.read_past("\r\n\r\n")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

/// curl --http2: the upgrade is ignored, the request is not.
#[tokio::test]
async fn an_h2c_upgrade_is_ignored() {
    let (rig, tap) = plain_tapped().await;
    let call = Call::post(CHAT, &chat(2, false))
        .key(rig.key(TENANT))
        .header("connection", "Upgrade, HTTP2-Settings")
        .header("upgrade", "h2c")
        .header("http2-settings", "AAMAAABkAAQCAAAAAAIAAAAA");
    call.send(rig.address()).await.ok();
    let post = tap.only_post(CHAT);
    for name in ["upgrade", "http2-settings"] {
        assert!(post.headers.get(name).is_none(), "{name} went on to the engine");
    }
}

/// aider, litellm, requests: `Accept-Encoding: gzip` is no wish for gzipped
/// events.
#[tokio::test]
async fn nothing_is_compressed() {
    let (rig, tap) = plain_tapped().await;
    for stream in [true, false] {
        let call = Call::post(CHAT, &chat(3, stream)).key(rig.key(TENANT));
        let answer = call.header("accept-encoding", "gzip, deflate, br").send(rig.address()).await.ok();
        assert!(answer.headers.get("content-encoding").is_none());
        assert!(std::str::from_utf8(&answer.body).is_ok());
        assert_eq!(tap.last_post().headers["accept-encoding"], "identity");
    }
}

/// Chat front ends list the models: those of the tenant, with windows and
/// aliases.
#[tokio::test]
async fn models_are_listed_within_the_tenants_rights() {
    let rig = Rig::start(RigOptions {
        engines: vec![SimOptions {
            models: vec!["sim".to_owned(), "other".to_owned()],
            ..SimOptions::default()
        }],
        pool: Some("engine: vllm\nmodels: [sim, other]"),
        tenants: vec![(TENANT, ""), ("beta", "models: [other]")],
        more: "models: {sim: {aliases: [gpt-4o], max_model_len: 4096}}\n".to_owned(),
        ..RigOptions::default()
    })
    .await;
    let list = |tenant: &str| Call::get("/v1/models").key(rig.key(tenant)).send(rig.address());
    // The window of `other` comes from the engine, once it was asked.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let rows = loop {
        let rows = list(TENANT).await.ok().json()["data"].clone();
        if rows.as_array().unwrap().iter().all(|row| row["max_model_len"].is_u64()) {
            break rows;
        }
        assert!(tokio::time::Instant::now() < deadline, "{rows}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["gpt-4o", "other", "sim"]);
    assert_eq!((&rows[0]["max_model_len"], &rows[0]["root"]), (&json!(4096), &json!("sim")));
    assert_eq!(rows[1]["max_model_len"], 8192);
    let of_beta = list("beta").await.ok().json();
    assert_eq!(of_beta["data"].as_array().unwrap().len(), 1);
    assert_eq!(of_beta["data"][0]["id"], "other");

    let one = |name: &str, tenant: &str| {
        Call::get(&format!("/v1/models/{name}")).key(rig.key(tenant)).send(rig.address())
    };
    assert_eq!(one("gpt-4o", TENANT).await.ok().json()["id"], "gpt-4o");
    for (name, tenant) in [("sim", "beta"), ("none", TENANT)] {
        let answer = one(name, tenant).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "model_not_found"), "{name}");
    }
    assert_eq!(Call::get("/v1/models").send(rig.address()).await.status, 401);
}

/// LibreChat: the whole path as base URL.
#[tokio::test]
async fn a_doubled_path_names_the_right_base_url() {
    let rig = rig().await;
    for (method, path) in [
        (Method::POST, "/v1/chat/completions/chat/completions"),
        (Method::GET, "/v1/chat/completions/models"),
        (Method::POST, "/v1/v1/embeddings"),
    ] {
        let answer = Call::new(method, path).key(rig.key(TENANT)).send(rig.address()).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_url"));
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.ends_with("set its base URL to end with /v1"), "{message}");
        assert!(!answer.header("x-request-id").is_empty());
    }
}

/// Open WebUI: an error before the first token is JSON with its status, also
/// when a stream was asked for.
#[tokio::test]
async fn errors_of_streams_are_json() {
    let rig = rig().await;
    let mut body = chat(3, true);
    body["model"] = json!("nothing");
    let mut answers = vec![rig.post(CHAT, &body).await];
    body = chat(3, true);
    body["temperature"] = json!("hot");
    answers.push(rig.post(CHAT, &body).await);
    for answer in answers {
        assert!((400..500).contains(&answer.status), "{answer:?}");
        assert_eq!(answer.header("content-type"), "application/json");
        assert!(answer.json()["error"]["message"].is_string());
    }
}

async fn class_of(rig: &Rig, id: &str, call: Call) -> (u16, Value) {
    let answer = call.header("x-request-id", id).send(rig.address()).await;
    (answer.status, rig.line_of(id).await["class"].clone())
}

/// `service_tier` picks the class as far as the tenant may have it; the
/// header insists.
#[tokio::test]
async fn service_tier_and_class_header_choose_the_class() {
    let rig = Rig::start(RigOptions {
        tenants: vec![(TENANT, ""), ("beta", "classes: [standard]")],
        ..RigOptions::default()
    })
    .await;
    let tier = |tenant: &str, tier: &str| {
        let mut body = chat(1, false);
        body["service_tier"] = json!(tier);
        Call::post(CHAT, &body).key(rig.key(tenant))
    };
    for (number, (tenant, asked, class)) in [
        (TENANT, "flex", "batch"),
        (TENANT, "priority", "interactive"),
        (TENANT, "auto", "standard"),
        (TENANT, "default", "standard"),
        ("beta", "priority", "standard"),
        ("beta", "flex", "standard"),
    ]
    .into_iter()
    .enumerate()
    {
        let got = class_of(&rig, &format!("tier-{number}"), tier(tenant, asked)).await;
        assert_eq!(got, (200, json!(class)), "{tenant} {asked}");
    }
    let headed = |tenant: &str, class: &str| {
        Call::post(CHAT, &chat(1, false)).key(rig.key(tenant)).header("x-penstock-class", class)
    };
    assert_eq!(class_of(&rig, "head-1", headed(TENANT, "batch")).await, (200, json!("batch")));
    for (tenant, class) in [("beta", "interactive"), (TENANT, "gold")] {
        let answer = headed(tenant, class).send(rig.address()).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "class_not_allowed"));
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("standard"));
    }
}

/// Wrong methods and unknown paths, in the shape that each client reads.
#[tokio::test]
async fn wrong_methods_and_paths_answer_in_the_clients_dialect() {
    let rig = rig().await;
    let get = |path: &'static str| Call::get(path).send(rig.address());
    let answer = get(CHAT).await;
    assert_eq!((answer.status, answer.header("allow")), (405, "POST"));
    assert_eq!(answer.code(), "method_not_allowed");
    let answer = get("/v1/messages").await;
    assert_eq!((answer.status, answer.header("allow")), (405, "POST"));
    assert_eq!((&answer.json()["type"], answer.header("request-id").is_empty()), (&json!("error"), false));
    let answer = get("/generate").await;
    assert_eq!(answer.status, 405);
    assert!(answer.json()["error_type"].is_string(), "{answer:?}");
    let answer = Call::post("/v1/models", &json!({})).send(rig.address()).await;
    assert_eq!((answer.status, answer.header("allow")), (405, "GET, HEAD"));
    let answer = get("/nothing").await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_url"));
}

/// A body over the limit is refused while it comes: by what it declares, or
/// by what has come when it declares nothing and never ends.
#[tokio::test]
async fn bodies_over_the_limit_are_413_while_they_come() {
    let rig =
        Rig::start(RigOptions { more: "requests: {max_body: 64KiB}\n".to_owned(), ..RigOptions::default() })
            .await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {}\r\n",
        rig.key(TENANT)
    );
    let mut declared = Raw::open(rig.address()).await;
    declared.write(format!("{head}content-length: 65537\r\n\r\n{{")).await.unwrap();
    let answer = soon("413", declared.read_past("\r\n\r\n")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");

    let mut endless = Raw::open(rig.address()).await;
    endless.write(format!("{head}transfer-encoding: chunked\r\n\r\n")).await.unwrap();
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
    let mut sent = 0;
    // The gateway may close on the client before all of this is out.
    while sent < 64 && endless.write(&chunk).await.is_ok() {
        sent += 1;
    }
    let answer = soon("413", endless.read_past("\r\n\r\n")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    until("the bytes are given back", || rig.gateway.proxy().memory.bodies.held() == 0).await;
}

/// An HTTP/2 body that stops coming, on a connection that answers pings.
#[tokio::test]
async fn an_http2_body_that_stops_coming_is_408() {
    let more = "requests: {min_body_rate: 0}\n".to_owned();
    let rig = Rig::start(RigOptions { server: "body_timeout: 2s", more, ..RigOptions::default() }).await;
    let mut h2 = H2::open(rig.address()).await;
    let (pieces, body) = in_pieces();
    let call = Call::post(CHAT, &chat(1, false)).key(rig.key(TENANT)).header("x-request-id", "silent");
    let answer = tokio::spawn(h2.sender.send_request(call.clone().http2(body)));
    // Time counts from the last piece, not from the first.
    for piece in call.body.chunks(40) {
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!answer.is_finished(), "answered while the body was coming");
        pieces.send(Ok(Frame::data(piece.to_vec().into()))).await.unwrap();
    }
    let answer = Answer::of(soon("408", answer).await.unwrap().unwrap()).await;
    assert_eq!((answer.status, answer.code().as_str()), (408, "body_timeout"));
    assert_eq!(answer.header("x-should-retry"), "true");
    let line = rig.line_of("silent").await;
    assert_eq!((&line["status"], &line["outcome"]), (&json!(408), &json!("client_error")), "{line}");
    rig.emptied_within(PATIENCE).await;
    // The connection is none the worse for it.
    let body = BoxBody::new(Full::new(call.body.clone()).map_err(|never| match never {}));
    let answer = soon("an answer", h2.sender.send_request(call.http2(body))).await.unwrap();
    assert_eq!(answer.status(), 200);
}

/// Keep-alive: aiohttp, locust and the SDKs' pools use one connection for many
/// requests, streams and plain answers in turn.
#[tokio::test]
async fn one_connection_serves_streams_and_plain_answers_in_turn() {
    let (rig, tap) = plain_tapped().await;
    let mut session = Session::open(rig.address()).await;
    for round in 0..20 {
        let stream = round % 2 == 0;
        let answer: Answer = session.call(Call::post(CHAT, &chat(3, stream)).key(rig.key(TENANT))).await.ok();
        assert_eq!(answer.is_done(), stream);
    }
    let posts = tap.posts();
    assert_eq!(posts.len(), 20);
    assert!(posts.iter().all(|post| post.wire == posts[0].wire), "and so does the gateway");
}

/// What took how long: a first token only where there is one.
#[tokio::test]
async fn server_timing_speaks_of_tokens_only_in_streams() {
    let rig = rig().await;
    let plain = rig.post(CHAT, &chat(3, false)).await.ok();
    let timing = plain.header("server-timing");
    assert!(timing.starts_with("queue;dur=") && timing.contains("engine;dur="), "{timing}");
    assert!(!timing.contains("ttft"), "{timing}");
    let count = "penstock_time_to_first_token_seconds_count";
    assert_eq!(rig.metric(count).await, 0.0, "a plain answer has no first token");
    let stream = rig.post(CHAT, &chat(3, true)).await.ok();
    let timing = stream.header("server-timing");
    assert!(timing.contains("ttft;dur=") && !timing.contains("engine;dur="), "{timing}");
    until("both lines", || rig.finished().len() == 2).await;
    assert_eq!(rig.metric(count).await, 1.0);
    for line in rig.finished() {
        assert_eq!(line["ttft_ms"].is_number(), line["stream"] == true, "{line}");
    }
}
