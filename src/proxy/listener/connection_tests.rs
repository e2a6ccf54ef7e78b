//! Tests of one connection over an in-memory pipe, in paused time.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::io::{AsyncBufRead, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::config::settings::ListenerLimits;
use crate::proxy::listener::conn_state::{ConnState, ListenerMetrics};
use crate::proxy::listener::connection::serve;
use crate::proxy::listener::http2::resets::{AddressResets, ClientResets};
use crate::proxy::listener::rejected::RequestRejected;
use crate::proxy::listener::socket::ClientSocket;
use crate::telemetry::Telemetry;

/// A pipe has no way to say that its other end has left before all is read: the flag does.
struct Pipe(BufReader<DuplexStream>, Arc<AtomicBool>);

impl ClientSocket for Pipe {
    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let unread = std::task::ready!(std::pin::Pin::new(&mut self.0).poll_fill_buf(cx));
        Poll::Ready(unread.is_ok_and(<[u8]>::is_empty) || self.1.load(Ordering::Relaxed))
    }
}

impl tokio::io::AsyncRead for Pipe {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl tokio::io::AsyncWrite for Pipe {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Counts what runs, so that a test can see it dropped.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Rig {
    client: DuplexStream,
    serving: JoinHandle<()>,
    telemetry: Telemetry,
    state: Arc<ConnState>,
    running: Arc<AtomicUsize>,
    left: Arc<AtomicBool>,
}

const PIPE_BYTES: usize = 64 * 1024;

/// One connection whose service obeys the path: `/echo` reads the body and
/// gives its length, `/hang` never answers, `/stream` sends a byte every
/// 100 s for 1000 s, `/flood` sends without end, `/late` reads after 100 s.
fn rig() -> Rig {
    rig_of(AddressResets::new().of(None))
}

/// The same, of a client with these resets.
fn rig_of(resets: ClientResets) -> Rig {
    let (client, server) = duplex(PIPE_BYTES);
    let telemetry = Telemetry::for_tests();
    let state = Arc::new(ConnState::new(Arc::new(ListenerMetrics::new(telemetry.clone()))));
    let running = Arc::new(AtomicUsize::new(0));
    let left = Arc::new(AtomicBool::new(false));
    let limits = ListenerLimits {
        max_connections: 1,
        proxies: Default::default(),
        max_address_connections: 1,
        head_timeout: Duration::from_secs(10),
        body_timeout: Duration::from_secs(20),
        send_timeout: Duration::from_secs(60),
        min_send_rate: 0,
        idle_timeout: Duration::from_secs(60),
        max_head_bytes: 16 * 1024,
        handshake_timeout: Duration::from_secs(1),
        max_address_handshakes: 1,
    };
    let count = Arc::clone(&running);
    let service = service_fn(move |request: Request<Incoming>| {
        let running = Running::new(&count);
        async move { Ok::<_, Infallible>(Response::new(act(request, running).await)) }
    });
    let pipe = Pipe(BufReader::new(server), Arc::clone(&left));
    let serving = tokio::spawn(serve(pipe, service, Arc::new(limits), Arc::clone(&state), resets));
    Rig { client, serving, telemetry, state, running, left }
}

async fn act(request: Request<Incoming>, running: Running) -> BoxBody<Bytes, Infallible> {
    match request.uri().path() {
        "/hang" => std::future::pending().await,
        "/stream" => {
            StreamBody::new(futures_util::stream::unfold((0, running), |(sent, running)| async move {
                if sent == 10 {
                    return None;
                }
                sleep(Duration::from_secs(100)).await;
                Some((Ok(Frame::data(Bytes::from_static(b"x"))), (sent + 1, running)))
            }))
            .boxed()
        }
        "/flood" => StreamBody::new(futures_util::stream::unfold(running, |running| async move {
            Some((Ok(Frame::data(Bytes::from_static(&[b'z'; 4096]))), running))
        }))
        .boxed(),
        path => {
            if path == "/late" {
                sleep(Duration::from_secs(100)).await;
            }
            let length = request.into_body().collect().await.map(|body| body.to_bytes().len());
            Full::new(Bytes::from(length.map_or("failed".to_owned(), |length| length.to_string()))).boxed()
        }
    }
}

impl Rig {
    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    /// All that comes until the connection closes.
    async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        self.client.read_to_end(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Reads until `end` has come.
    async fn until(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            text.push(char::from(self.client.read_u8().await.unwrap()));
        }
        text
    }

    /// The reasons of the refusals so far.
    fn refusals(&self) -> Vec<String> {
        let log = self.telemetry.captured_log();
        let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let refused = lines.filter(|line| line["message"] == "connection refused");
        refused.map(|line| line["reason"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until no service call and no answer is left.
    async fn until_dropped(&self) -> Duration {
        let start = Instant::now();
        while self.running.load(Ordering::Relaxed) > 0 {
            assert!(start.elapsed() < Duration::from_secs(1000), "never dropped");
            sleep(Duration::from_millis(1)).await;
        }
        start.elapsed()
    }
}

/// True when `start` lies `seconds` back, give or take 10 ms.
fn took(start: Instant, seconds: u64) -> bool {
    start.elapsed().abs_diff(Duration::from_secs(seconds)) < Duration::from_millis(10)
}

#[tokio::test(start_paused = true)]
async fn an_address_that_resets_too_many_streams_gets_no_http2_connection() {
    let resets = AddressResets::new();
    let client = || resets.of(Some([10, 0, 0, 1].into()));
    client().count(10_000);
    let mut http2 = rig_of(client());
    http2.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let mut said = Vec::new();
    http2.client.read_to_end(&mut said).await.unwrap();
    // SETTINGS, then GOAWAY with ENHANCE_YOUR_CALM.
    assert_eq!((said.len(), said[3], said[12], said[25]), (26, 4, 7, 11), "{said:?}");
    assert_eq!(http2.refusals(), ["stream_resets"]);

    let mut http1 = rig_of(client());
    http1.send("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").await;
    http1.until("\r\n\r\n0").await;
    let mut other = rig_of(resets.of(Some([10, 0, 0, 2].into())));
    other.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert_eq!(other.client.read_u8().await.unwrap(), 0, "its SETTINGS");
    assert!(other.refusals().is_empty());

    sleep(Duration::from_secs(60)).await;
    assert!(!client().are_too_many(), "after a minute it may come again");
}

#[tokio::test(start_paused = true)]
async fn silent_connection_closes_without_a_word() {
    let mut rig = rig();
    let start = Instant::now();
    assert_eq!(rig.rest().await, "");
    assert!(took(start, 60));
    assert!(rig.refusals().is_empty());
}

#[tokio::test(start_paused = true)]
async fn idle_time_counts_from_the_last_answer() {
    let mut rig = rig();
    sleep(Duration::from_secs(50)).await;
    rig.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab").await;
    rig.until("\r\n\r\n2").await;
    let start = Instant::now();
    assert_eq!(rig.rest().await, "");
    assert!(took(start, 60));
}

#[tokio::test(start_paused = true)]
async fn slow_head_is_refused_however_it_trickles() {
    for beginning in ["P", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nx: "] {
        let mut rig = rig();
        let start = Instant::now();
        rig.send(beginning).await;
        for _ in 0..9 {
            sleep(Duration::from_secs(1)).await;
            let more = if beginning.starts_with("GET") { "y" } else { "" };
            rig.send(more).await;
        }
        let answer = rig.rest().await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{beginning:?}: {answer}");
        assert!(took(start, 10), "{beginning:?}: {:?}", start.elapsed());
        assert_eq!(rig.refusals(), [RequestRejected::HeadTimeout.label()]);
    }
}

#[tokio::test(start_paused = true)]
async fn slow_body_is_refused_and_its_request_dropped() {
    for head in ["Content-Length: 100\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n5\r\nab"] {
        let mut rig = rig();
        rig.send(&format!("POST /echo HTTP/1.1\r\nHost: a\r\n{head}")).await;
        sleep(Duration::from_secs(19)).await;
        rig.send("c").await;
        let start = Instant::now();
        let answer = rig.until("}}").await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert!(took(start, 20));
        assert_eq!(rig.running.load(Ordering::Relaxed), 0);
        assert_eq!(rig.refusals(), [RequestRejected::BodyTimeout.label()]);
    }
}

#[tokio::test(start_paused = true)]
async fn body_time_does_not_run_while_the_service_is_slow() {
    let mut rig = rig();
    rig.send("POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe").await;
    sleep(Duration::from_secs(110)).await;
    rig.send("llo").await;
    rig.until("\r\n\r\n5").await;
    assert!(rig.refusals().is_empty());
}

#[tokio::test(start_paused = true)]
async fn long_answer_is_never_cut_by_the_clock() {
    let mut rig = rig();
    rig.send("GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let start = Instant::now();
    let answer = rig.rest().await;
    assert_eq!(answer.matches("1\r\nx\r\n").count(), 10);
    assert!(answer.ends_with("0\r\n\r\n"));
    assert!(took(start, 1000));
}

#[tokio::test(start_paused = true)]
async fn client_that_stops_reading_loses_its_connection() {
    let mut rig = rig();
    rig.send("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let mut some = [0; PIPE_BYTES];
    sleep(Duration::from_secs(59)).await;
    rig.client.read_exact(&mut some).await.unwrap();
    let start = Instant::now();
    assert_eq!(rig.running.load(Ordering::Relaxed), 1);
    rig.until_dropped().await;
    assert!(took(start, 60), "{:?}", start.elapsed());
    rig.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bad_chunk_is_answered_in_the_place_of_the_service() {
    let mut rig = rig();
    rig.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n+1\r\n").await;
    let answer = rig.until("}}").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert_eq!(rig.refusals(), [RequestRejected::ChunkSize.label()]);
    assert_eq!(rig.running.load(Ordering::Relaxed), 0);
    rig.client.shutdown().await.unwrap();
    rig.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn body_cut_short_drops_the_request() {
    let mut rig = rig();
    rig.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc").await;
    sleep(Duration::from_millis(1)).await;
    rig.client.shutdown().await.unwrap();
    let answer = rig.rest().await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(rig.refusals(), [RequestRejected::BodyCutShort.label()]);
    assert_eq!(rig.running.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn leaving_drops_the_request_in_every_phase() {
    let body = "Content-Length: 50000\r\n\r\n";
    let cases = [
        "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        // With a pipelined request behind it.
        "GET /hang HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "GET /stream HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        // With a body that nobody reads.
        format!("POST /hang HTTP/1.1\r\nHost: a\r\n{body}"),
        format!("POST /hang HTTP/1.1\r\nHost: a\r\n{body}some of it"),
        format!("POST /stream HTTP/1.1\r\nHost: a\r\n{body}some of it"),
    ];
    for case in cases {
        let mut rig = rig();
        rig.send(&case).await;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(rig.running.load(Ordering::Relaxed), 1, "{case:?}");
        rig.client.shutdown().await.unwrap();
        let took = rig.until_dropped().await;
        assert!(took < Duration::from_millis(5), "{took:?} for {case:?}");
        (&mut rig.serving).await.unwrap();
        let whole = !case.contains("Content-Length");
        assert!(!whole || rig.refusals().is_empty(), "{case:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_is_noticed_behind_more_pipelined_bytes_than_are_kept() {
    let mut rig = rig();
    rig.send("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").await;
    rig.send(&"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000)).await;
    sleep(Duration::from_secs(1000)).await;
    assert_eq!(rig.running.load(Ordering::Relaxed), 1);
    rig.left.store(true, Ordering::Relaxed);
    assert!(rig.until_dropped().await <= Duration::from_millis(501));
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_answered_in_order() {
    let rig = rig();
    let post = |length: usize| {
        let body = "b".repeat(length);
        format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    let all: String = (0..200).map(|n| post(n * 7 % 501)).collect();
    let (mut from, mut to) = tokio::io::split(rig.client);
    let writer = tokio::spawn(async move {
        to.write_all(all.as_bytes()).await.unwrap();
        to
    });
    let mut text = String::new();
    let mut expected = (0..200).map(|n| format!("\r\n\r\n{}", n * 7 % 501));
    let mut wanted = expected.next();
    while let Some(end) = &wanted {
        text.push(char::from(from.read_u8().await.unwrap()));
        let length_line = format!("content-length: {}\r\n", end.len() - 4);
        if text.contains(&length_line) && text.ends_with(end.as_str()) {
            text.clear();
            wanted = expected.next();
        }
    }
    let to = writer.await.unwrap();
    drop((from, to));
    rig.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bad_message_waits_for_the_answer_before_it() {
    let mut rig = rig();
    rig.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n").await;
    let answer = rig.until("0\r\n\r\n").await;
    assert_eq!(answer.matches("1\r\nx\r\n").count(), 10);
    let refusal = rig.until("}}").await;
    assert!(refusal.starts_with("HTTP/1.1 400 "), "{refusal}");
    assert_eq!(rig.refusals(), [RequestRejected::HostMissing.label()]);
    rig.client.shutdown().await.unwrap();
    rig.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn early_answer_says_that_it_closes() {
    let mut rig = rig();
    rig.send("GET /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc").await;
    let answer = rig.until("0\r\n\r\n").await;
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    rig.client.shutdown().await.unwrap();
    rig.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn drain_closes_the_idle_and_lets_the_busy_finish() {
    let idle_before = rig();
    let mut idle_after = rig();
    let mut busy = rig();
    idle_after.send("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").await;
    idle_after.until("\r\n\r\n0").await;
    busy.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n").await;
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    for rig in [&idle_before, &idle_after, &busy] {
        rig.state.drain();
    }
    idle_before.serving.await.unwrap();
    assert_eq!(idle_after.rest().await, "");
    assert!(took(start, 0));
    let answer = busy.until("0\r\n\r\n").await;
    assert!(took(start, 1000));
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "the pipelined request was served: {answer}");
    drop(busy.client);
    busy.serving.await.unwrap();
}
