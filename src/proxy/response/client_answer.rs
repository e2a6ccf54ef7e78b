//! Client answer: what a client gets that is not an error.

use http::{HeaderMap, StatusCode};

use crate::core::model::job::JobUsage;
use crate::protocol::request::edit::EditedBody;
use crate::proxy::relay::engine_stream::EngineStream;

/// An answer other than an error.
#[derive(Debug)]
pub(in crate::proxy) enum ClientAnswer {
    Stream { stream: Box<EngineStream>, head: HeaderMap, whole: Option<JobUsage> },
    Whole { status: StatusCode, head: HeaderMap, body: EditedBody },
}
