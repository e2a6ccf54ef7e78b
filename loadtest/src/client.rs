//! Keep-alive client connection, for one exchange after another.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::meter::{Progress, Sample, Verdict};
use crate::sse::{Scanner, Tally};
use crate::target::{Endpoint, Target};

/// A connection to the target.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Connects, and runs the connection in a task of its own.
    ///
    /// # Errors
    /// When there is no connection; the text says why.
    pub async fn open(endpoint: &Endpoint) -> Result<Self, String> {
        let stream = TcpStream::connect(endpoint.address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            // An exchange sees its own error; this one would say the same.
            let _ = connection.await;
        });
        Ok(Connection { sender })
    }

    /// Waits until another request may be sent; false when it is closed.
    pub async fn ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// Sends one request and waits for the head of its answer.
    ///
    /// # Errors
    /// When the connection breaks first.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, hyper::Error> {
        self.sender.send_request(request).await
    }
}

/// A small exchange on a connection of its own; the body as text.
///
/// # Errors
/// When there is no success.
pub async fn fetch(endpoint: &Endpoint, request: Request<Full<Bytes>>) -> anyhow::Result<String> {
    let mut connection = Connection::open(endpoint).await.map_err(anyhow::Error::msg)?;
    let response = connection.send(request).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    anyhow::ensure!(status.is_success(), "status {status}: {text}");
    Ok(text)
}

/// How an answer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// One JSON answer.
    Plain,
    /// An event stream, event by event.
    Stream,
    /// An event stream whose events are counted and not looked into; it has no times.
    Counted,
}

impl AnswerKind {
    /// Whether an event stream is asked for.
    pub fn streams(self) -> bool {
        self != AnswerKind::Plain
    }
}

/// One request from its intended time to the end of its answer.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// Where to.
    pub target: &'a Target,
    /// How its answer is read.
    pub answer: AnswerKind,
    /// When it was meant to be sent; times count from here.
    pub intended: Instant,
    /// When it is given up.
    pub deadline: Instant,
    /// Live counters.
    pub progress: &'a Progress,
}

impl Exchange<'_> {
    /// Runs it. The connection comes back when it can be used again.
    pub async fn run(self, connection: Option<Connection>) -> (Sample, Option<Connection>) {
        let mut sample = Sample::new(self.intended);
        self.progress.sent();
        let result = timeout_at(self.deadline, self.attempt(connection, &mut sample)).await;
        let (verdict, connection) = result.unwrap_or((Verdict::Timeout, None));
        sample.end(verdict);
        self.progress.completed(verdict == Verdict::Ok);
        (sample, connection)
    }

    async fn attempt(
        &self,
        connection: Option<Connection>,
        sample: &mut Sample,
    ) -> (Verdict, Option<Connection>) {
        let Some(mut connection) = self.usable(connection).await else {
            return (Verdict::Connect, None);
        };
        sample.sent = Some(Instant::now());
        let Ok(response) = connection.send(self.target.request(self.answer.streams())).await else {
            return (Verdict::Reset, None);
        };
        let status = response.status();
        let body = response.into_body();
        let read = match self.answer {
            _ if !status.is_success() => drain(body).await.map(|()| Verdict::Status(status.as_u16())),
            AnswerKind::Stream => self.read_stream(body, sample).await,
            AnswerKind::Counted => self.count_events(body, sample).await,
            AnswerKind::Plain => read_plain(body).await,
        };
        match read {
            Ok(verdict) => (verdict, Some(connection)),
            Err(_) => (Verdict::Reset, None),
        }
    }

    /// The connection given, unless it was closed while it lay idle.
    async fn usable(&self, connection: Option<Connection>) -> Option<Connection> {
        if let Some(mut connection) = connection
            && connection.ready().await
        {
            return Some(connection);
        }
        Connection::open(&self.target.endpoint).await.ok()
    }

    async fn read_stream(&self, mut body: Incoming, sample: &mut Sample) -> Result<Verdict, hyper::Error> {
        let mut scanner = Scanner::default();
        let mut last = None;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            let paced = !scanner.finished();
            let events = scanner.feed(&data);
            if events == 0 {
                continue;
            }
            let now = Instant::now();
            self.progress.events(events);
            sample.events += events;
            match last {
                Some(last) if paced => sample.gap(now.duration_since(last), events),
                None if scanner.has_output() => sample.first_token = Some(now),
                _ => {}
            }
            if scanner.has_output() {
                last = Some(now);
            }
        }
        Ok(scanner.fault().map_or(Verdict::Ok, Verdict::Broken))
    }

    async fn count_events(&self, mut body: Incoming, sample: &mut Sample) -> Result<Verdict, hyper::Error> {
        let mut tally = Tally::default();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                self.progress.events(tally.feed(&data));
            }
        }
        sample.events = tally.events();
        Ok(tally.fault().map_or(Verdict::Ok, Verdict::Broken))
    }
}

/// Reads a plain answer and checks that it holds one.
async fn read_plain(body: Incoming) -> Result<Verdict, hyper::Error> {
    let bytes = body.collect().await?.to_bytes();
    let whole = memmem::find(&bytes, b"\"choices\"").is_some();
    Ok(if whole { Verdict::Ok } else { Verdict::Broken("no choices") })
}

async fn drain(mut body: Incoming) -> Result<(), hyper::Error> {
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}
