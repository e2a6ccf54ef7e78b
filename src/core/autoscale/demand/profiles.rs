//! Demand profiles: one for each model, pool, class and tenant of the policy.

use std::time::Duration;

use crate::autoscale::facts::ObservedJob;
use crate::model::ids::{ClassId, ModelId, PoolId, TenantId};
use crate::model::time::Tick;

use super::profile::DemandProfile;

/// Tenants that have a profile: those whose id is below this number.
pub const TENANTS: usize = 256;
/// Longest time between two samples that counts.
const LONGEST: Duration = Duration::from_secs(10);
/// Shortest time between two samples; earlier calls change nothing.
const SHORTEST: Duration = Duration::from_millis(900);

/// Demand profiles by id.
#[derive(Debug, Clone, Default)]
pub struct DemandProfiles {
    pub(super) models: Vec<DemandProfile>,
    pub(super) pools: Vec<DemandProfile>,
    pub(super) classes: Vec<DemandProfile>,
    pub(super) tenants: Vec<DemandProfile>,
    last: Option<Tick>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileSubject {
    Model(ModelId),
    Pool(PoolId),
    Class(ClassId),
    Tenant(TenantId),
}

impl DemandProfiles {
    /// Grows the tables to these sizes. Tables never shrink.
    pub fn resize(&mut self, models: usize, pools: usize, classes: usize, tenants: usize) {
        let grow = |rows: &mut Vec<DemandProfile>, count: usize| {
            rows.resize_with(count.max(rows.len()), DemandProfile::default);
        };
        grow(&mut self.models, models);
        grow(&mut self.pools, pools);
        grow(&mut self.classes, classes);
        grow(&mut self.tenants, tenants.min(TENANTS));
    }

    pub fn row(&self, of: ProfileSubject) -> Option<&DemandProfile> {
        match of {
            ProfileSubject::Model(id) => self.models.get(id.index()),
            ProfileSubject::Pool(id) => self.pools.get(id.index()),
            ProfileSubject::Class(id) => self.classes.get(id.index()),
            ProfileSubject::Tenant(id) => self.tenants.get(id.index()),
        }
    }

    pub(super) fn row_mut(&mut self, of: ProfileSubject) -> Option<&mut DemandProfile> {
        match of {
            ProfileSubject::Model(id) => self.models.get_mut(id.index()),
            ProfileSubject::Pool(id) => self.pools.get_mut(id.index()),
            ProfileSubject::Class(id) => self.classes.get_mut(id.index()),
            ProfileSubject::Tenant(id) => self.tenants.get_mut(id.index()),
        }
    }

    fn for_each_subject(&mut self, job: &ObservedJob, act: impl Fn(&mut DemandProfile)) {
        for of in [
            ProfileSubject::Model(job.model),
            ProfileSubject::Class(job.class),
            ProfileSubject::Tenant(job.tenant),
        ] {
            self.row_mut(of).into_iter().for_each(&act);
        }
    }

    /// Counts a job that arrived.
    pub fn enter(&mut self, job: &ObservedJob) {
        self.for_each_subject(job, |row| row.enter(job.prompt_tokens));
    }

    /// Counts a job that ended, in whatever way, after this many output tokens.
    pub fn leave(&mut self, job: &ObservedJob, output: u64) {
        self.for_each_subject(job, |row| row.leave(output));
    }

    /// Moves a job to another class.
    pub fn moved(&mut self, from: ClassId, to: ClassId) {
        self.row_mut(ProfileSubject::Class(from)).into_iter().for_each(|row| row.leave(0));
        self.row_mut(ProfileSubject::Class(to)).into_iter().for_each(|row| row.enter(0));
    }

    /// Counts a job that was refused after it was admitted.
    pub fn refused(&mut self, job: &ObservedJob) {
        self.for_each_subject(job, DemandProfile::refused);
    }

    /// Counts a job that was dispatched for the first time, to this pool.
    pub fn began(&mut self, job: &ObservedJob, pool: PoolId, waited: Duration, in_time: bool) {
        self.for_each_subject(job, |row| row.began(waited, in_time));
        self.row_mut(ProfileSubject::Pool(pool)).into_iter().for_each(|row| row.began(waited, in_time));
    }

    /// Counts an attempt at a replica of the pool that began.
    pub fn sent(&mut self, job: &ObservedJob, pool: PoolId) {
        self.row_mut(ProfileSubject::Pool(pool)).into_iter().for_each(|row| row.enter(job.prompt_tokens));
    }

    /// Counts an attempt at a replica of the pool that ended.
    pub fn attempt_ended(&mut self, job: &ObservedJob, pool: PoolId, lasted: Duration) {
        self.for_each_subject(job, |row| row.attempt_ended(lasted));
        self.row_mut(ProfileSubject::Pool(pool)).into_iter().for_each(|row| {
            row.attempt_ended(lasted);
            row.leave(0);
        });
    }

    /// Samples the concurrency of all profiles, about once a second at most.
    pub fn sample(&mut self, now: Tick) {
        let passed = now.since(*self.last.get_or_insert(now));
        if passed < SHORTEST {
            return;
        }
        self.last = Some(now);
        let passed = passed.min(LONGEST).as_secs_f64();
        let rows = [&mut self.models, &mut self.pools, &mut self.classes, &mut self.tenants];
        rows.into_iter().flatten().for_each(|row| row.advance(passed, now));
    }
}
