//! Sequence target: where the tokens of one sequence go.

use std::sync::Arc;

use crate::server::feed::TokenFeed;

/// Feed to which one engine request reports.
#[derive(Debug, Clone)]
pub(crate) struct SequenceTarget {
    pub(crate) feed: Arc<TokenFeed>,
    /// Index of the feed's choice for the request's choice 0.
    pub(crate) base: usize,
    /// Number of the feed's choices that belong to the request.
    pub(crate) choices: usize,
    /// Prompt tokens, for the histograms.
    pub(crate) prompt_tokens: u32,
    /// Whether the request ends with a stop token rather than at its limit.
    pub(crate) stops: bool,
    /// The `id` of the answer.
    pub(crate) name: Arc<str>,
}
