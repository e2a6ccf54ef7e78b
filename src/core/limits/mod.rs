//! Limits of tenants, keys and models: reserved before a job waits, settled when it ends.
//!
//! All limits of a job are checked and reserved in one step, so that many that
//! come at once never pass one together. What a job holds is settled exactly
//! once, whatever becomes of it: by what it used, or as it was reserved where
//! nobody knows.

pub mod account;
pub mod expected_use;
pub mod rule;
pub mod window;

use std::time::Duration;

use smallvec::SmallVec;

use crate::core::limits::account::{AccountShare, LimitAccount};
use crate::core::limits::rule::{
    LimitId, LimitPeriod, LimitRule, LimitScope, LimitUnit, UnitAmounts, UsedAmounts,
};
use crate::core::model::ids::{KeyId, ModelId, TenantId};
use crate::core::model::number_map::NumberMap;
use crate::core::model::time::Tick;

/// Whose limits a job meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSubject {
    /// Who it is for.
    pub tenant: TenantId,
    /// The key that it came with.
    pub key: Option<KeyId>,
    /// What it asks for.
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

/// What a job has reserved. Empty once it is settled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitReservation(SmallVec<[ReservedPart; 2]>);

/// What it has reserved of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReservedPart {
    rule: LimitId,
    /// Of the account: one that was closed in between is not settled.
    epoch: u64,
    share: AccountShare,
}

impl LimitReservation {
    /// Whether nothing is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The limit that a job would pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LimitExceeded {
    /// Which.
    pub rule: LimitId,
    /// How much it allows.
    pub limit: u64,
    /// How much the job asks for.
    pub asked: u64,
    /// How much is left.
    pub left: u64,
    /// When so much is free at the latest, if what is reserved is used; absent
    /// when it never is, since the job alone is more than the limit.
    pub retry_after: Option<Duration>,
}

impl LimitExceeded {
    /// Whether a day's or month's quota is spent, so that trying again soon is
    /// pointless.
    #[must_use]
    pub const fn is_quota(&self) -> bool {
        matches!(self.rule.period, LimitPeriod::Day | LimitPeriod::Month)
    }
}

/// How it stands with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitStatus {
    /// Which.
    pub rule: LimitRule,
    /// How much is left.
    pub left: u64,
    /// How long until all of it is free, if nothing more is used.
    pub reset: Duration,
}

/// What a job was granted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitGrant {
    /// What it has reserved.
    pub reservation: LimitReservation,
    /// Limits in shadow mode that would have refused it.
    pub shadowed: SmallVec<[LimitId; 1]>,
}

/// All limits and their accounts.
#[derive(Debug, Clone)]
pub struct UsageLimits {
    entries: NumberMap<LimitId, LimitEntry>,
    /// Which units are limited, for anybody.
    counted: [bool; LimitUnit::ALL.len()],
    /// The rules of each scope, in their order.
    of: NumberMap<LimitScope, SmallVec<[LimitId; 2]>>,
    /// When the day and the month end.
    ends: [Tick; 2],
    /// Accounts opened since the start.
    opened: u64,
}

#[derive(Debug, Clone)]
struct LimitEntry {
    rule: LimitRule,
    epoch: u64,
    account: LimitAccount,
}

impl Default for UsageLimits {
    fn default() -> Self {
        Self {
            entries: NumberMap::default(),
            counted: [false; LimitUnit::ALL.len()],
            of: NumberMap::default(),
            ends: [Tick::NEVER; 2],
            opened: 0,
        }
    }
}

impl UsageLimits {
    /// Puts rules in force. An account whose rule stays keeps what was used,
    /// also when the amount changes.
    pub fn apply(&mut self, rules: &[LimitRule]) {
        self.of.clear();
        self.counted = LimitUnit::ALL.map(|unit| rules.iter().any(|rule| rule.id.unit == unit));
        let mut before = std::mem::take(&mut self.entries);
        for rule in rules {
            let entry = before.remove(&rule.id).unwrap_or_else(|| {
                self.opened += 1;
                LimitEntry { rule: *rule, epoch: self.opened, account: LimitAccount::new(rule.id.period) }
            });
            if self.entries.insert(rule.id, LimitEntry { rule: *rule, ..entry }).is_none() {
                self.of.entry(rule.id.scope).or_default().push(rule.id);
            }
        }
    }

    /// Whether there are any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether anybody's use of the unit is limited.
    #[must_use]
    pub const fn counts(&self, unit: LimitUnit) -> bool {
        self.counted[unit as usize]
    }

    /// Reserves what a job is expected to use. What is only a guess is never
    /// more than a limit allows: else one that is small would refuse for ever.
    ///
    /// # Errors
    /// The limit that it would pass for the longest time; nothing is reserved.
    pub fn reserve(
        &mut self,
        payer: &LimitSubject,
        wanted: &UnitAmounts,
        now: Tick,
    ) -> Result<LimitGrant, LimitExceeded> {
        let mut granted = LimitGrant::default();
        if self.entries.is_empty() {
            return Ok(granted);
        }
        let mut worst: Option<LimitExceeded> = None;
        for id in self.rules_of(payer) {
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
        for id in self.rules_of(payer) {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let amount = wanted_of(&entry.rule, wanted);
            if amount > 0 {
                let share = entry.account.reserve(now, amount);
                granted.reservation.0.push(ReservedPart { rule: id, epoch: entry.epoch, share });
            }
        }
        Ok(granted)
    }

    /// Settles what a job has reserved by what it used; by what it reserved
    /// where that is not known.
    pub fn settle(&mut self, hold: LimitReservation, used: &UsedAmounts, now: Tick) {
        self.settle_each(hold, now, |part| used.of(part.rule.unit).unwrap_or(part.share.amount));
    }

    /// Gives back all that a job has reserved, its request included: it never
    /// came to an engine.
    pub fn give_back(&mut self, hold: LimitReservation, now: Tick) {
        self.settle_each(hold, now, |_| 0);
    }

    fn settle_each(&mut self, hold: LimitReservation, now: Tick, actual: impl Fn(&ReservedPart) -> u64) {
        for part in hold.0 {
            let entry = self.entries.get_mut(&part.rule).filter(|entry| entry.epoch == part.epoch);
            let Some(entry) = entry else { continue };
            entry.account.settle(now, entry.rule.amount, part.share, actual(&part));
        }
    }

    /// Whether what is reserved is what these jobs hold, and nothing else.
    #[must_use]
    pub fn is_balanced<'a>(&self, holds: impl Iterator<Item = &'a LimitReservation>) -> bool {
        let mut sums: NumberMap<(LimitId, u64), u64> = NumberMap::default();
        for part in holds.flat_map(|hold| &hold.0) {
            *sums.entry((part.rule, part.epoch)).or_default() += part.share.amount;
        }
        self.entries.values().all(|LimitEntry { rule, epoch, account }| {
            let held = sums.get(&(rule.id, *epoch)).copied().unwrap_or(0);
            account.reserved().is_none_or(|reserved| reserved == held)
        })
    }

    /// A day or month has begun and ends then.
    pub fn begin(&mut self, period: LimitPeriod, ends: Tick) {
        let new = self.entries.values_mut().filter(|entry| entry.rule.id.period == period);
        new.for_each(|entry| entry.account.begin());
        self.set_end(period, ends);
    }

    /// Adds what was used in the day or month before the start.
    pub fn restore(&mut self, rule: LimitId, amount: u64) {
        if let Some(entry) = self.entries.get_mut(&rule) {
            entry.account.restore(amount);
        }
    }

    /// When the day or month ends that is now.
    pub const fn set_end(&mut self, period: LimitPeriod, ends: Tick) {
        match period {
            LimitPeriod::Day => self.ends[0] = ends,
            LimitPeriod::Month => self.ends[1] = ends,
            LimitPeriod::Now | LimitPeriod::Minute => {}
        }
    }

    /// How it stands with a payer's limits.
    #[must_use]
    pub fn status_for(&mut self, payer: &LimitSubject, now: Tick) -> SmallVec<[LimitStatus; 4]> {
        self.rules_of(payer).into_iter().filter_map(|id| self.status_of(id, now)).collect()
    }

    /// How it stands with every limit.
    pub fn statuses(&mut self, now: Tick) -> Vec<LimitStatus> {
        let mut ids: Vec<LimitId> = self.entries.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.status_of(id, now)).collect()
    }

    fn status_of(&mut self, id: LimitId, now: Tick) -> Option<LimitStatus> {
        let ends = self.ends_of(id.period);
        let LimitEntry { rule, account, .. } = self.entries.get_mut(&id)?;
        account.advance(now, rule.amount);
        let reset = account.wait(now, ends, rule.amount, rule.amount);
        Some(LimitStatus { rule: *rule, left: rule.amount.saturating_sub(account.used()), reset })
    }

    fn rules_of(&self, payer: &LimitSubject) -> SmallVec<[LimitId; 8]> {
        payer.scopes().filter_map(|scope| self.of.get(&scope)).flatten().copied().collect()
    }

    /// Why a limit does not let the job in.
    fn check(&mut self, id: LimitId, wanted: &UnitAmounts, now: Tick) -> Option<LimitExceeded> {
        let ends = self.ends_of(id.period);
        let LimitEntry { rule, account, .. } = self.entries.get_mut(&id)?;
        let amount = wanted_of(rule, wanted);
        if amount == 0 {
            return None;
        }
        account.advance(now, rule.amount);
        let limit = rule.amount;
        let too_large = wanted.least(id.unit).max(1) > limit;
        let wait = account.wait(now, ends, limit, amount);
        if !too_large && wait.is_zero() {
            return None;
        }
        let left = limit.saturating_sub(account.used());
        let asked = if too_large { wanted.least(id.unit) } else { amount };
        Some(LimitExceeded { rule: id, limit, asked, left, retry_after: (!too_large).then_some(wait) })
    }

    const fn ends_of(&self, period: LimitPeriod) -> Tick {
        match period {
            LimitPeriod::Day => self.ends[0],
            LimitPeriod::Month => self.ends[1],
            LimitPeriod::Now | LimitPeriod::Minute => Tick::NEVER,
        }
    }
}

/// How much of a limit the job reserves. Nothing is free: what is not known
/// yet counts as one. Only output is nothing where there is none.
fn wanted_of(rule: &LimitRule, wanted: &UnitAmounts) -> u64 {
    let amount = wanted.of(rule.id.unit);
    match rule.id.unit {
        LimitUnit::OutputTokens => amount.min(rule.amount),
        _ => amount.min(rule.amount).max(1),
    }
}

#[cfg(test)]
mod tests;
