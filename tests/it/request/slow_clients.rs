//! Slow clients: those that read their answers slowly or not at all, and those that still send when
//! the answer comes. The tests check what they hold, and for how long.

use std::time::Duration;

use http::Response;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use penstock::sim::faults::FaultKind;
use penstock::sim::server::SimOptions;
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};

use crate::support::client::{Call, H2, H2Body, Raw, in_pieces};
use crate::support::gateway::{PATIENCE, Rig, RigOptions, chat, holds_within, soon, until};

const CHAT: &str = "/v1/chat/completions";
/// Nobody is cut off for being slow while a test runs.
const PATIENT: &str = "send_timeout: 1h";

/// How long megabytes may take through engine and gateway, on a machine that does much else.
const LONG: Duration = Duration::from_secs(180);

/// Two engines with 32 places each, and two tenants.
async fn rig(server: &'static str, more: &str) -> Rig {
    let rig = Rig::start(RigOptions {
        engines: vec![SimOptions::default(), SimOptions::default()],
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 32"),
        tenants: vec![("slow", ""), ("good", "")],
        server,
        more: more.to_owned(),
        ..RigOptions::default()
    })
    .await;
    for engine in 0..2 {
        rig.engine(engine).add(FaultKind::Slow { factor: 0.01 }).unwrap();
    }
    rig
}

/// A chat whose answer has some 1.5 KB for each token.
fn long_chat(tokens: u32, stream: bool) -> Value {
    let mut body = chat(tokens, stream);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(20);
    body
}

fn whole(call: Call) -> http::Request<H2Body> {
    let body = BoxBody::new(Full::new(call.body.clone()).map_err(|never| match never {}));
    call.http2(body)
}

/// Sends the call on an HTTP/2 connection and waits for the answer's head.
async fn begin(h2: &mut H2, call: Call) -> Response<Incoming> {
    soon("room for a request", h2.sender.ready()).await.unwrap();
    soon("an answer's head", h2.sender.send_request(whole(call))).await.unwrap()
}

/// A client whose kernel takes next to nothing for it.
async fn deaf(rig: &Rig, call: Call) -> Raw {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(rig.address()).await.unwrap();
    let mut raw = Raw { stream, got: Vec::new() };
    raw.write(call.header("connection", "close").bytes()).await.unwrap();
    raw
}

/// The other tenant is served and waits for nobody who reads slowly, and no replica is ejected.
async fn good_is_served(rig: &Rig) {
    let before = rig.finished().len();
    for stream in [true, false] {
        let id = format!("good-{before}-{stream}");
        let call = Call::post(CHAT, &chat(5, stream)).key(rig.key("good")).header("x-request-id", &id);
        assert_eq!(soon("the other tenant's answer", call.send(rig.address())).await.status, 200);
        let waited = rig.line_of(&id).await["queue_ms"].as_f64().unwrap();
        assert!(waited < 5000.0, "waited {waited} ms");
    }
    assert!(rig.metric("penstock_ejections_total").await.abs() < 0.5);
}

/// The replicas are free soon after the engines' own end of all work, whoever still reads.
async fn replicas_follow_their_engines(rig: &Rig) {
    let inside = || rig.engine(0).state().inside + rig.engine(1).state().inside;
    assert!(holds_within(LONG, || inside() == 0).await, "{} are inside", inside());
    rig.emptied_within(PATIENCE).await;
}

/// Waits until a metric has the value.
async fn metric_is(rig: &Rig, name: &str, value: f64) {
    let is = async {
        while (rig.metric(name).await - value).abs() > 0.5 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    soon(name, is).await;
}

fn answer_bytes(rig: &Rig) -> u64 {
    rig.gateway.proxy().memory.answers.held()
}

#[tokio::test]
async fn seventy_streams_without_window_hold_no_replica() {
    let rig = rig(PATIENT, "").await;
    let mut h2 = H2::with_window(rig.address(), 0).await;
    let mut unread = Vec::new();
    for _ in 0..70 {
        let call = Call::post(CHAT, &chat(64, true)).key(rig.key("slow"));
        soon("room for a request", h2.sender.ready()).await.unwrap();
        unread.push(h2.sender.send_request(whole(call)));
    }
    let unread = soon("all heads", futures_util::future::join_all(unread)).await;
    assert!(unread.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.status() == 200)));
    good_is_served(&rig).await;
    replicas_follow_their_engines(&rig).await;
    assert_eq!(rig.engine(0).state().cancelled + rig.engine(1).state().cancelled, 0);
    let held = answer_bytes(&rig);
    assert!(held > 70 * 4096, "what was not read is there, and counted: {held}");
    drop((unread, h2));
    until("the memory is given back", || answer_bytes(&rig) == 0).await;
}

#[tokio::test]
async fn ten_slow_readers_of_megabytes_hold_no_replica_and_lose_nothing() {
    let rig = rig(PATIENT, "requests: {max_total_answer: 256MiB, stream_buffer: 16MiB}\n").await;
    let call = || Call::post(CHAT, &long_chat(2000, true)).key(rig.key("slow"));
    let mut readers = Vec::new();
    for _ in 0..10 {
        readers.push(deaf(&rig, call()).await);
    }
    until("all have begun", || rig.engine(0).state().total + rig.engine(1).state().total == 10).await;
    good_is_served(&rig).await;
    replicas_follow_their_engines(&rig).await;
    for mut reader in readers {
        let text = reader.read_to_end().await;
        assert!(text.len() > 2_000_000, "{}", text.len());
        assert!(text.trim_end().ends_with("\r\n0") && text.contains("data: [DONE]"), "the end is there");
    }
    until("the memory is given back", || answer_bytes(&rig) == 0).await;
}

/// A stream whose buffer is full is read on when its client reads, and the
/// engine is not blamed for the pause.
#[tokio::test]
async fn a_full_buffer_pauses_the_stream_and_nothing_else() {
    let rig = rig(PATIENT, "requests: {stream_buffer: 64KiB}\nupstream: {stream_idle_timeout: 2s}\n").await;
    let mut h2 = H2::with_window(rig.address(), 1024).await;
    let mut answer = begin(&mut h2, Call::post(CHAT, &long_chat(1500, true)).key(rig.key("slow"))).await;
    sleep(Duration::from_secs(3)).await;
    assert!(answer_bytes(&rig) <= 256 * 1024, "{}", answer_bytes(&rig));
    good_is_served(&rig).await;
    let mut text = String::new();
    while let Some(frame) = soon("more", answer.body_mut().frame()).await {
        text += std::str::from_utf8(frame.unwrap().data_ref().unwrap()).unwrap();
    }
    assert!(text.len() > 1_500_000 && text.ends_with("data: [DONE]\n\n"), "{}", text.len());
    rig.emptied_within(PATIENCE).await;
    assert_eq!(rig.finished().iter().filter(|line| line["outcome"] != "success").count(), 0);
}

#[tokio::test]
async fn an_answer_that_nobody_takes_does_not_keep_its_connection() {
    for server in [
        "send_timeout: 200ms, idle_timeout: 500ms, head_timeout: 200ms",
        "send_timeout: 1h, idle_timeout: 500ms, head_timeout: 200ms",
    ] {
        let rig = rig(server, "").await;
        let mut h2 = H2::with_window(rig.address(), 0).await;
        let refused = begin(&mut h2, Call::post(CHAT, &chat(1, false))).await;
        assert_eq!(refused.status(), 401);
        good_is_served(&rig).await;
        soon("the end of the connection", h2.ended()).await;
        drop(refused);
        metric_is(&rig, "penstock_open_connections", 0.0).await;
    }
}

#[tokio::test]
async fn whole_answers_keep_to_their_memory() {
    let rig =
        rig(PATIENT, "requests: {max_answer: 512KiB, max_total_answer: 1MiB, stream_buffer: 64KiB}\n").await;
    let mut h2 = H2::with_window(rig.address(), 0).await;
    let mut answers = Vec::new();
    for _ in 0..12 {
        let call = Call::post(CHAT, &long_chat(100, false)).key(rig.key("slow"));
        soon("room for a request", h2.sender.ready()).await.unwrap();
        answers.push(h2.sender.send_request(whole(call)));
    }
    let answers = tokio::spawn(futures_util::future::join_all(answers));
    until("the tenant's half is spent", || answer_bytes(&rig) > 256 * 1024).await;
    good_is_served(&rig).await;
    let answers = soon("all heads", answers).await.unwrap();
    let statuses: Vec<u16> =
        answers.iter().map(|answer| answer.as_ref().unwrap().status().as_u16()).collect();
    let served = statuses.iter().filter(|status| **status == 200).count();
    let refused: Vec<_> = answers.iter().flatten().filter(|answer| answer.status() == 503).collect();
    assert!(served >= 2 && !refused.is_empty() && served + refused.len() == 12, "{statuses:?}");
    assert!(refused.iter().all(|answer| answer.headers().contains_key("retry-after")));
    assert!(answer_bytes(&rig) <= 512 * 1024, "{}", answer_bytes(&rig));
    good_is_served(&rig).await;
    rig.emptied_within(PATIENCE).await;
    drop((answers, h2));
    until("the memory is given back", || answer_bytes(&rig) == 0).await;
}

#[tokio::test]
async fn a_slow_http1_reader_is_cut_off() {
    let rig = rig("send_timeout: 300ms, min_send_rate: 64MiB", "").await;
    let mut reader = deaf(&rig, Call::post(CHAT, &long_chat(5000, false)).key(rig.key("slow"))).await;
    let head = timeout(LONG, reader.read_past("\r\n\r\n")).await.unwrap().unwrap();
    metric_is(&rig, "penstock_answers_cut_off_total", 1.0).await;
    let body = reader.read_to_end().await;
    let declared = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && body.len() < declared.parse().unwrap(), "{head}");
    until("the memory is given back", || answer_bytes(&rig) == 0).await;
    good_is_served(&rig).await;
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_slow_http2_reader_loses_its_stream_alone() {
    let rig = rig("send_timeout: 300ms, min_send_rate: 64MiB", "").await;
    for stream in [true, false] {
        let mut h2 = H2::with_window(rig.address(), 1024).await;
        let call = Call::post(CHAT, &long_chat(500, stream)).key(rig.key("slow"));
        let mut answer = begin(&mut h2, call).await;
        let mut bytes = 0;
        // Some progress, but too little of it.
        let error = loop {
            sleep(Duration::from_millis(20)).await;
            match soon("more", answer.body_mut().frame()).await.expect("no proper end") {
                Ok(frame) => bytes += frame.data_ref().unwrap().len(),
                Err(error) => break error,
            }
        };
        assert!(bytes > 0 && bytes < 500_000, "{bytes}: {error}");
        // The connection goes on.
        let health = begin(&mut h2, Call::get("/health")).await;
        assert_eq!(health.into_body().collect().await.unwrap().to_bytes(), r#"{"status":"ok"}"#);
    }
    metric_is(&rig, "penstock_answers_cut_off_total", 2.0).await;
    until("the memory is given back", || answer_bytes(&rig) == 0).await;
    rig.emptied_within(PATIENCE).await;
}

/// Clients that look for an answer only after the last byte of their body.
#[tokio::test]
async fn a_refusal_can_be_read_by_who_is_still_sending() {
    let rig = rig("", "requests: {max_body: 1MiB}\n").await;
    let key = format!("authorization: Bearer {}\r\n", rig.key("slow"));
    for (key, status) in [(key.as_str(), "413"), ("", "401")] {
        for framing in ["content-length: 50331648", "transfer-encoding: chunked"] {
            let mut raw = Raw::open(rig.address()).await;
            let head = format!(
                "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{key}{framing}\r\n\r\n"
            );
            raw.write(head).await.unwrap();
            let megabyte = vec![b' '; 1 << 20];
            for _ in 0..48 {
                if framing.starts_with("transfer") {
                    raw.write("100000\r\n").await.unwrap();
                }
                raw.write(&megabyte).await.unwrap();
                if framing.starts_with("transfer") {
                    raw.write("\r\n").await.unwrap();
                }
            }
            raw.stream.set_nodelay(true).unwrap();
            let text = soon("the answer", raw.read_past("\r\n\r\n")).await.unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{framing}: {text}");
        }
    }
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_refusal_ends_an_http2_body_without_an_error() {
    let rig = rig("", "requests: {max_body: 1MiB}\n").await;
    let mut h2 = H2::with_window(rig.address(), 65_535).await;
    for (call, status) in [
        (Call::post(CHAT, &chat(1, false)).key(rig.key("slow")), 413),
        (Call::post(CHAT, &chat(1, false)), 401),
    ] {
        let (pieces, body) = in_pieces();
        let sending = tokio::spawn(async move {
            let megabyte = bytes::Bytes::from(vec![b' '; 1 << 20]);
            // Until nobody wants more.
            while pieces.send(Ok(Frame::data(megabyte.clone()))).await.is_ok() {}
        });
        soon("room for a request", h2.sender.ready()).await.unwrap();
        let answer = soon("the answer", h2.sender.send_request(call.http2(body))).await.unwrap();
        assert_eq!(answer.status(), status);
        let text = soon("its body", answer.into_body().collect()).await.unwrap().to_bytes();
        assert!(text.starts_with(b"{\"error\""));
        soon("the end of sending", sending).await.unwrap();
    }
    let health = begin(&mut h2, Call::get("/health")).await;
    assert_eq!(health.status(), 200);
    rig.emptied_within(PATIENCE).await;
}
