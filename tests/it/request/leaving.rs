//! Clients that leave, in every phase of their request and in every way. Nothing of them may stay:
//! not in the queue, not in a ledger, not among the held bodies, not in an engine.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Response;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimHandle, SimOptions, SimServer};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::client::{Call, H2, Raw, in_pieces};
use crate::support::gateway::{Rig, RigOptions, TENANT, chat, pool_lines, soon};

const CHAT: &str = "/v1/chat/completions";
const CLIENTS: u64 = 2_000;
/// Clients that are there at once.
const AT_ONCE: usize = 200;

/// Where in its life a request loses its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// In the middle of the head: this is no request yet.
    Head,
    /// In the middle of the body.
    Body,
    /// Some time after the request was sent: in the queue, or before the
    /// first token.
    Waiting,
    /// While the gateway connects to an engine that does not take it.
    Connecting,
    /// In the middle of a stream.
    Streaming,
    /// Some time after a request for a plain answer.
    Plain,
    /// With `[DONE]` in hand.
    Done,
    /// HTTP/2: in the middle of the body.
    H2Body,
    /// HTTP/2: the stream is reset, or the whole connection closed, before or
    /// after the first token.
    H2,
}

const PHASES: [Phase; 9] = [
    Phase::Head,
    Phase::Body,
    Phase::Waiting,
    Phase::Connecting,
    Phase::Streaming,
    Phase::Plain,
    Phase::Done,
    Phase::H2Body,
    Phase::H2,
];

/// Numbers that look random and are the same in every run.
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_micros(self.below(bound * 1000))
    }
}

/// What a client knows of its request when it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// The gateway cannot have taken it for a request.
    Nothing,
    /// The gateway may have begun it.
    Maybe,
    /// The gateway has answered something.
    Begun,
    /// The whole answer came.
    Done,
}

struct Guest {
    id: String,
    call: Call,
    dice: Dice,
    to: SocketAddr,
}

impl Guest {
    async fn run(mut self, phase: Phase) -> Seen {
        match phase {
            Phase::Head => self.head().await,
            Phase::Body => self.body().await,
            Phase::Waiting | Phase::Connecting | Phase::Plain => self.waiting().await,
            Phase::Streaming => self.streaming().await,
            Phase::Done => self.done().await,
            Phase::H2Body => self.h2_body().await,
            Phase::H2 => self.h2().await,
        }
    }

    /// FIN or reset.
    fn leave(&mut self, client: Raw) {
        if self.dice.coin() {
            client.reset();
        }
    }

    async fn head(&mut self) -> Seen {
        let mut client = Raw::open(self.to).await;
        let bytes = self.call.bytes();
        let head = bytes.len() - self.call.body.len();
        let cut = 1 + self.dice.below(head as u64 - 1);
        client.write(&bytes[..usize::try_from(cut).unwrap()]).await.unwrap();
        sleep(self.dice.millis(5)).await;
        self.leave(client);
        Seen::Nothing
    }

    /// A client whose body the gateway has begun to read: `100 Continue` says so.
    async fn before_the_body(&self) -> Raw {
        let mut client = Raw::open(self.to).await;
        let call = self.call.clone().header("expect", "100-continue");
        let bytes = call.bytes();
        let head = bytes.len() - call.body.len();
        client.write(&bytes[..head]).await.unwrap();
        soon("100", client.read_past("\r\n\r\n")).await.unwrap();
        client
    }

    async fn body(&mut self) -> Seen {
        let mut client = self.before_the_body().await;
        let call = self.call.clone();
        let cut = self.dice.below(call.body.len() as u64);
        client.write(&call.body[..usize::try_from(cut).unwrap()]).await.unwrap();
        sleep(self.dice.millis(20)).await;
        self.leave(client);
        Seen::Begun
    }

    /// The patience begins when the gateway has the head, however busy the machine is.
    async fn waiting(&mut self) -> Seen {
        let mut client = self.before_the_body().await;
        client.write(&self.call.body).await.unwrap();
        let patience = self.dice.millis(300);
        let head = timeout(patience, client.read_past("\r\n\r\n")).await;
        assert!(!matches!(head, Ok(None)), "{}: the gateway hung up", self.id);
        self.leave(client);
        Seen::Begun
    }

    async fn streaming(&mut self) -> Seen {
        let mut client = Raw::open(self.to).await;
        client.write(self.call.bytes()).await.unwrap();
        let head = soon("a head", client.read_past("\r\n\r\n")).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        for _ in 0..self.dice.below(10) {
            soon("an event", client.read_past("\n\n")).await.unwrap();
        }
        self.leave(client);
        Seen::Begun
    }

    async fn done(&mut self) -> Seen {
        let mut client = Raw::open(self.to).await;
        client.write(self.call.bytes()).await.unwrap();
        soon("[DONE]", client.read_past("[DONE]")).await.unwrap();
        self.leave(client);
        Seen::Done
    }

    async fn h2_body(&mut self) -> Seen {
        let (sender, body) = in_pieces();
        let mut h2 = H2::open(self.to).await;
        let cut = usize::try_from(self.dice.below(self.call.body.len() as u64)).unwrap();
        sender.send(Ok(Frame::data(self.call.body.slice(..cut)))).await.unwrap();
        let answer = tokio::spawn(h2.sender.send_request(self.call.clone().http2(body)));
        sleep(self.dice.millis(30)).await;
        if self.dice.coin() {
            // The body fails, which resets the stream.
            let _gone = sender.send(Err(std::io::ErrorKind::Interrupted.into())).await;
            let _reset = soon("the reset", answer).await;
        } else {
            answer.abort();
        }
        Seen::Maybe
    }

    async fn h2(&mut self) -> Seen {
        let mut h2 = H2::open(self.to).await;
        let body = Full::new(self.call.body.clone()).map_err(|never| match never {});
        let answer = h2.sender.send_request(self.call.clone().http2(BoxBody::new(body)));
        let patience = self.dice.millis(400);
        match timeout(patience, answer).await {
            // Dropping the answer's future resets its stream.
            Err(_) => {
                if self.dice.coin() {
                    sleep(self.dice.millis(20)).await;
                }
                Seen::Maybe
            }
            Ok(answer) => {
                let mut answer: Response<Incoming> = answer.unwrap();
                assert_eq!(answer.status(), 200);
                for _ in 0..self.dice.below(8) {
                    let _event = soon("a frame", answer.frame()).await;
                }
                drop(answer);
                if self.dice.coin() {
                    sleep(self.dice.millis(20)).await;
                }
                Seen::Begun
            }
        }
    }
}

/// An address where a connection neither comes about nor fails: a listener
/// that accepts nobody and whose queue is full.
struct Hole {
    url: String,
    _listener: tokio::net::TcpListener,
    _queued: Vec<TcpStream>,
}

impl Hole {
    async fn dig() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        Self { url: format!("http://{address}"), _listener: listener, _queued: queued }
    }
}

/// Panics outside of the tests themselves.
fn panics() -> Arc<AtomicUsize> {
    static PANICS: std::sync::OnceLock<Arc<AtomicUsize>> = std::sync::OnceLock::new();
    let counter = PANICS.get_or_init(|| {
        let counter = Arc::new(AtomicUsize::new(0));
        let (count, before) = (Arc::clone(&counter), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            let of_a_test = info.location().is_some_and(|at| at.file().contains("tests/"));
            count.fetch_add(usize::from(!of_a_test), Ordering::SeqCst);
            before(info);
        }));
        counter
    });
    Arc::clone(counter)
}

/// A slow engine that serves the model `narrow`.
async fn narrow_engine() -> SimHandle {
    let options = SimOptions { models: vec!["narrow".to_owned()], ..SimOptions::default() };
    let engine = SimServer::start(options).await.unwrap();
    engine.control().add(FaultKind::Slow { factor: 10.0 }).unwrap();
    engine
}

async fn crowded_rig(hole: &Hole, narrow: &SimHandle) -> Rig {
    let engine = |seed| SimOptions { seed, ..SimOptions::default() };
    let narrow = [format!("http://{}", narrow.addr)];
    let rig = Rig::start(RigOptions {
        engines: (1..=3).map(engine).collect(),
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 16"),
        // One place, for which a dozen clients wait at any time.
        more_pools: pool_lines("hole", "engine: vllm\nmodels: [hole]", std::slice::from_ref(&hole.url))
            + &pool_lines("narrow", "engine: vllm\nmodels: [narrow]\nmax_seqs: 1", &narrow),
        // The hole stays a replica that is worth a try.
        more: "upstream: {connect_timeout: 1m}\nclasses: {standard: {max_wait: 5m}}\n".to_owned(),
        ..RigOptions::default()
    })
    .await;
    // 5 ms a token: streams are slow enough to be left.
    for number in 0..3 {
        rig.engine(number).add(FaultKind::Slow { factor: 10.0 }).unwrap();
    }
    rig
}

fn guest(rig: &Rig, number: u64, phase: Phase) -> Guest {
    let mut dice = Dice(number);
    let stream = !matches!(phase, Phase::Plain);
    let tokens = if phase == Phase::Done { 3 } else { 20 + dice.below(60) };
    let mut body = chat(u32::try_from(tokens).unwrap(), stream);
    if phase == Phase::Connecting {
        body["model"] = json!("hole");
    }
    if phase == Phase::Waiting && number.is_multiple_of(2) {
        body["model"] = json!("narrow");
    }
    let id = format!("leave-{number}");
    let call = Call::post(CHAT, &body).key(rig.key(TENANT)).header("x-request-id", &id);
    Guest { id, call, dice, to: rig.address() }
}

/// The number of lines of each request, none of which failed.
fn lines_by_id(lines: &[serde_json::Value]) -> HashMap<&str, usize> {
    let mut by_id: HashMap<&str, usize> = HashMap::new();
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines {
        *by_id.entry(line["request_id"].as_str().unwrap()).or_default() += 1;
        let (outcome, usage) = (line["outcome"].as_str().unwrap(), line["usage"].as_str().unwrap());
        assert!(["exact", "partial", "unknown"].contains(&usage), "{line}");
        assert!(["success", "client_gone"].contains(&outcome), "{line}");
        *ends.entry(format!("{outcome} {usage}")).or_default() += 1;
    }
    println!("{ends:?}");
    by_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_clients_leave_and_nothing_stays() {
    let panics = panics();
    let hole = Hole::dig().await;
    let narrow = narrow_engine().await;
    let rig = crowded_rig(&hole, &narrow).await;
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut guests = JoinSet::new();
    for number in 0..CLIENTS {
        let phase = PHASES[usize::try_from(number).unwrap() % PHASES.len()];
        let guest = guest(&rig, number, phase);
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        guests.spawn(async move {
            let id = guest.id.clone();
            let seen = guest.run(phase).await;
            drop(place);
            (id, phase, seen)
        });
    }
    let seen = guests.join_all().await;
    let last_left = Instant::now();
    // Sooner than any limit of time would end what a client left.
    rig.emptied_within(Duration::from_secs(10)).await;
    println!("empty {:?} after the last client left", last_left.elapsed());

    let lines = rig.finished();
    let by_id = lines_by_id(&lines);
    let mut missing = 0;
    for (id, phase, seen) in &seen {
        let count = by_id.get(id.as_str()).copied().unwrap_or_default();
        match seen {
            Seen::Nothing => assert_eq!(count, 0, "{id} {phase:?}"),
            Seen::Maybe => assert!(count <= 1, "{id} {phase:?}: {count}"),
            // Of clients that leave before their request is read only the first in a second have a line.
            Seen::Begun => missing += 1 - count,
            Seen::Done => assert_eq!(count, 1, "{id} {phase:?}"),
        }
    }
    let kept_back = rig.metric("penstock_log_lines_kept_back_total").await as usize;
    assert!(missing <= kept_back, "{missing} lines are missing, {kept_back} were kept back");
    for (id, _, _) in seen.iter().filter(|(_, _, seen)| *seen == Seen::Done) {
        let line = lines.iter().find(|line| line["request_id"] == id.as_str()).unwrap();
        assert_eq!((&line["outcome"], &line["usage"]), (&json!("success"), &json!("exact")), "{line}");
    }
    // The gateway's own count of jobs says the same as the log.
    let jobs = lines.iter().filter(|line| line["class"].is_string()).count();
    assert_eq!(rig.gateway.proxy().dispatcher.next_job_id().index() - 1, jobs);
    assert_eq!(rig.metric("penstock_requests_total").await as usize, lines.len() + kept_back);
    // Each moment in which the engine had work is on some request's bill.
    let busy: f64 = rig.snapshot().pools.iter().map(|pool| pool.times.busy.as_secs_f64()).sum();
    let billed = rig.metric("penstock_gpu_seconds_total").await;
    assert!(busy > 0.0 && (busy - billed).abs() < 1e-6, "{busy} s of work, {billed} s on bills");

    assert_eq!(rig.snapshot().broken_invariants, 0);
    assert_eq!(panics.load(Ordering::SeqCst), 0);
    every_phase_was_met(&lines);
    // And it still works.
    assert!(rig.post(CHAT, &chat(3, true)).await.is_done());
    soon("the end of the clients' connections", async {
        while rig.metric("penstock_open_connections").await > 0.0 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Whether the test did what it is for: requests were left in every phase.
fn every_phase_was_met(lines: &[Value]) {
    let gone = |line: &&Value| line["outcome"] == "client_gone";
    let count = |is: &dyn Fn(&Value) -> bool| lines.iter().filter(gone).filter(|line| is(line)).count();
    let left = [
        ("in the body", count(&|line| line["class"].is_null())),
        ("in the queue", count(&|line| line["class"].is_string() && line["attempts"] == 0)),
        ("connecting", count(&|line| line["model"] == "hole" && line["attempts"] == 1)),
        (
            "before the first token",
            count(&|line| line["model"] != "hole" && line["attempts"] == 1 && line["ttft_ms"].is_null()),
        ),
        ("in the stream", count(&|line| line["usage"] == "partial")),
        ("a plain answer", count(&|line| line["stream"] == false && line["attempts"] == 1)),
    ];
    println!("{left:?}");
    for (phase, count) in left {
        assert!(count >= 10, "only {count} clients left {phase}");
    }
}
