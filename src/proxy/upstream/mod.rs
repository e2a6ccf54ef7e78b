//! Upstream: connections to the engines. Each replica has one small connection pool. A request owns
//! its connection, and the answer returns the connection to the pool.

mod conn;
mod connect;
mod exchange;
pub mod guardrails;
mod idle_pool;
mod shortage;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use http::header::HeaderValue;
use http::{HeaderMap, Uri};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

pub use self::conn::ExchangeError;
pub use self::exchange::{ConnectTimes, UpstreamExchange};
pub(super) use self::exchange::{CutReason, whole_body};

use self::conn::{NoHead, UpstreamConn};
use self::connect::{UpstreamTls, connect};
use self::idle_pool::IdlePool;
use self::shortage::{ShortageLog, is_shortage};
use crate::config::settings::identity::ClientTls;
use crate::config::settings::{EdgeSettings, PoolSettings, ReplicaSettings, UpstreamLimits};
use crate::core::model::event::EngineFault;
use crate::core::model::ids::ReplicaId;
use crate::protocol::http1::request_head::RequestHead;
use crate::protocol::request::edit::EditedBody;

/// Time limit to recognise a stale connection. A pooled connection that breaks within this time
/// after a request was sent was most likely closed for being idle. If it breaks later, the engine
/// had the request.
const STALE_WITHIN: Duration = Duration::from_secs(3);

/// Shortest and longest pause before a connection is tried again for which the gateway had no file
/// descriptor.
const MIN_SHORTAGE_PAUSE: Duration = Duration::from_millis(5);
const MAX_SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Longest tokenize answer that is read, in bytes. The answer lists all tokens.
const MAX_COUNT_BYTES: u64 = 16 << 20;

/// The engines' addresses and their pools, by replica.
#[derive(Debug, Default)]
pub struct Upstreams {
    replicas: DashMap<ReplicaId, Arc<UpstreamReplica>>,
}

impl Upstreams {
    /// The replica's connections. They are created on first use, and again when the configuration
    /// changed the replica's address or its TLS.
    pub fn replica(
        &self,
        id: ReplicaId,
        edge: &ReplicaSettings,
        pool: &PoolSettings,
    ) -> Arc<UpstreamReplica> {
        if let Some(known) = self.replicas.get(&id)
            && known.is_at(edge, pool)
        {
            return Arc::clone(&known);
        }
        let made = Arc::new(UpstreamReplica::new(&edge.url, pool.tls.as_ref()));
        self.replicas.insert(id, Arc::clone(&made));
        made
    }

    /// Closes connections that were not used for `keep_alive`. Their engine is about to close them,
    /// or has closed them.
    pub fn close_idle(&self, keep_alive: Duration) {
        for replica in &self.replicas {
            replica.close_idle(keep_alive);
        }
    }

    /// Removes the connections of replicas that are no longer configured.
    pub fn retain(&self, edge: &EdgeSettings) {
        let is_known = |id: ReplicaId, replica: &UpstreamReplica| {
            let row = edge.replicas.get(id)?;
            Some(replica.is_at(row, edge.pools.get(row.pool)?))
        };
        self.replicas.retain(|id, replica| is_known(*id, replica).unwrap_or(false));
    }
}

/// One engine and the idle connections to it.
#[derive(Debug)]
pub struct UpstreamReplica {
    url: Uri,
    address: String,
    host: HeaderValue,
    /// `None` = plain TCP.
    tls: Option<UpstreamTls>,
    prefix: String,
    pool: Arc<IdlePool>,
    shortage: ShortageLog,
}

/// Reason why a request got no answer head. Never shown to a client.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The connection could not be opened.
    #[error("connect: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection could not be opened in time.
    #[error("connect: no answer within {0:?}")]
    ConnectTimeout(Duration),
    /// The gateway itself lacks file descriptors or memory. The engine has no part in it.
    #[error("connect: {0}")]
    Shortage(#[source] std::io::Error),
    /// A pooled connection broke, and no new connection could be opened. The request may have
    /// crashed the engine.
    #[error("gone: {0}")]
    ReconnectFailed(#[source] Box<UpstreamError>),
    /// The connection broke, or the engine's bytes were not HTTP.
    #[error("exchange: {0}")]
    Exchange(#[from] ExchangeError),
    /// As [`Self::Exchange`], on a new connection after a pooled one broke.
    #[error("exchange, for the second time: {0}")]
    ExchangeAfterStale(#[source] ExchangeError),
}

impl UpstreamError {
    /// The engine fault that is reported to the scheduler.
    pub fn fault(&self) -> EngineFault {
        match self {
            Self::Connect(_) | Self::ConnectTimeout(_) => EngineFault::Refused,
            // The request waits a moment, and no engine is ejected.
            Self::Shortage(_) => EngineFault::Busy { retry_after: None },
            Self::ReconnectFailed(error) if matches!(**error, Self::Shortage(_)) => error.fault(),
            Self::Exchange(ExchangeError::Malformed(_))
            | Self::ExchangeAfterStale(ExchangeError::Malformed(_)) => EngineFault::Malformed,
            Self::ReconnectFailed(_) | Self::Exchange(_) | Self::ExchangeAfterStale(_) => EngineFault::Reset,
        }
    }

    /// Number of times that the engine may have got the request.
    pub const fn sends(&self) -> u32 {
        match self {
            Self::Connect(_) | Self::ConnectTimeout(_) | Self::Shortage(_) => 0,
            Self::ReconnectFailed(_) | Self::Exchange(_) => 1,
            Self::ExchangeAfterStale(_) => 2,
        }
    }
}

/// A request to an engine, by `POST`. It can be sent more than once.
#[derive(Debug)]
pub struct UpstreamCall<'a> {
    pub(crate) path: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: EditedBody,
}

impl UpstreamReplica {
    /// The server at `url`. With `https`, `own` replaces what the system trusts.
    pub(super) fn new(url: &Uri, own: Option<&ClientTls>) -> Self {
        let tls = url.scheme_str() == Some("https");
        let host = url.host().unwrap_or_default();
        let port = url.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let certified = || UpstreamTls {
            name: own
                .and_then(|own| own.server_name.as_deref())
                .unwrap_or(host.trim_matches(['[', ']']))
                .into(),
            own: own.cloned(),
        };
        Self {
            url: url.clone(),
            address: format!("{host}:{port}"),
            host: HeaderValue::from_str(authority).unwrap_or(HeaderValue::from_static("engine")),
            tls: tls.then(certified),
            prefix: url.path().trim_end_matches('/').to_owned(),
            pool: Arc::default(),
            shortage: ShortageLog::default(),
        }
    }

    fn is_at(&self, edge: &ReplicaSettings, pool: &PoolSettings) -> bool {
        let own = self.tls.as_ref().and_then(|tls| tls.own.as_ref());
        self.url == edge.url && (self.tls.is_none() || own == pool.tls.as_ref())
    }

    /// Sends the call and waits for the head of the answer. If a pooled connection turns out to be
    /// closed, the call is sent once more on a new connection.
    ///
    /// # Errors
    /// Any failure before the head; see [`UpstreamError::fault`].
    pub async fn send(
        &self,
        call: &UpstreamCall<'_>,
        limits: &UpstreamLimits,
    ) -> Result<UpstreamExchange, UpstreamError> {
        self.send_by(call, limits, true).await
    }

    /// Sends the call once, on a new connection, and waits for the head of the answer.
    ///
    /// # Errors
    /// Any failure before the head; see [`UpstreamError::fault`].
    pub async fn send_once(
        &self,
        call: &UpstreamCall<'_>,
        limits: &UpstreamLimits,
    ) -> Result<UpstreamExchange, UpstreamError> {
        self.send_by(call, limits, false).await
    }

    async fn send_by(
        &self,
        call: &UpstreamCall<'_>,
        limits: &UpstreamLimits,
        pooled: bool,
    ) -> Result<UpstreamExchange, UpstreamError> {
        let mut stale = false;
        if pooled && let Some(mut conn) = self.pool.take(limits.keep_alive) {
            let begun = Instant::now();
            match conn.send(self.parts(call)).await {
                Ok(head) => {
                    return Ok(UpstreamExchange::new(Arc::clone(&self.pool), conn, head, None));
                }
                Err(NoHead { error, had_begun })
                    if had_begun
                        || matches!(error, ExchangeError::Malformed(_))
                        || begun.elapsed() > STALE_WITHIN =>
                {
                    return Err(error.into());
                }
                Err(_) => stale = true,
            }
        }
        let begun = Instant::now();
        let opened = self.open(limits.connect_timeout).await;
        let mut conn = opened
            .map_err(|error| if stale { UpstreamError::ReconnectFailed(Box::new(error)) } else { error })?;
        let connect = Some(ConnectTimes { begun, done: Instant::now() });
        let head = conn.send(self.parts(call)).await.map_err(|NoHead { error, .. }| {
            if stale { UpstreamError::ExchangeAfterStale(error) } else { error.into() }
        })?;
        Ok(UpstreamExchange::new(Arc::clone(&self.pool), conn, head, connect))
    }

    /// Number of tokens that the engine counts in a prompt; see `POST /tokenize` of vLLM. `None` if it
    /// gives none.
    pub(super) async fn count_tokens(
        &self,
        headers: &HeaderMap,
        body: EditedBody,
        limits: &UpstreamLimits,
    ) -> Option<u64> {
        #[derive(Deserialize)]
        struct TokenCount {
            count: u64,
        }
        let answer = self.send(&UpstreamCall { path: "/tokenize", headers, body }, limits).await.ok()?;
        if !answer.head.status.is_success() {
            return None;
        }
        let answer = whole_body(answer, MAX_COUNT_BYTES).await.ok()?;
        serde_json::from_slice(&answer).ok().map(|TokenCount { count }| count)
    }

    /// Closes connections that were not used for `keep_alive`.
    pub(super) fn close_idle(&self, keep_alive: Duration) {
        self.pool.close_idle(keep_alive);
    }

    async fn open(&self, limit: Duration) -> Result<UpstreamConn, UpstreamError> {
        let mut lacking = None;
        let opening = async {
            let mut pause = MIN_SHORTAGE_PAUSE;
            let stream = loop {
                match connect(&self.address, self.tls.as_ref()).await {
                    Err(error) if is_shortage(&error) => {
                        self.shortage.begins(&error);
                        lacking = Some(error);
                        // Each of them holds a descriptor.
                        self.pool.close_idle(Duration::ZERO);
                        sleep(pause).await;
                        pause = (2 * pause).min(MAX_SHORTAGE_PAUSE);
                    }
                    other => break other.map_err(UpstreamError::Connect)?,
                }
            };
            self.shortage.ends();
            Ok(UpstreamConn::new(stream))
        };
        timeout(limit, opening).await.unwrap_or_else(|_| {
            Err(lacking.map_or(UpstreamError::ConnectTimeout(limit), UpstreamError::Shortage))
        })
    }

    /// The head and the pieces of the body, which are written one after another.
    fn parts(&self, call: &UpstreamCall<'_>) -> Vec<Bytes> {
        let head = RequestHead {
            prefix: &self.prefix,
            path: call.path,
            host: &self.host,
            headers: call.headers,
            length: call.body.len(),
        };
        let pieces = call.body.pieces().iter().cloned();
        std::iter::once(Bytes::from(head.encode())).chain(pieces).collect()
    }
}

/// `Authorization` header for the pool's engines. `None` if the pool has no API key.
pub(in crate::proxy) fn bearer(pool: &PoolSettings) -> Option<HeaderValue> {
    let text = format!("Bearer {}", pool.api_key.as_ref()?.expose());
    let mut bearer = HeaderValue::try_from(text).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}
