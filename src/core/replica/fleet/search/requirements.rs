//! Replica requirements of a job, and the replica that meets them.

use crate::model::ids::{ModelId, ReplicaId};
use crate::queue::fit_tree::FitSize;
use crate::replica::speed::ttft_model::{self};

/// Requirements of a job for a replica.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaRequirements<'a> {
    /// Capacity that the job needs. The prefill is what it needs where most of its prompt is
    /// cached.
    pub size: FitSize,
    pub prompt: u64,
    /// Output tokens of each of its sequences that count in the choice of a replica: all expected
    /// ones, or a part of them for a stream.
    pub output: u64,
    /// Nanoseconds up to which all waits at replicas that do not have the prompt cached are equal.
    /// Among replicas with shorter waits the load decides.
    pub wait_tolerance: u64,
    /// Replicas that have a prefix of its prompt cached, with the tokens of the prefix.
    pub cached: &'a [(ReplicaId, u64)],
    /// True when the job is background: a more urgent class uses the replicas.
    pub background: bool,
    /// Model of the job, which may be an adapter.
    pub model: ModelId,
    /// Replica of the job's session.
    pub session: Option<SessionReplica>,
}

/// The replica that had the earlier requests of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionReplica {
    pub replica: ReplicaId,
    /// Nanoseconds by which the first token may come later there than elsewhere.
    pub max_delay: u64,
}

impl ReplicaRequirements<'_> {
    /// Prompt tokens that the replica has cached.
    pub fn cached_at(&self, replica: ReplicaId) -> u64 {
        self.cached.iter().find(|(id, _)| *id == replica).map_or(0, |(_, tokens)| *tokens)
    }

    /// Weight of the prompt at the replica.
    pub fn weight_at(&self, replica: ReplicaId) -> u64 {
        ttft_model::weight(self.prompt, self.cached_at(replica))
    }

    /// What it needs there.
    pub(in crate::replica::fleet) fn need_at(&self, replica: ReplicaId) -> FitSize {
        FitSize { prefill: self.weight_at(replica), ..self.size }
    }
}

/// Replica that a search found for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaMatch {
    pub replica: ReplicaId,
    /// Predicted TTFT in nanoseconds.
    pub ttft: u64,
    /// Another replica that the job waits for: it only has to finish its prefills first, and predicts
    /// the first token so much sooner.
    pub wait_for: Option<ReplicaId>,
}
