//! Connection state, shared by the parts of one connection, and the counters of all connections.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::proxy::body::progress::BodyProgress;
use crate::proxy::listener::clock::Delivery;
use crate::proxy::listener::rejected::RequestRejected;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{AnswerCutOff, ConnectionRefused, HandshakeFailed};
use crate::tls::HandshakeError;

/// State shared by a connection's socket side, its service side and the accept loop. Socket side
/// and service side run in one task, so relaxed loads and stores suffice.
pub(super) struct ConnState {
    pub(super) metrics: Arc<ListenerMetrics>,
    draining: AtomicBool,
    drain_waker: AtomicWaker,
    /// Whether a request has arrived on the connection.
    is_used: AtomicBool,
    open_requests: AtomicUsize,
    /// Request bodies that are arriving.
    pub(super) bodies: Arc<BodyProgress>,
    request_whole: AtomicBool,
    answered: AtomicBool,
    /// 0, or 1 + the discriminant of the refusal.
    fault: AtomicU8,
    /// Delivery progress of the HTTP/2 stream that begins now.
    delivery: Mutex<Option<Arc<Delivery>>>,
}

impl ConnState {
    pub(super) fn new(metrics: Arc<ListenerMetrics>) -> Self {
        Self {
            metrics,
            draining: AtomicBool::new(false),
            drain_waker: AtomicWaker::new(),
            is_used: AtomicBool::new(false),
            open_requests: AtomicUsize::new(0),
            bodies: Arc::default(),
            request_whole: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            fault: AtomicU8::new(0),
            delivery: Mutex::new(None),
        }
    }

    /// Asks the connection to end after its running requests.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.drain_waker.wake();
    }

    /// Ready when [`Self::drain`] was called.
    pub(super) fn poll_draining(&self, cx: &Context<'_>) -> Poll<()> {
        self.drain_waker.register(cx.waker());
        if self.draining.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Counts a request as open until the result is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> OpenRequest {
        self.is_used.store(true, Ordering::Relaxed);
        self.open_requests.fetch_add(1, Ordering::Relaxed);
        OpenRequest(Arc::clone(self))
    }

    pub(super) fn usage(&self) -> ConnUse {
        let requests = self.open_requests.load(Ordering::Relaxed);
        if self.draining.load(Ordering::Relaxed) {
            ConnUse::Ending
        } else if requests > 0 {
            self.bodies
                .rate(requests)
                .map_or(ConnUse::Busy, |bytes_per_second| ConnUse::Receiving { bytes_per_second })
        } else if self.is_used.load(Ordering::Relaxed) {
            ConnUse::Idle
        } else {
            ConnUse::Fresh
        }
    }

    /// Asks the connection to end, because a new one needs its place.
    pub(super) fn end_for_newcomer(&self) {
        self.metrics.refused("place_needed");
        self.drain();
    }

    /// Ends the reading of request bodies, if they are still arriving.
    pub(super) fn give_up_bodies(&self) {
        self.bodies.give_up(self.open_requests.load(Ordering::Relaxed));
    }

    /// Resets the state for the next request.
    pub(super) fn next_request(&self) {
        self.request_whole.store(false, Ordering::Relaxed);
        self.answered.store(false, Ordering::Relaxed);
    }

    /// Marks the request as whole: its last byte has arrived.
    pub(super) fn set_request_whole(&self) {
        self.request_whole.store(true, Ordering::Relaxed);
    }

    pub(super) fn request_is_whole(&self) -> bool {
        self.request_whole.load(Ordering::Relaxed)
    }

    /// Marks the answer as ended: no more bytes of it will follow.
    pub(super) fn set_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Starts an HTTP/2 stream. Returns the delivery progress of its answer.
    pub(super) fn stream_begins(&self) -> Arc<Delivery> {
        let delivery = Arc::<Delivery>::default();
        *self.delivery.lock() = Some(Arc::clone(&delivery));
        delivery
    }

    /// Takes the delivery progress of the stream that has just begun, for the future that runs the
    /// stream.
    pub(super) fn take_delivery(&self) -> Arc<Delivery> {
        self.delivery.lock().take().unwrap_or_default()
    }

    /// Marks the body of the current request as invalid or cut short.
    pub(super) fn set_fault(&self, refusal: RequestRejected) {
        self.fault.store(1 + refusal as u8, Ordering::Relaxed);
    }

    pub(super) fn fault(&self) -> Option<RequestRejected> {
        let index = usize::from(self.fault.load(Ordering::Relaxed)).checked_sub(1)?;
        RequestRejected::ALL.get(index).copied()
    }
}

/// Use that is made of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnUse {
    /// No request has arrived so far.
    Fresh,
    /// The last request is answered.
    Idle,
    /// The bodies of all its requests have been arriving for some time, at this mean rate.
    Receiving { bytes_per_second: u64 },
    /// A request is being answered, or its body has just begun.
    Busy,
    /// The connection was asked to end.
    Ending,
}

/// Request that is being answered.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<ConnState>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.open_requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for ConnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnState")
            .field("draining", &self.draining)
            .field("usage", &self.usage())
            .field("request_whole", &self.request_whole)
            .field("answered", &self.answered)
            .field("fault", &self.fault())
            .finish_non_exhaustive()
    }
}

/// Counters of client connections. Each method is quick.
pub(super) struct ListenerMetrics {
    telemetry: Telemetry,
    open: metrics::Gauge,
}

impl ListenerMetrics {
    pub(super) fn new(telemetry: Telemetry) -> Self {
        Self { open: telemetry.open_connections(), telemetry }
    }

    /// Counts a connection that was accepted.
    pub(super) fn accepted(&self) {
        self.open.increment(1.0);
    }

    /// Counts the end of an accepted connection, for any reason.
    pub(super) fn closed(&self) {
        self.open.decrement(1.0);
    }

    /// Counts a connection that was closed before its first request, a message that was refused or did
    /// not arrive in time, or a connection that the gateway ends for `reason`.
    pub(super) fn refused(&self, reason: &'static str) {
        ConnectionRefused { reason }.emit(&self.telemetry);
    }

    /// Counts an answer that was cut off because its client took it too slowly.
    pub(super) fn cut_off(&self) {
        AnswerCutOff.emit(&self.telemetry);
    }

    /// Counts a failed TLS handshake with a client.
    pub(super) fn handshake_failed(&self, why: HandshakeError) {
        HandshakeFailed { listener: "clients", reason: why.label() }.emit(&self.telemetry);
    }

    /// Logs a failed accept. The usual cause is a lack of file descriptors. The listener continues
    /// after a pause.
    pub(super) fn accept_failed(&self, error: &io::Error) {
        tracing::warn!(%error, "no connection could be accepted; are there enough file descriptors?");
    }
}
