//! Where the fleet's findings go. The composition root connects both ends.

use std::time::Duration;

use crate::core::model::event::Event;
use crate::core::model::ids::{PoolId, ReplicaId};
use crate::fleet::engine::ServedName;
use crate::fleet::fetch::FetchError;
use crate::fleet::sleep::SleepOrder;

/// Takes events for the core: `ReplicaReported`, `ReplicaFound`,
/// `ReplicaLost` and `Rested`.
pub trait ReportSink: Send + Sync {
    /// Called from the fleet's tasks with no lock held; must not block. It
    /// may call [`crate::fleet::handle::FleetMonitor::probe`].
    fn event(&self, event: Event);
}

/// Takes notes for people and metrics.
pub trait NoteSink: Send + Sync {
    /// Called from the fleet's tasks with no lock held; must not block.
    fn note(&self, replica: ReplicaId, note: ReplicaNote<'_>);

    /// The same for what there is to know of a pool's source of replicas.
    fn source(&self, pool: PoolId, note: SourceNote<'_>);
}

/// What there is to know of a source of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceNote<'a> {
    /// It cannot be asked; what it said last holds.
    Lost {
        /// What went wrong.
        why: &'a str,
        /// Whether it answered the time before.
        first: bool,
    },
    /// It answers again.
    Back {
        /// How long it did not.
        after: Duration,
    },
    /// It names no replica any more; those that it named last hold for a
    /// while.
    Empty {
        /// For how long.
        holds: Duration,
    },
    /// It names more replicas than a pool may have; the others are left out.
    TooMany {
        /// How many it names.
        named: usize,
    },
}

/// What there is to know of a replica beside its report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReplicaNote<'a> {
    /// Its metrics could not be read.
    ScrapeFailed {
        /// What went wrong.
        why: FetchError,
        /// How many times in a row, this one included.
        times: u32,
    },
    /// Its metrics can be read again.
    ScrapeRecovered {
        /// How many times it had failed in a row.
        times: u32,
    },
    /// What it serves could not be read.
    InfoFailed {
        /// What went wrong.
        why: FetchError,
    },
    /// It does not list names that the configuration says it serves.
    ModelMismatch {
        /// The names it does not list.
        missing: &'a [String],
        /// The names it lists.
        served: &'a [ServedName],
    },
    /// It lists every configured name again.
    ModelsMatch,
    /// It went to sleep unasked (vLLM): it accepts requests and answers none.
    Asleep,
    /// It woke up unasked.
    Awake,
    /// It did what it was told.
    Obeyed {
        /// What that was.
        order: SleepOrder,
        /// How long it took.
        took: Duration,
    },
    /// It did not do what it was told.
    Disobeyed {
        /// What that was.
        order: SleepOrder,
        /// What went wrong.
        why: FetchError,
    },
    /// It does not know how to sleep.
    CannotSleep,
    /// A probe that the core asked for succeeded.
    ProbeSucceeded,
    /// A probe that the core asked for failed.
    ProbeFailed {
        /// What went wrong.
        why: FetchError,
    },
}
