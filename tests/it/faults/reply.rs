//! Byte-level client: every byte of an answer, and the end of its connection.

use std::io;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::support::gateway::PATIENCE;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Whole,
    /// Closed before the promised length or the last chunk.
    Short,
    Reset,
    /// The framing is no HTTP.
    Malformed,
}

/// An answer as it came.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) end: End,
}

impl Reply {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn request_id(&self) -> &str {
        self.header("x-request-id").unwrap_or_else(|| panic!("no request id: {self:?}"))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The data of each event; what is no JSON comes as a string.
    pub(super) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let events = text.split("\n\n").filter_map(|event| {
            let data = event.lines().find_map(|line| line.strip_prefix("data:"))?.trim_start();
            Some(serde_json::from_str(data).unwrap_or_else(|_| data.into()))
        });
        events.collect()
    }
}

/// A request whose answer is being read.
pub(super) struct Open {
    stream: TcpStream,
    raw: Vec<u8>,
    /// Nothing hangs for longer, whatever dribbles in.
    deadline: Instant,
}

impl Open {
    pub(super) async fn send(address: SocketAddr, request: &[u8]) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(request).await?;
        Ok(Self { stream, raw: Vec::new(), deadline: Instant::now() + 2 * PATIENCE })
    }

    /// Reads until the bytes so far hold `needle`.
    pub(super) async fn until(&mut self, needle: &str) {
        while !String::from_utf8_lossy(&self.raw).contains(needle) {
            assert!(self.read().await.unwrap() > 0, "closed before {needle:?}: {}", self.text());
        }
    }

    /// Reads the answer to its end.
    pub(super) async fn finish(mut self) -> Reply {
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

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.raw).into_owned()
    }

    async fn read(&mut self) -> io::Result<usize> {
        let read = timeout_at(self.deadline, self.stream.read_buf(&mut self.raw)).await;
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
