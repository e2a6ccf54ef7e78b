//! Response: the answer of an ended or streaming request.

pub(super) mod caller_page;
pub(super) mod caller_status;
pub(super) mod early_head;
pub(super) mod models_api;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::config::settings::HeaderNames;
use crate::core::model::ids::TenantId;
use crate::protocol::api::Dialect;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::error::rate_limits;
use crate::protocol::headers;
use crate::protocol::request::edit::EditedBody;
use crate::proxy::Proxy;
use crate::proxy::active_request::ActiveRequest;
use crate::proxy::attempt::EngineAnswer;
use crate::proxy::relay::buffer::{BufferWriter, ClientStream, RelayBroken, stream_buffer};
use crate::proxy::relay::live_stream::LiveStream;
use crate::proxy::relay::pump::Pump;
use crate::proxy::request::InferenceRequest;
use crate::proxy::summary::RequestRecord;
use crate::telemetry::event::RequestOutcome;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// Header with the model that serves, if the client used another name.
pub(super) const SERVING_MODEL: HeaderName = HeaderName::from_static("x-penstock-model");
/// Header with the output tokens left in the context window, if the client asked for more.
const MAX_TOKENS: HeaderName = HeaderName::from_static("x-penstock-max-tokens");
/// Header with the gateway's own id of the request, if the client sent one of its own.
const GATEWAY_ID: HeaderName = HeaderName::from_static("x-penstock-request-id");
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Result of a request, before its client is told.
#[derive(Debug)]
pub(super) struct ServedRequest {
    pub(super) answer: Result<EngineAnswer, ApiError>,
    pub(super) active: ActiveRequest,
    /// The request, if another replica could continue its stream.
    pub(super) request: Option<Box<InferenceRequest>>,
}

impl Proxy {
    /// Builds the response to a request whose head was not sent yet.
    pub(super) fn respond(self: &Arc<Self>, served: ServedRequest) -> Response<AnswerBody> {
        let ServedRequest { answer, mut active, request } = served;
        let settings = self.settings.load();
        let passing = &settings.edge.upstream.answer_headers;
        match answer {
            Ok(EngineAnswer::Stream { stream, head }) => {
                let headers = answer_headers(&head, passing, &active.record);
                let live = Box::new(LiveStream { stream, active, request });
                stream_response(headers, AnswerBody::Stream(self.stream(live)))
            }
            Ok(EngineAnswer::Whole { status, head, body, .. }) => whole_response(
                status,
                answer_headers(&head, passing, &active.record),
                body,
                &mut active.record,
            ),
            Err(error) => error_response(error, &mut active.record),
        }
    }

    /// Starts the relay of a stream to its client, from the first token on.
    pub(super) fn stream(self: &Arc<Self>, mut live: Box<LiveStream>) -> ClientStream {
        live.active.record.mark_streaming();
        let tenant = live.active.record.caller.identity.as_ref().map_or(TenantId::new(0), |who| who.tenant);
        let (writer, stream) = self.stream_buffer(tenant);
        let pump = Pump::new(Arc::clone(self), live, writer);
        if pump.is_over() {
            return stream;
        }
        stream.filled_by(self.pumps.spawn(pump.run()).abort_handle())
    }

    /// Creates the relay buffer for a stream of the tenant.
    pub(super) fn stream_buffer(&self, tenant: TenantId) -> (BufferWriter, ClientStream) {
        let settings = self.settings.load();
        let limits = &settings.edge.requests;
        stream_buffer(self.memory.answers.share(tenant, limits), limits.stream_buffer_bytes)
    }
}

/// Builds the response of an event stream.
pub(super) fn stream_response(headers: HeaderMap, body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response.headers_mut().insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// Headers of the answer: the engine's headers that a client gets, `passing` ones included, and the
/// gateway's own.
pub(super) fn answer_headers(engine: &HeaderMap, passing: &HeaderNames, record: &RequestRecord) -> HeaderMap {
    let passes = |name: &HeaderName| passing.contains(name.as_str());
    let mut headers = headers::client_headers(engine, &record.request_id, passes);
    if record.work.api.dialect() == Dialect::Anthropic {
        headers.insert(ANTHROPIC_REQUEST_ID, record.request_id.clone());
    }
    headers.extend(record.caller.gateway_id.clone().map(|id| (GATEWAY_ID, id)));
    if let Some(timing) = record.server_timing() {
        headers.insert(SERVER_TIMING, timing);
    }
    if let Some(lowered) = record.lowered() {
        headers.insert(MAX_TOKENS, lowered);
    }
    if let Some(model) = record.serving_model() {
        headers.insert(SERVING_MODEL, model);
    }
    rate_limits::write_headers(&record.limits.statuses, &mut headers);
    headers
}

fn whole_response(
    status: StatusCode,
    headers: HeaderMap,
    body: EditedBody,
    record: &mut RequestRecord,
) -> Response<AnswerBody> {
    record.end.status = status.as_u16();
    let mut response = Response::new(AnswerBody::Whole(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    response
}

fn error_response(error: ApiError, record: &mut RequestRecord) -> Response<AnswerBody> {
    let dialect = record.work.api.dialect();
    note_error(&error, record);
    let mut response = error.into_response(dialect, &record.request_id);
    record.end.status = response.status().as_u16();
    response.headers_mut().extend(record.caller.gateway_id.clone().map(|id| (GATEWAY_ID, id)));
    if let Some(timing) = record.server_timing() {
        response.headers_mut().insert(SERVER_TIMING, timing);
    }
    rate_limits::write_headers(&record.limits.statuses, response.headers_mut());
    response.map(|body: Bytes| AnswerBody::from(body))
}

/// Records the request's end by its error, unless an end was recorded before.
pub(super) fn note_error(error: &ApiError, record: &mut RequestRecord) {
    if record.end.reason.is_some() {
        return;
    }
    let outcome = match error.kind() {
        ErrorKind::QueueFull | ErrorKind::Draining | ErrorKind::DeadlineUnmeetable => {
            RequestOutcome::Rejected
        }
        _ if error.kind().status(record.work.api.dialect()).is_client_error() => RequestOutcome::ClientError,
        _ => RequestOutcome::Failed,
    };
    record.set_outcome(outcome, error.kind().code());
}

#[derive(Debug)]
pub enum AnswerBody {
    /// A complete answer.
    Whole(EditedBody),
    /// A stream from an engine.
    Stream(ClientStream),
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(EditedBody::from(bytes))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = RelayBroken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayBroken>>> {
        match self.get_mut() {
            Self::Whole(pieces) => {
                let never = |error: Infallible| match error {};
                Pin::new(pieces).poll_frame(cx).map_err(never)
            }
            Self::Stream(stream) => stream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(pieces) => pieces.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(pieces) => pieces.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
