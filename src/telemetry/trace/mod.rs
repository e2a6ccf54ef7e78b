//! Request traces: one server span for each request, one child span for each
//! of its phases, sent over OTLP gRPC in batches from a bounded queue.

mod attributes;
mod context;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderMap, Uri};
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanProcessor,
};

use crate::config::settings::TelemetrySettings;
use crate::core::model::time::Tick;
use crate::telemetry::event::{RequestOutcome, RequestSummary, shorten};
use crate::telemetry::trace::context::ClientContext;
use crate::telemetry::wall::Anchor;
use crate::telemetry::{Telemetry, TelemetryError};

/// Spans that wait to be sent; more are dropped.
const QUEUE_SPANS: usize = 8_192;
/// Spans sent at once.
const BATCH_SPANS: usize = 512;
/// Longest time between two batches.
const BATCH_EVERY: Duration = Duration::from_secs(2);
/// Longest time for one batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where request traces start.
#[derive(Clone)]
pub struct Tracer(Option<Arc<Enabled>>);

struct Enabled {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// What is known of a request when its trace starts.
#[derive(Debug, Clone, Copy)]
pub struct TraceStart<'a> {
    /// The client's headers.
    pub headers: &'a HeaderMap,
    /// `gen_ai.operation.name`.
    pub operation: &'static str,
    /// The model, when it is one of ours: it becomes part of the span's name.
    pub model: Option<&'a str>,
    /// When the request's head arrived.
    pub arrived: Tick,
    /// The present moment.
    pub now: Tick,
}

impl Tracer {
    /// No spans; a client's own trace context is still passed on.
    pub(super) fn disabled() -> Self {
        Self(None)
    }

    pub(super) fn new(settings: &TelemetrySettings) -> Result<Self, TelemetryError> {
        let Some(endpoint) = &settings.otlp_endpoint else { return Ok(Self::disabled()) };
        check_endpoint(endpoint)?;
        tokio::runtime::Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|problem| TelemetryError::Endpoint(problem.to_string()))?;
        let batch = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_SPANS)
            .with_max_export_batch_size(BATCH_SPANS)
            .with_scheduled_delay(BATCH_EVERY)
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batch).build();
        Ok(Self::with_processor(processor, settings.trace_sample))
    }

    fn with_processor<P: SpanProcessor + 'static>(processor: P, sample: f64) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let resource = Resource::builder()
            .with_service_name("penstock")
            .with_attribute(opentelemetry::KeyValue::new("service.version", version))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample))))
            .with_resource(resource)
            .build();
        let scope = InstrumentationScope::builder("penstock").with_version(version).build();
        let tracer = provider.tracer_with_scope(scope);
        Self(Some(Arc::new(Enabled { provider, tracer })))
    }

    /// Starts the trace of one request. Whether it is recorded is the word of
    /// the client's own trace, else of the configured share.
    #[must_use]
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
        let live = LiveTrace { tracer: enabled.tracer.clone(), context, anchor };
        RequestTrace(TraceState::Live(Box::new(live)))
    }

    /// Sends what is still held, for at most `timeout`.
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

/// The exporter has no TLS: the collector is beside us or behind a local proxy.
fn check_endpoint(endpoint: &str) -> Result<(), TelemetryError> {
    let problem = match endpoint.parse::<Uri>() {
        Err(problem) => problem.to_string(),
        Ok(url) if url.scheme() == Some(&Scheme::HTTPS) => "https is not supported".to_owned(),
        Ok(url) if url.scheme() != Some(&Scheme::HTTP) => "it has no scheme".to_owned(),
        Ok(_) => return Ok(()),
    };
    Err(TelemetryError::Endpoint(problem))
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

/// The trace of one request. Dropping it without [`Self::finish`] ends it at
/// that moment.
#[derive(Debug)]
pub struct RequestTrace(TraceState);

#[derive(Debug)]
enum TraceState {
    /// The client's own context, if it sent one.
    PassOn(Option<ClientContext>),
    Live(Box<LiveTrace>),
}

#[derive(Debug)]
struct LiveTrace {
    tracer: SdkTracer,
    context: Context,
    anchor: Anchor,
}

/// A part of a request's life that gets a span of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPhase {
    /// In the gateway's queue.
    Queue,
    /// Getting a connection to the engine.
    Connect,
    /// From sending the request to the first token: the engine's prefill.
    FirstToken,
    /// From sending the request to the whole of a plain answer.
    Engine,
    /// From the first token to the last.
    Stream,
    /// Accounts after the last byte.
    Settle,
}

impl RequestPhase {
    /// The span's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Connect => "connect",
            Self::FirstToken => "first_token",
            Self::Engine => "engine",
            Self::Stream => "stream",
            Self::Settle => "settle",
        }
    }
}

impl RequestTrace {
    /// The id of a recorded trace, for the log line.
    #[must_use]
    pub fn trace_id(&self) -> Option<String> {
        let live = self.recorded()?;
        Some(live.context.span().span_context().trace_id().to_string())
    }

    /// Adds the span of a phase that is over. A phase may come more than once,
    /// after a retry.
    pub fn phase(&self, phase: RequestPhase, start: Tick, end: Tick) {
        let Some(live) = self.recorded() else { return };
        let mut span = live
            .tracer
            .span_builder(phase.name())
            .with_kind(SpanKind::Internal)
            .with_start_time(live.anchor.wall(start))
            .start_with_context(&live.tracer, &live.context);
        span.end_with_timestamp(live.anchor.wall(end));
    }

    /// Replaces the trace context in the headers of the request to the engine.
    pub fn inject(&self, headers: &mut HeaderMap) {
        match &self.0 {
            TraceState::PassOn(client) => context::pass_through(client.as_ref(), headers),
            TraceState::Live(live) => context::inject(live.context.span().span_context(), headers),
        }
    }

    /// Ends the request's span with what became of it.
    pub fn finish(self, event: &RequestSummary<'_>, telemetry: &Telemetry, at: Tick) {
        let Some(live) = self.recorded() else { return };
        let span = live.context.span();
        span.set_attributes(attributes::of(event, &telemetry.policy()));
        if event.outcome == RequestOutcome::Failed {
            span.set_status(Status::error(event.reason.unwrap_or("failed")));
        }
        span.end_with_timestamp(live.anchor.wall(at));
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
