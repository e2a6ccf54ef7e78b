//! What the gateway answers with.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::proxy::relay::{Relay, RelayBroken};
use crate::wire::splice::Spliced;

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// Known whole.
    Whole(Spliced),
    /// A stream from an engine.
    Stream(Box<Relay>),
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Spliced::from(bytes))
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
            Self::Stream(relay) => relay.poll_frame(cx),
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
