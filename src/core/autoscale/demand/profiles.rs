//! The profiles of all models, pools, classes and tenants of the policy.

use std::time::Duration;

use crate::core::model::ids::{ClassId, ModelId, PoolId, TenantId};
use crate::core::model::job::JobSpec;
use crate::core::model::time::Tick;

use super::profile::DemandProfile;

/// Tenants that have a profile: those with the first so many ids.
pub const TENANTS: usize = 256;
/// The longest time between two looks that counts.
const LONGEST: Duration = Duration::from_secs(10);
/// The shortest time between two looks that are taken note of.
const SHORTEST: Duration = Duration::from_millis(900);

/// Profiles by id.
#[derive(Debug, Clone, Default)]
pub struct DemandProfiles {
    pub(super) models: Vec<DemandProfile>,
    pub(super) pools: Vec<DemandProfile>,
    pub(super) classes: Vec<DemandProfile>,
    pub(super) tenants: Vec<DemandProfile>,
    last: Option<Tick>,
}

/// What a row is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileSubject {
    /// A model.
    Model(ModelId),
    /// A pool.
    Pool(PoolId),
    /// A class.
    Class(ClassId),
    /// A tenant.
    Tenant(TenantId),
}

impl DemandProfiles {
    /// Rows for so many of each.
    pub fn resize(&mut self, models: usize, pools: usize, classes: usize, tenants: usize) {
        let grow = |rows: &mut Vec<DemandProfile>, count: usize| {
            rows.resize_with(count.max(rows.len()), DemandProfile::default);
        };
        grow(&mut self.models, models);
        grow(&mut self.pools, pools);
        grow(&mut self.classes, classes);
        grow(&mut self.tenants, tenants.min(TENANTS));
    }

    /// One row.
    #[must_use]
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

    fn each(&mut self, spec: &JobSpec, act: impl Fn(&mut DemandProfile)) {
        for of in [
            ProfileSubject::Model(spec.model),
            ProfileSubject::Class(spec.class),
            ProfileSubject::Tenant(spec.tenant),
        ] {
            self.row_mut(of).into_iter().for_each(&act);
        }
    }

    /// A job arrived.
    pub fn enter(&mut self, spec: &JobSpec) {
        self.each(spec, |row| row.enter(spec.prompt_tokens));
    }

    /// A job ended, in whatever way; so many tokens were served to it.
    pub fn leave(&mut self, spec: &JobSpec, output: u64) {
        self.each(spec, |row| row.leave(output));
    }

    /// A job goes on in another class.
    pub fn moved(&mut self, from: ClassId, to: ClassId) {
        self.row_mut(ProfileSubject::Class(from)).into_iter().for_each(|row| row.leave(0));
        self.row_mut(ProfileSubject::Class(to)).into_iter().for_each(|row| row.enter(0));
    }

    /// A job was refused after it was let in.
    pub fn refused(&mut self, spec: &JobSpec) {
        self.each(spec, DemandProfile::refused);
    }

    /// A job went to the pool for the first time.
    pub fn began(&mut self, spec: &JobSpec, pool: PoolId, waited: Duration, in_time: bool) {
        self.each(spec, |row| row.began(waited, in_time));
        self.row_mut(ProfileSubject::Pool(pool)).into_iter().for_each(|row| row.began(waited, in_time));
    }

    /// A job's stay at a replica of the pool began.
    pub fn sent(&mut self, spec: &JobSpec, pool: PoolId) {
        self.row_mut(ProfileSubject::Pool(pool)).into_iter().for_each(|row| row.enter(spec.prompt_tokens));
    }

    /// A job's stay at a replica of the pool ended.
    pub fn stayed(&mut self, spec: &JobSpec, pool: PoolId, stay: Duration) {
        self.each(spec, |row| row.stayed(stay));
        self.row_mut(ProfileSubject::Pool(pool)).into_iter().for_each(|row| {
            row.stayed(stay);
            row.leave(0);
        });
    }

    /// Takes note of how much is there; at most about once a second.
    pub fn look(&mut self, now: Tick) {
        let passed = now.since(*self.last.get_or_insert(now));
        if passed < SHORTEST {
            return;
        }
        self.last = Some(now);
        let passed = passed.min(LONGEST).as_secs_f64();
        let rows = [&mut self.models, &mut self.pools, &mut self.classes, &mut self.tenants];
        rows.into_iter().flatten().for_each(|row| row.pass(passed, now));
    }
}
