//! Job: the scheduler's state of one request.

use std::time::Duration;

use smallvec::SmallVec;

use crate::core::billing::meter::{self, MeteredStay};
use crate::core::limits::LimitReservation;
use crate::core::model::event::PreemptReason;
use crate::core::model::ids::{ClassId, PoolId, ReplicaId};
use crate::core::model::job::{JobSpec, PromptPrefix};
use crate::core::model::time::Tick;
use crate::core::queue::fit_tree::FitSize;
use crate::core::queue::{LanePart, LanePlace};
use crate::core::replica::fleet::{PrefillMark, ReplicaRequirements};
use crate::core::replica::ledger::Booking;
use crate::core::replica::speed::ttft_model;

use crate::core::scheduler::dispatch::preempt::PreemptibleJob;

/// Token and byte counts beyond this are taken as this, so that no sum of them
/// can overflow.
const MAX_COUNT: u64 = 1 << 40;
/// More sequences than any engine runs for one request.
const MAX_SEQUENCES: u32 = 1 << 16;

/// One job.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) spec: JobSpec,
    /// Its place among the fresh jobs of its lane.
    pub(super) place: LanePlace,
    /// The start of its prompt, to find the replica that has read it before.
    pub(super) prefix: PromptPrefix,
    /// The most of its prompt that any replica had when it got to the head of
    /// its lane.
    pub(super) reach: u64,
    /// Why its edge was asked to hand over its stream, if it was in this try.
    pub(super) migration_asked: Option<PreemptReason>,
    /// From then on it cannot keep its class's objective any more.
    pub(super) late_after: Tick,
    pub(super) phase: JobPhase,
    /// How long it waited before its earlier tries.
    pub(super) waited: Duration,
    /// The output expected of it in all, as of when it got to the head of its
    /// lane.
    pub(super) output: u64,
    /// What it is to the scale signal, as of when it came.
    pub(super) work: f64,
    /// Output tokens that its client has from engines that broke off. The next
    /// one reads them as part of the prompt.
    pub(super) begun_output: u64,
    /// What its tenant was charged; charged once, however many tries it takes.
    pub(super) charged: Option<u64>,
    /// What it has reserved of its limits.
    pub(super) reservation: LimitReservation,
    /// What its stays at replicas came to so far: their time in nanoseconds, and
    /// what that costs in 1e-9 of the currency.
    pub(super) spent: (u64, u64),
    /// How often it was dispatched.
    pub(super) attempts: u32,
    /// How many tries failed in a way that counts.
    pub(super) failures: u32,
    /// An engine failed it in a way that may be its own doing.
    pub(super) suspect: bool,
    /// Replicas that failed it in such a way, with their epochs then.
    pub(super) failed_at: SmallVec<[(ReplicaId, u32); 2]>,
    /// Replicas that were silent about it.
    pub(super) stalls: u8,
    /// The same request was a suspect before; see [`crate::core::replica::health::suspects`].
    pub(super) known_suspect: bool,
    /// How often it lost its place to others.
    pub(super) preemptions: u32,
    /// The pool where it may lose its place, and its turn there.
    pub(super) preemptible: Option<(PoolId, PreemptibleJob)>,
    /// How often another went before it while it was first in the order.
    pub(super) passed_over: u32,
    /// Until when it is held for a pool that has to start, if it was.
    pub(super) held_until: Option<Tick>,
    /// The class it came in, if that is not the one it waits in now.
    pub(super) demoted_from: Option<ClassId>,
}

/// Where a job is.
#[derive(Debug, Clone, Copy)]
pub(super) enum JobPhase {
    /// In its lane.
    Waiting { part: LanePart, since: Tick },
    /// At a replica.
    Running(RunningAttempt),
}

/// A try at a replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunningAttempt {
    pub(super) replica: ReplicaId,
    /// The replica's epoch when it was sent.
    pub(super) epoch: u32,
    pub(super) booking: Booking,
    /// Its part in the replica's time.
    pub(super) stay: MeteredStay,
    /// Prompt tokens that the replica was not taken to have.
    pub(super) uncached: u64,
    /// When it was sent.
    pub(super) since: Tick,
    /// When its prompt next may count as read; see `reading`.
    pub(super) read_at: Option<Tick>,
    /// What the replica's prompts and steps came to when it was sent.
    pub(super) mark: PrefillMark,
    /// Whether the replica had answered before; see [`ReplicaHealth::is_proven`].
    ///
    /// [`ReplicaHealth::is_proven`]: crate::core::replica::health::ReplicaHealth::is_proven
    pub(super) proven: bool,
    /// Its time to the first token as predicted.
    pub(super) expected: Duration,
    /// Nanoseconds to its first token, as predicted for a replica of speed 1.
    pub(super) raw: u64,
    /// Whether its adapter had to be loaded.
    pub(super) loads: bool,
}

/// Of so many output tokens of a stream one counts where it is sent: it is promised its
/// first token. The client of a plain answer waits for all of them.
const STREAMED: u64 = 8;

/// What the edge says of a request, with every number one that can be counted
/// with.
pub(super) fn bounded(spec: JobSpec, now: Tick) -> JobSpec {
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
    /// A job that begins to wait. Its spec is [`bounded`].
    pub(super) fn new(spec: JobSpec, prefix: PromptPrefix, seq: u64) -> Self {
        Self {
            spec,
            place: LanePlace { seq, ..LanePlace::default() },
            prefix,
            reach: 0,
            migration_asked: None,
            late_after: Tick::NEVER,
            held_until: None,
            phase: JobPhase::Waiting { part: LanePart::Fresh, since: spec.arrived },
            waited: Duration::ZERO,
            output: 0,
            work: 0.0,
            begun_output: 0,
            charged: None,
            reservation: LimitReservation::default(),
            spent: (0, 0),
            attempts: 0,
            failures: 0,
            suspect: false,
            failed_at: SmallVec::new(),
            stalls: 0,
            known_suspect: false,
            preemptions: 0,
            preemptible: None,
            passed_over: 0,
            demoted_from: None,
        }
    }

    /// What it books at a replica that has so many tokens of its prompt.
    pub(super) fn booking(&self, cached: u64, background: bool) -> Booking {
        Booking {
            seqs: self.spec.sequences,
            prompt: self.prompt(),
            weight: ttft_model::weight(self.prompt(), cached),
            output: self.output_left(),
            started: false,
            read: false,
            due: false,
            settled: false,
            suspect: self.suspect,
            background,
            streams: self.spec.streams,
            watched: self.is_watched(),
            adapter: None,
        }
    }

    /// Its weight in the time of a replica that has to read so much of its
    /// prompt, until its first token.
    pub(super) fn time_weight(&self, uncached: u64) -> u64 {
        match self.spec.streams {
            true => meter::reading(uncached),
            false => meter::unseen(uncached, self.output_left(), self.spec.sequences),
        }
    }

    /// What a replica must have left for it.
    pub(super) fn size(&self) -> FitSize {
        let booking = self.booking(self.reach, false);
        FitSize { seqs: booking.seqs, kv: booking.kv(), prefill: booking.weight }
    }

    /// What it wants of a replica.
    pub(super) fn requirements<'a>(
        &self,
        cached: &'a [(ReplicaId, u64)],
        background: bool,
    ) -> ReplicaRequirements<'a> {
        let output = self.output_left() / u64::from(self.spec.sequences.max(1));
        let output = if self.spec.streams { output / STREAMED } else { output };
        let (need, prompt, model) = (self.size(), self.prompt(), self.spec.model);
        ReplicaRequirements { size: need, prompt, output, cached, background, model, session: None }
    }

    /// What the next engine has to read.
    pub(super) fn prompt(&self) -> u64 {
        self.spec.prompt_tokens.saturating_add(self.begun_output)
    }

    /// What the next engine is expected to write.
    fn output_left(&self) -> u64 {
        self.output.saturating_sub(self.begun_output).max(u64::from(self.begun_output > 0))
    }

    /// What its prompt costs to read where nothing of it is known.
    pub(super) fn weight(&self) -> u64 {
        ttft_model::weight(self.prompt(), 0)
    }

    /// Its place in the part of its lane in which it waits. What returned goes
    /// by age alone.
    pub(super) fn place_in(&self, part: LanePart) -> LanePlace {
        match part {
            LanePart::Returned => LanePlace { seq: self.place.seq, ..LanePlace::default() },
            LanePart::Fresh => self.place,
        }
    }

    /// Whether its client has been sent nothing of the try under way.
    pub(super) fn is_unseen(&self) -> bool {
        self.attempt().is_none_or(|run| !run.booking.started) || !self.spec.streams
    }

    /// Its stream broke off after so much output. Its first deadline was kept,
    /// so it may wait until `deadline`; no other model goes on with it.
    pub(super) fn interrupted(&mut self, output: u64, deadline: Tick) {
        self.begun_output = self.begun_output.max(output.min(MAX_COUNT));
        self.spec.deadline = self.spec.deadline.max(deadline);
        self.spec.has_fallback = false;
    }

    /// Keeps in mind that a replica failed it.
    pub(super) fn note_failed_at(&mut self, run: &RunningAttempt) {
        let tried = (run.replica, run.epoch);
        if !self.failed_at.contains(&tried) {
            self.failed_at.push(tried);
        }
    }

    /// How long it has waited, over all its tries.
    pub(super) fn queued(&self, now: Tick) -> Duration {
        match self.phase {
            JobPhase::Waiting { since, .. } => self.waited.saturating_add(now.since(since)),
            JobPhase::Running(_) => self.waited,
        }
    }

    /// The part of its lane in which it waits.
    pub(super) const fn part(&self) -> Option<LanePart> {
        match self.phase {
            JobPhase::Waiting { part, .. } => Some(part),
            JobPhase::Running(_) => None,
        }
    }

    /// Its try, while it is at a replica.
    pub(super) const fn attempt(&self) -> Option<RunningAttempt> {
        match self.phase {
            JobPhase::Waiting { .. } => None,
            JobPhase::Running(run) => Some(run),
        }
    }
}
