//! Clients: well-behaved ones on hyper, and ones that write their own bytes.

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::stream;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::support::gateway::soon;

/// A request in the making.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Call {
    pub(crate) fn new(method: Method, path: &str) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("gateway.test"));
        Self { method, path: path.to_owned(), headers, body: Bytes::new() }
    }

    pub(crate) fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    /// A POST of JSON.
    pub(crate) fn post(path: &str, body: &Value) -> Self {
        Self::post_text(path, &body.to_string())
    }

    /// A POST of what may or may not be JSON.
    pub(crate) fn post_text(path: &str, body: &str) -> Self {
        let mut call = Self::new(Method::POST, path);
        call.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        call.body = Bytes::from(body.to_owned());
        call
    }

    /// Sends the key as a bearer token.
    pub(crate) fn key(self, key: &str) -> Self {
        self.header(AUTHORIZATION.as_str(), &format!("Bearer {key}"))
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        let name = HeaderName::try_from(name).unwrap();
        self.headers.insert(name, HeaderValue::from_str(value).unwrap());
        self
    }

    /// Sends it on a connection of its own and reads the whole answer.
    pub(crate) async fn send(self, to: SocketAddr) -> Answer {
        Session::open(to).await.call(self).await
    }

    fn request(self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body));
        *request.method_mut() = self.method;
        *request.uri_mut() = self.path.parse().unwrap();
        *request.headers_mut() = self.headers;
        request
    }

    /// As an HTTP/2 request with a body of the test's own.
    pub(crate) fn http2(mut self, body: H2Body) -> Request<H2Body> {
        self.headers.remove("host");
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.uri_mut() = format!("http://gateway.test{}", self.path).parse().unwrap();
        *request.headers_mut() = self.headers;
        request
    }

    /// Its bytes in HTTP/1.1.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head += &format!("{name}: {}\r\n", value.to_str().unwrap());
        }
        if !self.body.is_empty() {
            head += &format!("content-length: {}\r\n", self.body.len());
        }
        let mut bytes = format!("{head}\r\n").into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// One kept-alive HTTP/1.1 connection.
pub(crate) struct Session {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: tokio::task::JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Session {
    pub(crate) async fn open(to: SocketAddr) -> Self {
        Self::over(TcpStream::connect(to).await.unwrap()).await
    }

    /// A session on a connection that is there.
    pub(crate) async fn over<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: T) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let driver = tokio::spawn(async move {
            // How it ends shows in the answers.
            let _ended = connection.await;
        });
        Self { sender, driver }
    }

    /// Sends a request and waits for the answer's head.
    pub(crate) async fn begin(&mut self, call: Call) -> hyper::Result<Response<Incoming>> {
        soon("room for a request", self.sender.ready()).await?;
        soon("an answer", self.sender.send_request(call.request())).await
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn call(&mut self, call: Call) -> Answer {
        let what = format!("{} {}", call.method, call.path);
        let response = self.begin(call).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        Answer::of(response).await
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether the body came to its proper end.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) async fn of(response: Response<Incoming>) -> Self {
        let (head, mut body) = response.into_parts();
        let (mut bytes, mut whole) = (Vec::new(), true);
        while let Some(frame) = soon("more of an answer", body.frame()).await {
            match frame {
                Ok(frame) => bytes.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
                Err(_) => {
                    whole = false;
                    break;
                }
            }
        }
        Self { status: head.status.as_u16(), headers: head.headers, body: bytes.into(), whole }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a header; empty when it is not there.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The events of a stream: their JSON, `[DONE]` left out.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim_start);
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Whether it is a stream that came to the end of its protocol.
    pub(crate) fn is_done(&self) -> bool {
        self.status == 200 && self.whole && self.text().trim_end().ends_with("data: [DONE]")
    }

    /// The code of an OpenAI error.
    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Fails unless it is a 200.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{self:?}");
        self
    }
}

/// A client that writes and reads bytes.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    /// What was read and not taken yet.
    pub(crate) got: Vec<u8>,
}

impl Raw {
    pub(crate) async fn open(to: SocketAddr) -> Self {
        let stream = soon("a connection", TcpStream::connect(to)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, got: Vec::new() }
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Reads until `mark` has come; takes everything up to its end. `None`
    /// when the connection ends before.
    pub(crate) async fn read_past(&mut self, mark: &str) -> Option<String> {
        let mut looked_at = 0;
        loop {
            let at = self.got[looked_at..].windows(mark.len()).position(|part| part == mark.as_bytes());
            if let Some(at) = at {
                let rest = self.got.split_off(looked_at + at + mark.len());
                let taken = std::mem::replace(&mut self.got, rest);
                return Some(String::from_utf8_lossy(&taken).into_owned());
            }
            looked_at = self.got.len().saturating_sub(mark.len());
            if !matches!(self.stream.read_buf(&mut self.got).await, Ok(1..)) {
                return None;
            }
        }
    }

    /// Everything up to the end of the connection.
    pub(crate) async fn read_to_end(&mut self) -> String {
        while matches!(soon("the end", self.stream.read_buf(&mut self.got)).await, Ok(1..)) {}
        String::from_utf8_lossy(&std::mem::take(&mut self.got)).into_owned()
    }

    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

/// A request body that the test sends piece by piece.
pub(crate) type H2Body = BoxBody<Bytes, io::Error>;

/// The sending end of a body in pieces.
pub(crate) type Pieces = mpsc::Sender<io::Result<Frame<Bytes>>>;

/// A body in pieces. It stays open when its sending end is dropped.
pub(crate) fn in_pieces() -> (Pieces, H2Body) {
    let (sender, body) = mpsc::channel(1);
    let pieces = stream::unfold(body, |mut body: mpsc::Receiver<_>| async move {
        match body.recv().await {
            Some(piece) => Some((piece, body)),
            None => pending().await,
        }
    });
    (sender, BoxBody::new(StreamBody::new(pieces)))
}

/// An HTTP/2 connection; dropping it closes it.
pub(crate) struct H2 {
    pub(crate) sender: http2::SendRequest<H2Body>,
    driver: tokio::task::JoinHandle<()>,
}

impl H2 {
    pub(crate) async fn open(to: SocketAddr) -> Self {
        Self::over(soon("a connection", TcpStream::connect(to)).await.unwrap()).await
    }

    /// HTTP/2 on a connection that is there.
    pub(crate) async fn over<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: T) -> Self {
        Self::built(stream, &http2::Builder::new(TokioExecutor::new())).await
    }

    /// A connection whose streams have a window of so many bytes.
    pub(crate) async fn with_window(to: SocketAddr, window: u32) -> Self {
        let stream = soon("a connection", TcpStream::connect(to)).await.unwrap();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window).adaptive_window(false);
        Self::built(stream, &builder).await
    }

    /// Waits until the server has closed it.
    pub(crate) async fn ended(mut self) {
        let _ended = (&mut self.driver).await;
    }

    async fn built<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        stream: T,
        builder: &http2::Builder<TokioExecutor>,
    ) -> Self {
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let driver = tokio::spawn(async move {
            // How it ends shows in the answers.
            let _ended = connection.await;
        });
        Self { sender, driver }
    }
}

impl Drop for H2 {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
