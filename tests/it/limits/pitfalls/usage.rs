//! Charged use: by every call, however its answer comes, and whoever leaves.

use penstock::sim::faults::{Fault, FaultKind};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{CHAT, call};
use crate::limits::limited;
use crate::request::clients::calls::bodies;
use crate::support::client::Raw;
use crate::support::gateway::{MODEL, PATIENCE, Rig, RigOptions, TENANT, chat, until};

const QUOTA: u64 = 1_000_000;
const BY_DAY: &str = "limits: {per_day: {tokens: 1000000}}";

/// What is charged for the next request, once nothing runs any more.
struct Till<'a> {
    rig: &'a Rig,
    before: u64,
}

impl<'a> Till<'a> {
    fn open(rig: &'a Rig) -> Self {
        Self { rig, before: rig.left() }
    }

    async fn charged(self) -> u64 {
        self.rig.emptied_within(PATIENCE).await;
        self.before - self.rig.left()
    }
}

fn tokens(line: &Value) -> u64 {
    line["input_tokens"].as_u64().unwrap() + line["output_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn every_call_counts() {
    let rig = limited(BY_DAY).await;
    for (path, body) in bodies(MODEL) {
        let says_tokens = ["chat/completions", "/completions", "/responses", "v1/messages"]
            .iter()
            .any(|end| path.ends_with(end));
        for stream in [false, true] {
            if stream && !says_tokens {
                continue;
            }
            let mut body: Value = serde_json::from_str(&body).unwrap();
            if stream {
                body["stream"] = true.into();
            }
            let till = Till::open(&rig);
            let answer = call(&rig, path, &body.to_string()).send(rig.address()).await.ok();
            let charged = till.charged().await;
            let line = rig.line_of(answer.header("x-request-id")).await;
            let is_counting = path.ends_with("tokenize") || path.ends_with("count_tokens");
            assert!(charged > 0 || is_counting, "{path} {stream}: {line}");
            if says_tokens {
                assert_eq!(
                    (&line["usage"], charged),
                    (&"exact".into(), tokens(&line)),
                    "{path} {stream}: {line}"
                );
                assert!(line["output_tokens"].as_u64() > Some(0), "{line}");
            }
        }
    }
}

/// Writes a request and leaves what comes after it to the caller.
async fn begin(rig: &Rig, id: &str, body: &Value, sent: f64) -> Raw {
    let bytes = call(rig, CHAT, &body.to_string()).header("x-request-id", id).bytes();
    let mut client = Raw::open(rig.address()).await;
    let body_from = bytes.len() - body.to_string().len();
    let until = body_from + ((bytes.len() - body_from) as f64 * sent) as usize;
    client.write(&bytes[..until]).await.unwrap();
    client
}

#[tokio::test]
async fn whoever_leaves_pays_for_what_was_done() {
    let rig = Rig::start(RigOptions {
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 1"),
        tenants: vec![(TENANT, BY_DAY)],
        ..RigOptions::default()
    })
    .await;
    rig.engine(0).add(FaultKind::Slow { factor: 100.0 }).unwrap();
    let asked = chat(100, true);
    let prompt = {
        let answer = rig.post(CHAT, &chat(1, false)).await.ok();
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    rig.emptied_within(PATIENCE).await;

    // In the body: that is no request yet.
    let till = Till::open(&rig);
    begin(&rig, "body", &asked, 0.5).await.reset();
    until("it is noticed", || rig.finished().iter().any(|line| line["request_id"] == "body")).await;
    assert_eq!(till.charged().await, 0);

    // In the queue: no engine has seen it. In the stream: what came.
    let till = Till::open(&rig);
    let mut running = begin(&rig, "stream", &asked, 1.0).await;
    for _ in 0..5 {
        running.read_past("\"content\":").await.unwrap();
    }
    let held = till.before - rig.left();
    let waits = begin(&rig, "queue", &asked, 1.0).await;
    until("it waits", || rig.waiting() == 1).await;
    assert!(till.before - rig.left() > held);
    waits.reset();
    until("it is given back", || till.before - rig.left() == held).await;
    running.reset();
    let charged = till.charged().await;
    let line = rig.line_of("stream").await;
    assert_eq!((&line["outcome"], &line["usage"]), (&"client_gone".into(), &"partial".into()), "{line}");
    let output = line["output_tokens"].as_u64().unwrap();
    assert!((4..100).contains(&output), "{line}");
    assert_eq!(
        (charged, &line["input_tokens"]),
        (output + line["prompt_tokens"].as_u64().unwrap(), &line["prompt_tokens"]),
        "{line}"
    );
    assert!(line["prompt_tokens"].as_u64() > Some(0), "{line}");

    unknown_stays_reserved(&rig, &asked).await;

    // After the end: what the engine said.
    let till = Till::open(&rig);
    let mut done = begin(&rig, "done", &chat(3, true), 1.0).await;
    done.read_past("data: [DONE]").await.unwrap();
    done.reset();
    assert_eq!(till.charged().await, prompt + 3);
    assert_eq!(rig.line_of("done").await["usage"], "exact");
}

/// Before the first token, and before the end of a plain answer, nobody knows
/// what was used.
async fn unknown_stays_reserved(rig: &Rig, asked: &Value) {
    for (id, body) in [("unseen", asked.clone()), ("plain", chat(100, false))] {
        let till = Till::open(rig);
        if id == "unseen" {
            rig.engine(0)
                .add(Fault::from(FaultKind::Silent { after_tokens: 0, before_head: true }).times(1))
                .unwrap();
        }
        let client = begin(rig, id, &body, 1.0).await;
        until("it runs", || rig.snapshot().replicas[0].running == 1).await;
        let reserved = till.before - rig.left();
        assert!(reserved > 100, "{id}: {reserved}");
        client.reset();
        assert_eq!(till.charged().await, reserved, "{id}");
        let line = rig.line_of(id).await;
        assert_eq!((&line["outcome"], &line["usage"]), (&"client_gone".into(), &"unknown".into()), "{line}");
    }
}

/// An engine that says `answer` to every POST, one byte at a time.
async fn dribbling(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(dribble(stream, answer));
        }
    });
    url
}

async fn dribble(mut stream: TcpStream, answer: &'static str) {
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains("\"messages\"") {
        if !matches!(stream.read_buf(&mut got).await, Ok(1..)) {
            return;
        }
        if got.starts_with(b"GET") && got.ends_with(b"\r\n\r\n") {
            let _gone = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
            got.clear();
        }
    }
    stream.set_nodelay(true).unwrap();
    for byte in answer.as_bytes() {
        let _gone = stream.write_all(&[*byte]).await;
        tokio::task::yield_now().await;
    }
}

/// A gateway before such an engine.
async fn rig(answer: &'static str) -> Rig {
    Rig::start(RigOptions {
        urls: vec![dribbling(answer).await],
        pool: Some("engine: openai\nmodels: [sim]\nmax_seqs: 8"),
        tenants: vec![(TENANT, BY_DAY)],
        ..RigOptions::default()
    })
    .await
}

const PLAIN: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 185\r\nconnection: close\r\n\r\n\
    {\"id\":\"x\",\"model\":\"sim\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a b\"},\
    \"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9}}";
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
    data: {\"id\":\"x\",\"model\":\"sim\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a b\"},\"finish_reason\":null}]}\n\n\
    data: {\"id\":\"x\",\"model\":\"sim\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"id\":\"x\",\"model\":\"sim\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9}}\n\n\
    data: [DONE]\n\n";
const SILENT_ON_USAGE: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 118\r\nconnection: close\r\n\r\n\
    {\"id\":\"x\",\"model\":\"sim\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a b\"},\
    \"finish_reason\":\"stop\"}]}";

#[tokio::test]
async fn usage_may_come_byte_by_byte() {
    for (answer, stream) in [(PLAIN, false), (STREAM, true)] {
        let rig = rig(answer).await;
        let answer = rig.post(CHAT, &chat(100, stream)).await.ok();
        let line = rig.line_of(answer.header("x-request-id")).await;
        assert_eq!((&line["usage"], tokens(&line)), (&"exact".into(), 9), "{line}");
        rig.emptied_within(PATIENCE).await;
        assert_eq!(rig.left(), QUOTA - 9);
    }
}

#[tokio::test]
async fn what_nobody_counted_is_unknown_and_stays_reserved() {
    let rig = rig(SILENT_ON_USAGE).await;
    let answer = rig.post(CHAT, &chat(100, false)).await.ok();
    let line = rig.line_of(answer.header("x-request-id")).await;
    assert_eq!(line["usage"], "unknown", "{line}");
    assert!(line["output_tokens"].is_null(), "{line}");
    rig.emptied_within(PATIENCE).await;
    assert!(rig.left() < QUOTA - 100, "{}", rig.left());
}
