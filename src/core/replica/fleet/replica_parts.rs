//! Parts of a replica's state, each with what belongs to it alone.

use std::time::Duration;

use crate::billing::pool_account::ReplicaPresence;
use crate::model::event::ReplicaReport;
use crate::model::overrides::Closed;
use crate::model::time::Tick;
use crate::queue::fit_tree::FitSize;
use crate::replica::health::stall_detector::{StallDetector, WatchedGauges};
use crate::replica::itl_limit::ItlLimit;
use crate::replica::kv_use::SharedKv;
use crate::replica::ledger::{Booking, Ledger};
use crate::replica::reconcile::Reconciler;
use crate::replica::seq_limit::LearnedSeqLimit;
use crate::replica::speed::pool_best::GapStretch;
use crate::replica::speed::prefill_rate::PrefillSampler;
use crate::replica::speed::ttft_model::TtftModel;
use crate::replica::speed::{PoolSpeeds, SpeedBin, SpeedFactor};

use crate::replica::fleet::contribution::PoolCounts;
use crate::replica::fleet::pool_state::PoolState;
use crate::replica::fleet::prefill::load::PrefillLoad;

/// What the policy says of a replica.
#[derive(Debug, Clone, Default)]
pub(super) struct ReplicaConfig {
    /// Whether the policy has the replica.
    pub(super) present: bool,
    /// Whether the policy says that the replica is about to leave.
    pub(super) leaving: bool,
    /// Configured sequences.
    pub(super) seqs: Option<u32>,
    /// Configured size of the KV cache, in tokens.
    pub(super) kv_tokens: Option<u64>,
    /// Idle time after which it sleeps, if it ever does.
    pub(super) idle_after: Option<Duration>,
}

/// Which jobs may start at a replica, whatever room it has.
#[derive(Debug, Clone)]
pub(super) struct ReplicaAdmission {
    /// Whether it keeps the urgent class's objective; see [`crate::replica::reserved_replicas`].
    pub(super) reserved: bool,
    /// Whether the next urgent job may start there beyond the ITL limit.
    pub(super) beyond_limit: bool,
    /// Whether it is held for one job.
    pub(super) held: bool,
    /// Whether it takes jobs that return beyond its ITL limit: its engine reports that it finds
    /// prompts in its cache.
    pub(super) allows_overcommit: bool,
    /// Operator's override that closes it to new jobs.
    pub(super) closed: Option<Closed>,
}

impl Default for ReplicaAdmission {
    fn default() -> Self {
        Self { reserved: true, beyond_limit: false, held: false, allows_overcommit: false, closed: None }
    }
}

/// Work that was ever sent to a replica.
#[derive(Debug, Clone, Default)]
pub(super) struct SentWork {
    /// Sequences.
    pub(super) seqs: u64,
    /// Weight of all prompts.
    pub(super) weights: u64,
    /// Number of the dispatch that chose the replica last.
    pub(super) last_chosen: u64,
}

impl SentWork {
    /// Counts a job; `chosen` is the number of its dispatch.
    pub(super) fn add(&mut self, booking: &Booking, chosen: u64) {
        self.seqs += u64::from(booking.seqs);
        self.weights = self.weights.wrapping_add(booking.weight);
        self.last_chosen = chosen;
    }
}

/// Signs of life of a replica's engine.
#[derive(Debug, Clone, Default)]
pub(super) struct StallWatch {
    pub(super) detector: StallDetector,
    /// Streams that wait for their clients.
    pub(super) paused: u32,
    pub(super) gauges: WatchedGauges,
}

impl StallWatch {
    /// Whether the engine should send something, or a gauge of it should move. Streams that their
    /// clients do not read are not owed. Nothing arrives of an answer that is not a stream, so such
    /// answers are watched only where gauges show progress.
    pub(super) fn owes(&self, ledger: &Ledger) -> bool {
        self.owes_streams(ledger) || (ledger.watched_answers > 0 && self.gauges.show_progress())
    }

    pub(super) const fn owes_streams(&self, ledger: &Ledger) -> bool {
        ledger.watched_streams > self.paused
    }
}

/// Least age of a replica's report before another one is asked for.
const REPORT_GAP: Duration = Duration::from_millis(200);

/// What a replica's engine reports of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct ReportedState {
    pub(super) latest: Option<LatestReport>,
    /// When a report was asked for; older than the latest report once that came.
    pub(super) asked: Option<Tick>,
    pub(super) reconciler: Reconciler,
    /// Sequences that other gateways say they have there.
    pub(super) remote_seqs: u32,
    /// Sequences of other gateways and other clients that run there, as of the last update.
    pub(super) external_seqs: u32,
}

/// The latest report of a replica's engine, and when it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct LatestReport {
    pub(super) at: Tick,
    pub(super) report: ReplicaReport,
}

impl ReportedState {
    /// Takes over a report as the latest one.
    pub(super) const fn note(&mut self, report: ReplicaReport, now: Tick) {
        self.latest = Some(LatestReport { at: now, report });
    }

    /// Asks for a report of running and waiting requests, if the engine makes such reports, the
    /// latest one is at least [`REPORT_GAP`] old, and none was asked for since. Returns whether it
    /// asks.
    pub(super) fn ask(&mut self, now: Tick) -> bool {
        let Some(LatestReport { at, report }) = self.latest else { return false };
        let counts = report.running.is_some() && report.waiting.is_some();
        let asks = counts && now.since(at) >= REPORT_GAP && self.asked.is_none_or(|asked| asked <= at);
        if asks {
            self.asked = Some(now);
        }
        asks
    }

    /// Sequences that the engine says it runs at once.
    pub(super) fn slots(&self) -> Option<u32> {
        self.latest.and_then(|latest| latest.report.slots)
    }

    /// Size of the KV cache that the engine reports, in tokens.
    pub(super) fn kv_tokens(&self) -> Option<u64> {
        self.latest.and_then(|latest| latest.report.kv_tokens)
    }
}

/// What a replica can take, as learned from its jobs and reports.
#[derive(Debug, Clone)]
pub(super) struct LearnedLimits {
    pub(super) seqs: LearnedSeqLimit,
    pub(super) itl: ItlLimit,
    pub(super) shared_kv: SharedKv,
    /// Part of the expected output of its jobs that counts as held, as of the last update.
    pub(super) held_output: f64,
}

impl Default for LearnedLimits {
    fn default() -> Self {
        Self {
            seqs: LearnedSeqLimit::default(),
            itl: ItlLimit::default(),
            shared_kv: SharedKv::default(),
            held_output: 1.0,
        }
    }
}

/// How fast a replica is.
#[derive(Debug, Clone)]
pub(super) struct ReplicaSpeed {
    pub(super) learned: SpeedFactor,
    /// Factor on its predicted times, as of the last update.
    pub(super) factor: f64,
    /// Bin of its speed factor among those of its pool.
    pub(super) bin: Option<SpeedBin>,
    pub(super) stretch: GapStretch,
    pub(super) prefill_sampler: PrefillSampler,
    /// Rate of prompt weight, from which the prefill share of its time follows.
    pub(super) prefill_load: PrefillLoad,
}

impl Default for ReplicaSpeed {
    fn default() -> Self {
        Self {
            learned: SpeedFactor::default(),
            factor: 1.0,
            bin: None,
            stretch: GapStretch::default(),
            prefill_sampler: PrefillSampler::default(),
            prefill_load: PrefillLoad::default(),
        }
    }
}

impl ReplicaSpeed {
    /// Moves the speed factor to the right bin of the pool.
    pub(super) fn rank(&mut self, speeds: &mut PoolSpeeds) {
        let bin = self.learned.is_known().then(|| PoolSpeeds::bin(self.learned.factor()));
        if bin != self.bin {
            speeds.move_replica(self.bin, bin);
            self.bin = bin;
        }
    }
}

/// Free capacity of a replica; `None` where the replica can take nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FreeCapacity {
    /// Free capacity for the urgent class.
    pub(super) urgent: Option<FitSize>,
    /// Free capacity of a reserved replica for classes less urgent than the one whose objective the pool has.
    pub(super) background: Option<FitSize>,
    /// Free capacity of a released replica for the same classes.
    pub(super) released: Option<FitSize>,
    /// Free capacity for the urgent class as soon as the replica's prefills have ended.
    pub(super) soon: Option<FitSize>,
    /// Free capacity, also beyond the ITL limit, for jobs of the urgent class that return to the
    /// replica; see [`crate::replica::fleet::search`].
    pub(super) affinity_overcommit: Option<FitSize>,
}

impl FreeCapacity {
    /// Free capacity now, for background jobs or for the urgent class.
    pub(super) fn now(&self, pool: &PoolState, background: bool) -> Option<FitSize> {
        if !pool.is_background(background) {
            return self.urgent;
        }
        self.released.or_else(|| self.background.filter(|_| pool.takes_background()))
    }

    /// Free capacity now for a job of the urgent class that returns to the replica.
    pub(super) fn overcommit_now(&self) -> Option<FitSize> {
        self.affinity_overcommit.filter(|size| size.prefill > 0)
    }

    /// The same as soon as the replica's prefills have ended.
    pub(super) fn overcommit_soon(&self) -> Option<FitSize> {
        self.affinity_overcommit.map(|size| FitSize { prefill: u64::MAX, ..size })
    }
}

/// What the indexes of the fleet and of the pool hold of a replica, as of its last update.
#[derive(Debug, Clone, Default)]
pub(super) struct IndexedReplica {
    pub(super) free_capacity: FreeCapacity,
    pub(super) ttft_model: TtftModel,
    /// See [`super::replica_state::ReplicaState::urgent_model`].
    pub(super) urgent_model: TtftModel,
    /// Entries in the search trees of the pool.
    pub(super) slots: [Option<usize>; 4],
    pub(super) next_timer: Option<Tick>,
    pub(super) contribution: PoolCounts,
    /// Presence with which the pool's account counts it.
    pub(super) accounted: ReplicaPresence,
}
