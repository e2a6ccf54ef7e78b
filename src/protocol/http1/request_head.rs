//! Request head: the bytes in front of a request's body, as an engine gets them.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers of the message's frame. They are the gateway's own.
const FRAME_HEADERS: [HeaderName; 4] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION];

/// A `POST` request without its body.
#[derive(Debug)]
pub(crate) struct RequestHead<'a> {
    /// The path of the engine's URL, without a slash at its end.
    pub(crate) prefix: &'a str,
    /// The path and query behind the prefix.
    pub(crate) path: &'a str,
    pub(crate) host: &'a HeaderValue,
    pub(crate) headers: &'a HeaderMap,
    /// Bytes of the body.
    pub(crate) length: u64,
}

impl RequestHead<'_> {
    /// The head as bytes, up to the empty line.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let fields = self.headers.iter().filter(|(name, _)| !FRAME_HEADERS.contains(name));
        let mut bytes = Vec::with_capacity(512);
        let mut add = |text: &[u8]| bytes.extend_from_slice(text);
        add(b"POST ");
        let is_target = self.path.bytes().all(|b| b > b' ' && b != 0x7f);
        add(self.prefix.as_bytes());
        add(if is_target { self.path.as_bytes() } else { b"" });
        add(if self.prefix.is_empty() && (self.path.is_empty() || !is_target) { b"/" } else { b"" });
        add(b" HTTP/1.1\r\nhost: ");
        add(self.host.as_bytes());
        for (name, value) in fields {
            add(b"\r\n");
            add(name.as_str().as_bytes());
            add(b": ");
            add(value.as_bytes());
        }
        add(b"\r\ncontent-length: ");
        add(itoa::Buffer::new().format(self.length).as_bytes());
        add(b"\r\n\r\n");
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_is_the_gateways_own() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/json"),
            ("content-length", "99"),
            ("transfer-encoding", "chunked"),
            ("connection", "close"),
            ("host", "other"),
            ("x-one", "1"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.append("x-one", HeaderValue::from_static("2"));
        let host = HeaderValue::from_static("engine:8000");
        let head = |path, length| {
            let head = RequestHead { prefix: "/p", path, host: &host, headers: &headers, length };
            String::from_utf8(head.encode()).unwrap()
        };
        let fields = "content-type: application/json\r\nx-one: 1\r\nx-one: 2\r\n";
        assert_eq!(
            head("/v1/x?a=b", 7),
            format!("POST /p/v1/x?a=b HTTP/1.1\r\nhost: engine:8000\r\n{fields}content-length: 7\r\n\r\n")
        );
        assert!(head("/", 0).ends_with("\r\ncontent-length: 0\r\n\r\n"));
        assert!(head("/a HTTP/1.1\r\nx: y", 0).starts_with("POST /p HTTP/1.1\r\n"));
        assert!(head("", 0).starts_with("POST /p HTTP/1.1\r\n"));
    }
}
