//! Settlement: the ends of attempts and jobs.
//!
//! An attempt that failed goes to [`retry`], which decides whether its job waits again, is refused
//! or ends. [`charge`] bills each attempt.
//!
//! A stream that migrated because its replica drains has not failed, and neither has the replica.

pub(super) mod charge;
mod retry;

use std::cmp::Reverse;

use crate::billing::bill::WasteCause;
use crate::model::event::{Action, AttemptOutcome, JobAction, RejectReason};
use crate::model::ids::{GroupIndex, JobId, TenantId};
use crate::model::invariant::InvariantId;
use crate::model::job::{JobUsage, TokenCounts};
use crate::model::time::Tick;
use crate::queue::fairness::service::{ServiceAccount, ServiceReport};
use crate::queue::fairness::{TenantWeights, cost};
use crate::queue::lane_key::LaneKey;

use self::charge::WastedUse;
use super::Scheduler;
use super::job::{Job, JobPhase, RunningAttempt};
use crate::queue::lane_key::LaneAccounts;

impl Scheduler {
    /// Ends a job without an answer, waiting or running: its client left, or it is refused. Frees
    /// everything it holds at once.
    pub(super) fn cancel_job(&mut self, id: JobId, usage: JobUsage, out: &mut Vec<Action>) {
        match self.jobs.get(&id).map(|job| job.phase) {
            Some(JobPhase::Waiting { .. }) => self.dequeue(id),
            Some(JobPhase::Running(run)) => {
                self.release(id, &run, Some(WastedUse { why: WasteCause::ClientGone, usage }), out);
                self.note_abandoned(&run);
            }
            None => {}
        }
        if let Some(job) = self.jobs.remove(&id) {
            self.settle(job, usage);
        }
    }

    /// The first token came: the prompt is prefilled.
    pub(super) fn first_token(&mut self, id: JobId, out: &mut Vec<Action>) {
        let Some(run) = self.jobs.attempt_mut(id) else { return };
        if !run.booking.started {
            let whole = self.fleet.start(run.replica, &mut run.booking, &mut run.metered, self.now);
            self.invariants.check(InvariantId::LedgerBalanced, whole);
            let run = *run;
            self.forget_prefill(id);
            if self.jobs.get(&id).is_some_and(|job| !job.is_unseen()) {
                self.jobs.forget_preemptible(id);
            }
            let took = self.now.since(run.since);
            match run.loads_adapter {
                true => self.fleet.learn_adapter_load(run.replica, took, run.reference_ttft_ns),
                false => {
                    self.fleet.learn_ttft(run.replica, &run.booking, took, run.reference_ttft_ns, self.now);
                }
            }
            self.note_pool_start(&run);
            self.clear_suspect(id, &run);
            self.mark_replica(run.replica);
            self.ask_for_report(run.replica, out);
        }
    }

    /// Ends an attempt with the outcome that the edge reported.
    pub(super) fn finished(&mut self, id: JobId, outcome: AttemptOutcome, out: &mut Vec<Action>) {
        let Some(run) = self.jobs.get(&id).and_then(Job::attempt) else { return };
        match outcome {
            AttemptOutcome::Done(usage) => {
                if !run.booking.started {
                    self.learn_from_answer(&run, usage);
                    self.note_pool_start(&run);
                }
                self.learn_cache(&run, usage);
                self.fleet.note_proof(run.replica, self.now);
                if usage != JobUsage::Exact(TokenCounts::default()) {
                    self.fleet.bytes_received(run.replica, self.now);
                }
                self.release(id, &run, None, out);
                if let Some(job) = self.jobs.remove(&id) {
                    if let JobUsage::Exact(tokens) = usage {
                        self.fleet.learn_output(run.replica, tokens.output, self.lengths.expected(&job.spec));
                    }
                    self.lengths.learn(&job.spec, usage);
                    self.limits.learn(&job, usage);
                    self.settle(job, usage);
                }
            }
            AttemptOutcome::Failed { fault, usage } => self.failed(id, run, fault, usage, None, out),
            AttemptOutcome::Interrupted { fault, usage, output } => {
                self.failed(id, run, fault, usage, Some(output), out);
            }
        }
    }

    /// Refuses a job that waits.
    pub(super) fn reject(&mut self, id: JobId, reason: RejectReason, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.get(&id) else { return };
        let why = self.rejection(&job.spec, reason, Some(job));
        let spec = job.spec;
        let at = self.lane_position(LaneKey::of(&spec));
        self.demand.note_refused(&spec, reason, at, &self.policy, self.now);
        out.push(Action::Job(JobAction::Reject { job: id, why }));
        self.cancel_job(id, JobUsage::Unknown, out);
    }

    /// Refuses a job whose attempt was released.
    fn reject_released(&mut self, id: JobId, reason: RejectReason, usage: JobUsage, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.remove(&id) else { return };
        let why = self.rejection(&job.spec, reason, Some(&job));
        self.demand.note_given_up(&job.spec, self.now);
        out.push(Action::Job(JobAction::Reject { job: id, why }));
        let nothing = JobUsage::Exact(TokenCounts::default());
        let usage = if job.spec.has_fallback { nothing } else { usage };
        self.settle(job, usage);
    }

    /// Refuses a job that was taken back and has no lane any more.
    pub(super) fn refuse_returned(&mut self, id: JobId, reason: RejectReason, out: &mut Vec<Action>) {
        self.reject_released(id, reason, JobUsage::Unknown, out);
    }

    /// Ends a job's attempt at a replica. `wasted` = why the attempt was for nothing, if it was, and
    /// what it is known to have consumed.
    pub(super) fn release(
        &mut self,
        id: JobId,
        run: &RunningAttempt,
        wasted: Option<WastedUse>,
        out: &mut Vec<Action>,
    ) {
        self.jobs.forget_preemptible(id);
        self.forget_prefill(id);
        self.mark_replica(run.replica);
        let spec = self.jobs.get_mut(&id).map(|job| {
            job.preemption.migration_asked = None;
            job.spec
        });
        let pool = self.fleet.pool_of(run.replica);
        let lane = spec.as_ref().map(LaneKey::of);
        if let (Some(spec), Some(account)) = (spec, lane.and_then(|lane| self.lane_accounts(lane))) {
            let lasted = self.now.since(run.since);
            self.groups[account.group].stopped(account.class, lasted, self.now);
            self.demand.note_attempt_end(&spec, account, pool, lasted, self.now);
        }
        let (whole, time) = self.fleet.release(run.replica, &run.booking, &run.metered, self.now);
        self.invariants.check(InvariantId::LedgerBalanced, whole);
        if let Some(pool) = pool {
            self.bill(id, pool, run, time, wasted, out);
        }
        if let Some(lane) = lane {
            self.give_back_quota(lane, run.booking.seqs);
        }
    }

    /// Replaces what the tenant was charged by what the job came to. A job of
    /// which nothing is known keeps its charge if it was at a replica, and
    /// gets it back if it waited: there it consumed nothing.
    fn settle(&mut self, mut job: Job, usage: JobUsage) {
        let waits = job.part().is_some();
        let output = usage.tokens().map_or(0, |tokens| tokens.output);
        self.demand.note_left(&job.spec, output, self.now);
        let usage = usage.with_prompt(job.spec.prompt_tokens);
        let known = usage.tokens().or_else(|| waits.then(TokenCounts::default));
        self.limits.settle(&mut job, known, self.now);
        let (Some(charged), Some(tokens)) = (job.charges.fair_share, known) else { return };
        let Some(account) = self.lane_accounts(LaneKey::of(&job.spec)) else { return };
        self.recharge(account, LaneKey::of(&job.spec), charged, cost(tokens.input, tokens.output));
    }

    /// Replaces a charge of the lane's tenant in the class by another one.
    pub(super) fn recharge(&mut self, account: LaneAccounts, lane: LaneKey, charged: u64, cost: u64) {
        let who = self.weights(account.group, lane.tenant);
        let class = self.groups[account.group].class_mut(account.class);
        class.counters.adjust(&who, charged, cost, self.now);
        self.groups.note_charge(account, lane.tenant, charged, cost);
        self.refresh_counter(account, lane);
        self.groups.mark_changed(Some(account.group));
    }

    /// Takes over work that other gateways dispatched: it counts in fair shares, and in guaranteed
    /// shares of classes, as if it had been dispatched here. Accounts that this gateway does not have
    /// are left out.
    pub(super) fn served_elsewhere(&mut self, reports: &[ServiceReport]) {
        for report in reports {
            let (ServiceAccount::Tenant { pool, class, .. } | ServiceAccount::Class { pool, class }) =
                report.account;
            let Some(group) = self.placement.group_of(pool) else { continue };
            let Some(class) = self.groups[group].class(class) else { continue };
            let tokens = report.bounded_tokens();
            match report.account {
                ServiceAccount::Tenant { tenant, .. } if self.policy.tenants.get(tenant).is_some() => {
                    let who = self.weights(group, tenant);
                    self.groups[group].charge_remote(class, &who, tokens, self.now);
                }
                ServiceAccount::Tenant { .. } => continue,
                ServiceAccount::Class { .. } => {
                    self.groups[group].book_remote(class, pool, u64::try_from(tokens).unwrap_or(0));
                }
            }
            self.groups.mark_changed(Some(group));
        }
        self.groups.note_remote_leads(self.now);
    }

    /// What tenants used lately, for a gateway that has just started: `most` accounts at most, those that used most.
    pub fn past_use(&self, most: usize, now: Tick) -> Vec<ServiceReport> {
        let mut told = Vec::new();
        for index in self.groups.indexes() {
            let group = &self.groups[index];
            let Some(pool) = group.shape.pools.first().copied() else { continue };
            for class_index in group.class_indexes() {
                let class = group.class_id(class_index);
                told.extend(group.past_use(class_index, now).map(|(tenant, tokens)| ServiceReport {
                    account: ServiceAccount::Tenant { pool, class, tenant },
                    tokens: i64::try_from(tokens).unwrap_or(i64::MAX),
                }));
            }
        }
        told.sort_unstable_by_key(|report| (Reverse(report.tokens), report.account));
        told.truncate(most);
        told
    }

    /// Takes over what tenants used before this gateway started. Accounts that it does not have are left out.
    pub(super) fn used_before_start(&mut self, reports: &[ServiceReport]) {
        for report in reports {
            let ServiceAccount::Tenant { pool, class, tenant } = report.account else { continue };
            let Some(group) = self.placement.group_of(pool) else { continue };
            let Some(class) = self.groups[group].class(class) else { continue };
            if self.policy.tenants.get(tenant).is_some() {
                let who = self.weights(group, tenant);
                let counters = &mut self.groups[group].class_mut(class).counters;
                counters.add_past_use(&who, report.tokens.max(0), self.now);
            }
        }
    }

    /// The tenant's weight, boosted or not; 1 for one that is no longer in the
    /// policy.
    pub(super) fn weight(&self, tenant: TenantId) -> f64 {
        let weight = self.policy.tenants.get(tenant).map_or(1.0, |row| row.weight);
        weight * self.overrides.boost(tenant)
    }

    /// The weights of the tenant and its groups. The own requests of a group have the weight 1 among
    /// those of its children.
    pub(super) fn weights(&self, group: GroupIndex, tenant: TenantId) -> TenantWeights {
        let tree = &self.groups[group].quotas.tree;
        let weight = if tree.is_group(tenant) { 1.0 } else { self.weight(tenant) };
        let groups = tree.groups_of(tenant).into_iter();
        TenantWeights { tenant, weight, groups: groups.map(|group| (group, self.weight(group))).collect() }
    }
}
