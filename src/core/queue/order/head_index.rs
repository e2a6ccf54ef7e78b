//! Head index: the position of each lane's head in the dispatch order.
//!
//! Charging a tenant moves all of the tenant's fresh heads of the class. A tenant has one head for
//! each of its lanes of the class, and lanes of different models may be in different pool sets. The
//! index lists these heads by tenant, so that a charge looks at no lane and no job. It lists groups
//! of tenants too: each is one entry in each tree in which its members have heads.

use smallvec::SmallVec;

use crate::model::ids::{ClassIndex, TenantId};
use crate::model::time::Tick;
use crate::queue::fairness::TenantWeights;
use crate::queue::lane_key::LanePart;

use super::PoolGroup;
use super::head_tree::GroupRank;
use super::heads::{HeadEntry, HeadKey, HeadPosition, HeadSet, TreeId, tree_index};

impl PoolGroup {
    /// Adds, moves or removes a head of the tenant; returns its new position.
    pub fn put_head(
        &mut self,
        at: HeadSet,
        tenant: TenantId,
        position: Option<HeadPosition>,
        bound: bool,
        entry: Option<HeadEntry>,
    ) -> Option<HeadPosition> {
        let here = position.filter(|position| position.preferred_only == bound);
        if position != here {
            self.set(at, tenant, !bound, position, None);
        }
        self.set(at, tenant, bound, here, entry)
    }

    fn set(
        &mut self,
        at: HeadSet,
        tenant: TenantId,
        bound: bool,
        before: Option<HeadPosition>,
        entry: Option<HeadEntry>,
    ) -> Option<HeadPosition> {
        if before.is_none() && entry.is_none() {
            return None;
        }
        let HeadSet { class, pool_set, part } = at;
        let number = tree_index(part, bound);
        let home = self.quotas.tree.group_of(tenant);
        let own = &mut self.classes[class.index()];
        let heads = &mut own.pool_sets[pool_set.index()].trees[number];
        let after = heads
            .put(home, before.map(|position| position.slot), entry)
            .map(|slot| HeadPosition { preferred_only: bound, slot });
        if part == LanePart::New && before != after {
            let positions = own.head_positions.tenants.entry(tenant).or_default();
            positions.retain(|position| Some(*position) != before.map(|before| (pool_set, before)));
            positions.extend(after.map(|after| (pool_set, after)));
        }
        for group in self.quotas.tree.groups_of(tenant) {
            self.refresh_group(class, TreeId { pool_set, number }, group);
        }
        let own = &mut self.classes[class.index()];
        let is_empty = own.pool_sets[pool_set.index()].trees[number].is_empty();
        own.pool_sets_with_heads[number].set(pool_set.index(), !is_empty);
        after
    }

    /// Updates a group's entry in one tree, after its children there or its rank have changed.
    fn refresh_group(&mut self, class: ClassIndex, tree: TreeId, group: TenantId) {
        let own = &mut self.classes[class.index()];
        let is_fresh = tree.number >= tree_index(LanePart::New, false);
        let counter = if is_fresh { own.counters.group(group) } else { 0 };
        let rank = GroupRank { quota_state: self.quotas.group_state(group), counter };
        let heads = &mut own.pool_sets[tree.pool_set.index()].trees[tree.number];
        heads.refresh(group, self.quotas.tree.parent(group), rank);
        let holds = heads.holds(group);
        let trees = own.head_positions.groups.entry(group).or_default();
        if trees.contains(&tree) != holds {
            trees.retain(|other| *other != tree);
            trees.extend(holds.then_some(tree));
        }
    }

    /// The entry of a tenant's head in its search tree.
    pub fn head_at(&self, at: HeadSet, tenant: TenantId, position: HeadPosition) -> Option<HeadEntry> {
        let HeadSet { class, pool_set, part } = at;
        let trees = &self.classes[class.index()].pool_sets[pool_set.index()].trees;
        trees[tree_index(part, position.preferred_only)].get(self.quotas.tree.group_of(tenant), position.slot)
    }

    /// Moves a tenant's fresh heads of a class to the position that its counter and those of its
    /// groups give them.
    pub fn follow_counter(&mut self, class: ClassIndex, tenant: TenantId) {
        let own = &mut self.classes[class.index()];
        let (counter, home) = (own.counters.get(tenant), self.quotas.tree.group_of(tenant));
        for (pool_set, position) in own.head_positions.tenants.get(&tenant).into_iter().flatten() {
            let heads = &mut own.pool_sets[pool_set.index()].trees
                [tree_index(LanePart::New, position.preferred_only)];
            heads.rekey(home, position.slot, |key| HeadKey::new(key.quota_state, counter, key.place));
        }
        for group in self.quotas.tree.groups_of(tenant) {
            self.follow_group_in(class, group);
        }
    }

    /// Moves a group of tenants to the position that its quota state and its counter give it. The
    /// groups that it belongs to move with it.
    pub fn follow_group(&mut self, group: TenantId) {
        self.class_indexes().for_each(|class| self.follow_group_in(class, group));
    }

    fn follow_group_in(&mut self, class: ClassIndex, group: TenantId) {
        let trees = self.classes[class.index()].head_positions.groups.get(&group);
        for tree in trees.cloned().unwrap_or_default() {
            for group in self.quotas.tree.groups_of(group) {
                self.refresh_group(class, tree, group);
            }
            let own = &mut self.classes[class.index()];
            let pool_set = tree.pool_set.index();
            let is_empty = own.pool_sets[pool_set].trees[tree.number].is_empty();
            own.pool_sets_with_heads[tree.number].set(pool_set, !is_empty);
        }
    }

    /// Charges a tenant of the class for work that other gateways dispatched for it.
    pub fn charge_remote(&mut self, class: ClassIndex, who: &TenantWeights, tokens: i64, now: Tick) {
        self.classes[class.index()].charge_remote(who, tokens, now);
        self.follow_counter(class, who.tenant);
    }

    /// Whether some tenant is ahead by service at other gateways.
    pub fn has_remote_leads(&self) -> bool {
        self.classes.iter().any(|class| class.counters.has_remote_leads())
    }

    /// Lets leads by service at other gateways fade by one step.
    pub fn fade_remote_leads(&mut self, now: Tick) {
        for class in self.class_indexes() {
            for tenant in self.classes[class.index()].fade_remote_leads(now) {
                self.follow_counter(class, tenant);
            }
        }
    }

    /// The number of a tenant's fresh heads in a class that follow its counter.
    pub fn indexed_heads(&self, class: ClassIndex, tenant: TenantId) -> usize {
        self.classes[class.index()].head_positions.tenants.get(&tenant).map_or(0, SmallVec::len)
    }

    /// Whether each group is among its siblings with the rank that it has now, in every tree
    /// in which one of its members has a head. Looks at every group.
    pub fn groups_are_ranked(&self) -> bool {
        let groups = self.quotas.tree.groups_from_below();
        self.classes.iter().all(|class| {
            let trees = class.pool_sets.iter().flat_map(|pool_set| pool_set.trees.iter().enumerate());
            trees.clone().all(|(number, tree)| {
                let is_fresh = number >= tree_index(LanePart::New, false);
                groups.iter().all(|group| {
                    let counter = if is_fresh { class.counters.group(*group) } else { 0 };
                    let rank = GroupRank { quota_state: self.quotas.group_state(*group), counter };
                    tree.is_ranked(*group, self.quotas.tree.parent(*group), rank)
                })
            })
        })
    }
}
