//! Traffic: recorded calls, in the order of their arrival.

use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceCall {
    /// Time from the start of the trace.
    pub at: Duration,
    /// Index into [`TrafficTrace::tenants`].
    pub tenant: u32,
    /// Index into [`TrafficTrace::classes`].
    pub class: u32,
    /// Prompt tokens, at least 1.
    pub prompt: u32,
    /// Generated tokens, at least 1.
    pub output: u32,
    /// One hash for each whole block of [`TrafficTrace::prefix_block`] prompt
    /// tokens; each hash covers everything before its block, too. The hashes may
    /// go on with the blocks of the answer. Empty = not known.
    pub prefix: Arc<[u64]>,
    /// Time before an engine had the call; absent = not known.
    pub waited: Option<Duration>,
    /// Time from arrival to end; absent = not known.
    pub took: Option<Duration>,
}

impl TraceCall {
    /// Those of the prefix hashes that are of the prompt; `block` tokens each.
    pub fn prompt_hashes(&self, block: u32) -> &[u64] {
        let whole = self.prompt.checked_div(block).unwrap_or(0) as usize;
        self.prefix.get(..whole).unwrap_or(&self.prefix)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrafficTrace {
    /// Calls in order of time; the first is at 0.
    pub calls: Vec<TraceCall>,
    /// Names of the tenants; empty when the trace has none.
    pub tenants: Vec<Arc<str>>,
    /// Names of the classes; empty when the trace has none.
    pub classes: Vec<Arc<str>>,
    /// Tokens per hash in [`TraceCall::prefix`]; 0 without hashes.
    pub prefix_block: u32,
    /// Lines that were skipped because they have no prompt: no engine ever
    /// received them.
    pub skipped_lines: u64,
}
