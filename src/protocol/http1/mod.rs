//! HTTP/1: rules that hold for clients and for engines, and the messages to and from engines.

pub mod answer;
pub mod chunk;
pub(crate) mod request_head;

/// Whether a header name or a method may contain the byte.
pub(crate) const fn is_token_byte(b: u8) -> bool {
    matches!(b, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
        || b.is_ascii_alphanumeric()
}

/// Parses plain decimal digits, up to 2^63 - 1.
pub(crate) fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    let mut length: u64 = 0;
    for &b in value {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        length = length.checked_mul(10)?.checked_add(digit)?;
    }
    (length <= i64::MAX.unsigned_abs()).then_some(length)
}
