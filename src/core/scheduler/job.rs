//! Job: the scheduler's state of one request.

use std::cmp::Reverse;
use std::time::Duration;

use smallvec::SmallVec;

use crate::billing::meter::{self, MeteredAttempt};
use crate::limits::LimitReservation;
use crate::model::ids::{ClassId, ClassIndex, JobId, PoolId, ReplicaId};
use crate::model::job::{JobSpec, PromptPrefix};
use crate::model::policy::Policy;
use crate::model::reason::PreemptReason;
use crate::model::time::Tick;
use crate::queue::fit_tree::FitSize;
use crate::queue::lane_key::{LaneOrderKey, LanePart};
use crate::replica::fleet::{PrefillMark, ReplicaRequirements};
use crate::replica::ledger::Booking;
use crate::replica::speed::ttft_model;

/// Cap of token and byte counts. Larger counts are cut to the cap, so that no sum of them can
/// overflow.
const MAX_COUNT: u64 = 1 << 40;
/// Cap of a request's sequences: more than any engine runs for one request.
const MAX_SEQUENCES: u32 = 1 << 16;

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) spec: JobSpec,
    /// Position among the fresh jobs of its lane.
    pub(super) place: LaneOrderKey,
    /// Start of the prompt, to find the replicas that have it in their prefix cache.
    pub(super) prefix: PromptPrefix,
    pub(super) cached: CachedPrompt,
    /// Last instant at which the job can start and still keep its class's TTFT objective.
    pub(super) late_after: Tick,
    pub(super) phase: JobPhase,
    pub(super) wait: JobWait,
    /// Expected output in tokens, as of the last time the job was priced as head of its
    /// lane.
    pub(super) output: u64,
    /// Expected work for the scale signal, as of the arrival.
    pub(super) work: f64,
    /// Output tokens that the client has from engines that broke off. The next engine prefills
    /// them as part of the prompt.
    pub(super) continued_output: u64,
    pub(super) charges: JobCharges,
    /// Number of dispatches.
    pub(super) attempts: u32,
    pub(super) faults: JobFaults,
    pub(super) preemption: JobPreemption,
    /// Class of the arrival, if the job was demoted since.
    pub(super) demoted_from: Option<ClassId>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JobWait {
    /// Time that the job has waited, without the wait under way.
    pub(super) before: Duration,
    /// Number of jobs dispatched before this one while it was first in the order.
    pub(super) passed_over: u32,
    /// End of the wait for a pool start, if the job waits, or has waited, for one.
    pub(super) pool_start_until: Option<Tick>,
}

/// What a job was charged, has reserved and has spent.
#[derive(Debug, Clone, Default)]
pub(super) struct JobCharges {
    /// Cost charged to the tenant in the fair share: once, however many attempts there are.
    pub(super) fair_share: Option<u64>,
    pub(super) reservation: LimitReservation,
    /// Replica time of the attempts so far, in nanoseconds.
    pub(super) replica_time: u64,
    /// Cost of these attempts, in 1e-9 of the currency.
    pub(super) money: u64,
}

impl JobCharges {
    /// Adds an attempt that ended.
    pub(super) fn add_attempt(&mut self, time: Duration, money: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.replica_time = self.replica_time.saturating_add(nanos);
        self.money = self.money.saturating_add(money);
    }
}

/// Faults and stalls that a job met at replicas.
#[derive(Debug, Clone, Default)]
pub(super) struct JobFaults {
    /// Number of attempts whose failure counts against `retry.max_attempts`.
    pub(super) failures: u32,
    /// Whether an attempt failed in a way that the job itself may have caused.
    pub(super) has_failed: bool,
    /// Replicas at which such an attempt failed or stalled.
    pub(super) failed_at: SmallVec<[FailedReplica; 2]>,
    /// Number of stalls.
    pub(super) stalls: u8,
    /// Whether the same request was a suspect before; see
    /// [`crate::replica::health::suspects`].
    pub(super) known_suspect: bool,
}

/// A replica that failed a job, and its epoch then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FailedReplica {
    pub(super) replica: ReplicaId,
    pub(super) epoch: u32,
}

/// Replicas that were silent about a job until it is a suspect.
const SUSPECT_AFTER: u8 = 2;

impl JobFaults {
    /// Counts an attempt that failed in a way that the job itself may have caused.
    pub(super) fn note_failure(&mut self, run: &RunningAttempt) {
        self.has_failed = true;
        self.failures = self.failures.saturating_add(1);
        self.note_failed_at(run);
    }

    /// Records the replica at which the attempt failed, once per epoch.
    pub(super) fn note_failed_at(&mut self, run: &RunningAttempt) {
        let tried = FailedReplica { replica: run.replica, epoch: run.epoch };
        if !self.failed_at.contains(&tried) {
            self.failed_at.push(tried);
        }
    }

    /// Whether replicas were silent about the job so often that it is the suspect.
    pub(super) const fn has_stalled_often(&self) -> bool {
        self.stalls >= SUSPECT_AFTER
    }

    /// Whether the job's silence says something of its replica.
    pub(super) const fn is_watched(&self) -> bool {
        !self.known_suspect && !self.has_stalled_often()
    }
}

/// Preemption and migration of a job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct JobPreemption {
    /// Number of times that the job was preempted for a more urgent job.
    pub(super) count: u32,
    /// The job's entry among the preemptible jobs, while it may be preempted.
    pub(super) entry: Option<PoolEntry>,
    /// Reason of the migration that the edge was asked for in this attempt.
    pub(super) migration_asked: Option<PreemptReason>,
}

/// What the prefix caches of the replicas mean to a job that waits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CachedPrompt {
    /// Most tokens of the prompt that any replica had cached, as of the last time the job was
    /// priced as head of its lane.
    pub(super) at_best: u64,
    /// Since when warm jobs have gone before it; see `dispatch::warm`.
    pub(super) bypassed_since: Option<Tick>,
}

/// Phase of a job: it waits or runs.
#[derive(Debug, Clone, Copy)]
pub(super) enum JobPhase {
    /// In its lane.
    Waiting { part: LanePart, since: Tick },
    /// At a replica.
    Running(RunningAttempt),
}

/// The current attempt of a job that runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunningAttempt {
    pub(super) replica: ReplicaId,
    /// Epoch of the replica at the dispatch.
    pub(super) epoch: u32,
    pub(super) booking: Booking,
    /// Share of the replica's time, for the bill.
    pub(super) metered: MeteredAttempt,
    /// Prompt tokens that the replica was not expected to have cached.
    pub(super) uncached: u64,
    /// Prompt tokens that the prefix index had for the replica, whether they counted or not.
    pub(super) predicted_cached: u64,
    /// Instant of the dispatch.
    pub(super) since: Tick,
    /// Next instant at which the prompt may count as prefilled; see `health::prefill`.
    pub(super) prefill_due_at: Option<Tick>,
    /// Prompts and steps of the replica at the dispatch.
    pub(super) prefill_mark: PrefillMark,
    /// Whether the replica had answered before the dispatch; see [`ReplicaHealth::is_proven`].
    ///
    /// [`ReplicaHealth::is_proven`]: crate::replica::health::ReplicaHealth::is_proven
    pub(super) proven: bool,
    /// Predicted TTFT.
    pub(super) expected_ttft: Duration,
    /// Predicted TTFT in nanoseconds at a replica of speed factor 1.
    pub(super) reference_ttft_ns: u64,
    /// Whether the replica had to load the job's adapter.
    pub(super) loads_adapter: bool,
}

/// Divisor of a stream's expected output in the choice of the replica. The objective of a stream
/// is its first token, so its output counts for less than that of a plain answer, whose client
/// waits for all of it.
const STREAM_OUTPUT_DIVISOR: u64 = 8;

/// Divisor of the TTFT objective: a wait of this part does not count in the choice of the replica.
/// Otherwise prompts that arrive together spread over the replicas for the sake of milliseconds, and
/// each engine has more steps with a prompt in them (decision 063).
const WAIT_TOLERANCE_DIVISOR: u32 = 16;
/// Longest wait that does not count in the choice of the replica.
const MAX_WAIT_TOLERANCE: Duration = Duration::from_millis(500);

/// The spec from the edge, with every number cut to a range in which sums cannot overflow and
/// with no arrival after `now`.
pub(super) fn clamp_spec(spec: JobSpec, now: Tick) -> JobSpec {
    JobSpec {
        prompt_tokens: spec.prompt_tokens.min(MAX_COUNT),
        max_output_tokens: spec.max_output_tokens.min(MAX_COUNT),
        sequences: spec.sequences.clamp(1, MAX_SEQUENCES),
        bytes: spec.bytes.min(MAX_COUNT),
        arrived: spec.arrived.min(now),
        ..spec
    }
}

impl Job {
    /// A job that starts to wait. `spec` comes from [`clamp_spec`].
    pub(super) fn new(spec: JobSpec, prefix: PromptPrefix, seq: u64) -> Self {
        Self {
            spec,
            place: LaneOrderKey { seq, ..LaneOrderKey::default() },
            prefix,
            cached: CachedPrompt::default(),
            late_after: Tick::NEVER,
            phase: JobPhase::Waiting { part: LanePart::New, since: spec.arrived },
            wait: JobWait::default(),
            output: 0,
            work: 0.0,
            continued_output: 0,
            charges: JobCharges::default(),
            attempts: 0,
            faults: JobFaults::default(),
            preemption: JobPreemption::default(),
            demoted_from: None,
        }
    }

    /// The booking at a replica that has `cached` tokens of the prompt.
    pub(super) fn booking(&self, cached: u64, background: bool) -> Booking {
        Booking {
            class: self.spec.class,
            seqs: self.spec.sequences,
            prompt: self.prompt(),
            weight: ttft_model::weight(self.prompt(), cached),
            output: self.output_left(),
            started: false,
            prefilled: false,
            due: false,
            first_token_overdue: false,
            has_failed: self.faults.has_failed,
            background,
            streams: self.spec.streams,
            watched: self.faults.is_watched(),
            adapter: None,
        }
    }

    /// Weight of the job in the replica's time until the first token, when the replica has to
    /// prefill `uncached` tokens of the prompt.
    pub(super) fn time_weight(&self, uncached: u64) -> u64 {
        match self.spec.streams {
            true => meter::prefill_weight(uncached),
            false => meter::plain_answer_weight(uncached, self.output_left(), self.spec.sequences),
        }
    }

    /// Capacity that a replica must have free for the job.
    pub(super) fn size(&self) -> FitSize {
        let booking = self.booking(self.cached.at_best, false);
        FitSize { seqs: booking.seqs, kv: booking.kv(), prefill: booking.weight }
    }

    pub(super) fn requirements<'a>(
        &self,
        cached: &'a [(ReplicaId, u64)],
        background: bool,
        policy: &Policy,
    ) -> ReplicaRequirements<'a> {
        let output = self.output_left() / u64::from(self.spec.sequences.max(1));
        let output = if self.spec.streams { output / STREAM_OUTPUT_DIVISOR } else { output };
        let (need, prompt, model) = (self.size(), self.prompt(), self.spec.model);
        let objective = policy.classes.get(self.spec.class).map_or(Duration::ZERO, |row| row.ttft_objective);
        let tolerance = (objective / WAIT_TOLERANCE_DIVISOR).min(MAX_WAIT_TOLERANCE);
        ReplicaRequirements {
            size: need,
            prompt,
            output,
            wait_tolerance: tolerance.as_nanos() as u64,
            cached,
            background,
            model,
            session: None,
        }
    }

    /// Tokens that the next engine has to prefill: the prompt and the output begun.
    pub(super) fn prompt(&self) -> u64 {
        self.spec.prompt_tokens.saturating_add(self.continued_output)
    }

    /// Tokens that the next engine is expected to write. At least 1 for a continuation.
    fn output_left(&self) -> u64 {
        self.output.saturating_sub(self.continued_output).max(u64::from(self.continued_output > 0))
    }

    /// Position in the given part of the lane. Returned jobs are ordered by age alone.
    pub(super) fn position_in(&self, part: LanePart) -> LaneOrderKey {
        match part {
            LanePart::Requeued => LaneOrderKey { seq: self.place.seq, ..LaneOrderKey::default() },
            LanePart::New => self.place,
        }
    }

    /// Whether the client has received nothing of the current attempt.
    pub(super) fn is_unseen(&self) -> bool {
        self.attempt().is_none_or(|run| !run.booking.started) || !self.spec.streams
    }

    /// Records that the stream broke after `output` tokens. The job met its first deadline; its new
    /// one is `deadline`. No other model continues the stream.
    pub(super) fn interrupted(&mut self, output: u64, deadline: Tick) {
        self.continued_output = self.continued_output.max(output.min(MAX_COUNT));
        self.spec.deadline = self.spec.deadline.max(deadline);
        self.spec.has_fallback = false;
    }

    /// Time that the job has waited, over all its attempts.
    pub(super) fn queued(&self, now: Tick) -> Duration {
        match self.phase {
            JobPhase::Waiting { since, .. } => self.wait.before.saturating_add(now.since(since)),
            JobPhase::Running(_) => self.wait.before,
        }
    }

    /// Part of the lane in which the job waits; `None` while it runs.
    pub(super) const fn part(&self) -> Option<LanePart> {
        match self.phase {
            JobPhase::Waiting { part, .. } => Some(part),
            JobPhase::Running(_) => None,
        }
    }

    /// Current attempt; `None` while the job waits.
    pub(super) const fn attempt(&self) -> Option<RunningAttempt> {
        match self.phase {
            JobPhase::Waiting { .. } => None,
            JobPhase::Running(run) => Some(run),
        }
    }
}

/// A running job of a pool that may be preempted for a more urgent one. Order: slowest class
/// first, then latest dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) struct PreemptibleJob {
    pub(in crate::scheduler) class: Reverse<ClassIndex>,
    pub(in crate::scheduler) dispatched: Reverse<Tick>,
    pub(in crate::scheduler) job: JobId,
}

/// Pool in which a job may be preempted, and its entry in that pool's order.
#[derive(Debug, Clone, Copy)]
pub(in crate::scheduler) struct PoolEntry {
    pub(in crate::scheduler) pool: PoolId,
    pub(in crate::scheduler) entry: PreemptibleJob,
}
