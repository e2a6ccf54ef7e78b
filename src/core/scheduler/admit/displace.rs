//! Displacement: the waiting job that makes room for another tenant's job in a full queue.
//!
//! When a tenant has little waiting for its weight, its new job takes the place of the last job
//! of a tenant that has much. Afterwards that other tenant must not have less than the new job's
//! tenant, so the two can never displace each other in turn.

use crate::core::model::ids::{JobId, TenantId};
use crate::core::queue::QueuedLoad;
use crate::core::queue::admission;

use crate::core::scheduler::Scheduler;

/// Number of tenants with most waiting that the search looks at. One is enough, except for
/// tenants of light weight and jobs that cannot be displaced.
const MAX_TENANTS: usize = 8;

impl Scheduler {
    /// The job that makes room for the tenant's newest job. The newest job already counts as
    /// waiting.
    pub(in crate::core::scheduler) fn displaceable(&self, newcomer: TenantId) -> Option<JobId> {
        let own = self.queue.share(newcomer, 0);
        let heaviest = self.queue.tenants_by_share().take(MAX_TENANTS).map(|(tenant, _)| tenant);
        let heavier = heaviest.filter(|tenant| *tenant != newcomer && self.queue.share(*tenant, 1) >= own);
        heavier.filter_map(|tenant| self.last_job_of(tenant)).find(|job| self.frees_enough(*job))
    }

    /// The tenant's job that would be served last: the last fresh job of its least urgent
    /// class. A job that came back from a replica has waited its turn and is not displaced.
    fn last_job_of(&self, tenant: TenantId) -> Option<JobId> {
        let mut classes: Vec<_> = self.policy.classes.iter().map(|(id, _, row)| (row.rank, id)).collect();
        classes.sort_unstable();
        classes.into_iter().rev().find_map(|(_, class)| {
            let lanes = self.queue.lanes_of(class, tenant);
            lanes.filter_map(|(_, lane)| lane.last_fresh()).max().map(|(_, job)| job)
        })
    }

    /// Whether the queue keeps its bounds without the job.
    fn frees_enough(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| {
            let mut rest = self.queue.total();
            rest -= QueuedLoad::of(&job.spec);
            admission::exceeded_bound(&rest, &self.policy.bounds).is_none()
        })
    }
}
