//! Bottlenecks: the reasons that keep a replica from taking more work.

/// The first thing that keeps a replica in service from taking one more job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bottleneck {
    /// It is kept for a large job that waits.
    Held,
    /// It came back on trial and has its one job.
    Trial,
    /// It came back a moment ago and gets only a part of its places.
    SlowStart,
    /// One more sequence would cost the objective between tokens.
    Itl,
    /// Its places are taken, those of other clients of the engine included.
    Slots,
    /// Its KV cache is full, or as full as it may be for less urgent classes.
    Kv,
    /// It reads as many prompts as it should at once.
    Prefill,
    /// Less urgent classes have their share of its places.
    BackgroundShare,
    /// What is left is kept for an urgent class.
    Headroom,
    /// Enough other replicas of the pool read prompts of less urgent classes.
    BackgroundPrefill,
}

impl Bottleneck {
    /// A short stable name for logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Trial => "trial",
            Self::SlowStart => "slow_start",
            Self::Itl => "pace",
            Self::Slots => "slots",
            Self::Kv => "kv",
            Self::Prefill => "reading",
            Self::BackgroundShare => "guest_share",
            Self::Headroom => "reserve",
            Self::BackgroundPrefill => "guest_readers",
        }
    }
}

/// The places of a replica, by what they are used for. They add up to all that it
/// has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCounts {
    /// Sequences that run in them.
    pub running: u32,
    /// Those that a job could take now.
    pub free: u32,
    /// Those above the replica's limit, and what lowers it.
    pub above_limit: Option<(Bottleneck, u32)>,
    /// Those below the limit that nobody can take now, and why.
    pub kept: Option<(Bottleneck, u32)>,
    /// Those of a replica that is not in service.
    pub out: u32,
}
