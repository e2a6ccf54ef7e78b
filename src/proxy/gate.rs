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
    /// and requeues go to `replica_actions`; one that finds the channel full
    /// is dropped, and the core asks again when a probe stays unanswered.
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
                    action => replica_actions.push(action),
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
