//! Line buffer: splits the chunks of a stream into lines.

/// Most bytes of a line. A slice holds at most 1,000 endpoints.
const MAX_LINE: usize = 8 << 20;

/// Bytes of a stream whose lines have not been taken yet.
#[derive(Default)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    taken: usize,
}

impl LineBuffer {
    pub(super) fn add(&mut self, chunk: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(chunk);
    }

    /// Takes the next whole line that is not empty, without its end.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let rest = &self.bytes[self.taken..];
            let end = memchr::memchr(b'\n', rest)?;
            let line = rest[..end].trim_ascii();
            self.taken += end + 1;
            if !line.is_empty() {
                return Some(line.to_vec());
            }
        }
    }

    /// Whether the unfinished line is longer than [`MAX_LINE`].
    pub(super) const fn is_too_long(&self) -> bool {
        self.bytes.len() - self.taken > MAX_LINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_come() {
        let text = b"one\n\r\ntwo\r\nthree";
        for size in 1..text.len() {
            let (mut lines, mut seen) = (LineBuffer::default(), Vec::new());
            for chunk in text.chunks(size) {
                lines.add(chunk);
                seen.extend(std::iter::from_fn(|| lines.next()));
            }
            assert_eq!(seen, [b"one".to_vec(), b"two".to_vec()]);
            assert!(!lines.is_too_long());
        }
    }

    #[test]
    fn a_line_without_an_end_is_found_out() {
        let mut lines = LineBuffer::default();
        lines.add(&vec![b'x'; MAX_LINE]);
        assert!(lines.next().is_none() && !lines.is_too_long());
        lines.add(b"x");
        assert!(lines.is_too_long());
    }
}
