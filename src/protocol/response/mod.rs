//! Classifiers of engine answers: [`stream::StreamClassifier`] for streams,
//! [`answer::classify_answer`] for whole answers. Both follow the same rules: an answer is good only
//! when every choice ended for a real reason. An engine's status line alone proves little.

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

/// The ending of one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChoiceEnding {
    /// The choice ended by itself, or at a limit that the request allows, for this reason.
    Real(&'static str),
    /// The engine aborted the choice.
    Aborted,
}

/// Finish reasons that logs and traces show. Every other reason is shown as [`OTHER_REASON`], so
/// that an engine cannot write text of its own there.
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
    /// The ending for a `finish_reason` (or `stop_reason`). Good reasons differ between engines and
    /// grow in number; the reasons of a failure are few and known.
    pub(crate) fn of(reason: &str) -> Self {
        match reason {
            "" | "abort" | "aborted" | "error" | "cancelled" | "canceled" | "failed" => Self::Aborted,
            other => Self::Real(REASONS.into_iter().find(|known| *known == other).unwrap_or(OTHER_REASON)),
        }
    }

    /// The reason, if the choice ended for a real one.
    pub(crate) const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Real(reason) => Some(reason),
            Self::Aborted => None,
        }
    }
}

/// The content of one event (or of one whole answer) about one choice.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ParsedChoice<'a> {
    pub(crate) index: u64,
    /// The event names the role, as the first event of a chat does.
    pub(crate) role: bool,
    /// The event carries output of any kind.
    pub(crate) output: bool,
    /// The text of the output, where it is a string of its own.
    pub(crate) text: Option<&'a RawValue>,
    /// The event carries output other than the text: reasoning, tool calls, probabilities, ...
    pub(crate) has_other_output: bool,
    pub(crate) ending: Option<ChoiceEnding>,
}

/// The content of one event of a stream, in any protocol.
#[derive(Debug, Default)]
pub(crate) struct ParsedEvent<'a> {
    /// The engine's name of the model, where the event has it.
    pub(crate) model: Option<&'a RawValue>,
    /// `id`, `created` and `system_fingerprint`, where the protocol has them in
    /// each event.
    pub(crate) metadata: [Option<&'a RawValue>; 3],
    pub(crate) choices: SmallVec<[ParsedChoice<'a>; 1]>,
    pub(crate) usage: Option<TokenCounts>,
    /// The usage as JSON in the event.
    pub(crate) raw_usage: Option<&'a RawValue>,
    pub(crate) error: bool,
    /// The event only keeps the connection alive.
    pub(crate) is_keep_alive: bool,
    /// The stream ends with this event, by the rules of the protocol.
    pub(crate) end: bool,
}
