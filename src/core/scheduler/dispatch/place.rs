//! Placement of one job: finds the best replica of each tier of pools by the ledgers'
//! predictions, then lets [`choose_tier`] choose the tier.

use std::time::Duration;

use smallvec::SmallVec;

use crate::model::event::PassedOverPool;
use crate::model::ids::{GroupIndex, JobId, PoolId, ReplicaId};
use crate::model::time::Tick;
use crate::placement::PoolSet;
use crate::placement::choose_tier::{
    JobTerms, PlacementDecision, PlacementReason, TierOffer, choose_tier, preferred_only_until,
};
use crate::placement::unattainable::ENOUGH_GAPS;
use crate::queue::lane_key::LaneKey;
use crate::queue::order::Candidate;
use crate::replica::fleet::{ReplicaMatch, ReplicaRequirements, SessionReplica};
use crate::replica::scores::{ReplicaScores, WhyNot};

use super::wait::{HeadWait, WaitReason};
use crate::scheduler::Scheduler;
use crate::scheduler::job::Job;

/// Heads without a place in one decision after which a job takes a free replica, although a busy one
/// promises to be sooner: that one can only be sooner for the first few.
const EAGER_AFTER: usize = 4;
/// The same for jobs whose session has a replica: each may have another one.
const EAGER_AFTER_SESSION: usize = 16;

/// Where a job goes.
#[derive(Debug, Clone, Copy)]
pub(in crate::scheduler) struct ReplicaChoice {
    pub(in crate::scheduler) replica: ReplicaId,
    pub(in crate::scheduler) choice: PlacementReason,
    /// Tokens of the prompt that the replica is expected to have cached.
    pub(in crate::scheduler) cached: u64,
}

/// Finds the best replica of some pools.
type ReplicaFinder<'a> = &'a dyn Fn(&[PoolId]) -> Option<ReplicaMatch>;

impl Scheduler {
    /// Where the job goes now. A job whose engine failed is not sent where another such job runs,
    /// if there is a choice: one of the two may be what breaks engines.
    ///
    /// Once [`EAGER_AFTER`] `others` (with a session: [`EAGER_AFTER_SESSION`]) found no place in this
    /// decision, the job takes a free replica, even if a busy one promises to be sooner.
    pub(in crate::scheduler) fn choose_replica(
        &self,
        group: GroupIndex,
        candidate: &Candidate,
        others: usize,
    ) -> Option<ReplicaChoice> {
        let job = self.jobs.get(&candidate.head.job)?;
        let here = &self.groups[group];
        let pool_set = here.shape.pool_set(candidate.pool_set);
        let last = here.last_tier(candidate.class, candidate.pool_set);
        let avoided = self.avoided_replicas(candidate.head.job, &pool_set.pools);
        let cached = self.affinity.prefixes.matches(&job.prefix);
        let required = ReplicaRequirements {
            session: self.session(job),
            ..job.requirements(&cached, candidate.background, &self.policy)
        };
        let eager = others >= if required.session.is_some() { EAGER_AFTER_SESSION } else { EAGER_AFTER };
        let choose = |avoid: &dyn Fn(ReplicaId) -> bool| {
            let find = |pools: &[PoolId]| {
                let found = self.fleet.find(pools, &required, avoid)?;
                Some(ReplicaMatch { wait_for: found.wait_for.filter(|_| !eager), ..found })
            };
            self.choose_among_tiers(job, pool_set, last, &find)
        };
        let apart = || choose(&|id| avoided.contains(&id) || self.fleet.has_failed_job(id));
        let apart = job.faults.has_failed.then(apart).and_then(Result::ok);
        let (replica, choice) = apart.or_else(|| choose(&|id| avoided.contains(&id)).ok())?;
        let cached = required.cached_at(replica);
        let choice = match choice {
            PlacementReason::Only if required.session.is_some_and(|session| session.replica == replica) => {
                PlacementReason::Session
            }
            PlacementReason::Only if cached > 0 => PlacementReason::Prefix,
            other => other,
        };
        Some(ReplicaChoice { replica, choice, cached })
    }

    /// Scores of the replica that the job goes to and of a few others, before the booking. `held` = the
    /// replica was held for the job.
    pub(in crate::scheduler) fn scores(
        &self,
        job: &Job,
        background: bool,
        pools: &[PoolId],
        place: &ReplicaChoice,
        held: bool,
        failed: &[ReplicaId],
    ) -> ReplicaScores {
        let ReplicaChoice { replica, cached, .. } = *place;
        let mut holders = self.affinity.prefixes.matches(&job.prefix);
        holders.retain(|(id, tokens)| {
            if *id == replica {
                *tokens = cached;
            }
            *tokens > 0
        });
        let required = ReplicaRequirements {
            session: self.session(job),
            ..job.requirements(&holders, background, &self.policy)
        };
        let is_apart = job.faults.has_failed && !self.fleet.has_failed_job(replica);
        let avoided = |id| match failed.contains(&id) {
            true => Some(WhyNot::Failed),
            false => (is_apart && self.fleet.has_failed_job(id)).then_some(WhyNot::Suspect),
        };
        self.fleet.scores(pools, &required, replica, held, &avoided, self.now)
    }

    /// The replica of the job's session. What the job has waited shortens the delay that it accepts there,
    /// so that it gives up its replica in time.
    pub(in crate::scheduler) fn session(&self, job: &Job) -> Option<SessionReplica> {
        let rule = self.policy.sessions.as_ref()?;
        let replica = self.affinity.sessions.get(job.spec.session?)?;
        let left = rule.max_delay.saturating_sub(self.now.since(job.spec.arrived));
        Some(SessionReplica { replica, max_delay: u64::try_from(left.as_nanos()).unwrap_or(u64::MAX) })
    }

    /// Latest time at which a waiting job stops preferring its session's replica, if nothing else
    /// changes. The longer the job waits, the less later than others that replica may be.
    fn session_until(&self, job: &Job, pool_set: &PoolSet, background: bool) -> Option<Tick> {
        let session = self.session(job).filter(|session| session.max_delay > 0)?;
        let cached = self.affinity.prefixes.matches(&job.prefix);
        let required = ReplicaRequirements {
            session: Some(session),
            ..job.requirements(&cached, background, &self.policy)
        };
        let avoided = self.avoided_replicas(job.spec.id, &pool_set.pools);
        let pools = pool_set.tiers.iter().map(|tier| &*tier.pools).chain([&*pool_set.pools]);
        let each =
            pools.filter_map(|pools| self.fleet.session_wait(pools, &required, &|id| avoided.contains(&id)));
        let nanos = each.filter(|nanos| *nanos > 0).min().unwrap_or(session.max_delay);
        Some(self.now + Duration::from_nanos(nanos))
    }

    /// Chooses the job's replica among the tiers of a pool set by what `find` says of each. Pools whose
    /// best ITL misses the stream's objective come after all others. The error is what the job waits
    /// for.
    pub(in crate::scheduler) fn choose_among_tiers(
        &self,
        job: &Job,
        pool_set: &PoolSet,
        last: Option<usize>,
        find: ReplicaFinder<'_>,
    ) -> Result<(ReplicaId, PlacementReason), WaitReason> {
        let go = |found: Option<ReplicaMatch>, choice: PlacementReason| match found {
            None => Err(WaitReason::NoRoom),
            Some(ReplicaMatch { replica, wait_for: None, .. }) => Ok((replica, choice)),
            Some(ReplicaMatch { wait_for: Some(replica), .. }) => Err(self.reason_to_wait_for(job, replica)),
        };
        let able = self.pools_within_itl(job, &pool_set.pools);
        let find_able_first = |pools: &[PoolId]| {
            let here = able.iter().copied().filter(|pool| pools.contains(pool));
            let here: SmallVec<[PoolId; 4]> = here.collect();
            let first = (!here.is_empty()).then(|| find(&here)).flatten();
            first.filter(|found| found.wait_for.is_none()).or_else(|| find(pools))
        };
        if pool_set.tiers.len() == 1 {
            return go(find_able_first(&pool_set.pools), PlacementReason::Only);
        }
        let found = self.offers(pool_set).map(|offer| {
            let pools = &pool_set.tiers[offer.tier].pools;
            let last = !able.is_empty() && !pools.iter().any(|pool| able.contains(pool));
            let rank = offer.rank + if last { pool_set.tiers.len() } else { 0 };
            let found = find_able_first(pools);
            (TierOffer { ttft: found.map(|found| found.ttft), rank, ..offer }, found)
        });
        let (offers, found): (SmallVec<[TierOffer; 8]>, SmallVec<[Option<ReplicaMatch>; 8]>) = found.unzip();
        let goal = self.ttft_deadline(job);
        let left = u64::try_from(goal.since(self.now).as_nanos()).unwrap_or(u64::MAX);
        let patient = self.waits_for_preferred(job, pool_set);
        match choose_tier(
            &offers,
            &JobTerms { time_left: left, can_wait: patient, late_policy: pool_set.late_policy, last },
        ) {
            PlacementDecision::Start(tier, choice) => {
                let at = offers.iter().position(|offer| offer.tier == tier);
                go(at.and_then(|at| found[at]), choice)
            }
            PlacementDecision::Soonest => go(find_able_first(&pool_set.pools), PlacementReason::Fastest),
            PlacementDecision::Wait if found.iter().all(Option::is_none) => Err(WaitReason::NoRoom),
            PlacementDecision::Wait => Err(WaitReason::PreferredPools),
        }
    }

    /// The reason of a job that waits for a busy replica.
    fn reason_to_wait_for(&self, job: &Job, replica: ReplicaId) -> WaitReason {
        match self.session(job) {
            Some(session) if session.replica == replica => WaitReason::SessionReplica(replica),
            _ => WaitReason::SoonerReplica(replica),
        }
    }

    /// The wait of a job that takes no replica for this reason.
    pub(in crate::scheduler) fn head_wait(
        &self,
        job: &Job,
        pool_set: &PoolSet,
        background: bool,
        reason: WaitReason,
    ) -> HeadWait {
        let until = match reason {
            WaitReason::NoRoom | WaitReason::SoonerReplica(_) => None,
            WaitReason::SessionReplica(_) => self.session_until(job, pool_set, background),
            WaitReason::PreferredPools => {
                preferred_only_until(job.spec.arrived, self.ttft_deadline(job), self.now).1
            }
        };
        HeadWait { reason, until }
    }

    /// Pools whose best ITL meets the stream's objective, or is not measured yet. Empty if that is all
    /// pools.
    fn pools_within_itl(&self, job: &Job, pools: &[PoolId]) -> SmallVec<[PoolId; 4]> {
        let class = self.policy.classes.get(job.spec.class).filter(|_| job.spec.streams && pools.len() > 1);
        let Some(objective) = class.map(|class| class.itl_objective) else { return SmallVec::new() };
        let may = |pool: &PoolId| {
            let best = self.fleet.best(*pool);
            best.gaps < ENOUGH_GAPS || best.gap.is_none_or(|gap| gap <= objective)
        };
        let able: SmallVec<[PoolId; 4]> = pools.iter().copied().filter(may).collect();
        if able.len() < pools.len() { able } else { SmallVec::new() }
    }

    /// The tiers of a pool set that have a replica in service, with what work costs
    /// there: the price of the time that a token takes.
    fn offers(&self, pool_set: &PoolSet) -> impl Iterator<Item = TierOffer> {
        let up = pool_set.tiers.iter().enumerate().filter(|(_, tier)| self.fleet.count_up(&tier.pools) > 0);
        up.map(|(index, tier)| {
            let price = tier.price.map_or(f64::INFINITY, |price| price.units());
            TierOffer {
                tier: index,
                rank: tier.rank,
                cost: price * self.fleet.per_token(&tier.pools),
                ttft: None,
            }
        })
    }

    /// When the objective of the job's class has passed.
    fn ttft_deadline(&self, job: &Job) -> Tick {
        let objective = self.policy.classes.get(job.spec.class).map(|class| class.ttft_objective);
        job.spec.arrived + objective.unwrap_or_default()
    }

    /// Whether the job may still wait for its preferred pools.
    fn waits_for_preferred(&self, job: &Job, pool_set: &PoolSet) -> bool {
        pool_set.can_wait()
            && matches!(
                preferred_only_until(job.spec.arrived, self.ttft_deadline(job), self.now),
                (true, Some(_))
            )
    }

    /// Whether the job is restricted to its preferred pools now.
    pub(in crate::scheduler) fn is_bound_to_preferred(&self, job: &Job, pool_set: &PoolSet) -> bool {
        pool_set.can_wait() && preferred_only_until(job.spec.arrived, self.ttft_deadline(job), self.now).0
    }

    /// The tier of a pool set that is wanted most just now.
    pub(in crate::scheduler) fn preferred_tier(&self, pool_set: &PoolSet) -> Option<usize> {
        self.offers(pool_set).min_by(TierOffer::cmp_preference).map(|offer| offer.tier)
    }

    /// The pool that the job wanted more than the one that it goes to.
    pub(in crate::scheduler) fn passed_over(
        &self,
        pool_set: &PoolSet,
        taken: PoolId,
        required: &ReplicaRequirements<'_>,
    ) -> Option<PassedOverPool> {
        if pool_set.tiers.len() == 1 {
            return None;
        }
        let wanted = &pool_set.tiers[self.preferred_tier(pool_set)?].pools;
        let pool = wanted.first().copied().filter(|_| !wanted.contains(&taken))?;
        Some(PassedOverPool { pool, busy: self.fleet.count_fitting(wanted, required) == 0 })
    }

    /// Schedules a new look at the group for when a waiting job gives up its session's replica.
    pub(in crate::scheduler) fn note_session(&mut self, group: GroupIndex, candidate: &Candidate) {
        let job = self.jobs.get(&candidate.head.job);
        let pool_set = self.groups[group].shape.pool_set(candidate.pool_set);
        let until = job.and_then(|job| self.session_until(job, pool_set, candidate.background));
        let first = &mut self.groups[group].session_wait_until;
        *first = first.iter().copied().chain(until).min();
    }

    /// Lanes with a head that begins or ceases to look at all of its pools.
    pub(in crate::scheduler) fn refresh_due_heads(&mut self) {
        while let Some(key) = self.timers.head_updates.pop_due(self.now) {
            if let Some(lane) = self.queue.lane_mut(key) {
                lane.refresh_at = None;
            }
            self.refresh_lane(key);
            self.groups.mark_changed(self.placement.group_of_model(key.model));
        }
    }

    /// Whether the job, of those that may use the pool, looks at it by now.
    pub(in crate::scheduler) fn considers_pool(&self, id: JobId, pool: PoolId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        self.placement.pool_set(LaneKey::of(&job.spec)).is_some_and(|pool_set| {
            let wanted = self.preferred_tier(pool_set);
            !self.waits_for_preferred(job, pool_set)
                || wanted.is_none_or(|tier| pool_set.tiers[tier].pools.contains(&pool))
        })
    }
}
