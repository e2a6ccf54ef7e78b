//! Response body: the body of the gateway's answer, as clients read it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::protocol::request::edit::EditedBody;
use crate::proxy::relay::buffer::{ClientStream, RelayBroken};

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
