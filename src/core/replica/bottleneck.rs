//! Bottlenecks: the reasons that keep a replica from taking more work.

/// Bottleneck: the first reason that keeps a replica in service from taking one more job. Without a
/// certain job in mind, this is a job like those that run there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bottleneck {
    /// The replica is held for a large waiting job.
    Held,
    /// The replica came back on trial and has its one job.
    Trial,
    /// The replica is in slow start and may use only a part of its slots.
    SlowStart,
    /// One more sequence would miss the ITL objective.
    Itl,
    /// All slots are taken, including slots of other clients of the engine.
    Slots,
    /// The KV cache has no room for the job, or as much as background classes may use of it has none.
    Kv,
    /// The replica prefills as many prompts as it should at once.
    Prefill,
    /// Background classes use their whole share of the slots.
    BackgroundShare,
    /// The free slots are headroom for an urgent class.
    Headroom,
    /// The replica serves slower classes; others of its pool keep the urgent class's objective.
    Released,
    /// Enough other replicas of the pool prefill long prompts of background classes.
    BackgroundPrefill,
}

impl Bottleneck {
    /// Short stable name for logs and metric labels.
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
            Self::Released => "released",
            Self::BackgroundPrefill => "guest_readers",
        }
    }
}

/// Slots that one bottleneck keeps from jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BottleneckSlots {
    pub bottleneck: Bottleneck,
    pub slots: u32,
}

/// Slots of a replica by use. The counts add up to all slots that the replica has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCounts {
    /// Slots in which a sequence runs.
    pub running: u32,
    /// Slots that a job could take now.
    pub free: u32,
    /// Slots above the replica's limit, with the bottleneck that lowers the limit.
    pub above_limit: Option<BottleneckSlots>,
    /// Slots below the limit that no job can take now.
    pub withheld: Option<BottleneckSlots>,
    /// Slots of a replica that is not in service.
    pub out_of_service: u32,
}
