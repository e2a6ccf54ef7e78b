//! Tenant quotas within a pool group, in the manner of cohorts.
//!
//! A quota is a part of the sequences that the group's replicas can run. A tenant below its
//! guarantee goes before all others of its class. A tenant at or above its guarantee borrows. A
//! tenant at its ceiling (guarantee plus borrow limit) is parked until one of its own jobs ends or
//! the capacity changes. The part of its guarantee that a tenant does not lend stays free for it.
//! Guarantees and ceilings are whole sequences, and at least one, however small.
//!
//! A job may have several sequences. The last job of a tenant may therefore take the tenant above
//! its ceiling by all but one of the job's sequences. Tenants without a quota of their own only
//! borrow, and cost nothing here.
//!
//! A group of tenants has a quota too, and holds what its children hold. A guarantee that a child
//! does not use goes to its siblings first: the group is below its guarantee, and goes before all
//! who borrow. What a group does not lend stays free for its children. A change costs a step on
//! each level.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::model::ids::TenantId;
use crate::model::policy::tenants::TenantTree;
use crate::model::policy::{Policy, Quota};

/// Rounding tolerance in sequences: a product of a fraction and a capacity that is this close below
/// a whole number counts as that number.
const ROUNDING_TOLERANCE: f64 = 1e-6;
/// A change of the capacity by less than one part in `MIN_CHANGE_DIVISOR` is ignored. Otherwise each
/// sequence limit that is learned would move every tenant a little.
const MIN_CHANGE_DIVISOR: u64 = 64;

/// State of a tenant's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaState {
    /// The tenant holds less than its guarantee.
    Guaranteed,
    /// The tenant holds its guarantee or more, or has no guarantee.
    Borrowing,
    /// The tenant is at its ceiling.
    Parked,
}

impl QuotaState {
    /// Short stable name for the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "below_guarantee",
            Self::Borrowing => "borrowing",
            Self::Parked => "at_ceiling",
        }
    }
}

/// A tenant's quota and what the tenant holds of it, in sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaUse {
    pub state: QuotaState,
    pub guaranteed: u64,
    pub held: u64,
}

#[derive(Debug, Clone, Copy)]
struct QuotaAccount {
    quota: Quota,
    held: u64,
}

impl QuotaAccount {
    fn state(&self, capacity: u64) -> QuotaState {
        let Quota { guarantee, borrow, .. } = self.quota;
        let held = self.held as f64;
        let part = |fraction| whole_part(fraction, capacity);
        if guarantee + borrow < 1.0 && held >= part(guarantee + borrow) {
            QuotaState::Parked
        } else if guarantee > 0.0 && held < part(guarantee) {
            QuotaState::Guaranteed
        } else {
            QuotaState::Borrowing
        }
    }

    /// Sequences that stay free for the tenant: the part of its guarantee that it neither lends nor
    /// holds.
    fn kept_free(&self, capacity: u64) -> u64 {
        let unlent = (self.quota.guarantee - self.quota.lend).max(0.0) * capacity as f64;
        ((unlent + ROUNDING_TOLERANCE) as u64).saturating_sub(self.held)
    }
}

/// Whole sequences of a fraction of the capacity, at least one.
fn whole_part(fraction: f64, capacity: u64) -> f64 {
    (fraction * capacity as f64 + ROUNDING_TOLERANCE).floor().max(1.0)
}

/// Quota of a group, with what its children keep free.
#[derive(Debug, Clone, Copy)]
struct GroupQuota {
    own: QuotaAccount,
    /// Sequences that stay free for single children, from their siblings too.
    kept_inside: u64,
}

impl GroupQuota {
    /// Sequences that stay free for the group and its children.
    fn kept_free(&self, capacity: u64) -> u64 {
        self.own.kept_free(capacity).max(self.kept_inside)
    }
}

/// The tenants and groups whose state changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaChanges {
    pub tenants: SmallVec<[TenantId; 1]>,
    /// Groups, those of deeper levels first.
    pub groups: SmallVec<[TenantId; 2]>,
}

/// Tenant quotas of a pool group.
#[derive(Debug, Clone, Default)]
pub struct TenantQuotas {
    /// Which tenants share as one.
    pub tree: TenantTree,
    /// Tenants without children whose quota is not the default.
    accounts: BTreeMap<TenantId, QuotaAccount>,
    /// Every group, if there is any quota.
    groups: BTreeMap<TenantId, GroupQuota>,
    capacity: u64,
    /// Sequences that all tenants hold.
    held: u64,
    /// Sequences that stay free for tenants and groups that do not lend them.
    kept_free: u64,
    /// What of it tenants hold at other gateways.
    elsewhere: BTreeMap<TenantId, u64>,
}

impl TenantQuotas {
    /// The quotas of a policy, with nothing held and a capacity of 0.
    pub fn new(policy: &Policy) -> Self {
        let tree = TenantTree::new(policy);
        let account = |quota| QuotaAccount { quota: clamped_quota(quota), held: 0 };
        let has_quota = policy.tenants.iter().any(|(_, _, row)| row.quota != Quota::default());
        let rows = || policy.tenants.iter().filter(|_| has_quota);
        let single = rows().filter(|(id, _, row)| row.quota != Quota::default() && !tree.is_group(*id));
        let accounts = single.map(|(id, _, row)| (id, account(row.quota))).collect();
        let groups = rows().filter(|(id, ..)| tree.is_group(*id));
        let groups =
            groups.map(|(id, _, row)| (id, GroupQuota { own: account(row.quota), kept_inside: 0 })).collect();
        Self { tree, accounts, groups, ..Self::default() }
    }

    /// Whether neither a tenant nor a group has a quota of its own.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty() && self.groups.is_empty()
    }

    /// State of the tenant's own quota, whatever its groups hold.
    pub fn state(&self, tenant: TenantId) -> QuotaState {
        self.accounts.get(&tenant).map_or(QuotaState::Borrowing, |own| own.state(self.capacity))
    }

    /// The tenant's quota and its use; `None` for a tenant without a quota of its own.
    pub fn usage(&self, tenant: TenantId) -> Option<QuotaUse> {
        let own = self.accounts.get(&tenant)?;
        let guarantee = own.quota.guarantee;
        let guaranteed = if guarantee > 0.0 { whole_part(guarantee, self.capacity) as u64 } else { 0 };
        Some(QuotaUse { state: own.state(self.capacity), guaranteed, held: own.held })
    }

    pub fn group_state(&self, group: TenantId) -> QuotaState {
        self.groups.get(&group).map_or(QuotaState::Borrowing, |group| group.own.state(self.capacity))
    }

    /// Free sequences that a child of the group may take when it borrows; without a group, one
    /// whose own guarantee or that of its groups is used up.
    pub fn free_to_borrow(&self, group: Option<TenantId>) -> u32 {
        if self.kept_free == 0 {
            return u32::MAX;
        }
        // What siblings keep free, up to the first level whose guarantee is not used up.
        let (mut kept, mut at) = (0u64, group);
        while let Some((id, own)) = at.and_then(|id| Some((id, self.groups.get(&id)?))) {
            kept += own.kept_inside;
            if own.own.state(self.capacity) == QuotaState::Guaranteed {
                return self.spare_beside(kept);
            }
            kept = kept.saturating_sub(own.kept_free(self.capacity));
            at = self.tree.parent(id);
        }
        self.spare_beside(kept + self.kept_free)
    }

    fn spare_beside(&self, kept: u64) -> u32 {
        let spare = self.capacity.saturating_sub(self.held).saturating_sub(kept);
        u32::try_from(spare).unwrap_or(u32::MAX)
    }

    /// Whether the quotas allow a job of the tenant with `seqs` sequences.
    pub fn allows(&self, tenant: TenantId, seqs: u32) -> bool {
        if self.groups_of(tenant).any(|group| self.group_state(group) == QuotaState::Parked) {
            return false;
        }
        match self.state(tenant) {
            QuotaState::Guaranteed => true,
            QuotaState::Borrowing => seqs <= self.free_to_borrow(self.tree.group_of(tenant)),
            QuotaState::Parked => false,
        }
    }

    fn groups_of(&self, tenant: TenantId) -> impl Iterator<Item = TenantId> + use<> {
        let groups = if self.groups.is_empty() { Default::default() } else { self.tree.groups_of(tenant) };
        groups.into_iter()
    }

    /// Books a job of the tenant that goes to a replica.
    pub fn take(&mut self, tenant: TenantId, seqs: u32) -> QuotaChanges {
        self.held = self.held.saturating_add(u64::from(seqs));
        self.change(tenant, |held| held.saturating_add(u64::from(seqs)))
    }

    /// Returns the sequences of a job that left its replica.
    pub fn give_back(&mut self, tenant: TenantId, seqs: u32) -> QuotaChanges {
        self.held = self.held.saturating_sub(u64::from(seqs));
        self.change(tenant, |held| held.saturating_sub(u64::from(seqs)))
    }

    /// Sets what tenants hold at other gateways, in place of what was set before.
    pub fn set_elsewhere(&mut self, elsewhere: BTreeMap<TenantId, u64>) -> QuotaChanges {
        let before = std::mem::replace(&mut self.elsewhere, elsewhere);
        let mut changes = QuotaChanges::default();
        let tenants: BTreeSet<TenantId> = before.keys().chain(self.elsewhere.keys()).copied().collect();
        for tenant in tenants {
            let held = |at: &BTreeMap<TenantId, u64>| at.get(&tenant).copied().unwrap_or(0);
            let (old, new) = (held(&before), held(&self.elsewhere));
            if old != new {
                self.held = self.held.saturating_sub(old).saturating_add(new);
                let QuotaChanges { tenants, groups } =
                    self.change(tenant, |held| held.saturating_sub(old).saturating_add(new));
                changes.tenants.extend(tenants);
                changes.groups.extend(groups);
            }
        }
        changes
    }

    /// Sets the number of sequences that the replicas can run. The cost grows with the number of
    /// tenants that have a quota.
    pub fn resize(&mut self, capacity: u64) -> QuotaChanges {
        let before = self.capacity;
        if capacity == before || capacity.abs_diff(before).saturating_mul(MIN_CHANGE_DIVISOR) < before {
            return QuotaChanges::default();
        }
        self.capacity = capacity;
        let kept = self.kept_by_level();
        self.kept_free = kept.get(&None).copied().unwrap_or(0);
        for (id, group) in &mut self.groups {
            group.kept_inside = kept.get(&Some(*id)).copied().unwrap_or(0);
        }
        let moved = |own: &QuotaAccount| own.state(before) != own.state(capacity);
        let tenants = self.accounts.iter().filter(|(_, own)| moved(own)).map(|(id, _)| *id);
        let groups = self.tree.groups_from_below().into_iter();
        let has_moved = |id: &TenantId| self.groups.get(id).is_some_and(|group| moved(&group.own));
        QuotaChanges { tenants: tenants.collect(), groups: groups.filter(has_moved).collect() }
    }

    /// Sequences that the children of each group keep free, from all accounts; without a group,
    /// those of the outermost level.
    fn kept_by_level(&self) -> BTreeMap<Option<TenantId>, u64> {
        let mut kept: BTreeMap<Option<TenantId>, u64> = BTreeMap::new();
        for (id, own) in &self.accounts {
            *kept.entry(self.tree.parent(*id)).or_default() += own.kept_free(self.capacity);
        }
        for id in self.tree.groups_from_below() {
            let Some(group) = self.groups.get(&id) else { continue };
            let inside = kept.get(&Some(id)).copied().unwrap_or(0);
            *kept.entry(self.tree.parent(id)).or_default() +=
                GroupQuota { kept_inside: inside, ..*group }.kept_free(self.capacity);
        }
        kept
    }

    /// Whether the accounts match the sequences that running jobs hold here, by tenant, and what is held
    /// at other gateways.
    pub fn is_balanced(&self, held: &BTreeMap<TenantId, u64>) -> bool {
        let mut held = held.clone();
        for (tenant, elsewhere) in &self.elsewhere {
            *held.entry(*tenant).or_default() += elsewhere;
        }
        let own = |tenant| held.get(tenant).copied().unwrap_or(0);
        let mut by_group: BTreeMap<TenantId, u64> = BTreeMap::new();
        for (tenant, held) in &held {
            self.groups_of(*tenant).for_each(|group| *by_group.entry(group).or_default() += held);
        }
        let kept = self.kept_by_level();
        let kept_by = |group| kept.get(&group).copied().unwrap_or(0);
        self.is_empty()
            || (self.accounts.iter().all(|(tenant, account)| account.held == own(tenant))
                && self.groups.iter().all(|(id, group)| {
                    group.own.held == by_group.get(id).copied().unwrap_or(0)
                        && group.kept_inside == kept_by(Some(*id))
                })
                && self.held == held.values().sum::<u64>()
                && self.kept_free == kept_by(None))
    }

    fn change(&mut self, tenant: TenantId, act: impl Fn(u64) -> u64) -> QuotaChanges {
        let (mut changes, capacity) = (QuotaChanges::default(), self.capacity);
        let (mut before, mut after) = (0, 0);
        if let Some(own) = self.accounts.get_mut(&tenant) {
            let state = own.state(capacity);
            before = own.kept_free(capacity);
            own.held = act(own.held);
            after = own.kept_free(capacity);
            changes.tenants.extend((state != own.state(capacity)).then_some(tenant));
        }
        for id in self.groups_of(tenant) {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let (state, kept) = (group.own.state(capacity), group.kept_free(capacity));
            group.own.held = act(group.own.held);
            group.kept_inside = group.kept_inside.saturating_sub(before) + after;
            (before, after) = (kept, group.kept_free(capacity));
            changes.groups.extend((state != group.own.state(capacity)).then_some(id));
        }
        self.kept_free = self.kept_free.saturating_sub(before) + after;
        changes
    }
}

/// The quota with each fraction clamped to `0.0..=1.0`, and NaN as 0.
fn clamped_quota(quota: Quota) -> Quota {
    let part = |fraction: f64| if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) };
    let Quota { guarantee, borrow, lend } = quota;
    Quota { guarantee: part(guarantee), borrow: part(borrow), lend: part(lend) }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;
    use crate::model::ids::ClassId;
    use crate::model::policy::{QueueBounds, Tenant};

    fn quotas(rows: &[(f64, f64, f64)], capacity: u64) -> TenantQuotas {
        let mut policy = Policy::default();
        for (index, (guarantee, borrow, lend)) in rows.iter().copied().enumerate() {
            let row = Tenant {
                weight: 1.0,
                parent: None,
                default_class: ClassId::new(0),
                classes: [ClassId::new(0)].into(),
                models: None,
                bounds: QueueBounds::default(),
                quota: Quota { guarantee, borrow, lend },
                placement: Default::default(),
            };
            policy.tenants.insert(&index.to_string(), row);
        }
        let mut quotas = TenantQuotas::new(&policy);
        quotas.resize(capacity);
        quotas
    }

    fn walk(quotas: &mut TenantQuotas, tenant: u32, steps: u32) -> Vec<QuotaState> {
        let tenant = TenantId::new(tenant);
        (0..steps)
            .map(|_| {
                let before = quotas.state(tenant);
                let changed = !quotas.take(tenant, 1).tenants.is_empty();
                assert_eq!(changed, before != quotas.state(tenant));
                before
            })
            .collect()
    }

    #[test]
    fn a_tenant_goes_from_its_guarantee_to_its_ceiling() {
        use QuotaState::{Borrowing, Guaranteed, Parked};
        let mut some = quotas(&[(0.3, 0.2, 1.0), (0.0, 0.0, 1.0), (0.1, 1.0, 1.0)], 10);
        let first = walk(&mut some, 0, 6);
        assert_eq!(first, [Guaranteed, Guaranteed, Guaranteed, Borrowing, Borrowing, Parked]);
        assert_eq!(walk(&mut some, 1, 2), [Borrowing, Parked], "one sequence at least");
        assert_eq!(walk(&mut some, 2, 12)[1..], [Borrowing; 11], "no ceiling");
        assert_eq!(walk(&mut some, 9, 2), [Borrowing; 2], "nobody knows it");
        let used =
            |tenant| some.usage(TenantId::new(tenant)).map(|own| (own.state, own.guaranteed, own.held));
        assert_eq!(used(0), Some((Parked, 3, 6)));
        assert_eq!((used(1), used(9)), (Some((Parked, 0, 2)), None));
    }

    #[test]
    fn what_is_not_lent_stays_free_and_usual_quotas_keep_nothing() {
        let mut some = quotas(&[(0.5, 1.0, 0.2), (0.2, 1.0, 0.0), (0.2, 1.0, 0.9)], 10);
        assert_eq!(some.free_to_borrow(None), 5, "3 and 2 are kept");
        walk(&mut some, 0, 2);
        assert_eq!(some.free_to_borrow(None), 5, "it took its own");
        walk(&mut some, 9, 5);
        assert_eq!(some.free_to_borrow(None), 0);
        assert!(!some.allows(TenantId::new(9), 1) && some.allows(TenantId::new(0), 1));
        walk(&mut some, 0, 1);
        walk(&mut some, 1, 2);
        assert_eq!(some.free_to_borrow(None), u32::MAX, "nothing is kept, so nothing limits");

        let usual = quotas(&[(0.0, 1.0, 1.0)], 10);
        assert!(usual.is_empty() && usual.allows(TenantId::new(0), u32::MAX));
    }

    #[test]
    fn capacity_moves_those_it_concerns_and_small_changes_nobody() {
        let mut some = quotas(&[(0.5, 0.0, 1.0), (0.1, 1.0, 1.0)], 100);
        walk(&mut some, 0, 50);
        assert_eq!(some.state(TenantId::new(0)), QuotaState::Parked);
        let moved = |some: &mut TenantQuotas, capacity| some.resize(capacity).tenants.to_vec();
        assert_eq!(moved(&mut some, 101), [], "a hundredth is not followed");
        assert_eq!(moved(&mut some, 102), [TenantId::new(0)]);
        assert_eq!(some.state(TenantId::new(0)), QuotaState::Guaranteed);
        assert_eq!(moved(&mut some, 0), [TenantId::new(0)], "one sequence stays guaranteed to the other");
        assert_eq!(moved(&mut some, 0), []);
    }

    #[test]
    fn what_is_held_elsewhere_counts_as_held_here() {
        let mut some = quotas(&[(0.3, 0.2, 1.0), (0.2, 1.0, 0.0)], 10);
        let tenant = TenantId::new(0);
        walk(&mut some, 0, 2);
        assert_eq!(some.free_to_borrow(None), 6, "two are kept for the second");
        let changes = some.set_elsewhere([(tenant, 3), (TenantId::new(9), 1)].into());
        assert_eq!((some.state(tenant), changes.tenants.to_vec()), (QuotaState::Parked, vec![tenant]));
        assert_eq!(some.free_to_borrow(None), 2);
        let own = BTreeMap::from([(tenant, 2)]);
        assert!(some.is_balanced(&own));
        let changes = some.set_elsewhere([(tenant, 1)].into());
        assert_eq!((some.state(tenant), changes.tenants.len()), (QuotaState::Borrowing, 1));
        some.set_elsewhere(BTreeMap::new());
        assert!(some.is_balanced(&own) && some.state(tenant) == QuotaState::Guaranteed);
        assert_eq!(some.free_to_borrow(None), 6);
    }

    proptest! {
        #[test]
        fn accounts_come_back_to_nothing(
            rows in vec((any::<f64>(), any::<f64>(), any::<f64>()), 1..5),
            capacity in 0u64..1 << 50,
            jobs in vec((0u32..6, any::<u32>()), 0..40),
        ) {
            let mut some = quotas(&rows, capacity);
            let mut held: BTreeMap<TenantId, u64> = BTreeMap::new();
            for (tenant, seqs) in &jobs {
                let tenant = TenantId::new(*tenant);
                some.take(tenant, *seqs);
                *held.entry(tenant).or_default() += u64::from(*seqs);
                prop_assert!(some.is_balanced(&held));
            }
            for (tenant, seqs) in jobs {
                some.give_back(TenantId::new(tenant), seqs);
            }
            prop_assert!(some.is_balanced(&BTreeMap::new()));
        }
    }
}
