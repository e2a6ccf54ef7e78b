//! Event templates: a short path for the most common event, one more piece of text in unchanged
//! JSON.
//!
//! When the classifier has read a token event in full, the event's bytes before and after its text
//! become a template. A later event matches when it has the same start and end, and a plain text
//! between them. A plain text is valid UTF-8, is not empty, and has no quote, backslash or control
//! character. Such a text cannot end or change the JSON string that it stands in. A matching event
//! therefore differs from the first event in the value of that one string only. The classifier asks
//! of that value only whether it is empty, so the verdict is the same.

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;
use smallvec::SmallVec;

use crate::protocol::response::edit::EventRewrites;
use crate::protocol::sse::SseFrame;

/// The number of templates kept at a time: streams with several choices take turns.
const MAX_TEMPLATES: usize = 4;
/// The number of templates made in one stream. It is enough for an engine that stamps each event
/// with the second, and bounds the cost where events have nothing in common.
const MAX_LEARNED: usize = 256;

/// The templates of one stream.
#[derive(Debug, Default)]
pub(crate) struct EventTemplates {
    known: SmallVec<[EventTemplate; 1]>,
    learned: usize,
}

#[derive(Debug)]
struct EventTemplate {
    start: Bytes,
    end: Bytes,
    /// The replacements of start and end, when a rewrite changes either.
    shown: Option<ShownEnds>,
}

#[derive(Debug)]
struct ShownEnds {
    start: Bytes,
    end: Bytes,
}

#[derive(Debug)]
pub(crate) struct TemplateMatch<'a> {
    /// The event's text, which has no escapes.
    pub(crate) text: &'a str,
    /// The bytes to send in place of the event, when a rewrite changes it.
    pub(crate) changed: Option<Bytes>,
}

impl EventTemplates {
    pub(crate) fn find<'a>(&self, frame: &'a SseFrame) -> Option<TemplateMatch<'a>> {
        let bytes = frame.bytes();
        self.known.iter().find_map(|template| {
            let text = bytes.strip_prefix(&template.start[..])?.strip_suffix(&template.end[..])?;
            let plain = plain(text)?;
            let shown = template.shown.as_ref();
            let changed = shown.map(|shown| Bytes::from([&shown.start[..], text, &shown.end].concat()));
            Some(TemplateMatch { text: plain, changed })
        })
    }

    /// Makes a template of a frame that was classified as a plain token event. `rewrites` are the
    /// changes to the frame.
    pub(crate) fn learn(&mut self, frame: &SseFrame, rewrites: &EventRewrites) {
        if self.learned == MAX_LEARNED {
            return;
        }
        let bytes = frame.bytes();
        let Some((data, text)) =
            frame.data_range().and_then(|data| Some((data.clone(), text_in(bytes, data)?)))
        else {
            return;
        };
        let padding = bytes[data.clone()].len() - bytes[data.clone()].trim_ascii_start().len();
        let trimmed = data.start + padding;
        let (start, end) = (bytes.slice(..text.start), bytes.slice(text.end..));
        let shown = if rewrites.is_empty() {
            None
        } else {
            let line = bytes[trimmed..data.end].trim_ascii_end();
            let text = text.start - trimmed..text.end - trimmed;
            let (Some(before), Some(after)) =
                (rewrites.apply(line, 0..text.start), rewrites.apply(line, text.end..line.len()))
            else {
                return;
            };
            let rest = &bytes[trimmed + line.len()..];
            Some(ShownEnds {
                start: Bytes::from([&bytes[..trimmed], &before].concat()),
                end: Bytes::from([&after[..], rest].concat()),
            })
        };
        // The template holds copies, so that it does not keep a whole chunk in memory.
        let copy = |part: &Bytes| Bytes::copy_from_slice(part);
        let template = EventTemplate { start: copy(&start), end: copy(&end), shown };
        match self.known.get_mut(self.learned % MAX_TEMPLATES) {
            Some(oldest) => *oldest = template,
            None => self.known.push(template),
        }
        self.learned += 1;
    }
}

/// The byte range of an event's text: the value of its first `content` string, else of its first
/// `text` string.
fn text_in(bytes: &[u8], data: Range<usize>) -> Option<Range<usize>> {
    const KEYS: [&[u8]; 2] = [b"\"content\":\"", b"\"text\":\""];
    let line = &bytes[data.clone()];
    let start = KEYS.iter().find_map(|key| memmem::find(line, key).map(|at| at + key.len()))?;
    let length = memchr::memchr(b'"', &line[start..])?;
    plain(&line[start..start + length]).map(|_| data.start + start..data.start + start + length)
}

/// The text, if it is not empty and JSON writes it without escapes.
fn plain(text: &[u8]) -> Option<&str> {
    let is_harmless = |byte: &u8| *byte >= 0x20 && !matches!(byte, b'"' | b'\\');
    let is_plain = !text.is_empty() && text.iter().all(is_harmless);
    std::str::from_utf8(text).ok().filter(|_| is_plain)
}
