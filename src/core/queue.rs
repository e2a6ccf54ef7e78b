//! What waits: one lane per class, tenant and model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{AddAssign, SubAssign};

use crate::core::ids::{ClassId, JobId, ModelId, TenantId};
use crate::core::job::JobSpec;

/// Names a lane; ordered so that a tenant's lanes of a class are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    /// The class.
    pub class: ClassId,
    /// The tenant.
    pub tenant: TenantId,
    /// The model.
    pub model: ModelId,
}

impl LaneKey {
    /// The lane of a job.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        Self { class: spec.class, tenant: spec.tenant, model: spec.model }
    }
}

/// Where in its lane a job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Back from a replica that failed it; before all fresh ones.
    Returned = 0,
    /// Not dispatched yet.
    Fresh = 1,
}

impl Part {
    /// Both, in the order of service.
    pub const ALL: [Self; 2] = [Self::Returned, Self::Fresh];
}

/// How much waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u128,
    /// Tokens, prompt and asked output.
    pub tokens: u128,
}

impl Load {
    /// What one job adds.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        let tokens = u128::from(spec.prompt_tokens) + u128::from(spec.max_output_tokens);
        Self { requests: 1, bytes: u128::from(spec.bytes), tokens }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, rhs: Self) {
        self.requests += rhs.requests;
        self.bytes += rhs.bytes;
        self.tokens += rhs.tokens;
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, rhs: Self) {
        self.requests -= rhs.requests;
        self.bytes -= rhs.bytes;
        self.tokens -= rhs.tokens;
    }
}

/// One lane: first in, first out by arrival number, in both parts. Only the
/// head of each part takes part in the competition for replicas, so that a
/// returned job that waits for a certain replica does not block the others.
#[derive(Debug, Clone, Default)]
pub struct Lane {
    parts: [BTreeSet<(u64, JobId)>; 2],
    load: Load,
    /// Where the two heads stand on the boards of their group.
    pub(crate) slots: [Option<usize>; 2],
}

impl Lane {
    /// The job that is next in this part.
    #[must_use]
    pub fn head(&self, part: Part) -> Option<JobId> {
        self.parts[part as usize].first().map(|(_, job)| *job)
    }

    /// All its jobs, returned ones first, each part by age.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.parts.iter().flatten().map(|(_, job)| *job)
    }

    /// The one that arrived first.
    #[must_use]
    pub fn oldest(&self) -> Option<JobId> {
        self.parts.iter().filter_map(BTreeSet::first).min().map(|(_, job)| *job)
    }

    /// How much waits here.
    #[must_use]
    pub const fn load(&self) -> Load {
        self.load
    }
}

/// All lanes with waiting jobs.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    lanes: BTreeMap<LaneKey, Lane>,
    tenants: BTreeMap<TenantId, Load>,
    total: Load,
}

impl Queue {
    /// Puts a job in its lane. `seq` is its arrival number, which it keeps
    /// when it returns.
    pub fn push(&mut self, spec: &JobSpec, part: Part, seq: u64) {
        let lane = self.lanes.entry(LaneKey::of(spec)).or_default();
        if lane.parts[part as usize].insert((seq, spec.id)) {
            let load = Load::of(spec);
            lane.load += load;
            *self.tenants.entry(spec.tenant).or_default() += load;
            self.total += load;
        }
    }

    /// Takes a job out of its lane; says whether it was there.
    pub fn remove(&mut self, spec: &JobSpec, part: Part, seq: u64) -> bool {
        let Some(lane) = self.lanes.get_mut(&LaneKey::of(spec)) else { return false };
        if !lane.parts[part as usize].remove(&(seq, spec.id)) {
            return false;
        }
        let load = Load::of(spec);
        lane.load -= load;
        self.total -= load;
        if let Some(own) = self.tenants.get_mut(&spec.tenant) {
            *own -= load;
            if own.requests == 0 {
                self.tenants.remove(&spec.tenant);
            }
        }
        true
    }

    /// Forgets a lane in which nothing waits.
    pub fn drop_empty(&mut self, key: LaneKey) {
        if self.lanes.get(&key).is_some_and(|lane| lane.load.requests == 0) {
            self.lanes.remove(&key);
        }
    }

    /// The lane, if it exists.
    #[must_use]
    pub fn lane(&self, key: LaneKey) -> Option<&Lane> {
        self.lanes.get(&key)
    }

    /// The lane, to note where its heads stand.
    pub fn lane_mut(&mut self, key: LaneKey) -> Option<&mut Lane> {
        self.lanes.get_mut(&key)
    }

    /// Every lane, in the order of the keys.
    pub fn lanes(&self) -> impl Iterator<Item = (LaneKey, &Lane)> {
        self.lanes.iter().map(|(key, lane)| (*key, lane))
    }

    /// A tenant's lanes of a class.
    pub fn lanes_of(&self, class: ClassId, tenant: TenantId) -> impl Iterator<Item = (LaneKey, &Lane)> {
        let bound = |number| LaneKey { class, tenant, model: ModelId::new(number) };
        self.lanes.range(bound(0)..=bound(u32::MAX)).map(|(key, lane)| (*key, lane))
    }

    /// How much waits for a tenant.
    #[must_use]
    pub fn tenant(&self, tenant: TenantId) -> Load {
        self.tenants.get(&tenant).copied().unwrap_or_default()
    }

    /// How much waits in all.
    #[must_use]
    pub const fn total(&self) -> Load {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Tick;

    fn spec(id: u64, tenant: u32, model: u32) -> JobSpec {
        JobSpec {
            id: JobId::new(id),
            tenant: TenantId::new(tenant),
            class: ClassId::new(0),
            model: ModelId::new(model),
            prompt_tokens: 10,
            max_output_tokens: 5,
            sequences: 1,
            bytes: 100,
            deadline: Tick::NEVER,
        }
    }

    #[test]
    fn heads_are_the_oldest_of_each_part() {
        let mut queue = Queue::default();
        for id in [3, 1, 2] {
            queue.push(&spec(id, 0, 0), Part::Fresh, id);
        }
        queue.push(&spec(9, 0, 0), Part::Returned, 9);
        queue.push(&spec(8, 0, 0), Part::Returned, 8);
        let lane = queue.lane(LaneKey::of(&spec(0, 0, 0))).expect("a lane");
        assert_eq!(lane.head(Part::Fresh), Some(JobId::new(1)));
        assert_eq!(lane.head(Part::Returned), Some(JobId::new(8)));
        assert_eq!(lane.oldest(), Some(JobId::new(1)));
        assert_eq!(lane.jobs().count(), 5);
    }

    #[test]
    fn totals_follow_and_return_to_zero() {
        let mut queue = Queue::default();
        queue.push(&spec(1, 0, 0), Part::Fresh, 1);
        queue.push(&spec(1, 0, 0), Part::Fresh, 1);
        queue.push(&spec(2, 1, 1), Part::Fresh, 2);
        assert_eq!(queue.total(), Load { requests: 2, bytes: 200, tokens: 30 });
        assert_eq!(queue.tenant(TenantId::new(1)).requests, 1);
        assert!(!queue.remove(&spec(1, 0, 0), Part::Returned, 1));
        assert!(queue.remove(&spec(1, 0, 0), Part::Fresh, 1));
        assert!(!queue.remove(&spec(1, 0, 0), Part::Fresh, 1));
        assert!(queue.remove(&spec(2, 1, 1), Part::Fresh, 2));
        assert_eq!(queue.total(), Load::default());
        assert_eq!(queue.tenant(TenantId::new(1)), Load::default());
        queue.drop_empty(LaneKey::of(&spec(1, 0, 0)));
        assert_eq!(queue.lanes().count(), 1);
    }

    #[test]
    fn a_tenants_lanes_of_a_class_are_neighbours() {
        let mut queue = Queue::default();
        for (id, (tenant, model)) in [(0, 4), (1, 7), (1, 2), (2, 0)].into_iter().enumerate() {
            queue.push(&spec(id as u64, tenant, model), Part::Fresh, id as u64);
        }
        let lanes: Vec<_> =
            queue.lanes_of(ClassId::new(0), TenantId::new(1)).map(|(key, _)| key.model.index()).collect();
        assert_eq!(lanes, [2, 7]);
    }
}
