//! Response body: the body of the gateway's answer, as clients read it.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;

use crate::protocol::request::edit::EditedBody;
use crate::proxy::relay::buffer::{BufferEnd, BufferReader};

/// Error of a stream that broke after its client had seen part of it. After an error event, the
/// connection is closed without a proper end.
#[derive(Debug, thiserror::Error)]
#[error("the engine's stream broke")]
pub struct RelayBroken;

/// Body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// A complete answer.
    Whole(EditedBody),
    /// A stream from an engine.
    Stream(ClientStream),
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(EditedBody::from(bytes))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = RelayBroken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayBroken>>> {
        match self.get_mut() {
            Self::Whole(pieces) => {
                let never = |error: Infallible| match error {};
                Pin::new(pieces).poll_frame(cx).map_err(never)
            }
            Self::Stream(stream) => stream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(pieces) => pieces.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(pieces) => pieces.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// The client's side of a stream, which reads the relay buffer. An early drop means that the client
/// left, and aborts the task that fills the buffer.
pub struct ClientStream {
    buffer: BufferReader,
    filling: Option<AbortHandle>,
    /// Whether the last event of a broken stream was passed on and the transport had a turn to
    /// flush it.
    flushed: bool,
}

impl ClientStream {
    pub(in crate::proxy) const fn new(buffer: BufferReader, filling: Option<AbortHandle>) -> Self {
        Self { buffer, filling, flushed: false }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayBroken>>> {
        match ready!(self.buffer.poll_next(cx)) {
            Ok(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            Err(BufferEnd::Whole) => Poll::Ready(None),
            Err(BufferEnd::Broken) if self.flushed => Poll::Ready(Some(Err(RelayBroken))),
            Err(BufferEnd::Broken) => {
                self.flushed = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        if let Some(filling) = &self.filling {
            filling.abort();
        }
    }
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientStream").field("flushed", &self.flushed).finish_non_exhaustive()
    }
}
