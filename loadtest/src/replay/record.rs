//! Record of one replayed call.

use std::time::Duration;

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// 2xx and whole.
    Served,
    /// The server said that it has no room: 429, 503, 529, or any error with a
    /// `Retry-After`. The text is the status and the error's code.
    Refused(String),
    /// Everything else: other errors, broken streams, lost connections, and
    /// calls that were not over in time.
    Failed(String),
}

/// One call. Times count from its planned instant, so a late send or a retry
/// is part of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Planned instant, from the start of the run.
    pub at: Duration,
    /// Number of its tenant.
    pub tenant: usize,
    /// Number of its class.
    pub class: usize,
    /// Prompt tokens asked for.
    pub input: u32,
    /// Output tokens asked for.
    pub output: u32,
    /// Output tokens that came.
    pub tokens: u64,
    /// From the planned instant to the first byte sent.
    pub lag: Duration,
    /// To the first output, or to the end of an answer without text.
    pub ttft: Option<Duration>,
    /// To the last token.
    pub last: Option<Duration>,
    /// To the end.
    pub total: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// Times it was sent again after a refusal or a failure.
    pub retries: u32,
}

impl Record {
    /// Whether it came whole.
    pub fn served(&self) -> bool {
        self.outcome == Outcome::Served
    }

    /// Mean time between two tokens; zero for one token.
    pub fn itl(&self) -> Option<Duration> {
        let streaming = self.last?.saturating_sub(self.ttft?);
        Some(streaming.div_f64(self.tokens.saturating_sub(1).max(1) as f64))
    }

    /// Work in tokens as it is usually weighed: prompt plus twice the output.
    pub fn service(&self) -> u64 {
        u64::from(self.input) + 2 * u64::from(self.output)
    }
}
