//! HTTP/1 framing: the start and end of each message in a client's bytes.
//!
//! Framing is pure: bytes in, a count of approved bytes or a refusal out. The result does not
//! depend on the split of the bytes into reads.

use crate::protocol::http1::chunk::ChunkedFrame;
use crate::proxy::listener::http1::head::{BodyFrame, HeadScan};
use crate::proxy::listener::rejected::RequestRejected;

/// Framing of a client's messages, one after another.
#[derive(Debug)]
pub(in crate::proxy::listener) struct Framing {
    stage: FramingStage,
    max_head_bytes: usize,
}

#[derive(Debug)]
enum FramingStage {
    Head(HeadScan),
    /// A body with Content-Length, and the bytes left of it.
    Length(u64),
    Chunked(ChunkedFrame),
    /// The message has ended, and no other has begun.
    Whole,
    Broken(RequestRejected),
}

impl Framing {
    /// Expects a head of at most `max_head_bytes`.
    pub(in crate::proxy::listener) fn new(max_head_bytes: usize) -> Self {
        Self { stage: FramingStage::Head(HeadScan::default()), max_head_bytes }
    }

    /// Expects the next message's head.
    pub(in crate::proxy::listener) fn next_message(&mut self) {
        self.stage = FramingStage::Head(HeadScan::default());
    }

    /// Whether the message has ended. The bytes that follow belong to the next message.
    pub(in crate::proxy::listener) fn is_whole(&self) -> bool {
        matches!(self.stage, FramingStage::Whole)
    }

    /// Number of the bytes in `bytes` that belong to this message and are approved. `bytes` starts
    /// with the first byte that was not approved before. No byte is approved until the head is
    /// whole.
    ///
    /// # Errors
    /// The rule that the first byte, or the head, breaks.
    pub(in crate::proxy::listener) fn advance(&mut self, bytes: &[u8]) -> Result<usize, RequestRejected> {
        let mut approved = 0;
        if let FramingStage::Head(scan) = &mut self.stage {
            match scan.scan(bytes, self.max_head_bytes) {
                Ok(None) => return Ok(0),
                Ok(Some((length, BodyFrame::Length(body)))) => {
                    approved = length;
                    self.stage = FramingStage::Length(body);
                }
                Ok(Some((length, BodyFrame::Chunked))) => {
                    approved = length;
                    self.stage = FramingStage::Chunked(ChunkedFrame::default());
                }
                Err(refusal) => self.stage = FramingStage::Broken(refusal),
            }
        }
        self.body(&bytes[approved..]).map(|body| approved + body).or_else(|refusal| {
            // Approved bytes pass first. The next call returns the refusal.
            if approved > 0 { Ok(approved) } else { Err(refusal) }
        })
    }

    fn body(&mut self, bytes: &[u8]) -> Result<usize, RequestRejected> {
        match &mut self.stage {
            FramingStage::Length(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                if *left == 0 {
                    self.stage = FramingStage::Whole;
                }
                Ok(taken)
            }
            FramingStage::Chunked(chunked) => {
                let (taken, outcome) = chunked.advance(bytes);
                let outcome = outcome.map_err(RequestRejected::from);
                match outcome {
                    Ok(()) if chunked.ended() => self.stage = FramingStage::Whole,
                    Ok(()) => {}
                    Err(refusal) => self.stage = FramingStage::Broken(refusal),
                }
                if taken > 0 { Ok(taken) } else { outcome.map(|()| 0) }
            }
            FramingStage::Broken(refusal) => Err(*refusal),
            FramingStage::Head(_) | FramingStage::Whole => Ok(0),
        }
    }
}

/// Frames a message that arrives in pieces. The outcome does not depend on the pieces.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_head(data: &[u8]) {
    let framed = |size: usize, max_head_bytes: usize| {
        let (mut framing, mut approved) = (Framing::new(max_head_bytes), 0);
        for end in (0..data.len()).step_by(size).map(|at| (at + size).min(data.len())) {
            while approved < end && !framing.is_whole() {
                match framing.advance(&data[approved..end]) {
                    Ok(0) => break,
                    Ok(count) => approved += count,
                    Err(refusal) => return (approved, Some(refusal)),
                }
            }
        }
        (approved, None)
    };
    for limit in [100, 2048] {
        let whole = framed(data.len().max(1), limit);
        assert_eq!(framed(1, limit), whole);
        assert_eq!(framed(7, limit), whole);
    }
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
