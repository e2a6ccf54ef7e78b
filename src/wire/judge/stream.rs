//! Judges a stream, event by event.
//!
//! A stream is good only when every choice ended for a real reason and the
//! protocol's own end was seen. `[DONE]` alone proves nothing: engines send it
//! after an abort and after an error, too.

use bytes::Bytes;

use crate::core::event::Fault;
use crate::core::job::{Tokens, Usage};
use crate::wire::api::{Api, Protocol};
use crate::wire::json::span_in;
use crate::wire::judge::fast::{Matched, Templates};
use crate::wire::judge::refusal::{self, EngineError};
use crate::wire::judge::{Ending, News, chunk, typed};
use crate::wire::splice::json_string;
use crate::wire::sse::Frame;

/// What an event is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Keeps the connection alive; says nothing of the request.
    Comment,
    /// The opening of an answer, which aborted requests get as well.
    Role,
    /// Output.
    Token,
    /// The real end of a choice, with or without output. It counts as output:
    /// a model may have nothing to say.
    Finish,
    /// Usage and nothing else.
    Usage,
    /// The protocol's end, and everything before it was good.
    Done,
    /// The answer failed. The event itself is never for the client.
    Error(EngineError),
    /// Anything else.
    Other,
}

/// What to do with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forward {
    /// Send it as it came.
    AsIs,
    /// Send this in its place. It is a copy of the event: one small piece is
    /// cheaper to send than three shared ones.
    Replace(Bytes),
    /// Send nothing.
    Drop,
}

/// The judgement on one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What it is.
    pub kind: EventKind,
    /// What to do with it.
    pub forward: Forward,
}

/// How a connection's bytes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// As HTTP says they should.
    Clean,
    /// Before that.
    Cut,
}

/// The judgement on a whole stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The answer is whole.
    Success {
        /// What it took.
        usage: Usage,
    },
    /// The engine failed.
    Failed {
        /// How.
        fault: Fault,
        /// What was consumed.
        usage: Usage,
    },
    /// The engine refused the request, for a fault of the client's.
    Refused {
        /// What to tell the client.
        error: crate::wire::error::ApiError,
        /// What was consumed.
        usage: Usage,
    },
}

/// Choices that can be told apart; vLLM allows up to 16384.
const MAX_CHOICES: u64 = 1 << 16;

/// Judges one stream. Feed it every frame, then ask for the end.
#[derive(Debug)]
pub struct StreamJudge {
    api: Api,
    expected: u64,
    shown_model: Option<String>,
    /// The same as JSON.
    shown_json: Option<String>,
    strip_usage: bool,
    choices: Choices,
    /// Events with output; a lower bound of the tokens.
    outputs: u64,
    usage: Option<Tokens>,
    usage_is_final: bool,
    done: bool,
    error: Option<EngineError>,
    templates: Templates,
}

impl StreamJudge {
    /// A judge for the answer to one request.
    ///
    /// `choices` is how many choices must come (`Peek::choices`, or 1 for an
    /// engine that ignores `n`). `shown_model` replaces the engine's own name
    /// of the model. With `strip_usage` the usage event, which the client did
    /// not ask for, is dropped.
    #[must_use]
    pub fn new(api: Api, choices: u32, shown_model: Option<String>, strip_usage: bool) -> Self {
        Self {
            api,
            expected: u64::from(choices.max(1)),
            shown_json: shown_model.as_deref().map(json_string),
            shown_model,
            strip_usage,
            choices: Choices::default(),
            outputs: 0,
            usage: None,
            usage_is_final: false,
            done: false,
            error: None,
            templates: Templates::default(),
        }
    }

    /// Whether output was seen.
    #[must_use]
    pub const fn has_output(&self) -> bool {
        self.outputs > 0 || self.choices.ended > 0
    }

    /// Events with output so far; a lower bound of the tokens.
    #[must_use]
    pub const fn outputs(&self) -> u64 {
        self.outputs
    }

    /// Whether the answer has one choice only.
    #[must_use]
    pub const fn is_single(&self) -> bool {
        self.expected == 1
    }

    /// Judges the next event. After an error, go on only to learn the usage:
    /// everything else is dropped.
    pub fn frame(&mut self, frame: &Frame) -> Verdict {
        let Some(data) = frame.data().map(<[u8]>::trim_ascii).filter(|data| !data.is_empty()) else {
            return Verdict { kind: EventKind::Comment, forward: Forward::AsIs };
        };
        if self.done || self.error.is_some() {
            if let Some(usage) = self.read(data).and_then(|news| news.usage) {
                self.set_usage(usage, true);
            }
            return Verdict { kind: EventKind::Other, forward: Forward::Drop };
        }
        if let Some(matched) = self.templates.find(frame) {
            self.outputs += 1;
            let forward = match matched {
                Matched::Same => Forward::AsIs,
                Matched::Renamed(bytes) => Forward::Replace(bytes),
            };
            return Verdict { kind: EventKind::Token, forward };
        }
        if data == b"[DONE]" {
            let kind = self.finish();
            return self.verdict(kind, frame, None);
        }
        let Some(news) = self.read(data) else {
            let kind = self.fail(EngineError::Fault(Fault::Malformed));
            return self.verdict(kind, frame, None);
        };
        let kind = if news.error {
            self.fail(refusal::of_event(self.api, data, self.shown_model.as_deref()))
        } else {
            self.take(&news)
        };
        let model = self.model_span(data, &news);
        let is_plain_token = kind == EventKind::Token && news.choices.len() == 1 && news.usage.is_none();
        let verdict = self.verdict(kind, frame, model.clone());
        if is_plain_token && self.api.protocol() == Protocol::Chunks {
            self.templates.learn(frame, model, self.shown_json.as_deref());
        }
        verdict
    }

    /// The judgement when no more bytes come. What comes after the protocol's
    /// end does not matter: some clients and engines close right there.
    #[must_use]
    pub fn end(&self, ended: Ended) -> StreamEnd {
        let usage = self.usage();
        match &self.error {
            Some(EngineError::Fault(fault)) => StreamEnd::Failed { fault: *fault, usage },
            Some(EngineError::Client(error)) => StreamEnd::Refused { error: error.clone(), usage },
            None if self.done => StreamEnd::Success { usage },
            None => {
                let fault = if ended == Ended::Cut { Fault::Reset } else { Fault::Aborted };
                StreamEnd::Failed { fault, usage }
            }
        }
    }

    /// What is known of the consumption so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match self.usage {
            Some(tokens) if self.usage_is_final => Usage::Exact(tokens),
            Some(tokens) => Usage::Partial(Tokens { output: tokens.output.max(self.outputs), ..tokens }),
            None if self.outputs > 0 => Usage::Partial(Tokens { output: self.outputs, ..Tokens::default() }),
            None => Usage::Unknown,
        }
    }

    fn read<'a>(&self, data: &'a [u8]) -> Option<News<'a>> {
        match self.api.protocol() {
            Protocol::Chunks => chunk::read(data),
            Protocol::Messages => typed::read_messages(data),
            Protocol::Responses => typed::read_responses(data),
            Protocol::Tgi => typed::read_tgi(data),
        }
    }

    fn take(&mut self, news: &News<'_>) -> EventKind {
        if news.idle {
            return EventKind::Comment;
        }
        let mut kind = EventKind::Other;
        for choice in &news.choices {
            if choice.index >= MAX_CHOICES {
                return self.fail(EngineError::Fault(Fault::Malformed));
            }
            self.choices.see(choice.index);
            self.outputs += u64::from(choice.output);
            match choice.ending {
                Some(Ending::Aborted) => {
                    self.note_usage(news);
                    return self.fail(EngineError::Fault(Fault::Aborted));
                }
                Some(Ending::Real) => {
                    self.choices.end(choice.index);
                    kind = EventKind::Finish;
                }
                None if choice.output && kind != EventKind::Finish => kind = EventKind::Token,
                None if choice.role && kind == EventKind::Other => kind = EventKind::Role,
                None => {}
            }
        }
        self.note_usage(news);
        if kind == EventKind::Finish && self.ended_without_work() {
            return self.fail(EngineError::Fault(Fault::Aborted));
        }
        if news.end {
            return self.finish();
        }
        if news.choices.is_empty() && news.usage.is_some() { EventKind::Usage } else { kind }
    }

    /// vLLM tells these two protocols that a request which it aborted in its
    /// queue ended well; that it generated nothing gives it away.
    fn ended_without_work(&self) -> bool {
        let is_typed = matches!(self.api.protocol(), Protocol::Messages | Protocol::Responses);
        is_typed && self.outputs == 0 && self.usage.is_some_and(|usage| usage.output == 0)
    }

    fn note_usage(&mut self, news: &News<'_>) {
        let Some(usage) = news.usage else {
            return;
        };
        // With several choices a running count is of one choice only.
        let ends = self.expected == 1 && self.choices.all_ended(1);
        self.set_usage(usage, news.choices.is_empty() || ends);
    }

    fn set_usage(&mut self, usage: Tokens, is_final: bool) {
        if is_final {
            self.usage = Some(usage);
            self.usage_is_final = true;
        } else if !self.usage_is_final {
            let output = self.usage.map_or(0, |before| before.output).max(usage.output);
            self.usage = Some(Tokens { output, ..usage });
        }
    }

    fn finish(&mut self) -> EventKind {
        if !self.choices.all_ended(self.expected) {
            return self.fail(EngineError::Fault(Fault::Aborted));
        }
        self.done = true;
        EventKind::Done
    }

    fn fail(&mut self, error: EngineError) -> EventKind {
        self.error = Some(error.clone());
        EventKind::Error(error)
    }

    /// Where the engine's name stands in `data`, if it must be replaced.
    fn model_span(&self, data: &[u8], news: &News<'_>) -> Option<std::ops::Range<usize>> {
        let shown = self.shown_json.as_deref()?;
        let name = news.model?.get();
        if name == shown || !name.starts_with('"') {
            return None;
        }
        span_in(data, name.as_bytes())
    }

    fn verdict(&self, kind: EventKind, frame: &Frame, model: Option<std::ops::Range<usize>>) -> Verdict {
        let forward = match (&kind, model, &self.shown_json) {
            (EventKind::Error(_), ..) => Forward::Drop,
            (EventKind::Usage, ..) if self.strip_usage => Forward::Drop,
            (_, Some(span), Some(shown)) => Forward::Replace(renamed(frame, span, shown)),
            _ => Forward::AsIs,
        };
        Verdict { kind, forward }
    }
}

/// The frame with `shown` in place of `span` of its trimmed data.
fn renamed(frame: &Frame, span: std::ops::Range<usize>, shown: &str) -> Bytes {
    let data = frame.data().unwrap_or_default().trim_ascii();
    let (before, after) = (&data[..span.start], &data[span.end..]);
    let whole = frame.bytes();
    if let Some(at) = span_in(whole, data) {
        return Bytes::from([&whole[..at.start], before, shown.as_bytes(), after, &whole[at.end..]].concat());
    }
    // Data of several lines: line breaks in JSON are outside its strings, so
    // spaces can stand for them.
    let line =
        |part: &[u8]| part.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect::<Vec<u8>>();
    let event =
        if frame.event().is_empty() { Vec::new() } else { [b"event: ", frame.event(), b"\n"].concat() };
    Bytes::from([&event[..], b"data: ", &line(before), shown.as_bytes(), &line(after), b"\n\n"].concat())
}

/// Which choices were seen, and which of them ended.
#[derive(Debug, Default)]
struct Choices {
    /// Two bits a choice: seen, ended.
    bits: Vec<u8>,
    seen: u64,
    ended: u64,
}

impl Choices {
    const SEEN: u8 = 1;
    const ENDED: u8 = 2;

    fn see(&mut self, index: u64) {
        self.seen += self.mark(index, Self::SEEN);
    }

    fn end(&mut self, index: u64) {
        self.ended += self.mark(index, Self::ENDED);
    }

    /// Sets the mark; 1 if it was not set.
    fn mark(&mut self, index: u64, mark: u8) -> u64 {
        let index = usize::try_from(index.min(MAX_CHOICES)).unwrap_or_default();
        if self.bits.len() <= index {
            self.bits.resize(index + 1, 0);
        }
        let new = self.bits[index] & mark == 0;
        self.bits[index] |= mark;
        u64::from(new)
    }

    const fn all_ended(&self, expected: u64) -> bool {
        self.ended == self.seen && self.ended >= expected
    }
}
