//! Checks of the edge: every action of the scheduler fits what the edge knows.

use std::time::Duration;

use crate::model::event::{Action, DispatchReason, EngineFault, JobAction, RejectReason, ReplicaAction};
use crate::model::ids::{ClassId, JobId, PoolId, ReplicaId};
use crate::model::job::JobSpec;
use crate::model::overrides::OverrideTarget;
use crate::model::reason::PreemptReason;
use crate::model::snapshot::ReplicaStatus;
use crate::replica::health::sleep::SleepResult;
use crate::replica::scores::WhyNot;
use crate::scheduler::tests::edge::Edge;

impl Edge {
    pub(super) fn dispatched(&mut self, job: JobId, replica: ReplicaId, why: &DispatchReason) {
        let spec = self.specs[&job];
        let pool = self.policy.replicas.get(replica).expect("a replica of the policy").pool;
        let model = self.policy.models.get(spec.model).expect("a model of the policy");
        assert!(model.pools.contains(&pool));
        self.check_rules(&spec, why.class, pool);
        assert!(!self.out_of_service.contains(&replica));
        assert!(!self.policy.draining.contains(&replica));
        assert!(!self.awaits(replica), "it sleeps");
        for target in
            [OverrideTarget::Pool(pool), OverrideTarget::Replica(replica), OverrideTarget::Pause(spec.tenant)]
        {
            assert!(self.barred.get(&target).is_none_or(|until| *until <= self.now), "{target:?}");
        }
        let after = why.running + spec.sequences.max(1);
        let room = after <= why.limit || why.running == 0 || self.may_go_beyond(replica, after, why);
        assert!(room, "beyond its credit: {why:?}");
        assert!(why.candidates >= 1);
        self.check_scores(&spec, replica, why);
        assert!(why.attempt > 1 || self.now <= spec.client_deadline, "its client is gone");
        let asked = why.demoted_from.unwrap_or(why.class);
        assert_eq!(asked, spec.class);
        let rank = |class| self.policy.classes.get(class).map(|row| (row.rank, class));
        let later = self.policies.len() > 1 || rank(asked) < rank(why.class);
        assert!(why.demoted_from.is_none() || later, "{why:?}");
        let seen = self.jobs.get_mut(&job).expect("a job that arrived");
        assert!(seen.ends == 0 && seen.at.is_none());
        assert_eq!(self.unbilled.insert(job, replica), None, "two attempts at once");
        seen.at = Some(replica);
        (seen.outlived, seen.asked) = (false, None);
    }

    /// Whether a job that has waited for half of its objective may start beyond the ITL limit of a
    /// replica, which then runs `seqs` sequences. The configured limit holds for it, too.
    fn may_go_beyond(&self, replica: ReplicaId, seqs: u32, why: &DispatchReason) -> bool {
        let row = self.policy.replicas.get(replica).expect("a replica of the policy");
        let class = self.policy.classes.get(why.class).expect("a class of the policy");
        why.queued >= class.ttft_objective / 2 && row.max_seqs.is_none_or(|most| seqs <= most)
    }

    /// Scores are of other replicas in service that serve the model, the best first.
    fn check_scores(&self, spec: &JobSpec, chosen: ReplicaId, why: &DispatchReason) {
        let model = self.policy.models.get(spec.model).expect("a model of the policy");
        let mut best = None;
        for other in why.scores.others() {
            let row = self.policy.replicas.get(other.replica).expect("a replica of the policy");
            assert!(other.replica != chosen && model.pools.contains(&row.pool), "{why:?}");
            assert!(!self.out_of_service.contains(&other.replica) && !self.awaits(other.replica), "{why:?}");
            assert!(best < Some((other.score, other.replica)), "{why:?}");
            best = Some((other.score, other.replica));
            let is_higher = other.score > why.scores.chosen;
            assert!(!is_higher || !matches!(other.why_not, WhyNot::Pool | WhyNot::Equal), "{why:?}");
        }
    }

    /// The slots of each replica add up to the places that there are.
    pub(super) fn check_slots(&self) {
        for row in self.scheduler.snapshot(self.now).replicas {
            let slots = row.slots;
            let [above, withheld] =
                [slots.above_limit, slots.withheld].map(|part| part.map_or(0, |held| held.slots));
            let places = slots.running + slots.free + above + withheld + slots.out_of_service;
            let configured = self.policy.replicas.get(row.replica).and_then(|replica| {
                Some(replica.max_seqs? + self.policy.pools.get(replica.pool)?.engine_buffer)
            });
            assert!(configured.is_none_or(|configured| places == configured.max(row.running)), "{row:?}");
            assert!(slots.running == row.running && places > 0, "{row:?}");
            if matches!(row.state, ReplicaStatus::Serving | ReplicaStatus::SlowStart) {
                assert_eq!(
                    (slots.out_of_service, places - above),
                    (0, row.limit.clamp(row.running, places)),
                    "{row:?}"
                );
                assert!(row.bottleneck.is_none() || slots.free == 0, "{row:?}");
            } else {
                assert_eq!((slots.running + slots.out_of_service, row.bottleneck), (places, None), "{row:?}");
            }
        }
    }

    /// Each attempt has one bill, before any other action about its end.
    pub(super) fn account(&mut self, action: &Action) {
        match *action {
            Action::Job(JobAction::Billed { job, bill }) => {
                assert_eq!(self.unbilled.remove(&job), Some(bill.replica), "billed twice, or for nothing");
                self.bills.push((self.specs[&job].tenant, bill));
            }
            Action::Job(
                JobAction::Reject { job, .. }
                | JobAction::Requeue { job, .. }
                | JobAction::Preempt { job, .. },
            ) => {
                assert!(!self.unbilled.contains_key(&job), "its attempt is billed first");
            }
            _ => {}
        }
    }

    pub(super) fn obey(&mut self, action: &Action) {
        match *action {
            Action::Job(action) => self.obey_job(action),
            Action::Replica(action) => self.obey_replica(action),
        }
    }

    pub(super) fn obey_job(&mut self, action: JobAction) {
        match action {
            JobAction::Dispatch(grant) => self.dispatched(grant.job, grant.replica, &grant.why),
            JobAction::Reject { job, why } => {
                let vain = why.reason == RejectReason::NoReplica;
                assert!(!vain || self.specs[&job].has_fallback, "no other model may serve it");
                let seen = self.jobs.get_mut(&job).expect("a job that arrived");
                seen.ends += 1;
                assert_eq!(seen.ends, 1);
                seen.at = None;
            }
            JobAction::Requeue { job, replica, why } => {
                let seen = self.jobs.get_mut(&job).expect("a job that arrived");
                assert_eq!(seen.at.take(), Some(replica));
                let made_way = seen.asked.is_some() && why == EngineFault::Draining && seen.started;
                if (why.counts_as_attempt() || seen.started) && !seen.outlived && !made_way {
                    seen.tried.insert(replica);
                }
                seen.started = false;
            }
            JobAction::Preempt { job, replica, why } => {
                let seen = self.jobs.get_mut(&job).expect("a job that arrived");
                assert_eq!(seen.at.take(), Some(replica));
                if why == PreemptReason::Stalled && !seen.outlived {
                    seen.tried.insert(replica);
                }
            }
            JobAction::Migrate { job, replica, why } => {
                let seen = self.jobs.get_mut(&job).expect("a job that arrived");
                let may = self.specs[&job].resumable || why == PreemptReason::Stalled;
                assert!(may && seen.started && seen.at == Some(replica));
                assert_eq!(seen.asked.replace(why), None, "asked once for each try");
                assert!(self.scheduler.snapshot(self.now).replicas.len() > 1, "there is nobody else");
            }
            JobAction::Billed { .. } => {}
        }
    }

    pub(super) fn obey_replica(&mut self, action: ReplicaAction) {
        match action {
            ReplicaAction::Eject { replica, .. } => {
                assert!(self.out_of_service.insert(replica));
            }
            ReplicaAction::Readmit { replica, .. } => {
                assert!(self.out_of_service.remove(&replica));
                self.probes.remove(&replica);
                for seen in self.jobs.values_mut() {
                    seen.tried.remove(&replica);
                    seen.outlived |= seen.at == Some(replica);
                }
            }
            ReplicaAction::Scrape { .. }
            | ReplicaAction::PoolWanted { .. }
            | ReplicaAction::PoolStarted { .. } => {}
            ReplicaAction::WithholdEjection { replica, .. } => {
                assert!(!self.out_of_service.contains(&replica));
            }
            ReplicaAction::PoolDown { why, .. } => {
                assert!(why.ejects() || why == EngineFault::Malformed);
            }
            ReplicaAction::Sleep { replica } => self.ordered(replica, SleepResult::Asleep),
            ReplicaAction::Wake { replica, .. } => self.ordered(replica, SleepResult::Awake),
            ReplicaAction::OverrideExpired { target } => {
                let overrides = self.scheduler.snapshot(self.now).overrides;
                assert!(overrides.iter().all(|row| row.change.target() != target));
            }
            ReplicaAction::Probe { replica } => {
                assert!(self.out_of_service.contains(&replica));
                let before = self.probes.insert(replica, self.now);
                let lost = |at| self.now.since(at) >= Duration::from_secs(10);
                assert!(before.is_none_or(lost), "one probe at a time");
            }
        }
    }

    pub(super) fn ordered(&mut self, replica: ReplicaId, order: SleepResult) {
        assert!(!self.out_of_service.contains(&replica));
        assert!(order == SleepResult::Awake || self.jobs.values().all(|seen| seen.at != Some(replica)));
        assert!(!self.awaits(replica), "one order at a time");
        self.orders.insert(replica, (self.now, order));
    }

    /// Whether an order waits for its answer, and not for too long.
    pub(super) fn awaits(&self, replica: ReplicaId) -> bool {
        self.orders.get(&replica).is_some_and(|(at, _)| self.now.since(*at) < Duration::from_secs(12))
    }

    /// The pool is one that class and tenant may both use, by the policy in
    /// force.
    pub(super) fn check_rules(&self, spec: &JobSpec, class: ClassId, pool: PoolId) {
        let supply = self.policy.pools.get(pool).expect("a pool of the policy").traits;
        let class = self.policy.classes.get(class).expect("a class of the policy");
        let tenant = self.policy.tenants.get(spec.tenant).expect("a tenant of the policy");
        assert!(class.placement.allows(pool, &supply), "{:?} forbids {supply:?}", class.placement);
        assert!(tenant.placement.allows(pool, &supply), "{:?} forbids {supply:?}", tenant.placement);
    }
}
