//! SSE scanner: cuts a byte stream of server-sent events into frames, each with its bytes
//! unchanged. A frame that lies within one chunk shares the chunk's memory.
//!
//! The scanner knows all three line ends of the standard. A CR at the end of a chunk waits for the
//! next byte, which may be its LF. The frames therefore do not depend on where the chunks were cut.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

/// One event (or comment) with the empty line that ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseFrame {
    bytes: Bytes,
    event: Range<usize>,
    data: FrameData,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum FrameData {
    None,
    /// One `data:` line, by far the common case.
    Line(Range<usize>),
    /// Several `data:` lines, joined by LF.
    Joined(Vec<u8>),
}

impl SseFrame {
    fn new(bytes: Bytes) -> Self {
        let mut event = 0..0;
        let mut data = FrameData::None;
        let mut at = 0;
        while at < bytes.len() {
            let end = memchr::memchr2(b'\n', b'\r', &bytes[at..]).map_or(bytes.len(), |length| at + length);
            if let Some(start) = field(&bytes[at..end], b"data") {
                data = data.and_line(&bytes, at + start..end);
            } else if let Some(start) = field(&bytes[at..end], b"event") {
                event = at + start..end;
            }
            at = end + 1;
        }
        Self { bytes, event, data }
    }

    /// The bytes of the frame, unchanged.
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The value of the frame's `event:` field, empty when it has none.
    pub fn event(&self) -> &[u8] {
        &self.bytes[self.event.clone()]
    }

    /// The frame's data, its lines joined by LF; absent for a comment.
    pub fn data(&self) -> Option<&[u8]> {
        match &self.data {
            FrameData::None => None,
            FrameData::Line(range) => Some(&self.bytes[range.clone()]),
            FrameData::Joined(joined) => Some(joined),
        }
    }

    /// The range of the data in [`SseFrame::bytes`], when the data is one line.
    pub(crate) fn data_range(&self) -> Option<Range<usize>> {
        match &self.data {
            FrameData::Line(range) => Some(range.clone()),
            FrameData::None | FrameData::Joined(_) => None,
        }
    }
}

impl FrameData {
    fn and_line(self, bytes: &Bytes, line: Range<usize>) -> Self {
        let mut joined = match self {
            Self::None => return Self::Line(line),
            Self::Line(first) => bytes[first].to_vec(),
            Self::Joined(joined) => joined,
        };
        joined.push(b'\n');
        joined.extend_from_slice(&bytes[line]);
        Self::Joined(joined)
    }
}

/// The start of the value, if the line is the field `name`.
fn field(line: &[u8], name: &[u8]) -> Option<usize> {
    let rest = line.strip_prefix(name)?;
    match rest {
        [] => Some(name.len()),
        [b':', b' ', ..] => Some(name.len() + 2),
        [b':', ..] => Some(name.len() + 1),
        _ => None,
    }
}

/// The error of a frame that is longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an event is longer than {limit} bytes")]
pub struct FrameTooLong {
    /// The limit, in bytes.
    pub limit: usize,
}

/// Scanner that cuts the chunks of a stream into frames.
#[derive(Debug)]
pub struct SseScanner {
    chunk: Bytes,
    /// The number of bytes of the chunk that were scanned.
    seen: usize,
    /// The start of a frame, from earlier chunks.
    partial: BytesMut,
    lines: FrameEndFinder,
    limit: usize,
}

impl SseScanner {
    /// A scanner for frames of up to `limit` bytes each.
    pub fn new(limit: usize) -> Self {
        Self {
            chunk: Bytes::new(),
            seen: 0,
            partial: BytesMut::new(),
            lines: FrameEndFinder::default(),
            limit,
        }
    }

    /// Takes the next bytes of the stream. A push is cheap when [`SseScanner::next_frame`] was
    /// called until it returned none.
    pub fn push(&mut self, chunk: Bytes) {
        let unseen = self.chunk.split_off(self.seen);
        self.partial.extend_from_slice(&self.chunk);
        self.chunk = if unseen.is_empty() { chunk } else { Bytes::from([unseen, chunk].concat()) };
        self.seen = 0;
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// [`FrameTooLong`], at this and every later call.
    pub fn next_frame(&mut self) -> Result<Option<SseFrame>, FrameTooLong> {
        let limit = self.limit;
        let Some(length) = self.lines.frame_end(&self.chunk[self.seen..]) else {
            self.seen = self.chunk.len();
            return if self.leftover() > limit { Err(FrameTooLong { limit }) } else { Ok(None) };
        };
        let tail = self.chunk.split_to(self.seen + length);
        self.seen = 0;
        let bytes = if self.partial.is_empty() {
            tail
        } else {
            self.partial.extend_from_slice(&tail);
            self.partial.split().freeze()
        };
        if bytes.len() > limit {
            self.partial = BytesMut::from(&bytes[..]);
            return Err(FrameTooLong { limit });
        }
        Ok(Some(SseFrame::new(bytes)))
    }

    /// The last frame at the end of the stream, when the stream ends in the CR of an empty line.
    /// After this call, [`SseScanner::leftover`] counts the bytes of an unfinished frame.
    pub fn finish(&mut self) -> Option<SseFrame> {
        if !self.lines.blank_cr {
            return None;
        }
        self.lines = FrameEndFinder::default();
        self.push(Bytes::new());
        Some(SseFrame::new(self.partial.split().freeze()))
    }

    /// The number of bytes of an unfinished frame.
    pub fn leftover(&self) -> usize {
        self.partial.len().saturating_add(self.chunk.len())
    }
}

/// Finder of the empty line that ends a frame.
#[derive(Debug, Default)]
struct FrameEndFinder {
    /// The current line has bytes.
    in_line: bool,
    /// The last byte was a CR; an LF after it is part of the same line end.
    cr: bool,
    /// The last byte was a CR that ended an empty line.
    blank_cr: bool,
}

impl FrameEndFinder {
    /// The number of `bytes` up to and with the end of the current frame; absent when `bytes` do
    /// not reach this end.
    fn frame_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            if self.cr {
                at += usize::from(*bytes.get(at)? == b'\n');
                self.cr = false;
                if std::mem::take(&mut self.blank_cr) {
                    return Some(at);
                }
            }
            let rest = &bytes[at..];
            let Some(length) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.in_line |= !rest.is_empty();
                return None;
            };
            let blank = length == 0 && !self.in_line;
            self.in_line = false;
            self.cr = rest[length] == b'\r';
            self.blank_cr = self.cr && blank;
            at += length + 1;
            if blank && !self.cr {
                return Some(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(chunks: &[&[u8]], limit: usize) -> (Vec<Bytes>, usize, bool) {
        let mut scanner = SseScanner::new(limit);
        let mut frames = Vec::new();
        for chunk in chunks {
            scanner.push(Bytes::copy_from_slice(chunk));
            loop {
                match scanner.next_frame() {
                    Ok(Some(frame)) => frames.push(frame.bytes().clone()),
                    Ok(None) => break,
                    Err(error) => {
                        assert_eq!(scanner.next_frame(), Err(error));
                        return (frames, 0, true);
                    }
                }
            }
        }
        frames.extend(scanner.finish().map(|frame| frame.bytes().clone()));
        (frames, scanner.leftover(), false)
    }

    fn only(text: &'static str) -> SseFrame {
        let mut scanner = SseScanner::new(1000);
        scanner.push(Bytes::from_static(text.as_bytes()));
        let frame = scanner.next_frame().unwrap().or_else(|| scanner.finish()).unwrap();
        assert_eq!((frame.bytes(), scanner.leftover()), (&Bytes::from(text), 0));
        frame
    }

    #[test]
    fn fields_of_a_frame() {
        for end in ["\n", "\r\n", "\r"] {
            let text =
                format!("event: delta{end}id: 7{end}data: one{end}data:two{end}data{end}:no{end}{end}");
            let frame = only(text.leak());
            assert_eq!((frame.event(), frame.data()), (&b"delta"[..], Some(&b"one\ntwo\n"[..])));
        }
        assert_eq!(only(": keep-alive\n\n").data(), None);
        assert_eq!(only("\n").data(), None);
        assert_eq!(only("data:\n\n").data(), Some(&b""[..]));
        assert_eq!(only("data:  x\n\n").data(), Some(&b" x"[..]));
        assert_eq!(only("database: x\n\n").data(), None);
    }

    #[test]
    fn a_frame_within_a_chunk_is_not_copied() {
        let chunk = Bytes::from_static(b"data: 1\n\ndata: 2\n\nda");
        let mut scanner = SseScanner::new(100);
        scanner.push(chunk.clone());
        let first = scanner.next_frame().unwrap().unwrap();
        assert_eq!(first.bytes().as_ptr(), chunk.as_ptr());
        let second = scanner.next_frame().unwrap().unwrap();
        assert_eq!(second.bytes().as_ptr(), chunk[9..].as_ptr());
        assert_eq!((scanner.next_frame(), scanner.leftover(), scanner.finish()), (Ok(None), 2, None));
    }

    #[test]
    fn long_frames_are_refused_at_the_limit() {
        assert_eq!(scan(&[b"data: 12\n\n"], 10), (vec![Bytes::from("data: 12\n\n")], 0, false));
        assert!(scan(&[b"data: 12\n\n"], 9).2);
        assert!(scan(&[b"data: 12", b"34567"], 12).2);
    }

    /// Copying the lines so far for each line would take minutes.
    #[test]
    fn an_event_may_consist_of_millions_of_lines() {
        let lines = 2_500_000;
        let mut scanner = SseScanner::new(16 << 20);
        scanner.push(Bytes::from("data:\n".repeat(lines) + "\n"));
        let frame = scanner.next_frame().unwrap().unwrap();
        assert_eq!(frame.data().map(<[u8]>::len), Some(lines - 1));
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(&b"\n"[..]),
            Just(&b"\r"[..]),
            Just(&b"\r\n"[..]),
            Just(&b"data: {\"a\":1}"[..]),
            Just(&b"event: x"[..]),
            Just(&b": c"[..]),
            Just(&b"\xff\x00"[..]),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn the_cuts_do_not_matter(
            bytes in stream(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
            limit in 0_usize..120,
        ) {
            let whole = scan(&[&bytes], limit);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let mut at = 0;
            let mut chunks = Vec::new();
            for cut in cuts.into_iter().chain([bytes.len()]) {
                chunks.push(&bytes[at..cut]);
                at = cut;
            }
            prop_assert_eq!(&scan(&chunks, limit), &whole);
            let (frames, leftover, too_long) = whole;
            if !too_long {
                let joined = frames.concat();
                prop_assert_eq!(&joined[..], &bytes[..bytes.len() - leftover]);
            }
        }

        #[test]
        fn any_bytes_are_scanned(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            scan(&[&bytes], 200);
        }
    }
}
