//! Demand facts: what happened to jobs, as the scheduler records it for the
//! [`DemandObserver`](crate::autoscale::observer::DemandObserver).

use std::sync::Arc;
use std::time::Duration;

use crate::model::ids::{ClassId, ModelId, PoolId, TenantId};
use crate::model::job::JobSpec;
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::Placement;
use crate::queue::lane_key::{LaneAccounts, LanePosition};

/// Number of facts at which the owner of a scheduler has to hand them over.
pub const MAX_FACTS: usize = 8192;

/// A job, as far as demand profiles count it.
#[derive(Debug, Clone, Copy)]
pub struct ObservedJob {
    pub model: ModelId,
    pub class: ClassId,
    pub tenant: TenantId,
    pub prompt_tokens: u64,
}

impl From<&JobSpec> for ObservedJob {
    fn from(spec: &JobSpec) -> Self {
        let JobSpec { model, class, tenant, prompt_tokens, .. } = *spec;
        Self { model, class, tenant, prompt_tokens }
    }
}

/// A fact, and when it came about.
#[derive(Debug, Clone)]
pub struct DemandFact {
    pub at: Tick,
    pub kind: DemandFactKind,
}

/// Kind of a fact. Lane positions are those of the policy in force.
#[derive(Debug, Clone)]
pub enum DemandFactKind {
    /// A policy came into force.
    PolicyChanged { policy: Arc<Policy>, placement: Arc<Placement>, classes: GroupClasses },
    /// A job was admitted.
    Arrived { job: ObservedJob, at: LanePosition, work: f64 },
    /// A job went to a replica of the pool.
    Dispatched {
        job: ObservedJob,
        at: LanePosition,
        pool: PoolId,
        work: f64,
        queued: Duration,
        /// Whether an earlier attempt of the job was dispatched.
        again: bool,
    },
    /// A job was refused after it was admitted. `scarce` is its position where the refusal shows
    /// that replicas are missing.
    Refused { job: ObservedJob, scarce: Option<LanePosition> },
    /// A job's attempt at a replica of the pool ended.
    AttemptEnded { job: ObservedJob, accounts: LaneAccounts, pool: Option<PoolId>, lasted: Duration },
    /// A job moved from one class to another.
    Moved { from: ClassId, to: ClassId },
    /// A job ended, in whatever way, after this many output tokens.
    Left { job: ObservedJob, output: u64 },
}

/// Classes of each pool group, in the order of service.
pub type GroupClasses = Arc<[Vec<ClassId>]>;

/// Facts in the order of time. Nothing is recorded before [`Self::start`].
#[derive(Debug, Default)]
pub struct DemandFacts {
    recording: bool,
    facts: Vec<DemandFact>,
}

impl DemandFacts {
    /// Records facts from now on.
    pub const fn start(&mut self) {
        self.recording = true;
    }

    pub fn push(&mut self, at: Tick, kind: DemandFactKind) {
        if self.recording {
            self.facts.push(DemandFact { at, kind });
        }
    }

    /// Whether the facts have to be taken now.
    pub const fn is_full(&self) -> bool {
        self.facts.len() >= MAX_FACTS
    }

    /// The facts, for the one who takes them.
    pub const fn list(&mut self) -> &mut Vec<DemandFact> {
        &mut self.facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_small() {
        assert!(size_of::<DemandFact>() <= 104, "{}", size_of::<DemandFact>());
    }
}
