//! Jobs that take only what nobody else needs.
//!
//! One of a spare class starts at once, in a group where nobody waits, or is
//! refused. So it never has a place in the queue that another one could have,
//! goes before nobody, and starts no pool. At a replica it is a background of every
//! class before its own, and gives way to them.

use crate::core::model::event::RejectReason;
use crate::core::model::ids::ClassId;
use crate::core::model::job::JobSpec;

use crate::core::scheduler::Scheduler;

impl Scheduler {
    /// Whether jobs of the class take only what nobody else needs.
    pub(in crate::core::scheduler) fn is_scavenger(&self, class: ClassId) -> bool {
        self.policy.classes.get(class).is_some_and(|class| class.scavenger)
    }

    /// Why a job that has not joined its lane cannot start at once; absent for
    /// one that may wait.
    pub(in crate::core::scheduler) fn reason_of_no_room(&self, spec: &JobSpec) -> Option<RejectReason> {
        let group = self.placement.group_of_model(spec.model)?;
        let others = self.groups[group].waiting() > 0;
        (others && self.is_scavenger(spec.class)).then_some(RejectReason::NoRoom)
    }
}
