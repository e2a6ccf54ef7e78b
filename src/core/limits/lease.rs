//! Lease of a limit that several gateways share: the part of the limit that this gateway may use.
//!
//! The gateways' leases of a limit add up to the limit at most. A gateway that lowers its lease does
//! so before it tells the others, and raises it only after they have been told. So what all of them
//! have used and reserved never passes the limit, whichever message is lost.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::limits::account::LimitAccount;
use crate::limits::rule::{LimitId, LimitPeriod, LimitRule};
use crate::model::time::Tick;

/// The part of a limit that each gateway may use of a limit that it has no lease of yet.
const START_PART: u64 = 8;
/// A limit below this many times the amount of a request for each gateway cannot be divided: each
/// gateway may then pass its lease by one request, while anything of the limit is free.
const SMALL_LIMIT: u64 = 8;
/// Time over which the demand of a gateway is averaged, in seconds.
const DEMAND_SECONDS: f64 = 5.0;

/// What this gateway tells the others of one limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitUse {
    pub rule: LimitRule,
    /// Number of the account: another one counts from 0.
    pub epoch: u64,
    /// End of the day or month; `NEVER` for other periods.
    pub ends: Tick,
    /// Amount used; the part of it that is only reserved is left out where the account knows it.
    pub used: u64,
    /// Amount used and reserved.
    pub held: u64,
    /// The lease that the gateway keeps until it gets another one.
    pub ceiling: u64,
    /// Amount that the lease has refused since the last report.
    pub missed: u64,
    /// Amount that was asked for lately.
    pub demand: u64,
    /// Amount that other gateways and earlier runs have used, as far as this gateway knows.
    pub others: u64,
}

/// A part of a report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LimitReports {
    pub reports: Vec<LimitUse>,
    /// Limits that had changed and are not in this part.
    pub left: usize,
    /// Whether the gateway leaves: all its limits are to be reported once more.
    pub leaves: bool,
}

/// A lease as the others have agreed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    pub rule: LimitId,
    pub epoch: u64,
    pub ends: Tick,
    /// The most that this gateway may have used and reserved.
    pub ceiling: u64,
    /// What it may keep beyond that when it reports next.
    pub keep: u64,
    /// Its share while others miss something; absent = nobody does.
    pub share: Option<u64>,
    /// Amount that the other gateways have used.
    pub others: u64,
    /// Amount that nobody has a lease of.
    pub free: u64,
    /// Number of gateways.
    pub gateways: u64,
}

/// The lease of one limit.
#[derive(Debug, Clone)]
pub(super) struct LimitLease {
    pub(super) ceiling: u64,
    pub(super) keep: u64,
    share: u64,
    pub(super) others: u64,
    pub(super) free: u64,
    gateways: u64,
    pub(super) missed: u64,
    asked: u64,
    demand: f64,
    demand_at: Tick,
    /// Whether the limit is among those to report.
    pub(super) is_listed: bool,
}

/// What the limits need for leases.
#[derive(Debug, Clone)]
pub(super) struct SharedLimits {
    /// Time from which leases are not used any more.
    pub(super) until: Tick,
    /// Limits to report, each once.
    pub(super) changed: VecDeque<LimitId>,
    /// Limits whose report cannot wait: a request was refused for want of a lease, or has passed one.
    pub(super) urgent: BTreeSet<LimitId>,
    /// Whether the gateway admits nothing more.
    pub(super) is_leaving: bool,
    /// Whether the exchange has yet to hear of that.
    pub(super) leave_is_news: bool,
}

impl LimitLease {
    /// The lease of a limit of a new day or month.
    pub(super) const fn renewed(&self, limit: u64) -> Self {
        Self { is_listed: self.is_listed, ..Self::initial(limit) }
    }

    /// The lease of a limit that no other gateway was asked about.
    pub(super) const fn initial(limit: u64) -> Self {
        let part = limit.div_ceil(START_PART);
        Self {
            ceiling: part,
            // The first report gives it back, as the others do not know of it.
            keep: 0,
            share: u64::MAX,
            others: 0,
            free: 0,
            gateways: 1,
            missed: 0,
            asked: 0,
            demand: 0.0,
            demand_at: Tick::ZERO,
            is_listed: false,
        }
    }

    /// Most that may be used and reserved after a reservation of `amount`.
    pub(super) const fn most(&self, limit: u64, amount: u64) -> u64 {
        let is_small = limit < amount.saturating_mul(SMALL_LIMIT * self.gateways);
        self.ceiling.saturating_add(if is_small { self.free } else { 0 })
    }

    /// Amount that no other gateway has used.
    pub(super) const fn limit_here(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.others)
    }

    pub(super) const fn asked(&mut self, amount: u64) {
        self.asked = self.asked.saturating_add(amount);
    }

    /// The rest of the period was used in an earlier run.
    pub(super) fn restore(&mut self, limit: u64, amount: u64) {
        self.others = self.others.max(amount);
        self.ceiling = self.ceiling.min(self.limit_here(limit));
    }

    /// Lowers the lease to what the gateway needs, and returns the report. The account must have been
    /// advanced to the present.
    pub(super) fn report(
        &mut self,
        rule: LimitRule,
        epoch: u64,
        ends: Tick,
        account: &LimitAccount,
        now: Tick,
    ) -> LimitUse {
        let (used, held) = (account.settled(), account.used());
        let passed = (now.since(self.demand_at).as_secs_f64() / DEMAND_SECONDS).min(1.0);
        self.demand = self.demand * (1.0 - passed) + self.asked as f64;
        self.demand_at = now;
        self.asked = 0;
        self.ceiling = self.ceiling.min(held.saturating_add(self.keep)).min(self.share).max(held);
        let missed = std::mem::take(&mut self.missed).min(rule.amount);
        let (ceiling, others) = (self.ceiling, self.others);
        LimitUse { rule, epoch, ends, used, held, ceiling, missed, demand: self.demand as u64, others }
    }

    pub(super) const fn grant(&mut self, grant: &LeaseGrant) {
        self.ceiling = if grant.ceiling > self.ceiling { grant.ceiling } else { self.ceiling };
        self.keep = grant.keep;
        self.share = match grant.share {
            Some(share) => share,
            None => u64::MAX,
        };
        // What was used in a day does not become less, whatever the store has lost.
        self.others = match grant.rule.period {
            LimitPeriod::Day | LimitPeriod::Month if grant.others < self.others => self.others,
            _ => grant.others,
        };
        self.free = grant.free;
        self.gateways = if grant.gateways == 0 { 1 } else { grant.gateways };
    }
}
