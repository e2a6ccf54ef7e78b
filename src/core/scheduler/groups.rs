//! Pool groups: the groups of the policy in force, and those that have to be looked at again.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use crate::model::ids::{ClassIndex, GroupIndex, PoolId, TenantId};
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::Placement;
use crate::queue::fairness::FADE_INTERVAL;
use crate::queue::fairness::service::{HeldSequences, ServiceAccount, ServiceLog};
use crate::queue::lane_key::{LaneAccounts, LaneKey, LanePosition};
use crate::queue::order::PoolGroup;
use crate::replica::fleet::Fleet;

/// The pool groups, by their index in the placement.
#[derive(Debug)]
pub(in crate::scheduler) struct PoolGroups {
    groups: Vec<PoolGroup>,
    /// Groups in which something changed since their last dispatch.
    changed: BTreeSet<GroupIndex>,
    /// Work to report to the other gateways.
    pub(in crate::scheduler) service: ServiceLog,
    /// When leads by service at other gateways fade next; absent = nobody has one.
    fade_at: Option<Tick>,
    /// What tenants hold at other gateways.
    pub(in crate::scheduler) held_elsewhere: Vec<HeldSequences>,
}

impl PoolGroups {
    /// The groups of a placement. They take over the accounts of `before`.
    pub(in crate::scheduler) fn new(policy: &Policy, placement: &Placement, before: &[PoolGroup]) -> Self {
        let groups = placement.groups().iter().map(|shape| PoolGroup::new(policy, shape, before)).collect();
        Self {
            groups,
            changed: BTreeSet::new(),
            service: ServiceLog::default(),
            fade_at: None,
            held_elsewhere: Vec::new(),
        }
    }

    /// Replaces the groups by those of a new policy.
    pub(in crate::scheduler) fn apply(&mut self, policy: &Policy, placement: &Placement) {
        let service = std::mem::take(&mut self.service);
        let held_elsewhere = std::mem::take(&mut self.held_elsewhere);
        let fresh = Self::new(policy, placement, &self.groups);
        *self = Self { service, fade_at: self.fade_at, held_elsewhere, ..fresh };
    }

    pub(in crate::scheduler) fn indexes(&self) -> impl ExactSizeIterator<Item = GroupIndex> + use<> {
        (0..self.groups.len()).map(GroupIndex::from)
    }

    pub(in crate::scheduler) fn iter(&self) -> impl Iterator<Item = &PoolGroup> {
        self.groups.iter()
    }

    pub(in crate::scheduler) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PoolGroup> {
        self.groups.iter_mut()
    }

    /// The group of a model or pool that has one.
    pub(in crate::scheduler) fn get(&self, group: Option<GroupIndex>) -> Option<&PoolGroup> {
        group.map(|group| &self[group])
    }

    /// The next dispatch looks at the group, if there is one.
    pub(in crate::scheduler) fn mark_changed(&mut self, group: Option<GroupIndex>) {
        self.changed.extend(group);
    }

    pub(in crate::scheduler) fn mark_all_changed(&mut self) {
        self.changed.extend(self.indexes());
    }

    /// Takes the next group that changed.
    pub(in crate::scheduler) fn pop_changed(&mut self) -> Option<GroupIndex> {
        self.changed.pop_first()
    }

    /// The dispatch of the group has just seen all changes.
    pub(in crate::scheduler) fn clear_changed(&mut self, group: GroupIndex) {
        self.changed.remove(&group);
    }

    /// Marks groups whose urgent class has been idle for long enough, or in which a job has waited
    /// long enough for the replica of its session.
    pub(in crate::scheduler) fn mark_due(&mut self, now: Tick) {
        let due = |group: &PoolGroup| {
            group.urgent_until().into_iter().chain(group.session_wait_until).any(|until| until <= now)
        };
        let due = self.groups.iter().enumerate().filter(|(_, group)| due(group));
        self.changed.extend(due.map(|(index, _)| GroupIndex::from(index)));
    }

    /// Marks groups in which a job waits for the replica of its session.
    pub(in crate::scheduler) fn mark_session_waits(&mut self) {
        let staying = self.groups.iter().enumerate().filter(|(_, group)| group.session_wait_until.is_some());
        self.changed.extend(staying.map(|(index, _)| GroupIndex::from(index)));
    }

    /// The next instant at which an idle urgent class makes room for waiting background jobs.
    pub(in crate::scheduler) fn next_release(&self) -> Option<Tick> {
        self.waiting_groups().filter_map(PoolGroup::urgent_until).min()
    }

    /// The next instant at which a job gives up the replica of its session.
    pub(in crate::scheduler) fn next_session_end(&self) -> Option<Tick> {
        self.waiting_groups().filter_map(|group| group.session_wait_until).min()
    }

    fn waiting_groups(&self) -> impl Iterator<Item = &PoolGroup> {
        self.groups.iter().filter(|group| group.waiting() > 0)
    }

    /// Notes which groups have no replica in service.
    pub(in crate::scheduler) fn mark_halted(&mut self, fleet: &Fleet, now: Tick) {
        for group in &mut self.groups {
            let halted = fleet.count_up(&group.shape.pools) == 0;
            group.set_halted(halted, now);
        }
    }

    /// Notes for the other gateways that a charge of the tenant in the class has changed.
    pub(in crate::scheduler) fn note_charge(
        &mut self,
        account: LaneAccounts,
        tenant: TenantId,
        before: u64,
        after: u64,
    ) {
        let group = &self.groups[account.group.index()];
        if let Some(pool) = group.shape.pools.first() {
            let class = group.class_id(account.class);
            self.service.add(ServiceAccount::Tenant { pool: *pool, class, tenant }, before, after);
        }
    }

    /// Notes for the other gateways that work of the class went to the pool.
    pub(in crate::scheduler) fn note_class_work(
        &mut self,
        group: GroupIndex,
        class: ClassIndex,
        pool: PoolId,
        cost: u64,
    ) {
        let class = self.groups[group.index()].class_id(class);
        self.service.add(ServiceAccount::Class { pool, class }, 0, cost);
    }

    /// Notes that tenants may be ahead by service at other gateways.
    pub(in crate::scheduler) fn note_remote_leads(&mut self, now: Tick) {
        self.fade_at.get_or_insert(now + FADE_INTERVAL);
    }

    /// When leads by service at other gateways fade next.
    pub(in crate::scheduler) const fn next_fade(&self) -> Option<Tick> {
        self.fade_at
    }

    /// Lets leads by service at other gateways fade, if that is due.
    pub(in crate::scheduler) fn fade_remote_leads(&mut self, now: Tick) {
        if self.fade_at.is_none_or(|at| now < at) {
            return;
        }
        self.fade_at = None;
        for (index, group) in self.groups.iter_mut().enumerate().filter(|(_, group)| group.has_remote_leads())
        {
            group.fade_remote_leads(now);
            self.changed.insert(GroupIndex::from(index));
            self.fade_at = Some(now + FADE_INTERVAL);
        }
    }

    /// Jobs that wait for the pool.
    pub(in crate::scheduler) fn waiting_for(&self, placement: &Placement, pool: PoolId) -> u64 {
        self.get(placement.group_of(pool)).map_or(0, |group| group.waiting_for(pool))
    }

    /// Position of the lane; `None` when the policy in force has none for it.
    pub(in crate::scheduler) fn position(
        &self,
        placement: &Placement,
        lane: LaneKey,
    ) -> Option<LanePosition> {
        let route = placement.route(lane)?;
        let class = self[route.group].class(lane.class)?;
        Some(LanePosition { group: route.group, class, pool_set: route.pool_set })
    }

    /// Indexes of the lane's accounts. They may exist although the lane has no position any more.
    pub(in crate::scheduler) fn accounts(
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
