//! Invariants of the scheduler, by name.

/// One thing that must always hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InvariantId {
    /// A replica is booked only within its credit, or as a whole when empty.
    CreditKept,
    /// A replica's ledger is the sum of what its running jobs booked.
    LedgerBalanced,
    /// Each waiting job is in exactly one lane, and the totals are theirs.
    QueueConsistent,
    /// The head of each lane stands in the order with its tenant's counter, which
    /// moves it, and its own size.
    HeadsRanked,
    /// Each waiting job has its deadline in the timer, and the end of its hold if
    /// it waits for a pool to start; no other has.
    DeadlineWatched,
    /// Each replica that waits for a moment in time has a timer for it.
    ReplicaWatched,
    /// No replica has credit that the head of a lane could use.
    NoIdleCredit,
    /// A tenant with a quota holds what its running jobs have, and a pool's
    /// capacity and what it shows are those of its replicas in service.
    QuotasBalanced,
    /// A replica is held only for a waiting job that does not fit yet.
    HoldJustified,
    /// What is reserved of limits is what unfinished jobs hold.
    LimitsBalanced,
    /// A replica's time is shared among the jobs that run there, and its pool
    /// counts it as busy while there are any.
    TimeShared,
    /// No job waits for a model that is down while another may serve it.
    NoVainWait,
    /// A replica is closed to new work as the operators' overrides say.
    OverridesFollowed,
}

impl InvariantId {
    /// A short stable name for logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CreditKept => "credit_kept",
            Self::LedgerBalanced => "ledger_balanced",
            Self::QueueConsistent => "queue_consistent",
            Self::HeadsRanked => "heads_ranked",
            Self::DeadlineWatched => "deadline_watched",
            Self::ReplicaWatched => "replica_watched",
            Self::NoIdleCredit => "no_idle_credit",
            Self::QuotasBalanced => "quotas_balanced",
            Self::HoldJustified => "hold_justified",
            Self::LimitsBalanced => "limits_balanced",
            Self::TimeShared => "time_shared",
            Self::NoVainWait => "no_vain_wait",
            Self::OverridesFollowed => "overrides_followed",
        }
    }
}

/// Counts what was found broken.
#[derive(Debug, Clone, Default)]
pub struct Invariants {
    broken: u64,
}

impl Invariants {
    /// Takes note of one check: a broken invariant panics in a debug build and
    /// is counted in a release build, where the work goes on.
    pub fn check(&mut self, id: InvariantId, holds: bool) {
        if holds {
            return;
        }
        self.broken = self.broken.saturating_add(1);
        debug_assert!(holds, "invariant {} is broken", id.name());
    }

    /// How many checks failed since the start.
    #[must_use]
    pub const fn broken(&self) -> u64 {
        self.broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_invariant_counts_nothing() {
        let mut invariants = Invariants::default();
        invariants.check(InvariantId::CreditKept, true);
        assert_eq!(invariants.broken(), 0);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "ledger_balanced")]
    fn a_broken_invariant_panics_in_debug() {
        Invariants::default().check(InvariantId::LedgerBalanced, false);
    }
}
