//! Served request: the result of a request, before its client is told.

use crate::protocol::error::ApiError;
use crate::proxy::relay::continuation::Continuation;
use crate::proxy::response::client_answer::ClientAnswer;
use crate::proxy::summary::active::ActiveRequest;

/// Result of a request, before its answer is sent.
#[derive(Debug)]
pub(in crate::proxy) struct ServedRequest {
    pub(in crate::proxy) answered: Result<(ClientAnswer, Option<Continuation>), ApiError>,
    pub(in crate::proxy) request: ActiveRequest,
}
