//! Quotas of tenants, kept up to date with the capacity and the jobs that run.
//!
//! A change re-ranks the lanes of a tenant only if its quota state changed.

use std::collections::BTreeMap;

use crate::model::ids::{ClassId, GroupIndex, PoolId, TenantId};
use crate::queue::fairness::service::HeldSequences;
use crate::queue::lane_key::LaneKey;
use crate::queue::quota::QuotaChanges;

use crate::scheduler::Scheduler;

impl Scheduler {
    /// Resizes the quotas of a group to the capacity of its replicas.
    pub(in crate::scheduler) fn resize_quotas(&mut self, group: GroupIndex) {
        if self.groups[group].quotas.is_empty() {
            return;
        }
        let capacity = self.fleet.capacity(&self.groups[group].shape.pools);
        let changes = self.groups[group].quotas.resize(capacity);
        self.follow_quotas(group, &changes);
    }

    /// Updates the head positions of tenants and groups whose quota state changed.
    fn follow_quotas(&mut self, group: GroupIndex, changes: &QuotaChanges) {
        changes.tenants.iter().for_each(|tenant| self.refresh_quota_state(group, *tenant));
        changes.groups.iter().for_each(|tenants| self.groups[group].follow_group(*tenants));
    }

    /// Takes `seqs` sequences of the tenant's quota for a dispatched job.
    pub(in crate::scheduler) fn take_quota(&mut self, group: GroupIndex, tenant: TenantId, seqs: u32) {
        let changes = self.groups[group].quotas.take(tenant, seqs);
        self.follow_quotas(group, &changes);
    }

    /// Gives back the quota of a job that left its replica.
    pub(in crate::scheduler) fn give_back_quota(&mut self, lane: LaneKey, seqs: u32) {
        let Some(group) = self.placement.group_of_model(lane.model) else { return };
        let changes = self.groups[group].quotas.give_back(lane.tenant, seqs);
        self.follow_quotas(group, &changes);
        if !self.groups[group].quotas.is_empty() {
            self.groups.mark_changed(Some(group));
        }
    }

    /// Counts the sequences in use of every tenant anew, if there is any quota. Looks at every job.
    pub(in crate::scheduler) fn count_quotas(&mut self) {
        if self.groups.iter().all(|group| group.quotas.is_empty()) {
            return;
        }
        for job in self.jobs.values() {
            if let (Some(run), Some(group)) = (job.attempt(), self.placement.group_of_model(job.spec.model)) {
                self.groups[group].quotas.take(job.spec.tenant, run.booking.seqs);
            }
        }
        for group in self.groups.indexes() {
            let capacity = self.fleet.capacity(&self.groups[group].shape.pools);
            self.groups[group].quotas.resize(capacity);
            let elsewhere = self.elsewhere_in(group);
            self.groups[group].quotas.set_elsewhere(elsewhere);
        }
    }

    /// Takes over what tenants hold at other gateways now: it counts in their quotas as if it were held
    /// here.
    pub(in crate::scheduler) fn held_elsewhere(&mut self, held: Vec<HeldSequences>) {
        self.groups.held_elsewhere = held;
        for group in self.groups.indexes() {
            if self.groups[group].quotas.is_empty() {
                continue;
            }
            let elsewhere = self.elsewhere_in(group);
            let changes = self.groups[group].quotas.set_elsewhere(elsewhere);
            self.follow_quotas(group, &changes);
            self.groups.mark_changed(Some(group));
        }
    }

    /// What each tenant holds of a group at other gateways.
    fn elsewhere_in(&self, group: GroupIndex) -> BTreeMap<TenantId, u64> {
        let mut sums = BTreeMap::new();
        for held in &self.groups.held_elsewhere {
            let is_known = self.policy.tenants.get(held.tenant).is_some();
            if is_known && self.placement.group_of(held.pool) == Some(group) {
                *sums.entry(held.tenant).or_default() += u64::from(held.seqs);
            }
        }
        sums
    }

    /// Sequences that each tenant holds here, for the other gateways; nothing without quotas. Looks at
    /// every running job.
    pub fn held_sequences(&self) -> Vec<HeldSequences> {
        let mut sums: BTreeMap<(PoolId, TenantId), u32> = BTreeMap::new();
        if self.groups.iter().all(|group| group.quotas.is_empty()) {
            return Vec::new();
        }
        for (job, run) in self.jobs.attempts() {
            let group = self.groups.get(self.placement.group_of_model(job.spec.model));
            let group = group.filter(|group| !group.quotas.is_empty());
            if let Some(pool) = group.and_then(|group| group.shape.pools.first()) {
                let sum = sums.entry((*pool, job.spec.tenant)).or_default();
                *sum = sum.saturating_add(run.booking.seqs);
            }
        }
        sums.into_iter().map(|((pool, tenant), seqs)| HeldSequences { pool, tenant, seqs }).collect()
    }

    /// Updates the head positions of a tenant's lanes in the group.
    pub(in crate::scheduler) fn refresh_quota_state(&mut self, group: GroupIndex, tenant: TenantId) {
        let classes: Vec<ClassId> = self.groups[group].class_ids().collect();
        for class in classes {
            self.refresh_tenant(group, class, tenant);
        }
    }
}
