//! Pool groups: the groups of the policy in force, and those that have to be looked at again.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use crate::core::model::ids::{GroupIndex, PoolId};
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::placement::Placement;
use crate::core::queue::lane_key::{LaneAccounts, LaneKey, LanePosition};
use crate::core::queue::order::PoolGroup;
use crate::core::replica::fleet::Fleet;

/// The pool groups, by their index in the placement.
#[derive(Debug)]
pub(in crate::core::scheduler) struct PoolGroups {
    groups: Vec<PoolGroup>,
    /// Groups in which something changed since their last dispatch.
    changed: BTreeSet<GroupIndex>,
}

impl PoolGroups {
    /// The groups of a placement. They take over the accounts of `before`.
    pub(in crate::core::scheduler) fn new(
        policy: &Policy,
        placement: &Placement,
        before: &[PoolGroup],
    ) -> Self {
        let groups = placement.groups().iter().map(|shape| PoolGroup::new(policy, shape, before)).collect();
        Self { groups, changed: BTreeSet::new() }
    }

    /// Replaces the groups by those of a new policy.
    pub(in crate::core::scheduler) fn apply(&mut self, policy: &Policy, placement: &Placement) {
        *self = Self::new(policy, placement, &self.groups);
    }

    pub(in crate::core::scheduler) fn indexes(&self) -> impl ExactSizeIterator<Item = GroupIndex> + use<> {
        (0..self.groups.len()).map(GroupIndex::from)
    }

    pub(in crate::core::scheduler) fn iter(&self) -> impl Iterator<Item = &PoolGroup> {
        self.groups.iter()
    }

    pub(in crate::core::scheduler) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PoolGroup> {
        self.groups.iter_mut()
    }

    /// The group of a model or pool that has one.
    pub(in crate::core::scheduler) fn get(&self, group: Option<GroupIndex>) -> Option<&PoolGroup> {
        group.map(|group| &self[group])
    }

    /// The next dispatch looks at the group, if there is one.
    pub(in crate::core::scheduler) fn mark_changed(&mut self, group: Option<GroupIndex>) {
        self.changed.extend(group);
    }

    pub(in crate::core::scheduler) fn mark_all_changed(&mut self) {
        self.changed.extend(self.indexes());
    }

    /// Takes the next group that changed.
    pub(in crate::core::scheduler) fn pop_changed(&mut self) -> Option<GroupIndex> {
        self.changed.pop_first()
    }

    /// The dispatch of the group has just seen all changes.
    pub(in crate::core::scheduler) fn clear_changed(&mut self, group: GroupIndex) {
        self.changed.remove(&group);
    }

    /// Marks groups whose urgent class has been idle for long enough, or in which a job has waited
    /// long enough for the replica of its session.
    pub(in crate::core::scheduler) fn mark_due(&mut self, now: Tick) {
        let due = |group: &PoolGroup| {
            group.urgent_until().into_iter().chain(group.session_wait_until).any(|until| until <= now)
        };
        let due = self.groups.iter().enumerate().filter(|(_, group)| due(group));
        self.changed.extend(due.map(|(index, _)| GroupIndex::from(index)));
    }

    /// Marks groups in which a job waits for the replica of its session.
    pub(in crate::core::scheduler) fn mark_session_waits(&mut self) {
        let staying = self.groups.iter().enumerate().filter(|(_, group)| group.session_wait_until.is_some());
        self.changed.extend(staying.map(|(index, _)| GroupIndex::from(index)));
    }

    /// The next instant at which an idle urgent class makes room for waiting background jobs.
    pub(in crate::core::scheduler) fn next_release(&self) -> Option<Tick> {
        self.waiting_groups().filter_map(PoolGroup::urgent_until).min()
    }

    /// The next instant at which a job gives up the replica of its session.
    pub(in crate::core::scheduler) fn next_session_end(&self) -> Option<Tick> {
        self.waiting_groups().filter_map(|group| group.session_wait_until).min()
    }

    fn waiting_groups(&self) -> impl Iterator<Item = &PoolGroup> {
        self.groups.iter().filter(|group| group.waiting() > 0)
    }

    /// Notes which groups have no replica in service.
    pub(in crate::core::scheduler) fn mark_halted(&mut self, fleet: &Fleet, now: Tick) {
        for group in &mut self.groups {
            let halted = fleet.count_up(&group.shape.pools) == 0;
            group.set_halted(halted, now);
        }
    }

    /// Jobs that wait for the pool.
    pub(in crate::core::scheduler) fn waiting_for(&self, placement: &Placement, pool: PoolId) -> u64 {
        self.get(placement.group_of(pool)).map_or(0, |group| group.waiting_for(pool))
    }

    /// Position of the lane; `None` when the policy in force has none for it.
    pub(in crate::core::scheduler) fn position(
        &self,
        placement: &Placement,
        lane: LaneKey,
    ) -> Option<LanePosition> {
        let route = placement.route(lane)?;
        let class = self[route.group].class(lane.class)?;
        Some(LanePosition { group: route.group, class, pool_set: route.pool_set })
    }

    /// Indexes of the lane's accounts. They may exist although the lane has no position any more.
    pub(in crate::core::scheduler) fn accounts(
        &self,
        placement: &Placement,
        lane: LaneKey,
    ) -> Option<LaneAccounts> {
        let group = placement.group_of_model(lane.model)?;
        Some(LaneAccounts { group, class: self[group].class(lane.class)? })
    }
}

impl Index<GroupIndex> for PoolGroups {
    type Output = PoolGroup;

    fn index(&self, group: GroupIndex) -> &PoolGroup {
        &self.groups[group.index()]
    }
}

impl IndexMut<GroupIndex> for PoolGroups {
    fn index_mut(&mut self, group: GroupIndex) -> &mut PoolGroup {
        &mut self.groups[group.index()]
    }
}
