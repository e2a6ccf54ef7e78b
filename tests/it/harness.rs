//! A gateway in front of simulated engines, and a client that sees every byte
//! and how a connection ends.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "each topic uses what it needs")]

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use penstock::app::Gateway;
use penstock::config::keys::{self, NewKey};
use penstock::config::watch::Reloader;
use penstock::core::snapshot::Snapshot;
use penstock::sim::server::{Dialect, SimControl, SimHandle, SimOptions, SimServer};
use penstock::telemetry::Telemetry;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Longer than anything here should take, on a loaded machine too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The public model; the engines call it [`ENGINE_MODEL`].
pub(crate) const MODEL: &str = "llama";
/// What engines call the model; clients must never see it.
pub(crate) const ENGINE_MODEL: &str = "engine-side-name";

/// What differs from two vLLM engines with room for 8 sequences each.
pub(crate) struct RigOptions {
    pub(crate) engines: Vec<SimOptions>,
    /// Base URLs of further replicas in the same pool.
    pub(crate) more_replicas: Vec<String>,
    /// Further keys of the pool, in flow style: `max_seqs: 8, engine_buffer: 1`.
    pub(crate) pool: String,
    /// Further sections of the file.
    pub(crate) yaml: String,
    /// Tenants by name, each with one key and every class.
    pub(crate) tenants: Vec<&'static str>,
}

impl Default for RigOptions {
    fn default() -> Self {
        Self {
            engines: vec![engine(), engine()],
            more_replicas: Vec::new(),
            pool: "max_seqs: 8".into(),
            yaml: String::new(),
            tenants: vec!["team"],
        }
    }
}

/// A quick vLLM.
pub(crate) fn engine() -> SimOptions {
    SimOptions { models: vec![ENGINE_MODEL.to_owned()], ..SimOptions::default() }
}

/// A quick TGI.
pub(crate) fn tgi() -> SimOptions {
    SimOptions { dialect: Dialect::Tgi, ..engine() }
}

/// A running gateway and its engines; dropping it stops everything.
pub(crate) struct Rig {
    pub(crate) gateway: Gateway,
    pub(crate) engines: Vec<SimHandle>,
    pub(crate) telemetry: Telemetry,
    pub(crate) keys: Vec<NewKey>,
    pub(crate) folder: TempDir,
}

impl Rig {
    pub(crate) async fn start(options: RigOptions) -> Self {
        let RigOptions { engines: wanted, more_replicas, pool, yaml, tenants } = options;
        let kind = match wanted.first().map(|engine| engine.dialect) {
            Some(Dialect::Tgi) => "tgi",
            _ => "vllm",
        };
        let mut engines = Vec::new();
        for options in wanted {
            engines.push(SimServer::start(options).await.unwrap());
        }
        let urls: Vec<String> = engines.iter().map(SimHandle::url).chain(more_replicas).collect();
        let keys: Vec<NewKey> = (1..=tenants.len()).map(|seed| keys::new(&[seed as u8; 40])).collect();
        let mut text =
            String::from("version: 1\nserver: {listen: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"}\n");
        text.push_str("tenants:\n");
        for (name, key) in tenants.iter().zip(&keys) {
            writeln!(text, "  {name}: {{keys: [{{id: {}, digest: \"{}\"}}]}}", key.id, key.digest).unwrap();
        }
        writeln!(
            text,
            "pools:\n  pool: {{engine: {kind}, models: {{{MODEL}: {ENGINE_MODEL}}}, replicas: {urls:?}, {pool}}}"
        )
        .unwrap();
        text.push_str(&yaml);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("penstock.yaml");
        std::fs::write(&path, &text).unwrap();
        let (reloader, _) = Reloader::start(path).unwrap_or_else(|report| panic!("{report}\n{text}"));
        let telemetry = Telemetry::for_tests();
        let gateway = Gateway::start(reloader, telemetry.clone()).await.unwrap();
        Self { gateway, engines, telemetry, keys, folder }
    }

    pub(crate) fn control(&self, engine: usize) -> SimControl {
        self.engines[engine].control()
    }

    /// The name of an engine's replica in log lines.
    pub(crate) fn replica(&self, engine: usize) -> String {
        format!("pool/{}", self.engines[engine].url())
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.gateway.proxy().gate.snapshot()
    }

    /// Waits until nothing waits or runs, and checks that the books are even.
    pub(crate) async fn settled(&self) {
        eventually("no job is left", || self.snapshot().jobs == 0).await;
        let snapshot = self.snapshot();
        assert_eq!(snapshot.broken_invariants, 0);
        assert!(snapshot.queues.is_empty(), "{snapshot:?}");
        for replica in &snapshot.replicas {
            assert_eq!(
                (replica.running, replica.prefill_tokens, replica.kv_tokens),
                (0, 0, 0),
                "{snapshot:?}"
            );
        }
    }

    /// Log lines with this message.
    pub(crate) fn log(&self, message: &str) -> Vec<Value> {
        let log = self.telemetry.captured_log();
        let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.filter(|line: &Value| line["message"] == message).collect()
    }

    /// The one log line of a request.
    pub(crate) async fn finished(&self, request_id: &str) -> Value {
        let find = || self.log("request finished").into_iter().find(|line| line["request_id"] == request_id);
        eventually("the request's log line", || find().is_some()).await;
        find().unwrap()
    }

    /// What Prometheus would get.
    pub(crate) async fn metrics(&self) -> String {
        let request = "GET /metrics HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n".to_owned();
        let open = Open::send(self.gateway.admin_address(), request.as_bytes()).await.unwrap();
        open.finish().await.text()
    }

    /// The sum of all series of a metric whose labels hold `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = self.metrics().await;
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let rest = series.strip_prefix(name)?;
            (rest.is_empty() || rest.starts_with('{') && rest.contains(labels))
                .then(|| value.parse::<f64>().unwrap())
        });
        values.sum()
    }

    /// Sends a request of the first tenant and reads the whole answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.open(path, body).await.finish().await
    }

    /// Sends a request of the first tenant.
    pub(crate) async fn open(&self, path: &str, body: &Value) -> Open {
        self.open_with(0, path, "", body).await
    }

    /// Sends a request of a tenant with further header lines, each with its
    /// line end.
    pub(crate) async fn open_with(&self, tenant: usize, path: &str, headers: &str, body: &Value) -> Open {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n{body}",
            self.keys[tenant].text,
            body.len(),
        );
        Open::send(self.gateway.address(), request.as_bytes()).await.unwrap()
    }
}

/// Waits for a condition; no condition of a test takes longer than
/// [`PATIENCE`].
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// A chat of `tokens` tokens, no more and no less.
pub(crate) fn chat(tokens: u32, stream: bool) -> Value {
    json!({
        "model": MODEL, "max_tokens": tokens, "ignore_eos": true, "stream": stream,
        "messages": [{"role": "user", "content": "tell me something"}],
    })
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Whole,
    /// Closed before the promised length or the last chunk.
    Short,
    Reset,
    /// The framing is no HTTP.
    Malformed,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) end: End,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn request_id(&self) -> &str {
        self.header("x-request-id").unwrap_or_else(|| panic!("no request id: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The data of each event; what is no JSON comes as a string.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let events = text.split("\n\n").filter_map(|event| {
            let data = event.lines().find_map(|line| line.strip_prefix("data:"))?.trim_start();
            Some(serde_json::from_str(data).unwrap_or_else(|_| data.into()))
        });
        events.collect()
    }
}

/// A request whose answer is being read.
pub(crate) struct Open {
    stream: TcpStream,
    raw: Vec<u8>,
}

impl Open {
    pub(crate) async fn send(address: SocketAddr, request: &[u8]) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(request).await?;
        Ok(Self { stream, raw: Vec::new() })
    }

    /// Reads until the bytes so far hold `needle`.
    pub(crate) async fn until(&mut self, needle: &str) {
        while !String::from_utf8_lossy(&self.raw).contains(needle) {
            assert!(self.read().await.unwrap() > 0, "closed before {needle:?}: {}", self.text());
        }
    }

    /// Reads the answer to its end.
    pub(crate) async fn finish(mut self) -> Reply {
        loop {
            let reply = decode(&self.raw, End::Short);
            if matches!(reply.end, End::Whole | End::Malformed) {
                return reply;
            }
            match self.read().await {
                Ok(0) => return reply,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Reply { end: End::Reset, ..reply };
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.raw).into_owned()
    }

    async fn read(&mut self) -> io::Result<usize> {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.raw)).await;
        read.unwrap_or_else(|_| panic!("the answer hangs: {}", self.text()))
    }
}

/// Reads raw answer bytes; `end` is how they ended if they are not whole.
fn decode(raw: &[u8], end: End) -> Reply {
    let mut reply = Reply { status: 0, headers: Vec::new(), body: Vec::new(), end };
    let mut space = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut space);
    let body = match head.parse(raw) {
        Ok(httparse::Status::Complete(length)) => &raw[length..],
        Ok(httparse::Status::Partial) => return reply,
        Err(_) => return Reply { end: End::Malformed, ..reply },
    };
    reply.status = head.code.unwrap();
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    reply.headers = head.headers.iter().map(|h| (h.name.to_ascii_lowercase(), text(h.value))).collect();
    if reply.header("transfer-encoding") == Some("chunked") {
        dechunk(&mut reply, body);
    } else {
        let length: usize = reply.header("content-length").map_or(0, |length| length.parse().unwrap());
        reply.body = body[..body.len().min(length)].to_vec();
        if body.len() >= length {
            reply.end = End::Whole;
        }
    }
    reply
}

fn dechunk(reply: &mut Reply, mut rest: &[u8]) {
    loop {
        match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete((at, size))) => {
                let size = size as usize;
                if rest.len() < at + size + 2 {
                    return;
                }
                if size == 0 {
                    reply.end = End::Whole;
                    return;
                }
                reply.body.extend_from_slice(&rest[at..at + size]);
                rest = &rest[at + size + 2..];
            }
            Ok(httparse::Status::Partial) => return,
            Err(_) => {
                reply.end = End::Malformed;
                return;
            }
        }
    }
}
