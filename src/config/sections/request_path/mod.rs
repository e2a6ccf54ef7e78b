//! Limits that take effect with the next request: `requests`, `upstream`,
//! `queue`, `retry` and `health`.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::syntax::units::{ByteSize, Span};

/// Limits of one request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RequestsSection {
    /// Bytes of one request body.
    pub max_body: ByteSize,
    /// Bytes of all request bodies held at once.
    pub max_total_body: ByteSize,
    /// How much of the bytes of `max_total_body` that no other tenant holds one
    /// tenant may hold, above 0 and up to 1. One body always fits.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tenant_body_share: f64,
    /// Bytes a second that a request body must come at on average, beyond
    /// `server.body_timeout`; 0 = any rate.
    pub min_body_rate: ByteSize,
    /// Bytes of one answer that is not a stream.
    pub max_answer: ByteSize,
    /// Bytes of all answers held for their clients at once; one tenant's take at
    /// most half of it. When it is spent, streams are read only as fast as
    /// their clients read them, and other answers wait a moment for room, then
    /// get 503.
    pub max_total_answer: ByteSize,
    /// Bytes of one stream that are held for a client that reads more slowly
    /// than the engine writes. The replica is free once the engine has written
    /// all of the answer, whether or not the client has read it.
    pub stream_buffer: ByteSize,
    /// The header by which a client may ask for a latency class.
    pub class_header: String,
    /// Time between two comments to a client that has the head of its answer and
    /// nothing else yet (`early_head` of a class).
    pub keepalive: Span,
    /// From where engines may fetch the images, sounds and videos that a prompt
    /// names by URL.
    pub media: MediaSection,
}

/// From where engines may fetch media.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MediaSection {
    /// Schemes of URLs. `data` is for media inside the request.
    pub schemes: Vec<String>,
    /// Domains, with those below them, and addresses. Absent = all but
    /// addresses and names of private networks (`10.0.0.1`, `localhost`, names
    /// without a dot, `*.internal`, `*.local`, `*.svc`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
}

impl Default for MediaSection {
    fn default() -> Self {
        Self { schemes: ["https", "http", "data"].map(str::to_owned).into(), domains: Vec::new() }
    }
}

impl Default for RequestsSection {
    fn default() -> Self {
        Self {
            max_body: ByteSize(32 << 20),
            max_total_body: ByteSize(1 << 30),
            tenant_body_share: 0.5,
            min_body_rate: ByteSize(1 << 10),
            max_answer: ByteSize(64 << 20),
            max_total_answer: ByteSize(1 << 30),
            stream_buffer: ByteSize(8 << 20),
            class_header: "x-penstock-class".to_owned(),
            keepalive: Span::secs(10),
            media: MediaSection::default(),
        }
    }
}

/// Time limits towards the engines, and the headers that pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamSection {
    /// Time for a connection to an engine.
    pub connect_timeout: Span,
    /// Longest silence from dispatch to the first token of a stream.
    pub first_token_timeout: Span,
    /// Longest time from dispatch to the whole of an answer that is not a stream.
    /// One that takes longer is answered with 504 and sent nowhere else; its
    /// replica stays in service.
    pub answer_timeout: Span,
    /// Longest silence inside a stream.
    pub stream_idle_timeout: Span,
    /// How long an unused connection to an engine is kept. Keep it below the
    /// 5 s after which uvicorn (vLLM, SGLang) closes it.
    pub keep_alive: Span,
    /// Headers of clients that engines get beside the usual ones (content type,
    /// `accept`, trace context, `openai-*`, `anthropic-*`). `x-team-*` stands
    /// for all that begin with `x-team-`.
    pub request_headers: Vec<String>,
    /// Headers of engines that clients get beside the usual ones (content type,
    /// `cache-control`, `retry-after`, `openai-*`, `anthropic-*`).
    pub answer_headers: Vec<String>,
}

impl Default for UpstreamSection {
    fn default() -> Self {
        Self {
            connect_timeout: Span::secs(2),
            first_token_timeout: Span::secs(600),
            answer_timeout: Span::secs(1800),
            stream_idle_timeout: Span::secs(120),
            keep_alive: Span::secs(4),
            request_headers: Vec::new(),
            answer_headers: Vec::new(),
        }
    }
}

/// What may wait in all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSection {
    /// Waiting requests.
    #[schemars(range(min = 1))]
    pub requests: u64,
    /// Bytes of waiting bodies.
    pub bytes: ByteSize,
    /// Tokens (prompt and requested output) of waiting requests.
    #[schemars(range(min = 1))]
    pub tokens: u64,
}

impl Default for QueueSection {
    fn default() -> Self {
        Self { requests: 10_000, bytes: ByteSize(512 << 20), tokens: 100_000_000 }
    }
}

/// What happens to a request whose replica failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetrySection {
    /// How often a request may reach an engine that then fails it, the first
    /// try included. Refused connections and the answers of engines that are
    /// busy or shut down do not count.
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: u32,
    /// How many tries that an engine failed may be repeated, as a share of the
    /// requests of the last ten seconds; beyond that the client is told to come
    /// back (503). What a replica that worked loses when it fails is not counted,
    /// nor are refused connections and engines that are busy or shut down.
    #[schemars(range(min = 0.0, max = 20.0))]
    pub budget: f64,
    /// Retries allowed in ten seconds, however few requests there are.
    pub budget_floor: u32,
    /// Whether a stream that breaks after its first token goes on at another
    /// replica, where the request and the engine (vLLM, SGLang) allow it.
    pub continue_streams: bool,
}

impl Default for RetrySection {
    fn default() -> Self {
        let core = crate::core::model::policy::RetryPolicy::default();
        Self {
            max_attempts: core.max_attempts,
            budget: f64::from(core.budget_permille) / 1000.0,
            budget_floor: core.budget_floor,
            continue_streams: true,
        }
    }
}

/// Health policy: how a replica is ejected, probed, readmitted and drained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthSection {
    /// Time from an ejection to the first probe; doubles up to `probe_max`.
    pub probe_min: Span,
    /// Longest time between two probes.
    pub probe_max: Span,
    /// Time over which the limit of a new or readmitted replica grows to its full size.
    pub slow_start: Span,
    /// How long a replica that said "busy" without a time gets no new work; twice
    /// as long each time that it says so again, up to 4 s.
    pub busy_backoff: Span,
    /// Largest share of a pool's replicas, 0 to 1, that may be out of service when
    /// one more is ejected that answers, but badly (5xx, broken answers), or is
    /// silent. One always may, and so may those that refuse or drop connections.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_ejected: f64,
    /// How long requests without a first token may stay at a replica that is
    /// no longer listed, and streams that can go on elsewhere at one that is
    /// drained or no longer listed; then they go to others.
    pub drain: Span,
}

impl Default for HealthSection {
    fn default() -> Self {
        let core = crate::core::model::policy::HealthPolicy::default();
        Self {
            probe_min: Span(core.probe_min),
            probe_max: Span(core.probe_max),
            slow_start: Span(core.slow_start),
            busy_backoff: Span(core.busy_backoff),
            max_ejected: f64::from(core.max_ejected_permille) / 1000.0,
            drain: Span(core.drain),
        }
    }
}
