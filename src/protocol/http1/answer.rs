//! Answer of an engine: its head and the end of its body, found in the bytes as they arrive.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode, Version};

use crate::protocol::http1::chunk::{ChunkError, ChunkedFrame, TakenBytes};
use crate::protocol::http1::parse_length;

/// Most bytes of one head.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most header lines of one head.
const MAX_FIELDS: usize = 100;

/// Reason why an engine's bytes are no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedAnswer {
    /// The head is not HTTP/1.
    #[error("the head of the answer is not HTTP/1: {0}")]
    Head(#[from] httparse::Error),
    /// The head is longer than the limit.
    #[error("the head of the answer has more than {MAX_HEAD_BYTES} bytes")]
    LongHead,
    /// The engine switches to another protocol.
    #[error("the answer has status 101, which nobody asked for")]
    Upgrade,
    /// The lengths contradict each other or are no numbers.
    #[error("the length of the answer is malformed")]
    Length,
    /// Transfer-Encoding in HTTP/1.0.
    #[error("the answer has a Transfer-Encoding in HTTP/1.0")]
    Encoding,
    /// The chunked framing is broken.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
}

/// The head of an answer, and what it says about the bytes behind it.
#[derive(Debug)]
pub(crate) struct AnswerHead {
    pub(crate) parts: Parts,
    pub(crate) body: AnswerFrame,
    /// Whether the connection can take another request after the answer.
    pub(crate) keep_alive: bool,
    /// Bytes of the head.
    pub(crate) length: usize,
}

impl AnswerHead {
    /// Parses the head at the start of `bytes`. Interim answers (100 to 199) are skipped. `None` if
    /// the head is not whole.
    ///
    /// # Errors
    /// The bytes are no head of an answer to a `POST`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, MalformedAnswer> {
        let mut interim = 0;
        loop {
            let mut fields = [const { std::mem::MaybeUninit::uninit() }; MAX_FIELDS];
            let mut found = httparse::Response::new(&mut []);
            let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
                &mut found,
                &bytes[interim..],
                &mut fields,
            )?;
            let httparse::Status::Complete(length) = parsed else {
                return if bytes.len() >= MAX_HEAD_BYTES { Err(MalformedAnswer::LongHead) } else { Ok(None) };
            };
            let code = found.code.and_then(|code| StatusCode::from_u16(code).ok());
            let status = code.ok_or(httparse::Error::Status)?;
            match status {
                StatusCode::SWITCHING_PROTOCOLS => return Err(MalformedAnswer::Upgrade),
                _ if status.is_informational() => interim += length,
                _ => return Self::new(bytes, interim + length, status, &found).map(Some),
            }
        }
    }

    fn new(
        bytes: &[u8],
        length: usize,
        status: StatusCode,
        found: &httparse::Response<'_, '_>,
    ) -> Result<Self, MalformedAnswer> {
        let mut parts = Response::new(()).into_parts().0;
        parts.status = status;
        parts.version = if found.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        parts.headers = HeaderMap::with_capacity(found.headers.len());
        let head = Bytes::copy_from_slice(&bytes[..length]);
        for field in &*found.headers {
            let start = field.value.as_ptr().addr() - bytes.as_ptr().addr();
            let value = HeaderValue::from_maybe_shared(head.slice(start..start + field.value.len()));
            let value = value.map_err(|_| httparse::Error::HeaderValue)?;
            let name = HeaderName::from_bytes(field.name.as_bytes());
            parts.headers.append(name.map_err(|_| httparse::Error::HeaderName)?, value);
        }
        let body = AnswerFrame::new(&parts)?;
        let keep_alive = body != AnswerFrame::UntilClose && keeps_alive(&parts);
        Ok(Self { parts, body, keep_alive, length })
    }
}

fn keeps_alive(parts: &Parts) -> bool {
    let says = |word: &[u8]| {
        let values = parts.headers.get_all(CONNECTION).iter();
        let mut words = values.flat_map(|value| value.as_bytes().split(|&b| b == b','));
        words.any(|found| found.trim_ascii().eq_ignore_ascii_case(word))
    };
    if parts.version == Version::HTTP_10 { says(b"keep-alive") } else { !says(b"close") }
}

/// Position in the body of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AnswerFrame {
    /// The bytes that are left. 0 = the body has ended.
    Length(u64),
    Chunked(ChunkedFrame),
    /// The body ends with the connection.
    UntilClose,
    /// The framing is broken behind the data that was taken.
    Broken(ChunkError),
}

impl AnswerFrame {
    fn new(parts: &Parts) -> Result<Self, MalformedAnswer> {
        if matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            return Ok(Self::Length(0));
        }
        if let Some(encoding) = parts.headers.get_all(TRANSFER_ENCODING).iter().next_back() {
            if parts.version == Version::HTTP_10 {
                return Err(MalformedAnswer::Encoding);
            }
            let last = encoding.as_bytes().rsplit(|&b| b == b',').next().unwrap_or_default();
            let chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
            return Ok(if chunked { Self::Chunked(ChunkedFrame::default()) } else { Self::UntilClose });
        }
        let mut lengths = parts.headers.get_all(CONTENT_LENGTH).iter();
        let Some(length) = lengths.next() else { return Ok(Self::UntilClose) };
        if lengths.any(|other| other != length) {
            return Err(MalformedAnswer::Length);
        }
        parse_length(length.as_bytes()).map(Self::Length).ok_or(MalformedAnswer::Length)
    }

    /// Whether the body has ended.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(frame) => frame.ended(),
            Self::UntilClose | Self::Broken(_) => false,
        }
    }

    /// Takes the next bytes, as far as they belong to the answer, and moves the body's data among
    /// them to the front.
    ///
    /// Bytes that break the framing end it: see [`Self::broken`].
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> TakenBytes {
        match self {
            Self::Length(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                TakenBytes { data: taken, all: taken }
            }
            Self::Chunked(frame) => {
                let (taken, outcome) = frame.decode(bytes);
                if let Err(error) = outcome {
                    *self = Self::Broken(error);
                }
                taken
            }
            Self::UntilClose => TakenBytes { data: bytes.len(), all: bytes.len() },
            Self::Broken(_) => TakenBytes::default(),
        }
    }

    /// The rule that the bytes behind the data broke.
    pub(crate) const fn broken(&self) -> Option<ChunkError> {
        match self {
            Self::Broken(error) => Some(*error),
            _ => None,
        }
    }

    /// Ends the body with the connection. Returns whether the body is whole.
    pub(crate) fn close(&mut self) -> bool {
        if *self == Self::UntilClose {
            *self = Self::Length(0);
        }
        self.has_ended()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The answer's status, data and leftover bytes, read in pieces of `size` bytes.
    fn read(bytes: &[u8], size: usize) -> Result<(u16, Vec<u8>, usize, bool), MalformedAnswer> {
        let mut end = 0;
        let head = loop {
            end = (end + size).min(bytes.len());
            match AnswerHead::parse(&bytes[..end])? {
                Some(head) => break head,
                None if end == bytes.len() => return Ok((0, Vec::new(), 0, false)),
                None => {}
            }
        };
        let (mut frame, mut data, mut at) = (head.body, Vec::new(), head.length);
        while at < bytes.len() && !frame.has_ended() {
            let mut piece = bytes[at..(at + size).min(bytes.len())].to_vec();
            let taken = frame.decode(&mut piece);
            data.extend_from_slice(&piece[..taken.data]);
            at += taken.all;
            if let Some(error) = frame.broken() {
                return Err(error.into());
            }
        }
        let whole = frame.close();
        Ok((head.parts.status.as_u16(), data, bytes.len() - at, whole))
    }

    fn parse(text: &str) -> Result<Option<AnswerHead>, MalformedAnswer> {
        AnswerHead::parse(text.as_bytes())
    }

    #[test]
    fn the_end_of_a_body_is_found_in_each_framing() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nabcd\r\n02\r\nef\r\n0\r\nt: 1\r\n\r\n";
        for (text, data, rest, whole) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcX", "abc", 1, true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab", "ab", 0, false),
            ("HTTP/1.1 200 OK\r\n\r\nabc", "abc", 0, true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc", "abc", 0, true),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\nX", "", 1, true),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab", "a", 1, true),
            (chunked, "abcdef", 0, true),
            (&chunked[..chunked.len() - 1], "abcdef", 0, false),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                let (_, found, left, is_whole) = read(text.as_bytes(), size).unwrap();
                let expected_rest = if size == 1000 { rest } else { left };
                assert_eq!(
                    (&*String::from_utf8(found).unwrap(), left, is_whole),
                    (data, expected_rest, whole),
                    "{text} by {size}"
                );
            }
        }
    }

    #[test]
    fn connections_are_kept_as_the_head_says() {
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: Upgrade, Close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 0\r\nConnection: Keep-Alive\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ] {
            assert_eq!(parse(text).unwrap().unwrap().keep_alive, expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_is_named() {
        assert!(parse("HTTP/1.1 200 OK\r\ncontent-le").unwrap().is_none());
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD_BYTES));
        assert_eq!(parse(&long).unwrap_err(), MalformedAnswer::LongHead);
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(parse(&many).unwrap_err(), httparse::Error::TooManyHeaders.into());
        for (text, error) in [
            ("SSH-2.0-x\r\n", httparse::Error::Version.into()),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", MalformedAnswer::Upgrade),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", MalformedAnswer::Length),
            ("HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n", MalformedAnswer::Length),
            ("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", MalformedAnswer::Encoding),
        ] {
            assert_eq!(parse(text).unwrap_err(), error, "{text}");
        }
        let broken = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
        assert_eq!(read(broken, 1000).unwrap_err(), ChunkError::Size.into());
    }

    proptest! {
        #[test]
        fn an_answer_does_not_depend_on_its_pieces(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            mutation in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
            size in 1_usize..50,
        ) {
            let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx: y\r\n\r\n".to_vec();
            for chunk in &chunks {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            if mutation.is_none() {
                let (status, data, rest, whole) = read(&bytes, size).unwrap();
                prop_assert_eq!((status, data, rest, whole), (200, chunks.concat(), 0, true));
            }
            if let Some((at, byte)) = mutation {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let by_bytes = read(&bytes, 1).map(|(status, data, _, whole)| (status, data, whole));
            let in_pieces = read(&bytes, size).map(|(status, data, _, whole)| (status, data, whole));
            prop_assert_eq!(by_bytes, in_pieces);
        }
    }
}
