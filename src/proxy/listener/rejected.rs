//! Rejected messages: the reasons why the listener refuses a message, and the answers to it.

use std::fmt;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use crate::protocol::http1::chunk::ChunkError;

/// Reason why a message was refused. The set of reasons is fixed, so a reason can label a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RequestRejected {
    /// The first line is not `METHOD SP target SP HTTP/1.x`.
    RequestLine,
    /// The HTTP version is missing, or is neither 1.0 nor 1.1.
    Version,
    /// The target is in no accepted form, or has a byte that no target may have.
    Target,
    /// The method is CONNECT. The gateway is no tunnel.
    Connect,
    /// An HTTP/1.1 or HTTP/2 request that names no host.
    HostMissing,
    /// More than one Host.
    HostRepeated,
    /// A Host that is no `host[:port]`.
    HostInvalid,
    /// The target or `:authority` names another host than Host does.
    HostMismatch,
    /// A header name that is no token, or a line without a colon.
    HeaderName,
    /// White space between a header's name and its colon.
    SpaceBeforeColon,
    /// A header line that starts with white space.
    Folding,
    /// A control byte (NUL and bare CR among them) in the head.
    ControlByte,
    /// A line that ends without CR.
    BareLf,
    /// A Content-Length that is no plain number, or too large a one.
    LengthInvalid,
    /// More than one Content-Length.
    LengthRepeated,
    /// Content-Length together with Transfer-Encoding.
    LengthAndEncoding,
    /// A Transfer-Encoding other than one `chunked`, or one in HTTP/1.0.
    Encoding,
    /// The head is longer than `max_head_bytes`.
    HeadTooLarge,
    /// More header lines than the limit.
    TooManyFields,
    /// A chunk size that is no hexadecimal number of 1 to 16 digits, or a
    /// size line that does not end in CRLF.
    ChunkSize,
    /// Chunk extensions with a control byte, or too many bytes of them.
    ChunkExtension,
    /// A chunk's data is not followed by CRLF.
    ChunkEnd,
    /// Trailers that are malformed, too many or too long.
    Trailer,
    /// The head was not whole in time.
    HeadTimeout,
    /// No byte of the body came in time.
    BodyTimeout,
    /// The client closed its side in the middle of the body.
    BodyCutShort,
}

impl From<ChunkError> for RequestRejected {
    fn from(error: ChunkError) -> Self {
        match error {
            ChunkError::Size => Self::ChunkSize,
            ChunkError::Extension => Self::ChunkExtension,
            ChunkError::End => Self::ChunkEnd,
            ChunkError::Trailer => Self::Trailer,
        }
    }
}

impl RequestRejected {
    /// Every reason, in the order of their discriminants.
    pub const ALL: [Self; 26] = [
        Self::RequestLine,
        Self::Version,
        Self::Target,
        Self::Connect,
        Self::HostMissing,
        Self::HostRepeated,
        Self::HostInvalid,
        Self::HostMismatch,
        Self::HeaderName,
        Self::SpaceBeforeColon,
        Self::Folding,
        Self::ControlByte,
        Self::BareLf,
        Self::LengthInvalid,
        Self::LengthRepeated,
        Self::LengthAndEncoding,
        Self::Encoding,
        Self::HeadTooLarge,
        Self::TooManyFields,
        Self::ChunkSize,
        Self::ChunkExtension,
        Self::ChunkEnd,
        Self::Trailer,
        Self::HeadTimeout,
        Self::BodyTimeout,
        Self::BodyCutShort,
    ];

    /// The reason as a metric label.
    pub const fn label(self) -> &'static str {
        self.texts().0
    }

    /// Message for the client: the fault and its remedy.
    pub const fn message(self) -> &'static str {
        self.texts().1
    }

    /// The status of the answer.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::HeadTooLarge | Self::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::HeadTimeout | Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::RequestLine => ("request_line", "the request line is not METHOD SP target SP HTTP/1.1"),
            Self::Version => ("version", "the HTTP version is not supported; use HTTP/1.1 or HTTP/2"),
            Self::Target => {
                ("target", "the request target is not a path or an http URL, or has a forbidden byte")
            }
            Self::Connect => ("connect", "CONNECT is not supported; send the request itself"),
            Self::HostMissing => ("host_missing", "the Host header is missing; send exactly one"),
            Self::HostRepeated => ("host_repeated", "the Host header is repeated; send exactly one"),
            Self::HostInvalid => ("host_invalid", "the Host header is not host or host:port"),
            Self::HostMismatch => {
                ("host_mismatch", "the request target and the Host header name different hosts")
            }
            Self::HeaderName => ("header_name", "a header line has no valid name followed by a colon"),
            Self::SpaceBeforeColon => ("space_before_colon", "a header has white space before its colon"),
            Self::Folding => {
                ("folding", "a header line starts with white space; send each header on one line")
            }
            Self::ControlByte => ("control_byte", "the request head has a control byte"),
            Self::BareLf => ("bare_lf", "a line ends in LF alone; end every line in CRLF"),
            Self::LengthInvalid => ("length_invalid", "Content-Length is not one plain decimal number"),
            Self::LengthRepeated => ("length_repeated", "Content-Length is repeated; send it once"),
            Self::LengthAndEncoding => {
                ("length_and_encoding", "Content-Length and Transfer-Encoding are both present; send one")
            }
            Self::Encoding => ("encoding", "Transfer-Encoding must be chunked, once, and only in HTTP/1.1"),
            Self::HeadTooLarge => {
                ("head_too_large", "the request head is too large; send smaller or fewer headers")
            }
            Self::TooManyFields => ("too_many_fields", "the request has too many headers; send at most 100"),
            Self::ChunkSize => ("chunk_size", "a chunk size line is not 1 to 16 hexadecimal digits and CRLF"),
            Self::ChunkExtension => ("chunk_extension", "the chunk extensions are malformed or too long"),
            Self::ChunkEnd => ("chunk_end", "the data of a chunk is not followed by CRLF"),
            Self::Trailer => ("trailer", "the trailers are malformed or too long"),
            Self::HeadTimeout => ("head_timeout", "the request head did not arrive in time"),
            Self::BodyTimeout => ("body_timeout", "the request body did not arrive in time"),
            Self::BodyCutShort => ("body_cut_short", "the request body ended before its announced length"),
        }
    }

    const fn code(self) -> &'static str {
        match self {
            Self::HeadTooLarge | Self::TooManyFields => "request_header_fields_too_large",
            Self::HeadTimeout | Self::BodyTimeout => "request_timeout",
            _ => "bad_request",
        }
    }

    /// Body of the answer: an error in the format of the OpenAI API.
    pub fn body(self) -> Bytes {
        let (message, code) = (self.message(), self.code());
        let text = format!(
            r#"{{"error":{{"message":"{message}","type":"invalid_request_error","param":null,"code":"{code}"}}}}"#
        );
        Bytes::from(text)
    }

    /// The whole answer, for an HTTP library to send.
    pub(super) fn response(self) -> Response<Bytes> {
        let mut response = Response::new(self.body());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    /// The whole answer as bytes, for a connection that no library serves.
    pub(super) fn wire(self) -> Bytes {
        let (status, body) = (self.status(), self.body());
        let reason = status.canonical_reason().unwrap_or_default();
        let mut wire = format!(
            "HTTP/1.1 {} {reason}\r\n{CONTENT_TYPE}: application/json\r\n{CONTENT_LENGTH}: {}\r\n{CONNECTION}: close\r\n\r\n",
            status.as_u16(),
            body.len(),
        )
        .into_bytes();
        wire.extend_from_slice(&body);
        Bytes::from(wire)
    }
}

impl fmt::Display for RequestRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for RequestRejected {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_unique_labels_and_valid_bodies() {
        let mut labels: Vec<_> = RequestRejected::ALL.iter().map(|r| r.label()).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), RequestRejected::ALL.len());
        for (at, reason) in RequestRejected::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason:?} is out of order in ALL");
            let json: serde_json::Value = serde_json::from_slice(&reason.body()).unwrap();
            assert_eq!(json["error"]["message"], reason.message());
            assert_eq!(json["error"]["type"], "invalid_request_error");
            assert!(json["error"]["param"].is_null());
        }
    }

    #[test]
    fn bytes_on_the_wire_are_one_whole_response() {
        let wire = RequestRejected::BareLf.wire();
        let mut headers = [httparse::EMPTY_HEADER; 8];
        let mut parsed = httparse::Response::new(&mut headers);
        let head = parsed.parse(&wire).unwrap().unwrap();
        assert_eq!(parsed.code, Some(400));
        let length = parsed.headers.iter().find(|h| h.name == "content-length").unwrap();
        assert_eq!(length.value, (wire.len() - head).to_string().as_bytes());
    }
}
