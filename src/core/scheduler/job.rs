//! What the scheduler knows of a job.

use std::time::Duration;

use smallvec::SmallVec;

use crate::core::board::Size;
use crate::core::ids::ReplicaId;
use crate::core::job::JobSpec;
use crate::core::queue::Part;
use crate::core::routing::Booking;
use crate::core::time::Tick;

/// Token and byte counts beyond this are taken as this, so that no sum of them
/// can overflow.
const MAX_COUNT: u64 = 1 << 40;
/// More sequences than any engine runs for one request.
const MAX_SEQUENCES: u32 = 1 << 16;

/// One job.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) spec: JobSpec,
    /// Its arrival number.
    pub(super) seq: u64,
    pub(super) phase: Phase,
    /// How long it waited before its earlier tries.
    pub(super) waited: Duration,
    /// The output expected of it, as of when it got to the head of its lane.
    pub(super) output: u64,
    /// What its tenant was charged; charged once, however many tries it takes.
    pub(super) charged: Option<u64>,
    /// How often it was dispatched.
    pub(super) tries: u32,
    /// How many tries failed in a way that counts.
    pub(super) failures: u32,
    /// An engine failed it in a way that may be its own doing.
    pub(super) suspect: bool,
    /// Replicas that failed it in such a way, with their epochs then.
    pub(super) tried: SmallVec<[(ReplicaId, u32); 2]>,
    /// How often another went before it while it was first in the order.
    pub(super) passed: u32,
}

/// Where a job is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    /// In its lane.
    Waiting { part: Part, since: Tick },
    /// At a replica.
    Running(Run),
}

/// A try at a replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) replica: ReplicaId,
    /// The replica's epoch when it was sent.
    pub(super) epoch: u32,
    pub(super) booking: Booking,
}

impl Job {
    /// A job that begins to wait.
    pub(super) fn new(spec: JobSpec, seq: u64, since: Tick) -> Self {
        let spec = JobSpec {
            prompt_tokens: spec.prompt_tokens.min(MAX_COUNT),
            max_output_tokens: spec.max_output_tokens.min(MAX_COUNT),
            sequences: spec.sequences.clamp(1, MAX_SEQUENCES),
            bytes: spec.bytes.min(MAX_COUNT),
            ..spec
        };
        Self {
            spec,
            seq,
            phase: Phase::Waiting { part: Part::Fresh, since },
            waited: Duration::ZERO,
            output: 0,
            charged: None,
            tries: 0,
            failures: 0,
            suspect: false,
            tried: SmallVec::new(),
            passed: 0,
        }
    }

    /// What it books at a replica.
    pub(super) const fn booking(&self) -> Booking {
        Booking {
            seqs: self.spec.sequences,
            prompt: self.spec.prompt_tokens,
            output: self.output,
            started: false,
            suspect: self.suspect,
        }
    }

    /// What a replica must have left for it.
    pub(super) const fn need(&self) -> Size {
        Size { seqs: self.spec.sequences, kv: self.booking().kv() }
    }

    /// How long it has waited, over all its tries.
    pub(super) fn queued(&self, now: Tick) -> Duration {
        match self.phase {
            Phase::Waiting { since, .. } => self.waited.saturating_add(now.since(since)),
            Phase::Running(_) => self.waited,
        }
    }

    /// The part of its lane in which it waits.
    pub(super) const fn part(&self) -> Option<Part> {
        match self.phase {
            Phase::Waiting { part, .. } => Some(part),
            Phase::Running(_) => None,
        }
    }

    /// Its try, while it is at a replica.
    pub(super) const fn run(&self) -> Option<Run> {
        match self.phase {
            Phase::Waiting { .. } => None,
            Phase::Running(run) => Some(run),
        }
    }
}
