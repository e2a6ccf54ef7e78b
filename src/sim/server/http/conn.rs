//! Connection flags, shared by the handler of a request and the socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Flags shared by the request handler and the socket.
#[derive(Debug, Default)]
pub(crate) struct SimConn {
    /// Whether the socket is reset instead of closed.
    pub(in crate::server) reset: AtomicBool,
    /// Whether the next write is replaced by bytes that are no HTTP.
    pub(in crate::server) corrupt: AtomicBool,
    /// Whether a request is being answered.
    active: AtomicBool,
    /// Whether at least one request was answered.
    served: AtomicBool,
    pub(in crate::server) changed: Notify,
}

impl SimConn {
    pub(crate) fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    pub(crate) fn corrupt(&self) {
        self.corrupt.store(true, Ordering::Relaxed);
    }

    /// Whether the connection waits for its next request.
    pub(in crate::server) fn is_idle(&self) -> bool {
        self.served.load(Ordering::Relaxed) && !self.active.load(Ordering::Relaxed)
    }

    /// Marks the connection as busy until the returned guard is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> BusyGuard {
        self.active.store(true, Ordering::Relaxed);
        self.served.store(true, Ordering::Relaxed);
        self.changed.notify_one();
        BusyGuard(Arc::clone(self))
    }
}

/// Guard of [`SimConn::busy`].
#[derive(Debug)]
pub(crate) struct BusyGuard(Arc<SimConn>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.active.store(false, Ordering::Relaxed);
        self.0.changed.notify_one();
    }
}
