//! Demand bookkeeping: arrivals, starts and waiting jobs, as the scale signal counts them.

pub(super) mod replica_demand;
pub(super) mod report;
mod waiting;

use std::time::Duration;

use crate::core::autoscale::class_demand::{ClassDemand, is_patient, total_need};
use crate::core::autoscale::demand::FlowKey;
use crate::core::autoscale::demand::state::DemandState;
use crate::core::autoscale::demand::work::work;
use crate::core::autoscale::demand_report::PeerDemand;
use crate::core::autoscale::share::PoolSetDemand;
use crate::core::autoscale::{ScalingPool, window};
use crate::core::model::event::RejectReason;
use crate::core::model::ids::{ClassId, JobId, PoolId, ReplicaId};
use crate::core::model::job::JobSpec;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::core::queue::lane_key::LaneKey;

pub(super) use self::waiting::WaitingDemand;
use super::Scheduler;
use super::job::Job;
use crate::core::scheduler::admit::LanePosition;
use crate::core::scheduler::demand::report::waiting;

impl Scheduler {
    /// The work that a job is expected to be.
    pub(super) fn set_work(&self, job: &mut Job) {
        job.work = work(job.spec.prompt_tokens, self.lengths.expected(&job.spec));
    }

    /// A job of so much work arrived.
    pub(super) fn note_offered(&mut self, spec: &JobSpec, spot: LanePosition, work: f64) {
        self.demand.profiles.enter(spec);
        self.demand.note_arrival((spot.group, spot.class, spot.pool_set), work, self.now);
    }

    /// A job that waited so long goes to a replica of the pool; `again` if it was
    /// at one before.
    pub(super) fn note_dispatch_demand(
        &mut self,
        id: JobId,
        at: FlowKey,
        pool: PoolId,
        waited: Duration,
        again: bool,
    ) {
        let Some(job) = self.jobs.get(&id) else { return };
        self.demand.note_dispatch(at, pool, job.work, again, self.now);
        self.demand.profiles.sent(&job.spec, pool);
        if !again {
            let class = self.policy.classes.get(job.spec.class);
            let in_time = class.is_none_or(|class| waited <= class.ttft_objective);
            self.demand.profiles.began(&job.spec, pool, waited, in_time);
        }
    }

    /// A job that waits is refused. Where that is for want of replicas, closed loops
    /// included, whose demand never exceeds what is served, demand is not met. A
    /// deadline that is the client's own says nothing of that.
    pub(super) fn note_refused(&mut self, id: JobId, reason: RejectReason) {
        let Some(job) = self.jobs.get(&id) else { return };
        let longest = self.policy.classes.get(job.spec.class).map(|class| class.max_wait);
        let own = longest.is_some_and(|longest| job.spec.deadline < job.spec.arrived + longest);
        let scarce = match reason {
            RejectReason::DeadlineExceeded | RejectReason::Unmeetable => !own,
            RejectReason::QueueFull(_) | RejectReason::Displaced => true,
            _ => false,
        };
        if let Some(spot) = self.lane_position(LaneKey::of(&job.spec)).filter(|_| scarce) {
            self.demand.note_refusal((spot.group, spot.class, spot.pool_set), self.now);
        }
    }

    /// A job's stay at a replica ended.
    pub(super) fn note_stay(&mut self, id: JobId, replica: ReplicaId, stay: Duration) {
        if let (Some(job), Some(pool)) = (self.jobs.get(&id), self.fleet.pool_of(replica)) {
            self.demand.profiles.stayed(&job.spec, pool, stay);
        }
    }

    /// The demand measured so far, to be kept over a restart.
    #[must_use]
    pub fn demand_state(&self) -> DemandState {
        let mut state = self.demand.save(&self.policy);
        for kept in &mut state.pools {
            let Some(id) = self.policy.pools.id(&kept.name) else { continue };
            let usual = self.fleet.typical(id);
            kept.start = self.starts.measured(id).map(|start| start.as_secs_f64());
            kept.read_per_second = usual.read_per_second;
            kept.gap = usual.gap.map(|gap| gap.as_secs_f64());
            (kept.ready, kept.max_seqs, kept.kv_tokens) = self.fleet.sizes(id);
            kept.waiting = self.waiting_for(id);
        }
        state
    }

    /// Takes over the demand that was seen before a restart, as far as the policy
    /// has what it is of. False when it is of another version, and nothing was
    /// taken over.
    pub fn restore_demand(&mut self, state: &DemandState) -> bool {
        let taken = self.demand.restore(&self.policy, state);
        for kept in state.pools.iter().filter(|_| taken) {
            let start = kept.start.and_then(|start| Duration::try_from_secs_f64(start).ok());
            if let (Some(id), Some(start)) = (self.policy.pools.id(&kept.name), start) {
                self.starts.restore(id, start);
            }
        }
        taken
    }

    /// Rows of the demand for the policy in force.
    pub(super) fn renew_demand(&mut self) {
        let classes: Vec<Vec<ClassId>> =
            self.groups.iter().map(|group| group.class_ids().collect()).collect();
        self.demand.apply(self.placement.groups(), &classes, self.policy.pools.capacity());
        let Policy { models, pools, classes, tenants, .. } = &*self.policy;
        let book = &mut self.demand.profiles;
        book.resize(models.capacity(), pools.capacity(), classes.capacity(), tenants.capacity());
    }

    /// Looks at all lanes, once.
    pub(super) fn waiting_demand(&self, now: Tick) -> WaitingDemand {
        let mut waits = WaitingDemand::default();
        for (key, lane) in self.queue.lanes() {
            let Some(spot) = self.lane_position(key) else { continue };
            let at = (spot.group, spot.class, spot.pool_set);
            if self.overrides.paused_until(key.tenant).is_some() {
                *waits.parked.entry(at).or_default() += lane.load().requests;
                continue;
            }
            let load = u64::try_from(lane.load().tokens).unwrap_or(u64::MAX);
            for pool in &self.groups[spot.group].shape.pool_sets[spot.pool_set].pools {
                let sum = waits.tokens.entry(*pool).or_default();
                *sum = sum.saturating_add(load);
            }
            let age = lane.oldest().map_or(Duration::ZERO, |oldest| now.since(oldest));
            let oldest = waits.oldest.entry(at).or_default();
            *oldest = age.max(*oldest);
            if self.allows(spot.group, key.tenant, 1) {
                let hindered = waits.oldest_allowed.entry(at).or_default();
                *hindered = age.max(*hindered);
            }
        }
        waits
    }

    /// What each pool set of a group asks for, of the pools given.
    pub(super) fn demand_of(
        &self,
        group: usize,
        pools: &[ScalingPool],
        (waits, others): (&WaitingDemand, &PeerDemand),
        watched: Duration,
    ) -> Vec<PoolSetDemand> {
        let view = |id: &PoolId| pools.iter().find(|pool| pool.pool == *id);
        let pool_sets = self.groups[group].shape.pool_sets.iter().enumerate().map(|(pool_set, row)| {
            let order: Vec<PoolId> = row.tiers.iter().flat_map(|tier| &tier.pools).copied().collect();
            let views = || order.iter().filter_map(view);
            let first = views().find(|pool| !pool.short).or_else(|| views().next());
            let start = first.map_or(Duration::ZERO, |pool| pool.start);
            let known = views().find_map(|pool| pool.cost);
            let ready: u32 = views().map(|pool| pool.ready).sum();
            let speed =
                |pool: &ScalingPool| pool.cost.or(known).map_or(0.0, |cost| f64::from(pool.ready) / cost);
            let capacity = views().map(speed).sum();
            let theirs = self.peer_demand((group, pool_set), &order, others);
            let mut wants = self.class_demands((group, pool_set), (start, ready), waits, watched);
            for (class, part) in &theirs {
                let same = wants.iter_mut().filter(|(id, _)| id == class);
                same.for_each(|(_, want)| part.add_to(want));
            }
            let wants: Vec<ClassDemand> = wants.into_iter().map(|(_, want)| want).collect();
            PoolSetDemand {
                waiting: self.groups[group]
                    .waiting_in_pool_set(pool_set)
                    .saturating_sub(waits.parked_in(group, pool_set))
                    + waiting(&theirs),
                need: total_need(&wants, start, capacity),
                order,
            }
        });
        pool_sets.collect()
    }

    /// What each class asks for in the pool set, in the order of service.
    pub(super) fn class_demands(
        &self,
        (group, pool_set): (usize, usize),
        (start, ready): (Duration, u32),
        waits: &WaitingDemand,
        watched: Duration,
    ) -> Vec<(ClassId, ClassDemand)> {
        let here = &self.groups[group];
        let (window, now) = (window(start), self.now);
        let want = |(class, id): (usize, ClassId)| {
            let at = (group, class, pool_set);
            let row = self.policy.classes.get(id).filter(|row| !row.scavenger)?;
            let flow = self.demand.flow(at)?;
            let parked = waits.parked.get(&at).copied().unwrap_or_default();
            let waiting = here.waiting_in(class, pool_set).saturating_sub(parked);
            let slow = flow.sustained(window);
            let held = row.cold_start_tolerance.filter(|_| ready == 0);
            let tolerance = held.unwrap_or(row.max_wait).min(row.max_wait);
            let hindered = waits.oldest_allowed.get(&at).copied().unwrap_or_default();
            let endured = if is_patient(tolerance, start) { tolerance / 2 } else { row.ttft_objective };
            let want = ClassDemand {
                tolerance,
                unmet: hindered > endured || flow.has_refused(window, now),
                sustained: slow,
                deviation: flow.deviation(slow),
                rise: flow.rise(window, start, watched),
                fast: flow.fast(),
                backlog: waiting as f64 * flow.work_per_job(),
                oldest: waits.oldest.get(&at).copied().unwrap_or_default(),
            };
            Some((id, want))
        };
        here.class_ids().enumerate().filter_map(want).collect()
    }
}
