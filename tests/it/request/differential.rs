//! Requests straight to an engine and through the gateway: what the engine gets and what the client
//! gets is the same.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use penstock::sim::rng::Rng;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::client::{Answer, Call, Session};
use crate::support::gateway::{MODEL, PATIENCE, Rig, RigOptions, TENANT};

/// Requests that are sent both ways, unless `PENSTOCK_DIFFERENTIAL` has another number.
const REQUESTS: u64 = 1_000;

/// Headers of a good answer that a client gets as the engine sent them. `content-length` is not
/// among them: this engine sends its answers in chunks.
const PASSING: [&str; 7] = [
    "content-type",
    "content-language",
    "content-disposition",
    "content-encoding",
    "cache-control",
    "vary",
    "retry-after",
];

/// The pieces in which an engine sends an answer.
type Pieces = futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

/// The bodies of the requests that an engine got.
type Seen = Arc<Mutex<Vec<Bytes>>>;

fn one_of<'a>(rng: &mut Rng, texts: &[&'a str]) -> &'a str {
    texts[usize::try_from(rng.below(texts.len() as u64)).unwrap()]
}

/// Text with what JSON has to escape, beside words.
fn text(rng: &mut Rng) -> String {
    let parts = ["water ", "\u{e4}\u{1f30a}", "\"q\"", "\\", "\n", "\t", "</s>", "data: x\n\n", "\u{0}", "e"];
    (0..rng.below(12)).map(|_| one_of(rng, &parts)).collect()
}

/// A request of any kind, as a client may write it.
fn request(seed: u64) -> (&'static str, String) {
    let rng = &mut Rng::new(seed);
    let paths =
        ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"];
    let path = one_of(rng, &paths);
    let mut body =
        json!({"model": MODEL, "seed": seed, "stream": rng.below(2) == 0, "max_tokens": 1 + rng.below(9)});
    match path {
        "/v1/completions" => body["prompt"] = text(rng).into(),
        "/v1/responses" => body["input"] = text(rng).into(),
        "/v1/embeddings" => {
            body["input"] = json!([text(rng), text(rng)]);
            body["stream"] = false.into();
        }
        _ => body["messages"] = json!([{"role": "user", "content": text(rng), "name": "x"}]),
    }
    for (name, value) in [
        ("unknown", json!({"a": [1, -0.5, 1e300, null, true, text(rng)]})),
        ("temperature", json!(0.25)),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        ("stop", json!([text(rng), "."])),
        ("stream_options", json!({"include_usage": rng.below(2) == 0})),
        ("n", json!(1)),
    ] {
        if rng.below(3) == 0 {
            body[name] = value;
        }
    }
    let written = match rng.below(3) {
        0 => body.to_string(),
        1 => serde_json::to_string_pretty(&body).unwrap(),
        _ => format!(" \r\n{}\n", body.to_string().replace("\":", "\" :\t")),
    };
    (path, written)
}

fn usage() -> Value {
    json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "extra": {"x": 1.50}})
}

fn whole_answer(rng: &mut Rng, path: &str) -> (u16, &'static str, String) {
    let body = match (rng.below(8), path) {
        (0, _) => {
            let error = json!({"message": format!("bad {}", text(rng)), "type": "BadRequestError", "param": null, "code": 400});
            return (400, "application/json", json!({"error": error}).to_string());
        }
        (_, "/v1/embeddings") => json!({"object": "list", "model": MODEL, "usage": usage(),
            "data": [{"object": "embedding", "index": 0, "embedding": [0.125, -1e-7, 3]}]}),
        (_, "/v1/messages") => json!({"id": "msg", "type": "message", "role": "assistant", "model": MODEL,
            "content": [{"type": "text", "text": text(rng)}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 7, "output_tokens": 3}, "odd": {"a": [text(rng)]}}),
        (_, "/v1/responses") => response(one_of(rng, &["completed", "incomplete"]), &text(rng)),
        _ => json!({"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage(),
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": null, "text": text(rng),
                "message": {"role": "assistant", "content": text(rng), "odd": {"a": [text(rng)]}}}]}),
    };
    let kind = one_of(rng, &["application/json", "application/json; charset=utf-8"]);
    let body =
        if rng.below(2) == 0 { body.to_string() } else { serde_json::to_string_pretty(&body).unwrap() };
    (200, kind, body)
}

/// An object of `/v1/responses`.
fn response(status: &str, text: &str) -> Value {
    let part = json!({"type": "output_text", "text": text, "annotations": []});
    json!({"id": "resp_1", "object": "response", "created_at": 1, "model": MODEL, "status": status,
        "error": null, "output": [{"type": "message", "id": "m", "role": "assistant", "content": [part]}],
        "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 10}})
}

/// An event stream. Its usage event depends on what the request asked for, as with real engines.
fn stream(rng: &mut Rng, path: &str, with_usage: bool) -> String {
    if path == "/v1/messages" {
        return messages_stream(rng);
    }
    if path == "/v1/responses" {
        return responses_stream(rng);
    }
    let mut out = String::new();
    let end = one_of(rng, &["\n\n", "\r\n\r\n"]);
    for number in 0..1 + rng.below(6) {
        if rng.below(4) == 0 {
            let _infallible = write!(out, "{}{end}", one_of(rng, &[": keep-alive", ":"]));
        }
        let last = if number == 0 { Value::Null } else { one_of(rng, &["stop", "length"]).into() };
        let choice = json!({"index": 0, "delta": {"content": format!("x{}", text(rng))},
            "text": format!("x{}", text(rng)), "finish_reason": Value::Null, "odd": last});
        let chunk = json!({"id": "c", "object": "chunk", "model": MODEL, "choices": [choice]});
        let space = one_of(rng, &["", " "]);
        let _infallible = write!(out, "data:{space}{chunk}{end}");
    }
    let last = json!({"index": 0, "delta": {}, "text": "", "finish_reason": "stop"});
    let _infallible = write!(out, "data: {}{end}", json!({"id": "c", "model": MODEL, "choices": [last]}));
    if with_usage {
        let chunk = json!({"id": "c", "model": MODEL, "choices": [], "usage": usage()});
        let _infallible = write!(out, "data: {chunk}{end}");
    }
    out + "data: [DONE]" + end
}

fn messages_stream(rng: &mut Rng) -> String {
    let mut out = String::new();
    let mut event = |kind: &str, mut data: Value| {
        data["type"] = kind.into();
        let _infallible = write!(out, "event: {kind}\ndata: {data}\n\n");
    };
    let message = json!({"id": "m", "role": "assistant", "content": [], "model": MODEL,
        "usage": {"input_tokens": 7, "output_tokens": 0}});
    event("message_start", json!({"message": message}));
    event("content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}}));
    for _ in 0..1 + rng.below(4) {
        let delta = json!({"type": "text_delta", "text": format!("x{}", text(rng))});
        event("content_block_delta", json!({"index": 0, "delta": delta}));
    }
    event("content_block_stop", json!({"index": 0}));
    event("message_delta", json!({"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}));
    event("message_stop", json!({}));
    out
}

fn responses_stream(rng: &mut Rng) -> String {
    let (mut out, mut number) = (String::new(), 0_u64);
    let mut event = |kind: &str, mut data: Value| {
        data["type"] = kind.into();
        data["sequence_number"] = number.into();
        number += 1;
        let _infallible = write!(out, "event: {kind}\ndata: {data}\n\n");
    };
    let begun = json!({"id": "resp_1", "object": "response", "model": MODEL, "status": "in_progress",
        "output": [], "usage": null});
    event("response.created", json!({"response": begun}));
    let item = json!({"type": "message", "id": "m", "role": "assistant", "content": []});
    event("response.output_item.added", json!({"output_index": 0, "item": item}));
    for _ in 0..1 + rng.below(4) {
        let delta = format!("x{}", text(rng));
        event("response.output_text.delta", json!({"item_id": "m", "output_index": 0, "delta": delta}));
    }
    event("response.output_text.done", json!({"item_id": "m", "output_index": 0, "text": "x"}));
    event("response.completed", json!({"response": response("completed", &text(rng))}));
    out
}

/// The answer to a request: a function of its path and seed, and of whether it asks for usage.
fn answer(path: &str, body: &Value) -> Response<StreamBody<Pieces>> {
    let rng = &mut Rng::new(body["seed"].as_u64().unwrap() ^ 0x5eed);
    let (status, kind, text) = if body["stream"] == true && rng.below(8) > 0 {
        let with_usage = body["stream_options"]["include_usage"] == true;
        (200, "text/event-stream; charset=utf-8", stream(rng, path, with_usage))
    } else if body["stream"] == true {
        let error = json!({"message": "no stream", "type": "BadRequestError", "param": null, "code": 400});
        (400, "application/json", json!({"error": error}).to_string())
    } else {
        whole_answer(rng, path)
    };
    // Pieces that end anywhere.
    let (mut pieces, mut rest) = (Vec::new(), Bytes::from(text));
    while !rest.is_empty() {
        let size = usize::try_from(1 + rng.below(200)).unwrap().min(rest.len());
        pieces.push(Ok(Frame::data(rest.split_to(size))));
    }
    let mut response = Response::builder().status(status).header("content-type", kind);
    let more = [
        ("content-language", "en"),
        ("content-disposition", "inline; filename=\"a b.json\""),
        ("cache-control", "private, max-age=7"),
        ("vary", "origin"),
        ("retry-after", "7"),
    ];
    // Whether usage is asked for changes the text, and nothing of the head.
    let of_head = &mut Rng::new(body["seed"].as_u64().unwrap() ^ 0x4ead);
    for (name, value) in more.into_iter().filter(|_| status == 200 && of_head.below(3) == 0) {
        response = response.header(name, value);
    }
    response.body(StreamBody::new(futures_util::stream::iter(pieces))).unwrap()
}

async fn engine() -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Seen::default());
    let bodies = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let bodies = Arc::clone(&bodies);
            let service = service_fn(move |request: Request<Incoming>| {
                let bodies = Arc::clone(&bodies);
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let read: Value = serde_json::from_slice(&body).unwrap_or_else(|_| json!({"seed": 0}));
                    if !body.is_empty() {
                        bodies.lock().push(body);
                    }
                    Ok::<_, Infallible>(answer(&path, &read))
                }
            });
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(async move {
                let _ended = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (address, seen)
}

/// What a client reads of an answer: the whole text with its headers, or its error.
fn read(answer: &Answer) -> (u16, Vec<String>, Value) {
    let header = |name: &str| answer.header(name).to_owned();
    if answer.status != 200 {
        // The gateway writes errors anew.
        let kind = header("content-type").split(';').next().unwrap_or_default().to_owned();
        return (answer.status, vec![kind, header("retry-after")], answer.json()["error"]["message"].clone());
    }
    // The gateway lets nobody keep a stream.
    let is_stream = header("content-type").starts_with("text/event-stream");
    let passing = PASSING.into_iter().filter(|name| !(is_stream && *name == "cache-control"));
    (answer.status, passing.map(header).collect(), Value::from(answer.text()))
}

/// The same request, but for the usage that the gateway asks of a stream.
fn same_request(sent: &str, got: &Bytes) -> bool {
    if got == sent.as_bytes() {
        return true;
    }
    let sent: Value = serde_json::from_str(sent).unwrap();
    let mut got: Value = serde_json::from_slice(got).unwrap();
    let wants = &sent["stream_options"]["include_usage"];
    if sent["stream"] != true || *wants == true || got["stream_options"]["include_usage"] != true {
        return false;
    }
    match sent.get("stream_options") {
        Some(own) => got["stream_options"] = own.clone(),
        None => drop(got.as_object_mut().unwrap().remove("stream_options")),
    }
    got == sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_the_same_straight_and_through() {
    let (address, seen) = engine().await;
    let rig =
        Rig::start(RigOptions { urls: vec![format!("http://{address}")], ..RigOptions::default() }).await;
    let (mut straight, mut through) = (Session::open(address).await, Session::open(rig.address()).await);
    let requests = std::env::var_os("PENSTOCK_DIFFERENTIAL");
    let requests = requests.map_or(REQUESTS, |number| number.to_str().unwrap().parse().unwrap());
    let mut kinds = [0_u64; 3];
    for seed in 1..=requests {
        let (path, body) = request(seed);
        seen.lock().clear();
        let one = straight.call(Call::post_text(path, &body)).await;
        let other = through.call(Call::post_text(path, &body).key(rig.key(TENANT))).await;
        assert!(one.whole && other.whole, "{seed}: {one:?} {other:?}");
        assert_eq!(read(&one), read(&other), "{seed}: {path} {body}");
        let bodies = std::mem::take(&mut *seen.lock());
        assert!(bodies.len() == 2 && same_request(&body, &bodies[1]), "{seed}: {body} {bodies:?}");
        let kind =
            usize::from(one.status == 200) + usize::from(one.header("content-type").starts_with("text"));
        kinds[kind] += 1;
    }
    assert!(kinds.iter().all(|count| *count > requests / 20), "errors, answers, streams: {kinds:?}");
    rig.emptied_within(PATIENCE).await;
}
