//! Service reports: work that tenants and classes got at one gateway, for the fair shares of all gateways.
//!
//! A scheduler records nothing until [`ServiceLog::start`]. The log holds what each account got since
//! the last report, so its size does not grow with time.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::model::ids::{ClassId, PoolId, TenantId};

/// Accounts that a log holds between two reports. Work of further ones is not reported.
const MAX_ACCOUNTS: usize = 8192;
/// The most that one report brings for an account, in tokens. A gateway does less in a second.
const MAX_TOKENS: i64 = 1 << 30;

/// An account whose service gateways tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceAccount {
    /// A tenant in a class. The pool stands for its pool group.
    Tenant { pool: PoolId, class: ClassId, tenant: TenantId },
    /// A class at a pool.
    Class { pool: PoolId, class: ClassId },
}

/// Work that an account got, in the tokens that move virtual counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    pub account: ServiceAccount,
    /// Below 0 when jobs came to less than was charged for them before.
    pub tokens: i64,
}

impl ServiceReport {
    /// The tokens, as far as one report may bring them.
    pub fn bounded_tokens(&self) -> i64 {
        self.tokens.clamp(-MAX_TOKENS, MAX_TOKENS)
    }
}

/// One report for each account, in the order of the accounts.
pub fn summed(reports: &[ServiceReport]) -> Vec<ServiceReport> {
    let mut sums: BTreeMap<ServiceAccount, i64> = BTreeMap::new();
    for report in reports {
        let sum = sums.entry(report.account).or_default();
        *sum = sum.saturating_add(report.bounded_tokens());
    }
    let reports = sums.into_iter().filter(|(_, tokens)| *tokens != 0);
    reports.map(|(account, tokens)| ServiceReport { account, tokens }).collect()
}

/// Sequences that a tenant holds in a pool group. The pool stands for the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldSequences {
    pub pool: PoolId,
    pub tenant: TenantId,
    pub seqs: u32,
}

/// Work of each account since it was last reported.
#[derive(Debug, Clone, Default)]
pub struct ServiceLog {
    is_on: bool,
    unreported: BTreeMap<ServiceAccount, i64>,
    /// The account that was reported last: those after it are reported next.
    last: Option<ServiceAccount>,
}

impl ServiceLog {
    /// Records from now on.
    pub const fn start(&mut self) {
        self.is_on = true;
    }

    /// Adds the difference of two charges of an account.
    pub fn add(&mut self, account: ServiceAccount, before: u64, after: u64) {
        if !self.is_on || before == after {
            return;
        }
        let tokens = |cost: u64| i64::try_from(cost).unwrap_or(i64::MAX);
        let change = tokens(after).saturating_sub(tokens(before));
        if let Some(sum) = self.unreported.get_mut(&account) {
            *sum = sum.saturating_add(change);
        } else if self.unreported.len() < MAX_ACCOUNTS {
            self.unreported.insert(account, change);
        }
    }

    /// Takes the work of at most `most` accounts, in turn.
    pub fn take(&mut self, most: usize) -> Vec<ServiceReport> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.unreported.range((after, Bound::Unbounded)).map(|(account, _)| *account);
        let upto = self.last.map_or(Bound::Excluded(LEAST), Bound::Included);
        let earlier = self.unreported.range((Bound::Unbounded, upto)).map(|(account, _)| *account);
        let accounts: Vec<ServiceAccount> = later.chain(earlier).take(most).collect();
        self.last = accounts.last().copied().or(self.last);
        let reports = accounts.into_iter().filter_map(|account| {
            let tokens = self.unreported.remove(&account)?;
            (tokens != 0).then_some(ServiceReport { account, tokens })
        });
        reports.collect()
    }
}

/// The first account of all.
const LEAST: ServiceAccount =
    ServiceAccount::Tenant { pool: PoolId::new(0), class: ClassId::new(0), tenant: TenantId::new(0) };

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(tenant: u32) -> ServiceAccount {
        ServiceAccount::Tenant { pool: PoolId::new(0), class: ClassId::new(0), tenant: TenantId::new(tenant) }
    }

    fn numbers(reports: &[ServiceReport]) -> Vec<(u32, i64)> {
        let row = |report: &ServiceReport| match report.account {
            ServiceAccount::Tenant { tenant, .. } => (tenant.index() as u32, report.tokens),
            ServiceAccount::Class { class, .. } => (1000 + class.index() as u32, report.tokens),
        };
        reports.iter().map(row).collect()
    }

    #[test]
    fn nothing_is_recorded_until_it_starts() {
        let mut log = ServiceLog::default();
        log.add(tenant(1), 0, 100);
        assert_eq!(log.take(9), []);
        log.start();
        log.add(tenant(1), 0, 100);
        log.add(tenant(1), 100, 40);
        log.add(tenant(2), 7, 7);
        log.add(tenant(3), 50, 0);
        log.add(tenant(4), 0, 5);
        log.add(tenant(4), 5, 0);
        log.add(ServiceAccount::Class { pool: PoolId::new(0), class: ClassId::new(2) }, 0, 9);
        assert_eq!(numbers(&log.take(9)), [(1, 40), (3, -50), (1002, 9)]);
        assert_eq!(log.take(9), []);
    }

    #[test]
    fn reports_of_several_gateways_are_one_for_each_account() {
        let report = |id, tokens| ServiceReport { account: tenant(id), tokens };
        let heard = [report(2, 7), report(1, i64::MAX), report(3, 5), report(2, -9), report(3, -5)];
        assert_eq!(numbers(&summed(&heard)), [(1, MAX_TOKENS), (2, -2)]);
    }

    #[test]
    fn each_account_has_its_turn_and_memory_is_bounded() {
        let mut log = ServiceLog::default();
        log.start();
        for round in 0..3 {
            (0..5).for_each(|id| log.add(tenant(id), 0, 10));
            let expected = [[0_u64, 1], [2, 3], [4, 0]][round];
            let taken = log.take(2);
            let ids: Vec<u64> = numbers(&taken).iter().map(|(id, _)| u64::from(*id)).collect();
            assert_eq!(ids, expected, "{taken:?}");
        }
        (0..20_000).for_each(|id| log.add(tenant(id), 0, u64::MAX));
        (0..20_000).for_each(|id| log.add(tenant(id), 0, u64::MAX));
        let all = log.take(usize::MAX);
        assert_eq!(all.len(), MAX_ACCOUNTS);
        assert!(all.iter().all(|report| report.bounded_tokens() == MAX_TOKENS));
    }
}
