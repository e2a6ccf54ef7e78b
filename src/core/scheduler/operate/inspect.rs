//! Inspection: the whole state at one instant, and why one job waits.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::ids::{ClassId, JobId, ModelId, PoolId, TenantId};
use crate::model::snapshot::{
    Obstacle, QueueSnapshot, QueueStatus, ReplicaOption, Snapshot, WaitExplanation, WaitSummary,
};
use crate::model::time::Tick;
use crate::queue::Lane;
use crate::queue::lane_key::{LaneKey, LanePart};
use crate::replica::fleet::ReplicaRequirements;

use crate::queue::lane_key::LanePosition;
use crate::scheduler::Scheduler;
use crate::scheduler::admit::pool_start::AwaitedPoolStart;
use crate::scheduler::dispatch::wait::WaitReason;
use crate::scheduler::job::Job;

/// Replicas that are listed at most.
const MAX_CHOICES: usize = 16;

impl Scheduler {
    /// Everything that waits and runs, as of `now`.
    pub fn snapshot(&self, now: Tick) -> Snapshot {
        let now = self.now.max(now);
        let queues = self.queue.lanes_unsorted().map(|(key, lane)| {
            let load = lane.load();
            let row = QueueSnapshot {
                tenant: key.tenant,
                class: key.class,
                model: key.model,
                waiting: load.requests,
                bytes: u64::try_from(load.bytes).unwrap_or(u64::MAX),
                tokens: u64::try_from(load.tokens).unwrap_or(u64::MAX),
                oldest: self.longest_wait(lane, now),
            };
            (*key, row)
        });
        let mut queues: Vec<_> = queues.collect();
        queues.sort_unstable_by_key(|(key, _)| *key);
        let queues = queues.into_iter().map(|(_, row)| row).collect();
        let replicas: Vec<_> = self.fleet.snapshots(now).collect();
        Snapshot {
            queues,
            pools: self.pool_snapshots(&replicas, now),
            replicas,
            overrides: self.overrides.active(now).collect(),
            jobs: self.jobs.len() as u64,
            broken_invariants: self.invariants.broken(),
        }
    }

    /// What a waiting job waits for; `None` for one that does not wait. Looks
    /// at every replica.
    pub fn explain(&self, id: JobId, now: Tick) -> Option<WaitExplanation> {
        let now = self.now.max(now);
        let job = self.jobs.get(&id)?;
        job.part()?;
        let position = self.lane_position(LaneKey::of(&job.spec))?;
        let here = &self.groups[position.group];
        let ahead = self.position_in_lane(job);
        let pools = &here.shape.pool_set(position.pool_set).pools;
        let background = here.is_background(position.class);
        let mut replicas = self.replica_options(job, pools, background, now);
        replicas.sort_by_key(|choice| (Reverse(choice.fits), choice.expected, choice.replica));
        let obstacle = self.obstacle(job, position, || replicas.iter().any(|choice| choice.fits));
        let reason = match obstacle {
            Obstacle::Rule | Obstacle::Sooner => self.reason_at_free(job, position),
            _ => None,
        };
        let pool_set = here.shape.pool_set(position.pool_set);
        let wait = reason.map(|reason| self.head_wait(job, pool_set, background, reason));
        let replicas_in_all = replicas.len();
        replicas.truncate(MAX_CHOICES);
        Some(WaitExplanation {
            queued: job.queued(now),
            left: job.spec.deadline.since(now),
            class: job.spec.class,
            demoted_from: job.demoted_from,
            ahead,
            waiting: here.waiting(),
            obstacle,
            waits_for: wait.and_then(|wait| wait.reason.replica()),
            decides_again_in: wait.and_then(|wait| wait.until).map(|until| until.since(now)),
            starts_in: self.starts_in(job, obstacle, ahead, now),
            replicas_in_all,
            replicas,
        })
    }

    /// How long the oldest job of a lane has waited.
    fn longest_wait(&self, lane: &Lane, now: Tick) -> Duration {
        let returned = lane.head(LanePart::Requeued).and_then(|id| self.jobs.get(&id));
        let ages = [lane.oldest().map(|arrived| now.since(arrived)), returned.map(|job| job.queued(now))];
        ages.into_iter().flatten().max().unwrap_or_default()
    }

    /// What every tenant, class and model with jobs has waiting and running. Looks at every lane and
    /// at every job that runs.
    pub fn queue_statuses(&self, now: Tick) -> Vec<QueueStatus> {
        let now = self.now.max(now);
        let mut rows: BTreeMap<(TenantId, ClassId, ModelId), QueueStatus> = BTreeMap::new();
        let row_of = |key: &LaneKey| (key.tenant, key.class, key.model);
        for (key, lane) in self.queue.lanes_unsorted() {
            let row = rows.entry(row_of(key)).or_insert_with(|| self.queue_status(*key));
            row.waiting += lane.load().requests;
            row.oldest = row.oldest.max(self.longest_wait(lane, now));
        }
        for (job, run) in self.jobs.attempts() {
            let key = LaneKey::of(&job.spec);
            let row = rows.entry(row_of(&key)).or_insert_with(|| self.queue_status(key));
            row.running += u64::from(run.booking.seqs);
        }
        rows.into_values().collect()
    }

    /// The status of a lane's tenant, class and model, with no job counted yet. When jobs of one
    /// model wait in several lanes, the longest lane speaks for them.
    fn queue_status(&self, of: LaneKey) -> QueueStatus {
        let lanes = self.queue.lanes_of(of.class, of.tenant).filter(|(key, _)| key.model == of.model);
        let longest = lanes.max_by_key(|(_, lane)| lane.load().requests);
        let key = longest.map_or(of, |(key, _)| key);
        let waiting = longest.map_or(0, |(_, lane)| lane.load().requests);
        let head = longest.and_then(|(_, lane)| LanePart::ALL.into_iter().find_map(|part| lane.head(part)));
        let head = head.and_then(|id| self.jobs.get(&id));
        let position = self.lane_position(key);
        let start = self.awaited_pool_start(key).left();
        let group = self.placement.group_of_model(key.model);
        QueueStatus {
            tenant: key.tenant,
            class: key.class,
            model: key.model,
            group,
            waiting: 0,
            running: 0,
            oldest: Duration::ZERO,
            predicted_wait: self.expected_wait(key, waiting).filter(|wait| *wait < Duration::MAX).max(start),
            quota: group.and_then(|group| self.groups[group].quotas.usage(key.tenant)),
            obstacle: head
                .zip(position)
                .map(|(job, position)| self.obstacle(job, position, || self.has_room(job, position))),
        }
    }

    /// What a waiting job waits for, in short; `None` for one that does not wait. Searches for a
    /// replica as a dispatch does.
    pub fn wait_summary(&self, id: JobId, now: Tick) -> Option<WaitSummary> {
        let now = self.now.max(now);
        let job = self.jobs.get(&id).filter(|job| job.part().is_some())?;
        let position = self.lane_position(LaneKey::of(&job.spec))?;
        let obstacle = self.obstacle(job, position, || self.has_room(job, position));
        let ahead = self.position_in_lane(job);
        Some(WaitSummary {
            queued: job.queued(now),
            left: job.spec.deadline.since(now),
            ahead,
            obstacle,
            starts_in: self.starts_in(job, obstacle, ahead, now),
        })
    }

    /// Jobs before a waiting job in its part of its lane.
    fn position_in_lane(&self, job: &Job) -> Option<u64> {
        let part = job.part()?;
        self.queue.lane(LaneKey::of(&job.spec))?.position_of(part, job.position_in(part), job.spec.id)
    }

    /// Predicted time until a waiting job starts: by the end of its tenant's pause, the start of
    /// its pools, or the rate at which its tenant's jobs of the class have started.
    fn starts_in(&self, job: &Job, obstacle: Obstacle, ahead: Option<u64>, now: Tick) -> Option<Duration> {
        let key = LaneKey::of(&job.spec);
        match obstacle {
            Obstacle::Paused => {
                let until = self.overrides.paused_until(key.tenant)?;
                (until != Tick::NEVER).then(|| until.since(now))
            }
            Obstacle::Starting => self.awaited_pool_start(key).left(),
            Obstacle::NoReplica => None,
            _ => {
                let wait = self.expected_wait(key, ahead?.saturating_add(1))?;
                let lane = self.queue.lane(key).filter(|_| job.place.late);
                let part = lane.map_or(1.0, |lane| lane.late_part(self.late_share_of(job)));
                Duration::try_from_secs_f64(wait.as_secs_f64() / part).ok()
            }
        }
    }

    /// What keeps a job from a replica. `has_room` says whether a replica in service has room for it.
    fn obstacle(&self, job: &Job, position: LanePosition, has_room: impl FnOnce() -> bool) -> Obstacle {
        let key = LaneKey::of(&job.spec);
        let pools = &self.groups[position.group].shape.pool_set(position.pool_set).pools;
        if self.overrides.paused_until(key.tenant).is_some() {
            Obstacle::Paused
        } else if !self.allows(position.group, key.tenant, job.spec.sequences) {
            Obstacle::Quota
        } else if self.awaited_pool_start(key) != AwaitedPoolStart::None {
            Obstacle::Starting
        } else if self.fleet.count_up(pools) == 0 {
            Obstacle::NoReplica
        } else if !has_room() {
            Obstacle::NoRoom
        } else if job.part() == Some(LanePart::New) && self.is_due_elsewhere(position.group, position.class) {
            Obstacle::OtherGateways
        } else {
            self.reason_at_free(job, position).map_or(Obstacle::NotItsTurn, WaitReason::obstacle)
        }
    }

    /// Whether a replica in service has room for the job.
    fn has_room(&self, job: &Job, position: LanePosition) -> bool {
        let here = &self.groups[position.group];
        let pools = &here.shape.pool_set(position.pool_set).pools;
        let avoided = self.avoided_replicas(job.spec.id, pools);
        let cached = self.affinity.prefixes.matches(&job.prefix);
        let required = job.requirements(&cached, here.is_background(position.class), &self.policy);
        self.fleet.find(pools, &required, &|id| avoided.contains(&id)).is_some()
    }

    /// What keeps a job from replicas that have room for it; `None` where only its turn does.
    fn reason_at_free(&self, job: &Job, position: LanePosition) -> Option<WaitReason> {
        let here = &self.groups[position.group];
        let pool_set = here.shape.pool_set(position.pool_set);
        let avoided = self.avoided_replicas(job.spec.id, &pool_set.pools);
        let cached = self.affinity.prefixes.matches(&job.prefix);
        let required = ReplicaRequirements {
            session: self.session(job),
            ..job.requirements(&cached, here.is_background(position.class), &self.policy)
        };
        let find = |pools: &[PoolId]| self.fleet.find(pools, &required, &|id| avoided.contains(&id));
        let last = here.last_tier(position.class, position.pool_set);
        self.choose_among_tiers(job, pool_set, last, &find).err()
    }

    fn replica_options(
        &self,
        job: &Job,
        pools: &[PoolId],
        background: bool,
        now: Tick,
    ) -> Vec<ReplicaOption> {
        let avoided = self.avoided_replicas(job.spec.id, pools);
        let cached = self.affinity.prefixes.matches(&job.prefix);
        let required = job.requirements(&cached, background, &self.policy);
        let views = self.fleet.snapshots(now);
        let ours =
            views.filter(|view| self.fleet.pool_of(view.replica).is_some_and(|pool| pools.contains(&pool)));
        let choice = ours.map(|view| {
            let id = view.replica;
            ReplicaOption {
                replica: id,
                state: view.state,
                running: view.running,
                limit: view.limit,
                fits: !avoided.contains(&id) && self.fleet.fits(id, &required, false, now),
                bottleneck: self.fleet.bottleneck(id, &required, now),
                failed_before: avoided.contains(&id),
                adapter: self.fleet.adapter_fit(id, required.model),
                expected: Duration::from_nanos(self.fleet.ttft(id, &required)),
            }
        });
        choice.collect()
    }
}
