//! Connection pool: the unused connections to one engine.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::proxy::upstream::conn::UpstreamConn;

/// Most idle connections that are kept. Further connections are closed after use.
const MAX_IDLE: usize = 1024;

/// Idle connections, the longest unused first.
#[derive(Debug, Default)]
pub(super) struct IdlePool(Mutex<VecDeque<IdleConn>>);

#[derive(Debug)]
struct IdleConn {
    conn: UpstreamConn,
    since: Instant,
}

impl IdlePool {
    /// Takes the connection that was used last. `None` if all connections have been unused for
    /// `keep_alive` or were closed by the engine.
    pub(super) fn take(&self, keep_alive: Duration) -> Option<UpstreamConn> {
        let mut idle = self.0.lock();
        while let Some(IdleConn { mut conn, since }) = idle.pop_back() {
            if since.elapsed() >= keep_alive {
                // The other connections have been unused for even longer.
                idle.clear();
                return None;
            }
            if conn.is_reusable() {
                return Some(conn);
            }
        }
        None
    }

    /// Keeps a connection that can be used again.
    pub(super) fn put(&self, conn: UpstreamConn) {
        let mut idle = self.0.lock();
        if idle.len() < MAX_IDLE {
            idle.push_back(IdleConn { conn, since: Instant::now() });
        }
    }

    /// Closes connections that were not used for `keep_alive`.
    pub(super) fn close_idle(&self, keep_alive: Duration) {
        let mut idle = self.0.lock();
        while idle.front().is_some_and(|idle| idle.since.elapsed() >= keep_alive) {
            idle.pop_front();
        }
    }
}
