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
    /// Largest request body in bytes. A larger body gets 413.
    pub max_body: ByteSize,
    /// Bytes of all request bodies that the gateway holds at once. A request beyond the limit is
    /// refused (503).
    pub max_total_body: ByteSize,
    /// Limit of one tenant's request bodies: a share, above 0 and up to 1, of what the bodies of
    /// other tenants leave of `max_total_body`. One body always fits; a request beyond the limit is
    /// refused (503).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tenant_body_share: f64,
    /// Bytes a second at which a request body must arrive on average, after a grace of
    /// `server.body_timeout`. A slower request gets 408. 0 = any rate.
    pub min_body_rate: ByteSize,
    /// Largest answer in bytes that is not a stream. For a larger answer, the client gets 400
    /// `answer_too_large`.
    pub max_answer: ByteSize,
    /// Bytes of all answers that the gateway holds for clients at once; one tenant may hold half of
    /// them. At the limit, streams are read only as fast as their clients read them. Other answers
    /// wait up to 5 s for room, then get 503.
    pub max_total_answer: ByteSize,
    /// Bytes of one stream that the gateway holds for a client that reads more slowly than the
    /// engine writes. When the buffer is full, the engine's stream is read only as fast as the
    /// client reads. The replica is free once the engine has written all of the answer.
    pub stream_buffer: ByteSize,
    /// Header by which a client may ask for a latency class.
    pub class_header: String,
    /// Time between two comments to a client that has only the head of its answer yet (`early_head`
    /// of a class).
    pub keepalive: Span,
    /// Rules for the URLs of images, sounds and videos in a prompt, which engines fetch. A request
    /// with a URL that the rules do not allow gets 400.
    pub media: MediaSection,
}

/// From where engines may fetch media.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MediaSection {
    /// Schemes that the URLs of media may have. `data` is for media inside the request.
    pub schemes: Vec<String>,
    /// Domains, each with the domains below, and addresses from which engines may fetch media.
    /// Absent = all except addresses and names of private networks (`10.0.0.1`, `localhost`, names
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
    /// Longest time for opening a connection to an engine. An engine that takes longer counts as
    /// one that refuses connections.
    pub connect_timeout: Span,
    /// Longest time from dispatch to the first token of a stream. The attempt then counts as
    /// failed, and the request may go to another replica.
    pub first_token_timeout: Span,
    /// Longest time from dispatch to the end of an answer that is not a stream. For a longer
    /// answer, the client gets 504 and no other engine gets the request; the replica stays in
    /// service.
    pub answer_timeout: Span,
    /// Longest silence of an engine inside a stream. The stream then goes on at another replica, or
    /// ends with an error (`retry.continue_streams`).
    pub stream_idle_timeout: Span,
    /// How long an unused connection to an engine is kept. Keep the value below the 5 s after which
    /// uvicorn (vLLM, SGLang) closes connections.
    pub keep_alive: Span,
    /// Headers of clients that engines get, beside the usual ones (content type, `accept`, trace
    /// context, `openai-*`, `anthropic-*`). `x-team-*` stands for all headers that begin with
    /// `x-team-`.
    pub request_headers: Vec<String>,
    /// Headers of engines that clients get, beside the usual ones (content type, `cache-control`,
    /// `retry-after`, `openai-*`, `anthropic-*`). `x-team-*` stands for all headers that begin with
    /// `x-team-`.
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
    /// Requests of all tenants that may wait. At the bound, the gateway refuses a request with 503
    /// and `Retry-After`: the new one, or one of the tenant that has most in the queue for its
    /// weight.
    #[schemars(range(min = 1))]
    pub requests: u64,
    /// Bytes of the waiting request bodies of all tenants. At the bound, the gateway refuses
    /// requests with 503 and `Retry-After`.
    pub bytes: ByteSize,
    /// Tokens (prompt and requested output) of the waiting requests of all tenants. At the bound,
    /// the gateway refuses requests with 503 and `Retry-After`.
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
    /// Attempts of a request that engines may fail, the first attempt included; then the client
    /// gets the error. Refused connections and the answers of engines that are busy or shut down do
    /// not count.
    #[schemars(range(min = 1, max = 20))]
    pub max_attempts: u32,
    /// Retries of attempts that an engine failed, as a share of the requests of the last ten
    /// seconds, for each group of models that share replicas. Beyond the budget, the client gets
    /// 503 with `Retry-After`. Not counted are requests that a working replica loses when it fails,
    /// refused connections, and engines that are busy or shut down.
    #[schemars(range(min = 0.0, max = 20.0))]
    pub budget: f64,
    /// Retries that are allowed in ten seconds however few requests there are, for each group of
    /// models that share replicas.
    pub budget_floor: u32,
    /// Whether a stream that breaks after its first token goes on at another replica, where the
    /// request and the engine (vLLM, SGLang) allow this. Other broken streams end with an error.
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
    /// Time from an ejection to the first probe of the replica. The pause doubles with each probe
    /// that fails, up to `probe_max`. For a replica that is ejected again within 30 s of its
    /// return, the first pause doubles, too, up to 10 s or `probe_max`, whichever is longer.
    pub probe_min: Span,
    /// Longest time between two probes of an ejected replica.
    pub probe_max: Span,
    /// Time over which the limit of a new or readmitted replica grows from an eighth to its full
    /// size.
    pub slow_start: Span,
    /// How long a replica that answered "busy" without a time of its own gets no new work. The
    /// pause doubles with each further such answer, up to 4 s.
    pub busy_backoff: Span,
    /// Share of a pool's replicas, from 0 to 1, that may be out of service when one more is ejected
    /// for bad answers (5xx, broken answers) or silence; beyond the share, replicas only pause. One
    /// replica may always be ejected, and so may replicas that refuse or drop connections.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_ejected: f64,
    /// How long requests without a first token may stay at a replica that is no longer listed; then
    /// they go to other replicas. Streams that can go on elsewhere leave a replica that is drained
    /// or no longer listed after the same time.
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
