//! Classifier of streams, event by event.
//!
//! A stream is good only when every choice ended for a real reason and the
//! protocol's own end was seen. `[DONE]` alone proves nothing: engines send it
//! after an abort and after an error, too.

use bytes::Bytes;

use crate::core::model::event::EngineFault;
use crate::core::model::job::{JobUsage, TokenCounts};
use crate::protocol::api::{Api, Protocol};
use crate::protocol::request::edit::json_string;
use crate::protocol::response::choices::{ChoiceSet, MAX_CHOICES};
use crate::protocol::response::edit::EventRewrites;
use crate::protocol::response::engine_error::{self, EngineError};
use crate::protocol::response::fast::EventTemplates;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::protocol::response::typed_events;
use crate::protocol::response::{ChoiceEnding, EventNews, chunk};
use crate::protocol::sse::SseFrame;

/// What an event is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEventKind {
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
pub struct EventVerdict {
    /// What it is.
    pub kind: StreamEventKind,
    /// What to do with it.
    pub forward: Forward,
}

/// How a connection's bytes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// As HTTP says they should.
    Clean,
    /// Before that.
    Cut,
}

/// Where the client wants to see usage. Engines may be set to tell it in every
/// event, whoever asked for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageVisibility {
    /// Wherever the engine tells it.
    Always,
    /// In the event for it at the end; before that it is null.
    AtEnd,
    /// Nowhere.
    Never,
}

/// The judgement on a whole stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamVerdict {
    /// The answer is whole.
    Success {
        /// What it took.
        usage: JobUsage,
    },
    /// The engine failed.
    Failed {
        /// How.
        fault: EngineFault,
        /// What was consumed.
        usage: JobUsage,
    },
    /// The engine refused the request, for a fault of the client's.
    Refused {
        /// What to tell the client.
        error: crate::protocol::error::ApiError,
        /// What was consumed.
        usage: JobUsage,
    },
}

/// Judges one stream. Feed it every frame, then ask for the end.
#[derive(Debug)]
pub struct StreamClassifier {
    api: Api,
    expected: u64,
    shown_model: Option<String>,
    /// The same as JSON.
    shown_json: Option<String>,
    usage_shown: UsageVisibility,
    /// Whether an event with output told usage before the end of its choice.
    tells_always: bool,
    /// Why the first choice that ended did so.
    finish_reason: Option<&'static str>,
    choices: ChoiceSet,
    /// Events with output; a lower bound of the tokens.
    outputs: u64,
    usage: Option<TokenCounts>,
    usage_is_final: bool,
    done: bool,
    error: Option<EngineError>,
    templates: EventTemplates,
    /// Of an answer that another engine may go on with.
    so_far: Option<PartialAnswer>,
}

impl StreamClassifier {
    /// A judge for the answer to one request.
    ///
    /// `choices` is how many choices must come (`Peek::choices`, or 1 for an
    /// engine that ignores `n`). `shown_model` replaces the engine's own name
    /// of the model. `usage_shown` is what the client asked for; other usage is
    /// taken out.
    #[must_use]
    pub fn new(api: Api, choices: u32, shown_model: Option<String>, usage_shown: UsageVisibility) -> Self {
        Self {
            api,
            expected: u64::from(choices.max(1)),
            shown_json: shown_model.as_deref().map(json_string),
            shown_model,
            usage_shown,
            tells_always: false,
            finish_reason: None,
            choices: ChoiceSet::default(),
            outputs: 0,
            usage: None,
            usage_is_final: false,
            done: false,
            error: None,
            templates: EventTemplates::default(),
            so_far: None,
        }
    }

    /// The same judge for the next part of an answer: for its first part, or
    /// for one that goes on from what [`StreamClassifier::interrupted`] gave. What
    /// passes looks like one answer, and the usage is that of all parts.
    #[must_use]
    pub fn going_on(self, so_far: PartialAnswer) -> Self {
        Self { so_far: Some(so_far), ..self }
    }

    /// What another engine needs to go on with the answer; absent when it
    /// cannot.
    #[must_use]
    pub fn interrupted(&self) -> Option<PartialAnswer> {
        let is_open = self.choices.ended == 0 && self.is_single();
        let so_far = self.so_far.as_ref().filter(|_| is_open)?;
        let events = self.outputs + so_far.tokens();
        let counted = self.usage.map(|usage| usage.output).filter(|count| *count >= events);
        so_far.resumed(counted.unwrap_or(events), counted.is_some())
    }

    /// Whether output was seen.
    #[must_use]
    pub const fn has_output(&self) -> bool {
        self.outputs > 0 || self.choices.ended > 0
    }

    /// Why the first choice that ended did so; absent until then.
    #[must_use]
    pub const fn finish_reason(&self) -> Option<&'static str> {
        self.finish_reason
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
    pub fn frame(&mut self, frame: &SseFrame) -> EventVerdict {
        let Some(data) = frame.data().map(<[u8]>::trim_ascii).filter(|data| !data.is_empty()) else {
            return EventVerdict { kind: StreamEventKind::Comment, forward: Forward::AsIs };
        };
        if self.done || self.error.is_some() {
            if let Some(usage) = self.read(data).and_then(|news| news.usage) {
                self.set_usage(usage, true);
            }
            return EventVerdict { kind: StreamEventKind::Other, forward: Forward::Drop };
        }
        if !self.so_far.as_ref().is_some_and(PartialAnswer::reads_all)
            && let Some(matched) = self.templates.find(frame)
        {
            self.outputs += 1;
            if let Some(so_far) = &mut self.so_far {
                so_far.keep(matched.text);
            }
            let forward = matched.changed.map_or(Forward::AsIs, Forward::Replace);
            return EventVerdict { kind: StreamEventKind::Token, forward };
        }
        let mut rewrites = EventRewrites::default();
        if data == b"[DONE]" {
            let kind = self.finish();
            return self.verdict(kind, frame, &rewrites);
        }
        let Some(mut news) = self.read(data) else {
            let kind = self.fail(EngineError::Fault(EngineFault::Malformed));
            return self.verdict(kind, frame, &rewrites);
        };
        let kind = if news.error {
            self.fail(engine_error::of_event(self.api, data, self.shown_model.as_deref()))
        } else {
            self.take(&news)
        };
        self.rename(data, &news, &mut rewrites);
        self.hide_usage(data, &mut news, &kind, &mut rewrites);
        let is_failed = self.error.is_some();
        if let Some(so_far) = self.so_far.as_mut().filter(|_| !is_failed)
            && !so_far.see(data, &news, &mut rewrites)
        {
            return EventVerdict { kind, forward: Forward::Drop };
        }
        let is_plain_token =
            kind == StreamEventKind::Token && news.choices.len() == 1 && news.usage.is_none();
        let verdict = self.verdict(kind, frame, &rewrites);
        if is_plain_token && self.api.protocol() == Protocol::Chunks {
            self.templates.learn(frame, &rewrites);
        }
        verdict
    }

    /// The judgement when no more bytes come. What comes after the protocol's
    /// end does not matter: some clients and engines close right there.
    #[must_use]
    pub fn end(&self, ended: ConnectionEnd) -> StreamVerdict {
        let usage = self.usage();
        match &self.error {
            Some(EngineError::Fault(fault)) => StreamVerdict::Failed { fault: *fault, usage },
            Some(EngineError::Client(error)) => StreamVerdict::Refused { error: error.clone(), usage },
            None if self.done => StreamVerdict::Success { usage },
            None => {
                let fault =
                    if ended == ConnectionEnd::Cut { EngineFault::Reset } else { EngineFault::Aborted };
                StreamVerdict::Failed { fault, usage }
            }
        }
    }

    /// What is known of the consumption so far.
    #[must_use]
    pub fn usage(&self) -> JobUsage {
        match self.usage {
            Some(tokens) if self.usage_is_final => JobUsage::Exact(tokens),
            Some(tokens) => {
                JobUsage::Partial(TokenCounts { output: tokens.output.max(self.outputs), ..tokens })
            }
            None => match self.outputs + self.so_far.as_ref().map_or(0, PartialAnswer::tokens) {
                0 => JobUsage::Unknown,
                output => JobUsage::Partial(TokenCounts { output, ..TokenCounts::default() }),
            },
        }
    }

    fn read<'a>(&self, data: &'a [u8]) -> Option<EventNews<'a>> {
        match self.api.protocol() {
            Protocol::Chunks => chunk::read(data),
            Protocol::Messages => typed_events::read_messages(data),
            Protocol::Responses => typed_events::read_responses(data),
            Protocol::Tgi => typed_events::read_tgi(data),
        }
    }

    fn take(&mut self, news: &EventNews<'_>) -> StreamEventKind {
        if news.idle {
            return StreamEventKind::Comment;
        }
        let mut kind = StreamEventKind::Other;
        for choice in &news.choices {
            if choice.index >= MAX_CHOICES {
                return self.fail(EngineError::Fault(EngineFault::Malformed));
            }
            self.choices.see(choice.index);
            self.outputs += u64::from(choice.output);
            match choice.ending {
                Some(ChoiceEnding::Aborted) => {
                    self.note_usage(news);
                    return self.fail(EngineError::Fault(EngineFault::Aborted));
                }
                Some(ChoiceEnding::Real(reason)) => {
                    self.finish_reason.get_or_insert(reason);
                    self.choices.end(choice.index);
                    kind = StreamEventKind::Finish;
                }
                None if choice.output && kind != StreamEventKind::Finish => kind = StreamEventKind::Token,
                None if choice.role && kind == StreamEventKind::Other => kind = StreamEventKind::Role,
                None => {}
            }
        }
        self.note_usage(news);
        if kind == StreamEventKind::Finish && self.ended_without_work() {
            return self.fail(EngineError::Fault(EngineFault::Aborted));
        }
        if news.end {
            return self.finish();
        }
        if news.choices.is_empty() && news.usage.is_some() { StreamEventKind::Usage } else { kind }
    }

    /// vLLM tells these two protocols that a request which it aborted in its
    /// queue ended well; that it generated nothing gives it away.
    fn ended_without_work(&self) -> bool {
        let is_typed = matches!(self.api.protocol(), Protocol::Messages | Protocol::Responses);
        is_typed && self.outputs == 0 && self.usage.is_some_and(|usage| usage.output == 0)
    }

    fn note_usage(&mut self, news: &EventNews<'_>) {
        let Some(usage) = news.usage else {
            return;
        };
        // With several choices a running count is of one choice only.
        let ends = self.expected == 1 && self.choices.all_ended(1);
        self.set_usage(usage, news.choices.is_empty() || ends);
    }

    fn set_usage(&mut self, usage: TokenCounts, is_final: bool) {
        let usage = self.so_far.as_ref().map_or(usage, |so_far| so_far.whole(usage));
        if is_final {
            self.usage = Some(usage);
            self.usage_is_final = true;
        } else if !self.usage_is_final {
            let output = self.usage.map_or(0, |before| before.output).max(usage.output);
            self.usage = Some(TokenCounts { output, ..usage });
        }
    }

    fn finish(&mut self) -> StreamEventKind {
        if !self.choices.all_ended(self.expected) {
            return self.fail(EngineError::Fault(EngineFault::Aborted));
        }
        self.done = true;
        StreamEventKind::Done
    }

    fn fail(&mut self, error: EngineError) -> StreamEventKind {
        self.error = Some(error.clone());
        StreamEventKind::Error(error)
    }

    /// Puts the shown name in place of the engine's own.
    fn rename(&self, data: &[u8], news: &EventNews<'_>, rewrites: &mut EventRewrites) {
        let (Some(shown), Some(name)) = (&self.shown_json, news.model) else { return };
        if name.get() != shown && name.get().starts_with('"') {
            rewrites.set(data, name, shown.as_str());
        }
    }

    /// Takes usage out that the client did not ask for here.
    fn hide_usage<'a>(
        &mut self,
        data: &'a [u8],
        news: &mut EventNews<'a>,
        kind: &StreamEventKind,
        rewrites: &mut EventRewrites,
    ) {
        let Some(usage) = news.raw_usage.filter(|_| !news.choices.is_empty()) else { return };
        let ends = *kind == StreamEventKind::Finish;
        self.tells_always |= !ends;
        match self.usage_shown {
            UsageVisibility::Always => return,
            UsageVisibility::Never => rewrites.cut(data, usage),
            // Engines that tell it in every event do so again at the end; others
            // may tell it in the last event of the choice only.
            UsageVisibility::AtEnd if ends && !self.tells_always => return,
            UsageVisibility::AtEnd => rewrites.set(data, usage, "null"),
        }
        news.raw_usage = None;
    }

    fn verdict(&self, kind: StreamEventKind, frame: &SseFrame, rewrites: &EventRewrites) -> EventVerdict {
        let forward = match &kind {
            StreamEventKind::Error(_) => Forward::Drop,
            StreamEventKind::Usage if self.usage_shown == UsageVisibility::Never => Forward::Drop,
            // Of a part only: the whole answer has its own.
            StreamEventKind::Usage if self.so_far.is_some() && self.choices.ended == 0 => Forward::Drop,
            _ if rewrites.is_empty() => Forward::AsIs,
            _ => Forward::Replace(rewrites.frame(frame)),
        };
        EventVerdict { kind, forward }
    }
}
