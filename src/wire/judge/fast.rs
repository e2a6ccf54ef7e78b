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

use crate::wire::sse::Frame;

/// Templates kept at a time: streams with several choices take turns.
const MAX_TEMPLATES: usize = 4;
/// Templates made in one stream: enough for an engine that stamps each event
/// with the second, and no lasting cost where events have nothing in common.
const MAX_LEARNED: usize = 256;

/// The templates of one stream.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    known: SmallVec<[Template; 1]>,
    learned: usize,
}

#[derive(Debug)]
struct Template {
    start: Bytes,
    end: Bytes,
    /// What stands in for start and end, when the model is renamed.
    shown: Option<(Bytes, Bytes)>,
}

/// An event that fits a template.
#[derive(Debug)]
pub(crate) enum Matched {
    /// Nothing in it changes.
    Same,
    /// The event with the model renamed.
    Renamed(Bytes),
}

impl Templates {
    pub(crate) fn find(&self, frame: &Frame) -> Option<Matched> {
        let bytes = frame.bytes();
        self.known.iter().find_map(|template| {
            let text = bytes.strip_prefix(&template.start[..])?.strip_suffix(&template.end[..])?;
            if !is_plain(text) {
                return None;
            }
            Some(match &template.shown {
                None => Matched::Same,
                Some((start, end)) => Matched::Renamed(Bytes::from([&start[..], text, end].concat())),
            })
        })
    }

    /// Makes a template of a frame that was judged to be a plain token event.
    /// `model` is where the model to rename stands in the frame's trimmed data.
    pub(crate) fn learn(&mut self, frame: &Frame, model: Option<Range<usize>>, shown: Option<&str>) {
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
        let model = model.map(|span| data.start + padding + span.start..data.start + padding + span.end);
        let (start, end) = (bytes.slice(..text.start), bytes.slice(text.end..));
        let shown = match (model, shown) {
            (None, _) | (_, None) => None,
            (Some(span), Some(name)) if span.end <= text.start => Some((
                Bytes::from([&start[..span.start], name.as_bytes(), &start[span.end..]].concat()),
                end.clone(),
            )),
            (Some(span), Some(name)) if span.start >= text.end => {
                let (from, to) = (span.start - text.end, span.end - text.end);
                Some((start.clone(), Bytes::from([&end[..from], name.as_bytes(), &end[to..]].concat())))
            }
            _ => return,
        };
        // Copies, so that the template does not keep a whole chunk alive.
        let copy = |part: &Bytes| Bytes::copy_from_slice(part);
        let template = Template { start: copy(&start), end: copy(&end), shown };
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
    is_plain(&line[start..start + length]).then(|| data.start + start..data.start + start + length)
}

fn is_plain(text: &[u8]) -> bool {
    let is_harmless = |byte: &u8| *byte >= 0x20 && !matches!(byte, b'"' | b'\\');
    !text.is_empty() && text.iter().all(is_harmless) && std::str::from_utf8(text).is_ok()
}
