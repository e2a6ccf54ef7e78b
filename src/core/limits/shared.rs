//! Shared limits: use reported to other gateways, and leases received.

use std::collections::{BTreeSet, VecDeque};

use crate::limits::lease::{LeaseGrant, LimitLease, LimitReports, LimitUse, SharedLimits};
use crate::limits::rule::{LimitId, LimitPeriod};
use crate::limits::{LimitEntry, UsageLimits};
use crate::model::time::Tick;

/// Most limits that changed in one part of a report, and most that are urgent.
const MAX_REPORTED: usize = 256;

impl UsageLimits {
    /// Takes leases over, which hold until `until`. The first call makes all limits shared.
    pub fn lease(&mut self, grants: &[LeaseGrant], until: Tick) {
        if let Some(shared) = &mut self.shared {
            shared.until = until;
        } else {
            self.shared = Some(SharedLimits {
                until,
                changed: VecDeque::new(),
                urgent: BTreeSet::new(),
                is_leaving: false,
                leave_is_news: false,
            });
            for entry in self.entries.values_mut() {
                entry.lease = Some(LimitLease::initial(entry.rule.amount));
            }
        }
        for grant in grants {
            let ends = self.ends_of(grant.rule.period);
            let entry = self.entries.get_mut(&grant.rule).filter(|entry| entry.epoch == grant.epoch);
            if let Some(lease) = entry.and_then(|entry| entry.lease.as_mut()).filter(|_| grant.ends == ends) {
                lease.grant(grant);
            }
        }
    }

    /// Whether a report cannot wait for its time.
    pub fn wants_lease(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| !shared.urgent.is_empty() || shared.leave_is_news)
    }

    /// Takes the next batch of reports: urgent, `wanted`, and at most `most` changed limits. Batches are
    /// small because requests wait for the lock.
    pub fn take_use(&mut self, wanted: &[LimitId], most: usize, now: Tick) -> LimitReports {
        let Some(shared) = &mut self.shared else { return LimitReports::default() };
        shared.leave_is_news = false;
        let changed = shared.changed.len().min(most);
        let count = changed.min(MAX_REPORTED);
        // A queued limit is reported in its turn; a limit wanted by several gateways is reported once.
        let entries = &self.entries;
        let is_listed = |id: &LimitId| entries.get(id)?.lease.as_ref().map(|lease| lease.is_listed);
        let wanted: BTreeSet<LimitId> =
            wanted.iter().filter(|id| is_listed(id) == Some(false)).copied().collect();
        // Those that wait longest go first: what is used of a minute is listed again at the end.
        let drained: Vec<LimitId> = shared.changed.drain(..count).collect();
        let leaves = shared.is_leaving;
        let mut reports = Vec::with_capacity(drained.len() + wanted.len());
        for id in drained {
            self.unlist(id);
            reports.extend(self.report(id, now));
        }
        reports.extend(wanted.into_iter().filter_map(|id| self.report(id, now)));
        for _ in 0..MAX_REPORTED {
            let Some(id) = self.shared.as_mut().and_then(|shared| shared.urgent.pop_first()) else { break };
            reports.extend(self.report(id, now));
        }
        LimitReports { reports, left: changed - count, leaves }
    }

    fn unlist(&mut self, id: LimitId) {
        if let Some(lease) = self.entries.get_mut(&id).and_then(|entry| entry.lease.as_mut()) {
            lease.is_listed = false;
        }
    }

    /// The report of one limit, which lowers its lease to what it tells.
    fn report(&mut self, id: LimitId, now: Tick) -> Option<LimitUse> {
        let ends = self.ends_of(id.period);
        let shared = self.shared.as_mut()?;
        shared.urgent.remove(&id);
        let is_leaving = shared.is_leaving;
        let LimitEntry { rule, epoch, account, lease } = self.entries.get_mut(&id)?;
        account.advance(now, rule.amount);
        let mut report = lease.as_mut()?.report(*rule, *epoch, ends, account, now);
        let held = report.held;
        if is_leaving {
            // With nothing left of the limit, no part of it is granted.
            (report.rule.amount, report.ceiling, report.missed) = (held, held, 0);
        }
        // What was used a minute ago is free again without an event.
        if id.period == LimitPeriod::Minute && held > 0 {
            self.list(id);
        }
        Some(report)
    }

    /// Gives all leases back, as far as they are not used. The gateway admits nothing any more.
    pub const fn leave(&mut self) {
        if let Some(shared) = &mut self.shared {
            (shared.is_leaving, shared.leave_is_news) = (true, true);
        }
    }

    /// Notes that the limit is to be reported.
    pub(super) fn list(&mut self, id: LimitId) {
        let (Some(shared), Some(entry)) = (&mut self.shared, self.entries.get_mut(&id)) else { return };
        if let Some(lease) = entry.lease.as_mut().filter(|lease| !lease.is_listed) {
            lease.is_listed = true;
            shared.changed.push_back(id);
        }
    }

    /// Notes that the lease has refused an amount.
    pub(super) fn missed(&mut self, id: LimitId, amount: u64) {
        let Some(LimitEntry { lease: Some(lease), .. }) = self.entries.get_mut(&id) else { return };
        lease.missed = lease.missed.saturating_add(amount);
        // Where nothing was free, the next report is soon enough.
        let is_urgent = lease.free > 0;
        self.list(id);
        self.mark_urgent(id, is_urgent);
    }

    /// Notes a reservation, which may have taken what nobody had a lease of.
    pub(super) fn reserved(&mut self, id: LimitId) {
        let Some(LimitEntry { account, lease: Some(lease), .. }) = self.entries.get_mut(&id) else { return };
        let held = account.used();
        let has_passed = held > lease.ceiling;
        if has_passed {
            (lease.ceiling, lease.free) = (held, 0);
        }
        // The next part is asked for before this one is used up.
        let is_low = lease.free > 0 && lease.ceiling - held <= lease.keep / 2;
        self.list(id);
        self.mark_urgent(id, has_passed || is_low);
    }

    /// Notes that the report of a limit cannot wait, if `is_urgent`.
    fn mark_urgent(&mut self, id: LimitId, is_urgent: bool) {
        if let Some(shared) = self.shared.as_mut().filter(|_| is_urgent) {
            shared.urgent.insert(id);
        }
    }

    /// Whether leases are too old to be used.
    pub(super) fn are_leases_over(&self, now: Tick) -> bool {
        self.shared.as_ref().is_some_and(|shared| now >= shared.until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::LimitSubject;
    use crate::limits::rule::{LimitRule, LimitScope, LimitUnit, UnitAmounts};
    use crate::model::ids::{ModelId, TenantId};

    const TENANT: TenantId = TenantId::new(1);
    const SUBJECT: LimitSubject = LimitSubject { tenant: TENANT, key: None, model: ModelId::new(2) };
    const NOW: Tick = Tick::from_millis(5_000);
    const UNTIL: Tick = Tick::from_millis(1_000_000);
    const ENDS: Tick = Tick::from_millis(500_000);

    fn requests(amount: u64) -> UsageLimits {
        let scope = LimitScope::Tenant(TENANT);
        let id = LimitId { scope, unit: LimitUnit::Requests, period: LimitPeriod::Day, shadow: false };
        let mut limits = UsageLimits::default();
        limits.apply(&[LimitRule { id, amount }]);
        limits.start_period(LimitPeriod::Day, ENDS);
        limits.lease(&[], UNTIL);
        limits
    }

    fn served(limits: &mut UsageLimits, requests: usize, now: Tick) -> usize {
        let reserve = |_: &usize| limits.reserve(&SUBJECT, &UnitAmounts::default(), now).is_ok();
        (0..requests).filter(reserve).count()
    }

    fn report(limits: &mut UsageLimits) -> LimitUse {
        let ids: Vec<LimitId> = limits.entries.keys().copied().collect();
        let reports = limits.take_use(&ids, usize::MAX, NOW).reports;
        assert_eq!(reports.len(), 1);
        reports[0]
    }

    fn grant(limits: &mut UsageLimits, ceiling: u64, free: u64) {
        let LimitUse { rule, epoch, ends, .. } = report(limits);
        let keep = 10;
        let grant = LeaseGrant {
            rule: rule.id,
            epoch,
            ends,
            ceiling,
            keep,
            share: None,
            others: 7,
            free,
            gateways: 4,
        };
        limits.lease(&[grant], UNTIL);
    }

    #[test]
    fn a_gateway_that_hears_nothing_has_an_eighth_and_gives_it_back_in_its_first_report() {
        let mut limits = requests(80);
        assert_eq!(served(&mut limits, 6, NOW), 6);
        assert!(!limits.wants_lease());
        assert_eq!(served(&mut limits, 6, NOW), 4);
        let refused = limits.reserve(&SUBJECT, &UnitAmounts::default(), NOW).unwrap_err();
        assert_eq!((refused.left, refused.retry_after), (70, Some(Duration::from_secs(1))));
        assert!(!refused.is_quota(), "another gateway may have it, and not for long");
        let told = report(&mut limits);
        assert_eq!((told.held, told.ceiling, told.missed), (10, 10, 3));
        grant(&mut limits, 30, 0);
        assert_eq!(served(&mut limits, 80, NOW), 20);
        let left = limits.statuses(NOW)[0].left;
        assert_eq!(left, 80 - 7 - 30, "of all gateways");
    }

    #[test]
    fn a_report_keeps_a_part() {
        let mut limits = requests(1_000);
        grant(&mut limits, 500, 300);
        assert_eq!(served(&mut limits, 20, NOW), 20);
        assert_eq!(report(&mut limits).ceiling, 30);
        assert_eq!(limits.take_use(&[], usize::MAX, NOW), LimitReports::default());
    }

    #[test]
    fn a_limit_that_cannot_be_divided_is_passed_by_one_request_for_each_answer() {
        let mut limits = requests(2);
        grant(&mut limits, 0, 2);
        assert_eq!(served(&mut limits, 3, NOW), 1);
        assert!(limits.wants_lease());
        grant(&mut limits, 1, 1);
        assert_eq!(served(&mut limits, 3, NOW), 1);
    }

    #[test]
    fn leases_end_and_belong_to_one_day() {
        let mut limits = requests(80);
        grant(&mut limits, 40, 0);
        assert_eq!(served(&mut limits, 1, UNTIL), 0, "nothing was heard for too long");
        let old = report(&mut limits);
        limits.start_period(LimitPeriod::Day, UNTIL);
        let LimitUse { rule, epoch, ends, .. } = old;
        let late = LeaseGrant {
            rule: rule.id,
            epoch,
            ends,
            ceiling: 80,
            keep: 0,
            share: None,
            others: 0,
            free: 0,
            gateways: 1,
        };
        limits.lease(&[late], UNTIL);
        assert_eq!(served(&mut limits, 80, NOW), 10);
    }

    #[test]
    fn who_leaves_keeps_nothing() {
        let mut limits = requests(80);
        grant(&mut limits, 40, 0);
        assert_eq!(served(&mut limits, 3, NOW), 3);
        let id = report(&mut limits).rule.id;
        limits.restore(id, 20);
        limits.leave();
        assert!(limits.wants_lease());
        let told = report(&mut limits);
        assert_eq!((told.rule.amount, told.ceiling, told.others), (3, 3, 20));
    }

    /// Limits of this many tenants; all have used something of theirs.
    fn busy(tenants: u32) -> (UsageLimits, Vec<LimitRule>) {
        let rule = |tenant| {
            let (scope, unit) = (LimitScope::Tenant(TenantId::new(tenant)), LimitUnit::Requests);
            let id = LimitId { scope, unit, period: LimitPeriod::Minute, shadow: false };
            LimitRule { id, amount: 80 }
        };
        let rules: Vec<LimitRule> = (0..tenants).map(rule).collect();
        let mut limits = UsageLimits::default();
        limits.apply(&rules);
        limits.lease(&[], UNTIL);
        for tenant in 0..tenants {
            let subject = LimitSubject { tenant: TenantId::new(tenant), ..SUBJECT };
            limits.reserve(&subject, &UnitAmounts::default(), NOW).unwrap();
        }
        (limits, rules)
    }

    #[test]
    fn parts_of_a_report_are_small_and_each_limit_is_in_one_of_them() {
        let (mut limits, rules) = busy(1_000);
        let (mut seen, mut most) = (BTreeSet::new(), usize::MAX);
        for part in 0..4 {
            let told = limits.take_use(&[], most, NOW);
            assert_eq!(told.reports.len(), if part == 3 { 1_000 - 3 * 256 } else { 256 });
            seen.extend(told.reports.iter().map(|report| report.rule.id));
            most = told.left;
        }
        assert_eq!((seen.len(), most), (1_000, 0));
        // What is used of a minute is told again, each limit once.
        assert_eq!(limits.take_use(&[], usize::MAX, NOW).left, 1_000 - 256);
        // A policy that changes one limit lists one.
        let (mut limits, mut rules) = (limits, rules);
        let mut most = usize::MAX;
        while most > 0 {
            most = limits.take_use(&[], most, NOW + Duration::from_secs(61)).left;
        }
        assert_eq!(limits.take_use(&[], usize::MAX, NOW + Duration::from_secs(61)).reports, []);
        rules[7].amount = 40;
        limits.apply(&rules);
        let told = limits.take_use(&[], usize::MAX, NOW + Duration::from_secs(61));
        assert_eq!(told.reports.iter().map(|report| report.rule).collect::<Vec<_>>(), [rules[7]]);
    }

    #[test]
    fn an_urgent_report_has_only_the_limits_that_miss_something() {
        let (mut limits, _) = busy(300);
        let told = limits.take_use(&[], usize::MAX, NOW).reports;
        let grant = |report: &LimitUse| LeaseGrant {
            rule: report.rule.id,
            epoch: report.epoch,
            ends: report.ends,
            ceiling: 1,
            keep: 0,
            share: None,
            others: 0,
            free: 50,
            gateways: 2,
        };
        let grants: Vec<LeaseGrant> = told.iter().map(grant).collect();
        limits.lease(&grants, UNTIL);
        assert!(!limits.wants_lease());
        let wanted = UnitAmounts::default();
        let LimitScope::Tenant(first) = told[5].rule.id.scope else { panic!() };
        let subject = LimitSubject { tenant: first, ..SUBJECT };
        limits.reserve(&subject, &wanted, NOW).unwrap_err();
        limits.reserve(&subject, &wanted, NOW).unwrap_err();
        assert!(limits.wants_lease());
        let urgent = limits.take_use(&[], 0, NOW).reports;
        assert_eq!(
            urgent.iter().map(|report| (report.rule.id, report.missed)).collect::<Vec<_>>(),
            [(told[5].rule.id, 2)]
        );
        assert!(!limits.wants_lease());
        assert_eq!(limits.take_use(&[], 0, NOW).reports, []);
    }

    /// A limit is in a report once, whoever asks for it how often, and what is reported is no longer urgent.
    #[test]
    fn no_limit_is_told_twice() {
        let (mut limits, rules) = busy(600);
        let told = limits.take_use(&[], usize::MAX, NOW + Duration::from_secs(61)).left;
        assert_eq!(told, 600 - 256);
        while limits.take_use(&[], usize::MAX, NOW + Duration::from_secs(61)).left > 0 {}
        let one = rules[7].id;
        let told = limits.take_use(&[one, rules[9].id, one], 0, NOW + Duration::from_secs(62)).reports;
        let mut seen: Vec<LimitId> = told.iter().map(|report| report.rule.id).collect();
        seen.sort_unstable();
        assert_eq!(seen, [one, rules[9].id]);
        // More urgent ones than a part holds, each again and again.
        for _ in 0..3 {
            rules.iter().for_each(|rule| limits.mark_urgent(rule.id, true));
            assert_eq!(limits.shared.as_ref().unwrap().urgent.len(), 600);
            let all: Vec<LimitId> = rules.iter().map(|rule| rule.id).collect();
            let told = limits.take_use(&all[300..], 0, NOW + Duration::from_secs(62)).reports;
            assert_eq!(told.len(), 300 + 256);
            assert_eq!(limits.shared.as_ref().unwrap().urgent.len(), 600 - 300 - 256);
        }
    }
}
