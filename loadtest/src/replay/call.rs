//! Replayed call: sent at its planned instant, read to its end, and sent again where the client
//! would.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use penstock::sim::rng::Rng;
use tokio::time::{Instant, sleep, timeout_at};

use super::progress::Progress;
use super::record::{Outcome, Record};
use crate::client::Connection;
use crate::sse::Scanner;
use crate::target::Endpoint;

/// Bytes of an error's body that are looked at.
const MAX_ERROR: usize = 64 << 10;
/// A server that asks for more patience gets the usual backoff instead, as the
/// OpenAI SDKs do it.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// A kept connection that breaks this soon after a send was closed by the
/// server while it lay idle; the call goes out on another one.
const CLOSED_IDLE: Duration = Duration::from_millis(100);
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(8);

/// One call as it goes out.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) body: Bytes,
    pub(super) key: Option<HeaderValue>,
    pub(super) class: Option<HeaderValue>,
    /// Makes its backoff its own.
    pub(super) seed: u64,
}

/// Sends calls over a pool of connections.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) endpoint: Endpoint,
    pub(super) class_header: HeaderName,
    pub(super) timeout: Duration,
    pub(super) retries: u32,
    pub(super) progress: Arc<Progress>,
    pub(super) idle: Mutex<Vec<Connection>>,
}

/// How one try ended.
#[derive(Debug)]
struct Ended {
    outcome: Outcome,
    /// Whether an SDK would try again, and the pause the server asks for.
    again: Option<Option<Duration>>,
}

impl Ended {
    fn served() -> Self {
        Ended { outcome: Outcome::Served, again: None }
    }

    fn lost(what: &str, begun: bool) -> Self {
        Ended { outcome: Outcome::Failed(what.to_owned()), again: (!begun).then_some(None) }
    }
}

impl Caller {
    /// Makes the call. `record` comes with what is planned, and leaves with
    /// what happened.
    pub(super) async fn call(&self, outgoing: Outgoing, intended: Instant, mut record: Record) -> Record {
        self.progress.sent();
        let tries = self.tries(&outgoing, intended, &mut record);
        let outcome = timeout_at(intended + self.timeout, tries).await;
        record.outcome = outcome.unwrap_or_else(|_| Outcome::Failed("timeout".to_owned()));
        record.total = intended.elapsed();
        self.progress.ended(&record.outcome);
        record
    }

    async fn tries(&self, outgoing: &Outgoing, intended: Instant, record: &mut Record) -> Outcome {
        let mut rng = Rng::new(outgoing.seed);
        loop {
            let ended = self.attempt(outgoing, intended, record).await;
            let Some(asked) = ended.again.filter(|_| record.retries < self.retries) else {
                return ended.outcome;
            };
            sleep(pause(asked, record.retries, &mut rng)).await;
            record.retries += 1;
        }
    }

    async fn attempt(&self, outgoing: &Outgoing, intended: Instant, record: &mut Record) -> Ended {
        loop {
            let (mut connection, fresh) = match self.kept().await {
                Some(connection) => (connection, false),
                None => match Connection::open(&self.endpoint).await {
                    Ok(connection) => (connection, true),
                    Err(error) => return Ended::lost(&format!("no connection: {error}"), false),
                },
            };
            if record.retries == 0 {
                record.lag = intended.elapsed();
            }
            let sent = Instant::now();
            let Ok(response) = connection.send(self.request(outgoing)).await else {
                if fresh || sent.elapsed() > CLOSED_IDLE {
                    return Ended::lost("connection broke before the answer", false);
                }
                continue;
            };
            let (head, body) = response.into_parts();
            if !head.status.is_success() {
                let (ended, whole) = refusal(head.status.as_u16(), &head.headers, body).await;
                if whole {
                    self.keep(connection);
                }
                return ended;
            }
            let ended = self.read(body, intended, record).await;
            if ended.outcome == Outcome::Served {
                self.keep(connection);
            }
            return ended;
        }
    }

    /// A connection that lay idle and is still open.
    async fn kept(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if connection.ready().await {
                return Some(connection);
            }
        }
    }

    fn keep(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    fn request(&self, outgoing: &Outgoing) -> Request<Full<Bytes>> {
        let mut request = self.endpoint.request(outgoing.key.as_ref(), outgoing.body.clone());
        if let Some(class) = &outgoing.class {
            request.headers_mut().insert(self.class_header.clone(), class.clone());
        }
        request
    }

    async fn read(&self, mut body: Incoming, intended: Instant, record: &mut Record) -> Ended {
        let mut scanner = Scanner::default();
        let mut seen = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Ended::lost("stream broke", scanner.has_output());
            };
            let Ok(data) = frame.into_data() else { continue };
            let finished = scanner.finished();
            if scanner.feed(&data) == 0 {
                continue;
            }
            if scanner.outputs() > seen || scanner.finished() != finished {
                let now = intended.elapsed();
                // An answer that is only a stop token has no text.
                record.ttft.get_or_insert(now);
                record.last = Some(now);
                self.progress.tokens(scanner.outputs() - seen);
                seen = scanner.outputs();
            }
        }
        record.tokens = scanner.tokens().unwrap_or(seen);
        match scanner.fault() {
            Some(fault) => Ended::lost(&format!("broken: {fault}"), scanner.has_output()),
            None => Ended::served(),
        }
    }
}

/// Reads an answer that is no success; true when its body came whole.
async fn refusal(status: u16, headers: &HeaderMap, body: Incoming) -> (Ended, bool) {
    let asked = retry_after(headers);
    let wanted = match headers.get("x-should-retry").map(HeaderValue::as_bytes) {
        Some(b"true") => true,
        Some(b"false") => false,
        _ => matches!(status, 408 | 409 | 429 | 500..),
    };
    let whole = body.is_end_stream();
    let read = Limited::new(body, MAX_ERROR).collect().await;
    let whole = whole || read.is_ok();
    let bytes = read.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let text = match error_code(&bytes) {
        Some(code) => format!("{status} {code}"),
        None => status.to_string(),
    };
    let has_no_room = matches!(status, 429 | 503 | 529) || headers.contains_key("retry-after");
    let outcome = if has_no_room { Outcome::Refused(text) } else { Outcome::Failed(text) };
    (Ended { outcome, again: wanted.then_some(asked) }, whole)
}

/// The code of an error body, or its type; cut, since it becomes a name.
fn error_code(body: &[u8]) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let error = body.get("error").unwrap_or(&body);
    let code = ["code", "type"].iter().find_map(|name| error.get(name)?.as_str()).or(error.as_str())?;
    Some(code.chars().take(40).collect())
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1e3).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The pause before try number `retries + 1` is repeated: the server's, or a
/// doubling one of 0.5 s to 8 s, less up to a quarter by chance.
fn pause(asked: Option<Duration>, retries: u32, rng: &mut Rng) -> Duration {
    if let Some(asked) = asked.filter(|asked| *asked <= MAX_RETRY_AFTER) {
        return asked;
    }
    let backoff = FIRST_BACKOFF.saturating_mul(1 << retries.min(10)).min(MAX_BACKOFF);
    backoff - backoff.mul_f64(0.25 * (rng.below(1 << 20) as f64 / f64::from(1 << 20)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn the_servers_pause_is_honoured_up_to_a_minute() {
        assert_eq!(retry_after(&headers(&[("retry-after", "3")])), Some(Duration::from_secs(3)));
        let both = headers(&[("retry-after", "3"), ("retry-after-ms", "1250")]);
        assert_eq!(retry_after(&both), Some(Duration::from_millis(1250)));
        for odd in ["-1", "soon", "NaN", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(retry_after(&headers(&[("retry-after", odd)])), None, "{odd}");
        }
        let mut rng = Rng::new(1);
        assert_eq!(pause(Some(Duration::from_secs(60)), 0, &mut rng), Duration::from_secs(60));
        assert!(pause(Some(Duration::from_secs(61)), 0, &mut rng) <= FIRST_BACKOFF);
    }

    #[test]
    fn backoff_doubles_to_its_cap() {
        let mut rng = Rng::new(2);
        for (retries, most) in [(0, 500), (1, 1000), (4, 8000), (31, 8000)] {
            let pause = pause(None, retries, &mut rng);
            let most = Duration::from_millis(most);
            assert!(pause <= most && pause >= most.mul_f64(0.75), "{retries}: {pause:?}");
        }
    }

    #[test]
    fn codes_of_the_usual_error_bodies() {
        let code = |body: &str| error_code(body.as_bytes());
        assert_eq!(code(r#"{"error":{"code":"slow_down","type":"x"}}"#).as_deref(), Some("slow_down"));
        assert_eq!(code(r#"{"error":{"code":503,"type":"Unavailable"}}"#).as_deref(), Some("Unavailable"));
        assert_eq!(code(r#"{"error":"Model is overloaded"}"#).as_deref(), Some("Model is overloaded"));
        assert_eq!(code("<html>"), None);
    }
}
