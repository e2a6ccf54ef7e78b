//! Dispatcher: the scheduler behind one lock. The dispatcher passes events and the time to the
//! scheduler, and carries out the scheduler's actions after the lock is released.

pub mod clock;
mod demand;
pub mod event_log;
pub mod shutdown;
pub mod ticket;
mod waiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc, oneshot};

pub use crate::dispatcher::waiters::AttemptBills;

use crate::core::autoscale::observer::DemandObserver;
use crate::core::billing::bill::IdleTime;
use crate::core::limits::lease::LimitReports;
use crate::core::limits::rule::LimitId;
use crate::core::limits::{LimitStatus, LimitsAtEntry};
use crate::core::model::event::{Action, Event, Rejection, ReplicaAction};
use crate::core::model::ids::JobId;
use crate::core::model::job::{JobSpec, JobUsage, PromptPrefix};
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::{OverrideResult, QueueStatus, Snapshot, WaitExplanation, WaitSummary};
use crate::core::model::time::Tick;
use crate::core::placement::PreparedPolicy;
use crate::core::queue::fairness::gateways::load::GatewayLoad;
use crate::core::queue::fairness::service::{HeldSequences, ServiceReport};
use crate::core::scheduler::Scheduler;
use crate::dispatcher::clock::GatewayClock;
use crate::dispatcher::event_log::EventLog;
use crate::dispatcher::shutdown::ShutdownGrace;
use crate::dispatcher::waiters::{Notification, Notifications, WaitEnd, Waiters};

/// Jobs that [`Dispatcher::wait_summaries`] looks at in one hold of the lock.
const JOBS_A_LOOK: usize = 16;

/// The one scheduler of this process, with the waiters of its live jobs.
#[derive(Debug)]
pub struct Dispatcher {
    /// A generation up to which policies are in force or over.
    generation: AtomicU64,
    state: Mutex<DispatcherState>,
    /// Observer of the demand. Its lock comes before that of `state`.
    observer: Mutex<DemandObserver>,
    clock: GatewayClock,
    shutdown: ShutdownGrace,
    next_job: AtomicU64,
    timer_moved_up: Notify,
    /// Whether a caller waits for the next arrival.
    arrival_awaited: AtomicBool,
    arrival: Notify,
    /// Notified when a report of limits cannot wait.
    lease_wanted: Notify,
    replica_actions: mpsc::Sender<ReplicaAction>,
}

#[derive(Debug)]
struct DispatcherState {
    scheduler: Scheduler,
    waiters: Waiters,
    actions: Vec<Action>,
    effects: StepEffects,
    /// When the timer wakes next, which may be before the scheduler's next deadline.
    timer_wakes_at: Option<Tick>,
    event_log: Option<Arc<EventLog>>,
}

/// Effects of a step that are carried out after the lock is released.
#[derive(Debug, Default)]
struct StepEffects {
    notifications: Notifications,
    replica_actions: SmallVec<[ReplicaAction; 2]>,
    wake_timer: bool,
    /// Whether so many demand facts are recorded that they have to be observed.
    demand_due: bool,
    /// Whether other gateways have to be asked for a part of a limit.
    lease_due: bool,
}

impl Dispatcher {
    /// A dispatcher under `policy`. Actions about replicas (eject, probe, readmit) go to
    /// `replica_actions`. An action that finds the channel full is dropped, and the core asks again
    /// when a probe stays unanswered.
    pub fn new(
        policy: Arc<Policy>,
        clock: GatewayClock,
        replica_actions: mpsc::Sender<ReplicaAction>,
    ) -> Arc<Self> {
        let generation = policy.generation;
        let mut scheduler = Scheduler::new(policy);
        scheduler.record_demand();
        Arc::new(Self {
            generation: AtomicU64::new(generation),
            state: Mutex::new(DispatcherState {
                scheduler,
                waiters: Waiters::default(),
                actions: Vec::new(),
                effects: StepEffects::default(),
                timer_wakes_at: None,
                event_log: None,
            }),
            observer: Mutex::default(),
            clock,
            shutdown: ShutdownGrace::default(),
            next_job: AtomicU64::new(1),
            timer_moved_up: Notify::new(),
            arrival_awaited: AtomicBool::new(false),
            arrival: Notify::new(),
            lease_wanted: Notify::new(),
            replica_actions,
        })
    }

    /// Logs the scheduler's events and decisions from now on.
    pub fn log_events(&self, log: &Arc<EventLog>) {
        self.state.lock().event_log = Some(Arc::clone(log));
    }

    /// The clock that times the scheduler's events.
    pub fn clock(&self) -> GatewayClock {
        self.clock
    }

    /// The stage of this gateway's shutdown.
    pub const fn shutdown(&self) -> &ShutdownGrace {
        &self.shutdown
    }

    /// A new id for a job that has not arrived yet.
    pub fn next_job_id(&self) -> JobId {
        JobId::new(self.next_job.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the scheduler would surely refuse a job that arrived now, whatever its tokens.
    /// `others` is the number of jobs of the same tenant that are about to arrive.
    pub fn would_refuse(&self, spec: &JobSpec, others: u64) -> bool {
        let now = self.clock.now();
        self.state.lock().scheduler.would_refuse(spec, others, now)
    }

    /// Makes the next arrival wake [`Self::next_arrival`].
    pub fn expect_arrival(&self) {
        self.arrival_awaited.store(true, Ordering::Relaxed);
    }

    /// Waits for the first arrival after [`Self::expect_arrival`]. Wakes one caller only.
    pub async fn next_arrival(&self) {
        self.arrival.notified().await;
    }

    /// Brings a policy into force, unless this policy or a later one already is. What follows from
    /// the policy alone is computed before the lock is taken, and the old policy is dropped after it.
    pub fn apply_policy(&self, policy: &Arc<Policy>) {
        if policy.generation > self.generation.load(Ordering::Acquire) {
            let prepared = PreparedPolicy::new(Arc::clone(policy));
            drop(self.with_lock(|inner, now| inner.apply_policy(prepared, now)));
            self.generation.fetch_max(policy.generation, Ordering::AcqRel);
        }
    }

    /// Passes an event to the scheduler.
    pub fn event(&self, event: Event) {
        self.with_lock(|inner, now| {
            if let Event::Abandoned { job, .. } = event {
                // The job gets no more notifications. Its bills are kept for its ticket.
                inner.waiters.set_left(job);
            }
            inner.handle(now, event);
        });
    }

    /// Takes the idle time of replicas since the last call, by pool.
    pub fn take_idle(&self) -> Vec<IdleTime> {
        let now = self.clock.now();
        self.state.lock().scheduler.take_idle(now)
    }

    /// Whether a request that arrived now could be queued.
    pub fn can_queue(&self) -> bool {
        self.state.lock().scheduler.can_queue()
    }

    /// Numbers of jobs that wait, and that wait or run.
    pub fn job_counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.scheduler.waiting().requests, state.scheduler.unfinished())
    }

    /// Snapshot of the scheduler at this moment.
    pub fn snapshot(&self) -> Snapshot {
        let now = self.clock.now();
        self.state.lock().scheduler.snapshot(now)
    }

    /// What every tenant, class and model has waiting and running, and what its next job waits for.
    pub fn queue_statuses(&self) -> Vec<QueueStatus> {
        let now = self.clock.now();
        self.state.lock().scheduler.queue_statuses(now)
    }

    /// State of all limits, in a fixed order.
    pub fn limits(&self) -> Vec<LimitStatus> {
        let now = self.clock.now();
        self.state.lock().scheduler.limits(now)
    }

    /// A part of what this gateway has used of its limits, for the other gateways: what is urgent,
    /// what is `wanted`, and some of what changed, at most `most`.
    pub fn take_limit_use(&self, wanted: &[LimitId], most: usize) -> LimitReports {
        let now = self.clock.now();
        self.state.lock().scheduler.take_limit_use(wanted, most, now)
    }

    /// Records the work of tenants and classes from now on, for the other gateways.
    pub fn record_service(&self) {
        self.state.lock().scheduler.record_service();
    }

    /// The work that tenants and classes got here since it was last taken, of at most `most` accounts.
    pub fn take_service_reports(&self, most: usize) -> Vec<ServiceReport> {
        self.state.lock().scheduler.take_service_reports(most)
    }

    /// What tenants used lately, for a gateway that has just started: of at most `most` accounts.
    pub fn past_use(&self, most: usize) -> Vec<ServiceReport> {
        let now = self.clock.now();
        self.state.lock().scheduler.past_use(most, now)
    }

    /// Sequences that tenants hold here, for their quotas at the other gateways.
    pub fn held_sequences(&self) -> Vec<HeldSequences> {
        self.state.lock().scheduler.held_sequences()
    }

    /// What this gateway has at replicas and what waits here, for the other gateways.
    pub fn gateway_load(&self) -> GatewayLoad {
        self.state.lock().scheduler.gateway_load()
    }

    /// Waits until a report of limits cannot wait for its time.
    pub async fn lease_wanted(&self) {
        self.lease_wanted.notified().await;
    }

    /// The reason why a job waits. `None` if the job does not wait.
    pub fn explain(&self, job: JobId) -> Option<WaitExplanation> {
        let now = self.clock.now();
        self.state.lock().scheduler.explain(job, now)
    }

    /// The reasons why jobs wait, in short. `None` for a job that does not wait. The lock is held
    /// for `JOBS_A_LOOK` of them at a time, so that a long list delays no request.
    pub fn wait_summaries(&self, jobs: &[JobId]) -> Vec<Option<WaitSummary>> {
        let look = |jobs: &[JobId]| -> Vec<_> {
            let now = self.clock.now();
            let state = self.state.lock();
            jobs.iter().map(|job| state.scheduler.wait_summary(*job, now)).collect()
        };
        jobs.chunks(JOBS_A_LOOK).flat_map(look).collect()
    }

    /// Whether a job waits for a pool start.
    pub fn waits_for_pool_start(&self, job: JobId) -> bool {
        self.state.lock().scheduler.waits_for_pool_start(job)
    }

    /// Applies an operator's override and returns its result. `event_at` builds the event of the
    /// override from the current time.
    pub fn override_with(&self, event_at: impl FnOnce(Tick) -> Event) -> OverrideResult {
        self.with_lock(|inner, now| {
            let event = event_at(now);
            inner.logged(now, event, |scheduler, event, actions| scheduler.operate(now, event, actions))
        })
    }

    /// Refuses all jobs that still wait, at the end of the shutdown grace.
    pub fn refuse_waiting(&self, why: Rejection) {
        let waiting = self.state.lock().waiters.reject_waiting(why);
        for (job, rejection) in waiting {
            self.event(Event::Abandoned { job, usage: JobUsage::Unknown });
            rejection.deliver();
        }
    }

    /// Sends a timer event to the scheduler at each of its deadlines. Runs until dropped.
    ///
    /// The timer sleeps until the deadline that was next when it fell asleep. Most jobs end long
    /// before their deadlines, and would move the timer twice each.
    pub async fn run_timer(self: Arc<Self>) {
        loop {
            let moved_up = self.timer_moved_up.notified();
            let deadline = self.state.lock().set_timer();
            let Some(at) = deadline else {
                moved_up.await;
                continue;
            };
            tokio::select! {
                () = tokio::time::sleep_until(self.clock.instant(at)) => {}
                () = moved_up => continue,
            }
            let next = self.state.lock().scheduler.next_deadline();
            if next.is_some_and(|next| next <= self.clock.now()) {
                self.event(Event::Timer);
            }
        }
    }

    /// Passes an attempt's event to the scheduler if the attempt is still the job's current one.
    /// Returns whether the attempt is current after the event, too.
    fn report(&self, job: JobId, attempt: u32, event: Event) -> bool {
        self.with_lock(|inner, now| inner.report(now, job, attempt, event))
    }

    /// Passes on the event that ends the job, as [`Self::report`] does, and removes its waiter.
    /// Returns the job's bills; `None` if the attempt is not the job's current one.
    fn finish(&self, job: JobId, attempt: u32, event: Event) -> Option<AttemptBills> {
        self.with_lock(|inner, now| inner.report(now, job, attempt, event).then(|| inner.waiters.close(job)))
    }

    /// Ends the job, unless it has ended, and removes its waiter. Returns the job's bills.
    fn leave(&self, job: JobId, usage: JobUsage) -> AttemptBills {
        self.with_lock(|inner, now| {
            if inner.waiters.set_left(job) {
                inner.handle(now, Event::Abandoned { job, usage });
                inner.apply();
            }
            inner.waiters.close(job)
        })
    }

    /// Passes on an attempt's event after which the job waits again, and returns the receiver of
    /// that wait. `None` if the attempt is not the job's current one.
    fn retry(&self, job: JobId, attempt: u32, event: Event) -> Option<oneshot::Receiver<WaitEnd>> {
        self.with_lock(|inner, now| {
            if !inner.waiters.is_current(job, attempt) {
                return None;
            }
            let again = inner.waiters.wait(job);
            inner.handle(now, event);
            Some(again)
        })
    }

    /// Runs one step under the lock, and carries out its effects after the lock is released.
    fn with_lock<T>(&self, step: impl FnOnce(&mut DispatcherState, Tick) -> T) -> T {
        let (value, leftover) = {
            let mut inner = self.state.lock();
            let value = step(&mut inner, self.clock.now());
            (value, inner.take_effects())
        };
        if leftover.wake_timer {
            self.timer_moved_up.notify_one();
        }
        leftover.notifications.into_iter().for_each(Notification::deliver);
        for action in leftover.replica_actions {
            let _full = self.replica_actions.try_send(action);
        }
        if leftover.lease_due {
            self.lease_wanted.notify_one();
        }
        if leftover.demand_due {
            self.observe_demand();
        }
        value
    }

    /// Applies actions as if the scheduler had asked for them.
    #[cfg(test)]
    pub(crate) fn apply_for_test(&self, actions: impl IntoIterator<Item = Action>) {
        self.with_lock(|inner, _| inner.actions.extend(actions));
    }
}

impl DispatcherState {
    /// Has the scheduler handle an event with `step`, and logs the event with the decisions that it
    /// led to.
    fn logged<T>(
        &mut self,
        now: Tick,
        event: Event,
        step: impl FnOnce(&mut Scheduler, Event, &mut Vec<Action>) -> T,
    ) -> T {
        let copy = self.event_log.is_some().then(|| event.clone());
        let before = self.actions.len();
        let done = step(&mut self.scheduler, event, &mut self.actions);
        if let (Some(log), Some(event)) = (&self.event_log, copy) {
            log.push(now, event, &self.actions[before..]);
        }
        done
    }

    fn handle(&mut self, now: Tick, event: Event) {
        self.logged(now, event, |scheduler, event, actions| scheduler.handle(now, event, actions));
    }

    /// Passes a job's arrival to the scheduler. Returns the state of the job's limits after its
    /// reservation.
    fn arrive(&mut self, now: Tick, spec: JobSpec, prefix: PromptPrefix) -> LimitsAtEntry {
        let copy = self.event_log.is_some().then(|| prefix.clone());
        let before = self.actions.len();
        let shadowed = self.scheduler.arrive(now, spec, prefix, &mut self.actions);
        if let (Some(log), Some(prefix)) = (&self.event_log, copy) {
            log.push(now, Event::Arrived(spec, prefix), &self.actions[before..]);
        }
        LimitsAtEntry { shadowed, statuses: self.scheduler.limits_of(&spec, now) }
    }

    /// Brings a policy into force, if it is newer. Returns the policy to drop.
    fn apply_policy(&mut self, prepared: PreparedPolicy, now: Tick) -> PreparedPolicy {
        let policy = Arc::clone(&prepared.policy);
        if policy.generation <= self.scheduler.policy().generation {
            return prepared;
        }
        let first = self.actions.len();
        let before = self.scheduler.change_policy(now, prepared, &mut self.actions);
        if let Some(log) = &self.event_log {
            log.push(now, Event::PolicyChanged(policy), &self.actions[first..]);
        }
        before
    }

    /// Handles an attempt's event if the attempt is the job's current one. Returns whether the
    /// attempt is still current after the actions of the event.
    fn report(&mut self, now: Tick, job: JobId, attempt: u32, event: Event) -> bool {
        if !self.waiters.is_current(job, attempt) {
            return false;
        }
        self.handle(now, event);
        self.apply();
        self.waiters.is_current(job, attempt)
    }

    /// Applies the scheduler's actions to waiters, and collects the actions about replicas.
    fn apply(&mut self) {
        for action in self.actions.drain(..) {
            match action {
                Action::Job(action) => self.waiters.apply(action, &mut self.effects.notifications),
                Action::Replica(action) => self.effects.replica_actions.push(action),
            }
        }
    }

    /// Sets the timer to the scheduler's next deadline, and returns it.
    fn set_timer(&mut self) -> Option<Tick> {
        self.timer_wakes_at = self.scheduler.next_deadline();
        self.timer_wakes_at
    }

    fn take_effects(&mut self) -> StepEffects {
        self.apply();
        let mut leftover = std::mem::take(&mut self.effects);
        let deadline = self.scheduler.next_deadline();
        leftover.wake_timer =
            deadline.is_some_and(|deadline| self.timer_wakes_at.is_none_or(|wakes_at| deadline < wakes_at));
        if leftover.wake_timer {
            self.timer_wakes_at = deadline;
        }
        leftover.lease_due = self.scheduler.wants_lease();
        leftover.demand_due = self.scheduler.must_flush_demand_facts();
        leftover
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::MachineSecrets;
    use crate::config::settings::Settings;
    use crate::core::autoscale::demand::state::ProfileKind;
    use crate::core::autoscale::facts::MAX_FACTS;
    use crate::core::model::event::{
        AttemptOutcome, DispatchGrant, DispatchReason, EngineFault, JobAction, PreemptReason, RejectReason,
    };
    use crate::core::model::ids::{ClassId, ModelId, ReplicaId, TenantId};
    use crate::dispatcher::ticket::Ticket;

    const ONE_SLOT: &str = "
version: 1
auth: {mode: off}
pools:
  p: {engine: vllm, models: [m], max_seqs: 1, replicas: ['http://127.0.0.1:9']}
";

    fn settings(text: &str, previous: Option<&Settings>) -> Settings {
        let outcome = load_str_with(text, "test", Path::new("."), previous, &MachineSecrets);
        outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings
    }

    fn dispatcher(settings: &Settings) -> (Arc<Dispatcher>, mpsc::Receiver<ReplicaAction>) {
        let (actions_in, actions) = mpsc::channel(8);
        (Dispatcher::new(Arc::clone(&settings.policy), GatewayClock::start(), actions_in), actions)
    }

    fn admit(dispatcher: &Arc<Dispatcher>, settings: &Settings, wait: Duration) -> Ticket {
        let policy = &settings.policy;
        let spec = JobSpec {
            id: dispatcher.next_job_id(),
            tenant: policy.tenants.iter().map(|(id, _, _)| id).next().unwrap_or(TenantId::new(0)),
            class: policy.classes.id("interactive").unwrap_or(ClassId::new(0)),
            model: policy.models.id("m").unwrap_or(ModelId::new(0)),
            deadline: dispatcher.clock().now() + wait,
            ..JobSpec::example(0)
        };
        dispatcher.admit(spec, PromptPrefix::default(), policy)
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_ticket_lets_the_next_one_go() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        let mut first = admit(&dispatcher, &settings, Duration::from_secs(60));
        let mut second = admit(&dispatcher, &settings, Duration::from_secs(60));
        first.wait_for_dispatch().await.unwrap();
        assert_eq!(dispatcher.snapshot().jobs, 2);
        drop(first);
        second.wait_for_dispatch().await.unwrap();
        assert!(second.report_first_token());
        assert!(second.finish(AttemptOutcome::Done(JobUsage::Unknown)));
        drop(second);
        assert_eq!(dispatcher.snapshot().jobs, 0);
    }

    /// Whatever ends an attempt, the ticket returns its bill at the ticket's end, and only once.
    #[tokio::test(start_paused = true)]
    async fn a_ticket_returns_the_bills_of_all_attempts() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        let pass = || tokio::time::advance(Duration::from_millis(10));
        let end = |ticket: Ticket| -> Vec<u128> {
            ticket.end(JobUsage::Unknown).into_iter().map(|bill| bill.time.as_millis()).collect()
        };
        // The request ends while its job runs, with or without a first token.
        for begins in [false, true] {
            let mut ticket = admit(&dispatcher, &settings, Duration::from_secs(60));
            ticket.wait_for_dispatch().await.unwrap();
            pass().await;
            assert!(!begins || ticket.report_first_token());
            assert_eq!(end(ticket), [10]);
        }
        // A retry supersedes the request: the job is ended by an event, not by its ticket.
        let mut ticket = admit(&dispatcher, &settings, Duration::from_secs(60));
        ticket.wait_for_dispatch().await.unwrap();
        let waits = admit(&dispatcher, &settings, Duration::from_secs(60));
        assert_eq!(end(waits), []);
        pass().await;
        dispatcher.event(Event::Abandoned { job: ticket.job(), usage: JobUsage::Unknown });
        assert_eq!(end(ticket), [10]);
        let draining =
            Rejection { reason: RejectReason::Draining, queued: Duration::ZERO, retry_after: None };
        // The attempt fails, and the request ends while its job waits again.
        let mut ticket = admit(&dispatcher, &settings, Duration::from_secs(60));
        ticket.wait_for_dispatch().await.unwrap();
        pass().await;
        assert!(ticket.report_failure(AttemptOutcome::Failed {
            fault: EngineFault::Refused,
            usage: JobUsage::Unknown
        }));
        dispatcher.refuse_waiting(draining);
        assert!(ticket.wait_for_dispatch().await.is_err());
        assert_eq!(end(ticket), [10]);
        // The same, but the request ends before it has read the rejection.
        let mut ticket = admit(&dispatcher, &settings, Duration::from_secs(60));
        dispatcher.event(Event::ProbeSucceeded { replica: ReplicaId::new(0) });
        ticket.wait_for_dispatch().await.unwrap();
        pass().await;
        assert!(ticket.report_failure(AttemptOutcome::Failed {
            fault: EngineFault::Refused,
            usage: JobUsage::Unknown
        }));
        dispatcher.refuse_waiting(draining);
        assert_eq!(end(ticket), [10]);
        assert!(dispatcher.state.lock().waiters.is_empty(), "no waiter outlives its job");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_whose_job_somebody_else_ended_may_be_asked_again_for_a_preemption() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        let mut ticket = admit(&dispatcher, &settings, Duration::from_secs(60));
        ticket.wait_for_dispatch().await.unwrap();
        dispatcher.event(Event::Abandoned { job: ticket.job(), usage: JobUsage::Unknown });
        for _ in 0..2 {
            let preempted = tokio::time::timeout(Duration::from_secs(1), ticket.wait_for_preemption());
            assert!(preempted.await.is_err(), "there is no word to come");
        }
        assert!(!ticket.report_first_token());
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_ends_the_wait() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        tokio::spawn(Arc::clone(&dispatcher).run_timer());
        let _running = admit(&dispatcher, &settings, Duration::from_secs(60));
        let mut late = admit(&dispatcher, &settings, Duration::from_secs(3));
        let begun = tokio::time::Instant::now();
        let rejection = late.wait_for_dispatch().await.unwrap_err();
        assert_eq!(rejection.reason, RejectReason::DeadlineExceeded);
        assert_eq!(begun.elapsed().as_secs(), 3);
        assert_eq!(dispatcher.snapshot().jobs, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_end_before_their_deadlines_leave_the_timer_asleep() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        let wakes_at = || dispatcher.state.lock().timer_wakes_at;
        let _running = admit(&dispatcher, &settings, Duration::from_secs(60));
        drop(admit(&dispatcher, &settings, Duration::from_secs(3)));
        let first = wakes_at();
        assert!(first.is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        let _waits = admit(&dispatcher, &settings, Duration::from_secs(3));
        assert_eq!(wakes_at(), first);
        assert!(dispatcher.state.lock().set_timer() > first);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_try_goes_back_to_the_queue_and_asks_for_a_probe() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, mut actions) = dispatcher(&settings);
        tokio::spawn(Arc::clone(&dispatcher).run_timer());
        let mut ticket = admit(&dispatcher, &settings, Duration::from_secs(60));
        let placement = ticket.wait_for_dispatch().await.unwrap();
        assert!(ticket.report_failure(AttemptOutcome::Failed {
            fault: EngineFault::Refused,
            usage: JobUsage::Unknown
        }));
        let eject = ReplicaAction::Eject { replica: placement.replica, why: EngineFault::Refused };
        assert_eq!(actions.recv().await, Some(eject));
        let last = actions.recv().await;
        assert!(matches!(last, Some(ReplicaAction::PoolDown { why: EngineFault::Refused, .. })), "{last:?}");
        assert_eq!(actions.recv().await, Some(ReplicaAction::Probe { replica: placement.replica }));
        dispatcher.event(Event::ProbeSucceeded { replica: placement.replica });
        assert_eq!(ticket.wait_for_dispatch().await.unwrap().why.attempt, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_brings_its_policy_with_it() {
        let old = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&old);
        let text = ONE_SLOT.replace("models: [m]", "models: [m, new]");
        let new = settings(&text, Some(&old));
        let spec = JobSpec {
            id: dispatcher.next_job_id(),
            tenant: new.policy.tenants.iter().map(|(id, _, _)| id).next().unwrap(),
            class: new.policy.classes.id("interactive").unwrap(),
            model: new.policy.models.id("new").unwrap(),
            deadline: dispatcher.clock().now() + Duration::from_secs(1),
            ..JobSpec::example(0)
        };
        dispatcher.admit(spec, PromptPrefix::default(), &new.policy).wait_for_dispatch().await.unwrap();
        // An older policy does not come back.
        dispatcher.apply_policy(&old.policy);
        let again = JobSpec { id: dispatcher.next_job_id(), ..spec };
        dispatcher.admit(again, PromptPrefix::default(), &new.policy).wait_for_dispatch().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_still_waits_is_refused_at_the_end() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        let running = admit(&dispatcher, &settings, Duration::from_secs(60));
        let mut waiting = admit(&dispatcher, &settings, Duration::from_secs(60));
        let why = Rejection { reason: RejectReason::Draining, queued: Duration::ZERO, retry_after: None };
        dispatcher.refuse_waiting(why);
        assert_eq!(waiting.wait_for_dispatch().await.unwrap_err(), why);
        assert_eq!(dispatcher.snapshot().jobs, 1);
        drop(running);
        assert_eq!(dispatcher.snapshot().jobs, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_of_a_preempted_attempt_reaches_the_scheduler() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        let mut ticket = admit(&dispatcher, &settings, Duration::from_secs(60));
        let grant = ticket.wait_for_dispatch().await.unwrap();
        let DispatchGrant { job, replica, .. } = grant;
        let why = DispatchReason { attempt: grant.why.attempt + 1, ..grant.why };
        dispatcher.apply_for_test([
            Action::Job(JobAction::Preempt { job, replica, why: PreemptReason::Stalled }),
            Action::Job(JobAction::Dispatch(DispatchGrant { why, ..grant })),
        ]);
        // The request has not noticed the preemption yet.
        let before = dispatcher.snapshot();
        assert!(!ticket.report_first_token());
        assert!(
            !ticket.report_failure(AttemptOutcome::Failed {
                fault: EngineFault::Reset,
                usage: JobUsage::Unknown
            })
        );
        assert!(!ticket.finish(AttemptOutcome::Done(JobUsage::Unknown)));
        let after = dispatcher.snapshot();
        assert_eq!((after.jobs, &after.replicas), (before.jobs, &before.replicas));
        assert_eq!(ticket.wait_for_preemption().await, PreemptReason::Stalled);
        ticket.wait_for_dispatch().await.unwrap();
        assert!(ticket.report_first_token() && ticket.finish(AttemptOutcome::Done(JobUsage::Unknown)));
        assert_eq!(dispatcher.snapshot().jobs, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn facts_of_demand_that_nobody_reads_are_observed_in_time() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        let is_due = || dispatcher.state.lock().scheduler.must_flush_demand_facts();
        // Each job makes four facts: it arrives, goes to a replica, stays there and leaves.
        let serve = |jobs: usize| {
            (0..jobs).for_each(|_| drop(admit(&dispatcher, &settings, Duration::from_secs(60))));
        };
        serve(MAX_FACTS / 2);
        assert!(!is_due(), "a step has handed them over");
        let reader = dispatcher.observer.lock();
        serve(MAX_FACTS / 4 + 1);
        assert!(is_due(), "no step waits for the reader");
        drop(reader);
        serve(1);
        assert!(!is_due());
        let state = dispatcher.demand_state();
        let arrived = MAX_FACTS / 2 + MAX_FACTS / 4 + 2;
        let pool = state.rows.iter().find(|row| row.kind == ProfileKind::Pool).unwrap();
        assert_eq!(pool.seen.kept as usize, arrived, "none is lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_preempted_job_that_is_dropped_leaves_nothing() {
        let settings = settings(ONE_SLOT, None);
        let (dispatcher, _actions) = dispatcher(&settings);
        let mut ticket = admit(&dispatcher, &settings, Duration::from_secs(60));
        let replica = ticket.wait_for_dispatch().await.unwrap().replica;
        dispatcher.apply_for_test([Action::Job(JobAction::Preempt {
            job: JobId::new(1),
            replica,
            why: PreemptReason::Stalled,
        })]);
        assert!(!ticket.finish(AttemptOutcome::Done(JobUsage::Unknown)));
        drop(ticket);
        assert_eq!(dispatcher.snapshot().jobs, 0);
    }
}
