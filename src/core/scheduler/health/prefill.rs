//! Prefill timers: the instants at which prompts count as prefilled.
//!
//! A prefill blocks other prompts at its engine. The prefill of a stream ends with its first
//! token. A plain answer shows nothing before its end, so its prompt counts as prefilled when its
//! first token is due, by the replica's measured speed.
//!
//! A prompt may count as prefilled one step and one network delay early, so that the next prompt
//! arrives in time for the next step. At most one step's weight is early at a replica. A stream whose
//! first token is [`OVERDUE`] times late counts as prefilled: engines hold tokens back during tool
//! calls, and stall detection judges the stream. Until a plain answer is as late, its prompt may still
//! wait inside the engine, and a waiting request of the engine says nothing about its slots.

use std::time::Duration;

use crate::model::ids::JobId;
use crate::model::invariant::InvariantId;
use crate::model::job::JobUsage;
use crate::model::time::Tick;
use crate::replica::speed::PlainAnswer;

use crate::scheduler::Scheduler;
use crate::scheduler::job::{JobPhase, RunningAttempt};

/// How many times as long as predicted a first token may take before its prompt
/// counts as prefilled without it.
const OVERDUE: u32 = 4;
/// Time that is added to [`OVERDUE`] before a first token counts as overdue.
const OVERDUE_GRACE: Duration = Duration::from_millis(250);

impl Scheduler {
    /// Instant at which the prompt of a job that is dispatched now counts as prefilled, if the
    /// first token is `expected` after the dispatch and the replica has this lead.
    pub(in crate::scheduler) fn prefill_done_at(&self, expected: Duration, lead: Duration) -> Tick {
        self.now + expected.saturating_sub(lead).max(expected / 4)
    }

    /// Sets the instant at which the job's prompt counts as prefilled.
    pub(in crate::scheduler) fn await_prefill(&mut self, id: JobId, at: Tick) {
        if let Some(run) = self.jobs.attempt_mut(id) {
            run.prefill_due_at = Some(at);
            self.timers.prefills.add(at, id);
        }
    }

    /// Cancels the job's prefill timer: the attempt ended, or there is nothing left to await.
    pub(in crate::scheduler) fn forget_prefill(&mut self, id: JobId) {
        if let Some(run) = self.jobs.attempt_mut(id)
            && let Some(at) = run.prefill_due_at.take()
        {
            self.timers.prefills.cancel(at, id);
        }
    }

    /// Ends the prefills that are due.
    pub(in crate::scheduler) fn end_prefills(&mut self) {
        while let Some(id) = self.timers.prefills.pop_due(self.now) {
            self.forget_prefill(id);
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let (streams, JobPhase::Running(run)) = (job.spec.streams, &mut job.phase) else { continue };
            let overdue = run.since + run.expected_ttft.saturating_mul(OVERDUE) + OVERDUE_GRACE;
            let due = if streams { overdue } else { run.since + run.expected_ttft };
            let (replica, is_due) = (run.replica, self.now >= due);
            if run.booking.due {
                let whole = self.fleet.mark_first_token_overdue(replica, &mut run.booking, self.now);
                self.invariants.check(InvariantId::LedgerBalanced, whole);
                self.mark_replica(replica);
                continue;
            }
            if !is_due && !self.fleet.may_be_ahead(replica, run.booking.weight) {
                self.await_prefill(id, due);
                continue;
            }
            let whole = self.fleet.prefilled(replica, &mut run.booking, is_due, self.now);
            if !is_due || !streams {
                self.await_prefill(id, if is_due { overdue } else { due });
            }
            self.invariants.check(InvariantId::LedgerBalanced, whole);
            self.mark_replica(replica);
        }
    }

    /// Learns from an answer what its replica had cached. A request for several sequences tells
    /// nothing: the others find the first one's prompt.
    pub(in crate::scheduler) fn learn_cache(&mut self, run: &RunningAttempt, usage: JobUsage) {
        let cached = usage.tokens().and_then(|tokens| tokens.cached);
        if let Some(cached) = cached.filter(|_| run.booking.seqs <= 1) {
            self.affinity.prefixes.learn(run.replica, run.predicted_cached, cached);
            self.fleet.allow_overcommit(run.replica, self.affinity.prefixes.is_proven(run.replica), self.now);
        }
    }

    /// Learns from a plain answer how fast its replica is.
    pub(in crate::scheduler) fn learn_from_answer(&mut self, run: &RunningAttempt, usage: JobUsage) {
        if let JobUsage::Exact(tokens) = usage
            && !run.booking.streams
            && !run.loads_adapter
        {
            let answer = PlainAnswer { took: self.now.since(run.since), tokens, seqs: run.booking.seqs };
            self.fleet.learn_whole_answer(
                run.replica,
                &answer,
                run.prefill_mark,
                run.reference_ttft_ns,
                self.now,
            );
        }
    }
}
