//! Recorder: a proxy between gateway and engine that keeps every byte.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes bytes on to an engine.
pub(crate) struct Tap {
    pub(crate) url: String,
    wires: Arc<Mutex<Vec<Wire>>>,
    passing: JoinHandle<()>,
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.passing.abort();
    }
}

/// What went over one connection.
#[derive(Debug, Default, Clone)]
struct Wire {
    up: Vec<u8>,
    down: Vec<u8>,
}

/// One request, and the answer as far as it came.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Number of its connection.
    pub(crate) wire: usize,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The request's body.
    pub(crate) body: Vec<u8>,
    /// The answer's body, without its framing.
    pub(crate) answer: Vec<u8>,
}

impl Tap {
    pub(crate) async fn before(engine: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let wires = Arc::new(Mutex::new(Vec::new()));
        let passing = tokio::spawn(accept(listener, engine, Arc::clone(&wires)));
        Self { url, wires, passing }
    }

    /// Every POST so far, in the order of connections.
    pub(crate) fn posts(&self) -> Vec<Exchange> {
        let wires = self.wires.lock().clone();
        let mut posts = Vec::new();
        for (number, wire) in wires.iter().enumerate() {
            let (mut up, mut down) = (&wire.up[..], &wire.down[..]);
            while let Some((request, rest)) = message(up, false) {
                let (answer, left) = message(down, true).unwrap_or_default();
                (up, down) = (rest, left);
                let (method, path) = request.start.split_once(' ').unwrap();
                if method == "POST" {
                    posts.push(Exchange {
                        wire: number,
                        path: path.to_owned(),
                        headers: request.headers,
                        body: request.body,
                        answer: answer.body,
                    });
                }
            }
        }
        posts
    }

    /// The only POST for `path`.
    pub(crate) fn only_post(&self, path: &str) -> Exchange {
        let mut posts = self.posts();
        posts.retain(|post| post.path == path);
        assert_eq!(posts.len(), 1, "{path}: {posts:?}");
        posts.remove(0)
    }

    /// The last POST.
    pub(crate) fn last_post(&self) -> Exchange {
        self.posts().pop().unwrap()
    }
}

async fn accept(listener: TcpListener, engine: SocketAddr, wires: Arc<Mutex<Vec<Wire>>>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let number = {
            let mut wires = wires.lock();
            wires.push(Wire::default());
            wires.len() - 1
        };
        tokio::spawn(pass(client, engine, Arc::clone(&wires), number));
    }
}

async fn pass(mut client: TcpStream, engine: SocketAddr, wires: Arc<Mutex<Vec<Wire>>>, number: usize) {
    let Ok(mut engine) = TcpStream::connect(engine).await else { return };
    let (mut from_client, mut from_engine) = ([0; 16 * 1024], [0; 16 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(count @ 1..) = read else { return };
                wires.lock()[number].up.extend_from_slice(&from_client[..count]);
                if engine.write_all(&from_client[..count]).await.is_err() {
                    return;
                }
            }
            read = engine.read(&mut from_engine) => {
                let Ok(count @ 1..) = read else { return };
                wires.lock()[number].down.extend_from_slice(&from_engine[..count]);
                if client.write_all(&from_engine[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[derive(Default)]
struct Message {
    /// Method and path; empty for an answer.
    start: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// The first message of `bytes` and what follows it; a body that is not whole
/// is taken as far as it came.
fn message(bytes: &[u8], answer: bool) -> Option<(Message, &[u8])> {
    let mut slots = [httparse::EMPTY_HEADER; 100];
    let (start, headers, length) = if answer {
        let mut head = httparse::Response::new(&mut slots);
        let length = head.parse(bytes).unwrap();
        (String::new(), head.headers, length)
    } else {
        let mut head = httparse::Request::new(&mut slots);
        let length = head.parse(bytes).unwrap();
        let start = format!("{} {}", head.method.unwrap_or_default(), head.path.unwrap_or_default());
        (start, head.headers, length)
    };
    let httparse::Status::Complete(length) = length else { return None };
    let headers: HeaderMap = headers
        .iter()
        .map(|header| {
            let name = HeaderName::from_bytes(header.name.as_bytes()).unwrap();
            (name, HeaderValue::from_bytes(header.value).unwrap())
        })
        .collect();
    let rest = &bytes[length..];
    let (body, rest) = if headers.get("transfer-encoding").is_some_and(|value| value == "chunked") {
        unchunked(rest)
    } else {
        let declared = headers
            .get("content-length")
            .map_or(0, |value| value.to_str().unwrap().parse::<usize>().unwrap());
        let (body, rest) = rest.split_at(declared.min(rest.len()));
        (body.to_vec(), rest)
    };
    Some((Message { start, headers, body }, rest))
}

fn unchunked(mut bytes: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut body = Vec::new();
    loop {
        let Ok(httparse::Status::Complete((start, size))) = httparse::parse_chunk_size(bytes) else {
            return (body, &[]);
        };
        let end = start + usize::try_from(size).unwrap();
        body.extend_from_slice(&bytes[start.min(bytes.len())..end.min(bytes.len())]);
        bytes = bytes.get(end + 2..).unwrap_or_default();
        if size == 0 {
            return (body, bytes);
        }
    }
}
