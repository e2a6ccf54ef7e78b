//! Displacement: the waiting job that makes room for another tenant's job in a full queue.
//!
//! When a tenant has little waiting for its weight, its new job takes the place of the last job
//! of a tenant that has much. Afterwards that other tenant must not have less than the new job's
//! tenant, so the two can never displace each other in turn.

use crate::model::ids::{JobId, TenantId};
use crate::model::job::JobSpec;
use crate::model::policy::Policy;
use crate::queue::bounds;
use crate::queue::{Queue, QueuedLoad};

use crate::scheduler::jobs::JobTable;

/// Number of tenants with most waiting that the search looks at. One is enough, except for
/// tenants of light weight and jobs that cannot be displaced.
const MAX_TENANTS: usize = 8;

/// The job that makes room for the tenant's newest job. The newest job already counts as
/// waiting.
pub(super) fn displaceable(
    queue: &Queue,
    jobs: &JobTable,
    policy: &Policy,
    newcomer: TenantId,
) -> Option<JobId> {
    let own = queue.share(newcomer, 0);
    let heaviest = queue.tenants_by_share().take(MAX_TENANTS).map(|(tenant, _)| tenant);
    let mut heavier = heaviest.filter(|tenant| *tenant != newcomer && queue.share(*tenant, 1) >= own);
    heavier.find_map(|tenant| {
        let job = last_job_of(queue, policy, tenant)?;
        let spec = &jobs.get(&job)?.spec;
        has_space_without(queue, policy, spec).then_some(job)
    })
}

/// The tenant's job that would be served last: the last fresh job of its least urgent
/// class. A job that came back from a replica has waited its turn and is not displaced.
fn last_job_of(queue: &Queue, policy: &Policy, tenant: TenantId) -> Option<JobId> {
    let mut classes: Vec<_> = policy.classes.iter().map(|(id, _, row)| (row.rank, id)).collect();
    classes.sort_unstable();
    classes.into_iter().rev().find_map(|(_, class)| {
        let lanes = queue.lanes_of(class, tenant);
        lanes.filter_map(|(_, lane)| lane.last_fresh()).max().map(|(_, job)| job)
    })
}

/// Whether the queue keeps its bounds without the job.
fn has_space_without(queue: &Queue, policy: &Policy, spec: &JobSpec) -> bool {
    let mut rest = queue.total();
    rest -= QueuedLoad::of(spec);
    bounds::exceeded_bound(&rest, &policy.bounds).is_none()
}
