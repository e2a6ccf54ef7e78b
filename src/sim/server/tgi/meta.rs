//! TGI's routes that need no engine work: info, health, metrics, models,
//! tokenizer.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use http::Response;
use serde_json::Value;

use crate::faults::FaultKind;
use crate::server::core::ServerPhase;
use crate::server::http::body::SimBody;
use crate::server::http::call::ServerCall;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply;
use crate::server::stats::Histogram;
use crate::server::text::BYTES_PER_TOKEN;
use crate::server::tgi::error::TgiError;
use crate::server::vllm;

const PATHS: &[&str] = &["/", "/info", "/health", "/ping", "/metrics", "/v1/models"];

pub(super) fn is_path(path: &str) -> bool {
    PATHS.contains(&path)
}

pub(super) fn answer(call: &ServerCall) -> Response<SimBody> {
    match call.path.as_str() {
        "/" | "/info" => info(call),
        "/health" | "/ping" => health(call),
        "/metrics" => metrics(call),
        "/v1/models" => {
            let card = ordered!({
                "id": call.sim.options.model(), "object": "model", "created": 0,
                "owned_by": call.sim.options.model()
            });
            reply::value(200, &ordered!({"object": "list", "data": [card]}))
        }
        _ => reply::empty(404),
    }
}

fn info(call: &ServerCall) -> Response<SimBody> {
    let options = &call.sim.options;
    reply::value(
        200,
        &ordered!({
            "model_id": options.model(), "model_sha": (), "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": options.max_concurrent_requests, "max_best_of": 2,
            "max_stop_sequences": 4, "max_input_tokens": options.window() - 1,
            "max_total_tokens": options.window(), "validation_workers": 2, "max_client_batch_size": 4,
            "router": "text-generation-router", "version": "3.3.7", "sha": (), "docker_label": ()
        }),
    )
}

fn health(call: &ServerCall) -> Response<SimBody> {
    match call.sim.work.lock().phase {
        ServerPhase::Dead => {
            reply::value(503, &ordered!({"error": "unhealthy", "error_type": "healthcheck"}))
        }
        ServerPhase::Serving | ServerPhase::Draining => reply::empty(200),
    }
}

pub(super) fn tokenize(call: &ServerCall) -> Response<SimBody> {
    let body: Value = serde_json::from_slice(&call.body).unwrap_or(Value::Null);
    let Some(text) = body.get("inputs").and_then(Value::as_str) else {
        return TgiError::validation("missing field `inputs`").respond();
    };
    let tokens: Vec<Json> = text
        .as_bytes()
        .chunks(BYTES_PER_TOKEN)
        .enumerate()
        .map(|(index, piece)| {
            let start = index * BYTES_PER_TOKEN;
            let text = String::from_utf8_lossy(piece);
            ordered!({"id": index, "text": text, "start": start, "stop": start + piece.len()})
        })
        .collect();
    reply::value(200, &tokens)
}

fn metrics(call: &ServerCall) -> Response<SimBody> {
    let sim = &call.sim;
    let frozen = sim.faults.state(sim.now(), |kind| matches!(kind, FaultKind::FrozenMetrics).then_some(()));
    let last = sim.last_metrics.lock().clone().filter(|_| frozen.is_some());
    let text = last.unwrap_or_else(|| vllm::without_missing(call, page(call)));
    if frozen.is_some() {
        *sim.last_metrics.lock() = Some(text.clone());
    }
    reply::typed(200, "text/plain", text)
}

fn page(call: &ServerCall) -> String {
    let sim = &call.sim;
    let work = sim.work.lock();
    let view = work.view();
    let lie = sim.faults.state(sim.now(), |kind| match kind {
        FaultKind::LyingMetrics { running, waiting, .. } => Some((*running, *waiting)),
        _ => None,
    });
    let (running, waiting) = lie.unwrap_or_default();
    let max_tokens = sim.options.engine.kv_tokens.unwrap_or(sim.options.profile.kv_tokens);
    let stats = &work.stats;
    let succeeded = stats.stopped + stats.length;
    let total = sim.total.load(Ordering::Relaxed) + stats.rejected;
    let mut out = String::new();
    let rows = [
        ("tgi_queue_size", "gauge", waiting.unwrap_or(view.gauges.waiting)),
        ("tgi_batch_current_size", "gauge", running.unwrap_or(view.gauges.running)),
        ("tgi_batch_current_max_tokens", "gauge", view.gauges.blocks_used * 16),
        ("tgi_batch_total_tokens", "gauge", max_tokens),
        ("tgi_request_count", "counter", total),
        ("tgi_request_success", "counter", succeeded),
        ("tgi_batch_inference_count{method=\"decode\"}", "counter", view.counters.steps),
        ("tgi_request_failure{err=\"overloaded\"}", "counter", stats.rejected),
    ];
    for (name, kind, value) in rows {
        let family = name.split('{').next().unwrap_or(name);
        let _ = write!(out, "# TYPE {family} {kind}\n{name} {value}\n\n");
    }
    let histograms = [
        ("tgi_request_queue_duration", &stats.queue),
        ("tgi_request_duration", &stats.e2e),
        ("tgi_request_inference_duration", &stats.inference),
        ("tgi_request_mean_time_per_token_duration", &stats.per_token),
        ("tgi_request_generated_tokens", &stats.generated_tokens),
        ("tgi_request_input_length", &stats.prompt_tokens),
    ];
    for (name, histogram) in histograms {
        write_histogram(&mut out, name, histogram);
    }
    out
}

fn write_histogram(out: &mut String, name: &str, histogram: &Histogram) {
    let _ = writeln!(out, "# TYPE {name} histogram");
    let mut below = 0;
    let edges = histogram.edges.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (edge, count) in edges.zip(&histogram.counts) {
        below += count;
        let _ = writeln!(out, "{name}_bucket{{le=\"{edge}\"}} {below}");
    }
    let _ = write!(out, "{name}_sum {}\n{name}_count {below}\n\n", histogram.sum);
}
