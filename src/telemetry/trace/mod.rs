//! Request traces: one server span for each request, with a child span for each wait in the queue
//! and a client span for each attempt at an engine. Spans are sent over OTLP, in batches from a
//! bounded queue.

mod attributes;
mod context;
mod otlp;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanProcessor,
};

use crate::config::settings::TelemetrySettings;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::telemetry::error::TelemetryError;
use crate::telemetry::summary::{RequestOutcome, RequestSummary};
use crate::telemetry::text::shorten;
pub use crate::telemetry::trace::attributes::EngineCall;
use crate::telemetry::trace::context::ClientContext;
use crate::telemetry::trace::otlp::{OtlpTarget, SERVICE};
use crate::telemetry::wall::Anchor;

/// Most spans that wait to be sent; further spans are dropped.
const QUEUE_SPANS: usize = 8_192;
/// Most spans in one batch.
const BATCH_SPANS: usize = 512;
/// Longest delay before a batch is sent.
const BATCH_EVERY: Duration = Duration::from_secs(2);

/// Source of request traces. Clones share one exporter.
#[derive(Clone)]
pub struct Tracer(Option<Arc<Enabled>>);

struct Enabled {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// Facts of a request at the start of its trace.
#[derive(Debug, Clone, Copy)]
pub struct TraceStart<'a> {
    /// Headers of the client's request, which may carry a trace context.
    pub headers: &'a HeaderMap,
    /// `gen_ai.operation.name`.
    pub operation: &'static str,
    /// Configured model, part of the span's name; absent for a model that is not configured.
    pub model: Option<&'a str>,
    /// Arrival of the request's head.
    pub arrived: Tick,
    /// The present moment.
    pub now: Tick,
}

impl Tracer {
    /// Makes a tracer that records no spans. A client's own trace context is still passed on.
    pub(super) fn disabled() -> Self {
        Self(None)
    }

    pub(super) fn new(settings: &TelemetrySettings) -> Result<Self, TelemetryError> {
        let Some(target) = OtlpTarget::resolve(&settings.otlp)? else {
            return Ok(Self::disabled());
        };
        let (sampler, service) = (target.sampler.clone(), target.service);
        let exporter = target.exporter()?;
        let batch = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_SPANS)
            .with_max_export_batch_size(BATCH_SPANS)
            .with_scheduled_delay(BATCH_EVERY)
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batch).build();
        Ok(Self::with_processor(processor, sampler, service))
    }

    /// Without `service`, a variable of the process names the service.
    fn with_processor<P: SpanProcessor + 'static>(
        processor: P,
        sampler: Sampler,
        service: Option<&'static str>,
    ) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let resource = Resource::builder().with_attribute(KeyValue::new("service.version", version));
        let resource = match service {
            Some(name) => resource.with_service_name(name),
            None => resource,
        };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(sampler)
            .with_resource(resource.build())
            .build();
        let scope = InstrumentationScope::builder(SERVICE).with_version(version).build();
        let tracer = provider.tracer_with_scope(scope);
        Self(Some(Arc::new(Enabled { provider, tracer })))
    }

    /// Starts the trace of one request. The sampling flag of the client's own trace decides whether
    /// it is recorded; without a client trace, `telemetry.otlp.sample` decides.
    pub fn start(&self, request: TraceStart<'_>) -> RequestTrace {
        let client = ClientContext::of(request.headers);
        let Some(enabled) = &self.0 else { return RequestTrace(TraceState::PassOn(client)) };
        let parent = match &client {
            None => Context::new(),
            Some(client) => Context::new().with_remote_span_context(client.as_parent()),
        };
        let anchor = Anchor::at(request.now);
        let name = match request.model {
            Some(model) => format!("{} {}", request.operation, shorten(model)),
            None => request.operation.to_owned(),
        };
        let span = enabled
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Server)
            .with_start_time(anchor.wall(request.arrived))
            .start_with_context(&enabled.tracer, &parent);
        let context = Context::new().with_span(span);
        let live = LiveTrace { tracer: enabled.tracer.clone(), context, attempt: None, anchor };
        RequestTrace(TraceState::Live(Box::new(live)))
    }

    /// Sends the spans that still wait, for at most `timeout`.
    pub(super) async fn shutdown(&self, timeout: Duration) {
        let Some(enabled) = &self.0 else { return };
        let provider = enabled.provider.clone();
        let flush = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(timeout));
        match tokio::time::timeout(timeout, flush).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(problem))) => tracing::warn!(%problem, "traces not sent"),
            Ok(Err(_)) | Err(_) => tracing::warn!("traces not sent in time"),
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

/// Trace of one request. Dropping it without [`Self::finish`] ends the span at that moment.
#[derive(Debug)]
pub struct RequestTrace(TraceState);

#[derive(Debug)]
enum TraceState {
    /// Tracing is off: the client's own context, if any, is passed on to the engine.
    PassOn(Option<ClientContext>),
    Live(Box<LiveTrace>),
}

#[derive(Debug)]
struct LiveTrace {
    tracer: SdkTracer,
    context: Context,
    /// Client span of the attempt that is under way.
    attempt: Option<Context>,
    anchor: Anchor,
}

/// Phase of a request that gets a span of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPhase {
    /// Wait in the gateway's queue.
    Queue,
    /// Connecting to the engine, a part of the attempt.
    Connect,
    /// From sending the request to the first token of a stream, a part of the attempt.
    FirstToken,
}

impl RequestPhase {
    /// The span's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Connect => "connect",
            Self::FirstToken => "first_token",
        }
    }
}

impl RequestTrace {
    /// Trace id for the log line; absent when the trace is not recorded.
    pub fn trace_id(&self) -> Option<String> {
        let live = self.recorded()?;
        Some(live.context.span().span_context().trace_id().to_string())
    }

    /// Adds the span of a finished phase. A retry repeats phases, so a phase may come more than
    /// once.
    pub fn phase(&self, phase: RequestPhase, start: Tick, end: Tick) {
        let Some(live) = self.recorded() else { return };
        let parent = match (phase, &live.attempt) {
            (RequestPhase::Connect | RequestPhase::FirstToken, Some(attempt)) => attempt,
            (RequestPhase::Queue, _) | (_, None) => &live.context,
        };
        let mut span = live
            .tracer
            .span_builder(phase.name())
            .with_kind(SpanKind::Internal)
            .with_start_time(live.anchor.wall(start))
            .start_with_context(&live.tracer, parent);
        span.end_with_timestamp(live.anchor.wall(end));
    }

    /// Starts the client span of an attempt at an engine. An attempt that is still under way ends.
    pub fn attempt(&mut self, call: &EngineCall<'_>, at: Tick) {
        self.attempt_ended(None, at);
        let Some(live) = self.recorded_mut() else { return };
        let span = live
            .tracer
            .span_builder(format!("POST {}", call.path))
            .with_kind(SpanKind::Client)
            .with_attributes(attributes::of_call(call))
            .with_start_time(live.anchor.wall(at))
            .start_with_context(&live.tracer, &live.context);
        live.attempt = Some(live.context.with_span(span));
    }

    /// Notes the status with which the engine answered the attempt that is under way.
    pub fn attempt_answered(&self, status: StatusCode) {
        if let Some(attempt) = self.recorded().and_then(|live| live.attempt.as_ref()) {
            let status = i64::from(status.as_u16());
            attempt.span().set_attribute(KeyValue::new("http.response.status_code", status));
        }
    }

    /// Ends the attempt at an engine that is under way, if any. `error` = why it failed.
    pub fn attempt_ended(&mut self, error: Option<&'static str>, at: Tick) {
        let Some(live) = self.recorded_mut() else { return };
        let Some(attempt) = live.attempt.take() else { return };
        let span = attempt.span();
        if let Some(error) = error {
            span.set_attribute(KeyValue::new("error.type", error));
            span.set_status(Status::error(error));
        }
        span.end_with_timestamp(live.anchor.wall(at));
    }

    /// Replaces the trace context in the headers of the request to the engine. The engine's spans
    /// come under the attempt that is under way.
    pub fn inject(&self, headers: &mut HeaderMap) {
        match &self.0 {
            TraceState::PassOn(client) => context::pass_through(client.as_ref(), headers),
            TraceState::Live(live) => {
                let parent = live.attempt.as_ref().unwrap_or(&live.context);
                context::inject(parent.span().span_context(), headers);
            }
        }
    }

    /// Ends the request's span at `at`, with the attributes and status of its summary.
    pub fn finish(mut self, event: &RequestSummary<'_>, policy: &Policy, at: Tick) {
        let failed = event.outcome == RequestOutcome::Failed;
        self.attempt_ended(failed.then(|| event.reason.unwrap_or("failed")), at);
        let Some(live) = self.recorded() else { return };
        let span = live.context.span();
        span.set_attributes(attributes::of(event, policy));
        if failed {
            span.set_status(Status::error(event.reason.unwrap_or("failed")));
        }
        span.end_with_timestamp(live.anchor.wall(at));
    }

    fn recorded_mut(&mut self) -> Option<&mut LiveTrace> {
        match &mut self.0 {
            TraceState::Live(live) if live.context.span().is_recording() => Some(live),
            TraceState::Live(_) | TraceState::PassOn(_) => None,
        }
    }

    fn recorded(&self) -> Option<&LiveTrace> {
        match &self.0 {
            TraceState::Live(live) if live.context.span().is_recording() => Some(live),
            TraceState::Live(_) | TraceState::PassOn(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
