//! The one classifier of engine answers: [`stream::StreamClassifier`] for streams,
//! [`answer::judge_answer`] for whole answers. Both decide by the same rules:
//! an answer is good only when every choice ended for a real reason, and an
//! engine's status line alone says little.

pub mod answer;
mod choices;
mod chunk;
mod edit;
pub mod engine_error;
mod fast;
pub mod partial_answer;
pub mod stream;
mod typed_events;
mod usage;

use smallvec::SmallVec;

use crate::core::model::job::TokenCounts;
use serde_json::value::RawValue;

/// How one choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChoiceEnding {
    /// By itself, or at a limit that the request allows; for this reason.
    Real(&'static str),
    /// The engine gave it up.
    Aborted,
}

/// Reasons of the engines and protocols that are told in logs and traces; every
/// other one is [`OTHER_REASON`], so that an engine cannot write there what it
/// likes.
const REASONS: [&str; 15] = [
    "stop",
    "length",
    "tool_calls",
    "function_call",
    "content_filter",
    "eos_token",
    "stop_sequence",
    "end_turn",
    "max_tokens",
    "tool_use",
    "refusal",
    "pause_turn",
    "repetition",
    "completed",
    "incomplete",
];
const OTHER_REASON: &str = "other";

impl ChoiceEnding {
    /// Of a `finish_reason` (or `stop_reason`). Reasons differ between engines
    /// and grow in number; those of a failure are few and known.
    pub(crate) fn of(reason: &str) -> Self {
        match reason {
            "" | "abort" | "aborted" | "error" | "cancelled" | "canceled" | "failed" => Self::Aborted,
            other => Self::Real(REASONS.into_iter().find(|known| *known == other).unwrap_or(OTHER_REASON)),
        }
    }

    /// Why the choice ended, if for a real reason.
    pub(crate) const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Real(reason) => Some(reason),
            Self::Aborted => None,
        }
    }
}

/// What one event (or one whole answer) says of one choice.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChoiceNews<'a> {
    pub(crate) index: u64,
    /// It names the role, as the first event of a chat does.
    pub(crate) role: bool,
    /// It carries output of any kind.
    pub(crate) output: bool,
    /// Its text, where that is a string of its own.
    pub(crate) text: Option<&'a RawValue>,
    /// It carries more than that: reasoning, tool calls, probabilities, ...
    pub(crate) more: bool,
    pub(crate) ending: Option<ChoiceEnding>,
}

/// What one event of a stream says, in any protocol.
#[derive(Debug, Default)]
pub(crate) struct EventNews<'a> {
    /// The engine's name for the model, where the event has it.
    pub(crate) model: Option<&'a RawValue>,
    /// `id`, `created` and `system_fingerprint`, where the protocol has them in
    /// each event.
    pub(crate) head: [Option<&'a RawValue>; 3],
    pub(crate) choices: SmallVec<[ChoiceNews<'a>; 1]>,
    pub(crate) usage: Option<TokenCounts>,
    /// The same as it stands there.
    pub(crate) raw_usage: Option<&'a RawValue>,
    /// The event is an error.
    pub(crate) error: bool,
    /// The event keeps the connection alive and says nothing.
    pub(crate) idle: bool,
    /// The protocol ends with this event.
    pub(crate) end: bool,
}
