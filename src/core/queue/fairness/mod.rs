//! Fairness counters: virtual counters of tenants, and credit of guaranteed shares of classes.

pub mod gateways;
mod past_use;
mod remote_lead;
pub mod service;

use std::time::Duration;

use smallvec::SmallVec;

use crate::model::ids::TenantId;
use crate::model::number_map::NumberMap;
use crate::model::policy::tenants::MAX_TENANT_LEVELS;
use crate::model::time::Tick;

pub use self::remote_lead::FADE_INTERVAL;

use self::past_use::{PastUse, UseHolder};
use self::remote_lead::RemoteLeads;

/// Units of a virtual counter that one token costs a tenant of weight 1.
const UNIT: f64 = 1024.0;
/// The most that a tenant of weight 1 is owed when it comes back, in jobs of the mean cost. A tenant
/// that asks for less than its share sends some requests close to each other; with nothing owed,
/// each of them would wait until the others have caught up with the one before. With much more, a
/// tenant that was away would hold up all others.
const MAX_CREDIT_JOBS: f64 = 8.0;
/// Fairness quantum in bits of a virtual counter: 4,096 tokens at weight 1. Among tenants whose
/// counters are in the same quantum, those whose next job is in time go first.
const QUANTUM_BITS: u32 = 22;
/// Weight of the newest job in the mean cost.
const NEWEST_COST: f64 = 1.0 / 64.0;
/// The most that a class is owed, in jobs: the larger of the mean cost of its own jobs and the cost
/// that its credit comes from. Without a bound, a class whose jobs fit nowhere for a while would then
/// go before all others for as long.
const MAX_OWED_JOBS: f64 = 32.0;

/// Cost of a job in tokens. An output token counts double, since it holds the engine longer than an
/// input token.
pub const fn cost(input: u64, output: u64) -> u64 {
    input.saturating_add(output.saturating_mul(2))
}

/// A tenant with its weight among its siblings, and the groups that pay with it, the innermost
/// first, each with its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantWeights {
    pub tenant: TenantId,
    pub weight: f64,
    pub groups: SmallVec<[(TenantId, f64); MAX_TENANT_LEVELS]>,
}

impl TenantWeights {
    /// The tenant and its groups, each with its weight and the group in which it competes.
    fn charged_accounts(&self) -> impl Iterator<Item = (UseHolder, f64)> {
        let groups = self.groups.iter().map(|(group, weight)| (*group, *weight, true));
        let charged_accounts = [(self.tenant, self.weight, false)].into_iter().chain(groups);
        let within = self.groups.iter().map(|(group, _)| Some(*group)).chain([None]);
        charged_accounts
            .zip(within)
            .map(|((tenant, weight, is_group), within)| (UseHolder { tenant, is_group, within }, weight))
    }
}

/// Virtual counter of a group of tenants.
#[derive(Debug, Clone, Copy, Default)]
struct GroupCounter {
    counter: u128,
    /// The largest counter that one of the group's children had at a dispatch.
    max_served: u128,
}

/// Virtual counters of tenants within a class, and of groups of tenants: cost over weight, since
/// the start. Among siblings the one with the least counter goes first. Siblings that wait at the
/// same time therefore get work in proportion to their weights.
#[derive(Debug, Clone, Default)]
pub struct FairCounters {
    tenants: NumberMap<TenantId, u128>,
    groups: NumberMap<TenantId, GroupCounter>,
    /// Mean cost of a job.
    mean_cost: f64,
    /// Use that counts against tenants; absent in a class without a half-life.
    past_use: Option<PastUse>,
    /// Leads of tenants by service at other gateways.
    remote: RemoteLeads,
}

impl FairCounters {
    pub fn get(&self, tenant: TenantId) -> u128 {
        self.tenants.get(&tenant).copied().unwrap_or(0)
    }

    pub fn group(&self, group: TenantId) -> u128 {
        self.groups.get(&group).map_or(0, |own| own.counter)
    }

    /// The largest counter that a child of the group had at a dispatch.
    pub fn max_served(&self, group: TenantId) -> u128 {
        self.groups.get(&group).map_or(0, |own| own.max_served)
    }

    /// Notes a dispatch of the tenant in its groups. Returns the counter that decided among the
    /// outermost siblings.
    pub fn note_served(&mut self, tenant: TenantId, groups: &[TenantId]) -> u128 {
        groups.iter().fold(self.get(tenant), |counter, group| {
            let own = self.groups.entry(*group).or_default();
            own.max_served = own.max_served.max(counter);
            own.counter
        })
    }

    /// Charges a tenant and its groups for work that is about to be dispatched.
    pub fn charge(&mut self, who: &TenantWeights, cost: u64, now: Tick) {
        let newest = if self.mean_cost > 0.0 { NEWEST_COST } else { 1.0 };
        self.mean_cost += (cost as f64 - self.mean_cost) * newest;
        if !self.remote.is_empty() {
            who.charged_accounts().for_each(|(holder, _)| self.remote.note_served(holder));
        }
        self.adjust(who, 0, cost, now);
    }

    /// Replaces the cost that was booked for a job by its actual cost.
    pub fn adjust(&mut self, who: &TenantWeights, booked: u64, actual: u64, now: Tick) {
        for (holder, weight) in who.charged_accounts() {
            let factor = self.past_use.as_ref().map_or(1.0, |past| past.factor(holder, weight));
            let counter = match holder.is_group {
                true => &mut self.groups.entry(holder.tenant).or_default().counter,
                false => self.tenants.entry(holder.tenant).or_default(),
            };
            let weight_now = weight * factor;
            *counter =
                counter.saturating_add(scaled(actual, weight_now)).saturating_sub(scaled(booked, weight_now));
            if let Some(past) = &mut self.past_use {
                past.add(holder, weight, actual as f64 - booked as f64, now);
            }
        }
    }

    /// Charges a tenant and its groups for work that other gateways dispatched for it; below 0 is a
    /// correction, which earns no more than an absence does. `waiting` gives the least counter of those
    /// who wait in a group of tenants.
    pub fn charge_remote(
        &mut self,
        who: &TenantWeights,
        tokens: i64,
        now: Tick,
        waiting: &dyn Fn(Option<TenantId>) -> Option<u128>,
    ) {
        let most = self.max_credit();
        for (holder, weight) in who.charged_accounts() {
            let factor = self.past_use.as_ref().map_or(1.0, |past| past.factor(holder, weight));
            let amount = scaled(tokens.unsigned_abs(), weight * factor);
            let floor = waiting(holder.within).unwrap_or_else(|| self.least_served(holder.within));
            let counter = match holder.is_group {
                true => &mut self.groups.entry(holder.tenant).or_default().counter,
                false => self.tenants.entry(holder.tenant).or_default(),
            };
            match tokens {
                ..0 => self.remote.take_back(holder, counter, amount, most),
                0.. => self.remote.add(holder, counter, amount, floor, now),
            }
            if let Some(past) = &mut self.past_use {
                past.add(holder, weight, tokens as f64, now);
            }
        }
    }

    /// The floor of a group of tenants in which nobody waits.
    fn least_served(&self, group: Option<TenantId>) -> u128 {
        group.map_or(0, |group| self.max_served(group))
    }

    /// Whether some tenant is ahead by service at other gateways.
    pub fn has_remote_leads(&self) -> bool {
        !self.remote.is_empty()
    }

    /// Lets the leads by service at other gateways fade by one step. Returns the tenants and groups
    /// whose counters changed. `waiting` is that of [`Self::charge_remote`]; `waits` says whether jobs of a
    /// tenant wait here.
    pub fn fade_remote_leads(
        &mut self,
        now: Tick,
        waiting: &dyn Fn(Option<TenantId>) -> Option<u128>,
        waits: &dyn Fn(TenantId) -> bool,
    ) -> Vec<TenantId> {
        let mut changed = Vec::new();
        for holder in self.remote.holders() {
            let floor = waiting(holder.within).unwrap_or_else(|| self.least_served(holder.within));
            let counter = match holder.is_group {
                true => self.groups.get_mut(&holder.tenant).map(|own| &mut own.counter),
                false => self.tenants.get_mut(&holder.tenant),
            };
            let Some(counter) = counter else {
                self.remote.remove(holder);
                continue;
            };
            let waits = !holder.is_group && waits(holder.tenant);
            if self.remote.fade(holder, counter, floor, waits, now) {
                changed.push(holder.tenant);
            }
        }
        changed
    }

    /// Makes past use count, with this half-life; absent = it does not count.
    pub fn set_half_life(&mut self, half_life: Option<Duration>) {
        match (half_life, &mut self.past_use) {
            (Some(half_life), Some(past)) => past.set_half_life(half_life),
            (half_life, past) => *past = half_life.map(PastUse::new),
        }
    }

    /// What each tenant used lately, in tokens, as it counts now; nothing in a class without a half-life.
    pub fn past_use(&self, now: Tick) -> impl Iterator<Item = (TenantId, u64)> {
        self.past_use.iter().flat_map(move |past| past.tenants(now))
    }

    /// Adds use of before this gateway's start, which leaves the virtual counters as they are.
    pub fn add_past_use(&mut self, who: &TenantWeights, tokens: i64, now: Tick) {
        let Some(past) = &mut self.past_use else { return };
        who.charged_accounts().for_each(|(holder, weight)| past.add(holder, weight, tokens as f64, now));
    }

    /// Lifts the counter of a tenant that comes back to at least `floor`, less what it may be owed.
    /// A longer absence earns no more. Returns whether the counter changed.
    pub fn lift(&mut self, tenant: TenantId, floor: u128) -> bool {
        let floor = floor.saturating_sub(self.max_credit());
        lift(self.tenants.entry(tenant).or_default(), floor)
    }

    /// The same for a group.
    pub fn lift_group(&mut self, group: TenantId, floor: u128) -> bool {
        let floor = floor.saturating_sub(self.max_credit());
        lift(&mut self.groups.entry(group).or_default().counter, floor)
    }

    fn max_credit(&self) -> u128 {
        scaled((self.mean_cost * MAX_CREDIT_JOBS) as u64, 1.0)
    }

    /// Forgets the tenants and groups that `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(TenantId) -> bool) {
        self.tenants.retain(|tenant, _| keep(*tenant));
        self.groups.retain(|group, _| keep(*group));
        self.remote.retain(&keep);
        if let Some(past) = &mut self.past_use {
            past.retain(keep);
        }
    }
}

fn lift(counter: &mut u128, floor: u128) -> bool {
    let lifted = floor > *counter;
    *counter = floor.max(*counter);
    lifted
}

/// The quantum that a virtual counter is in.
pub const fn quantum(counter: u128) -> u128 {
    counter >> QUANTUM_BITS
}

/// What a cost adds to the virtual counter of a tenant of this weight.
pub fn scaled(cost: u64, weight: f64) -> u128 {
    (cost as f64 * UNIT / weight.clamp(1e-6, 1e9)) as u128
}

/// Guaranteed share of a class: the work that the class is owed.
///
/// When work is dispatched to replicas that the class also waits for, the class is owed its share
/// of that work, up to `MAX_OWED_JOBS`. While the class is owed anything, it goes before the other
/// classes, and pays the full cost. In an ordinary turn the class pays at most what it is owed. Work
/// done while nobody else wanted the replicas is therefore never held against it. When no job of the
/// class waits, the class is owed nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GuaranteedShare {
    owed: f64,
    /// Mean cost of the class's own jobs.
    mean_cost: f64,
}

impl GuaranteedShare {
    /// Work in tokens that the class is owed. Negative after a job in a guaranteed turn that cost
    /// more than the class was owed.
    pub const fn owed(&self) -> f64 {
        self.owed
    }

    /// Whether the class goes before the others.
    pub fn is_owed(&self) -> bool {
        self.owed > 0.0
    }

    /// Adds the class's share of work dispatched to replicas that the class also waits for.
    pub fn accrue(&mut self, cost: u64, min_share: f64) {
        let most = MAX_OWED_JOBS * self.mean_cost.max(cost as f64);
        self.owed = (self.owed + cost as f64 * min_share).min(most.max(self.owed));
    }

    /// Adds the class's share of work that other gateways dispatched to replicas that the class also
    /// waits for. The report is of many jobs, so only the class's own jobs bound what it is owed.
    pub fn accrue_remote(&mut self, cost: u64, min_share: f64) {
        let most = MAX_OWED_JOBS * self.mean_cost;
        self.owed = (self.owed + cost as f64 * min_share).min(most.max(self.owed));
    }

    /// Subtracts the cost of jobs of this class that other gateways dispatched, as in ordinary turns.
    pub const fn pay_remote(&mut self, cost: u64) {
        self.owed = (self.owed - cost as f64).max(self.owed.min(0.0));
    }

    /// Subtracts the cost of a job of this class, dispatched in a guaranteed turn or an ordinary
    /// one.
    pub fn pay(&mut self, cost: u64, guaranteed: bool) {
        let newest = if self.mean_cost > 0.0 { NEWEST_COST } else { 1.0 };
        self.mean_cost += (cost as f64 - self.mean_cost) * newest;
        let rest = self.owed - cost as f64;
        self.owed = if guaranteed { rest } else { rest.max(self.owed.min(0.0)) };
    }

    /// Clears the credit when no job of the class waits any more.
    pub fn forget(&mut self) {
        self.owed = self.owed.min(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(tenant: u32, weight: f64) -> TenantWeights {
        TenantWeights { tenant: TenantId::new(tenant), weight, groups: SmallVec::new() }
    }

    #[test]
    fn weight_divides_the_cost() {
        let mut counters = FairCounters::default();
        counters.charge(&alone(0, 1.0), cost(100, 50), Tick::ZERO);
        counters.charge(&alone(1, 4.0), cost(100, 50), Tick::ZERO);
        assert_eq!(counters.get(TenantId::new(0)), 200 * 1024);
        assert_eq!(counters.get(TenantId::new(1)), 50 * 1024);
    }

    #[test]
    fn groups_pay_by_their_own_weights() {
        let mut counters = FairCounters::default();
        let (team, org) = (TenantId::new(5), TenantId::new(6));
        let who = TenantWeights { groups: [(team, 2.0), (org, 4.0)].into_iter().collect(), ..alone(0, 1.0) };
        counters.charge(&who, 400, Tick::ZERO);
        counters.adjust(&who, 400, 200, Tick::ZERO);
        let units = [counters.get(who.tenant), counters.group(team), counters.group(org)];
        assert_eq!(units, [200 * 1024, 100 * 1024, 50 * 1024]);
        assert_eq!(counters.note_served(who.tenant, &[team, org]), 50 * 1024);
        assert_eq!((counters.max_served(team), counters.max_served(org)), (200 * 1024, 100 * 1024));
        let owed = 8 * 400 * 1024;
        assert!(counters.lift_group(org, owed + 60 * 1024) && !counters.lift_group(org, owed));
        assert_eq!(counters.group(org), 60 * 1024);
    }

    #[test]
    fn a_correction_leaves_what_it_came_to() {
        let mut counters = FairCounters::default();
        let tenant = TenantId::new(0);
        counters.charge(&alone(0, 2.0), 500, Tick::ZERO);
        counters.adjust(&alone(0, 2.0), 500, 80, Tick::ZERO);
        assert_eq!(counters.get(tenant), 40 * 1024);
        counters.adjust(&alone(0, 2.0), u64::MAX, 0, Tick::ZERO);
        assert_eq!(counters.get(tenant), 0, "never below zero");
    }

    #[test]
    fn a_lift_only_lifts() {
        let mut counters = FairCounters::default();
        let tenant = TenantId::new(0);
        assert!(counters.lift(tenant, 10));
        assert!(!counters.lift(tenant, 5));
        assert_eq!(counters.get(tenant), 10);
    }

    #[test]
    fn hostile_weights_stay_finite() {
        let mut counters = FairCounters::default();
        counters.charge(&alone(0, f64::MIN_POSITIVE), u64::MAX, Tick::ZERO);
        counters.charge(&alone(1, f64::NAN), 10, Tick::ZERO);
        assert!(counters.get(TenantId::new(0)) > 0);
    }

    #[test]
    fn an_owed_class_gets_its_share_and_no_more() {
        let (mut batch, mut served, mut all) = (GuaranteedShare::default(), 0u64, 0u64);
        for _ in 0..10_000 {
            let guaranteed = batch.is_owed();
            let cost = if guaranteed { 300 } else { 100 };
            all += cost;
            batch.accrue(cost, 0.1);
            if guaranteed {
                served += cost;
                batch.pay(cost, true);
            }
        }
        let share = served as f64 / all as f64;
        assert!((0.099..0.101).contains(&share), "{share}");
    }

    #[test]
    fn a_class_that_cannot_be_served_is_owed_no_more_than_some_jobs() {
        let mut batch = GuaranteedShare::default();
        batch.pay(500, false);
        for _ in 0..1_000_000 {
            batch.accrue(100, 0.5);
        }
        assert_eq!(batch.owed(), 32.0 * 500.0);
        batch.accrue(1, 0.5);
        assert_eq!(batch.owed(), 32.0 * 500.0, "a smaller job takes nothing away");
    }

    #[test]
    fn ordinary_turns_leave_no_debt() {
        let mut batch = GuaranteedShare::default();
        batch.accrue(100, 0.5);
        batch.pay(1_000_000, false);
        assert_eq!(batch.owed(), 0.0);
        batch.accrue(100, 0.5);
        batch.forget();
        assert!(!batch.is_owed());
    }
}
