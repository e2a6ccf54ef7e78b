//! Test edge: carries out the actions of the scheduler and checks each of them.

mod checks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::autoscale::demand_report::PeerDemand;
use crate::billing::bill::{AttemptBill, IdleTime};
use crate::model::event::{Action, AttemptOutcome, EngineFault, Event};
use crate::model::ids::{ClassId, JobId, ModelId, ReplicaId, TenantId};
use crate::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::model::overrides::{Override, OverrideChange, OverrideTarget};
use crate::model::policy::Policy;
use crate::model::reason::PreemptReason;
use crate::model::time::Tick;
use crate::replica::health::sleep::SleepResult;
use crate::scheduler::tests::gateways::elsewhere;
use crate::scheduler::tests::worlds::{Op, Rules, build, models_of, prefix};
use crate::scheduler::tests::{ObservedScheduler, used};

/// What the edge knows of a job.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) at: Option<ReplicaId>,
    pub(super) started: bool,
    /// It was asked to hand over its stream, in this try.
    pub(super) asked: Option<PreemptReason>,
    pub(super) tried: BTreeSet<ReplicaId>,
    /// Its replica came back while it ran there.
    pub(super) outlived: bool,
    pub(super) ends: u32,
}

/// An edge that believes nothing.
pub(super) struct Edge {
    pub(super) scheduler: ObservedScheduler,
    pub(super) policies: Vec<Arc<Policy>>,
    pub(super) policy: Arc<Policy>,
    pub(super) now: Tick,
    pub(super) specs: BTreeMap<JobId, JobSpec>,
    pub(super) jobs: BTreeMap<JobId, Seen>,
    pub(super) out_of_service: BTreeSet<ReplicaId>,
    pub(super) probes: BTreeMap<ReplicaId, Tick>,
    /// Orders to sleep or to wake, since when they wait for their answer.
    pub(super) orders: BTreeMap<ReplicaId, (Tick, SleepResult)>,
    /// What operators have closed or paused, and until when.
    pub(super) barred: BTreeMap<OverrideTarget, Tick>,
    /// Attempts that have begun and not been billed.
    pub(super) unbilled: BTreeMap<JobId, ReplicaId>,
    pub(super) bills: Vec<(TenantId, AttemptBill)>,
    pub(super) idle: Vec<IdleTime>,
    pub(super) log: Vec<(Tick, Action)>,
}

impl Edge {
    pub(super) fn new(policies: &[Rules]) -> Self {
        let policies: Vec<_> = policies.iter().map(build).collect();
        Self {
            scheduler: ObservedScheduler::new(Arc::clone(&policies[0])),
            policy: Arc::clone(&policies[0]),
            policies,
            now: Tick::ZERO,
            specs: BTreeMap::new(),
            jobs: BTreeMap::new(),
            out_of_service: BTreeSet::new(),
            probes: BTreeMap::new(),
            orders: BTreeMap::new(),
            barred: BTreeMap::new(),
            unbilled: BTreeMap::new(),
            bills: Vec::new(),
            idle: Vec::new(),
            log: Vec::new(),
        }
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.scheduler.handle(self.now, event, &mut out);
        for action in out {
            self.account(&action);
            self.obey(&action);
            self.log.push((self.now, action));
        }
        assert_eq!(self.scheduler.audit(), [], "after {:?}", self.log.last());
        assert_eq!(self.scheduler.wakes().find(|wake| wake.at <= self.now), None, "something is overdue");
        let waiting = self.jobs.values().filter(|seen| seen.ends == 0 && seen.at.is_none()).count();
        assert_eq!(self.scheduler.waiting().requests, waiting as u64);
        let queue_statuses = self.scheduler.queue_statuses(self.now);
        assert_eq!(queue_statuses.iter().map(|row| row.waiting).sum::<u64>(), waiting as u64);
        assert!(queue_statuses.iter().all(|row| row.waiting > 0 || row.obstacle.is_none()));
        if let Some((id, seen)) = self.jobs.iter().find(|(_, seen)| seen.ends == 0) {
            let explained = self.scheduler.explain(*id, self.now);
            assert_eq!(explained.is_some(), seen.at.is_none());
            let short = self.scheduler.wait_summary(*id, self.now);
            let told = explained.map(|view| (view.obstacle, view.queued, view.left, view.starts_in));
            assert_eq!(short.map(|view| (view.obstacle, view.queued, view.left, view.starts_in)), told);
        }
        let billed = |job: &JobId| self.jobs[job].at.is_some() && self.jobs[job].ends == 0;
        assert!(self.unbilled.keys().all(billed), "an attempt ended and has no bill");
        let live = self.jobs.values().filter(|seen| seen.ends == 0).count();
        assert_eq!(self.scheduler.unfinished() as usize, live);
    }

    /// Asks for how long replicas had nothing to do.
    pub(super) fn ask_idle(&mut self) {
        self.idle.extend(self.scheduler.take_idle(self.now));
    }

    fn running(&self, which: usize) -> Option<JobId> {
        let jobs: Vec<_> =
            self.jobs.iter().filter(|(_, seen)| seen.at.is_some()).map(|(id, _)| *id).collect();
        (!jobs.is_empty()).then(|| jobs[which % jobs.len()])
    }

    fn end(&mut self, job: JobId) {
        let seen = self.jobs.get_mut(&job).expect("a job that arrived");
        (seen.at, seen.ends) = (None, seen.ends + 1);
    }

    /// Lets time pass, with every timer on the way.
    fn pass(&mut self, millis: u64) {
        let goal = self.now + Duration::from_millis(millis);
        while let Some(next) = self.scheduler.next_deadline().filter(|at| *at <= goal) {
            self.now = next;
            self.event(Event::Timer);
        }
        self.now = goal;
    }

    fn arrive(&mut self, spec: JobSpec, prefix: PromptPrefix) {
        self.specs.insert(spec.id, spec);
        self.jobs.insert(spec.id, Seen::default());
        self.event(Event::Arrived(spec, prefix));
    }

    fn fail(&mut self, which: usize, fault: EngineFault) {
        let Some(job) = self.running(which) else { return };
        if self.jobs[&job].started {
            self.end(job);
        }
        self.event(Event::Finished {
            job,
            outcome: AttemptOutcome::Failed { fault, usage: JobUsage::Unknown },
        });
    }

    /// A stream breaks off after its first token and may go on elsewhere.
    fn interrupt(&mut self, which: usize, fault: EngineFault, output: u64) {
        if let Some(job) = self.running(which).filter(|job| self.jobs[job].started) {
            let fault = self.jobs[&job].asked.map_or(fault, PreemptReason::fault);
            let outcome = AttemptOutcome::Interrupted { fault, usage: JobUsage::Unknown, output };
            self.event(Event::Finished { job, outcome });
        }
    }

    fn leave(&mut self, which: usize) {
        let live: Vec<_> = self.jobs.iter().filter(|(_, seen)| seen.ends == 0).map(|(id, _)| *id).collect();
        if !live.is_empty() {
            let job = live[which % live.len()];
            self.end(job);
            self.event(Event::Abandoned { job, usage: JobUsage::Unknown });
        }
    }

    fn reload(&mut self, which: usize) {
        self.policy = Arc::clone(&self.policies[which % self.policies.len()]);
        let present = |id: &ReplicaId| {
            self.policy.replicas.get(*id).is_some_and(|row| self.policy.pools.get(row.pool).is_some())
        };
        self.out_of_service.retain(present);
        self.probes.retain(|id, _| present(id));
        self.orders.retain(|id, _| present(id));
        self.event(Event::PolicyChanged(Arc::clone(&self.policy)));
    }

    fn set(&mut self, measure: OverrideChange, millis: Option<u64>) {
        let until = millis.map_or(Tick::NEVER, |millis| self.now + Duration::from_millis(millis));
        if until > self.now && !matches!(measure.target(), OverrideTarget::Boost(_)) {
            self.barred.insert(measure.target(), until);
        }
        self.event(Event::Overridden(Override { change: measure, until, reason: "any".into() }));
    }

    fn stray(&mut self, job: JobId) {
        self.event(Event::FirstToken { job });
        self.event(Event::Finished { job, outcome: AttemptOutcome::Done(JobUsage::Unknown) });
        self.event(Event::Abandoned { job, usage: JobUsage::Unknown });
    }

    fn adapters(&mut self, replica: ReplicaId, slots: Option<u32>, running: u8) {
        self.event(Event::AdaptersReported { replica, slots, running: models_of(running) });
    }

    fn answer(&mut self, found: bool) {
        let Some((&replica, _)) = self.probes.first_key_value() else { return };
        self.probes.remove(&replica);
        let event = if found {
            Event::ProbeSucceeded { replica }
        } else {
            Event::ReplicaLost { replica, answers: true }
        };
        self.event(event);
    }

    fn rest(&mut self, sleep_result: Option<SleepResult>) {
        let Some((&replica, &(_, order))) = self.orders.first_key_value() else { return };
        self.orders.remove(&replica);
        self.event(Event::SleepAnswered { replica, result: sleep_result.unwrap_or(order) });
    }

    fn start(&mut self, which: usize) {
        if let Some(job) = self.running(which).filter(|job| self.specs[job].streams) {
            self.jobs.get_mut(&job).expect("a job").started = true;
            self.event(Event::FirstToken { job });
        }
    }

    fn lose(&mut self, replica: ReplicaId) {
        self.probes.remove(&replica);
        self.event(Event::ReplicaLost { replica, answers: true });
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Arrive { tenant, class, model, prompt, output, sequences, patience, streams, family } => {
                let id = JobId::new(1000 + self.jobs.len() as u64);
                let spec = JobSpec {
                    id,
                    tenant: TenantId::new(tenant),
                    class: ClassId::new(class),
                    model: ModelId::new(model),
                    prompt_tokens: prompt,
                    max_output_tokens: output,
                    sequences,
                    bytes: 4 * prompt,
                    streams,
                    deadline: self.now + Duration::from_millis(patience),
                    client_deadline: match patience % 3 {
                        0 => Tick::NEVER,
                        more => self.now + Duration::from_millis(patience + 300 * more),
                    },
                    has_fallback: prompt % 2 == 0,
                    resumable: prompt % 3 > 0,
                    context: prompt + output,
                    session: (output % 2 == 0).then_some(prompt % 7),
                    ..JobSpec::example(0)
                };
                self.arrive(spec, family.map(|family| prefix(&spec, family)).unwrap_or_default());
            }
            Op::FirstToken(which) => self.start(which),
            Op::Done(which, usage) => {
                if let Some(job) = self.running(which) {
                    self.end(job);
                    self.event(Event::Finished { job, outcome: AttemptOutcome::Done(usage) });
                }
            }
            Op::Fail(which, fault) => self.fail(which, fault),
            Op::Interrupt(which, fault, output) => self.interrupt(which, fault, output),
            Op::Left(which) => self.leave(which),
            Op::Pass(millis) => self.pass(millis),
            Op::Report(replica, report) => {
                self.event(Event::ReplicaReported { replica: ReplicaId::new(replica), report });
            }
            Op::Adapters(replica, slots, running) => self.adapters(ReplicaId::new(replica), slots, running),
            Op::ItlSampled(replica, sample) => {
                self.event(Event::ItlSampled { replica: ReplicaId::new(replica), sample });
            }
            Op::Answer(found) => self.answer(found),
            Op::Rest(sleep_result) => self.rest(sleep_result),
            Op::Lost(replica) => self.lose(ReplicaId::new(replica)),
            Op::Stray(number) => self.stray(JobId::new(number)),
            Op::Reload(which) => self.reload(which),
            Op::Override(measure, millis) => self.set(measure, millis),
            Op::Restore(target) => {
                self.barred.remove(&target);
                self.event(Event::OverrideEnded(target));
            }
            Op::Elsewhere(ref load) => self.event(elsewhere(load.clone())),
            Op::Drain => self.event(Event::Draining),
        }
        self.check_needs();
        self.check_slots();
    }

    /// No pool may go to zero that has work, and asking changes nothing.
    fn check_needs(&mut self) {
        let needs = self.scheduler.replica_demand(self.now, &PeerDemand::default());
        assert_eq!(needs.len(), self.policy.pools.iter().count());
        for need in &needs {
            assert!(!need.is_busy() || need.desired >= Some(1), "{need:?}");
        }
        let queued = needs.iter().any(|need| need.queued > 0);
        // Those of paused tenants wait for no replica.
        let paused = |tenant| self.scheduler.overrides.paused_until(tenant).is_some();
        let waits =
            self.scheduler.queue.lanes().any(|(key, lane)| lane.load().requests > 0 && !paused(key.tenant));
        assert_eq!(queued, waits, "{needs:?}");
        if let Some(growth) = self.scheduler.observer.take_growth() {
            self.event(growth);
        }
    }

    /// Everything answers until nothing is left.
    pub(super) fn run_out(&mut self) {
        for _ in 0..2_000 {
            if self.scheduler.unfinished() == 0 {
                break;
            }
            while !self.probes.is_empty() {
                self.answer(true);
            }
            while !self.orders.is_empty() {
                self.rest(None);
            }
            if let Some(job) = self.running(0) {
                self.end(job);
                self.event(Event::Finished { job, outcome: AttemptOutcome::Done(used(5, 5)) });
            } else {
                self.pass(100);
            }
        }
        assert!(self.jobs.values().all(|seen| seen.ends == 1), "each job ends exactly once");
        let picture = self.scheduler.snapshot(self.now);
        assert_eq!((picture.jobs, picture.queues.len(), picture.broken_invariants), (0, 0, 0));
        for view in picture.replicas {
            assert_eq!((view.running, view.prefill_tokens, view.kv_tokens), (0, 0, 0));
        }
    }
}
