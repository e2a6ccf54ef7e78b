//! Idle pool: the connections to one engine that wait for a request.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;

use crate::proxy::upstream::conn::UpstreamConn;

/// Most idle connections that a runtime keeps to one engine. Further ones are closed after use.
const MAX_IDLE: usize = 1024;

/// Idle connections to one engine. A runtime uses the connections that it opened: only it watches
/// their sockets.
#[derive(Debug, Default)]
pub(super) struct IdlePool(Mutex<Vec<RuntimeConns>>);

/// Idle connections of one runtime, the longest unused first.
#[derive(Debug)]
struct RuntimeConns {
    runtime: runtime::Id,
    idle: VecDeque<IdleConn>,
}

#[derive(Debug)]
struct IdleConn {
    conn: UpstreamConn,
    since: Instant,
}

impl IdlePool {
    /// Takes the connection that this runtime used last. `None` if all its connections have been
    /// unused for `keep_alive` or were closed by the engine.
    pub(super) fn take(&self, keep_alive: Duration) -> Option<UpstreamConn> {
        let runtime = Handle::current().id();
        let mut pool = self.0.lock();
        let idle = &mut pool.iter_mut().find(|conns| conns.runtime == runtime)?.idle;
        while let Some(IdleConn { mut conn, since }) = idle.pop_back() {
            if since.elapsed() >= keep_alive {
                // The other connections have been unused for even longer.
                idle.clear();
                return None;
            }
            if conn.check_reusable() {
                return Some(conn);
            }
        }
        None
    }

    /// Keeps a connection that this runtime can use again.
    pub(super) fn put(&self, conn: UpstreamConn) {
        let runtime = Handle::current().id();
        let new = IdleConn { conn, since: Instant::now() };
        let mut pool = self.0.lock();
        match pool.iter_mut().find(|conns| conns.runtime == runtime) {
            Some(conns) if conns.idle.len() < MAX_IDLE => conns.idle.push_back(new),
            Some(_full) => {}
            None => pool.push(RuntimeConns { runtime, idle: VecDeque::from([new]) }),
        }
    }

    /// Closes connections that were not used for `keep_alive`.
    pub(super) fn close_idle(&self, keep_alive: Duration) {
        for RuntimeConns { idle, .. } in self.0.lock().iter_mut() {
            while idle.front().is_some_and(|idle| idle.since.elapsed() >= keep_alive) {
                idle.pop_front();
            }
        }
    }
}
