//! The one classifier of engine answers: [`stream::StreamJudge`] for streams,
//! [`answer::judge_answer`] for whole answers. Both decide by the same rules:
//! an answer is good only when every choice ended for a real reason, and an
//! engine's status line alone says little.

pub mod answer;
mod chunk;
mod fast;
pub mod refusal;
pub mod stream;
mod typed;
mod usage;

use smallvec::SmallVec;

use crate::core::job::Tokens;
use serde_json::value::RawValue;

/// How one choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By itself, or at a limit that the request allows.
    Real,
    /// The engine gave it up.
    Aborted,
}

impl Ending {
    /// Of a `finish_reason` (or `stop_reason`). Reasons differ between engines
    /// and grow in number; those of a failure are few and known.
    pub(crate) fn of(reason: &str) -> Self {
        match reason {
            "" | "abort" | "aborted" | "error" | "cancelled" | "canceled" | "failed" => Self::Aborted,
            _ => Self::Real,
        }
    }
}

/// What one event (or one whole answer) says of one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChoiceNews {
    pub(crate) index: u64,
    /// It names the role, as the first event of a chat does.
    pub(crate) role: bool,
    /// It carries output of any kind.
    pub(crate) output: bool,
    pub(crate) ending: Option<Ending>,
}

/// What one event of a stream says, in any protocol.
#[derive(Debug, Default)]
pub(crate) struct News<'a> {
    /// The engine's name for the model, where the event has it.
    pub(crate) model: Option<&'a RawValue>,
    pub(crate) choices: SmallVec<[ChoiceNews; 1]>,
    pub(crate) usage: Option<Tokens>,
    /// The event is an error.
    pub(crate) error: bool,
    /// The event keeps the connection alive and says nothing.
    pub(crate) idle: bool,
    /// The protocol ends with this event.
    pub(crate) end: bool,
}
