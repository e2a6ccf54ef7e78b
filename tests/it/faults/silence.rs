//! Stalls and slow requests: the requests that leave an engine, those that stay, and the effect on
//! other requests. The engines are the test's own: each does what a word in the prompt says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::client::{Answer, Call, Session};
use crate::support::gateway::{MODEL, PATIENCE, Rig, RigOptions, TENANT, until};

const CHAT: &str = "/v1/chat/completions";
const OTHER: &str = "beta";
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// What the gateway thinks of the engines' gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gauges {
    /// There are none.
    Absent,
    /// They move all the time.
    Moving,
    /// They stand still once the engine has frozen.
    Honest,
}

#[derive(Debug)]
struct State {
    gauges: Gauges,
    begun: Instant,
    frozen: AtomicBool,
    /// The bodies of the requests that it was sent.
    bodies: Mutex<Vec<String>>,
}

/// An engine that obeys its requests.
struct Engine {
    url: String,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Engine {
    async fn start(gauges: Gauges) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let frozen = AtomicBool::new(false);
        let state = State { gauges, begun: Instant::now(), frozen, bodies: Mutex::default() };
        let state = Arc::new(state);
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                tokio::spawn(async move { _ = state.serve(socket).await });
            }
        });
        Self { url, state, accepting }
    }

    /// How often it was sent a request with this word.
    fn sent(&self, word: &str) -> usize {
        self.state.bodies.lock().iter().filter(|body| body.contains(word)).count()
    }
}

/// The number behind a word such as `pause-`.
fn number(body: &str, word: &str) -> Option<u64> {
    let rest = body.split(word).nth(1)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl State {
    async fn serve(&self, mut socket: TcpStream) -> std::io::Result<()> {
        let (mut all, mut some) = (Vec::new(), [0; 4096]);
        let (head, body) = loop {
            let read = socket.read(&mut some).await?;
            if read == 0 {
                return Ok(());
            }
            all.extend_from_slice(&some[..read]);
            let text = String::from_utf8_lossy(&all).to_ascii_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = number(head, "content-length: ").unwrap_or(0);
            if body.len() as u64 >= length {
                break (head.to_owned(), body.to_owned());
            }
        };
        if head.starts_with("get /metrics") {
            return self.tell_gauges(&mut socket).await;
        }
        if !head.starts_with("post /v1/") {
            return plain(&mut socket, 200, "{}").await;
        }
        self.bodies.lock().push(body.clone());
        if body.contains("reset") {
            return Ok(());
        }
        if body.contains("busy") {
            return plain(&mut socket, 503, "{}").await;
        }
        if body.contains("hang") {
            return self.wait(3_600_000).await;
        }
        match body.contains("\"stream\":true") {
            true => self.stream(&mut socket, &body).await,
            false => {
                self.wait(number(&body, "plain-").unwrap_or(5)).await?;
                plain(&mut socket, 200, &answer()).await
            }
        }
    }

    async fn tell_gauges(&self, socket: &mut TcpStream) -> std::io::Result<()> {
        let frozen = self.gauges == Gauges::Honest && self.frozen.load(Ordering::Relaxed);
        let count = if frozen { 0 } else { self.begun.elapsed().as_millis() };
        match self.gauges {
            Gauges::Absent => plain(socket, 404, "{}").await,
            _ => plain(socket, 200, &format!("vllm:generation_tokens_total {count}\n")).await,
        }
    }

    async fn stream(&self, socket: &mut TcpStream, body: &str) -> std::io::Result<()> {
        let chats = body.contains("messages");
        let choices = if body.contains("pair") { 2 } else { 1 };
        let tokens = number(body, "tokens-").unwrap_or(3);
        let (pause, gap) = (number(body, "pause-").unwrap_or(0), number(body, "gap-").unwrap_or(5));
        socket.write_all(STREAM.as_bytes()).await?;
        self.wait(number(body, "first-after-").unwrap_or(5)).await?;
        for token in 0..tokens {
            for choice in 0..choices {
                socket.write_all(event(chats, choice, None).as_bytes()).await?;
            }
            self.wait(if token == 0 { pause.max(gap) } else { gap }).await?;
        }
        for choice in 0..choices {
            socket.write_all(event(chats, choice, Some("stop")).as_bytes()).await?;
        }
        socket.write_all(b"data: [DONE]\n\n").await
    }

    /// Waits, and for as long as the engine is frozen.
    async fn wait(&self, millis: u64) -> std::io::Result<()> {
        sleep(Duration::from_millis(millis)).await;
        while self.frozen.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

fn event(chats: bool, choice: u32, finish: Option<&str>) -> String {
    let mut choice = json!({"index": choice, "finish_reason": finish});
    match chats {
        true => choice["delta"] = json!({"content": "w "}),
        false => choice["text"] = "w ".into(),
    }
    let event = json!({"id": "a", "object": "x", "created": 1, "model": MODEL, "choices": [choice]});
    format!("data: {event}\n\n")
}

fn answer() -> String {
    let choice =
        json!({"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "w"}});
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4});
    json!({"id": "a", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice], "usage": usage})
        .to_string()
}

async fn plain(socket: &mut TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} Word\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all((head + body).as_bytes()).await
}

/// A gateway before engines that have answered before.
struct World {
    rig: Rig,
    engines: Vec<Engine>,
    begun: Instant,
}

impl World {
    async fn start(engines: usize, gauges: Gauges, more: &str) -> Self {
        let mut started = Vec::new();
        for _ in 0..engines {
            started.push(Engine::start(gauges).await);
        }
        let options = RigOptions {
            urls: started.iter().map(|engine| engine.url.clone()).collect(),
            pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 8\nscrape_interval: 500ms"),
            tenants: vec![(TENANT, ""), (OTHER, "")],
            more: more.to_owned(),
            ..RigOptions::default()
        };
        let world = Self { rig: Rig::start(options).await, engines: started, begun: Instant::now() };
        for _ in 0..2 * engines {
            assert!(world.ask(OTHER, "hello", true).send(world.to()).await.is_done());
        }
        world
    }

    fn to(&self) -> SocketAddr {
        self.rig.address()
    }

    fn ask(&self, tenant: &str, words: &str, stream: bool) -> Call {
        let body = json!({
            "model": MODEL, "stream": stream, "messages": [{"role": "user", "content": words}],
        });
        Call::post(CHAT, &body).key(self.rig.key(tenant))
    }

    fn send(&self, call: Call) -> JoinHandle<Answer> {
        let to = self.to();
        tokio::spawn(async move { call.send(to).await })
    }

    fn sent(&self, word: &str) -> Vec<usize> {
        self.engines.iter().map(|engine| engine.sent(word)).collect()
    }

    fn log(&self, message: &str) -> usize {
        let log = self.rig.telemetry.captured_log();
        log.lines().filter(|line| line.contains(&format!("\"message\":\"{message}\""))).count()
    }

    /// Nobody was blamed, and nothing is left.
    async fn ends_well(self) {
        assert_eq!(self.log("replica ejected"), 0);
        self.rig.emptied_within(PATIENCE).await;
        assert_eq!(self.rig.snapshot().broken_invariants, 0);
    }

    /// Another tenant is served, and waits for less than a second, for as long as `call` runs.
    async fn serves_others_during<T>(&self, call: &JoinHandle<T>) {
        while !call.is_finished() {
            let id = format!("other-{}", self.begun.elapsed().as_millis());
            let hello = self.ask(OTHER, "hello", true).header("x-request-id", &id);
            assert!(hello.send(self.to()).await.is_done());
            let waited = self.rig.line_of(&id).await["queue_ms"].as_f64().unwrap();
            assert!(waited < 1000.0, "waited {waited} ms");
            sleep(Duration::from_millis(200)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_slow_everywhere_is_served_and_blames_no_engine() {
    let world = World::start(2, Gauges::Absent, "").await;
    let slow = world.send(world.ask(TENANT, "first-after-8000", true));
    world.serves_others_during(&slow).await;
    assert!(slow.await.unwrap().is_done());
    let sent: usize = world.sent("first-after").iter().sum();
    assert!(sent <= 3, "{sent}");
    // Sent again, with nobody else there, it stays where it comes first.
    assert!(world.ask(TENANT, "first-after-8000", true).send(world.to()).await.is_done());
    let again: usize = world.sent("first-after").iter().sum();
    assert!(again - sent <= if sent == 3 { 1 } else { 3 }, "{sent} {again}");
    world.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_choices_prompts_and_pauses_are_no_silence() {
    let world = World::start(2, Gauges::Absent, "").await;
    let pair = json!({
        "model": MODEL, "stream": true, "n": 2,
        "messages": [{"role": "user", "content": "pair tokens-60 gap-60"}],
    });
    let calls = [
        (CHAT, pair),
        (
            "/v1/completions",
            json!({"model": MODEL, "stream": true, "prompt": ["pair tokens-60 gap-60", "and another"]}),
        ),
    ];
    let calls = calls.map(|(path, body)| world.send(Call::post(path, &body).key(world.rig.key(TENANT))));
    // An engine that holds a tool call back says nothing meanwhile.
    let tool = world.send(world.ask(TENANT, "pause-3000", true));
    world.serves_others_during(&tool).await;
    for call in calls {
        assert!(call.await.unwrap().is_done());
    }
    assert!(tool.await.unwrap().is_done());
    assert_eq!(world.sent("pair").iter().sum::<usize>(), 2);
    assert_eq!(world.sent("pause").iter().sum::<usize>(), 1);
    world.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_an_engine_whose_gauges_move_may_all_pause() {
    let world = World::start(2, Gauges::Moving, "").await;
    let calls: Vec<_> = (0..6).map(|_| world.send(world.ask(TENANT, "pause-3000", true))).collect();
    world.serves_others_during(&calls[5]).await;
    for call in calls {
        assert!(call.await.unwrap().is_done());
    }
    assert_eq!(world.sent("pause").iter().sum::<usize>(), 6);
    world.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_engine_is_left_in_seconds_and_what_cannot_go_on_is_told() {
    let world = World::start(2, Gauges::Honest, "").await;
    let pair = json!({
        "model": MODEL, "stream": true, "n": 2,
        "messages": [{"role": "user", "content": "pair tokens-600 gap-20"}],
    });
    let begun = Arc::<AtomicUsize>::default();
    let call = || {
        let (call, to) = (Call::post(CHAT, &pair).key(world.rig.key(TENANT)), world.to());
        let begun = Arc::clone(&begun);
        tokio::spawn(async move {
            let mut session = Session::open(to).await;
            // The head comes with the first token.
            let answer = session.begin(call).await.unwrap();
            begun.fetch_add(1, Ordering::Relaxed);
            Answer::of(answer).await
        })
    };
    let streams: Vec<_> = (0..4).map(|_| call()).collect();
    until("all have a token", || begun.load(Ordering::Relaxed) == 4).await;
    assert_eq!(world.sent("pair"), [2, 2]);
    world.engines[0].state.frozen.store(true, Ordering::Relaxed);
    let frozen = Instant::now();
    until("the ejection", || world.log("replica ejected") > 0).await;
    assert!(frozen.elapsed() < Duration::from_secs(15), "{:?}", frozen.elapsed());
    let broken = async {
        let mut broken = 0;
        for stream in streams {
            let answer = stream.await.unwrap();
            let ended = answer.text().contains("upstream_broken") && !answer.text().contains("[DONE]");
            assert!(ended || answer.is_done());
            broken += usize::from(ended);
        }
        broken
    };
    let broken = timeout(Duration::from_secs(60), broken).await.unwrap();
    assert_eq!(broken, 2);
    world.engines[0].state.frozen.store(false, Ordering::Relaxed);
    world.rig.emptied_within(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_answer_may_take_longer_than_a_first_token() {
    // Long enough for the others on a machine that is busy otherwise, too.
    let world = World::start(2, Gauges::Absent, "upstream: {first_token_timeout: 2s}\n").await;
    let call = world.send(world.ask(TENANT, "plain-4000", false));
    world.serves_others_during(&call).await;
    let answer = call.await.unwrap();
    assert_eq!((answer.status, world.sent("plain").iter().sum::<usize>()), (200, 1), "{answer:?}");
    world.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_answer_over_its_limit_is_tried_once_and_blames_nobody() {
    let world = World::start(2, Gauges::Absent, "upstream: {answer_timeout: 700ms}\n").await;
    let call = world.send(world.ask(TENANT, "plain-20000", false));
    world.serves_others_during(&call).await;
    let answer = call.await.unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (504, "answer_timeout"));
    assert_eq!(answer.header("x-should-retry"), "false");
    assert_eq!(world.sent("plain").iter().sum::<usize>(), 1);
    world.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_are_busy_for_the_whole_wait_are_asked_rarely() {
    let more = "classes: {interactive: {max_wait: 4s}, standard: {max_wait: 4s}}\n";
    let world = World::start(3, Gauges::Absent, more).await;
    let begun = Instant::now();
    let answer = world.ask(TENANT, "busy", true).send(world.to()).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "slow_down"));
    assert!(!answer.header("retry-after").is_empty() && answer.header("x-should-retry") == "true");
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(world.sent("busy").iter().all(|sent| (1..=5).contains(sent)), "{:?}", world.sent("busy"));
    world.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_the_client_named_is_answered_before_it_gives_up() {
    let world = World::start(2, Gauges::Absent, "").await;
    for stream in [true, false] {
        let begun = Instant::now();
        let call = world.ask(TENANT, "hang", stream).header("x-stainless-read-timeout", "4");
        let answer = call.send(world.to()).await;
        assert_eq!((answer.status, answer.code().as_str()), (504, "deadline_unmeetable"));
        // 3.8 s and what the machine needs.
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(3_700) && took < Duration::from_secs(10), "{took:?}");
    }
    world.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_resets_gets_a_request_twice_at_most() {
    let world = World::start(3, Gauges::Absent, "retry: {max_attempts: 9}\n").await;
    let answer = timeout(PATIENCE, world.ask(TENANT, "reset", true).send(world.to())).await.unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (502, "upstream_failed"));
    assert!(world.sent("reset").iter().all(|sent| *sent <= 2), "{:?}", world.sent("reset"));
    world.rig.emptied_within(PATIENCE).await;
}
