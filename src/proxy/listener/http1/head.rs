//! HTTP/1 request head, checked line by line as its bytes arrive.
//!
//! The rules are those of RFC 9112, without every leniency that two parsers could read
//! differently.

use std::ops::Range;

use memchr::memchr;

use crate::protocol::http1::{is_token_byte, parse_length};
use crate::proxy::listener::rejected::RequestRejected;

/// Most header lines in one head.
const MAX_FIELDS: usize = 100;
/// Longest request target, in bytes. hyper takes no longer target.
const MAX_TARGET_BYTES: usize = 65_534;

/// Rule that finds the end of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::proxy::listener) enum BodyFrame {
    /// The body has this many bytes. 0 = no body.
    Length(u64),
    /// The body ends with the last chunk.
    Chunked,
}

/// Scan of a head that is arriving. Offsets count from the head's first byte.
#[derive(Debug, Default)]
pub(in crate::proxy::listener) struct HeadScan {
    line_start: usize,
    /// No line ends in `line_start..scanned`.
    scanned: usize,
    leading_blank: bool,
    version: Option<HttpVersion>,
    fields: usize,
    /// Authority in an absolute-form target.
    authority: Option<Range<usize>>,
    host: Option<Range<usize>>,
    length: Option<u64>,
    chunked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpVersion {
    Http10,
    Http11,
}

impl HeadScan {
    /// Continues the scan. `bytes` starts with the head's first byte and holds all bytes so far.
    /// Returns the head's length and the framing of its body when the head is whole, else `None`.
    ///
    /// # Errors
    /// The first rule that the head breaks, in the order of its lines.
    pub(in crate::proxy::listener) fn scan(
        &mut self,
        bytes: &[u8],
        max_bytes: usize,
    ) -> Result<Option<(usize, BodyFrame)>, RequestRejected> {
        if bytes.first().is_some_and(|&b| !is_token_byte(b) && b != b'\r' && b != b'\n') {
            return Err(RequestRejected::RequestLine);
        }
        while let Some(found) = memchr(b'\n', &bytes[self.scanned..]) {
            let end = self.scanned + found + 1;
            if end > max_bytes {
                return Err(RequestRejected::HeadTooLarge);
            }
            let start = self.line_start;
            (self.line_start, self.scanned) = (end, end);
            if end - start < 2 || bytes[end - 2] != b'\r' {
                return Err(RequestRejected::BareLf);
            }
            if self.line(bytes, start..end - 2)? {
                return Ok(Some((end, self.finish(bytes)?)));
            }
        }
        self.scanned = bytes.len();
        if bytes.len() >= max_bytes { Err(RequestRejected::HeadTooLarge) } else { Ok(None) }
    }

    /// Checks one line without its CRLF. Returns whether the line ends the head.
    fn line(&mut self, bytes: &[u8], at: Range<usize>) -> Result<bool, RequestRejected> {
        match (self.version, at.is_empty()) {
            (None, true) if self.leading_blank => Err(RequestRejected::RequestLine),
            (None, true) => {
                self.leading_blank = true;
                Ok(false)
            }
            (None, false) => self.request_line(bytes, at).map(|()| false),
            (Some(_), true) => Ok(true),
            (Some(_), false) => self.field(bytes, at).map(|()| false),
        }
    }

    fn request_line(&mut self, bytes: &[u8], at: Range<usize>) -> Result<(), RequestRejected> {
        let line = &bytes[at.clone()];
        if line.iter().any(u8::is_ascii_control) {
            return Err(RequestRejected::ControlByte);
        }
        let method_end = memchr(b' ', line).ok_or(RequestRejected::RequestLine)?;
        let (method, rest) = (&line[..method_end], &line[method_end + 1..]);
        if !is_token(method) {
            return Err(RequestRejected::RequestLine);
        }
        let target_end = memchr(b' ', rest).ok_or(RequestRejected::Version)?;
        self.version = Some(match &rest[target_end + 1..] {
            b"HTTP/1.1" => HttpVersion::Http11,
            b"HTTP/1.0" => HttpVersion::Http10,
            version if version.starts_with(b"HTTP/") => return Err(RequestRejected::Version),
            _ => return Err(RequestRejected::RequestLine),
        });
        if method == b"CONNECT" {
            return Err(RequestRejected::Connect);
        }
        let target_start = at.start + method_end + 1;
        self.target(bytes, target_start..target_start + target_end, method == b"OPTIONS")
    }

    fn target(&mut self, bytes: &[u8], at: Range<usize>, options: bool) -> Result<(), RequestRejected> {
        let target = &bytes[at.clone()];
        if target.len() > MAX_TARGET_BYTES {
            return Err(RequestRejected::HeadTooLarge);
        }
        let path = match target.first() {
            Some(b'/') => 0,
            Some(b'*') if options && target.len() == 1 => return Ok(()),
            _ => {
                let start = scheme_len(target).ok_or(RequestRejected::Target)?;
                let length = target[start..].iter().position(|b| b"/?".contains(b));
                let end = length.map_or(target.len(), |length| start + length);
                if !is_authority(&target[start..end]) {
                    return Err(RequestRejected::Target);
                }
                self.authority = Some(at.start + start..at.start + end);
                end
            }
        };
        if target[path..].iter().all(|&b| is_path_byte(b)) { Ok(()) } else { Err(RequestRejected::Target) }
    }

    fn field(&mut self, bytes: &[u8], at: Range<usize>) -> Result<(), RequestRejected> {
        self.fields += 1;
        if self.fields > MAX_FIELDS {
            return Err(RequestRejected::TooManyFields);
        }
        let line = &bytes[at.clone()];
        if is_blank(line[0]) {
            return Err(RequestRejected::Folding);
        }
        let colon = memchr(b':', line).ok_or(RequestRejected::HeaderName)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if !is_token(name) {
            return Err(match name.last() {
                Some(&b) if is_blank(b) => RequestRejected::SpaceBeforeColon,
                _ if name.iter().any(u8::is_ascii_control) => RequestRejected::ControlByte,
                _ => RequestRejected::HeaderName,
            });
        }
        if value.iter().any(|&b| b.is_ascii_control() && b != b'\t') {
            return Err(RequestRejected::ControlByte);
        }
        let lead = value.iter().take_while(|&&b| is_blank(b)).count();
        let tail = value[lead..].iter().rev().take_while(|&&b| is_blank(b)).count();
        let value_at = at.start + colon + 1 + lead..at.end - tail;
        self.framing_field(name, bytes, value_at)
    }

    /// Checks and stores the three headers that decide the message's target and end.
    fn framing_field(&mut self, name: &[u8], bytes: &[u8], at: Range<usize>) -> Result<(), RequestRejected> {
        let value = &bytes[at.clone()];
        if name.eq_ignore_ascii_case(b"host") {
            if self.host.replace(at).is_some() {
                return Err(RequestRejected::HostRepeated);
            }
            return if is_authority(value) { Ok(()) } else { Err(RequestRejected::HostInvalid) };
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = parse_length(value).ok_or(RequestRejected::LengthInvalid)?;
            if self.length.replace(length).is_some() {
                return Err(RequestRejected::LengthRepeated);
            }
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let once = !std::mem::replace(&mut self.chunked, true);
            if !once || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(RequestRejected::Encoding);
            }
        }
        Ok(())
    }

    /// Checks the rules that need the whole head.
    fn finish(&self, bytes: &[u8]) -> Result<BodyFrame, RequestRejected> {
        match (&self.host, &self.authority) {
            (None, _) if self.version == Some(HttpVersion::Http11) => {
                return Err(RequestRejected::HostMissing);
            }
            (Some(host), Some(authority))
                if !same_authority(&bytes[host.clone()], &bytes[authority.clone()]) =>
            {
                return Err(RequestRejected::HostMismatch);
            }
            _ => {}
        }
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(RequestRejected::LengthAndEncoding),
            (true, None) if self.version == Some(HttpVersion::Http10) => Err(RequestRejected::Encoding),
            (true, None) => Ok(BodyFrame::Chunked),
            (false, length) => Ok(BodyFrame::Length(length.unwrap_or(0))),
        }
    }
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&b| is_token_byte(b))
}

const fn is_blank(b: u8) -> bool {
    matches!(b, b' ' | b'\t')
}

/// Whether RFC 3986 allows the byte in a path or query. Also true for a few marks that careless
/// clients leave unescaped and that all parsers read alike.
const fn is_path_byte(b: u8) -> bool {
    matches!(b, b'!' | b'$'..=b';' | b'=' | b'?' | b'@' | b'[' | b']' | b'_' | b'~' | b'|' | b'{' | b'}')
        || b.is_ascii_alphanumeric()
}

/// Length of `http://` or `https://` at the start of `target`.
fn scheme_len(target: &[u8]) -> Option<usize> {
    [b"http://".as_slice(), b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|t| t.eq_ignore_ascii_case(scheme)))
        .map(<[u8]>::len)
}

/// Whether `text` is `host` or `host:port`, where the host is a name or an address.
pub(in crate::proxy::listener) fn is_authority(text: &[u8]) -> bool {
    let (host, port) = split_port(text);
    let host_is_good = match host {
        [b'[', address @ .., b']'] => {
            !address.is_empty() && address.iter().all(|b| b.is_ascii_hexdigit() || b":.".contains(b))
        }
        name => !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(b)),
    };
    host_is_good
        && port.is_none_or(|port| port.is_empty() || parse_length(port).is_some_and(|port| port < 1 << 16))
}

/// Whether both authorities name the same host and port. A missing port, 80 and 443 count as the
/// same port.
pub(in crate::proxy::listener) fn same_authority(one: &[u8], other: &[u8]) -> bool {
    let ((one, one_port), (other, other_port)) = (split_port(one), split_port(other));
    let own = |port: Option<&[u8]>| port.is_none_or(|port| matches!(port, b"" | b"80" | b"443"));
    one.eq_ignore_ascii_case(other) && (one_port == other_port || own(one_port) && own(other_port))
}

fn split_port(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let name_end = text.iter().rposition(|&b| b == b']').map_or(0, |at| at + 1);
    match memchr(b':', &text[name_end..]) {
        Some(colon) => (&text[..name_end + colon], Some(&text[name_end + colon + 1..])),
        None => (text, None),
    }
}
