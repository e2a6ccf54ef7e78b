//! What a request came to, as an answer.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};

use crate::core::ids::TenantId;
use crate::core::job::Usage;
use crate::proxy::body::{AnswerBody, StreamBody};
use crate::proxy::continuation::Live;
use crate::proxy::handler::{Answered, Proxy, Served};
use crate::proxy::pump::Pump;
use crate::proxy::record::Record;
use crate::proxy::stream_buffer::{BufferReader, BufferWriter, stream_buffer};
use crate::telemetry::event::RequestOutcome;
use crate::wire::api::Dialect;
use crate::wire::catalogue::Kind;
use crate::wire::error::ApiError;
use crate::wire::splice::Spliced;
use crate::wire::{headers, limits};

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// The model that serves, when that is not the name that the client used.
pub(super) const SERVING_MODEL: HeaderName = HeaderName::from_static("x-penstock-model");
/// The output that was left of the context window, when more was asked for.
const MAX_TOKENS: HeaderName = HeaderName::from_static("x-penstock-max-tokens");
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

impl Proxy {
    /// The answer, whose head is not out yet.
    pub(super) fn respond(&self, served: Served) -> Response<AnswerBody> {
        let Served { answered, mut record } = served;
        match answered {
            Ok((Answered::Stream { stream, head, whole }, ticket, continuation)) => {
                let headers = answer_headers(&head, &record);
                let live = Box::new(Live { stream, ticket, record, continuation });
                stream_response(headers, AnswerBody::Stream(self.stream(live, whole)))
            }
            Ok((Answered::Whole { status, head, body }, ..)) => {
                whole_response(status, &head, body, &mut record)
            }
            Err(error) => error_response(error, &mut record),
        }
    }

    /// The way of a stream to its client, from its first token on.
    pub(super) fn stream(&self, mut live: Box<Live>, whole: Option<Usage>) -> StreamBody {
        live.record.streams();
        let tenant = live.record.identity.as_ref().map_or(TenantId::new(0), |who| who.tenant);
        let (writer, reader) = self.stream_buffer(tenant);
        let pump = Pump::new(self, live, whole, writer);
        let filling = (!pump.is_over()).then(|| self.pumps.spawn(pump.run()).abort_handle());
        StreamBody::new(reader, filling)
    }

    /// A buffer for a stream of the tenant.
    pub(super) fn stream_buffer(&self, tenant: TenantId) -> (BufferWriter, BufferReader) {
        let settings = self.settings.load();
        let limits = &settings.edge.requests;
        stream_buffer(self.answers.share(tenant, limits), limits.stream_buffer_bytes)
    }
}

/// A stream of events.
pub(super) fn stream_response(headers: HeaderMap, body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response.headers_mut().insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// Those of the engine's that a client gets, and the gateway's own.
pub(super) fn answer_headers(engine: &HeaderMap, record: &Record) -> HeaderMap {
    let mut headers = headers::client_headers(engine, &record.request_id);
    if record.api.dialect() == Dialect::Anthropic {
        headers.insert(ANTHROPIC_REQUEST_ID, record.request_id.clone());
    }
    if let Some(timing) = record.server_timing() {
        headers.insert(SERVER_TIMING, timing);
    }
    if let Some(lowered) = record.lowered() {
        headers.insert(MAX_TOKENS, lowered);
    }
    if let Some(model) = record.serving_model() {
        headers.insert(SERVING_MODEL, model);
    }
    limits::write_headers(&record.limits.standings, &mut headers);
    headers
}

fn whole_response(
    status: StatusCode,
    head: &HeaderMap,
    body: Spliced,
    record: &mut Record,
) -> Response<AnswerBody> {
    record.status = status.as_u16();
    let mut response = Response::new(AnswerBody::Whole(body));
    *response.status_mut() = status;
    *response.headers_mut() = answer_headers(head, record);
    response.headers_mut().entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    response
}

pub(super) fn error_response(error: ApiError, record: &mut Record) -> Response<AnswerBody> {
    let dialect = record.api.dialect();
    note_error(&error, record);
    let mut response = error.into_response(dialect, &record.request_id);
    record.status = response.status().as_u16();
    if let Some(timing) = record.server_timing() {
        response.headers_mut().insert(SERVER_TIMING, timing);
    }
    limits::write_headers(&record.limits.standings, response.headers_mut());
    response.map(|body: Bytes| AnswerBody::from(body))
}

/// How the request ended, unless that has been said already.
pub(super) fn note_error(error: &ApiError, record: &mut Record) {
    if record.reason.is_some() {
        return;
    }
    let outcome = match error.kind() {
        Kind::QueueFull | Kind::Draining | Kind::DeadlineUnmeetable => RequestOutcome::Rejected,
        _ if error.kind().status(record.api.dialect()).is_client_error() => RequestOutcome::ClientError,
        _ => RequestOutcome::Failed,
    };
    record.ended(outcome, error.kind().code());
}
