//! Client connection: the HTTP version is the one that TLS chose, else it is detected; then served.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;

use crate::config::settings::ListenerLimits;
use crate::proxy::listener::answer::BoxError;
use crate::proxy::listener::clock::{ConnClock, ConnWait, SendProgress};
use crate::proxy::listener::conn_state::ConnState;
use crate::proxy::listener::http1::strict_io::StrictIo;
use crate::proxy::listener::http2::resets::ClientResets;
use crate::proxy::listener::rejected::RequestRejected;
use crate::proxy::listener::socket::{ClientSocket, poll_append};
use crate::proxy::listener::{http1, http2};

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves `socket` until the connection ends.
pub(super) async fn serve<T, S, B>(
    mut socket: T,
    service: S,
    limits: Arc<ListenerLimits>,
    state: Arc<ConnState>,
    resets: ClientResets,
) where
    T: ClientSocket,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut clock, progress) = (ConnClock::new(&limits), SendProgress::new(&limits));
    let mut held = BytesMut::new();
    let limit = limits.max_head_bytes;
    let chosen = match socket.alpn() {
        Some(b"h2") => Some(ProtocolSniff::Http2),
        Some(b"http/1.1") => Some(ProtocolSniff::Http1),
        _ => None,
    };
    match poll_fn(|cx| poll_protocol(&mut socket, cx, &mut held, chosen, &mut clock, &state)).await {
        ProtocolSniff::Http1 => {
            let io = StrictIo::new(socket, held, clock, progress, limit, Arc::clone(&state));
            http1::serve(io, service, limit, state).await;
        }
        ProtocolSniff::Http2 if resets.are_too_many() => {
            state.metrics.refused("stream_resets");
            Box::pin(http2::refuse(socket, http2::ENHANCE_YOUR_CALM)).await;
        }
        ProtocolSniff::Http2 => {
            // Boxed, as an HTTP/1 connection would keep its room.
            Box::pin(http2::serve(socket, held, clock, service, &limits, state, resets)).await;
        }
        ProtocolSniff::NotHttp2 => {
            state.metrics.refused(RequestRejected::Version.label());
            Box::pin(http2::refuse(socket, http2::PROTOCOL_ERROR)).await;
        }
        ProtocolSniff::TooSlow if chosen == Some(ProtocolSniff::Http2) => {
            state.metrics.refused(RequestRejected::HeadTimeout.label());
            Box::pin(http2::refuse(socket, http2::PROTOCOL_ERROR)).await;
        }
        ProtocolSniff::TooSlow => {
            let mut io = StrictIo::new(socket, held, clock, progress, limit, state);
            io.refuse_head(RequestRejected::HeadTimeout);
            Box::pin(io.finish()).await;
        }
        ProtocolSniff::Nothing => {}
    }
}

/// Protocol that a connection starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProtocolSniff {
    Http1,
    Http2,
    /// TLS chose HTTP/2, and the first bytes are not its preface.
    NotHttp2,
    /// The first bytes fit both protocols, and no more bytes came in time.
    TooSlow,
    /// The connection ended, timed out or drained before its first byte or full preface.
    Nothing,
}

fn poll_protocol<T: ClientSocket>(
    socket: &mut T,
    cx: &mut Context<'_>,
    held: &mut BytesMut,
    chosen: Option<ProtocolSniff>,
    clock: &mut ConnClock,
    state: &ConnState,
) -> Poll<ProtocolSniff> {
    if state.poll_draining(cx).is_ready() {
        return Poll::Ready(ProtocolSniff::Nothing);
    }
    loop {
        if let Some(opening) = check_opening(held, chosen) {
            return Poll::Ready(opening);
        }
        match poll_append(socket, cx, held) {
            Poll::Ready(Ok(1..)) => {}
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(ProtocolSniff::Nothing),
            Poll::Pending if held.is_empty() => {
                return clock.poll_overdue(cx, ConnWait::Idle).map(|()| ProtocolSniff::Nothing);
            }
            Poll::Pending => {
                return clock.poll_overdue(cx, ConnWait::Head).map(|()| ProtocolSniff::TooSlow);
            }
        }
    }
}

/// The protocol of the first bytes; `chosen` is that of TLS. `None` until the bytes decide.
fn check_opening(bytes: &[u8], chosen: Option<ProtocolSniff>) -> Option<ProtocolSniff> {
    match (chosen, classify(bytes)) {
        (Some(ProtocolSniff::Http1), _) => (!bytes.is_empty()).then_some(ProtocolSniff::Http1),
        (Some(ProtocolSniff::Http2), Some(ProtocolSniff::Http1)) => Some(ProtocolSniff::NotHttp2),
        (_, sniffed) => sniffed,
    }
}

/// Distinguishes HTTP/1 from HTTP/2. `None` until the bytes decide.
fn classify(bytes: &[u8]) -> Option<ProtocolSniff> {
    let common = bytes.len().min(HTTP2_PREFACE.len());
    if bytes[..common] != HTTP2_PREFACE[..common] {
        return Some(ProtocolSniff::Http1);
    }
    (common == HTTP2_PREFACE.len()).then_some(ProtocolSniff::Http2)
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;

#[cfg(test)]
mod opening_tests {
    use super::{ProtocolSniff, check_opening, classify};

    #[test]
    fn protocol_is_known_as_soon_as_the_bytes_tell() {
        assert_eq!(classify(b""), None);
        assert_eq!(classify(b"P"), None);
        assert_eq!(classify(b"PO"), Some(ProtocolSniff::Http1));
        assert_eq!(classify(b"GET / HTTP/1.1\r\n\r\n"), Some(ProtocolSniff::Http1));
        assert_eq!(classify(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"), None);
        assert_eq!(classify(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0"), Some(ProtocolSniff::Http2));
        assert_eq!(classify(b"PRI * HTTP/2.0\r\n\r\nXX"), Some(ProtocolSniff::Http1));
    }

    #[test]
    fn what_tls_chose_is_not_detected_again() {
        let http2 = Some(ProtocolSniff::Http2);
        assert_eq!(check_opening(b"PRI", http2), None);
        assert_eq!(check_opening(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", http2), http2);
        assert_eq!(check_opening(b"GET / HTTP/1.1\r\n", http2), Some(ProtocolSniff::NotHttp2));
        let http1 = Some(ProtocolSniff::Http1);
        assert_eq!((check_opening(b"", http1), check_opening(b"P", http1)), (None, http1));
        assert_eq!(check_opening(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", None), http2);
    }
}
