//! A client that sees every byte: heads, chunks, and how a connection ends.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::server::{SimControl, SimHandle, SimOptions, SimServer, SimState};

/// End of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Whole,
    /// The connection closed before the announced length or the last chunk.
    Short,
    Reset,
    /// The framing is no HTTP.
    Malformed,
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) chunks: Vec<Vec<u8>>,
    pub(super) end: End,
}

impl Reply {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn body(&self) -> Vec<u8> {
        self.chunks.concat()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body()).into_owned()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body()).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Data of each event; data that is not JSON becomes a string.
    pub(super) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let events = text.split("\n\n").filter_map(|event| {
            let data = event.lines().find_map(|line| line.strip_prefix("data:"))?.trim_start();
            Some(serde_json::from_str(data).unwrap_or_else(|_| data.into()))
        });
        events.collect()
    }
}

/// Reads raw response bytes, as from a fixture or a socket.
pub(super) fn decode(raw: &[u8], ended: Result<(), io::ErrorKind>) -> Reply {
    let mut reply = Reply { status: 0, headers: Vec::new(), chunks: Vec::new(), end: End::Short };
    if ended == Err(io::ErrorKind::ConnectionReset) {
        reply.end = End::Reset;
    }
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
        reply.chunks.push(body[..body.len().min(length)].to_vec());
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
                reply.chunks.push(rest[at..at + size].to_vec());
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

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// An open request.
pub(super) struct Open {
    stream: TcpStream,
    pub(super) raw: Vec<u8>,
}

impl Open {
    pub(super) async fn send(addr: SocketAddr, request: &[u8]) -> io::Result<Self> {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(request).await?;
        Ok(Self { stream, raw: Vec::new() })
    }

    /// Sends another request on the same connection.
    pub(super) async fn again(&mut self, request: &[u8]) -> io::Result<()> {
        self.raw.clear();
        self.stream.write_all(request).await
    }

    /// Reads until the bytes so far hold `needle`.
    pub(super) async fn until(&mut self, needle: &str) {
        let holds = |raw: &[u8]| String::from_utf8_lossy(raw).contains(needle);
        while !holds(&self.raw) {
            let read = timeout(PATIENCE, self.stream.read_buf(&mut self.raw)).await;
            let read = read.unwrap_or_else(|_| panic!("no {needle:?} in {:?}", self.text()));
            assert!(read.unwrap() > 0, "closed before {needle:?}: {:?}", self.text());
        }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.raw).into_owned()
    }

    /// Whether no byte arrives for a while.
    pub(super) async fn is_silent(&mut self) -> bool {
        timeout(Duration::from_millis(100), self.stream.read_buf(&mut self.raw)).await.is_err()
    }

    /// Reads to the end of the connection.
    pub(super) async fn end(mut self) -> Reply {
        let read = timeout(PATIENCE, self.stream.read_to_end(&mut self.raw)).await;
        let ended = read.unwrap_or_else(|_| panic!("still open: {:?}", self.text()));
        decode(&self.raw, ended.map(|_| ()).map_err(|error| error.kind()))
    }
}

pub(super) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: engine\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

pub(super) const CLOSE: &str = "Connection: close\r\nContent-Type: application/json\r\n";

pub(super) async fn get(addr: SocketAddr, path: &str) -> Reply {
    Open::send(addr, &request("GET", path, CLOSE, b"")).await.unwrap().end().await
}

pub(super) async fn open(addr: SocketAddr, path: &str, body: &Value) -> Open {
    Open::send(addr, &request("POST", path, CLOSE, body.to_string().as_bytes())).await.unwrap()
}

pub(super) async fn post(addr: SocketAddr, path: &str, body: &Value) -> Reply {
    open(addr, path, body).await.end().await
}

/// A chat of exactly `tokens` output tokens.
pub(super) fn chat(tokens: u32, stream: bool) -> Value {
    json!({
        "model": "tiny", "messages": [{"role": "user", "content": "kalo mine pura."}],
        "max_tokens": tokens, "ignore_eos": true, "stream": stream
    })
}

pub(super) fn options() -> SimOptions {
    let mut options = SimOptions {
        models: vec!["tiny".into(), "tiny-alias".into()],
        max_model_len: 2048,
        ..SimOptions::default()
    };
    options.engine.max_seqs = Some(4);
    options
}

/// The same with 10 ms for each token: what runs at the start of a test runs until its end.
pub(super) fn slow() -> SimOptions {
    SimOptions { speed: 0.05, ..options() }
}

pub(super) async fn start(options: SimOptions) -> SimHandle {
    SimServer::start(options).await.unwrap()
}

/// Waits until the engine is in a state.
pub(super) async fn reach(control: &SimControl, what: &str, wanted: impl Fn(&SimState) -> bool) {
    let waiting = async {
        while !wanted(&control.state()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if timeout(PATIENCE, waiting).await.is_err() {
        panic!("never reached: {what}; {:?}", control.state());
    }
}

pub(super) fn fixture(name: &str) -> (Vec<u8>, Reply) {
    let path = format!("{}/../../tests/fixtures/vllm/{name}.http", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mark = b">>>>\n";
    let (request, response) = match bytes.windows(mark.len()).position(|window| window == mark) {
        Some(at) => (bytes[..at].to_vec(), &bytes[at + mark.len()..]),
        None => (Vec::new(), &bytes[..]),
    };
    (request, decode(response, Ok(())))
}

/// Sends the fixture's own request; gives the answer and the recorded one.
pub(super) async fn replay(addr: SocketAddr, name: &str) -> (Reply, Reply) {
    let (request, recorded) = fixture(name);
    let text = String::from_utf8_lossy(&request).into_owned();
    let request = match text.split_once("\n\n") {
        // Recorded heads have bare line feeds; a body follows the blank line.
        Some((head, _)) if !text.contains('\r') => {
            let at = head.len() + 2;
            let mut bytes = head.replace('\n', "\r\n").into_bytes();
            bytes.extend_from_slice(b"\r\n\r\n");
            let length = recorded_length(head);
            bytes.extend_from_slice(&request[at..(at + length).min(request.len())]);
            bytes
        }
        _ => request,
    };
    (Open::send(addr, &request).await.unwrap().end().await, recorded)
}

fn recorded_length(head: &str) -> usize {
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    length.map_or(0, |length| length.trim().parse().unwrap())
}

/// Whether the next request is served as usual.
pub(super) async fn recovers(engine: &SimHandle) {
    let reply = post(engine.addr, "/v1/chat/completions", &chat(20, true)).await;
    assert_eq!((reply.status, reply.end), (200, End::Whole));
    assert!(reply.text().contains("\"finish_reason\":\"length\""));
    reach(&engine.control(), "empty", |state| state.inside == 0 && state.running == 0).await;
}

pub(super) fn has_done(reply: &Reply) -> bool {
    reply.events().last() == Some(&json!("[DONE]"))
}
