//! Stream classifier: judges a stream event by event.
//!
//! A stream is good only when every choice ended for a real reason and the protocol's own end was
//! seen. `[DONE]` alone proves nothing: engines also send it after an abort and after an error.

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
use crate::protocol::response::{ChoiceEnding, ParsedEvent, chunk};
use crate::protocol::sse::SseFrame;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEventKind {
    /// The event only keeps the connection alive.
    Comment,
    /// The opening of an answer. Aborted requests get it as well.
    Role,
    Token,
    /// The real end of a choice, with or without output. It counts as output, as a model may
    /// generate nothing.
    Finish,
    /// Usage without any choice.
    Usage,
    /// The protocol's end, after events that were all good.
    Done,
    /// The answer failed. The event itself never goes to the client.
    Error(EngineError),
    /// Any other event.
    Other,
}

/// The action for an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forward {
    /// Send the event unchanged.
    AsIs,
    /// Send these bytes in place of the event. They are a copy: one small piece is cheaper to send
    /// than three shared ones.
    Replace(Bytes),
    /// Send nothing.
    Drop,
}

/// The verdict on one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventVerdict {
    pub kind: StreamEventKind,
    pub forward: Forward,
}

/// The way in which a connection's bytes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The connection ended as HTTP requires.
    Clean,
    /// The connection broke before that end.
    Cut,
}

/// The events in which the client wants usage. Engines may be configured to send usage in every
/// event, whatever the client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageVisibility {
    /// Every event in which the engine sends it.
    Always,
    /// The usage event at the end; usage in earlier events is null.
    AtEnd,
    /// No event.
    Never,
}

/// The verdict on a whole stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamVerdict {
    /// The answer is complete.
    Success {
        /// The tokens that the answer took.
        usage: JobUsage,
    },
    /// The engine failed.
    Failed {
        fault: EngineFault,
        /// The tokens that the engine spent.
        usage: JobUsage,
    },
    /// The engine refused the request, and the client is at fault.
    Refused {
        /// The error for the client.
        error: crate::protocol::error::ApiError,
        /// The tokens that the engine spent.
        usage: JobUsage,
    },
}

/// Classifier of one stream. The caller passes every frame to [`StreamClassifier::classify`], then
/// asks [`StreamClassifier::final_verdict`] for the verdict.
#[derive(Debug)]
pub struct StreamClassifier {
    api: Api,
    expected: u64,
    shown_model: Option<String>,
    /// `shown_model` as JSON.
    shown_json: Option<String>,
    usage_shown: UsageVisibility,
    /// Whether an event with output had usage before the end of its choice.
    has_early_usage: bool,
    /// The reason of the first choice that ended.
    finish_reason: Option<&'static str>,
    choices: ChoiceSet,
    /// The number of events with output, a lower bound of the output tokens.
    outputs: u64,
    usage: Option<TokenCounts>,
    usage_is_final: bool,
    done: bool,
    error: Option<EngineError>,
    templates: EventTemplates,
    /// The partial answer, when another engine may continue it.
    partial_answer: Option<PartialAnswer>,
}

impl StreamClassifier {
    /// A classifier for the answer to one request.
    ///
    /// `choices` is the number of choices that must come (`ParsedRequest::choices`, or 1 for an
    /// engine that ignores `n`). `shown_model` replaces the engine's own name of the model.
    /// `usage_shown` is what the client asked for; other usage is taken out.
    pub fn new(api: Api, choices: u32, shown_model: Option<String>, usage_shown: UsageVisibility) -> Self {
        Self {
            api,
            expected: u64::from(choices.max(1)),
            shown_json: shown_model.as_deref().map(json_string),
            shown_model,
            usage_shown,
            has_early_usage: false,
            finish_reason: None,
            choices: ChoiceSet::default(),
            outputs: 0,
            usage: None,
            usage_is_final: false,
            done: false,
            error: None,
            templates: EventTemplates::default(),
            partial_answer: None,
        }
    }

    /// The classifier for the next part of an answer: its first part, or one that continues the
    /// result of [`StreamClassifier::to_partial_answer`]. The relayed events look like one answer, and
    /// the usage is that of all parts.
    pub fn with_partial_answer(self, so_far: PartialAnswer) -> Self {
        Self { partial_answer: Some(so_far), ..self }
    }

    /// The partial answer that another engine can continue; absent when none can.
    pub fn to_partial_answer(&self) -> Option<PartialAnswer> {
        let is_open = self.choices.ended == 0 && self.is_single();
        let so_far = self.partial_answer.as_ref().filter(|_| is_open)?;
        let events = self.outputs + so_far.tokens();
        let counted = self.usage.map(|usage| usage.output).filter(|count| *count >= events);
        so_far.for_continuation(counted.unwrap_or(events), counted.is_some())
    }

    /// Whether output was seen.
    pub const fn has_output(&self) -> bool {
        self.outputs > 0 || self.choices.ended > 0
    }

    /// The reason of the first choice that ended; absent until a choice ends.
    pub const fn finish_reason(&self) -> Option<&'static str> {
        self.finish_reason
    }

    /// The number of events with output so far, a lower bound of the output tokens.
    pub const fn outputs(&self) -> u64 {
        self.outputs
    }

    /// Whether the answer has exactly one choice.
    pub const fn is_single(&self) -> bool {
        self.expected == 1
    }

    /// Classifies the next event. After an error, later events are read only for their usage; all
    /// of them are dropped.
    pub fn classify(&mut self, frame: &SseFrame) -> EventVerdict {
        let Some(data) = frame.data().map(<[u8]>::trim_ascii).filter(|data| !data.is_empty()) else {
            return EventVerdict { kind: StreamEventKind::Comment, forward: Forward::AsIs };
        };
        if self.done || self.error.is_some() {
            if let Some(usage) = self.read(data).and_then(|news| news.usage) {
                self.set_usage(usage, true);
            }
            return EventVerdict { kind: StreamEventKind::Other, forward: Forward::Drop };
        }
        if !self.partial_answer.as_ref().is_some_and(PartialAnswer::must_read_all)
            && let Some(matched) = self.templates.find(frame)
        {
            self.outputs += 1;
            if let Some(so_far) = &mut self.partial_answer {
                so_far.push_text(matched.text);
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
            self.fail(engine_error::classify_event(self.api, data, self.shown_model.as_deref()))
        } else {
            self.record_event(&news)
        };
        self.rename(data, &news, &mut rewrites);
        self.hide_usage(data, &mut news, &kind, &mut rewrites);
        let is_failed = self.error.is_some();
        if let Some(so_far) = self.partial_answer.as_mut().filter(|_| !is_failed)
            && !so_far.record_event(data, &news, &mut rewrites)
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

    /// The verdict when no more bytes come. Bytes after the protocol's end do not matter, as some
    /// clients and engines close right there.
    pub fn final_verdict(&self, ended: ConnectionEnd) -> StreamVerdict {
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

    /// The usage known so far.
    pub fn usage(&self) -> JobUsage {
        match self.usage {
            Some(tokens) if self.usage_is_final => JobUsage::Exact(tokens),
            Some(tokens) => {
                JobUsage::Partial(TokenCounts { output: tokens.output.max(self.outputs), ..tokens })
            }
            None => match self.outputs + self.partial_answer.as_ref().map_or(0, PartialAnswer::tokens) {
                0 => JobUsage::Unknown,
                output => JobUsage::Partial(TokenCounts { output, ..TokenCounts::default() }),
            },
        }
    }

    fn read<'a>(&self, data: &'a [u8]) -> Option<ParsedEvent<'a>> {
        match self.api.protocol() {
            Protocol::Chunks => chunk::read(data),
            Protocol::Messages => typed_events::read_messages(data),
            Protocol::Responses => typed_events::read_responses(data),
            Protocol::Tgi => typed_events::read_tgi(data),
        }
    }

    fn record_event(&mut self, news: &ParsedEvent<'_>) -> StreamEventKind {
        if news.is_keep_alive {
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

    /// Whether the answer ended without any output. When vLLM aborts a request in its queue, it
    /// reports a good end in these two protocols. An output of 0 tokens gives the abort away.
    fn ended_without_work(&self) -> bool {
        let is_typed = matches!(self.api.protocol(), Protocol::Messages | Protocol::Responses);
        is_typed && self.outputs == 0 && self.usage.is_some_and(|usage| usage.output == 0)
    }

    fn note_usage(&mut self, news: &ParsedEvent<'_>) {
        let Some(usage) = news.usage else {
            return;
        };
        // With several choices, a running count is that of one choice only.
        let ends = self.expected == 1 && self.choices.all_ended(1);
        self.set_usage(usage, news.choices.is_empty() || ends);
    }

    fn set_usage(&mut self, usage: TokenCounts, is_final: bool) {
        let usage = self.partial_answer.as_ref().map_or(usage, |so_far| so_far.whole(usage));
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

    /// Replaces the engine's own name of the model by the shown name.
    fn rename(&self, data: &[u8], news: &ParsedEvent<'_>, rewrites: &mut EventRewrites) {
        let (Some(shown), Some(name)) = (&self.shown_json, news.model) else { return };
        if name.get() != shown && name.get().starts_with('"') {
            rewrites.set(data, name, shown.as_str());
        }
    }

    /// Removes usage that the client did not ask for in this event.
    fn hide_usage<'a>(
        &mut self,
        data: &'a [u8],
        news: &mut ParsedEvent<'a>,
        kind: &StreamEventKind,
        rewrites: &mut EventRewrites,
    ) {
        let Some(usage) = news.raw_usage.filter(|_| !news.choices.is_empty()) else { return };
        let ends = *kind == StreamEventKind::Finish;
        self.has_early_usage |= !ends;
        match self.usage_shown {
            UsageVisibility::Always => return,
            UsageVisibility::Never => rewrites.cut(data, usage),
            // Engines that send usage in every event send it again at the end. Other engines may
            // send it in the last event of the choice only.
            UsageVisibility::AtEnd if ends && !self.has_early_usage => return,
            UsageVisibility::AtEnd => rewrites.set(data, usage, "null"),
        }
        news.raw_usage = None;
    }

    fn verdict(&self, kind: StreamEventKind, frame: &SseFrame, rewrites: &EventRewrites) -> EventVerdict {
        let forward = match &kind {
            StreamEventKind::Error(_) => Forward::Drop,
            StreamEventKind::Usage if self.usage_shown == UsageVisibility::Never => Forward::Drop,
            // The usage is that of an unfinished part; the whole answer has its own usage event.
            StreamEventKind::Usage if self.partial_answer.is_some() && self.choices.ended == 0 => {
                Forward::Drop
            }
            _ if rewrites.is_empty() => Forward::AsIs,
            _ => Forward::Replace(rewrites.frame(frame)),
        };
        EventVerdict { kind, forward }
    }
}
