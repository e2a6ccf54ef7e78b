//! Event log: the scheduler's events with the decisions that each led to, for records and tests. A step
//! is appended under the dispatcher's lock, so that the log has the scheduler's own order. A reader
//! takes all steps at once.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::thread::Thread;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::core::model::event::{Action, Event, JobAction, ReplicaAction};
use crate::core::model::ids::{ClassId, JobId, PoolId, ReplicaId};
use crate::core::model::time::Tick;

/// Decision of the scheduler, as far as a replay compares it. Reasons are the names that logs and
/// metrics use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Dispatched { job: JobId, replica: ReplicaId, class: ClassId, order: Cow<'static, str> },
    Rejected { job: JobId, reason: Cow<'static, str> },
    Requeued { job: JobId },
    Preempted { job: JobId, reason: Cow<'static, str> },
    Migrated { job: JobId, reason: Cow<'static, str> },
    Billed { job: JobId, pool: PoolId, nanos: u64, money: u64 },
    Ejected { replica: ReplicaId, reason: Cow<'static, str> },
    Readmitted { replica: ReplicaId },
    PutToSleep { replica: ReplicaId },
    Woken { replica: ReplicaId },
}

/// Decisions of one step, in their order.
pub type Decisions = SmallVec<[Decision; 1]>;

impl Decision {
    /// The decision that an action carries out. `None` for questions and notices.
    pub fn of(action: &Action) -> Option<Self> {
        Some(match action {
            Action::Job(action) => Self::of_job(action),
            Action::Replica(action) => return Self::of_replica(action),
        })
    }

    fn of_job(action: &JobAction) -> Self {
        match *action {
            JobAction::Dispatch(grant) => Self::Dispatched {
                job: grant.job,
                replica: grant.replica,
                class: grant.why.class,
                order: grant.why.order.name().into(),
            },
            JobAction::Reject { job, why } => Self::Rejected { job, reason: why.reason.name().into() },
            JobAction::Requeue { job, .. } => Self::Requeued { job },
            JobAction::Preempt { job, why, .. } => Self::Preempted { job, reason: why.name().into() },
            JobAction::Migrate { job, why, .. } => Self::Migrated { job, reason: why.name().into() },
            JobAction::Billed { job, bill } => Self::Billed {
                job,
                pool: bill.pool,
                nanos: u64::try_from(bill.time.as_nanos()).unwrap_or(u64::MAX),
                money: bill.money,
            },
        }
    }

    fn of_replica(action: &ReplicaAction) -> Option<Self> {
        Some(match *action {
            ReplicaAction::Eject { replica, why } => Self::Ejected { replica, reason: why.name().into() },
            ReplicaAction::Readmit { replica, .. } => Self::Readmitted { replica },
            ReplicaAction::Sleep { replica } => Self::PutToSleep { replica },
            ReplicaAction::Wake { replica, .. } => Self::Woken { replica },
            ReplicaAction::WithholdEjection { .. }
            | ReplicaAction::PoolDown { .. }
            | ReplicaAction::Probe { .. }
            | ReplicaAction::Scrape { .. }
            | ReplicaAction::PoolWanted { .. }
            | ReplicaAction::PoolStarted { .. }
            | ReplicaAction::OverrideExpired { .. } => return None,
        })
    }
}

/// An event, its time, and the decisions that it led to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoggedStep {
    /// Time of the event on the gateway's clock.
    pub at: Tick,
    pub event: Event,
    /// Decisions, in their order.
    #[serde(rename = "did", default, skip_serializing_if = "Decisions::is_empty")]
    pub decisions: Decisions,
}

/// Log of a scheduler's steps, bounded in their number.
#[derive(Debug)]
pub struct EventLog {
    steps: Mutex<WaitingSteps>,
    limit: usize,
    reader: OnceLock<Thread>,
}

/// Steps that no reader has taken yet.
#[derive(Debug, Default)]
struct WaitingSteps {
    steps: Vec<LoggedStep>,
    /// Steps that found the log full since the last reading.
    lost: u64,
}

impl Default for EventLog {
    /// A log without a bound, for tests.
    fn default() -> Self {
        Self::bounded(usize::MAX)
    }
}

impl EventLog {
    /// A log that holds `limit` steps at most. Further ones are lost, and counted.
    pub fn bounded(limit: usize) -> Self {
        Self { steps: Mutex::default(), limit, reader: OnceLock::new() }
    }

    /// Wakes this thread whenever the log becomes half full.
    pub fn wake_when_half_full(&self, reader: Thread) {
        let _first = self.reader.set(reader);
    }

    pub(super) fn push(&self, at: Tick, event: Event, actions: &[Action]) {
        let mut waiting = self.steps.lock();
        if waiting.steps.len() >= self.limit {
            waiting.lost += 1;
            return;
        }
        let decisions = actions.iter().filter_map(Decision::of).collect();
        waiting.steps.push(LoggedStep { at, event, decisions });
        if waiting.steps.len() == self.limit / 2
            && let Some(reader) = self.reader.get()
        {
            reader.unpark();
        }
    }

    /// Moves all steps into `steps`, which must be empty. Returns the number of steps that were lost after them.
    pub fn take(&self, steps: &mut Vec<LoggedStep>) -> u64 {
        let mut waiting = self.steps.lock();
        std::mem::swap(&mut waiting.steps, steps);
        std::mem::take(&mut waiting.lost)
    }

    /// Copies of the steps that wait, without taking them.
    pub fn steps(&self) -> Vec<LoggedStep> {
        self.steps.lock().steps.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_counts_what_it_loses_and_takes_more_once_it_is_read() {
        let (log, mut steps) = (EventLog::bounded(2), Vec::new());
        (0..5).for_each(|at| log.push(Tick::from_nanos(at), Event::Timer, &[]));
        assert_eq!((log.take(&mut steps), steps.len()), (3, 2));
        steps.clear();
        log.push(Tick::from_nanos(6), Event::Timer, &[]);
        assert_eq!((log.take(&mut steps), steps.len(), steps[0].at), (0, 1, Tick::from_nanos(6)));
    }
}
