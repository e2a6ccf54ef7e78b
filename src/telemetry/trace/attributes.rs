//! Span attributes of a request: those of the OpenTelemetry GenAI conventions, and `penstock.*` for
//! facts that the conventions do not cover.

use http::Uri;
use opentelemetry::{Array, KeyValue, StringValue, Value};

use crate::core::model::policy::Policy;
use crate::telemetry::summary::RequestSummary;
use crate::telemetry::text::{known, shorten};

/// Attempt of a request at an engine: an HTTP call. The span of the request is that of the whole
/// operation in the GenAI conventions, with all its attempts.
#[derive(Debug, Clone, Copy)]
pub struct EngineCall<'a> {
    /// URL of the replica; absent = it has left the configuration.
    pub url: Option<&'a Uri>,
    /// Path of the call.
    pub path: &'static str,
    pub pool: &'a str,
    pub replica: &'a str,
    /// Number of the attempt, from 1.
    pub number: u32,
}

/// Attributes of the request's span. An unknown fact has no attribute.
pub(super) fn of(event: &RequestSummary<'_>, policy: &Policy) -> Vec<KeyValue> {
    let mut list = vec![
        KeyValue::new("gen_ai.operation.name", event.call.operation),
        KeyValue::new("gen_ai.provider.name", event.dispatch.engine.unwrap_or("penstock")),
        KeyValue::new("gen_ai.request.stream", event.call.stream),
        KeyValue::new("http.response.status_code", i64::from(event.status)),
        KeyValue::new("penstock.request_id", shorten(event.ids.request).to_owned()),
        KeyValue::new("penstock.outcome", event.outcome.name()),
        KeyValue::new("penstock.attempts", i64::from(event.attempts.made)),
    ];
    let mut add = |key: &'static str, value: Option<Value>| {
        list.extend(value.map(|value| KeyValue::new(key, value)));
    };
    let model = event.models.served.and_then(|id| known(policy.models.name(id)));
    add("gen_ai.request.model", text(model.or(event.models.requested)));
    add("error.type", event.error_type().map(Value::from));
    add("gen_ai.response.finish_reasons", event.finish_reason.map(one_string));
    if let Some(tokens) = event.tokens.usage.and_then(crate::core::model::job::JobUsage::tokens) {
        add("gen_ai.usage.input_tokens", Some(count(tokens.input)));
        add("gen_ai.usage.output_tokens", Some(count(tokens.output)));
        add("gen_ai.usage.cache_read.input_tokens", Some(count(tokens.from_cache())));
    }
    let seconds = |duration: std::time::Duration| Value::from(duration.as_secs_f64());
    add("gen_ai.response.time_to_first_chunk", event.timings.first_token.map(seconds));
    add("penstock.queue_seconds", event.timings.queue.map(seconds));
    add("penstock.tenant", text(event.caller.tenant.and_then(|id| known(policy.tenants.name(id)))));
    add("penstock.class", text(event.caller.class.and_then(|id| known(policy.classes.name(id)))));
    add("penstock.pool", text(event.dispatch.pool().and_then(|id| known(policy.pools.name(id)))));
    add("penstock.replica", text(event.dispatch.replica().and_then(|id| known(policy.replicas.name(id)))));
    if let Some(why) = event.dispatch.why() {
        add("penstock.placed.turn", Some(why.order.name().into()));
        let demoted_to = why.demoted_to().and_then(|class| known(policy.classes.name(class)));
        add("penstock.placed.demoted_to", text(demoted_to));
        add("penstock.placed.behind", Some(count(why.behind)));
        add("penstock.placed.candidates", Some(i64::from(why.candidates).into()));
        add("penstock.placed.outstanding_tokens", Some(count(why.outstanding_tokens)));
        add("penstock.placed.running", Some(i64::from(why.running).into()));
        add("penstock.placed.limit", Some(i64::from(why.limit).into()));
    }
    list
}

/// Attributes of the client span of an attempt, by the conventions for HTTP clients.
pub(super) fn of_call(call: &EngineCall<'_>) -> Vec<KeyValue> {
    let mut list = vec![
        KeyValue::new("http.request.method", "POST"),
        KeyValue::new("penstock.pool", shorten(call.pool).to_owned()),
        KeyValue::new("penstock.replica", shorten(call.replica).to_owned()),
    ];
    if call.number > 1 {
        list.push(KeyValue::new("http.request.resend_count", i64::from(call.number) - 1));
    }
    if let Some(url) = call.url {
        let usual = if url.scheme_str() == Some("https") { 443 } else { 80 };
        let full = format!("{}{}", url.to_string().trim_end_matches('/'), call.path);
        list.extend([
            KeyValue::new("url.full", full),
            KeyValue::new("server.address", url.host().unwrap_or_default().to_owned()),
            KeyValue::new("server.port", i64::from(url.port_u16().unwrap_or(usual))),
        ]);
    }
    list
}

fn text(value: Option<&str>) -> Option<Value> {
    value.map(|value| shorten(value).to_owned().into())
}

fn count(value: u64) -> Value {
    i64::try_from(value).unwrap_or(i64::MAX).into()
}

fn one_string(value: &str) -> Value {
    Value::Array(Array::String(vec![StringValue::from(shorten(value).to_owned())]))
}
