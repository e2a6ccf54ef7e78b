//! The async door to the scheduler: feeds it events with the time, applies
//! its actions after the lock is released, and owns each job's ticket.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::core::event::{Action, Event, Fault, Outcome, Placed, Rejection};
use crate::core::ids::{JobId, ReplicaId};
use crate::core::job::{JobSpec, Usage};
use crate::core::policy::Policy;
use crate::core::scheduler::Scheduler;
use crate::core::snapshot::Snapshot;
use crate::core::time::Tick;
use crate::proxy::clock::Clock;

/// Where a job may start now.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    /// The replica; its credit is booked.
    pub replica: ReplicaId,
    /// Why.
    pub why: Placed,
}

type Answer = Result<Placement, Rejection>;
type Waiter = (JobId, oneshot::Sender<Answer>);
type Deliveries = SmallVec<[(oneshot::Sender<Answer>, Answer); 4]>;

/// The one scheduler of this process and everybody who waits for it.
#[derive(Debug)]
pub struct Gate {
    inner: Mutex<Inner>,
    clock: Clock,
    next_job: AtomicU64,
    timer_changed: Notify,
    replica_actions: mpsc::Sender<Action>,
}

#[derive(Debug)]
struct Inner {
    /// Of the policy in force.
    generation: u64,
    scheduler: Scheduler,
    waiters: HashMap<JobId, oneshot::Sender<Answer>>,
    actions: Vec<Action>,
    timer: Option<Tick>,
}

impl Gate {
    /// A gate under `policy`. Actions about replicas (eject, probe, readmit)
    /// go to `replica_actions`; one that finds the channel full is dropped, and the core asks again when a probe stays unanswered.
    #[must_use]
    pub fn new(policy: Arc<Policy>, clock: Clock, replica_actions: mpsc::Sender<Action>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                generation: policy.generation,
                scheduler: Scheduler::new(policy),
                waiters: HashMap::new(),
                actions: Vec::new(),
                timer: None,
            }),
            clock,
            next_job: AtomicU64::new(1),
            timer_changed: Notify::new(),
            replica_actions,
        })
    }

    /// The clock that the scheduler lives by.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// An id for a job that has not arrived yet.
    #[must_use]
    pub fn next_job_id(&self) -> JobId {
        JobId::new(self.next_job.fetch_add(1, Ordering::Relaxed))
    }

    /// Lets the job in. The ticket is its life: dropping it ends the job. The
    /// ids in `spec` are those of `policy`, which comes into force first if
    /// the scheduler does not know it yet.
    #[must_use]
    pub fn admit(self: &Arc<Self>, spec: JobSpec, policy: &Arc<Policy>) -> Ticket {
        let (sender, answer) = oneshot::channel();
        self.step(Event::Arrived(spec), Some((spec.id, sender)), Some(policy));
        Ticket {
            gate: Arc::clone(self),
            job: spec.id,
            answer: Some(answer),
            usage: Usage::Unknown,
            live: true,
        }
    }

    /// Brings a policy into force unless it is, or a later one.
    pub fn follow(&self, policy: &Arc<Policy>) {
        self.step(Event::Timer, None, Some(policy));
    }

    /// Tells the scheduler what happened.
    pub fn event(&self, event: Event) {
        self.step(event, None, None);
    }

    /// Whether a request that arrived now could wait.
    #[must_use]
    pub fn can_queue(&self) -> bool {
        self.inner.lock().scheduler.can_queue()
    }

    /// A picture of this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let now = self.clock.now();
        self.inner.lock().scheduler.snapshot(now)
    }

    /// Refuses everything that still waits, at the end of a drain's grace.
    pub fn refuse_waiting(&self, why: Rejection) {
        let waiters: Vec<_> = self.inner.lock().waiters.drain().collect();
        for (job, waiter) in waiters {
            self.event(Event::Left { job, usage: Usage::Unknown });
            let _gone = waiter.send(Err(why));
        }
    }

    /// Wakes the scheduler at its deadlines. Runs until dropped.
    pub async fn run_timer(self: Arc<Self>) {
        loop {
            let changed = self.timer_changed.notified();
            let deadline = self.inner.lock().timer;
            match deadline {
                None => changed.await,
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(self.clock.instant(at)) => self.event(Event::Timer),
                        () = changed => {}
                    }
                }
            }
        }
    }

    fn step(&self, event: Event, waiter: Option<Waiter>, policy: Option<&Arc<Policy>>) {
        let mut deliveries = Deliveries::new();
        let mut replica_actions: SmallVec<[Action; 2]> = SmallVec::new();
        let timer_moved_up = {
            let mut inner = self.inner.lock();
            let inner = &mut *inner;
            if let Some((job, sender)) = waiter {
                inner.waiters.insert(job, sender);
            } else if let Event::Left { job, .. } = &event {
                inner.waiters.remove(job);
            }
            let now = self.clock.now();
            if let Some(policy) = policy.filter(|policy| policy.generation > inner.generation) {
                inner.generation = policy.generation;
                let changed = Event::PolicyChanged(Arc::clone(policy));
                inner.scheduler.handle(now, changed, &mut inner.actions);
            }
            inner.scheduler.handle(now, event, &mut inner.actions);
            for action in inner.actions.drain(..) {
                match action {
                    Action::Dispatch { job, replica, why } => {
                        let waiter = inner.waiters.remove(&job);
                        deliveries.extend(waiter.map(|waiter| (waiter, Ok(Placement { replica, why }))));
                    }
                    Action::Reject { job, why } => {
                        let waiter = inner.waiters.remove(&job);
                        deliveries.extend(waiter.map(|waiter| (waiter, Err(why))));
                    }
                    // The ticket's owner knows: it brought the failure.
                    Action::Requeue { .. } => {}
                    Action::Eject { .. } | Action::Probe { .. } | Action::Readmit { .. } => {
                        replica_actions.push(action);
                    }
                }
            }
            let timer = inner.scheduler.next_deadline();
            let earlier = timer.is_some_and(|new| inner.timer.is_none_or(|old| new < old));
            inner.timer = timer;
            earlier
        };
        if timer_moved_up {
            self.timer_changed.notify_one();
        }
        for (waiter, answer) in deliveries {
            // A waiter that is gone has dropped its ticket, which says so.
            let _gone = waiter.send(answer);
        }
        for action in replica_actions {
            let _full = self.replica_actions.try_send(action);
        }
    }
}

/// One job's place in the queue, then its credit at a replica. Reports the
/// job's end exactly once, at the latest when dropped.
#[derive(Debug)]
pub struct Ticket {
    gate: Arc<Gate>,
    job: JobId,
    answer: Option<oneshot::Receiver<Answer>>,
    usage: Usage,
    live: bool,
}

impl Ticket {
    /// Waits for a replica. Dropping the future keeps the ticket.
    ///
    /// # Errors
    /// The rejection, after which the job is over.
    pub async fn placed(&mut self) -> Answer {
        let Some(receiver) = self.answer.as_mut() else {
            unreachable!("a ticket waits only after admit and after fail");
        };
        let answer = receiver.await;
        self.answer = None;
        match answer {
            Ok(Ok(placement)) => Ok(placement),
            Ok(Err(rejection)) => {
                self.live = false;
                Err(rejection)
            }
            Err(_) => unreachable!("the gate answers every waiter that it takes out"),
        }
    }

    /// The job's first token is on its way to the client.
    pub fn first_token(&self) {
        self.gate.event(Event::FirstToken { job: self.job });
    }

    /// What is known so far of the job's consumption; used if it is dropped.
    pub fn note_usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    /// The replica failed the job, and the client has seen nothing of it:
    /// wait for another with `placed`.
    pub fn failed_unseen(&mut self, fault: Fault, usage: Usage) {
        let (sender, receiver) = oneshot::channel();
        self.answer = Some(receiver);
        let outcome = Outcome::Failed { fault, usage };
        self.gate.step(Event::Finished { job: self.job, outcome }, Some((self.job, sender)), None);
    }

    /// The answer is over.
    pub fn finish(&mut self, outcome: Outcome) {
        if std::mem::take(&mut self.live) {
            self.gate.event(Event::Finished { job: self.job, outcome });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.live {
            self.gate.event(Event::Left { job: self.job, usage: self.usage });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::Machine;
    use crate::config::settings::Settings;
    use crate::core::event::RejectReason;
    use crate::core::ids::{ClassId, ModelId, TenantId};

    const ONE_SLOT: &str = "
version: 1
auth: {mode: off}
pools:
  p: {engine: vllm, models: [m], max_seqs: 1, replicas: ['http://127.0.0.1:9']}
";

    fn settings(text: &str, previous: Option<&Settings>) -> Settings {
        let outcome = load_str_with(text, "test", Path::new("."), previous, &Machine);
        outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings
    }

    fn gate(settings: &Settings) -> (Arc<Gate>, mpsc::Receiver<Action>) {
        let (wishes, wished) = mpsc::channel(8);
        (Gate::new(Arc::clone(&settings.policy), Clock::start(), wishes), wished)
    }

    fn admit(gate: &Arc<Gate>, settings: &Settings, wait: Duration) -> Ticket {
        let policy = &settings.policy;
        let spec = JobSpec {
            id: gate.next_job_id(),
            tenant: policy.tenants.iter().map(|(id, _, _)| id).next().unwrap_or(TenantId::new(0)),
            class: policy.classes.id("interactive").unwrap_or(ClassId::new(0)),
            model: policy.models.id("m").unwrap_or(ModelId::new(0)),
            prompt_tokens: 10,
            max_output_tokens: 10,
            sequences: 1,
            bytes: 100,
            deadline: gate.clock().now() + wait,
        };
        gate.admit(spec, policy)
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_ticket_lets_the_next_one_go() {
        let settings = settings(ONE_SLOT, None);
        let (gate, _wished) = gate(&settings);
        let mut first = admit(&gate, &settings, Duration::from_secs(60));
        let mut second = admit(&gate, &settings, Duration::from_secs(60));
        first.placed().await.unwrap();
        assert_eq!(gate.snapshot().jobs, 2);
        drop(first);
        second.placed().await.unwrap();
        second.finish(Outcome::Done(Usage::Unknown));
        drop(second);
        assert_eq!(gate.snapshot().jobs, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_ends_the_wait() {
        let settings = settings(ONE_SLOT, None);
        let (gate, _wished) = gate(&settings);
        tokio::spawn(Arc::clone(&gate).run_timer());
        let _running = admit(&gate, &settings, Duration::from_secs(60));
        let mut late = admit(&gate, &settings, Duration::from_secs(3));
        let begun = tokio::time::Instant::now();
        let rejection = late.placed().await.unwrap_err();
        assert_eq!(rejection.reason, RejectReason::DeadlineExceeded);
        assert_eq!(begun.elapsed().as_secs(), 3);
        assert_eq!(gate.snapshot().jobs, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_try_goes_back_to_the_queue_and_asks_for_a_probe() {
        let settings = settings(ONE_SLOT, None);
        let (gate, mut wished) = gate(&settings);
        tokio::spawn(Arc::clone(&gate).run_timer());
        let mut ticket = admit(&gate, &settings, Duration::from_secs(60));
        let placement = ticket.placed().await.unwrap();
        ticket.failed_unseen(Fault::Refused, Usage::Unknown);
        let eject = Action::Eject { replica: placement.replica, why: Fault::Refused };
        assert_eq!(wished.recv().await, Some(eject));
        assert_eq!(wished.recv().await, Some(Action::Probe { replica: placement.replica }));
        gate.event(Event::ReplicaFound { replica: placement.replica });
        assert_eq!(ticket.placed().await.unwrap().why.attempt, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_brings_its_policy_with_it() {
        let old = settings(ONE_SLOT, None);
        let (gate, _wished) = gate(&old);
        let text = ONE_SLOT.replace("models: [m]", "models: [m, new]");
        let new = settings(&text, Some(&old));
        let spec = JobSpec {
            id: gate.next_job_id(),
            tenant: new.policy.tenants.iter().map(|(id, _, _)| id).next().unwrap(),
            class: new.policy.classes.id("interactive").unwrap(),
            model: new.policy.models.id("new").unwrap(),
            prompt_tokens: 1,
            max_output_tokens: 1,
            sequences: 1,
            bytes: 1,
            deadline: gate.clock().now() + Duration::from_secs(1),
        };
        gate.admit(spec, &new.policy).placed().await.unwrap();
        // An older policy does not come back.
        gate.follow(&old.policy);
        let again = JobSpec { id: gate.next_job_id(), ..spec };
        gate.admit(again, &new.policy).placed().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_still_waits_is_refused_at_the_end() {
        let settings = settings(ONE_SLOT, None);
        let (gate, _wished) = gate(&settings);
        let running = admit(&gate, &settings, Duration::from_secs(60));
        let mut waiting = admit(&gate, &settings, Duration::from_secs(60));
        let why = Rejection { reason: RejectReason::Draining, queued: Duration::ZERO, retry_after: None };
        gate.refuse_waiting(why);
        assert_eq!(waiting.placed().await.unwrap_err(), why);
        assert_eq!(gate.snapshot().jobs, 1);
        drop(running);
        assert_eq!(gate.snapshot().jobs, 0);
    }
}
