//! Check of `requests`, `upstream`, `queue`, `retry` and `health`.

use std::time::Duration;

use crate::config::sections::request_path::{
    HealthSection, QueueSection, RequestsSection, RetrySection, UpstreamSection,
};
use crate::config::settings::{MediaPolicy, RequestLimits, UpstreamLimits};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::{ByteSize, Span};
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::core::model::policy;

const MAX_ATTEMPTS: u32 = 20;
/// uvicorn closes idle connections after this long.
const UVICORN_KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(in crate::config) fn requests(
    requests: &RequestsSection,
    queue: &QueueSection,
    findings: &mut Findings<'_>,
) -> RequestLimits {
    let section = FieldPath::top("requests");
    let mut bytes = |key: &str, size: ByteSize| numbers::some_bytes(size, &section.key(key), findings);
    let max_body_bytes = bytes("max_body", requests.max_body);
    let max_total_body_bytes = bytes("max_total_body", requests.max_total_body);
    let max_answer_bytes = bytes("max_answer", requests.max_answer);
    let max_total_answer_bytes = bytes("max_total_answer", requests.max_total_answer);
    let stream_buffer_bytes = bytes("stream_buffer", requests.stream_buffer);
    let share = requests.tenant_body_share;
    if !(share > 0.0 && share <= 1.0) {
        let hint = "write a share above 0 and up to 1, such as 0.5";
        findings.error(&section.key("tenant_body_share"), format!("{share} is out of range"), hint);
    }
    for (key, size) in [("max_answer", requests.max_answer), ("stream_buffer", requests.stream_buffer)] {
        if size > requests.max_total_answer {
            let message = format!("{size} is more than all answers together may have");
            let hint = format!("max_total_answer is {}", requests.max_total_answer);
            findings.error(&section.key(key), message, hint);
        }
    }
    if max_body_bytes > max_total_body_bytes {
        let message = format!("{} is more than all bodies together may have", requests.max_body);
        let hint = format!("max_total_body is {}", requests.max_total_body);
        findings.error(&section.key("max_body"), message, hint);
    }
    if requests.max_body > queue.bytes {
        let message = format!("{} is less than one body may have ({})", queue.bytes, requests.max_body);
        let hint = "the largest requests can never wait; raise it, or lower requests.max_body";
        findings.warn(&FieldPath::top("queue").key("bytes"), message, hint);
    }
    let class_header = numbers::header(&requests.class_header, &section.key("class_header"), findings);
    let keepalive = numbers::positive(requests.keepalive, &section.key("keepalive"), findings);
    RequestLimits {
        max_body_bytes,
        max_total_body_bytes,
        tenant_body_permille: (share * 1000.0).ceil() as u32,
        min_body_rate: requests.min_body_rate.0,
        max_answer_bytes,
        max_total_answer_bytes,
        stream_buffer_bytes: usize::try_from(stream_buffer_bytes).unwrap_or(usize::MAX),
        class_header,
        keepalive,
        media: MediaPolicy {
            schemes: lower(&requests.media.schemes),
            domains: lower(&requests.media.domains),
        },
    }
}

fn lower(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.trim_matches('.').to_ascii_lowercase()).collect()
}

pub(in crate::config) fn upstream(upstream: &UpstreamSection, findings: &mut Findings<'_>) -> UpstreamLimits {
    let section = FieldPath::top("upstream");
    if upstream.keep_alive.0 >= UVICORN_KEEP_ALIVE {
        let hint = "vLLM and SGLang close idle connections after 5s; a reused one may break just then";
        findings.warn(&section.key("keep_alive"), format!("{} is long", upstream.keep_alive), hint);
    }
    let mut names = |key: &str, names: &[String]| numbers::headers(names, &section.key(key), findings);
    let request_headers = names("request_headers", &upstream.request_headers);
    let answer_headers = names("answer_headers", &upstream.answer_headers);
    let mut time = |key: &str, span: Span| numbers::positive(span, &section.key(key), findings);
    UpstreamLimits {
        request_headers,
        answer_headers,
        connect_timeout: time("connect_timeout", upstream.connect_timeout),
        first_token_timeout: time("first_token_timeout", upstream.first_token_timeout),
        answer_timeout: time("answer_timeout", upstream.answer_timeout),
        stream_idle_timeout: time("stream_idle_timeout", upstream.stream_idle_timeout),
        keep_alive: upstream.keep_alive.0,
    }
}

pub(in crate::config) fn queue(queue: &QueueSection, findings: &mut Findings<'_>) -> policy::QueueBounds {
    let section = FieldPath::top("queue");
    policy::QueueBounds {
        requests: numbers::at_least_one(queue.requests, &section.key("requests"), findings),
        bytes: numbers::some_bytes(queue.bytes, &section.key("bytes"), findings),
        tokens: numbers::at_least_one(queue.tokens, &section.key("tokens"), findings),
    }
}

pub(in crate::config) fn retry(retry: &RetrySection, findings: &mut Findings<'_>) -> policy::RetryPolicy {
    if !(1..=MAX_ATTEMPTS).contains(&retry.max_attempts) {
        let message = format!("{} is out of range", retry.max_attempts);
        let hint = format!("write 1 (no retry) to {MAX_ATTEMPTS}");
        findings.error(&FieldPath::top("retry").key("max_attempts"), message, hint);
    }
    if !(0.0..=f64::from(MAX_ATTEMPTS)).contains(&retry.budget) {
        let message = format!("{} is out of range", retry.budget);
        let hint = format!("write a share of the requests such as 0.2, at most {MAX_ATTEMPTS}");
        findings.error(&FieldPath::top("retry").key("budget"), message, hint);
    }
    policy::RetryPolicy {
        max_attempts: retry.max_attempts,
        budget_permille: (retry.budget * 1000.0).round() as u32,
        budget_floor: retry.budget_floor,
    }
}

pub(in crate::config) fn health(health: &HealthSection, findings: &mut Findings<'_>) -> policy::HealthPolicy {
    let section = FieldPath::top("health");
    if health.probe_min > health.probe_max {
        let message = format!("{} is shorter than probe_min ({})", health.probe_max, health.probe_min);
        findings.error(&section.key("probe_max"), message, "write probe_min or more");
    }
    if !(0.0..=1.0).contains(&health.max_ejected) {
        let message = format!("{} is out of range", health.max_ejected);
        findings.error(
            &section.key("max_ejected"),
            message,
            "write a share of a pool's replicas such as 0.5",
        );
    }
    let mut time = |key: &str, span: Span| numbers::positive(span, &section.key(key), findings);
    policy::HealthPolicy {
        probe_min: time("probe_min", health.probe_min),
        probe_max: time("probe_max", health.probe_max),
        slow_start: health.slow_start.0,
        busy_backoff: time("busy_backoff", health.busy_backoff),
        max_ejected_permille: (health.max_ejected * 1000.0).round() as u32,
        drain: health.drain.0,
    }
}
