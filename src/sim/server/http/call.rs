//! Calls: one request as the handlers of the dialects see it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};

use crate::server::core::ServerCore;
use crate::server::http::conn::SimConn;
use crate::server::http::job::LateFault;

/// A request with the context that a handler needs.
#[derive(Debug)]
pub(crate) struct ServerCall {
    pub(crate) sim: Arc<ServerCore>,
    pub(crate) conn: Arc<SimConn>,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) late: Option<LateFault>,
}

impl ServerCall {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The value of a query parameter, as written.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Whether the request carries this bearer token.
    pub(crate) fn has_bearer_token(&self, key: &str) -> bool {
        let value = self.header("authorization").unwrap_or_default();
        value
            .split_once(' ')
            .is_some_and(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && token == key)
    }
}
