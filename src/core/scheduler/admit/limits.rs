//! Limits of a job's tenant, key and model: reserved when the job arrives and settled when it ends.
//! The scheduler does not look at limits in between.

use smallvec::SmallVec;

use crate::limits::expected_use::{ExpectedUse, ReplicaUse};
use crate::limits::rule::{LimitId, LimitPeriod, LimitRule, LimitUnit, UnitAmounts, UsedAmounts};
use crate::limits::{LimitExceeded, LimitGrant, LimitReservation, LimitStatus, LimitSubject, UsageLimits};
use crate::model::job::{JobSpec, JobUsage, TokenCounts};
use crate::model::policy::Policy;
use crate::model::time::Tick;
use crate::placement::rules::Price;
use crate::replica::fleet::Fleet;
use crate::replica::ledger::Ledger;
use crate::replica::speed::{step_time, ttft_model};

use crate::scheduler::job::{Job, JobCharges};

const fn limit_subject(spec: &JobSpec) -> LimitSubject {
    LimitSubject { tenant: spec.tenant, key: spec.key, model: spec.model }
}

/// What jobs may use: the limits in force, and the use that is expected of a job and reserved for it.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct JobLimits {
    limits: UsageLimits,
    expected_use: ExpectedUse,
}

impl JobLimits {
    /// Reserves the expected use of the job: tokens, replica time and money.
    pub(in crate::scheduler) fn reserve(
        &mut self,
        spec: &JobSpec,
        policy: &Policy,
        fleet: &Fleet,
        now: Tick,
    ) -> Result<LimitGrant, LimitExceeded> {
        if self.limits.is_empty() {
            return Ok(LimitGrant::default());
        }
        let output = self.expected_use.output(spec);
        let spend = self.expected_spend(spec, output, policy, fleet);
        let wanted = UnitAmounts { input: spec.prompt_tokens, output, ..spend };
        self.limits.reserve(&limit_subject(spec), &wanted, now)
    }

    /// Expected replica time of the job in nanoseconds, and its cost; zero for what no limit
    /// counts. Until the use of such jobs is known, the estimate is the time that the job would
    /// take alone at a replica, at the highest price of the pools that may serve it.
    fn expected_spend(&self, spec: &JobSpec, output: u64, policy: &Policy, fleet: &Fleet) -> UnitAmounts {
        let [gpu, money] = [LimitUnit::GpuTime, LimitUnit::Money].map(|unit| self.limits.counts(unit));
        if !gpu && !money {
            return UnitAmounts::default();
        }
        let known = self.expected_use.replica_use(spec);
        let pools = policy.models.get(spec.model).map_or(&[][..], |model| &model.pools);
        let alone = || {
            let per_token = fleet.per_token(pools);
            let steps = output / u64::from(spec.sequences.max(1));
            let slow = per_token / step_time::ttft_model(&Ledger::default()).per_token as f64;
            let writes = step_time::decode_step(&Ledger::default()).saturating_mul(steps) as f64 * slow;
            (ttft_model::weight(spec.prompt_tokens, 0) as f64 * per_token + writes) as u64
        };
        let time = known.gpu.unwrap_or_else(alone);
        let prices = pools.iter().filter_map(|pool| policy.pools.get(*pool)?.traits.price);
        let at_most = |price: Option<Price>| price.map_or(0, |price| price.cost_of(time));
        let money = known.money.unwrap_or_else(|| at_most(prices.max()));
        UnitAmounts { gpu: time, money, ..UnitAmounts::default() }
    }

    /// Learns from a complete answer how much to reserve for later jobs.
    pub(in crate::scheduler) fn learn(&mut self, job: &Job, usage: JobUsage) {
        if !self.limits.is_empty()
            && let JobUsage::Exact(tokens) = usage
        {
            self.expected_use.learn(&job.spec, tokens.output);
            let JobCharges { replica_time: gpu, money, .. } = job.charges;
            let [times, prices] = [LimitUnit::GpuTime, LimitUnit::Money].map(|unit| self.limits.counts(unit));
            let used = ReplicaUse { gpu: (times || prices).then_some(gpu), money: prices.then_some(money) };
            self.expected_use.learn_replica_use(&job.spec, used);
        }
    }

    /// Replaces the job's reservation by its use: tokens as far as they are known, time and
    /// money by its bills. Bills of failed attempts count too. A job that was never dispatched
    /// gives its whole reservation back.
    pub(in crate::scheduler) fn settle(&mut self, job: &mut Job, used: Option<TokenCounts>, now: Tick) {
        let hold = std::mem::take(&mut job.charges.reservation);
        if hold.is_empty() {
            return;
        }
        if job.attempts == 0 {
            return self.limits.give_back(hold, now);
        }
        let TokenCounts { input, output, .. } = used.unwrap_or_default();
        let amounts = UnitAmounts { input, output, gpu: job.charges.replica_time, money: job.charges.money };
        self.limits.settle(hold, &UsedAmounts { amounts, tokens_known: used.is_some() }, now);
    }

    /// Charges a prompt that was denied before its request became a job: one request with its tokens.
    pub(in crate::scheduler) fn prompt_denied(&mut self, subject: &LimitSubject, tokens: u64, now: Tick) {
        self.limits.charge_minutes(subject, &UnitAmounts { input: tokens, ..UnitAmounts::default() }, now);
    }

    /// Puts the limits of a policy in force.
    pub(in crate::scheduler) fn apply(&mut self, rules: &[LimitRule]) {
        self.limits.apply(rules);
    }

    /// Forgets what was learned of models and tenants that are no longer in the policy.
    pub(in crate::scheduler) fn forget_unknown(&mut self, policy: &Policy) {
        self.expected_use.retain(policy);
    }

    /// The limits, to share them with other gateways.
    pub(in crate::scheduler) const fn shared(&self) -> &UsageLimits {
        &self.limits
    }

    pub(in crate::scheduler) const fn shared_mut(&mut self) -> &mut UsageLimits {
        &mut self.limits
    }

    /// Starts a new day or month, which ends at `ends`.
    pub(in crate::scheduler) fn start_period(&mut self, period: LimitPeriod, ends: Tick) {
        self.limits.start_period(period, ends);
    }

    /// Adds an amount that was used in the current day or month before the gateway started.
    pub(in crate::scheduler) fn restore(&mut self, rule: LimitId, amount: u64) {
        self.limits.restore(rule, amount);
    }

    /// Status of the limits that apply to a job like this one.
    pub(in crate::scheduler) fn status_for(
        &mut self,
        spec: &JobSpec,
        now: Tick,
    ) -> SmallVec<[LimitStatus; 4]> {
        if self.limits.is_empty() {
            return SmallVec::new();
        }
        self.limits.status_for(&limit_subject(spec), now)
    }

    /// State of all limits, in a fixed order.
    pub(in crate::scheduler) fn statuses(&mut self, now: Tick) -> Vec<LimitStatus> {
        self.limits.statuses(now)
    }

    /// Whether the limits hold exactly these reservations.
    pub(in crate::scheduler) fn is_balanced<'a>(
        &self,
        holds: impl Iterator<Item = &'a LimitReservation>,
    ) -> bool {
        self.limits.is_balanced(holds)
    }
}
