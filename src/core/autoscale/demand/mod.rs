//! Measured demand: the work per class and pool set as it arrives, and the use of each pool's
//! replicas. [`crate::autoscale`] turns both into numbers of replicas. Demand profiles by
//! model, pool, class and tenant ([`profiles`]) serve reports. The policy bounds the size of
//! all of it.

pub mod flow;
pub mod histogram;
pub mod profile;
pub mod profiles;
pub mod residency;
pub mod spread;
pub mod state;
pub mod utilization;
pub mod work;

use std::time::Duration;

use crate::model::averages::RunningMean;
use crate::model::ids::{ClassId, ClassIndex, PoolId, PoolSetIndex};
use crate::model::time::Tick;
use crate::placement::{GroupShape, PoolSet};
use crate::queue::lane_key::{LaneAccounts, LanePosition};

use self::flow::DemandFlow;
use self::residency::ResidencySampler;
use crate::autoscale::demand::profiles::DemandProfiles;
use crate::autoscale::demand::utilization::{PoolUse, ReplicasInUse};

/// Longest attempt that counts, in seconds; longer attempts count as this.
const MAX_ATTEMPT: f64 = 3600.0;

/// Demand of one pool group.
#[derive(Debug, Clone, Default)]
struct GroupDemand {
    classes: Vec<ClassId>,
    pool_sets: Vec<PoolSet>,
    /// By pool set, then by class.
    flows: Vec<DemandFlow>,
    /// Mean duration of an attempt of each class, in seconds.
    durations: Vec<RunningMean>,
}

impl GroupDemand {
    fn index(&self, class: ClassIndex, pool_set: PoolSetIndex) -> usize {
        pool_set.index() * self.classes.len() + class.index()
    }
}

/// Demand of all jobs, and the use of all pools.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    parts: Vec<GroupDemand>,
    pools: Vec<PoolUse>,
    /// Replica seconds of each pool, in service and with a job.
    residency: Vec<ResidencySampler>,
    /// Demand profiles, for reports.
    pub profiles: DemandProfiles,
    since: Option<Tick>,
}

impl Demand {
    /// Takes over a policy. Measurements of the same class and pool set, and of the same pool, are
    /// kept. `classes` lists the classes of each group in order.
    pub fn apply(&mut self, shapes: &[GroupShape], classes: &[Vec<ClassId>], pools: usize) {
        let before = std::mem::take(&mut self.parts);
        let part = |(shape, classes): (&GroupShape, &Vec<ClassId>)| {
            let old =
                before.iter().find(|old| old.pool_sets.iter().any(|pool_set| shares(pool_set, &shape.pools)));
            let flow = |pool_set: &PoolSet, class: ClassId| {
                let old = old?;
                let pool_set = old.pool_sets.iter().position(|other| other == pool_set)?;
                let class = old.classes.iter().position(|other| *other == class)?;
                Some(old.flows[old.index(class.into(), pool_set.into())].clone())
            };
            let lasted = |class: &ClassId| {
                let old = old?;
                let at = old.classes.iter().position(|other| other == class)?;
                Some(old.durations[at])
            };
            let pool_sets = shape.pool_sets.iter();
            let cells =
                pool_sets.flat_map(|pool_set| classes.iter().map(move |class| flow(pool_set, *class)));
            GroupDemand {
                classes: classes.clone(),
                pool_sets: shape.pool_sets.clone(),
                flows: cells.map(Option::unwrap_or_default).collect(),
                durations: classes.iter().map(lasted).map(Option::unwrap_or_default).collect(),
            }
        };
        self.parts = shapes.iter().zip(classes).map(part).collect();
        self.pools.resize_with(pools.max(self.pools.len()), PoolUse::default);
        self.residency.resize_with(pools.max(self.residency.len()), ResidencySampler::default);
    }

    /// Counts a job that arrived.
    pub fn note_arrival(&mut self, at: LanePosition, work: f64, now: Tick) {
        let Some(part) = self.parts.get_mut(at.group.index()) else { return };
        let index = part.index(at.class, at.pool_set);
        let lasted = part.durations.get(at.class.index()).copied();
        if let Some(flow) = part.flows.get_mut(index) {
            flow.add(now, work, expected_duration(lasted));
        }
    }

    /// Counts a job that was refused because too much work waited.
    pub fn note_refusal(&mut self, at: LanePosition, now: Tick) {
        let Some(part) = self.parts.get_mut(at.group.index()) else { return };
        let index = part.index(at.class, at.pool_set);
        if let Some(flow) = part.flows.get_mut(index) {
            flow.note_refusal(now);
        }
    }

    /// Counts a job that was dispatched to the pool; `again` is true when an earlier attempt of the
    /// job was dispatched.
    pub fn note_dispatch(&mut self, at: LanePosition, pool: PoolId, work: f64, again: bool, now: Tick) {
        if again {
            self.note_arrival(at, work, now);
        }
        let part = self.parts.get(at.group.index());
        let lasted = part.and_then(|part| part.durations.get(at.class.index()).copied());
        if let Some(own) = self.pools.get_mut(pool.index()) {
            own.sent.add(now, work, expected_duration(lasted));
        }
    }

    /// Counts an attempt that ended.
    pub fn note_attempt_end(&mut self, at: LaneAccounts, lasted: Duration) {
        let part = self.parts.get_mut(at.group.index());
        let mean = part.and_then(|part| part.durations.get_mut(at.class.index()));
        if let Some(mean) = mean {
            mean.add(lasted.as_secs_f64().min(MAX_ATTEMPT));
        }
    }

    /// Samples the use of the pool: this many replicas' worth is in use now.
    pub fn sample_use(&mut self, pool: PoolId, used: ReplicasInUse, now: Tick) {
        if let Some(own) = self.pools.get_mut(pool.index()) {
            own.sample(now, used);
        }
    }

    /// Samples the residency of the pool: the replicas in service, and those with a job.
    pub fn sample_residency(&mut self, pool: PoolId, loaded: u32, active: u32, now: Tick) {
        if let Some(sampler) = self.residency.get_mut(pool.index()) {
            sampler.sample(now, loaded, active);
        }
    }

    /// Advances all rows to `now`. Returns for how long demand has been watched.
    pub fn advance(&mut self, now: Tick) -> Duration {
        self.parts.iter_mut().flat_map(|part| &mut part.flows).for_each(|flow| flow.advance(now));
        self.profiles.sample(now);
        now.since(*self.since.get_or_insert(now))
    }

    /// Demand flow of a class in a pool set.
    pub fn flow(&self, at: LanePosition) -> Option<&DemandFlow> {
        let part = self.parts.get(at.group.index())?;
        part.flows.get(part.index(at.class, at.pool_set))
    }

    pub fn pool(&self, pool: PoolId) -> Option<&PoolUse> {
        self.pools.get(pool.index())
    }
}

fn shares(pool_set: &PoolSet, pools: &[PoolId]) -> bool {
    pool_set.pools.iter().any(|pool| pools.contains(pool))
}

fn expected_duration(lasted: Option<RunningMean>) -> Duration {
    Duration::from_secs_f64(lasted.map_or(0.0, |mean| mean.value))
}
