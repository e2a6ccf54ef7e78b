//! Queue: one lane per class, tenant, model and context group.

pub mod bounds;
pub mod drain;
pub mod fairness;
pub mod fit_tree;
pub mod headroom;
pub mod lane_key;
mod late_turns;
pub mod oldest;
pub mod order;
pub mod output_lengths;
pub mod quota;
pub mod retry_budget;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::iter::Peekable;
use std::ops::{AddAssign, Bound, SubAssign};

use smallvec::SmallVec;

pub use self::lane_key::{LaneKey, LaneOrderKey, LanePart};
use crate::model::ids::{ClassId, JobId, ModelId, TenantId};
use crate::model::job::JobSpec;
use crate::model::number_map::NumberMap;
use crate::model::time::Tick;
use crate::queue::fit_tree::{FitRank, FitSize, FitTree};
use crate::queue::late_turns::LateTurns;
use crate::queue::oldest::OldestWaiting;
use crate::queue::order::HeadPosition;

/// The most jobs behind a job that are counted to find the number of jobs before it.
const MAX_BEHIND: usize = 64;

/// The most jobs that are counted from each end of a lane to find a job's place in it.
const MAX_COUNTED: usize = 256;

/// Amount of waiting work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueuedLoad {
    pub requests: u64,
    /// Bytes of request bodies.
    pub bytes: u128,
    /// Prompt tokens and requested output tokens.
    pub tokens: u128,
}

impl QueuedLoad {
    /// The load of one job.
    pub fn of(spec: &JobSpec) -> Self {
        let tokens = u128::from(spec.prompt_tokens) + u128::from(spec.max_output_tokens);
        Self { requests: 1, bytes: u128::from(spec.bytes), tokens }
    }
}

impl AddAssign for QueuedLoad {
    fn add_assign(&mut self, rhs: Self) {
        self.requests += rhs.requests;
        self.bytes += rhs.bytes;
        self.tokens += rhs.tokens;
    }
}

impl SubAssign for QueuedLoad {
    fn sub_assign(&mut self, rhs: Self) {
        self.requests -= rhs.requests;
        self.bytes -= rhs.bytes;
        self.tokens -= rhs.tokens;
    }
}

/// One lane: two parts, each in the order of places. Late jobs are kept apart, and take their turn
/// among the others by due time, as far as their part of the turns allows. Only the head of each
/// part competes for replicas. A returned job that waits for a certain replica therefore does not
/// block the fresh ones.
#[derive(Debug, Clone, Default)]
pub struct Lane {
    parts: [BTreeSet<(LaneOrderKey, JobId)>; 2],
    /// Fresh jobs that are late.
    late: BTreeSet<(LaneOrderKey, JobId)>,
    late_turns: LateTurns,
    /// Fresh jobs by age.
    oldest_jobs: OldestWaiting,
    load: QueuedLoad,
    /// Positions of the two heads in the search trees of their pool group.
    pub(crate) head_positions: [Option<HeadPosition>; 2],
    /// When the position of a head has to be computed again.
    pub(crate) refresh_at: Option<Tick>,
}

impl Lane {
    /// The next job of this part.
    pub fn head(&self, part: LanePart) -> Option<JobId> {
        let first = self.parts[part as usize].first();
        let late = self.late.first().filter(|_| part == LanePart::New);
        let turn = |(place, _): &(LaneOrderKey, JobId)| (place.due, place.seq);
        let is_late_turn = match (first, late) {
            (Some(first), Some(late)) => self.late_turns.is_next() && turn(late) < turn(first),
            (first, _) => first.is_none(),
        };
        (if is_late_turn { late } else { first }).map(|(_, job)| *job)
    }

    /// Number of late jobs.
    pub fn late_jobs(&self) -> u64 {
        self.late.len() as u64
    }

    /// The part of the lane's turns that late jobs can expect, when they get at most `share` of
    /// them while others wait.
    pub fn late_part(&self, share: f64) -> f64 {
        self.late_turns.expected(share)
    }

    /// All jobs of the lane: returned, fresh, then late ones, each in their order.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.parts.iter().flatten().chain(&self.late).map(|(_, job)| *job)
    }

    /// The fresh jobs by due time, whatever part of the turns late jobs get: for a look at the jobs behind
    /// the head.
    pub fn fresh_in_order(&self) -> impl Iterator<Item = JobId> {
        let mut parts = [&self.parts[LanePart::New as usize], &self.late].map(|part| part.iter().peekable());
        std::iter::from_fn(move || {
            let turn = |part: &mut Peekable<_>| {
                part.peek().map(|(place, _): &&(LaneOrderKey, JobId)| (place.due, place.seq))
            };
            let [first, second] = parts.each_mut().map(turn);
            let late =
                first.is_none() || second.is_some_and(|second| first.is_some_and(|first| second < first));
            parts[usize::from(late)].next().map(|(_, job)| *job)
        })
    }

    /// The set that holds a job with this place.
    fn set_mut(&mut self, part: LanePart, place: LaneOrderKey) -> &mut BTreeSet<(LaneOrderKey, JobId)> {
        if place.late { &mut self.late } else { &mut self.parts[part as usize] }
    }

    /// Arrival time of the oldest fresh job.
    pub fn oldest(&self) -> Option<Tick> {
        self.oldest_jobs.oldest_arrival()
    }

    /// The fresh job whose turn comes last, with its place.
    pub fn last_fresh(&self) -> Option<(LaneOrderKey, JobId)> {
        self.late.last().or(self.parts[LanePart::New as usize].last()).copied()
    }

    /// Jobs in time that certainly go before a fresh job in time. 0 for a late job, which any other
    /// may overtake. The count starts at the end of the lane: with more than `MAX_BEHIND` jobs
    /// behind, the number is not known and the result is 0.
    pub fn jobs_certainly_before(&self, place: LaneOrderKey, job: JobId) -> u64 {
        if place.late {
            return 0;
        }
        let after = (Bound::Excluded((place, job)), Bound::Unbounded);
        let behind = self.parts[LanePart::New as usize].range(after).take(MAX_BEHIND + 1).count();
        let rest = self.load.requests.saturating_sub((self.late.len() + behind + 1) as u64);
        if behind > MAX_BEHIND { 0 } else { rest }
    }

    /// Jobs that go before a job among those of its part, late or in time as it is. `None` when
    /// more than `MAX_COUNTED` jobs go before it and as many after it.
    pub fn position_of(&self, part: LanePart, place: LaneOrderKey, job: JobId) -> Option<u64> {
        let peers = if place.late { &self.late } else { &self.parts[part as usize] };
        let before = peers.range(..(place, job)).take(MAX_COUNTED + 1).count();
        if before <= MAX_COUNTED {
            return Some(before as u64);
        }
        let after = (Bound::Excluded((place, job)), Bound::Unbounded);
        let behind = peers.range(after).take(MAX_COUNTED + 1).count();
        (behind <= MAX_COUNTED).then(|| peers.len().saturating_sub(behind + 1) as u64)
    }

    /// Waiting work of the lane.
    pub const fn load(&self) -> QueuedLoad {
        self.load
    }
}

/// Waiting work of one tenant.
#[derive(Debug, Clone, Copy, Default)]
struct TenantBacklog {
    load: QueuedLoad,
    weight: f64,
    /// Slot of the tenant in the tree of all tenants.
    slot: Option<usize>,
}

/// A tenant's requests per weight as the bits of a float, which order like the float itself since
/// it is not negative. The largest goes first, and among equals the newest tenant.
#[derive(Debug, Clone, Copy, PartialEq)]
struct WeightedLoad(Reverse<(u64, TenantId)>);

impl FitRank for WeightedLoad {
    type Query = ();
    type Cost = Reverse<(u64, TenantId)>;

    fn cost(&self, (): ()) -> Self::Cost {
        self.0
    }

    fn floor(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Model and context group of a lane.
type LaneModel = (ModelId, u8);

/// All lanes with waiting jobs.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    lanes: NumberMap<LaneKey, Lane>,
    /// Model and context group of each tenant's lanes of a class, ascending.
    lane_models: NumberMap<(ClassId, TenantId), SmallVec<[LaneModel; 4]>>,
    tenants: NumberMap<TenantId, TenantBacklog>,
    share_tree: FitTree<WeightedLoad, TenantId>,
    total: QueuedLoad,
    /// Waiting jobs that another model may serve.
    with_fallback: u64,
}

impl Queue {
    /// Adds a job to its lane. `weight` is the tenant's weight; the newest weight counts for all of
    /// the tenant's waiting jobs.
    pub fn push(&mut self, spec: &JobSpec, part: LanePart, place: LaneOrderKey, weight: f64) {
        let key = LaneKey::of(spec);
        let lane = self.lanes.entry(key).or_insert_with(|| {
            let models = self.lane_models.entry((key.class, key.tenant)).or_default();
            let own = (key.model, key.context_group);
            models.insert(models.partition_point(|other| *other < own), own);
            Lane::default()
        });
        if lane.set_mut(part, place).insert((place, spec.id)) {
            if part == LanePart::New {
                lane.oldest_jobs.push(place.seq, spec.arrived);
            }
            let load = QueuedLoad::of(spec);
            lane.load += load;
            self.total += load;
            self.with_fallback += u64::from(spec.has_fallback);
            self.change_backlog(spec.tenant, |own| {
                own.load += load;
                own.weight = clamped_weight(weight);
            });
        }
    }

    /// Removes a job from its lane; returns whether the job was there.
    pub fn remove(&mut self, spec: &JobSpec, part: LanePart, place: LaneOrderKey) -> bool {
        let Some(lane) = self.lanes.get_mut(&LaneKey::of(spec)) else { return false };
        if !lane.set_mut(part, place).remove(&(place, spec.id)) {
            return false;
        }
        if part == LanePart::New {
            lane.oldest_jobs.remove(place.seq);
        }
        let load = QueuedLoad::of(spec);
        lane.load -= load;
        self.total -= load;
        self.with_fallback = self.with_fallback.saturating_sub(u64::from(spec.has_fallback));
        self.change_backlog(spec.tenant, |own| own.load -= load);
        true
    }

    /// Counts the turn of a fresh job that is about to leave its lane for a replica. `late_share` is
    /// the largest part of the turns for late jobs.
    pub fn note_turn(&mut self, key: LaneKey, place: LaneOrderKey, late_share: f64) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            let rivals = if place.late { &lane.parts[LanePart::New as usize] } else { &lane.late };
            lane.late_turns.note(place.late, !rivals.is_empty(), late_share);
        }
    }

    /// Marks a fresh job as late and moves it to its later place; returns whether the job was there
    /// and in time.
    pub fn make_late(&mut self, key: LaneKey, job: JobId, from: LaneOrderKey, to: LaneOrderKey) -> bool {
        let Some(lane) = self.lanes.get_mut(&key).filter(|_| !from.late && to.late) else { return false };
        let found = lane.parts[LanePart::New as usize].remove(&(from, job));
        if found {
            lane.late.insert((to, job));
        }
        found
    }

    /// Forgets a lane without waiting jobs.
    pub fn drop_empty(&mut self, key: LaneKey) {
        if self.lanes.get(&key).is_some_and(|lane| lane.load.requests == 0) {
            self.lanes.remove(&key);
            if let Entry::Occupied(mut models) = self.lane_models.entry((key.class, key.tenant)) {
                models.get_mut().retain(|own| *own != (key.model, key.context_group));
                if models.get().is_empty() {
                    models.remove();
                }
            }
        }
    }

    /// The lane, if it exists.
    pub fn lane(&self, key: LaneKey) -> Option<&Lane> {
        self.lanes.get(&key)
    }

    /// The lane, to record the positions of its heads.
    pub fn lane_mut(&mut self, key: LaneKey) -> Option<&mut Lane> {
        self.lanes.get_mut(&key)
    }

    /// Every lane, in no order.
    pub fn lanes_unsorted(&self) -> impl Iterator<Item = (&LaneKey, &Lane)> {
        self.lanes.iter()
    }

    /// Every lane, in the order of the keys. The call sorts the keys.
    pub fn lanes(&self) -> impl Iterator<Item = (LaneKey, &Lane)> {
        let mut keys: Vec<LaneKey> = self.lanes.keys().copied().collect();
        keys.sort_unstable();
        self.with_lanes(keys)
    }

    pub fn lanes_of(&self, class: ClassId, tenant: TenantId) -> impl Iterator<Item = (LaneKey, &Lane)> {
        self.with_lanes(self.lane_keys_of(class, tenant))
    }

    /// Keys of a tenant's lanes of a class, without a look at the lanes.
    pub fn lane_keys_of(&self, class: ClassId, tenant: TenantId) -> impl Iterator<Item = LaneKey> {
        let models = self.lane_models.get(&(class, tenant)).into_iter().flatten();
        models.map(move |(model, context_group)| LaneKey {
            class,
            tenant,
            model: *model,
            context_group: *context_group,
        })
    }

    fn with_lanes(&self, keys: impl IntoIterator<Item = LaneKey>) -> impl Iterator<Item = (LaneKey, &Lane)> {
        keys.into_iter().filter_map(|key| Some((key, self.lanes.get(&key)?)))
    }

    /// Waiting work of a tenant.
    pub fn tenant_load(&self, tenant: TenantId) -> QueuedLoad {
        self.tenants.get(&tenant).map(|own| own.load).unwrap_or_default()
    }

    /// Tenants with waiting jobs, each with its requests per weight: the largest first, and among
    /// equals the newest tenant. The first few cost O(log tenants) each.
    pub fn tenants_by_share(&self) -> impl Iterator<Item = (TenantId, f64)> {
        let mut seen = Vec::new();
        std::iter::from_fn(move || {
            let (Reverse((share, tenant)), _) =
                self.share_tree.first((), FitSize::MAX, &|tenant| seen.contains(tenant))?;
            seen.push(tenant);
            Some((tenant, f64::from_bits(share)))
        })
    }

    /// Waiting requests of a tenant per weight, less `fewer` requests.
    pub fn share(&self, tenant: TenantId, fewer: u64) -> f64 {
        let own = self.tenants.get(&tenant);
        own.map_or(0.0, |own| own.load.requests.saturating_sub(fewer) as f64 / own.weight)
    }

    /// Waiting work of all tenants.
    pub const fn total(&self) -> QueuedLoad {
        self.total
    }

    /// Number of waiting jobs that another model may serve.
    pub const fn waiting_with_fallback(&self) -> u64 {
        self.with_fallback
    }

    /// Changes a tenant's backlog and its position among the tenants. A tenant without waiting
    /// requests is forgotten.
    fn change_backlog(&mut self, tenant: TenantId, change: impl FnOnce(&mut TenantBacklog)) {
        let own = self.tenants.entry(tenant).or_default();
        change(own);
        let share = (own.load.requests as f64 / own.weight).to_bits();
        let key = WeightedLoad(Reverse((share, tenant)));
        let waits = own.load.requests > 0;
        let entry = waits.then_some(fit_tree::FitEntry { key, size: FitSize::ZERO, value: tenant });
        own.slot = self.share_tree.put(own.slot, entry);
        if !waits {
            self.tenants.remove(&tenant);
        }
    }
}

/// The weight clamped to `1e-6..=1e9`, and NaN as 1.
fn clamped_weight(weight: f64) -> f64 {
    if weight.is_nan() { 1.0 } else { weight.clamp(1e-6, 1e9) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::{Just, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::*;
    use crate::model::time::Tick;

    fn spec(id: u64, tenant: u32, model: u32) -> JobSpec {
        JobSpec {
            tenant: TenantId::new(tenant),
            model: ModelId::new(model),
            max_output_tokens: 5,
            arrived: Tick::from_millis(id),
            ..JobSpec::example(id)
        }
    }

    fn at(seq: u64) -> LaneOrderKey {
        LaneOrderKey { seq, ..LaneOrderKey::default() }
    }

    #[test]
    fn heads_are_the_oldest_of_each_part() {
        let mut queue = Queue::default();
        for id in [3, 1, 2] {
            queue.push(&spec(id, 0, 0), LanePart::New, at(id), 1.0);
        }
        queue.push(&spec(9, 0, 0), LanePart::Requeued, at(9), 1.0);
        queue.push(&spec(8, 0, 0), LanePart::Requeued, at(8), 1.0);
        let lane = queue.lane(LaneKey::of(&spec(0, 0, 0))).expect("a lane");
        assert_eq!(lane.head(LanePart::New), Some(JobId::new(1)));
        assert_eq!(lane.head(LanePart::Requeued), Some(JobId::new(8)));
        assert_eq!(lane.oldest(), Some(Tick::from_millis(1)));
        assert_eq!(lane.jobs().count(), 5);
    }

    #[test]
    fn what_is_late_waits_for_its_later_turn() {
        let mut queue = Queue::default();
        let place = |late, due, seq| LaneOrderKey { late, due: Tick::from_millis(due), seq };
        let rows = [place(true, 7, 1), place(false, 9, 2), place(false, 5, 3), place(true, 20, 4)];
        for place in rows {
            queue.push(&spec(place.seq, 0, 0), LanePart::New, place, 1.0);
        }
        let lane = queue.lane(LaneKey::of(&spec(0, 0, 0))).expect("a lane");
        let last = lane.last_fresh().map(|(_, job)| job);
        assert_eq!((lane.oldest(), last), (Some(Tick::from_millis(1)), Some(JobId::new(4))));
        let mut order = Vec::new();
        while let Some(next) =
            queue.lane(LaneKey::of(&spec(0, 0, 0))).and_then(|lane| lane.head(LanePart::New))
        {
            let place = rows.iter().find(|place| place.seq as usize == next.index()).unwrap();
            assert!(queue.remove(&spec(place.seq, 0, 0), LanePart::New, *place));
            order.push(next.index());
        }
        assert_eq!(order, [3, 1, 2, 4]);
    }

    #[test]
    fn a_job_that_becomes_late_goes_behind_the_others() {
        let mut queue = Queue::default();
        let (key, place) =
            (LaneKey::of(&spec(0, 0, 0)), |due| LaneOrderKey { due: Tick::from_millis(due), ..at(due) });
        for id in 1..4 {
            queue.push(&spec(id, 0, 0), LanePart::New, place(id), 1.0);
        }
        let all = queue.total();
        let late = LaneOrderKey { late: true, due: Tick::from_millis(9), ..place(1) };
        assert!(queue.make_late(key, JobId::new(1), place(1), late));
        assert!(!queue.make_late(key, JobId::new(1), place(1), late), "it is late already");
        assert!(!queue.make_late(key, JobId::new(1), late, late));
        let lane = queue.lane(key).expect("a lane");
        assert_eq!(lane.jobs().map(JobId::index).collect::<Vec<_>>(), [2, 3, 1]);
        assert_eq!((lane.jobs_certainly_before(place(3), JobId::new(3)), queue.total()), (1, all));
    }

    #[test]
    fn before_a_job_go_those_with_an_earlier_place() {
        let mut queue = Queue::default();
        let place = |late, due, seq| LaneOrderKey { late, due: Tick::from_millis(due), seq };
        for id in 0..10 {
            queue.push(&spec(id, 0, 0), LanePart::New, place(false, id * 10, id), 1.0);
        }
        queue.push(&spec(10, 0, 0), LanePart::New, place(true, 1, 10), 1.0);
        queue.push(&spec(11, 0, 0), LanePart::Requeued, at(11), 1.0);
        let before = |queue: &Queue, due, id| {
            queue
                .lane(LaneKey::of(&spec(0, 0, 0)))
                .map(|lane| lane.jobs_certainly_before(place(false, due, id), JobId::new(id)))
        };
        assert_eq!(before(&queue, 90, 9), Some(10));
        assert_eq!(before(&queue, 30, 3), Some(4));
        let lane = queue.lane(LaneKey::of(&spec(0, 0, 0))).expect("a lane");
        assert_eq!(lane.jobs_certainly_before(place(true, 1, 10), JobId::new(10)), 0);
        assert!(queue.remove(&spec(10, 0, 0), LanePart::New, place(true, 1, 10)));
        assert_eq!(before(&queue, 90, 9), Some(10), "the late one did not count");
        for id in 100..200 {
            queue.push(&spec(id, 0, 0), LanePart::New, place(false, 1000, id), 1.0);
        }
        assert_eq!(before(&queue, 90, 9), Some(0), "too many behind it to count");
        assert_eq!(before(&queue, 1000, 150), Some(61));
    }

    #[test]
    fn totals_follow_and_return_to_zero() {
        let mut queue = Queue::default();
        queue.push(&spec(1, 0, 0), LanePart::New, at(1), 1.0);
        queue.push(&spec(1, 0, 0), LanePart::New, at(1), 1.0);
        queue.push(&spec(2, 1, 1), LanePart::New, at(2), 1.0);
        assert_eq!(queue.total(), QueuedLoad { requests: 2, bytes: 200, tokens: 30 });
        assert_eq!(queue.tenant_load(TenantId::new(1)).requests, 1);
        assert!(!queue.remove(&spec(1, 0, 0), LanePart::Requeued, at(1)));
        assert!(queue.remove(&spec(1, 0, 0), LanePart::New, at(1)));
        assert!(!queue.remove(&spec(1, 0, 0), LanePart::New, at(1)));
        assert!(queue.remove(&spec(2, 1, 1), LanePart::New, at(2)));
        assert_eq!(queue.total(), QueuedLoad::default());
        assert_eq!(queue.tenant_load(TenantId::new(1)), QueuedLoad::default());
        queue.drop_empty(LaneKey::of(&spec(1, 0, 0)));
        assert_eq!(queue.lanes().count(), 1);
    }

    #[test]
    fn a_tenants_lanes_of_a_class_come_in_the_order_of_models() {
        let mut queue = Queue::default();
        for (id, (tenant, model)) in [(0, 4), (1, 7), (1, 2), (2, 0)].into_iter().enumerate() {
            queue.push(&spec(id as u64, tenant, model), LanePart::New, at(id as u64), 1.0);
        }
        let lanes: Vec<_> =
            queue.lanes_of(ClassId::new(0), TenantId::new(1)).map(|(key, _)| key.model.index()).collect();
        assert_eq!(lanes, [2, 7]);
    }

    fn heaviest(queue: &Queue) -> Vec<(usize, f64)> {
        queue.tenants_by_share().map(|(tenant, share)| (tenant.index(), share)).collect()
    }

    #[test]
    fn the_heaviest_tenant_has_most_requests_for_its_weight() {
        let mut queue = Queue::default();
        assert_eq!(heaviest(&queue), []);
        for id in 0..6 {
            queue.push(&spec(id, 0, id as u32), LanePart::New, at(id), 3.0);
        }
        for id in 6..9 {
            queue.push(&spec(id, 1, 0), LanePart::Requeued, at(id), 1.0);
        }
        queue.push(&spec(9, 2, 0), LanePart::New, at(9), 0.5);
        assert_eq!(heaviest(&queue), [(1, 3.0), (2, 2.0), (0, 2.0)]);
        assert!(queue.remove(&spec(6, 1, 0), LanePart::Requeued, at(6)));
        assert!(queue.remove(&spec(7, 1, 0), LanePart::Requeued, at(7)));
        assert_eq!(heaviest(&queue), [(2, 2.0), (0, 2.0), (1, 1.0)]);
        queue.push(&spec(10, 0, 0), LanePart::New, at(10), 1.0);
        assert_eq!(heaviest(&queue), [(0, 7.0), (2, 2.0), (1, 1.0)], "a new weight counts for all");
    }

    proptest! {
        #[test]
        fn the_index_says_what_counting_says(
            steps in vec(
                (0..40_u64, 0..5_u32, prop_oneof![
                    0.1..10.0, Just(f64::NAN), Just(-1.0), Just(0.0), Just(f64::INFINITY),
                ]),
                0..120,
            ),
        ) {
            let mut queue = Queue::default();
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            let mut weights: BTreeMap<u32, f64> = BTreeMap::new();
            for (id, tenant, weight) in steps {
                if let Some(tenant) = model.remove(&id) {
                    prop_assert!(queue.remove(&spec(id, tenant, 0), LanePart::New, at(id)));
                } else {
                    queue.push(&spec(id, tenant, 0), LanePart::New, at(id), weight);
                    model.insert(id, tenant);
                    weights.insert(tenant, clamped_weight(weight));
                }
                let mut expected: Vec<_> = (0..5)
                    .map(|tenant| (tenant, model.values().filter(|other| **other == tenant).count()))
                    .filter(|(_, count)| *count > 0)
                    .map(|(tenant, count)| (tenant as usize, count as f64 / weights[&tenant]))
                    .collect();
                expected.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
                prop_assert_eq!(heaviest(&queue), expected);
                prop_assert_eq!(queue.total().requests as usize, model.len());
            }
        }
    }
}
