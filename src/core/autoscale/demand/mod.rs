//! Measured demand: work per class and pool set as it arrives, and the use of each pool's
//! replicas; [`crate::core::autoscale`] turns both into numbers of replicas. For reports, what it
//! looks like by model, pool, class and tenant ([`profiles`]). All of it is bounded by the policy.

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

use crate::core::model::ids::{ClassId, PoolId};
use crate::core::model::time::Tick;
use crate::core::placement::{GroupShape, PoolSet};
use crate::core::queue::estimate::RunningMean;

use self::flow::DemandFlow;
use self::residency::ResidencySampler;
use crate::core::autoscale::demand::profiles::DemandProfiles;
use crate::core::autoscale::demand::utilization::{PoolUse, ReplicasInUse};

/// The longest stay at a replica that counts, in seconds.
const MAX_STAY: f64 = 3600.0;

/// Where a flow is: group, class and pool set by their places.
pub type FlowKey = (usize, usize, usize);

/// One group of models that share pools.
#[derive(Debug, Clone, Default)]
struct GroupDemand {
    classes: Vec<ClassId>,
    pool_sets: Vec<PoolSet>,
    /// By pool set, then by class.
    flows: Vec<DemandFlow>,
    /// Seconds that jobs of each class stay at a replica.
    stays: Vec<RunningMean>,
}

impl GroupDemand {
    fn index(&self, class: usize, pool_set: usize) -> usize {
        pool_set * self.classes.len() + class
    }
}

/// What all jobs ask for.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    parts: Vec<GroupDemand>,
    pools: Vec<PoolUse>,
    /// How replicas of each pool stay.
    stays: Vec<ResidencySampler>,
    /// What all of it looks like, for reports.
    pub profiles: DemandProfiles,
    since: Option<Tick>,
}

impl Demand {
    /// Rows for a policy. What was measured of the same class and pool set, and of the
    /// same pool, stays. `classes` are those of each group in their order.
    pub fn apply(&mut self, shapes: &[GroupShape], classes: &[Vec<ClassId>], pools: usize) {
        let before = std::mem::take(&mut self.parts);
        let part = |(shape, classes): (&GroupShape, &Vec<ClassId>)| {
            let old =
                before.iter().find(|old| old.pool_sets.iter().any(|pool_set| shares(pool_set, &shape.pools)));
            let flow = |pool_set: &PoolSet, class: ClassId| {
                let old = old?;
                let pool_set = old.pool_sets.iter().position(|other| other == pool_set)?;
                let class = old.classes.iter().position(|other| *other == class)?;
                Some(old.flows[old.index(class, pool_set)].clone())
            };
            let stay = |class: &ClassId| {
                let old = old?;
                let at = old.classes.iter().position(|other| other == class)?;
                Some(old.stays[at])
            };
            let pool_sets = shape.pool_sets.iter();
            let cells =
                pool_sets.flat_map(|pool_set| classes.iter().map(move |class| flow(pool_set, *class)));
            GroupDemand {
                classes: classes.clone(),
                pool_sets: shape.pool_sets.clone(),
                flows: cells.map(Option::unwrap_or_default).collect(),
                stays: classes.iter().map(stay).map(Option::unwrap_or_default).collect(),
            }
        };
        self.parts = shapes.iter().zip(classes).map(part).collect();
        self.pools.resize_with(pools.max(self.pools.len()), PoolUse::default);
        self.stays.resize_with(pools.max(self.stays.len()), ResidencySampler::default);
    }

    /// A job arrived.
    pub fn offered(&mut self, at: FlowKey, work: f64, now: Tick) {
        let (group, class, pool_set) = at;
        let Some(part) = self.parts.get_mut(group) else { return };
        let (index, stay) = (part.index(class, pool_set), part.stays.get(class).copied());
        if let Some(flow) = part.flows.get_mut(index) {
            flow.add(now, work, lasts(stay));
        }
    }

    /// A job was refused since too much waited.
    pub fn refused(&mut self, (group, class, pool_set): FlowKey, now: Tick) {
        let Some(part) = self.parts.get_mut(group) else { return };
        let index = part.index(class, pool_set);
        if let Some(flow) = part.flows.get_mut(index) {
            flow.refuse(now);
        }
    }

    /// A job went to a replica of the pool; `again` when it was at one before.
    pub fn taken(&mut self, at: FlowKey, pool: PoolId, work: f64, again: bool, now: Tick) {
        if again {
            self.offered(at, work, now);
        }
        let stay = self.parts.get(at.0).and_then(|part| part.stays.get(at.1).copied());
        if let Some(own) = self.pools.get_mut(pool.index()) {
            own.taken.add(now, work, lasts(stay));
        }
    }

    /// A job's stay at a replica ended.
    pub fn ended(&mut self, group: usize, class: usize, stay: Duration) {
        let mean = self.parts.get_mut(group).and_then(|part| part.stays.get_mut(class));
        if let Some(mean) = mean {
            mean.add(stay.as_secs_f64().min(MAX_STAY));
        }
    }

    /// So many replicas' worth of the pool is in use now.
    pub fn look(&mut self, pool: PoolId, used: ReplicasInUse, now: Tick) {
        if let Some(own) = self.pools.get_mut(pool.index()) {
            own.look(now, used);
        }
    }

    /// So many replicas of the pool are in service now, and so many have a job.
    pub fn look_at_replicas(&mut self, pool: PoolId, loaded: u32, active: u32, now: Tick) {
        if let Some(stays) = self.stays.get_mut(pool.index()) {
            stays.look(now, loaded, active);
        }
    }

    /// Brings all rows up to `now`; how long demand has been watched.
    pub fn advance(&mut self, now: Tick) -> Duration {
        self.parts.iter_mut().flat_map(|part| &mut part.flows).for_each(|flow| flow.advance(now));
        self.profiles.look(now);
        now.since(*self.since.get_or_insert(now))
    }

    /// What the class asks for in the pool set.
    #[must_use]
    pub fn flow(&self, (group, class, pool_set): FlowKey) -> Option<&DemandFlow> {
        let part = self.parts.get(group)?;
        part.flows.get(part.index(class, pool_set))
    }

    /// What the pool is used.
    #[must_use]
    pub fn pool(&self, pool: PoolId) -> Option<&PoolUse> {
        self.pools.get(pool.index())
    }
}

fn shares(pool_set: &PoolSet, pools: &[PoolId]) -> bool {
    pool_set.pools.iter().any(|pool| pools.contains(pool))
}

fn lasts(stay: Option<RunningMean>) -> Duration {
    Duration::from_secs_f64(stay.map_or(0.0, |mean| mean.value))
}
