//! What the gateway answers with.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::proxy::early::{Failure, HeldStream, Next};
use crate::proxy::relay::{Relay, RelayBroken};
use crate::wire::splice::Spliced;

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// Known whole.
    Whole(Spliced),
    /// A stream from an engine.
    Stream(Box<Relay>),
    /// A stream whose head is out before there is an answer.
    Held(Box<HeldStream>),
    /// What is left to say of one that came to nothing.
    Failed(Failure),
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
        let this = self.get_mut();
        loop {
            match this {
                Self::Whole(pieces) => {
                    let never = |error: Infallible| match error {};
                    return Pin::new(pieces).poll_frame(cx).map_err(never);
                }
                Self::Stream(relay) => return relay.poll_frame(cx),
                Self::Held(held) => match ready!(held.poll_next(cx)) {
                    Next::Sign(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                    Next::Answer(answer) => *this = answer,
                },
                Self::Failed(failure) => {
                    let event = ready!(failure.poll_next(cx));
                    return Poll::Ready(Some(event.map(Frame::data).ok_or(RelayBroken)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(pieces) => pieces.is_end_stream(),
            Self::Stream(_) | Self::Held(_) | Self::Failed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(pieces) => pieces.size_hint(),
            Self::Stream(_) | Self::Held(_) | Self::Failed(_) => SizeHint::default(),
        }
    }
}
