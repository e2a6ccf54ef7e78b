//! Limits of tenants, keys and models: reserved before a job waits, settled when it ends.
//!
//! All limits of a job are checked and reserved in one step, so that jobs that arrive together
//! never exceed a limit together. A reservation is settled exactly once, whatever becomes of the
//! job: by the actual use, or by the reserved amount when the actual use is not known.
//!
//! The check of the file collects the rules in `CheckedLimits`, and they reach [`UsageLimits`] here as
//! `Policy::limits`. The scheduler asks through its `JobLimits`, which estimates a job's use and names
//! the job's [`LimitSubject`] (`limit_subject`).

pub mod account;
pub mod expected_use;
pub mod lease;
pub mod rule;
mod shared;
pub mod window;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::limits::account::{AccountShare, HELD_RETRY_AFTER, LimitAccount};
use crate::limits::lease::{LimitLease, SharedLimits};
use crate::limits::rule::{LimitId, LimitPeriod, LimitRule, LimitScope, LimitUnit, UnitAmounts, UsedAmounts};
use crate::model::ids::{KeyId, ModelId, TenantId};
use crate::model::number_map::NumberMap;
use crate::model::time::Tick;

/// State of a job's limits right after the job's arrival. Empty for a job without limits.
#[derive(Debug, Clone, Default)]
pub struct LimitsAtEntry {
    /// State of each limit, after the job's reservation.
    pub statuses: SmallVec<[LimitStatus; 4]>,
    /// Limits in shadow mode that would have refused the job.
    pub shadowed: SmallVec<[LimitId; 1]>,
}

/// Subject of limits: the tenant, key and model whose limits apply to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitSubject {
    pub tenant: TenantId,
    /// The key that the request came with.
    pub key: Option<KeyId>,
    /// The requested model.
    pub model: ModelId,
}

impl LimitSubject {
    fn scopes(&self) -> impl Iterator<Item = LimitScope> {
        let key = self.key.map(LimitScope::Key);
        [Some(LimitScope::Tenant(self.tenant)), key, Some(LimitScope::Model(self.tenant, self.model))]
            .into_iter()
            .flatten()
    }
}

/// Reservations of a job; empty once they are settled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitReservation(SmallVec<[ReservedPart; 2]>);

/// Reservation of a job in one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReservedPart {
    rule: LimitId,
    /// Epoch of the account. A reservation in an account that was closed since is not settled.
    epoch: u64,
    share: AccountShare,
}

impl LimitReservation {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The limit that a job would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LimitExceeded {
    pub rule: LimitId,
    /// The amount that the limit allows, in its unit.
    pub limit: u64,
    /// The amount that the job asks for.
    pub asked: u64,
    /// The amount that is left, in the unit of the limit.
    pub left: u64,
    /// Time until the asked amount is free at the latest, if all reservations are used. `None` when
    /// the job alone is more than the limit.
    pub retry_after: Option<Duration>,
}

impl LimitExceeded {
    /// Whether the quota of a day or month is used up, so that an early retry is pointless. Another
    /// gateway's lease may hold what is left of it, but not for long.
    pub const fn is_quota(&self) -> bool {
        matches!(self.rule.period, LimitPeriod::Day | LimitPeriod::Month) && self.left < self.asked
    }
}

/// Status of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitStatus {
    pub rule: LimitRule,
    /// The amount that is left, in the unit of the limit.
    pub left: u64,
    /// Time until the whole limit is free, if nothing more is used.
    pub reset: Duration,
}

/// The reservations of an admitted job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitGrant {
    pub reservation: LimitReservation,
    /// Limits in shadow mode that would have refused the job.
    pub shadowed: SmallVec<[LimitId; 1]>,
}

/// All limits and their accounts.
#[derive(Debug, Clone)]
pub struct UsageLimits {
    entries: NumberMap<LimitId, LimitEntry>,
    /// Units that any limit counts, by number of the unit.
    counted_units: [bool; LimitUnit::ALL.len()],
    /// The rules of each scope, in the order of the policy.
    by_scope: NumberMap<LimitScope, SmallVec<[LimitId; 2]>>,
    /// Ends of the current day and month.
    ends: [Tick; 2],
    /// Number of accounts opened since the start. The number of an account is its epoch.
    opened: u64,
    /// State of leases; absent = no other gateway counts here.
    shared: Option<SharedLimits>,
}

#[derive(Debug, Clone)]
struct LimitEntry {
    rule: LimitRule,
    epoch: u64,
    account: LimitAccount,
    /// The part of the limit that this gateway may use; absent = all of it.
    lease: Option<LimitLease>,
}

impl Default for UsageLimits {
    fn default() -> Self {
        Self {
            entries: NumberMap::default(),
            counted_units: [false; LimitUnit::ALL.len()],
            by_scope: NumberMap::default(),
            ends: [Tick::NEVER; 2],
            opened: 0,
            shared: None,
        }
    }
}

impl UsageLimits {
    /// Puts rules in force. The account of a rule that stays keeps its use, also when the rule's
    /// amount changes.
    pub fn apply(&mut self, rules: &[LimitRule]) {
        self.by_scope.clear();
        self.counted_units = LimitUnit::ALL.map(|unit| rules.iter().any(|rule| rule.id.unit == unit));
        let (mut before, before_opened) = (std::mem::take(&mut self.entries), self.opened);
        for rule in rules {
            let entry = before.remove(&rule.id).unwrap_or_else(|| {
                self.opened += 1;
                LimitEntry {
                    rule: *rule,
                    epoch: self.opened,
                    account: LimitAccount::new(rule.id.period),
                    lease: self.shared.as_ref().map(|_| LimitLease::initial(rule.amount)),
                }
            });
            let changed = entry.epoch > before_opened || entry.rule.amount != rule.amount;
            if self.entries.insert(rule.id, LimitEntry { rule: *rule, ..entry }).is_none() {
                self.by_scope.entry(rule.id.scope).or_default().push(rule.id);
            }
            if changed {
                self.list(rule.id);
            }
        }
    }

    /// Whether there are no limits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether any limit counts the unit.
    pub const fn counts(&self, unit: LimitUnit) -> bool {
        self.counted_units[unit as usize]
    }

    /// Reserves the expected use of a job. An amount that is only expected is capped at the limit:
    /// otherwise a small limit would refuse the job for ever.
    ///
    /// # Errors
    /// The limit that the job would exceed for the longest time; nothing is reserved.
    pub fn reserve(
        &mut self,
        subject: &LimitSubject,
        wanted: &UnitAmounts,
        now: Tick,
    ) -> Result<LimitGrant, LimitExceeded> {
        let mut granted = LimitGrant::default();
        if self.entries.is_empty() {
            return Ok(granted);
        }
        let mut worst: Option<LimitExceeded> = None;
        for id in self.rules_of(subject) {
            let Some(found) = self.check(id, wanted, now) else { continue };
            if id.shadow {
                granted.shadowed.push(id);
                continue;
            }
            let key = |found: &LimitExceeded| found.retry_after.unwrap_or(Duration::MAX);
            if worst.as_ref().is_none_or(|worst| key(&found) > key(worst)) {
                worst = Some(found);
            }
        }
        if let Some(worst) = worst {
            return Err(worst);
        }
        for id in self.rules_of(subject) {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let amount = wanted_of(&entry.rule, wanted);
            if amount > 0 {
                let share = entry.account.reserve(now, amount);
                granted.reservation.0.push(ReservedPart { rule: id, epoch: entry.epoch, share });
                self.reserved(id);
            }
        }
        Ok(granted)
    }

    /// Settles the reservations of a job by its actual use, and by the reserved amount where the
    /// use is not known.
    pub fn settle(&mut self, reservation: LimitReservation, used: &UsedAmounts, now: Tick) {
        self.settle_each(reservation, now, |part| used.of(part.rule.unit).unwrap_or(part.share.amount));
    }

    /// Returns all reservations of a job that never reached an engine, its request included.
    pub fn give_back(&mut self, reservation: LimitReservation, now: Tick) {
        self.settle_each(reservation, now, |_| 0);
    }

    fn settle_each(
        &mut self,
        reservation: LimitReservation,
        now: Tick,
        actual: impl Fn(&ReservedPart) -> u64,
    ) {
        for part in reservation.0 {
            let entry = self.entries.get_mut(&part.rule).filter(|entry| entry.epoch == part.epoch);
            let Some(entry) = entry else { continue };
            entry.account.settle(now, entry.rule.amount, part.share, actual(&part));
            self.list(part.rule);
        }
    }

    /// Charges the limits per minute with work that was done for a request before it reached an engine.
    /// Days and months count what engines did.
    pub fn charge_minutes(&mut self, subject: &LimitSubject, used: &UnitAmounts, now: Tick) {
        for id in self.rules_of(subject) {
            let Some(LimitEntry { rule, account, .. }) = self.entries.get_mut(&id) else { continue };
            if let LimitAccount::Minute(window) = account {
                window.charge(now, rule.amount, used.of(id.unit));
                self.list(id);
                self.reserved(id);
            }
        }
    }

    /// Whether the accounts hold exactly the given reservations.
    pub fn is_balanced<'a>(&self, reservations: impl Iterator<Item = &'a LimitReservation>) -> bool {
        let mut sums: NumberMap<(LimitId, u64), u64> = NumberMap::default();
        for part in reservations.flat_map(|reservation| &reservation.0) {
            *sums.entry((part.rule, part.epoch)).or_default() += part.share.amount;
        }
        self.entries.values().all(|LimitEntry { rule, epoch, account, .. }| {
            let held = sums.get(&(rule.id, *epoch)).copied().unwrap_or(0);
            account.reserved().is_none_or(|reserved| reserved == held)
        })
    }

    /// Starts a new day or month, which ends at `ends`.
    pub fn start_period(&mut self, period: LimitPeriod, ends: Tick) {
        let new = self.entries.values_mut().filter(|entry| entry.rule.id.period == period);
        let mut started = Vec::new();
        for entry in new {
            entry.account.start_period();
            entry.lease = entry.lease.take().map(|lease| lease.renewed(entry.rule.amount));
            started.push(entry.rule.id);
        }
        self.set_end(period, ends);
        started.into_iter().for_each(|id| self.list(id));
    }

    /// Adds an amount that was used in the current day or month before the gateway started. With
    /// leases, the other gateways know of it unless they have lost it.
    pub fn restore(&mut self, rule: LimitId, amount: u64) {
        match self.entries.get_mut(&rule) {
            Some(LimitEntry { rule, lease: Some(lease), .. }) => lease.restore(rule.amount, amount),
            Some(entry) => entry.account.restore(amount),
            None => return,
        }
        self.list(rule);
    }

    /// Sets the end of the current day or month.
    pub const fn set_end(&mut self, period: LimitPeriod, ends: Tick) {
        match period {
            LimitPeriod::Day => self.ends[0] = ends,
            LimitPeriod::Month => self.ends[1] = ends,
            LimitPeriod::Now | LimitPeriod::Minute => {}
        }
    }

    /// Status of the limits that apply to a subject.
    #[must_use]
    pub fn status_for(&mut self, subject: &LimitSubject, now: Tick) -> SmallVec<[LimitStatus; 4]> {
        self.rules_of(subject).into_iter().filter_map(|id| self.status_of(id, now)).collect()
    }

    /// Status of every limit, in the order of the ids.
    pub fn statuses(&mut self, now: Tick) -> Vec<LimitStatus> {
        let mut ids: Vec<LimitId> = self.entries.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.status_of(id, now)).collect()
    }

    fn status_of(&mut self, id: LimitId, now: Tick) -> Option<LimitStatus> {
        let ends = self.ends_of(id.period);
        let LimitEntry { rule, account, lease, .. } = self.entries.get_mut(&id)?;
        account.advance(now, rule.amount);
        let reset = account.wait(now, ends, rule.amount, rule.amount);
        let here = lease.as_ref().map_or(rule.amount, |lease| lease.limit_here(rule.amount));
        Some(LimitStatus { rule: *rule, left: here.saturating_sub(account.used()), reset })
    }

    fn rules_of(&self, subject: &LimitSubject) -> SmallVec<[LimitId; 8]> {
        subject.scopes().filter_map(|scope| self.by_scope.get(&scope)).flatten().copied().collect()
    }

    /// Why a limit refuses the job; `None` when the job fits.
    fn check(&mut self, id: LimitId, wanted: &UnitAmounts, now: Tick) -> Option<LimitExceeded> {
        let (ends, is_over) = (self.ends_of(id.period), self.are_leases_over(now));
        let LimitEntry { rule, account, lease, .. } = self.entries.get_mut(&id)?;
        let amount = wanted_of(rule, wanted);
        if amount == 0 {
            return None;
        }
        account.advance(now, rule.amount);
        let limit = rule.amount;
        let too_large = wanted.known_before_run(id.unit).max(1) > limit;
        let mut wait = account.wait(now, ends, limit, amount);
        let (mut here, mut missed) = (limit, false);
        if let Some(lease) = lease.as_mut().filter(|_| !too_large) {
            lease.asked(amount);
            here = lease.limit_here(limit);
            let most = if is_over { 0 } else { lease.most(limit, amount) };
            missed = account.used().saturating_add(amount) > most;
            if missed {
                // What only the lease lacks, the next one has.
                wait = account.wait(now, ends, here, amount).max(HELD_RETRY_AFTER);
            }
        }
        if missed {
            self.missed(id, amount);
        } else if !too_large && wait.is_zero() {
            return None;
        }
        let left = here.saturating_sub(self.entries.get(&id)?.account.used());
        let asked = if too_large { wanted.known_before_run(id.unit) } else { amount };
        Some(LimitExceeded { rule: id, limit, asked, left, retry_after: (!too_large).then_some(wait) })
    }

    /// End of a limit's period.
    const fn ends_of(&self, period: LimitPeriod) -> Tick {
        let [day, month] = self.ends;
        match period {
            LimitPeriod::Day => day,
            LimitPeriod::Month => month,
            LimitPeriod::Now | LimitPeriod::Minute => Tick::NEVER,
        }
    }
}

/// The amount of a limit that a job reserves. A job without an expected amount reserves 1, so that
/// no job is free. Only a job without output reserves no output tokens.
fn wanted_of(rule: &LimitRule, wanted: &UnitAmounts) -> u64 {
    let amount = wanted.of(rule.id.unit);
    match rule.id.unit {
        LimitUnit::OutputTokens => amount.min(rule.amount),
        _ => amount.min(rule.amount).max(1),
    }
}

#[cfg(test)]
mod tests;
