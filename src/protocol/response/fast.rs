//! The short way for the most common event: one more piece of text in the
//! same words around it.
//!
//! When a token event was read in full, its bytes up to the text and after the
//! text become a template. A later event with the same start and end, and
//! between them a text that cannot end or change the JSON string it stands in
//! (no quote, no backslash, no control character, valid UTF-8, not empty),
//! differs from the first only in the value of that one string; and of the
//! text the judge only asks whether it is empty. So the judgement is the same.

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;
use smallvec::SmallVec;

use crate::protocol::response::edit::EventRewrites;
use crate::protocol::sse::SseFrame;

/// Templates kept at a time: streams with several choices take turns.
const MAX_TEMPLATES: usize = 4;
/// Templates made in one stream: enough for an engine that stamps each event
/// with the second, and no lasting cost where events have nothing in common.
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
    /// What stands in for start and end, when something in them changes.
    shown: Option<(Bytes, Bytes)>,
}

/// An event that fits a template.
#[derive(Debug)]
pub(crate) struct TemplateMatch<'a> {
    /// Its text, which has no escapes.
    pub(crate) text: &'a str,
    /// What to send in its place, when something in it changes.
    pub(crate) changed: Option<Bytes>,
}

impl EventTemplates {
    pub(crate) fn find<'a>(&self, frame: &'a SseFrame) -> Option<TemplateMatch<'a>> {
        let bytes = frame.bytes();
        self.known.iter().find_map(|template| {
            let text = bytes.strip_prefix(&template.start[..])?.strip_suffix(&template.end[..])?;
            let plain = plain(text)?;
            let shown = template.shown.as_ref();
            let changed = shown.map(|(start, end)| Bytes::from([&start[..], text, end].concat()));
            Some(TemplateMatch { text: plain, changed })
        })
    }

    /// Makes a template of a frame that was judged to be a plain token event.
    /// `rewrites` are the changes to it.
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
            Some((
                Bytes::from([&bytes[..trimmed], &before].concat()),
                Bytes::from([&after[..], rest].concat()),
            ))
        };
        // Copies, so that the template does not keep a whole chunk alive.
        let copy = |part: &Bytes| Bytes::copy_from_slice(part);
        let template = EventTemplate { start: copy(&start), end: copy(&end), shown };
        match self.known.get_mut(self.learned % MAX_TEMPLATES) {
            Some(oldest) => *oldest = template,
            None => self.known.push(template),
        }
        self.learned += 1;
    }
}

/// Where the text of an event stands: the value of the only `content` or
/// `text` string in it.
fn text_in(bytes: &[u8], data: Range<usize>) -> Option<Range<usize>> {
    const KEYS: [&[u8]; 2] = [b"\"content\":\"", b"\"text\":\""];
    let line = &bytes[data.clone()];
    let start = KEYS.iter().find_map(|key| memmem::find(line, key).map(|at| at + key.len()))?;
    let length = memchr::memchr(b'"', &line[start..])?;
    plain(&line[start..start + length]).map(|_| data.start + start..data.start + start + length)
}

/// The text, if it stands for itself in JSON and is not empty.
fn plain(text: &[u8]) -> Option<&str> {
    let is_harmless = |byte: &u8| *byte >= 0x20 && !matches!(byte, b'"' | b'\\');
    let is_plain = !text.is_empty() && text.iter().all(is_harmless);
    std::str::from_utf8(text).ok().filter(|_| is_plain)
}
