//! Shutdown grace: the stage of a shutdown, for requests that still run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Stage of the gateway's shutdown: running, draining, or over. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct ShutdownGrace {
    draining: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    drain: CancellationToken,
    expiry: CancellationToken,
}

impl ShutdownGrace {
    /// Starts the drain: the gateway refuses new requests from now on.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.drain.cancel();
    }

    /// Ends the grace: the gateway ends running requests, too, from now on.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.expiry.cancel();
    }

    /// Whether the drain has begun and new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Waits for the start of the drain.
    pub async fn drain_started(&self) {
        self.drain.cancelled().await;
    }

    /// Waits for the end of the grace.
    pub async fn expired(&self) {
        self.expiry.cancelled().await;
    }

    pub(crate) fn watch(&self) -> ShutdownWatch {
        ShutdownWatch {
            over: Arc::clone(&self.over),
            wait: Box::pin(self.expiry.clone().cancelled_owned()),
            registered: None,
        }
    }
}

/// End of the shutdown grace, polled by a stream beside its data. A poll costs one atomic read,
/// except when the polling task changes.
pub(crate) struct ShutdownWatch {
    over: Arc<AtomicBool>,
    wait: Pin<Box<WaitForCancellationFutureOwned>>,
    registered: Option<Waker>,
}

impl ShutdownWatch {
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.over.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if self.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        self.registered = Some(cx.waker().clone());
        self.wait.as_mut().poll(cx)
    }
}

impl fmt::Debug for ShutdownWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownWatch").field("over", &self.over).finish_non_exhaustive()
    }
}
