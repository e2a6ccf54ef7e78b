//! HTTP/1 connection, from its first request to its last byte.

pub(super) mod framing;
pub(super) mod head;
pub(super) mod strict_io;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::Service;
use hyper_util::rt::TokioIo;

use crate::proxy::listener::answer::BoxError;
use crate::proxy::listener::answer::GuardedService;
use crate::proxy::listener::conn_state::ConnState;
use crate::proxy::listener::http1::strict_io::StrictIo;
use crate::proxy::listener::socket::ClientSocket;

/// Size limit of a connection's read buffer and of its write buffer, in bytes. The limit is higher
/// if `max_head_bytes` is.
const MAX_BUFFER_BYTES: usize = 64 * 1024;

/// Serves requests until the connection ends.
pub(super) fn serve<T, S, B>(
    io: StrictIo<T>,
    service: S,
    max_head_bytes: usize,
    state: Arc<ConnState>,
) -> impl Future<Output = ()>
where
    T: ClientSocket,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    let guarded = GuardedService::new(service, Arc::clone(&state));
    let mut connection = Builder::new()
        .max_buf_size(MAX_BUFFER_BYTES.max(max_head_bytes))
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(io), guarded);
    // Outside of the future, which would keep the room of what it consumes.
    async move {
        let mut told = false;
        let outcome = poll_fn(|cx| {
            if state.poll_draining(cx).is_ready() && !told {
                told = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            Pin::new(&mut connection).poll(cx)
        })
        .await;
        // After an error, the client or the answer's source is gone, and an orderly end has no use.
        if outcome.is_ok() {
            Box::pin(connection.into_parts().io.into_inner().finish()).await;
        }
    }
}
