//! Event rewrites: single values of an event's data, replaced or removed.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::protocol::json::span_in;
use crate::protocol::sse::SseFrame;

/// Replacements for spans of an event's trimmed data, in the order of their starts. Spans of
/// different values never overlap.
#[derive(Debug, Default)]
pub(crate) struct EventRewrites(SmallVec<[(Range<usize>, String); 2]>);

impl EventRewrites {
    /// Replaces `value`, which must be part of `data`, by `text`.
    pub(crate) fn set(&mut self, data: &[u8], value: &RawValue, text: impl Into<String>) {
        if let Some(span) = span_in(data, value.get().as_bytes()) {
            let at = self.0.partition_point(|(before, _)| before.start < span.start);
            self.0.insert(at, (span, text.into()));
        }
    }

    /// Removes the member with this value, which must be part of `data`, from its object.
    pub(crate) fn cut(&mut self, data: &[u8], value: &RawValue) {
        let Some(span) = span_in(data, value.get().as_bytes()) else { return };
        match member(data, &span) {
            Some(whole) => {
                let at = self.0.partition_point(|(before, _)| before.start < whole.start);
                self.0.insert(at, (whole, String::new()));
            }
            None => self.set(data, value, "null"),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of `range` of the data with all replacements; absent when a replaced span crosses
    /// an end of `range`.
    pub(crate) fn apply(&self, data: &[u8], range: Range<usize>) -> Option<Bytes> {
        let mut changed = BytesMut::with_capacity(range.len() + 64);
        let mut at = range.start;
        let touched = self.0.iter().filter(|(span, _)| span.start < range.end && span.end > range.start);
        for (span, text) in touched {
            changed.extend_from_slice(data.get(at..span.start)?);
            changed.extend_from_slice(text.as_bytes());
            at = span.end;
        }
        changed.extend_from_slice(data.get(at..range.end)?);
        Some(changed.freeze())
    }

    /// The whole event with all replacements.
    pub(crate) fn frame(&self, frame: &SseFrame) -> Bytes {
        let data = frame.data().unwrap_or_default().trim_ascii();
        let changed = self.apply(data, 0..data.len()).unwrap_or_default();
        let whole = frame.bytes();
        if let Some(at) = span_in(whole, data) {
            return Bytes::from([&whole[..at.start], &changed, &whole[at.end..]].concat());
        }
        // The data has several lines. Line breaks in JSON are outside strings, so spaces can
        // replace them.
        let line: Vec<u8> = changed.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect();
        let event =
            if frame.event().is_empty() { Vec::new() } else { [b"event: ", frame.event(), b"\n"].concat() };
        Bytes::from([&event[..], b"data: ", &line, b"\n\n"].concat())
    }
}

/// The byte range of the member whose value is at `value`, with one of the commas beside it.
fn member(data: &[u8], value: &Range<usize>) -> Option<Range<usize>> {
    let name =
        data[..value.start].trim_ascii_end().strip_suffix(b":")?.trim_ascii_end().strip_suffix(b"\"")?;
    let start = memchr::memrchr(b'"', name)?;
    let before = data[..start].trim_ascii_end();
    if before.ends_with(b",") {
        return Some(before.len() - 1..value.end);
    }
    let after = data.get(value.end..)?;
    let space = after.len() - after.trim_ascii_start().len();
    let comma = usize::from(after[space..].starts_with(b","));
    Some(start..value.end + (space + comma) * comma)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_cut_with_one_comma() {
        #[derive(serde::Deserialize)]
        struct Event<'a> {
            #[serde(borrow)]
            usage: &'a RawValue,
        }
        for (before, after) in [
            (r#"{"a":1,"usage":{"x":[1,2]},"b":"c"}"#, r#"{"a":1,"b":"c"}"#),
            (r#"{"a":1 , "usage" : {} }"#, r#"{"a":1  }"#),
            (r#"{"usage":7 , "b":1}"#, r#"{ "b":1}"#),
            (r#"{"usage":{}}"#, "{}"),
            (r#"{"usage":{} }"#, "{ }"),
            (r#"{"a":"x\"","us\u0061ge":{"y":","},"b":1}"#, r#"{"a":"x\"","b":1}"#),
        ] {
            let event: Event<'_> = serde_json::from_str(before).unwrap();
            let mut rewrites = EventRewrites::default();
            rewrites.cut(before.as_bytes(), event.usage);
            let changed = rewrites.apply(before.as_bytes(), 0..before.len()).unwrap();
            assert_eq!(changed, after, "{before}");
            assert!(serde_json::from_slice::<serde_json::Value>(&changed).is_ok(), "{before}");
        }
    }
}
