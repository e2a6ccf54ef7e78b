//! Quotas of tenants, kept up to date with the capacity and the jobs that run.
//!
//! A change re-ranks the lanes of a tenant only if its quota state changed.

use crate::core::model::ids::{ClassId, GroupIndex, TenantId};
use crate::core::queue::lane_key::LaneKey;
use crate::core::queue::quota::QuotaChanges;

use crate::core::scheduler::Scheduler;

impl Scheduler {
    /// Resizes the quotas of a group to the capacity of its replicas.
    pub(in crate::core::scheduler) fn resize_quotas(&mut self, group: GroupIndex) {
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
    pub(in crate::core::scheduler) fn take_quota(&mut self, group: GroupIndex, tenant: TenantId, seqs: u32) {
        let changes = self.groups[group].quotas.take(tenant, seqs);
        self.follow_quotas(group, &changes);
    }

    /// Gives back the quota of a job that left its replica.
    pub(in crate::core::scheduler) fn give_back_quota(&mut self, lane: LaneKey, seqs: u32) {
        let Some(group) = self.placement.group_of_model(lane.model) else { return };
        let changes = self.groups[group].quotas.give_back(lane.tenant, seqs);
        self.follow_quotas(group, &changes);
        if !self.groups[group].quotas.is_empty() {
            self.groups.mark_changed(Some(group));
        }
    }

    /// Counts the sequences in use of every tenant anew, if there is any quota. Looks at every job.
    pub(in crate::core::scheduler) fn count_quotas(&mut self) {
        if self.groups.iter().all(|group| group.quotas.is_empty()) {
            return;
        }
        for job in self.jobs.values() {
            if let (Some(run), Some(group)) = (job.attempt(), self.placement.group_of_model(job.spec.model)) {
                self.groups[group].quotas.take(job.spec.tenant, run.booking.seqs);
            }
        }
        for group in self.groups.iter_mut() {
            let capacity = self.fleet.capacity(&group.shape.pools);
            group.quotas.resize(capacity);
        }
    }

    /// Updates the head positions of a tenant's lanes in the group.
    pub(in crate::core::scheduler) fn refresh_quota_state(&mut self, group: GroupIndex, tenant: TenantId) {
        let classes: Vec<ClassId> = self.groups[group].class_ids().collect();
        for class in classes {
            self.refresh_tenant(group, class, tenant);
        }
    }
}
