//! Audit: recomputes the whole state without indexes, for tests and the simulator.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::{ModelId, PoolId, ReplicaId, TenantId};
use crate::model::invariant::InvariantId;
use crate::queue::QueuedLoad;
use crate::queue::lane_key::{LaneKey, LanePart};
use crate::queue::order::{HeadSet, PoolGroup};
use crate::queue::quota::QuotaState;
use crate::replica::fleet::{ReplicaMatch, ReplicaRequirements};
use crate::replica::ledger::Ledger;

use crate::queue::lane_key::LaneAccounts;
use crate::scheduler::Scheduler;
use crate::scheduler::job::{Job, RunningAttempt};

impl Scheduler {
    /// Every invariant that the state breaks right now. Looks at all jobs,
    /// lanes and replicas, without the indexes that decisions use.
    pub fn audit(&self) -> Vec<InvariantId> {
        let checks = [
            (InvariantId::LedgerBalanced, self.ledgers_balance()),
            (InvariantId::QueueConsistent, self.queue_agrees()),
            (
                InvariantId::HeadsRanked,
                self.heads_are_ranked()
                    && self.heads_follow_counters()
                    && self.groups.iter().all(PoolGroup::groups_are_ranked),
            ),
            (
                InvariantId::DeadlineWatched,
                self.deadlines_agree() && self.pool_start_waits_are_consistent() && self.readings_agree(),
            ),
            (InvariantId::ReplicaWatched, self.fleet.timers_are_consistent(self.now)),
            (InvariantId::NoIdleCredit, !self.credit_is_idle()),
            (InvariantId::QuotasBalanced, self.quotas_agree() && self.fleet.summary_is_consistent()),
            (InvariantId::TimeShared, self.shares_are_consistent()),
            (
                InvariantId::LimitsBalanced,
                self.limits.is_balanced(self.jobs.values().map(|job| &job.charges.reservation)),
            ),
            (InvariantId::HoldJustified, self.holds_are_justified()),
            (InvariantId::NoVainWait, !self.jobs.keys().any(|id| self.waits_in_vain(*id))),
            (InvariantId::OverridesFollowed, self.overrides_are_followed()),
        ];
        checks.into_iter().filter(|(_, holds)| !holds).map(|(id, _)| id).collect()
    }

    /// Nodes of search trees that were looked at since the start.
    #[cfg(test)]
    pub(crate) fn visits(&self) -> u64 {
        self.fleet.visits() + self.groups.iter().map(PoolGroup::visits).sum::<u64>()
    }

    fn ledgers_balance(&self) -> bool {
        let mut sums: BTreeMap<ReplicaId, Ledger> = BTreeMap::new();
        for run in self.jobs.values().filter_map(Job::attempt) {
            sums.entry(run.replica).or_default().add(&run.booking);
        }
        let ledgers: BTreeMap<_, _> = self.fleet.ledgers().filter(|(_, ledger)| ledger.jobs > 0).collect();
        ledgers == sums
            && self.jobs.attempts().count() == self.jobs.values().filter_map(Job::attempt).count()
            && self.adapters_agree()
            && self.fleet.ledgers().all(|(_, ledger)| ledger.jobs > 0 || ledger == Ledger::default())
    }

    fn adapters_agree(&self) -> bool {
        let mut jobs: BTreeMap<(ReplicaId, ModelId), u32> = BTreeMap::new();
        for run in self.jobs.values().filter_map(Job::attempt) {
            if let Some(model) = run.booking.adapter {
                *jobs.entry((run.replica, model)).or_default() += 1;
            }
        }
        let known = self.fleet.ledgers().map(|(id, _)| id);
        let held =
            known.flat_map(|id| self.fleet.adapters_at(id).map(move |(model, jobs)| ((id, model), jobs)));
        held.filter(|(_, jobs)| *jobs > 0).collect::<BTreeMap<_, _>>() == jobs
    }

    fn queue_agrees(&self) -> bool {
        let mut lanes: BTreeMap<LaneKey, QueuedLoad> = BTreeMap::new();
        let mut total = QueuedLoad::default();
        for (_, job) in self.jobs.waiting() {
            *lanes.entry(LaneKey::of(&job.spec)).or_default() += QueuedLoad::of(&job.spec);
            total += QueuedLoad::of(&job.spec);
        }
        let found: BTreeMap<LaneKey, QueuedLoad> =
            self.queue.lanes().map(|(key, lane)| (key, lane.load())).collect();
        let mut tallies = vec![BTreeMap::new(); self.groups.indexes().len()];
        for (key, lane) in self.queue.lanes() {
            let Some(place) = self.lane_position(key) else { return false };
            *tallies[place.group.index()].entry((key.class, place.pool_set)).or_insert(0) +=
                lane.load().requests;
        }
        let fallbacks = self.jobs.waiting().filter(|(_, job)| job.spec.has_fallback).count() as u64;
        found == lanes
            && fallbacks == self.queue.waiting_with_fallback()
            && total == self.queue.total()
            && self.groups.iter().zip(tallies).all(|(group, tally)| group.waiting_by_pool_set() == tally)
    }

    fn heads_are_ranked(&self) -> bool {
        self.queue.lanes().all(|(key, lane)| {
            LanePart::ALL.into_iter().all(|part| {
                let (Some(place), position) = (self.lane_position(key), lane.head_positions[part as usize])
                else {
                    return false;
                };
                let group = &self.groups[place.group];
                let heads = HeadSet { class: place.class, pool_set: place.pool_set, part };
                let found = position.and_then(|position| group.head_at(heads, key.tenant, position));
                let quota_state = self.quota_state(place.group, key.tenant);
                if quota_state == QuotaState::Parked {
                    return position.is_none();
                }
                let head = lane.head(part).and_then(|id| self.jobs.get(&id));
                let paid = part == LanePart::Requeued;
                let counter = if paid { 0 } else { group.counter(place.class, key.tenant) };
                let pool_set = group.shape.pool_set(place.pool_set);
                if head.is_some_and(|job| {
                    position.map(|position| position.preferred_only)
                        != Some(self.is_bound_to_preferred(job, pool_set))
                }) {
                    return false;
                }
                found.map(|entry| (entry.value.job, entry.key.quota_state, entry.key.counter, entry.size))
                    == head.map(|job| (job.spec.id, quota_state, counter, job.size()))
            })
        })
    }

    /// Whether each tenant's counter moves all of its fresh heads, and no others.
    fn heads_follow_counters(&self) -> bool {
        let mut heads: BTreeMap<(LaneAccounts, TenantId), usize> = BTreeMap::new();
        for (key, lane) in self.queue.lanes() {
            if let Some(account) = self.lane_accounts(key) {
                let has_position = usize::from(lane.head_positions[LanePart::New as usize].is_some());
                *heads.entry((account, key.tenant)).or_default() += has_position;
            }
        }
        heads.into_iter().all(|((account, tenant), heads)| {
            self.groups[account.group].indexed_heads(account.class, tenant) == heads
        })
    }

    fn deadlines_agree(&self) -> bool {
        let watched =
            self.jobs.waiting().all(|(id, job)| self.timers.deadlines.contains(job.spec.deadline, *id));
        watched && self.timers.deadlines.len() == self.jobs.waiting().count()
    }

    fn readings_agree(&self) -> bool {
        let runs = self.jobs.iter().filter_map(|(id, job)| Some((*id, job.attempt()?)));
        let is_awaited = |run: &RunningAttempt| {
            !run.booking.due
                || !(run.booking.first_token_overdue || run.booking.streams || run.booking.started)
        };
        let awaited = runs.filter(|(_, run)| is_awaited(run));
        let awaited: BTreeSet<_> = awaited.filter_map(|(id, run)| Some((run.prefill_due_at?, id))).collect();
        let prefilling = |job: &Job| job.attempt().is_some_and(|run| is_awaited(&run));
        awaited.iter().copied().eq(self.timers.prefills.iter())
            && self.jobs.values().filter(|job| prefilling(job)).count() == awaited.len()
    }

    fn credit_is_idle(&self) -> bool {
        let heads = self.queue.lanes().flat_map(|(key, lane)| {
            LanePart::ALL.into_iter().filter_map(move |part| Some((key, lane.head(part)?)))
        });
        let mut waiting = heads.filter_map(|(key, id)| Some((self.lane_position(key)?, self.jobs.get(&id)?)));
        waiting.any(|(place, job)| {
            let group = &self.groups[place.group];
            let pool_set = group.shape.pool_set(place.pool_set);
            let last = group.last_tier(place.class, place.pool_set);
            let avoided = self.avoided_replicas(job.spec.id, &pool_set.pools);
            let cached = self.affinity.prefixes.matches(&job.prefix);
            let required = ReplicaRequirements {
                session: self.session(job),
                ..job.requirements(&cached, group.is_background_arrival(place.class), &self.policy)
            };
            let find = |pools: &[PoolId]| self.best_of_all(pools, &required, &avoided);
            let is_new = job.part() == Some(LanePart::New);
            self.allows(place.group, job.spec.tenant, job.spec.sequences)
                && !(is_new && self.is_due_elsewhere(place.group, place.class))
                && self.choose_among_tiers(job, pool_set, last, &find).is_ok()
        })
    }

    /// What the indexes should find, by looking at every replica.
    fn best_of_all(
        &self,
        pools: &[PoolId],
        required: &ReplicaRequirements<'_>,
        avoided: &[ReplicaId],
    ) -> Option<ReplicaMatch> {
        let within = |id: &ReplicaId| self.fleet.pool_of(*id).is_some_and(|pool| pools.contains(&pool));
        let all = self.fleet.ledgers().map(|(id, _)| id).filter(within);
        let fitting =
            all.filter(|id| !avoided.contains(id) && self.fleet.fits(*id, required, false, self.now));
        let costs = fitting.filter_map(|id| Some((self.fleet.cost(id, required)?, id)));
        let (_, replica) = costs.min()?;
        let wait_for = self.fleet.worth_waiting_for(replica, pools, required);
        Some(ReplicaMatch { replica, ttft: self.fleet.ttft(replica, required), wait_for })
    }

    fn quotas_agree(&self) -> bool {
        let mut held = vec![BTreeMap::new(); self.groups.indexes().len()];
        for job in self.jobs.values() {
            if let (Some(run), Some(group)) = (job.attempt(), self.placement.group_of_model(job.spec.model)) {
                *held[group.index()].entry(job.spec.tenant).or_insert(0) += u64::from(run.booking.seqs);
            }
        }
        self.groups.iter().zip(&held).all(|(group, held)| group.quotas.is_balanced(held))
            && self.capacity_agrees()
    }

    fn capacity_agrees(&self) -> bool {
        let mut sums: BTreeMap<PoolId, u64> = BTreeMap::new();
        for view in self.fleet.snapshots(self.now).filter(|view| self.fleet.is_up(view.replica)) {
            if let Some(pool) = self.fleet.pool_of(view.replica) {
                *sums.entry(pool).or_default() += u64::from(view.limit);
            }
        }
        let sum = |pool| sums.get(&pool).copied().unwrap_or(0);
        self.policy.pools.iter().all(|(pool, ..)| self.fleet.capacity(&[pool]) == sum(pool))
    }

    fn holds_are_justified(&self) -> bool {
        let holds: Vec<_> = self.groups.iter().flat_map(|group| &group.held_replicas).collect();
        let pools: BTreeSet<_> = holds.iter().map(|hold| hold.pool).collect();
        let jobs: BTreeSet<_> = holds.iter().map(|hold| hold.job).collect();
        let single = pools.len() == holds.len() && jobs.len() == holds.len();
        single
            && holds.iter().all(|hold| {
                self.jobs.get(&hold.job).is_some_and(|job| {
                    let fits = self.fleet.fits(
                        hold.replica,
                        &job.requirements(&[], false, &self.policy),
                        true,
                        self.now,
                    );
                    job.part().is_some() && self.fleet.is_up(hold.replica) && !fits
                })
            })
    }
}
