//! Shutdown: running and waiting requests finish, the others get an error, and the process ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use penstock::proxy::Proxy;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::SimHandle;
use penstock::telemetry::Telemetry;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::client::{Answer, Call, Raw, Session};
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, chat, holds_within, soon, until};

const CHAT: &str = "/v1/chat/completions";

/// A rig that goes down.
struct Leaving {
    rig: Rig,
    proxy: Arc<Proxy>,
    address: SocketAddr,
    admin: SocketAddr,
    key: String,
}

/// What is left of it while it does.
struct Drain {
    draining: JoinHandle<()>,
    engines: Vec<SimHandle>,
    telemetry: Telemetry,
    begun: Instant,
}

impl Leaving {
    /// One engine with two places; a token takes `slow` times half a
    /// millisecond.
    async fn new(server: &'static str, slow: f64) -> Self {
        let rig = Rig::start(RigOptions {
            server,
            pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 2"),
            ..RigOptions::default()
        })
        .await;
        rig.engine(0).add(FaultKind::Slow { factor: slow }).unwrap();
        let (address, admin) = (rig.address(), rig.gateway.admin_address());
        let key = rig.key(TENANT).to_owned();
        Self { proxy: Arc::clone(rig.gateway.proxy()), rig, address, admin, key }
    }

    fn begin(&self, id: &str, body: &Value) -> JoinHandle<Answer> {
        let call = Call::post(CHAT, body).key(&self.key).header("x-request-id", id);
        tokio::spawn(call.send(self.address))
    }

    async fn until_jobs(&self, running: u32, jobs: u64) {
        until("the jobs are where they should be", || {
            let snapshot = self.proxy.dispatcher.snapshot();
            (snapshot.replicas[0].running, snapshot.jobs) == (running, jobs)
        })
        .await;
    }
}

impl Drain {
    async fn of(rig: Rig, proxy: &Proxy) -> Self {
        let Rig { gateway, engines, telemetry, .. } = rig;
        let begun = Instant::now();
        let draining = tokio::spawn(gateway.drain());
        until("the drain has begun", || proxy.dispatcher.shutdown().is_draining()).await;
        Self { draining, engines, telemetry, begun }
    }

    async fn ended(self) -> (Vec<Value>, Duration) {
        soon("the end of the drain", self.draining).await.unwrap();
        let took = self.begun.elapsed();
        let log = self.telemetry.captured_log();
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.last().unwrap()["message"], "server stopped");
        drop(self.engines);
        (lines, took)
    }
}

fn line_of<'a>(lines: &'a [Value], id: &str) -> &'a Value {
    let mut found = lines.iter().filter(|line| line["request_id"] == id && line["outcome"].is_string());
    let line = found.next().unwrap_or_else(|| panic!("no line of {id}"));
    assert!(found.next().is_none(), "two lines of {id}");
    line
}

#[tokio::test]
async fn what_runs_or_waits_finishes_within_the_grace() {
    let leaving = Leaving::new("drain_grace: 30s", 1000.0).await;
    let mut kept_alive = Session::open(leaving.address).await;
    kept_alive.call(Call::get("/health")).await.ok();
    let streams = [leaving.begin("s-0", &chat(30, true)), leaving.begin("s-1", &chat(30, true))];
    leaving.until_jobs(2, 2).await;
    let waiting: Vec<_> = (0..4).map(|n| leaving.begin(&format!("w-{n}"), &chat(3, n % 2 == 0))).collect();
    leaving.until_jobs(2, 6).await;
    // A request whose body is still under way is not one that was accepted.
    let late = Call::post(CHAT, &chat(1, false)).key(&leaving.key).header("expect", "100-continue");
    let mut in_body = Raw::open(leaving.address).await;
    let bytes = late.bytes();
    in_body.write(&bytes[..bytes.len() - 10]).await.unwrap();
    soon("100", in_body.read_past("\r\n\r\n")).await.unwrap();

    let Leaving { rig, proxy, address, admin, key } = leaving;
    let drain = Drain::of(rig, &proxy).await;
    let ready = Call::get("/readyz").send(admin).await;
    assert_eq!((ready.status, ready.text().trim()), (503, "draining"));
    assert_eq!(Call::get("/livez").send(admin).await.status, 200);
    assert_eq!(Call::get("/health").send(address).await.status, 503);
    let call = Call::post(CHAT, &chat(1, true)).key(&key);
    for answer in [call.clone().send(address).await, kept_alive.call(call).await] {
        assert_eq!((answer.status, answer.code().as_str()), (503, "draining"));
        assert_eq!(answer.header("x-should-retry"), "true");
    }
    in_body.write(&bytes[bytes.len() - 10..]).await.unwrap();
    let answer = soon("the answer", in_body.read_past("\r\n\r\n")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(!drain.draining.is_finished(), "it waits for what runs");

    drain.engines[0].control().clear();
    for stream in streams {
        assert!(soon("a stream", stream).await.unwrap().is_done());
    }
    for answer in waiting {
        let answer = soon("what waited", answer).await.unwrap();
        assert!(answer.status == 200 && answer.whole, "{answer:?}");
    }
    let (lines, took) = drain.ended().await;
    assert!(took < Duration::from_secs(20), "{took:?}: it ends when the work has");
    assert_eq!(lines.last().unwrap()["cut_off"], 0);
    for id in ["s-0", "s-1", "w-0", "w-1", "w-2", "w-3"] {
        assert_eq!(line_of(&lines, id)["outcome"], "success");
    }
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_told_to_try_again() {
    let leaving = Leaving::new("drain_grace: 500ms", 200.0).await;
    let stream = leaving.begin("stream", &chat(1000, true));
    let plain = leaving.begin("plain", &chat(1000, false));
    leaving.until_jobs(2, 2).await;
    let queued = [leaving.begin("q-0", &chat(1, true)), leaving.begin("q-1", &chat(1, false))];
    leaving.until_jobs(2, 4).await;
    let mut in_body = Raw::open(leaving.address).await;
    let call = Call::post(CHAT, &chat(1, false)).key(&leaving.key).header("expect", "100-continue");
    let bytes = call.bytes();
    in_body.write(&bytes[..bytes.len() - 10]).await.unwrap();
    soon("100", in_body.read_past("\r\n\r\n")).await.unwrap();
    // The stream's first token is out.
    until("the first token", || leaving.rig.engine(0).state().generated_tokens > 2).await;

    let Leaving { rig, proxy, .. } = leaving;
    let drain = Drain::of(rig, &proxy).await;
    for answer in [plain].into_iter().chain(queued) {
        let answer = soon("a refusal", answer).await.unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (503, "draining"), "{answer:?}");
        assert_eq!(answer.header("x-should-retry"), "true");
    }
    let answer = soon("a refusal", in_body.read_past("\r\n\r\n")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let stream = soon("the stream's end", stream).await.unwrap();
    assert_eq!((stream.status, stream.whole), (200, false), "it does not look like a proper end");
    let last = stream.events().pop().unwrap();
    assert_eq!(last["error"]["code"], "draining", "{last}");
    assert!(!stream.text().contains("[DONE]"));

    let control = drain.engines[0].control();
    until("the engine is free", || control.state().inside == 0).await;
    let (lines, took) = drain.ended().await;
    assert!(took >= Duration::from_millis(500), "{took:?}: the grace was given");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(lines.last().unwrap()["cut_off"], 4);
    for (id, outcome, usage) in [
        ("stream", "failed", "partial"),
        ("plain", "rejected", "unknown"),
        ("q-0", "rejected", "exact"),
        ("q-1", "rejected", "exact"),
    ] {
        let line = line_of(&lines, id);
        let told = (&line["outcome"], &line["reason"], &line["usage"]);
        assert_eq!(told, (&json!(outcome), &json!("draining"), &json!(usage)), "{line}");
    }
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let leaving = Leaving::new("drain_grace: 10m", 1000.0).await;
    let running = leaving.begin("running", &chat(1000, true));
    leaving.until_jobs(1, 1).await;
    let Leaving { rig, proxy, .. } = leaving;
    let abort = rig.gateway.abort_switch();
    let drain = Drain::of(rig, &proxy).await;
    sleep(Duration::from_millis(50)).await;
    assert!(!drain.draining.is_finished());
    let pressed = Instant::now();
    abort();
    let (lines, _) = drain.ended().await;
    assert!(pressed.elapsed() < Duration::from_secs(10), "{:?}", pressed.elapsed());
    assert_eq!(lines.last().unwrap()["cut_off"], 1);
    line_of(&lines, "running");
    // Cut or told: it has an end.
    let _ended = soon("the running request's end", running).await;
}

/// A client that reads nothing must not hold up the end.
#[tokio::test]
async fn a_client_that_does_not_read_does_not_hold_up_the_end() {
    let leaving = Leaving::new("drain_grace: 10m", 0.01).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(leaving.address).await.unwrap();
    let mut deaf = Raw { stream, got: Vec::new() };
    // More than all buffers on the way can hold.
    let mut body = chat(5000, false);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(20);
    deaf.write(Call::post(CHAT, &body).key(&leaving.key).bytes()).await.unwrap();
    // Megabytes take long on a machine that does much else.
    let finished = || leaving.rig.finished().len() == 1;
    assert!(holds_within(6 * PATIENCE, finished).await, "the whole answer is there");
    let Leaving { rig, proxy, .. } = leaving;
    let drain = Drain::of(rig, &proxy).await;
    let (lines, took) = drain.ended().await;
    assert_eq!(lines.last().unwrap()["cut_off"], 0);
    assert!(took >= Duration::from_secs(5), "{took:?}: there was something to wait for");
    assert!(took < PATIENCE / 2, "{took:?}");
}

/// Without any work it is over at once, whatever connections are open.
#[tokio::test]
async fn idle_connections_do_not_hold_up_the_end() {
    let leaving = Leaving::new("drain_grace: 10m", 1.0).await;
    let mut idle = Session::open(leaving.address).await;
    idle.call(Call::get("/health")).await.ok();
    let silent = Raw::open(leaving.address).await;
    let mut h2 = crate::support::client::H2::open(leaving.address).await;
    soon("the HTTP/2 connection", h2.sender.ready()).await.unwrap();
    let Leaving { rig, proxy, .. } = leaving;
    let drain = Drain::of(rig, &proxy).await;
    let (_, took) = drain.ended().await;
    // Clients that have to be waited for have 5 s.
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(silent);
}
