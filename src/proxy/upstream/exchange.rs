//! Exchange: one request and its answer on an upstream connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use tokio::time::Instant;

use crate::protocol::error::ApiError;
use crate::proxy::body::GatheredBody;
use crate::proxy::upstream::conn::{ExchangeError, UpstreamConn};
use crate::proxy::upstream::idle_pool::IdlePool;

/// Longest wait for a finished answer's last bytes. After that, the connection is closed instead of
/// pooled.
const TAIL_TIMEOUT: Duration = Duration::from_secs(1);

/// Start and end of a connection's set-up.
#[derive(Debug, Clone, Copy)]
pub struct ConnectTimes {
    pub begun: Instant,
    pub done: Instant,
}

/// An answer being read. Dropping the exchange before its end closes the connection, by which the
/// engine learns that no client waits any more.
#[derive(Debug)]
pub struct UpstreamExchange {
    /// Status and headers.
    pub head: Parts,
    /// The connection's set-up. `None` if a pooled connection was used.
    pub connect: Option<ConnectTimes>,
    pool: Arc<IdlePool>,
    live: Option<UpstreamConn>,
}

impl UpstreamExchange {
    pub(super) fn new(
        pool: Arc<IdlePool>,
        conn: UpstreamConn,
        head: Parts,
        connect: Option<ConnectTimes>,
    ) -> Self {
        Self { head, connect, pool, live: Some(conn) }
    }

    /// The next piece of the body. `None` at its proper end, after which the connection is back in
    /// the pool.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ExchangeError>>> {
        let Some(conn) = self.live.as_mut() else {
            return Poll::Ready(None);
        };
        match conn.poll_data(cx) {
            Poll::Ready(None) => {
                self.recycle();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                self.live = None;
                Poll::Ready(Some(Err(error)))
            }
            other => other,
        }
    }

    /// The next piece of the body.
    ///
    /// # Errors
    /// The connection broke before the body's end.
    pub async fn data(&mut self) -> Option<Result<Bytes, ExchangeError>> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Reads the last bytes of an answer whose content is complete, so that its connection can be
    /// used again. The caller does not wait.
    pub fn finish_in_background(mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(piece) = self.poll_data(&mut cx) {
            if !matches!(piece, Some(Ok(_))) {
                return;
            }
        }
        tokio::spawn(async move {
            let tail = async { while let Some(Ok(_)) = self.data().await {} };
            let _late = tokio::time::timeout(TAIL_TIMEOUT, tail).await;
        });
    }

    fn recycle(&mut self) {
        if let Some(mut conn) = self.live.take()
            && conn.check_reusable()
        {
            self.pool.put(conn);
        }
    }
}

/// Reads a whole answer of at most `limit` bytes. An answer that arrives in one piece is not
/// copied.
pub(in crate::proxy) async fn whole_body(
    mut exchange: UpstreamExchange,
    limit: u64,
) -> Result<Bytes, CutReason> {
    let mut gathered = GatheredBody::default();
    while let Some(data) = exchange.data().await {
        let data = data.map_err(|_| CutReason::BrokenOff)?;
        if (gathered.len() + data.len()) as u64 > limit {
            return Err(CutReason::TooLarge);
        }
        gathered.push(data);
    }
    Ok(gathered.finish())
}

/// Reason why an answer was not read to its end.
#[derive(Debug)]
pub(in crate::proxy) enum CutReason {
    /// The engine's connection broke.
    BrokenOff,
    /// The answer is longer than the limit.
    TooLarge,
    /// The memory for answers is full.
    NoMemory(ApiError),
}
