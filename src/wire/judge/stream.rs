//! Judges a stream, event by event.
//!
//! A stream is good only when every choice ended for a real reason and the
//! protocol's own end was seen. `[DONE]` alone proves nothing: engines send it
//! after an abort and after an error, too.

use bytes::Bytes;

use crate::core::event::Fault;
use crate::core::job::{Tokens, Usage};
use crate::wire::api::{Api, Protocol};
use crate::wire::judge::choices::{Choices, MAX_CHOICES};
use crate::wire::judge::fast::Templates;
use crate::wire::judge::refusal::{self, EngineError};
use crate::wire::judge::rewrite::Rewrites;
use crate::wire::judge::so_far::SoFar;
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

/// Where the client wants to see usage. Engines may be set to tell it in every
/// event, whoever asked for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageShown {
    /// Wherever the engine tells it.
    Always,
    /// In the event for it at the end; before that it is null.
    AtEnd,
    /// Nowhere.
    Never,
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

/// Judges one stream. Feed it every frame, then ask for the end.
#[derive(Debug)]
pub struct StreamJudge {
    api: Api,
    expected: u64,
    shown_model: Option<String>,
    /// The same as JSON.
    shown_json: Option<String>,
    usage_shown: UsageShown,
    /// Whether an event with output told usage before the end of its choice.
    tells_always: bool,
    /// Why the first choice that ended did so.
    finish_reason: Option<&'static str>,
    choices: Choices,
    /// Events with output; a lower bound of the tokens.
    outputs: u64,
    usage: Option<Tokens>,
    usage_is_final: bool,
    done: bool,
    error: Option<EngineError>,
    templates: Templates,
    /// Of an answer that another engine may go on with.
    so_far: Option<SoFar>,
}

impl StreamJudge {
    /// A judge for the answer to one request.
    ///
    /// `choices` is how many choices must come (`Peek::choices`, or 1 for an
    /// engine that ignores `n`). `shown_model` replaces the engine's own name
    /// of the model. `usage_shown` is what the client asked for; other usage is
    /// taken out.
    #[must_use]
    pub fn new(api: Api, choices: u32, shown_model: Option<String>, usage_shown: UsageShown) -> Self {
        Self {
            api,
            expected: u64::from(choices.max(1)),
            shown_json: shown_model.as_deref().map(json_string),
            shown_model,
            usage_shown,
            tells_always: false,
            finish_reason: None,
            choices: Choices::default(),
            outputs: 0,
            usage: None,
            usage_is_final: false,
            done: false,
            error: None,
            templates: Templates::default(),
            so_far: None,
        }
    }

    /// The same judge for the next part of an answer: for its first part, or
    /// for one that goes on from what [`StreamJudge::interrupted`] gave. What
    /// passes looks like one answer, and the usage is that of all parts.
    #[must_use]
    pub fn going_on(self, so_far: SoFar) -> Self {
        Self { so_far: Some(so_far), ..self }
    }

    /// What another engine needs to go on with the answer; absent when it
    /// cannot.
    #[must_use]
    pub fn interrupted(&self) -> Option<SoFar> {
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
        if !self.so_far.as_ref().is_some_and(SoFar::reads_all)
            && let Some(matched) = self.templates.find(frame)
        {
            self.outputs += 1;
            if let Some(so_far) = &mut self.so_far {
                so_far.keep(matched.text);
            }
            let forward = matched.changed.map_or(Forward::AsIs, Forward::Replace);
            return Verdict { kind: EventKind::Token, forward };
        }
        let mut rewrites = Rewrites::default();
        if data == b"[DONE]" {
            let kind = self.finish();
            return self.verdict(kind, frame, &rewrites);
        }
        let Some(mut news) = self.read(data) else {
            let kind = self.fail(EngineError::Fault(Fault::Malformed));
            return self.verdict(kind, frame, &rewrites);
        };
        let kind = if news.error {
            self.fail(refusal::of_event(self.api, data, self.shown_model.as_deref()))
        } else {
            self.take(&news)
        };
        self.rename(data, &news, &mut rewrites);
        self.hide_usage(data, &mut news, &kind, &mut rewrites);
        let is_failed = self.error.is_some();
        if let Some(so_far) = self.so_far.as_mut().filter(|_| !is_failed)
            && !so_far.see(data, &news, &mut rewrites)
        {
            return Verdict { kind, forward: Forward::Drop };
        }
        let is_plain_token = kind == EventKind::Token && news.choices.len() == 1 && news.usage.is_none();
        let verdict = self.verdict(kind, frame, &rewrites);
        if is_plain_token && self.api.protocol() == Protocol::Chunks {
            self.templates.learn(frame, &rewrites);
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
            None => match self.outputs + self.so_far.as_ref().map_or(0, SoFar::tokens) {
                0 => Usage::Unknown,
                output => Usage::Partial(Tokens { output, ..Tokens::default() }),
            },
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
                Some(Ending::Real(reason)) => {
                    self.finish_reason.get_or_insert(reason);
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
        let usage = self.so_far.as_ref().map_or(usage, |so_far| so_far.whole(usage));
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

    /// Puts the shown name in place of the engine's own.
    fn rename(&self, data: &[u8], news: &News<'_>, rewrites: &mut Rewrites) {
        let (Some(shown), Some(name)) = (&self.shown_json, news.model) else { return };
        if name.get() != shown && name.get().starts_with('"') {
            rewrites.set(data, name, shown.as_str());
        }
    }

    /// Takes usage out that the client did not ask for here.
    fn hide_usage<'a>(
        &mut self,
        data: &'a [u8],
        news: &mut News<'a>,
        kind: &EventKind,
        rewrites: &mut Rewrites,
    ) {
        let Some(usage) = news.raw_usage.filter(|_| !news.choices.is_empty()) else { return };
        let ends = *kind == EventKind::Finish;
        self.tells_always |= !ends;
        match self.usage_shown {
            UsageShown::Always => return,
            UsageShown::Never => rewrites.cut(data, usage),
            // Engines that tell it in every event do so again at the end; others
            // may tell it in the last event of the choice only.
            UsageShown::AtEnd if ends && !self.tells_always => return,
            UsageShown::AtEnd => rewrites.set(data, usage, "null"),
        }
        news.raw_usage = None;
    }

    fn verdict(&self, kind: EventKind, frame: &Frame, rewrites: &Rewrites) -> Verdict {
        let forward = match &kind {
            EventKind::Error(_) => Forward::Drop,
            EventKind::Usage if self.usage_shown == UsageShown::Never => Forward::Drop,
            // Of a part only: the whole answer has its own.
            EventKind::Usage if self.so_far.is_some() && self.choices.ended == 0 => Forward::Drop,
            _ if rewrites.is_empty() => Forward::AsIs,
            _ => Forward::Replace(rewrites.frame(frame)),
        };
        Verdict { kind, forward }
    }
}
