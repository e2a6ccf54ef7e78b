//! Faults: failures that a simulated engine shows on request.
//!
//! A fault is one JSON object, given to `POST /sim/faults` or to
//! [`SimControl::add`](crate::server::SimControl::add). `kind` says what
//! happens, and the limits below say when. Unknown fields are refused.
//!
//! | `kind` | fields (default) | what is seen |
//! |---|---|---|
//! | `refuse` | | the port is bound but not listening: connection refused; open connections live on |
//! | `reset` | `at`: `accept`, `request`, `head` | TCP reset after the accept, after the whole request, or after the early head |
//! | `slow` | `factor` | every step takes `factor` times as long |
//! | `freeze` | | the engine process hangs: streams silent, gauges stand still, `/health` 200 |
//! | `drain` | | new work gets 500 `cannot schedule new futures after shutdown`, `/health` 200 |
//! | `status` | `status`, `retry_after` (none, seconds), `message` | work is answered with that status |
//! | `error_event` | `after_tokens` (0), `status` (503) | error event, then `[DONE]`; plain answers get the status |
//! | `engine_dead` | `after_tokens` (0) | the event of a dead EngineCore (500), then `[DONE]` |
//! | `abort` | `after_tokens` (0) | `finish_reason: "abort"` with status 200; with 0 tokens the waiting form: role event, no finish reason |
//! | `no_finish` | `after_tokens` (0) | the stream ends with `[DONE]` and no finish reason |
//! | `cut` | `after_tokens` (0) | FIN without the last chunk; with 0 right after the early head |
//! | `silent` | `after_tokens` (0), `before_head` (false) | no further byte, connection open |
//! | `malformed_chunk` | `after_tokens` (0) | bytes that are no HTTP chunk |
//! | `malformed_sse` | `after_tokens` (0) | bytes that are no event (and no UTF-8), then a clean end |
//! | `malformed_json` | `after_tokens` (0) | one event with broken JSON, then the stream goes on |
//! | `close_idle` | `reset` (false) | a kept-alive connection closes when the next request arrives on it |
//! | `lying_metrics` | `running`, `waiting`, `kv_usage` (each optional) | `/metrics` reports these values |
//! | `frozen_metrics` | | `/metrics` repeats itself |
//! | `missing_metrics` | `names` (all) | series with these names are absent |
//! | `spot_notice` | `grace_ms` (120000) | `GET /latest/meta-data/spot/instance-action` tells of it; SIGTERM when the grace is over |
//!
//! Limits: `times` (number of requests or connections that the fault hits),
//! `probability` (`0.0..=1.0`, drawn from the engine's seed), `path` (only
//! requests with this path) and `duration_ms` (the fault ends after this time).
//! `refuse`, `slow`, `freeze`, `drain` and the metrics faults hold until they are
//! removed; their only limit is `duration_ms`. A request with fewer than
//! `after_tokens` tokens ends as if there were no fault.

use std::time::Duration;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use penstock_core::model::time::Tick;

/// Moment at which a connection is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetPoint {
    /// After the accept.
    Accept,
    /// After the whole request was read.
    Request,
    /// After the response head was sent.
    Head,
}

/// Kind of failure; the module's table describes each kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the table in the module's documentation has every field")]
pub enum FaultKind {
    Refuse,
    Reset {
        at: ResetPoint,
    },
    Slow {
        factor: f64,
    },
    Freeze,
    Drain,
    Status {
        status: u16,
        #[serde(default)]
        retry_after: Option<u32>,
        #[serde(default)]
        message: Option<String>,
    },
    ErrorEvent {
        #[serde(default)]
        after_tokens: u32,
        #[serde(default = "service_unavailable")]
        status: u16,
    },
    EngineDead {
        #[serde(default)]
        after_tokens: u32,
    },
    Abort {
        #[serde(default)]
        after_tokens: u32,
    },
    NoFinish {
        #[serde(default)]
        after_tokens: u32,
    },
    Cut {
        #[serde(default)]
        after_tokens: u32,
    },
    Silent {
        #[serde(default)]
        after_tokens: u32,
        #[serde(default)]
        before_head: bool,
    },
    MalformedChunk {
        #[serde(default)]
        after_tokens: u32,
    },
    MalformedSse {
        #[serde(default)]
        after_tokens: u32,
    },
    MalformedJson {
        #[serde(default)]
        after_tokens: u32,
    },
    CloseIdle {
        #[serde(default)]
        reset: bool,
    },
    LyingMetrics {
        #[serde(default)]
        running: Option<u64>,
        #[serde(default)]
        waiting: Option<u64>,
        #[serde(default)]
        kv_usage: Option<f64>,
    },
    FrozenMetrics,
    MissingMetrics {
        #[serde(default)]
        names: Vec<String>,
    },
    SpotNotice {
        #[serde(default = "spot_grace_ms")]
        grace_ms: u64,
    },
}

fn service_unavailable() -> u16 {
    503
}

fn spot_grace_ms() -> u64 {
    120_000
}

impl FaultKind {
    /// Whether the fault is a state of the whole engine, not of one request or
    /// connection at a time.
    pub fn is_state(&self) -> bool {
        matches!(
            self,
            Self::Refuse
                | Self::Slow { .. }
                | Self::Freeze
                | Self::Drain
                | Self::LyingMetrics { .. }
                | Self::FrozenMetrics
                | Self::MissingMetrics { .. }
                | Self::SpotNotice { .. }
        )
    }

    fn is_connection(&self) -> bool {
        matches!(self, Self::Reset { at: ResetPoint::Accept } | Self::CloseIdle { .. })
    }
}

/// A fault with its limits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fault {
    #[serde(flatten)]
    pub kind: FaultKind,
    /// Number of requests or connections that the fault hits; absent = until it
    /// is removed.
    pub times: Option<u32>,
    /// Probability for each request, `0.0..=1.0`.
    pub probability: f64,
    /// Request path that the fault is limited to; absent = every path.
    pub path: Option<String>,
    /// Lifetime in milliseconds; absent = until it is removed.
    pub duration_ms: Option<u64>,
}

impl From<FaultKind> for Fault {
    fn from(kind: FaultKind) -> Self {
        Self { kind, times: None, probability: 1.0, path: None, duration_ms: None }
    }
}

/// Reason for refusing a fault.
#[derive(Debug, Error)]
pub enum FaultError {
    /// The JSON does not describe a fault.
    #[error("not a fault: {0}")]
    Json(#[from] serde_json::Error),
    /// The JSON is not an object.
    #[error("the body must be a JSON object such as {{\"kind\":\"cut\",\"after_tokens\":3,\"times\":1}}")]
    Shape,
    /// The kind of fault has no such field.
    #[error("unknown field {0}")]
    Unknown(String),
    /// A value is out of range.
    #[error("{field} must be {rule}")]
    Range {
        field: &'static str,
        /// The allowed values.
        rule: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultLimits {
    times: Option<u32>,
    probability: Option<f64>,
    path: Option<String>,
    duration_ms: Option<u64>,
}

impl Fault {
    /// The same fault, at most `times` times.
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// The same fault for `duration`.
    pub fn lasting(mut self, duration: Duration) -> Self {
        self.duration_ms = Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// When a field is unknown, missing or out of range; the error names it.
    pub fn from_json(body: &[u8]) -> Result<Self, FaultError> {
        let Value::Object(mut kind) = serde_json::from_slice(body)? else { return Err(FaultError::Shape) };
        let mut limits = Map::new();
        for name in ["times", "probability", "path", "duration_ms"] {
            if let Some(value) = kind.remove(name) {
                limits.insert(name.to_owned(), value);
            }
        }
        let limits: FaultLimits = serde_json::from_value(Value::Object(limits))?;
        let kind: FaultKind = read_tagged(kind)?;
        let fault = Self {
            kind,
            times: limits.times,
            probability: limits.probability.unwrap_or(1.0),
            path: limits.path,
            duration_ms: limits.duration_ms,
        };
        fault.check()?;
        Ok(fault)
    }

    /// Checks that every value is in range.
    ///
    /// # Errors
    ///
    /// Names the first value that is out of range.
    pub fn check(&self) -> Result<(), FaultError> {
        if !(0.0..=1.0).contains(&self.probability) {
            return Err(FaultError::Range { field: "probability", rule: "between 0 and 1" });
        }
        if self.kind.is_state() && (self.times.is_some() || self.path.is_some() || self.probability < 1.0) {
            return Err(FaultError::Range {
                field: "times, path and probability",
                rule: "absent for this kind; use duration_ms",
            });
        }
        match self.kind {
            FaultKind::Slow { factor } if !(factor.is_finite() && (0.001..=1e6).contains(&factor)) => {
                Err(FaultError::Range { field: "factor", rule: "between 0.001 and 1000000" })
            }
            FaultKind::Status { status, .. } | FaultKind::ErrorEvent { status, .. }
                if !(400..=599).contains(&status) =>
            {
                Err(FaultError::Range { field: "status", rule: "between 400 and 599" })
            }
            _ => Ok(()),
        }
    }
}

/// Reads a tagged enum and refuses the fields that its variant does not have.
/// Serde accepts such fields on variants without fields.
pub(crate) fn read_tagged<T: Serialize + DeserializeOwned>(
    fields: Map<String, Value>,
) -> Result<T, FaultError> {
    let given: Vec<String> = fields.keys().cloned().collect();
    let read: T = serde_json::from_value(Value::Object(fields))?;
    let known = serde_json::to_value(&read)?;
    match given.into_iter().find(|name| known.get(name).is_none()) {
        Some(name) => Err(FaultError::Unknown(name)),
        None => Ok(read),
    }
}

/// Id of an active fault.
pub type FaultId = u64;

/// A fault that is active, as `GET /sim/faults` lists it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActiveFault {
    pub id: FaultId,
    /// The fault as given.
    #[serde(flatten)]
    pub fault: Fault,
    /// Number of times that the fault hit.
    pub shown: u32,
    #[serde(skip)]
    until: Tick,
}

#[derive(Debug)]
struct FaultEntries {
    active: Vec<ActiveFault>,
    next_id: FaultId,
    random: u64,
}

/// The faults of one engine, in the order in which they were added.
#[derive(Debug)]
pub(crate) struct FaultBoard(Mutex<FaultEntries>);

/// Largest number of faults: more than a test needs, few enough to scan on each
/// request.
const MAX_FAULTS: usize = 256;

impl FaultBoard {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(FaultEntries { active: Vec::new(), next_id: 1, random: seed }))
    }

    /// Adds a fault; when there are too many, the oldest is dropped.
    pub(crate) fn add(&self, fault: Fault, now: Tick) -> FaultId {
        let until = fault.duration_ms.map_or(Tick::NEVER, |ms| now + Duration::from_millis(ms));
        let mut board = self.0.lock();
        if board.active.len() >= MAX_FAULTS {
            board.active.remove(0);
        }
        let id = board.next_id;
        board.next_id += 1;
        board.active.push(ActiveFault { id, fault, shown: 0, until });
        id
    }

    pub(crate) fn remove(&self, id: FaultId) -> bool {
        let mut board = self.0.lock();
        let before = board.active.len();
        board.active.retain(|active| active.id != id);
        board.active.len() < before
    }

    pub(crate) fn clear(&self) {
        self.0.lock().active.clear();
    }

    pub(crate) fn list(&self, now: Tick) -> Vec<ActiveFault> {
        let mut board = self.0.lock();
        board.active.retain(|active| now < active.until);
        board.active.clone()
    }

    /// The value that `choose` takes from the last state fault for which it
    /// returns one.
    pub(crate) fn state<T>(&self, now: Tick, choose: impl Fn(&FaultKind) -> Option<T>) -> Option<T> {
        let board = self.0.lock();
        board.active.iter().rev().filter(|a| now < a.until).find_map(|a| choose(&a.fault.kind))
    }

    /// The fault that hits this request, if any. A hit counts against the
    /// fault's `times`.
    pub(crate) fn for_request(&self, now: Tick, path: &str) -> Option<FaultKind> {
        self.take_hit(now, |fault| {
            !fault.kind.is_state()
                && !fault.kind.is_connection()
                && fault.path.as_deref().is_none_or(|only| only == path)
        })
    }

    /// The fault that hits a connection, if any. A hit counts against the
    /// fault's `times`.
    pub(crate) fn for_connection(&self, now: Tick, kind: fn(&FaultKind) -> bool) -> Option<FaultKind> {
        self.take_hit(now, |fault| fault.kind.is_connection() && kind(&fault.kind))
    }

    fn take_hit(&self, now: Tick, applies: impl Fn(&Fault) -> bool) -> Option<FaultKind> {
        let mut board = self.0.lock();
        let FaultEntries { active, random, .. } = &mut *board;
        let hit = active.iter_mut().find(|active| {
            let left = active.fault.times.is_none_or(|times| active.shown < times);
            left && now < active.until && applies(&active.fault) && chance(random, active.fault.probability)
        })?;
        hit.shown += 1;
        Some(hit.fault.kind.clone())
    }
}

fn chance(random: &mut u64, probability: f64) -> bool {
    if probability >= 1.0 {
        return true;
    }
    *random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let unit = (mix(*random) >> 11) as f64 / (1u64 << 53) as f64;
    unit < probability
}

/// Spreads the bits of a counter or seed (the finalizer of splitmix64).
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Fault, String> {
        Fault::from_json(json.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn json_forms_are_read_and_checked() {
        let fault = read(r#"{"kind":"cut","after_tokens":3,"times":2,"path":"/generate"}"#).unwrap();
        assert_eq!(fault.kind, FaultKind::Cut { after_tokens: 3 });
        assert_eq!((fault.times, fault.path.as_deref()), (Some(2), Some("/generate")));
        assert_eq!(
            read(r#"{"kind":"reset","at":"head"}"#).unwrap().kind,
            FaultKind::Reset { at: ResetPoint::Head }
        );
        for (json, names) in [
            (r#"{"kind":"cut","tokens":3}"#, "tokens"),
            (r#"{"kind":"no_such"}"#, "no_such"),
            (r#"{"kind":"refuse","until":3}"#, "until"),
            (r#"{"kind":"slow"}"#, "factor"),
            (r#"{"kind":"slow","factor":0}"#, "factor"),
            (r#"{"kind":"freeze","times":1}"#, "duration_ms"),
            (r#"{"kind":"status","status":200}"#, "status"),
            (r#"{"kind":"abort","probability":2}"#, "probability"),
            ("[]", "object"),
            ("{", "EOF"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(names), "{json}: {error}");
        }
    }

    #[test]
    fn limits_are_kept() {
        let board = FaultBoard::new(1);
        board.add(Fault::from(FaultKind::Abort { after_tokens: 0 }).times(2), Tick::ZERO);
        let cut = Fault::from(FaultKind::Cut { after_tokens: 1 });
        board.add(Fault { path: Some("/b".into()), ..cut }.lasting(Duration::from_secs(1)), Tick::ZERO);
        let hits: Vec<_> = (0..4).map(|_| board.for_request(Tick::ZERO, "/b").is_some()).collect();
        assert_eq!(hits, [true, true, true, true]);
        assert_eq!(board.for_request(Tick::ZERO, "/a"), None);
        assert_eq!(board.for_request(Tick::from_millis(1001), "/b"), None);
        assert_eq!(board.list(Tick::from_millis(1001)).len(), 1);
    }

    #[test]
    fn probability_is_drawn_from_the_seed() {
        let hits = |seed| {
            let board = FaultBoard::new(seed);
            let fault = Fault::from(FaultKind::Refuse);
            board.add(
                Fault { kind: FaultKind::Cut { after_tokens: 0 }, probability: 0.3, ..fault },
                Tick::ZERO,
            );
            (0..1000).map(|_| board.for_request(Tick::ZERO, "/").is_some()).collect::<Vec<_>>()
        };
        let count = hits(7).iter().filter(|hit| **hit).count();
        assert!((250..350).contains(&count), "{count} of 1000");
        assert_eq!(hits(7), hits(7));
        assert_ne!(hits(7), hits(8));
    }
}
