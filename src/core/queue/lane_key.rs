//! Lane key: which jobs share a lane, and where a lane stands in the order of service.

use crate::model::ids::{ClassId, ClassIndex, GroupIndex, ModelId, PoolSetIndex, TenantId};
use crate::model::job::JobSpec;
use crate::model::time::Tick;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    pub class: ClassId,
    pub tenant: TenantId,
    pub model: ModelId,
    /// Context windows of the model that are too small; see [`JobSpec::context_group`].
    pub context_group: u8,
}

impl LaneKey {
    pub fn of(spec: &JobSpec) -> Self {
        Self { class: spec.class, tenant: spec.tenant, model: spec.model, context_group: spec.context_group }
    }
}

/// Pool group and class in which the jobs of a lane are accounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneAccounts {
    pub group: GroupIndex,
    pub class: ClassIndex,
}

/// Position of a lane in the order of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LanePosition {
    pub group: GroupIndex,
    pub class: ClassIndex,
    pub pool_set: PoolSetIndex,
}

impl LanePosition {
    /// The accounts of the lane's jobs.
    pub const fn accounts(self) -> LaneAccounts {
        LaneAccounts { group: self.group, class: self.class }
    }
}

/// Part of a lane in which a job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LanePart {
    /// Jobs that came back from a replica that failed them; before all fresh ones.
    Requeued = 0,
    /// Jobs that were not dispatched yet.
    New = 1,
}

impl LanePart {
    /// Both parts, in the order of service.
    pub const ALL: [Self; 2] = [Self::Requeued, Self::New];
}

/// A job's place in a part of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LaneOrderKey {
    /// The job can no longer keep its objective.
    pub late: bool,
    /// When the job's turn comes, among the jobs of its lane. Short prompts are due earlier. The
    /// time moves once, when the job becomes late.
    pub due: Tick,
    /// Arrival number. A job that returns to the queue keeps its number.
    pub seq: u64,
}
