//! Calls of engines: what the client sends reaches the engine byte for byte, and the engine's
//! answer reaches the client unchanged.

use bytes::Bytes;
use penstock::sim::server::{ServerDialect, SimHandle, SimOptions, SimServer};
use serde_json::{Value, json};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{MODEL, Rig, RigOptions, TENANT, until};
use crate::support::recorder::Tap;

const ALIAS: &str = "gpt-4o";

async fn start(dialect: ServerDialect, pool: &'static str, engine_model: &str) -> (Rig, Tap) {
    let options = SimOptions { dialect, models: vec![engine_model.to_owned()], ..SimOptions::default() };
    let sim: SimHandle = SimServer::start(options).await.unwrap();
    let tap = Tap::before(sim.addr).await;
    let mut rig = Rig::start(RigOptions {
        urls: vec![tap.url.clone()],
        pool: Some(pool),
        more: format!("models: {{sim: {{aliases: [{ALIAS}]}}}}\n"),
        ..RigOptions::default()
    })
    .await;
    rig.engines.push(sim);
    (rig, tap)
}

/// A body for each call of vLLM; `x_unknown` is a field that nobody knows, in
/// a form that a parser would write differently.
pub(crate) fn bodies(model: &str) -> Vec<(&'static str, String)> {
    let unknown = r#""x_unknown" : [1.0, "\u00fc"]"#;
    let user = r#""messages":[{"role":"user","content":"how high is the water?"}]"#;
    [
        ("/v1/chat/completions", format!("{user},\"max_tokens\":5")),
        ("/v1/completions", r#""prompt":["the water","the gate"],"max_tokens":5,"n":2"#.to_owned()),
        (
            "/v1/responses",
            r#""input":"how high is the water?","max_output_tokens":5,"store":false"#.to_owned(),
        ),
        ("/v1/messages", format!("{user},\"max_tokens\":5")),
        ("/v1/messages/count_tokens", user.to_owned()),
        ("/v1/embeddings", r#""input":["the water","the gate"]"#.to_owned()),
        ("/rerank", r#""query":"water","documents":["a river","a road"]"#.to_owned()),
        ("/v1/rerank", r#""query":"water","documents":["a river","a road"]"#.to_owned()),
        ("/v2/rerank", r#""query":"water","documents":["a river","a road"]"#.to_owned()),
        ("/score", r#""text_1":"water","text_2":["a river","a road"]"#.to_owned()),
        ("/v1/score", r#""text_1":"water","text_2":["a river","a road"]"#.to_owned()),
        ("/pooling", r#""input":"the water""#.to_owned()),
        ("/classify", r#""input":"the water""#.to_owned()),
        ("/tokenize", r#""prompt":"the water""#.to_owned()),
        ("/detokenize", r#""tokens":[1,2,3]"#.to_owned()),
    ]
    .into_iter()
    .map(|(path, fields)| (path, format!("{{ {fields}, {unknown},\n\"model\": \"{model}\" }}")))
    .collect()
}

async fn call(rig: &Rig, path: &str, body: &str) -> Answer {
    Call::post_text(path, body).key(rig.key(TENANT)).send(rig.address()).await
}

#[tokio::test]
async fn every_call_passes_byte_for_byte() {
    let (rig, tap) = start(ServerDialect::Vllm, "engine: vllm\nmodels: [sim]", MODEL).await;
    for (path, body) in bodies(MODEL) {
        let answer = call(&rig, path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let post = tap.last_post();
        let engine_path = if path == "/v1/score" { "/score" } else { path };
        assert_eq!(post.path, engine_path);
        assert_eq!(Bytes::from(post.body), body, "{path}");
        assert_eq!(answer.body, post.answer, "{path}");
        assert_eq!(answer.header("content-type"), "application/json");
    }
    let calls = bodies(MODEL).len();
    until("every log line", || rig.finished().len() == calls).await;
    for line in rig.finished() {
        assert_eq!((&line["outcome"], &line["level"]), (&json!("success"), &json!("INFO")), "{line}");
    }
}

/// With an alias, and a public name that is not the engine's: the name is
/// replaced on the way up and on the way down, nothing else is.
#[tokio::test]
async fn an_alias_changes_the_model_and_nothing_else() {
    let (rig, tap) = start(ServerDialect::Vllm, "engine: vllm\nmodels: {sim: served}", "served").await;
    for (path, body) in bodies(ALIAS) {
        let answer = call(&rig, path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let post = tap.last_post();
        let expected = body.replace(&format!("\"{ALIAS}\""), "\"served\"");
        assert_eq!(Bytes::from(post.body), expected, "{path}");
        let sent = String::from_utf8(post.answer).unwrap();
        let shown = sent.replace(r#""model":"served""#, &format!(r#""model":"{ALIAS}""#));
        assert_eq!(answer.text(), shown, "{path}");
        if let Some(model) = answer.json().get("model") {
            assert_eq!(model, ALIAS, "{path}");
        }
    }
}

/// Whatever the client says of its own urgency.
#[tokio::test]
async fn engines_that_order_requests_are_told_the_rank_of_the_class() {
    let (rig, tap) =
        start(ServerDialect::Vllm, "engine: vllm\nmodels: [sim]\nengine_priority: true", MODEL).await;
    for (tier, rank) in [("priority", 0), ("default", 1), ("flex", 2)] {
        for own in ["", r#""priority":-9,"#] {
            let body = format!(
                r#"{{{own}"model":"sim","service_tier":"{tier}","max_tokens":1,"messages":[{{"role":"user","content":"x"}}]}}"#
            );
            call(&rig, "/v1/chat/completions", &body).await.ok();
            let sent: Value = serde_json::from_slice(&tap.last_post().body).unwrap();
            let mut expected: Value = serde_json::from_str(&body).unwrap();
            expected["priority"] = json!(rank);
            assert_eq!(sent, expected);
        }
    }
}

#[tokio::test]
async fn streams_pass_byte_for_byte() {
    let (rig, tap) = start(ServerDialect::Vllm, "engine: vllm\nmodels: [sim]", MODEL).await;
    for (path, body) in bodies(MODEL) {
        if !["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"].contains(&path) {
            continue;
        }
        let mut options = r#"{"stream":true,"#.to_owned();
        if path.ends_with("completions") {
            options += r#""stream_options":{"include_usage":true},"#;
        }
        let body = body.replacen('{', &options, 1);
        let answer = call(&rig, path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(answer.header("content-type").starts_with("text/event-stream"), "{path}");
        assert_eq!(answer.header("cache-control"), "no-cache");
        let post = tap.last_post();
        assert_eq!(Bytes::from(post.body), body, "{path}");
        assert_eq!(answer.body, post.answer, "{path}");
    }
    until("every log line", || rig.finished().len() == 4).await;
    for line in rig.finished() {
        assert_eq!((&line["outcome"], &line["usage"]), (&json!("success"), &json!("exact")), "{line}");
    }
}

fn form(model: &str) -> (String, String) {
    let boundary = "penstock-it-boundary";
    let part = |name: &str, value: &str| {
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let file = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\n{}\r\n",
        "RIFF....WAVEfmt ".repeat(64)
    );
    let body = file + &part("x_unknown", "kept") + &part("model", model) + &format!("--{boundary}--\r\n");
    (format!("multipart/form-data; boundary={boundary}"), body)
}

#[tokio::test]
async fn transcriptions_pass_as_forms() {
    let (rig, tap) = start(ServerDialect::Vllm, "engine: vllm\nmodels: [sim]", MODEL).await;
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        for model in [MODEL, ALIAS] {
            let (content_type, body) = form(model);
            let call = Call::post_text(path, &body).key(rig.key(TENANT));
            let answer = call.header("content-type", &content_type).send(rig.address()).await;
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            let post = tap.last_post();
            assert_eq!(post.headers["content-type"], content_type.as_str());
            assert_eq!(Bytes::from(post.body), form(MODEL).1, "{path} {model}");
            assert_eq!(answer.body, post.answer, "{path} {model}");
        }
    }
}

#[tokio::test]
async fn tgi_calls_pass_through_a_tgi_engine() {
    let (rig, tap) = start(ServerDialect::Tgi, "engine: tgi\nmodels: [sim]", MODEL).await;
    let body = r#"{"inputs":"the water is", "parameters":{"max_new_tokens":6, "details":true,"x":1.0}}"#;
    let answer = call(&rig, "/generate", body).await.ok();
    let post = tap.last_post();
    assert_eq!((Bytes::from(post.body), Bytes::from(post.answer)), (Bytes::from(body), answer.body.clone()));
    assert!(answer.json()["generated_text"].is_string());

    let answer = call(&rig, "/generate_stream", body).await.ok();
    let post = tap.last_post();
    assert_eq!((Bytes::from(post.body), Bytes::from(post.answer)), (Bytes::from(body), answer.body.clone()));
    let last: Value = answer.events().pop().unwrap();
    assert!(last["generated_text"].is_string(), "{last}");
    until("both log lines", || rig.finished().len() == 2).await;
    for line in rig.finished() {
        assert_eq!((&line["outcome"], &line["output_tokens"]), (&json!("success"), &json!(6)), "{line}");
    }

    let chat = crate::support::gateway::chat(4, true);
    assert!(rig.post("/v1/chat/completions", &chat).await.is_done());
    let answer = call(&rig, "/generate", r#"{"parameters":{}}"#).await;
    assert!(answer.status == 422 && answer.json()["error_type"].is_string(), "{answer:?}");
}
