//! The connections to one engine.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Uri};
use tokio::time::{Instant, timeout};

use crate::config::settings::{ReplicaSettings, UpstreamLimits};
use crate::core::model::event::EngineFault;
use crate::protocol::request::edit::EditedBody;
use crate::proxy::upstream::conn::UpstreamConn;
use crate::proxy::upstream::exchange::{AnswerHead, UpstreamExchange};
use crate::proxy::upstream::io;
use crate::proxy::upstream::pool::IdlePool;

/// A kept connection that breaks within this time after a request went out was
/// most likely closed for being idle; later, the engine had the request.
const STALE_WITHIN: Duration = Duration::from_secs(3);

/// One engine and the idle connections to it.
#[derive(Debug)]
pub struct UpstreamReplica {
    url: Uri,
    address: String,
    host: HeaderValue,
    tls_name: Option<String>,
    prefix: String,
    pool: Arc<IdlePool>,
}

/// Why a request got no answer head. Never shown to a client.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection came about.
    #[error("connect: {0}")]
    Connect(#[source] std::io::Error),
    /// No connection came about in time.
    #[error("connect: no answer within {0:?}")]
    ConnectTimeout(Duration),
    /// A kept connection broke, and then there was nobody any more: the engine
    /// may have died of the request.
    #[error("gone: {0}")]
    Gone(#[source] Box<UpstreamError>),
    /// The connection broke, or what came was not HTTP.
    #[error("exchange: {0}")]
    Exchange(#[from] hyper::Error),
    /// The same after a kept connection broke.
    #[error("exchange, for the second time: {0}")]
    Again(#[source] hyper::Error),
}

impl UpstreamError {
    /// What it means for the scheduler.
    #[must_use]
    pub fn fault(&self) -> EngineFault {
        match self {
            Self::Connect(_) | Self::ConnectTimeout(_) => EngineFault::Refused,
            Self::Exchange(error) | Self::Again(error) if error.is_parse() => EngineFault::Malformed,
            Self::Gone(_) | Self::Exchange(_) | Self::Again(_) => EngineFault::Reset,
        }
    }

    /// How often the engine may have got the request.
    #[must_use]
    pub const fn sends(&self) -> u32 {
        match self {
            Self::Connect(_) | Self::ConnectTimeout(_) => 0,
            Self::Gone(_) | Self::Exchange(_) => 1,
            Self::Again(_) => 2,
        }
    }
}

/// A request to an engine, ready to be sent more than once.
#[derive(Debug)]
pub struct UpstreamCall<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: EditedBody,
}

impl UpstreamReplica {
    pub(super) fn new(edge: &ReplicaSettings) -> Self {
        let tls = edge.url.scheme_str() == Some("https");
        let host = edge.url.host().unwrap_or_default();
        let port = edge.url.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let authority = edge.url.authority().map_or("", |authority| authority.as_str());
        Self {
            url: edge.url.clone(),
            address: format!("{host}:{port}"),
            host: HeaderValue::from_str(authority).unwrap_or(HeaderValue::from_static("engine")),
            tls_name: tls.then(|| host.trim_matches(['[', ']']).to_owned()),
            prefix: edge.url.path().trim_end_matches('/').to_owned(),
            pool: Arc::default(),
        }
    }

    pub(super) fn is_at(&self, edge: &ReplicaSettings) -> bool {
        self.url == edge.url
    }

    /// Sends the call and waits for the head of the answer. A pooled
    /// connection that turns out to be closed costs nothing: the call goes
    /// out once more on a fresh one.
    ///
    /// # Errors
    /// Any failure before the head; see [`UpstreamError::fault`].
    pub async fn send(
        &self,
        call: &UpstreamCall<'_>,
        limits: &UpstreamLimits,
    ) -> Result<AnswerHead, UpstreamError> {
        self.send_by(call, limits, true).await
    }

    /// The same on a fresh connection, and only once.
    ///
    /// # Errors
    /// Any failure before the head; see [`UpstreamError::fault`].
    pub async fn send_once(
        &self,
        call: &UpstreamCall<'_>,
        limits: &UpstreamLimits,
    ) -> Result<AnswerHead, UpstreamError> {
        self.send_by(call, limits, false).await
    }

    async fn send_by(
        &self,
        call: &UpstreamCall<'_>,
        limits: &UpstreamLimits,
        pooled: bool,
    ) -> Result<AnswerHead, UpstreamError> {
        let mut stale = false;
        if pooled && let Some(mut conn) = self.pool.take(limits.keep_alive) {
            let begun = Instant::now();
            match conn.send(self.request(call)).await {
                Ok(response) => {
                    let exchange = UpstreamExchange::new(Arc::clone(&self.pool), conn, response);
                    return Ok(AnswerHead { exchange, connect: None });
                }
                Err(error) if error.is_parse() || begun.elapsed() > STALE_WITHIN => return Err(error.into()),
                Err(_) => stale = true,
            }
        }
        let begun = Instant::now();
        let opened = self.open(limits.connect_timeout).await;
        let mut conn =
            opened.map_err(|error| if stale { UpstreamError::Gone(Box::new(error)) } else { error })?;
        let connect = Some((begun, Instant::now()));
        let response = conn.send(self.request(call)).await;
        let response =
            response.map_err(|error| if stale { UpstreamError::Again(error) } else { error.into() })?;
        Ok(AnswerHead { exchange: UpstreamExchange::new(Arc::clone(&self.pool), conn, response), connect })
    }

    /// Closes connections that were not used for `keep_alive`.
    pub(super) fn close_idle(&self, keep_alive: Duration) {
        self.pool.close_idle(keep_alive);
    }

    async fn open(&self, limit: Duration) -> Result<UpstreamConn, UpstreamError> {
        let opening = async {
            let stream = io::connect(&self.address, self.tls_name.as_deref()).await;
            let stream = stream.map_err(UpstreamError::Connect)?;
            Ok(UpstreamConn::handshake(stream).await?)
        };
        timeout(limit, opening).await.unwrap_or(Err(UpstreamError::ConnectTimeout(limit)))
    }

    fn request(&self, call: &UpstreamCall<'_>) -> Request<EditedBody> {
        let mut request = Request::new(call.body.clone());
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = self.target(call.path);
        *request.headers_mut() = call.headers.clone();
        request.headers_mut().insert(HOST, self.host.clone());
        request
    }

    fn target(&self, path: &str) -> Uri {
        let path = if self.prefix.is_empty() {
            PathAndQuery::try_from(path)
        } else {
            PathAndQuery::try_from(format!("{}{path}", self.prefix))
        };
        path.map_or_else(|_| Uri::from_static("/"), Uri::from)
    }
}
