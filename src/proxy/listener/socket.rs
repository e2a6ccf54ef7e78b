//! Client socket: the operations that the listener needs on a client's byte stream.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::tls::MaybeTlsStream;

/// Most bytes of one read into a buffer of held bytes.
pub(super) const READ_BYTES: usize = 8 * 1024;

/// A client's byte stream.
pub(super) trait ClientSocket: AsyncRead + AsyncWrite + Unpin {
    /// Ready when there is something to read: whether the peer has closed its side, even if unread
    /// bytes are left. The task is woken when the first byte comes, or the end.
    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<bool>;

    /// The protocol that the two sides chose in the TLS handshake. `None` without TLS or a choice.
    fn alpn(&self) -> Option<&[u8]> {
        None
    }
}

impl ClientSocket for MaybeTlsStream {
    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let tcp = match self {
            Self::Left(tcp) => tcp,
            Self::Right(tls) => tls.get_ref().0,
        };
        if ready!(tcp.poll_read_ready(cx)).is_err() {
            return Poll::Ready(true);
        }
        let ready = tcp.ready(Interest::READABLE).now_or_never();
        Poll::Ready(ready.is_some_and(|ready| ready.map_or(true, |ready| ready.is_read_closed())))
    }

    fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Left(_) => None,
            Self::Right(tls) => tls.get_ref().1.alpn_protocol(),
        }
    }
}

/// Reads once and appends to `kept`. Returns the number of bytes; 0 = the peer has closed its side.
/// No memory is allocated while there is nothing to read.
pub(super) fn poll_append<T: ClientSocket>(
    socket: &mut T,
    cx: &mut Context<'_>,
    kept: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    let mut space = [MaybeUninit::uninit(); READ_BYTES];
    let mut buf = ReadBuf::uninit(&mut space);
    ready!(Pin::new(socket).poll_read(cx, &mut buf))?;
    kept.extend_from_slice(buf.filled());
    Poll::Ready(Ok(buf.filled().len()))
}
