//! Invariants of the scheduler, by name.

/// Identity of an invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InvariantId {
    /// A replica is booked only within its credit, unless it was empty and runs a single job.
    CreditKept,
    /// A replica's ledger is the sum of the bookings of its running jobs.
    LedgerBalanced,
    /// Each waiting job is in exactly one lane, and the totals match the lanes.
    QueueConsistent,
    /// Each head is in the dispatch order with its tenant's current counter, and with its own size.
    HeadsRanked,
    /// The timer holds the deadline of each waiting job, the end of its hold if the job waits for a
    /// pool start, and nothing of other jobs.
    DeadlineWatched,
    /// Each replica that waits for a moment in time has a timer.
    ReplicaWatched,
    /// No replica has credit that the head of a lane could use.
    NoIdleCredit,
    /// Quota accounts match the sequences of running jobs. A pool's capacity and its shown values
    /// are those of its replicas in service.
    QuotasBalanced,
    /// A replica is held only for a waiting job that does not fit yet.
    HoldJustified,
    /// The reservations in limits are those of unfinished jobs.
    LimitsBalanced,
    /// A replica's time is shared among the jobs that run there. The pool counts the replica as
    /// busy while it runs any job.
    TimeShared,
    /// No job waits for a model that is down while another model may serve the job.
    NoVainWait,
    /// A replica is closed to new work exactly as the operators' overrides say.
    OverridesFollowed,
}

impl InvariantId {
    /// Short stable name for logs and metric labels.
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

/// Counter of broken invariants.
#[derive(Debug, Clone, Default)]
pub struct Invariants {
    broken: u64,
}

impl Invariants {
    /// Records one check. A broken invariant panics in a debug build; a release build counts it and
    /// goes on.
    pub fn check(&mut self, id: InvariantId, holds: bool) {
        if holds {
            return;
        }
        self.broken = self.broken.saturating_add(1);
        debug_assert!(holds, "invariant {} is broken", id.name());
    }

    /// Number of checks that failed since the start.
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
