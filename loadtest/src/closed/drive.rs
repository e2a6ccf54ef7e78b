//! Closed-loop clients that wait for every answer, however long it takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use memchr::memmem;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::work::Work;
use crate::client::Connection;
use crate::meter::{Verdict, add, histogram};
use crate::report::Quantiles;
use crate::sse::{Scanner, completion_tokens, prompt_tokens};
use crate::target::Endpoint;

/// Pause of a client that was refused or found no connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Who asks whom for what, for how long.
#[derive(Debug, Clone)]
pub struct Closed {
    /// Where to; the clients' requests go to one after the other.
    pub targets: Vec<Endpoint>,
    /// The header of an API key.
    pub key: Option<HeaderValue>,
    /// The latency class that is asked for.
    pub class: Option<HeaderValue>,
    /// Clients; each has one request open at any time.
    pub clients: u32,
    /// What they ask for.
    pub work: Work,
    /// Load before measuring.
    pub warmup: Duration,
    /// What is measured.
    pub window: Duration,
    /// When a request is given up.
    pub timeout: Duration,
}

/// What came of it. A request that lies partly in the window counts with that
/// part of its time.
#[derive(Debug, Clone, Serialize)]
pub struct Served {
    /// Length of the window.
    pub seconds: f64,
    /// Whole answers a second.
    pub requests_per_second: f64,
    /// Output tokens a second.
    pub tokens_per_second: f64,
    /// Mean prompt tokens of an answer, as its usage says; 0 without any.
    pub prompt_tokens: f64,
    /// To the first output, of streams.
    pub ttft: Option<Quantiles>,
    /// To the end.
    pub total: Option<Quantiles>,
    /// Requests that ended in the window or after it, by how.
    pub outcomes: BTreeMap<String, u64>,
}

impl Served {
    /// Requests that did not end well.
    pub fn failed(&self) -> u64 {
        let ok = Verdict::Ok.to_string();
        self.outcomes.iter().filter(|(name, _)| **name != ok).map(|(_, count)| count).sum()
    }
}

#[derive(Debug)]
struct Record {
    start: Instant,
    end: Instant,
    first: Option<Instant>,
    verdict: Verdict,
    tokens: u64,
    prompt: u64,
}

#[derive(Debug)]
struct Shared {
    closed: Closed,
    next: AtomicU64,
    until: Instant,
}

impl Closed {
    /// Runs the clients. They start together, go on until the window's end, and
    /// wait for what they have open then.
    ///
    /// # Errors
    /// When there is no target, or a client task failed.
    pub async fn run(self) -> Result<Served> {
        ensure!(!self.targets.is_empty(), "there is nowhere to send requests");
        let from = Instant::now() + self.warmup;
        let until = from + self.window;
        let shared = Arc::new(Shared { closed: self, next: AtomicU64::new(0), until });
        let mut clients = JoinSet::new();
        for _ in 0..shared.closed.clients {
            clients.spawn(client(Arc::clone(&shared)));
        }
        let mut records = Vec::new();
        while let Some(made) = clients.join_next().await {
            records.append(&mut made.context("a client failed")?);
        }
        Ok(count(&records, from, until))
    }
}

fn count(records: &[Record], from: Instant, until: Instant) -> Served {
    let seconds = until.duration_since(from).as_secs_f64();
    let (mut requests, mut tokens) = (0.0, 0.0);
    let (mut ttft, mut total) = (histogram(), histogram());
    let (mut prompts, mut counted) = (0, 0_u64);
    let mut outcomes = BTreeMap::new();
    for record in records.iter().filter(|record| record.end > from) {
        *outcomes.entry(record.verdict.to_string()).or_default() += 1;
        if record.verdict != Verdict::Ok {
            continue;
        }
        let inside = record.end.min(until).saturating_duration_since(record.start.max(from));
        let part = inside.as_secs_f64() / record.end.duration_since(record.start).as_secs_f64().max(1e-9);
        requests += part;
        tokens += part * record.tokens as f64;
        add(&mut total, record.end - record.start);
        if let Some(first) = record.first {
            add(&mut ttft, first - record.start);
        }
        prompts += record.prompt;
        counted += u64::from(record.prompt > 0);
    }
    Served {
        seconds,
        requests_per_second: requests / seconds,
        tokens_per_second: tokens / seconds,
        prompt_tokens: prompts as f64 / counted.max(1) as f64,
        ttft: Quantiles::of(&ttft),
        total: Quantiles::of(&total),
        outcomes,
    }
}

async fn client(shared: Arc<Shared>) -> Vec<Record> {
    let mut connections: Vec<Option<Connection>> = shared.closed.targets.iter().map(|_| None).collect();
    let mut records = Vec::new();
    while Instant::now() < shared.until {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let place = number as usize % connections.len();
        let record = ask(&shared.closed, number, place, &mut connections[place]).await;
        if record.verdict != Verdict::Ok {
            sleep(PAUSE).await;
        }
        records.push(record);
    }
    records
}

async fn ask(closed: &Closed, number: u64, place: usize, connection: &mut Option<Connection>) -> Record {
    let endpoint = &closed.targets[place];
    let body = closed.work.body(number);
    let start = Instant::now();
    let mut record =
        Record { start, end: start, first: None, verdict: Verdict::Timeout, tokens: 0, prompt: 0 };
    let exchange = async {
        let Some(mut open) = usable(connection.take(), endpoint).await else { return Verdict::Connect };
        let mut request = endpoint.request(closed.key.as_ref(), body);
        if let Some(class) = &closed.class {
            request.headers_mut().insert(HeaderName::from_static("x-penstock-class"), class.clone());
        }
        let Ok(answer) = open.send(request).await else { return Verdict::Reset };
        let status = answer.status();
        let read = match (status.is_success(), closed.work.streams(number)) {
            (true, true) => read_stream(answer.into_body(), &mut record).await,
            (true, false) => read_plain(answer.into_body(), &mut record).await,
            (false, _) => answer.into_body().collect().await.map(|_| Verdict::Status(status.as_u16())),
        };
        read.map_or(Verdict::Reset, |verdict| {
            *connection = Some(open);
            verdict
        })
    };
    let ended = timeout_at(start + closed.timeout, exchange).await;
    record.verdict = ended.unwrap_or(Verdict::Timeout);
    record.end = Instant::now();
    record
}

/// The connection given, unless it was closed while it lay idle.
async fn usable(kept: Option<Connection>, endpoint: &Endpoint) -> Option<Connection> {
    if let Some(mut kept) = kept
        && kept.ready().await
    {
        return Some(kept);
    }
    Connection::open(endpoint).await.ok()
}

async fn read_stream(mut body: Incoming, record: &mut Record) -> Result<Verdict, hyper::Error> {
    let mut scanner = Scanner::default();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        scanner.feed(&data);
        if record.first.is_none() && scanner.has_output() {
            record.first = Some(Instant::now());
        }
    }
    record.tokens = scanner.tokens().unwrap_or_else(|| scanner.outputs());
    record.prompt = scanner.prompt().unwrap_or(0);
    Ok(scanner.fault().map_or(Verdict::Ok, Verdict::Broken))
}

async fn read_plain(body: Incoming, record: &mut Record) -> Result<Verdict, hyper::Error> {
    let bytes = body.collect().await?.to_bytes();
    let Some(tokens) = completion_tokens(&bytes) else { return Ok(Verdict::Broken("no usage")) };
    record.tokens = tokens;
    record.prompt = prompt_tokens(&bytes).unwrap_or(0);
    let whole = memmem::find(&bytes, b"\"choices\"").is_some();
    Ok(if whole { Verdict::Ok } else { Verdict::Broken("no choices") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_with_its_part_of_the_window() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let record = |start, end, verdict| Record {
            start: at(start),
            end: at(end),
            first: Some(at(start + 1)),
            verdict,
            tokens: 100,
            prompt: 8,
        };
        let records = [
            record(0, 900, Verdict::Ok),
            record(500, 1500, Verdict::Ok),
            record(1200, 1400, Verdict::Ok),
            record(1500, 3500, Verdict::Ok),
            record(1200, 1300, Verdict::Status(503)),
        ];
        let served = count(&records, at(1000), at(2000));
        assert!((served.requests_per_second - 1.75).abs() < 1e-9, "{served:?}");
        assert!((served.tokens_per_second - 175.0).abs() < 1e-6, "{served:?}");
        assert!((served.prompt_tokens - 8.0).abs() < 1e-9);
        assert_eq!(served.outcomes, [("ok".to_owned(), 3), ("status 503".to_owned(), 1)].into());
        assert_eq!(served.failed(), 1);
    }
}
