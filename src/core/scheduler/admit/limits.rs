//! Limits of a job's tenant and key: reserved when the job arrives, settled when it ends, and
//! never looked at in between.

use smallvec::SmallVec;

use crate::core::limits::rule::{LimitUnit, UnitAmounts, UsedAmounts};
use crate::core::limits::{LimitExceeded, LimitGrant, LimitStatus, LimitSubject};
use crate::core::model::job::{JobSpec, JobUsage, TokenCounts};
use crate::core::model::time::Tick;
use crate::core::placement::rules::Price;
use crate::core::replica::ledger::Ledger;
use crate::core::replica::speed::ttft_model;

use crate::core::scheduler::Scheduler;
use crate::core::scheduler::job::Job;

const fn payer(spec: &JobSpec) -> LimitSubject {
    LimitSubject { tenant: spec.tenant, key: spec.key, model: spec.model }
}

impl Scheduler {
    /// Reserves what the job is expected to use.
    pub(in crate::core::scheduler) fn reserve(
        &mut self,
        spec: &JobSpec,
    ) -> Result<LimitGrant, LimitExceeded> {
        if self.limits.is_empty() {
            return Ok(LimitGrant::default());
        }
        let output = self.expected.output(spec);
        let (gpu, money) = self.expect_spent(spec, output);
        let wanted = UnitAmounts { input: spec.prompt_tokens, output, gpu, money };
        self.limits.reserve(&payer(spec), &wanted, self.now)
    }

    /// Nanoseconds of a replica's time that the job is expected to take, and what
    /// they cost, as far as somebody's are limited. As long as nobody knows, what
    /// it would take if it had a replica to itself, at the highest price of those
    /// that may serve it.
    fn expect_spent(&self, spec: &JobSpec, output: u64) -> (u64, u64) {
        let [gpu, money] = [LimitUnit::GpuTime, LimitUnit::Money].map(|unit| self.limits.counts(unit));
        if !gpu && !money {
            return (0, 0);
        }
        let (known, priced) = self.expected.spent(spec);
        let pools = self.policy.models.get(spec.model).map_or(&[][..], |model| &model.pools);
        let alone = || {
            let per_token = self.fleet.per_token(pools);
            let steps = output / u64::from(spec.sequences.max(1));
            let slow = per_token / ttft_model::outlook(&Ledger::default()).per_token as f64;
            let writes = ttft_model::decode_step(&Ledger::default()).saturating_mul(steps) as f64 * slow;
            (ttft_model::weight(spec.prompt_tokens, 0) as f64 * per_token + writes) as u64
        };
        let time = known.unwrap_or_else(alone);
        let prices = pools.iter().filter_map(|pool| self.policy.pools.get(*pool)?.supply.price);
        let at_most = |price: Option<Price>| price.map_or(0, |price| price.of(time));
        (time, priced.unwrap_or_else(|| at_most(prices.max())))
    }

    /// Learns from a whole answer how much to reserve.
    pub(in crate::core::scheduler) fn learn_use(&mut self, job: &Job, usage: JobUsage) {
        if !self.limits.is_empty()
            && let JobUsage::Exact(tokens) = usage
        {
            self.expected.learn(&job.spec, tokens.output);
            let (gpu, money) = job.spent;
            let [times, prices] = [LimitUnit::GpuTime, LimitUnit::Money].map(|unit| self.limits.counts(unit));
            let learned = ((times || prices).then_some(gpu), prices.then_some(money));
            self.expected.learn_spent(&job.spec, learned);
        }
    }

    /// Settles what the job has reserved by what it used: tokens as far as they
    /// are known, time and money by its bills, of tries that failed too. One that was never at an engine gives all of it back.
    pub(in crate::core::scheduler) fn settle_limits(&mut self, job: &mut Job, used: Option<TokenCounts>) {
        let hold = std::mem::take(&mut job.reservation);
        if hold.is_empty() {
            return;
        }
        if job.attempts == 0 {
            return self.limits.give_back(hold, self.now);
        }
        let TokenCounts { input, output, .. } = used.unwrap_or_default();
        let amounts = UnitAmounts { input, output, gpu: job.spent.0, money: job.spent.1 };
        self.limits.settle(hold, &UsedAmounts { amounts, tokens_known: used.is_some() }, self.now);
    }

    /// New limits are in force.
    pub(in crate::core::scheduler) fn change_limits(&mut self) {
        self.limits.apply(&self.policy.limits);
        self.expected.retain(&self.policy);
    }

    /// How it stands with the limits that a job like this meets; the tightest
    /// may refuse it.
    pub fn limits_of(&mut self, spec: &JobSpec, now: Tick) -> SmallVec<[LimitStatus; 4]> {
        if self.limits.is_empty() {
            return SmallVec::new();
        }
        self.limits.status_for(&payer(spec), self.now.max(now))
    }

    /// How it stands with all limits, in a fixed order.
    pub fn limits(&mut self, now: Tick) -> Vec<LimitStatus> {
        self.limits.statuses(self.now.max(now))
    }
}
