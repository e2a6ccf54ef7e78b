//! Client listener over real sockets.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use penstock::config::settings::{ListenerLimits, ProxyHeader, TrustedProxies};
use penstock::core::model::snapshot::Snapshot;
use penstock::proxy::listener::{ListenerShutdown, RequestRejected, Workers, listen, serve};
use penstock::telemetry::Telemetry;
use penstock::telemetry::metrics::Scrape;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Longer than anything here should take, on a machine that does much else: a departed client whom
/// nobody misses stays for longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the `/limit` service reads of a body.
const BODY_LIMIT: usize = 1024 * 1024;

/// Limits of time that no test reaches.
fn limits() -> ListenerLimits {
    let long = Duration::from_secs(300);
    ListenerLimits {
        max_connections: 64,
        proxies: Default::default(),
        max_address_connections: 64,
        head_timeout: long,
        body_timeout: long,
        send_timeout: long,
        min_send_rate: 0,
        idle_timeout: long,
        max_head_bytes: 8192,
        handshake_timeout: long,
        max_address_handshakes: 4,
    }
}

/// What the listener and its service count.
#[derive(Default)]
struct Counts {
    running: AtomicUsize,
    /// Lets `/gated` answer.
    gate: CancellationToken,
    body_bytes: AtomicUsize,
}

/// Counts a request, its answer's body included, while it lives.
struct Running(Arc<Counts>);

impl Running {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(counts))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(status: StatusCode, text: String) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    *response.status_mut() = status;
    response
}

/// `/echo` gives the request's path and body back, `/hang` never answers,
/// `/stream` sends one frame and hangs, `/limit` stops reading at a limit,
/// `/slow` answers after 300 ms, `/gated` when its gate is open.
async fn act(request: Request<Incoming>, running: Running) -> Answer {
    match request.uri().path() {
        "/hang" => pending().await,
        "/stream" => {
            let frames = futures_util::stream::unfold((0, running), |(sent, running)| async move {
                if sent > 0 {
                    pending::<()>().await;
                }
                Some((Ok(Frame::data(Bytes::from_static(b"first"))), (1, running)))
            });
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
        "/gated" => {
            running.0.gate.cancelled().await;
            answer(StatusCode::OK, "gated".to_owned())
        }
        "/slow" => {
            sleep(Duration::from_millis(300)).await;
            answer(StatusCode::OK, "slow".to_owned())
        }
        "/limit" => {
            let mut body = request.into_body();
            let mut seen = 0;
            while let Some(Ok(frame)) = body.frame().await {
                seen += frame.data_ref().map_or(0, Bytes::len);
                running.0.body_bytes.store(seen, Ordering::SeqCst);
                if seen > BODY_LIMIT {
                    return answer(StatusCode::PAYLOAD_TOO_LARGE, "too much".to_owned());
                }
            }
            answer(StatusCode::OK, seen.to_string())
        }
        _ => {
            let path = request.uri().path().to_owned();
            match request.into_body().collect().await {
                Ok(body) => {
                    answer(StatusCode::OK, format!("{path}|{}", String::from_utf8_lossy(&body.to_bytes())))
                }
                Err(error) => answer(StatusCode::IM_A_TEAPOT, error.to_string()),
            }
        }
    }
}

struct Rig {
    address: SocketAddr,
    counts: Arc<Counts>,
    telemetry: Telemetry,
    shutdown: ListenerShutdown,
    serving: JoinHandle<()>,
}

fn rig(limits: ListenerLimits) -> Rig {
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let counts = Arc::new(Counts::default());
    let shutdown = ListenerShutdown::default();
    let for_service = Arc::clone(&counts);
    let make_service = move |_peer| {
        let counts = Arc::clone(&for_service);
        service_fn(move |request| {
            let running = Running::new(&counts);
            async move { Ok::<_, Infallible>(act(request, running).await) }
        })
    };
    let telemetry = Telemetry::for_tests();
    let metrics = telemetry.clone();
    let workers = Arc::new(Workers::start().expect("threads"));
    let ends = shutdown.clone();
    let serving =
        tokio::spawn(serve(listener, workers, limits, Arc::new(|| None), ends, metrics, make_service));
    Rig { address, counts, telemetry, shutdown, serving }
}

impl Rig {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the listener accepts")
    }

    /// Sends `bytes` and gives all that comes back until the server closes.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut client = self.connect().await;
        client.write_all(bytes).await.expect("the server reads");
        rest(&mut client).await
    }

    async fn until_running(&self, wanted: usize) {
        until(|| self.counts.running.load(Ordering::SeqCst) == wanted).await;
    }
}

/// Client connections that are open, by the metric.
fn open(telemetry: &Telemetry) -> usize {
    let scrape = Scrape { snapshot: &Snapshot::default(), engines: &[], needs: &[] };
    let text = telemetry.render(&scrape);
    let sample = text.lines().find_map(|line| line.strip_prefix("penstock_open_connections "));
    sample.expect("the gauge is there").parse().expect("it is whole")
}

/// The reasons of all refusals so far, by the log.
fn refused(telemetry: &Telemetry) -> Vec<String> {
    let log = telemetry.captured_log();
    let lines = log.lines().map(|line| serde_json::from_str(line).expect("JSON lines"));
    let refused = lines.filter(|line: &serde_json::Value| line["message"] == "connection refused");
    refused.map(|line| line["reason"].as_str().expect("a reason").to_owned()).collect()
}

async fn until(met: impl Fn() -> bool) {
    let start = Instant::now();
    while !met() {
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        sleep(Duration::from_millis(1)).await;
    }
}

async fn rest(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    timeout(PATIENCE, client.read_to_end(&mut bytes)).await.expect("the server closes").expect("no reset");
    String::from_utf8(bytes).expect("answers are text")
}

/// Reads until the text ends with `end`.
async fn read_until(client: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let byte = timeout(PATIENCE, client.read_u8()).await.expect("an answer").expect("no early end");
        text.push(char::from(byte));
    }
    text
}

/// Closes with a reset instead of a FIN.
fn reset(client: TcpStream) {
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("a plain socket");
    drop(client);
}

const SMUGGLING: &[(&str, &str)] = &[
    ("host_missing", "GET /echo HTTP/1.1\r\n\r\n"),
    ("host_repeated", "GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    ("host_invalid", "GET /echo HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    ("host_mismatch", "GET http://a/echo HTTP/1.1\r\nHost: b\r\n\r\n"),
    (
        "length_and_encoding",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    ),
    (
        "length_and_encoding",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ),
    (
        "length_repeated",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "length_repeated",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    ),
    ("length_invalid", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello"),
    ("length_invalid", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello"),
    ("length_invalid", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"),
    ("length_invalid", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n"),
    ("length_invalid", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello"),
    ("length_invalid", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n"),
    ("length_invalid", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5 \t 5\r\n\r\nhello"),
    ("control_byte", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: \x0c5\r\n\r\nhello"),
    ("encoding", "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    ("encoding", "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("encoding", "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    (
        "encoding",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("encoding", "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n"),
    ("encoding", "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("control_byte", "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    ("encoding", "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("space_before_colon", "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    (
        "folding",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n , identity\r\n\r\n0\r\n\r\n",
    ),
    ("folding", "GET /echo HTTP/1.1\r\n Host: a\r\n\r\n"),
    ("control_byte", "GET /echo HTTP/1.1\r\nHost: a\r\nx: a\rContent-Length: 5\r\n\r\n"),
    ("control_byte", "GET /echo HTTP/1.1\r\nHost: a\r\nx: a\0b\r\n\r\n"),
    ("control_byte", "GET /ec\x7fho HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("bare_lf", "GET /echo HTTP/1.1\nHost: a\n\n"),
    ("bare_lf", "GET /echo HTTP/1.1\r\nHost: a\r\n\n"),
    ("header_name", "GET /echo HTTP/1.1\r\nHost: a\r\nfoo\r\n\r\n"),
    ("header_name", "GET /echo HTTP/1.1\r\nHost: a\r\n: empty\r\n\r\n"),
    ("header_name", "GET /echo HTTP/1.1\r\nHost: a\r\nx[y]: z\r\n\r\n"),
    ("request_line", "GET  /echo HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("request_line", "\x16\x03\x01\x02\0\x01\0"),
    ("request_line", "GET /echo\u{20}extra HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("version", "GET /echo\r\n"),
    ("version", "GET /echo HTTP/1.2\r\nHost: a\r\n\r\n"),
    ("version", "GET /echo HTTP/2.0\r\nHost: a\r\n\r\n"),
    ("target", "GET echo HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("target", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("connect", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"),
];

const BAD_CHUNKS: &[(&str, &str)] = &[
    ("chunk_size", "\r\n\r\n"),
    ("chunk_size", "+5\r\nhello\r\n0\r\n\r\n"),
    ("chunk_size", "0x5\r\nhello\r\n0\r\n\r\n"),
    ("chunk_size", "5 \r\nhello\r\n0\r\n\r\n"),
    ("chunk_size", "5\nhello\n0\n\n"),
    ("chunk_size", "00000000000000005\r\nhello\r\n0\r\n\r\n"),
    ("chunk_size", "fffffffffffffffff\r\nhello\r\n"),
    ("chunk_size", "ffffffffffffffff\r\nhello\r\n"),
    ("chunk_end", "5\r\nhelloX\r\n0\r\n\r\n"),
    ("chunk_end", "5\r\nhello0\r\n\r\n"),
    ("chunk_end", "5\r\nhello\n0\r\n\r\n"),
    ("chunk_extension", "5;a=\nb\r\nhello\r\n0\r\n\r\n"),
    ("trailer", "0\r\nbad name: x\r\n\r\n"),
    ("trailer", "0\r\n\n"),
];

fn assert_refused(text: &str, status: u16, label: &str, case: &str) {
    assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{label} {case:?}: {text}");
    assert_eq!(text.matches("\r\n\r\n").count(), 1, "{case:?}: {text}");
    assert!(text.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{case:?}: {text}");
    let body = text.split("\r\n\r\n").nth(1).unwrap_or_default();
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    assert_eq!(json["error"]["type"], "invalid_request_error", "{case:?}: {text}");
}

#[tokio::test]
async fn ambiguous_messages_are_refused_and_never_reach_the_service() {
    let rig = rig(limits());
    for (label, case) in SMUGGLING {
        let text = rig.exchange(case.as_bytes()).await;
        assert_refused(&text, 400, label, case);
        let refused = refused(&rig.telemetry).pop();
        assert_eq!(refused, Some((*label).to_owned()), "{case:?}");
    }
    for (label, chunks) in BAD_CHUNKS {
        let case = format!("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        let text = rig.exchange(case.as_bytes()).await;
        assert_refused(&text, 400, label, &case);
        let refused = refused(&rig.telemetry).pop();
        assert_eq!(refused, Some((*label).to_owned()), "{case:?}");
    }
    assert_eq!(rig.counts.running.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn oversized_heads_get_431() {
    let rig = rig(limits());
    let long = format!("GET /echo HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "y".repeat(9000));
    assert_refused(&rig.exchange(long.as_bytes()).await, 431, "head_too_large", "long");
    let many = format!("GET /echo HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(101));
    assert_refused(&rig.exchange(many.as_bytes()).await, 431, "too_many_fields", "many");
    assert_eq!(
        refused(&rig.telemetry),
        [RequestRejected::HeadTooLarge.label(), RequestRejected::TooManyFields.label()]
    );
}

#[tokio::test]
async fn plain_requests_pass_in_every_form() {
    let rig = rig(limits());
    let cases = [
        ("GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "/echo|"),
        ("GET /echo HTTP/1.0\r\n\r\n", "/echo|"),
        ("\r\nGET /echo HTTP/1.1\r\nHost: a:80\r\nConnection: close\r\n\r\n", "/echo|"),
        ("GET http://A/echo?x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "/echo|"),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "*|"),
        (
            "POST /e HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nt: u\r\n\r\n",
            "/e|hello world",
        ),
        (
            "GET /e HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
            "/e|",
        ),
    ];
    for (case, expected) in cases {
        let text = rig.exchange(case.as_bytes()).await;
        assert!(text.contains(" 200 OK\r\n"), "{case:?}: {text}");
        assert!(text.ends_with(&format!("\r\n\r\n{expected}")), "{case:?}: {text}");
    }
    let head = rig.exchange(b"HEAD /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(head.contains("content-length: 6\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(refused(&rig.telemetry).is_empty());
}

#[tokio::test]
async fn connection_is_kept_and_pipelining_answers_in_order() {
    let rig = rig(limits());
    let mut client = rig.connect().await;
    for round in ["one", "two"] {
        let request =
            format!("POST /{round} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{round}", round.len());
        client.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut client, &format!("/{round}|{round}")).await;
    }
    let mut many: String = (0..50).map(|n| format!("GET /p{n} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    many.push_str("GET /last HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
    client.write_all(many.as_bytes()).await.unwrap();
    for n in 0..50 {
        let text = read_until(&mut client, &format!("/p{n}|")).await;
        assert_eq!(text.matches("HTTP/1.1 200").count(), 1, "{text}");
    }
    assert_refused(&rest(&mut client).await, 400, "host_repeated", "behind fifty good ones");
    assert_eq!(open(&rig.telemetry), 1);
}

#[tokio::test]
async fn violation_does_not_cut_the_answer_before_it() {
    let rig = rig(limits());
    let text = rig.exchange(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET /x HTTP/1.1\nHost: a\n\n").await;
    let (first, second) = text.split_once("slow").expect("the first answer is whole");
    assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert_refused(second, 400, "bare_lf", "second");
}

#[tokio::test]
async fn expect_continue_is_answered_before_the_body() {
    let rig = rig(limits());
    let mut client = rig.connect().await;
    client
        .write_all(b"POST /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut client, "HTTP/1.1 100 Continue\r\n\r\n").await;
    client.write_all(b"ok").await.unwrap();
    read_until(&mut client, "/e|ok").await;
}

#[tokio::test]
async fn slow_heads_and_bodies_get_408() {
    let limit = Duration::from_millis(300);
    for (limits, case, reason) in [
        (
            ListenerLimits { head_timeout: limit, ..limits() },
            "GET /echo HTTP/1.1\r\nHost: ",
            RequestRejected::HeadTimeout,
        ),
        (
            ListenerLimits { body_timeout: limit, ..limits() },
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc",
            RequestRejected::BodyTimeout,
        ),
    ] {
        let (rig, start) = (rig(limits), Instant::now());
        assert_refused(&rig.exchange(case.as_bytes()).await, 408, reason.label(), case);
        assert!(start.elapsed() >= limit);
        assert_eq!(refused(&rig.telemetry), [reason.label()]);
    }
}

#[tokio::test]
async fn idle_connection_is_closed_in_silence() {
    let rig = rig(ListenerLimits { idle_timeout: Duration::from_millis(500), ..limits() });
    assert_eq!(rig.exchange(b"").await, "");
    let kept = rig.exchange(b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(kept.ends_with("/echo|"), "{kept}");
    assert!(refused(&rig.telemetry).is_empty());
}

/// More than a server that stops at its limit takes.
const ENDLESS: usize = 288 * 1024 * 1024;

/// Sends chunks until the server stops taking them, or has taken [`ENDLESS`] bytes;
/// gives the bytes sent.
async fn send_without_end(client: &mut TcpStream, patience: Duration) -> usize {
    let mut chunk = b"10000\r\n".to_vec();
    chunk.resize(7 + 0x10000, b'x');
    chunk.extend_from_slice(b"\r\n");
    let mut sent = 0;
    let mut offset = 0;
    while let Ok(Ok(written @ 1..)) = timeout(patience, client.write(&chunk[offset..])).await {
        sent += written;
        if sent >= ENDLESS {
            break;
        }
        offset = (offset + written) % chunk.len();
    }
    sent
}

const CHUNKED_HEAD: &str = " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

#[tokio::test]
async fn endless_body_stops_at_the_limit_and_is_not_drained_for_ever() {
    let rig = rig(limits());
    let mut client = rig.connect().await;
    client.write_all(format!("POST /limit{CHUNKED_HEAD}").as_bytes()).await.unwrap();
    let sent = send_without_end(&mut client, PATIENCE).await;
    assert!(sent < ENDLESS, "{sent} bytes were taken");
    assert!(rig.counts.body_bytes.load(Ordering::SeqCst) < BODY_LIMIT + 128 * 1024);
    until(|| open(&rig.telemetry) == 0).await;
}

#[tokio::test]
async fn answer_to_a_body_over_the_limit_reaches_a_client_that_sends_on() {
    let rig = rig(limits());
    let body = "x".repeat(4 * 1024 * 1024);
    let head = format!("POST /limit HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    let text = rig.exchange(format!("{head}{body}").as_bytes()).await;
    assert!(text.starts_with("HTTP/1.1 413 "), "{text}");
}

#[tokio::test]
async fn unread_body_is_held_back_at_the_client() {
    let rig = rig(limits());
    let mut client = rig.connect().await;
    client.write_all(format!("POST /hang{CHUNKED_HEAD}").as_bytes()).await.unwrap();
    let before = resident_bytes();
    let sent = send_without_end(&mut client, Duration::from_millis(500)).await;
    assert!(sent < 32 * 1024 * 1024, "{sent} bytes went into a request that reads none");
    // Other tests take memory and give it back.
    until(|| resident_bytes().saturating_sub(before) < 24 * 1024 * 1024).await;
    // A FIN would wait behind what the server does not take; a reset does not.
    reset(client);
    rig.until_running(0).await;
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_a_place() {
    let rig = rig(ListenerLimits { max_connections: 2, ..limits() });
    let (mut first, mut second) = (rig.connect().await, rig.connect().await);
    for busy in [&mut first, &mut second] {
        busy.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    }
    rig.until_running(2).await;
    let mut third = rig.connect().await;
    third.write_all(b"GET /third HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let early = timeout(Duration::from_millis(100), third.read_u8()).await;
    assert!(early.is_err(), "served over the limit");
    drop(first);
    assert!(rest(&mut third).await.ends_with("/third|"));
    drop(second);
    until(|| open(&rig.telemetry) == 0).await;
}

/// Clients that say nothing, and that stop within a head.
#[tokio::test]
async fn connections_without_a_request_end_for_newcomers() {
    let rig = rig(ListenerLimits { max_connections: 3, ..limits() });
    let mut busy = rig.connect().await;
    busy.write_all(b"GET /gated HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    rig.until_running(1).await;
    let mut held = vec![rig.connect().await, rig.connect().await];
    held[1].write_all(b"GET /slow").await.unwrap();
    until(|| open(&rig.telemetry) == 3).await;
    for number in 0..6 {
        let ask = format!("GET /{number} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert!(rig.exchange(ask.as_bytes()).await.ends_with(&format!("/{number}|")));
        held.push(rig.connect().await);
    }
    for mut ended in held.drain(..2) {
        assert_eq!(rest(&mut ended).await, "");
    }
    assert!(refused(&rig.telemetry).contains(&"place_needed".to_owned()));
    rig.counts.gate.cancel();
    assert!(rest(&mut busy).await.ends_with("gated"), "it had a request");
}

#[tokio::test]
async fn a_connection_between_two_requests_ends_for_a_newcomer() {
    let rig = rig(ListenerLimits { max_connections: 2, ..limits() });
    let (mut busy, mut idle) = (rig.connect().await, rig.connect().await);
    busy.write_all(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    read_until(&mut busy, "first").await;
    idle.write_all(b"GET /idle HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    read_until(&mut idle, "/idle|").await;
    let next = rig.exchange(b"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(next.ends_with("/next|"));
    assert_eq!(rest(&mut idle).await, "");
    assert_eq!(rig.counts.running.load(Ordering::SeqCst), 1, "the stream goes on");
}

#[tokio::test]
async fn an_address_has_no_more_than_its_connections() {
    let rig = rig(ListenerLimits { max_address_connections: 2, ..limits() });
    let held = [rig.connect().await, rig.connect().await];
    until(|| open(&rig.telemetry) == 2).await;
    let mut third = rig.connect().await;
    assert!(matches!(third.read_u8().await, Err(error) if error.kind() != std::io::ErrorKind::TimedOut));
    assert_eq!(refused(&rig.telemetry), ["address"]);
    let other = TcpSocket::new_v4().expect("a socket");
    other.bind(SocketAddr::from(([127, 0, 0, 2], 0))).expect("loopback has many addresses");
    let mut other = other.connect(rig.address).await.expect("the listener accepts");
    other.write_all(b"GET /other HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    assert!(rest(&mut other).await.ends_with("/other|"), "another address has places of its own");
    drop(held);
    until(|| open(&rig.telemetry) == 0).await;
    assert!(
        rig.exchange(b"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.ends_with("/next|")
    );
}

#[tokio::test]
async fn behind_a_load_balancer_the_client_s_own_address_counts() {
    let proxies = TrustedProxies {
        networks: vec!["127.0.0.1/32".parse().unwrap()],
        header: ProxyHeader::ProxyProtocol,
    };
    let rig = rig(ListenerLimits { proxies, max_address_connections: 1, ..limits() });
    let of = async |client: &str| {
        let mut stream = rig.connect().await;
        let line = format!("PROXY TCP4 {client} 10.0.0.1 4000 80\r\nGET /of HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(line.as_bytes()).await.unwrap();
        stream
    };
    let mut held = of("192.0.2.7").await;
    read_until(&mut held, "/of|").await;
    let mut second = of("192.0.2.7").await;
    assert!(timeout(PATIENCE, second.read_u8()).await.expect("the server closes").is_err());
    let mut other = of("192.0.2.8").await;
    read_until(&mut other, "/of|").await;
    let mut bare = rig.connect().await;
    bare.write_all(b"GET /bare HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let end = timeout(PATIENCE, bare.read_u8()).await.expect("the server closes");
    assert!(end.is_err(), "who is trusted must say for whom it speaks");
    assert_eq!(refused(&rig.telemetry), ["address", "proxy_header"]);
}

#[tokio::test]
async fn departed_http1_client_takes_its_request_along() {
    let rig = rig(limits());
    let next = "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n";
    for path in ["/hang", "/stream"] {
        for pipelined in [String::new(), next.to_owned()] {
            for with_reset in [false, true] {
                let mut client = rig.connect().await;
                let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n{pipelined}");
                client.write_all(request.as_bytes()).await.unwrap();
                rig.until_running(1).await;
                if path == "/stream" {
                    read_until(&mut client, "first").await;
                }
                if with_reset {
                    reset(client);
                } else {
                    drop(client);
                }
                rig.until_running(0).await;
            }
        }
    }
    assert!(refused(&rig.telemetry).is_empty());
}

#[tokio::test]
async fn departure_is_seen_behind_bytes_that_are_not_read() {
    let rig = rig(limits());
    let mut client = rig.connect().await;
    let pipelined = "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2000);
    client.write_all(format!("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n{pipelined}").as_bytes()).await.unwrap();
    rig.until_running(1).await;
    client.shutdown().await.unwrap();
    rig.until_running(0).await;
}

/// An HTTP/2 connection, its task, and its socket once more.
struct Http2 {
    client: http2::SendRequest<Empty<Bytes>>,
    connection: JoinHandle<()>,
    socket: std::net::TcpStream,
}

async fn http2_client(rig: &Rig) -> Http2 {
    let socket = rig.connect().await.into_std().expect("it can leave the runtime");
    let again = socket.try_clone().and_then(TcpStream::from_std).expect("it can come back");
    let (client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(again)).await.expect("the server speaks HTTP/2");
    Http2 { client, connection: tokio::spawn(async move { drop(connection.await) }), socket }
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://a.test{path}")).body(Empty::new()).expect("a valid request")
}

#[tokio::test]
async fn http2_with_prior_knowledge_multiplexes() {
    let rig = rig(limits());
    let http2 = http2_client(&rig).await;
    let calls = (0..100).map(|n| {
        let mut client = http2.client.clone();
        async move {
            let response = client.send_request(get(&format!("/n{n}"))).await.expect("an answer");
            assert_eq!(response.version(), Version::HTTP_2);
            let body = response.into_body().collect().await.expect("a whole body").to_bytes();
            assert_eq!(body, format!("/n{n}|"));
        }
    });
    futures_util::future::join_all(calls).await;
    assert_eq!(open(&rig.telemetry), 1);
}

#[tokio::test]
async fn http2_request_is_dropped_with_its_stream_and_with_its_connection() {
    let rig = rig(limits());
    for path in ["/hang", "/stream"] {
        let mut http2 = http2_client(&rig).await;
        let kept = http2.client.send_request(get("/hang"));
        let mut call = Box::pin(http2.client.send_request(get(path)));
        let mut answer = None;
        poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Ready(response) => {
                answer = Some(response.expect("an answer"));
                Poll::Ready(())
            }
            Poll::Pending if path == "/hang" => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        })
        .await;
        rig.until_running(2).await;
        drop((call, answer));
        rig.until_running(1).await;
        http2.socket.shutdown(std::net::Shutdown::Both).unwrap();
        rig.until_running(0).await;
        drop(kept);
    }
}

#[tokio::test]
async fn who_resets_nearly_all_streams_is_sent_away_and_nobody_else() {
    let rig = rig(limits());
    let mut hostile = http2_client(&rig).await;
    let mut honest = http2_client(&rig).await;
    let running = || rig.counts.running.load(Ordering::SeqCst);
    for batch in 1.. {
        let calls: Vec<_> = (0..100).map(|_| hostile.client.send_request(get("/hang"))).collect();
        until(|| running() == 100 || !refused(&rig.telemetry).is_empty()).await;
        let served = timeout(PATIENCE, honest.client.send_request(get("/meanwhile"))).await;
        assert_eq!(served.expect("an answer in time").expect("an answer").status(), StatusCode::OK);
        drop(calls);
        rig.until_running(0).await;
        if !refused(&rig.telemetry).is_empty() {
            break;
        }
        assert!(batch < 100, "nobody is sent away");
    }
    assert_eq!(refused(&rig.telemetry), ["stream_resets"]);
    timeout(PATIENCE, &mut hostile.connection).await.expect("the connection ends").unwrap();
    until(|| open(&rig.telemetry) == 1).await;
    assert!(honest.client.send_request(get("/after")).await.is_ok(), "the others stay");
}

#[tokio::test]
async fn http2_request_without_a_host_gets_400() {
    let rig = rig(limits());
    let mut client = rig.connect().await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // HEADERS that end stream 1: `:method GET`, `:scheme http`, `:path /`.
    bytes.extend_from_slice(&[0, 0, 3, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84]);
    client.write_all(&bytes).await.unwrap();
    loop {
        let mut head = [0; 9];
        timeout(PATIENCE, client.read_exact(&mut head)).await.expect("a frame").unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        client.read_exact(&mut payload).await.unwrap();
        if head[3] == 1 {
            // `:status 400` is entry 12 of the static table.
            assert_eq!(payload.first(), Some(&0x8c));
            break;
        }
    }
    assert_eq!(refused(&rig.telemetry), [RequestRejected::HostMissing.label()]);
}

#[tokio::test]
async fn drain_closes_idle_connections_and_waits_for_the_busy() {
    let rig = rig(limits());
    let mut idle = rig.connect().await;
    idle.write_all(b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    read_until(&mut idle, "/echo|").await;
    let idle_http2 = http2_client(&rig).await;
    let mut busy_http2 = http2_client(&rig).await;
    let busy_call = tokio::spawn(busy_http2.client.send_request(get("/gated")));
    let mut busy = rig.connect().await;
    busy.write_all(b"GET /gated HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    rig.until_running(2).await;
    rig.shutdown.drain.cancel();
    assert_eq!(rest(&mut idle).await, "");
    timeout(PATIENCE, idle_http2.connection).await.expect("idle HTTP/2 connections close").unwrap();
    assert!(TcpStream::connect(rig.address).await.is_err(), "still accepting");
    rig.counts.gate.cancel();
    let answer = rest(&mut busy).await;
    assert!(answer.contains("connection: close\r\n") && answer.ends_with("gated"), "{answer}");
    let response = busy_call.await.unwrap().expect("the stream ends well");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "gated");
    timeout(PATIENCE, rig.serving).await.expect("it returns when all have left").unwrap();
}

#[tokio::test]
async fn abort_ends_what_still_runs() {
    let rig = rig(limits());
    let mut client = rig.connect().await;
    client.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    rig.until_running(1).await;
    rig.shutdown.drain.cancel();
    let (counts, telemetry) = (Arc::clone(&rig.counts), rig.telemetry.clone());
    let mut serving = rig.serving;
    assert!(timeout(Duration::from_millis(100), &mut serving).await.is_err(), "did not wait");
    rig.shutdown.abort.cancel();
    timeout(PATIENCE, serving).await.expect("it ends at once").unwrap();
    assert_eq!(counts.running.load(Ordering::SeqCst), 0);
    assert_eq!(open(&telemetry), 0);
}
