//! What a job may use by its tenant's and key's limits: reserved when it
//! arrives, settled when it ends, and never looked at in between.

use smallvec::SmallVec;

use crate::core::budget::rule::Amounts;
use crate::core::budget::{Exceeded, Hold, Payer, Standing};
use crate::core::event::Action;
use crate::core::job::{JobSpec, Tokens, Usage};
use crate::core::time::Tick;

use super::Scheduler;
use super::job::Job;

const fn payer(spec: &JobSpec) -> Payer {
    Payer { tenant: spec.tenant, key: spec.key, model: spec.model }
}

impl Scheduler {
    /// Reserves what the job is expected to use.
    pub(super) fn reserve(&mut self, spec: &JobSpec, out: &mut Vec<Action>) -> Result<Hold, Exceeded> {
        if self.budgets.is_empty() {
            return Ok(Hold::default());
        }
        let output = self.expected.output(spec);
        let wanted = Amounts { input: spec.prompt_tokens, output, gpu: 0, money: 0 };
        let granted = self.budgets.reserve(&payer(spec), &wanted, self.now)?;
        let would = granted.shadowed.into_iter().map(|rule| Action::WouldLimit { job: spec.id, rule });
        out.extend(would);
        Ok(granted.hold)
    }

    /// Learns from a whole answer how much output to reserve.
    pub(super) fn learn_output(&mut self, spec: &JobSpec, usage: Usage) {
        if !self.budgets.is_empty()
            && let Usage::Exact(tokens) = usage
        {
            self.expected.learn(spec, tokens.output);
        }
    }

    /// Settles what the job has reserved by what it used, as far as that is
    /// known. One that was never at an engine gives all of it back.
    pub(super) fn settle_limits(&mut self, job: &mut Job, used: Option<Tokens>) {
        let hold = std::mem::take(&mut job.hold);
        if hold.is_empty() {
            return;
        }
        if job.tries == 0 {
            return self.budgets.give_back(hold, self.now);
        }
        let used =
            used.map(|tokens| Amounts { input: tokens.input, output: tokens.output, gpu: 0, money: 0 });
        self.budgets.settle(hold, used.as_ref(), self.now);
    }

    /// New limits are in force.
    pub(super) fn change_limits(&mut self) {
        self.budgets.apply(&self.policy.limits);
        self.expected.retain(&self.policy);
    }

    /// How it stands with the limits that a job like this meets; the tightest
    /// may refuse it.
    pub fn limits_of(&mut self, spec: &JobSpec, now: Tick) -> SmallVec<[Standing; 4]> {
        if self.budgets.is_empty() {
            return SmallVec::new();
        }
        self.budgets.standing(&payer(spec), self.now.max(now))
    }

    /// How it stands with all limits, in a fixed order.
    pub fn limits(&mut self, now: Tick) -> Vec<Standing> {
        self.budgets.all(self.now.max(now))
    }
}
