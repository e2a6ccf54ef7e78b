//! Displacement: the waiting job that makes room for another tenant's when the whole queue is
//! full.
//!
//! A newcomer whose tenant has little waiting for its weight takes the place of
//! the last job of a tenant that has much. That tenant must not have less than
//! the newcomer's afterwards, so the two can never push each other out in turn.

use crate::core::model::ids::{JobId, TenantId};
use crate::core::queue::QueuedLoad;
use crate::core::queue::admission;

use crate::core::scheduler::Scheduler;

/// How many of the tenants with most waiting are looked at. One is enough, but
/// for light weights and for what cannot be displaced.
const LOOKED_AT: usize = 8;

impl Scheduler {
    /// The job that makes room for the tenant's newest one, which counts as
    /// waiting already.
    pub(in crate::core::scheduler) fn displaceable(&self, newcomer: TenantId) -> Option<JobId> {
        let own = self.queue.share(newcomer, 0);
        let heaviest = self.queue.largest_tenant().take(LOOKED_AT).map(|(tenant, _)| tenant);
        let heavier = heaviest.filter(|tenant| *tenant != newcomer && self.queue.share(*tenant, 1) >= own);
        heavier.filter_map(|tenant| self.last_of(tenant)).find(|job| self.is_enough(*job))
    }

    /// The tenant's job that would be served last: in its least urgent class,
    /// and fresh. What is back from a replica has waited its turn.
    fn last_of(&self, tenant: TenantId) -> Option<JobId> {
        let mut classes: Vec<_> = self.policy.classes.iter().map(|(id, _, row)| (row.rank, id)).collect();
        classes.sort_unstable();
        classes.into_iter().rev().find_map(|(_, class)| {
            let lanes = self.queue.lanes_of(class, tenant);
            lanes.filter_map(|(_, lane)| lane.last()).max().map(|(_, job)| job)
        })
    }

    /// Whether the queue keeps its bounds without the job.
    fn is_enough(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| {
            let mut rest = self.queue.total();
            rest -= QueuedLoad::of(&job.spec);
            admission::passed(&rest, &self.policy.bounds).is_none()
        })
    }
}
