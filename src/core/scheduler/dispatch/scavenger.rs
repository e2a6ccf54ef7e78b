//! Scavengers: jobs of classes that take only capacity that no other job needs.
//!
//! A scavenger starts at once, in a pool group where no job waits, or is refused. A scavenger
//! therefore takes no space in the queue, goes before no other job and starts no pool. At a
//! replica a scavenger is background to every class before its own, and is preempted for them.

use crate::core::model::event::RejectReason;
use crate::core::model::ids::ClassId;
use crate::core::model::job::JobSpec;

use crate::core::scheduler::Scheduler;

impl Scheduler {
    /// Whether jobs of the class take only capacity that no other job needs.
    pub(in crate::core::scheduler) fn is_scavenger(&self, class: ClassId) -> bool {
        self.policy.classes.get(class).is_some_and(|class| class.scavenger)
    }

    /// The reason to refuse a scavenger at arrival: other jobs wait in its group. `None` for a
    /// job of another class, which may wait.
    pub(in crate::core::scheduler) fn no_room_reason(&self, spec: &JobSpec) -> Option<RejectReason> {
        let group = self.placement.group_of_model(spec.model)?;
        let others = self.groups[group].waiting() > 0;
        (others && self.is_scavenger(spec.class)).then_some(RejectReason::NoRoom)
    }
}
