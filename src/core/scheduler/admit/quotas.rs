//! Quotas of tenants, kept up to date with the capacity and the jobs that run.
//!
//! Only a tenant whose standing changes has its lanes looked at.

use crate::core::model::ids::{ClassId, TenantId};
use crate::core::queue::LaneKey;

use crate::core::scheduler::Scheduler;

impl Scheduler {
    /// Follows the capacity of the group's replicas.
    pub(in crate::core::scheduler) fn resize_quotas(&mut self, group: usize) {
        if self.groups[group].quotas.is_empty() {
            return;
        }
        let capacity = self.fleet.capacity(&self.groups[group].shape.pools);
        for tenant in self.groups[group].quotas.resize(capacity) {
            self.refresh_standing(group, tenant);
        }
    }

    /// A job of the tenant went to a replica.
    pub(in crate::core::scheduler) fn take_quota(&mut self, group: usize, tenant: TenantId, seqs: u32) {
        if self.groups[group].quotas.take(tenant, seqs) {
            self.refresh_standing(group, tenant);
        }
    }

    /// A job of the lane left its replica.
    pub(in crate::core::scheduler) fn give_back_quota(&mut self, lane: LaneKey, seqs: u32) {
        let Some(group) = self.placement.group_of_model(lane.model) else { return };
        if self.groups[group].quotas.give_back(lane.tenant, seqs) {
            self.refresh_standing(group, lane.tenant);
        }
        if !self.groups[group].quotas.is_empty() {
            self.changed_groups.insert(group);
        }
    }

    /// Counts anew what every tenant holds; looks at every job.
    pub(in crate::core::scheduler) fn count_quotas(&mut self) {
        for job in self.jobs.values() {
            if let (Some(run), Some(group)) = (job.attempt(), self.placement.group_of_model(job.spec.model)) {
                self.groups[group].quotas.take(job.spec.tenant, run.booking.seqs);
            }
        }
        for group in &mut self.groups {
            let capacity = self.fleet.capacity(&group.shape.pools);
            group.quotas.resize(capacity);
        }
    }

    /// Brings the places of a tenant's lanes in the group up to date.
    pub(in crate::core::scheduler) fn refresh_standing(&mut self, group: usize, tenant: TenantId) {
        let classes: Vec<ClassId> = self.groups[group].class_ids().collect();
        for class in classes {
            self.refresh_tenant(group, class, tenant);
        }
    }
}
