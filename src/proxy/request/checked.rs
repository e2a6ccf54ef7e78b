//! Checked request: a request that may be queued.

use std::sync::Arc;

use http::HeaderMap;

use crate::config::settings::Settings;
use crate::proxy::body::BodyReservation;
use crate::proxy::request::InferenceRequest;

/// A request that may be queued.
#[derive(Debug)]
pub(in crate::proxy) struct CheckedRequest {
    pub(in crate::proxy) settings: Arc<Settings>,
    pub(in crate::proxy) order: InferenceRequest,
    /// The client's headers that go upstream.
    pub(in crate::proxy) headers: HeaderMap,
    pub(in crate::proxy) held: BodyReservation,
    /// Whether the request is a client's retry.
    pub(in crate::proxy) is_retry: bool,
}
