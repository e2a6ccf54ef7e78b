//! Token counts of prompts: estimates, exact counts, and the source of each count.

mod cache;
mod chat;
pub mod counter;
pub mod estimate;
mod files;
pub mod ratio;
mod template;
pub mod threads;
mod turns;
mod vocabulary;

/// The source of a number of prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CountSource {
    /// An estimate from the prompt's bytes, corrected by earlier counts of engines. Not reliable.
    #[default]
    Estimate,
    /// An estimate, but the prompt's bytes alone prove that it fits the context window.
    Bound,
    /// The prompt is an array of token ids.
    Ids,
    /// A count by the model's own tokenizer.
    Exact,
    /// A count by an engine of the model.
    Engine,
}

impl CountSource {
    pub const ALL: [Self; 5] = [Self::Estimate, Self::Bound, Self::Ids, Self::Exact, Self::Engine];

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Estimate => "estimate",
            Self::Bound => "bound",
            Self::Ids => "ids",
            Self::Exact => "exact",
            Self::Engine => "engine",
        }
    }

    /// Whether the gateway may refuse a request because of this number.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Ids | Self::Exact | Self::Engine)
    }
}
