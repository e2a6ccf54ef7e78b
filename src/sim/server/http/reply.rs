//! Responses that are sent in one piece.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;

use crate::server::http::body::{BrokenBody, SimBody};
use crate::server::http::job::{ClientJob, ConnectionFailure};
use crate::server::http::json::Json;

/// Result of a handler: a response, or the end of the connection.
pub(crate) type HandlerAnswer = Result<Response<SimBody>, BrokenBody>;

pub(crate) fn json(status: u16, body: impl Into<Bytes>) -> Response<SimBody> {
    typed(status, "application/json", body)
}

/// A JSON response from a value.
pub(crate) fn value(status: u16, body: &impl Serialize) -> Response<SimBody> {
    json(status, Json::of(body).to_string())
}

pub(crate) fn typed(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response<SimBody> {
    let mut response = empty(status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    *response.body_mut() = SimBody::full(body);
    response
}

/// A response without a body.
pub(crate) fn empty(status: u16) -> Response<SimBody> {
    let mut response = Response::new(SimBody::full(Bytes::new()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// A 200 event stream.
pub(crate) fn events(content_type: &'static str, body: SimBody) -> Response<SimBody> {
    let mut response = empty(200);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    *response.body_mut() = body;
    response
}

/// Sends `whole` in the way that the request's fault demands.
pub(crate) fn deliver(
    job: ClientJob,
    act: Option<ConnectionFailure>,
    mut whole: Response<SimBody>,
    bytes: Bytes,
) -> Response<SimBody> {
    *whole.body_mut() = match act {
        None => SimBody::full(bytes),
        Some(ConnectionFailure::Cut) => SimBody::half(&bytes),
        Some(ConnectionFailure::Reset) => {
            job.conn.reset();
            SimBody::half(&bytes)
        }
        Some(ConnectionFailure::Silent) => SimBody::hang(job),
        Some(ConnectionFailure::BadChunk) => {
            job.conn.corrupt();
            SimBody::full(bytes)
        }
        Some(ConnectionFailure::BadSse | ConnectionFailure::BadJson) => {
            SimBody::full(bytes.slice(..bytes.len() / 2))
        }
    };
    whole
}
