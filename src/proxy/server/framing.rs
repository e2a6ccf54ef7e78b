//! Where each HTTP/1 message starts and ends in a client's bytes.
//!
//! Pure: bytes in, a count of approved bytes or a refusal out. What comes
//! out does not depend on how the bytes were split.

use crate::proxy::server::chunk::Chunked;
use crate::proxy::server::head::{BodyFrame, HeadScan};
use crate::proxy::server::refusal::Refusal;

/// The frame of one message after the other.
#[derive(Debug)]
pub(super) struct Framing {
    stage: Stage,
    max_head_bytes: usize,
}

#[derive(Debug)]
enum Stage {
    Head(HeadScan),
    /// Bytes left of a body with Content-Length.
    Length(u64),
    Chunked(Chunked),
    /// The message has ended and no other has begun.
    Whole,
    Broken(Refusal),
}

impl Framing {
    /// Expects a head of at most `max_head_bytes`.
    pub(super) fn new(max_head_bytes: usize) -> Self {
        Self { stage: Stage::Head(HeadScan::default()), max_head_bytes }
    }

    /// Expects the next message's head.
    pub(super) fn next_message(&mut self) {
        self.stage = Stage::Head(HeadScan::default());
    }

    /// True when the message has ended; the bytes that follow belong to the
    /// next one.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.stage, Stage::Whole)
    }

    /// How many of `bytes` belong to this message and may go on. `bytes`
    /// starts with the first byte that was not approved before. While the
    /// head is not whole nothing is approved.
    ///
    /// # Errors
    /// The rule that the first byte, or the head, breaks.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        let mut approved = 0;
        if let Stage::Head(scan) = &mut self.stage {
            match scan.scan(bytes, self.max_head_bytes) {
                Ok(None) => return Ok(0),
                Ok(Some((length, BodyFrame::Length(body)))) => {
                    approved = length;
                    self.stage = Stage::Length(body);
                }
                Ok(Some((length, BodyFrame::Chunked))) => {
                    approved = length;
                    self.stage = Stage::Chunked(Chunked::default());
                }
                Err(refusal) => self.stage = Stage::Broken(refusal),
            }
        }
        self.body(&bytes[approved..]).map(|body| approved + body).or_else(|refusal| {
            // What is good goes on first; the next call reports the rest.
            if approved > 0 { Ok(approved) } else { Err(refusal) }
        })
    }

    fn body(&mut self, bytes: &[u8]) -> Result<usize, Refusal> {
        match &mut self.stage {
            Stage::Length(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                if *left == 0 {
                    self.stage = Stage::Whole;
                }
                Ok(taken)
            }
            Stage::Chunked(chunked) => {
                let (taken, outcome) = chunked.advance(bytes);
                match outcome {
                    Ok(()) if chunked.ended() => self.stage = Stage::Whole,
                    Ok(()) => {}
                    Err(refusal) => self.stage = Stage::Broken(refusal),
                }
                if taken > 0 { Ok(taken) } else { outcome.map(|()| 0) }
            }
            Stage::Broken(refusal) => Err(*refusal),
            Stage::Head(_) | Stage::Whole => Ok(0),
        }
    }
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
