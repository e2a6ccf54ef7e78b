//! Retries: what becomes of the job of a failed attempt.
//!
//! When an attempt fails before the first token, the job returns to its lane with its age, to go
//! to a replica that has not failed it yet. The tenant was charged at the first attempt. A job
//! whose deadline has passed in the meantime gets one more dispatch, at once, and is refused if no
//! replica is free.
//!
//! When a stream breaks after its first token and another engine can continue it, the job also
//! returns to its lane. The output so far is then part of its prompt. The job met its
//! deadline once, so it gets a new one: its class's `max_wait` from now.
//!
//! Retries take from the retry budget ([`crate::queue::retry_budget`]), except after faults that
//! cost the engine nothing (refused, draining, busy; see [`EngineFault::counts_as_attempt`]) and after
//! the outage of a replica that worked. When the retry budget is spent, the job is refused: nothing
//! suggests that waiting would help, and its client may know another endpoint.

use std::time::Duration;

use crate::billing::bill::WasteCause;
use crate::model::event::{Action, EngineFault, JobAction, RejectReason};
use crate::model::ids::JobId;
use crate::model::job::JobUsage;
use crate::queue::lane_key::LaneKey;
use crate::scheduler::Scheduler;
use crate::scheduler::job::RunningAttempt;
use crate::scheduler::settle::charge::WastedUse;

/// What a failed attempt means for a retry of its job.
#[derive(Debug, Clone, Copy)]
struct FailedAttempt {
    fault: EngineFault,
    /// Whether the client has the start of an answer that no other engine can continue.
    is_broken: bool,
    /// Whether the job has used up its attempts.
    is_last: bool,
    /// Whether a retry takes nothing from the retry budget.
    is_free: bool,
}

/// What becomes of the job of a failed attempt.
#[derive(Debug, Clone, Copy)]
enum RetryDecision {
    /// The job ends, and its client gets no more of the answer.
    End,
    /// The job is refused.
    Reject(RejectReason),
    /// The job returns to its lane.
    Requeue,
}

impl Scheduler {
    /// Handles a failed attempt. `continuable_output`: output tokens that the client has, if another
    /// engine can continue the stream.
    pub(super) fn failed(
        &mut self,
        id: JobId,
        run: RunningAttempt,
        fault: EngineFault,
        usage: JobUsage,
        continuable_output: Option<u64>,
        out: &mut Vec<Action>,
    ) {
        let asked = self.jobs.get(&id).and_then(|job| job.preemption.migration_asked);
        let why = match continuable_output {
            Some(_) => WasteCause::Interrupted,
            None if run.booking.started => WasteCause::Broken,
            None => WasteCause::Retry,
        };
        let wasted = (run.booking.started || fault.counts_as_attempt()).then_some(WastedUse { why, usage });
        self.release(id, &run, wasted, out);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let has_failed = job.faults.has_failed;
        let made_way = continuable_output.is_some() && fault == EngineFault::Draining && asked.is_some();
        let counts = !made_way && (fault.counts_as_attempt() || run.booking.started);
        if counts {
            job.faults.note_failure(&run);
        }
        if let Some(output) = continuable_output {
            let class = self.policy.classes.get(job.spec.class);
            job.interrupted(output, self.now + class.map_or(Duration::ZERO, |class| class.max_wait));
        }
        let lane = LaneKey::of(&job.spec);
        let is_silent = fault == EngineFault::Silent;
        // A suspect whose first token never comes ends here, and its replica is not to blame.
        let job_is_to_blame = is_silent && !run.booking.started && !job.faults.is_watched();
        let stalls = is_silent && job.faults.has_stalled_often();
        let hopeless = fault == EngineFault::AnswerTimeout || job_is_to_blame || stalls;
        let is_last = counts && (hopeless || job.faults.failures >= self.policy.retry.max_attempts.max(1));
        if is_silent && continuable_output.is_some() {
            self.jobs.note_stall(id, self.now);
        }
        let attempt = FailedAttempt {
            fault,
            is_broken: run.booking.started && continuable_output.is_none(),
            is_last,
            is_free: !counts || self.is_of_same_outage(&run, has_failed),
        };
        if !run.booking.started {
            self.undo_dispatch(lane);
        }
        let decision = match self.decide_retry(lane, attempt) {
            RetryDecision::Requeue if !attempt.is_free && !self.take_retry(lane) => {
                RetryDecision::Reject(RejectReason::RetryBudgetSpent(fault))
            }
            decision => decision,
        };
        match decision {
            RetryDecision::End => {
                if let Some(job) = self.jobs.remove(&id) {
                    self.settle(job, usage);
                }
            }
            RetryDecision::Reject(reason) => self.reject_released(id, reason, usage, out),
            RetryDecision::Requeue => {
                self.jobs.end_attempt(id, self.now);
                out.push(Action::Job(JobAction::Requeue { job: id, replica: run.replica, why: fault }));
                self.vain_waits_possible = true;
                self.enqueue(id);
            }
        }
        if !made_way && !job_is_to_blame {
            self.judge_fault(&run, fault, has_failed, out);
        }
    }

    /// Takes a dispatch that gave no first token from the drain rates.
    fn undo_dispatch(&mut self, lane: LaneKey) {
        if let Some(account) = self.lane_accounts(lane) {
            let here = &mut self.groups[account.group];
            here.drain_rate.undo_dispatch(self.now);
            here.class_mut(account.class).drain_rates.undo_dispatch(lane.tenant, self.now);
        }
    }

    /// Decides what becomes of the job of a failed attempt. A retry that is not free has to be taken
    /// from the budget, after all other reasons against it.
    fn decide_retry(&self, lane: LaneKey, attempt: FailedAttempt) -> RetryDecision {
        if attempt.is_broken {
            return RetryDecision::End;
        }
        if let Some(reason) = self.reason_to_withdraw(lane) {
            return RetryDecision::Reject(reason);
        }
        if attempt.is_last {
            return RetryDecision::Reject(RejectReason::AttemptsExhausted(attempt.fault));
        }
        RetryDecision::Requeue
    }

    /// Takes one retry from the budget of the lane's group.
    pub(in crate::scheduler) fn take_retry(&mut self, lane: LaneKey) -> bool {
        let group = self.placement.group_of_model(lane.model);
        group.is_some_and(|group| self.groups[group].retries.take_retry(self.now, &self.policy.retry))
    }
}
