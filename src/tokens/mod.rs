//! Token counts of prompts, as exact as they can be.

mod cache;
mod chat;
pub mod counter;
pub mod estimate;
mod files;
pub mod ratio;
mod template;
pub mod threads;
mod vocabulary;

/// How a number of prompt tokens is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CountSource {
    /// From the bytes, by what engines counted before. Not to be relied on.
    #[default]
    Estimate,
    /// The same; but its bytes alone show that the prompt fits.
    Bound,
    /// The prompt is token ids.
    Ids,
    /// By the model's own tokenizer.
    Exact,
    /// By an engine of the model.
    Engine,
}

impl CountSource {
    /// A short stable name for logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Estimate => "estimate",
            Self::Bound => "bound",
            Self::Ids => "ids",
            Self::Exact => "exact",
            Self::Engine => "engine",
        }
    }

    /// Whether a request may be refused by it.
    #[must_use]
    pub const fn is_sure(self) -> bool {
        matches!(self, Self::Ids | Self::Exact | Self::Engine)
    }
}
