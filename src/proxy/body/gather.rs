//! Body assembly: a request body put together from its pieces.

use bytes::{Bytes, BytesMut};

/// Largest buffer that is reserved because of an announced length, in bytes.
const MAX_PREALLOCATED_BYTES: usize = 1 << 20;

/// A body so far: the first piece without a copy, or a buffer from the second piece on.
#[derive(Debug, Default)]
pub(in crate::proxy) struct GatheredBody {
    /// Announced length of the body, in bytes. 0 if the sender announced none.
    expected: usize,
    whole: Bytes,
    parts: BytesMut,
}

impl GatheredBody {
    pub(in crate::proxy) fn new(expected: Option<usize>) -> Self {
        Self { expected: expected.unwrap_or(0), ..Self::default() }
    }

    pub(in crate::proxy) fn len(&self) -> usize {
        self.whole.len() + self.parts.len()
    }

    pub(in crate::proxy) fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if self.len() == 0 {
            self.whole = data;
            return;
        }
        if self.parts.is_empty() {
            let believed = self.expected.min(MAX_PREALLOCATED_BYTES);
            self.parts.reserve(believed.max(self.whole.len() + data.len()));
            self.parts.extend_from_slice(&std::mem::take(&mut self.whole));
        }
        self.parts.extend_from_slice(&data);
    }

    pub(in crate::proxy) fn finish(self) -> Bytes {
        if self.parts.is_empty() { self.whole } else { self.parts.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(pieces: &[Bytes]) -> Bytes {
        let mut gathered = GatheredBody::new(None);
        for piece in pieces {
            gathered.push(piece.clone());
        }
        gathered.finish()
    }

    #[test]
    fn one_piece_is_not_copied() {
        let piece = Bytes::from(vec![7; 100]);
        let whole = gather(&[Bytes::new(), piece.clone(), Bytes::new()]);
        assert_eq!((whole.as_ptr(), whole.len()), (piece.as_ptr(), piece.len()));
    }

    #[test]
    fn pieces_stand_in_order() {
        let pieces = [&b""[..], b"one ", b"", b"two ", b"three"].map(Bytes::from_static);
        assert_eq!(gather(&pieces), "one two three");
        assert_eq!(gather(&[]), "");
    }
}
