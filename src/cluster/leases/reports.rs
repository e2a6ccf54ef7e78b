//! Lease report state: the reports of limits that this gateway has sent, and the answers to them. The
//! module does no I/O: the caller sends the calls and brings the answers.

use std::collections::BTreeMap;

use crate::core::limits::lease::{LeaseGrant, LimitUse};
use crate::core::limits::rule::{LimitId, LimitPeriod, LimitScope};
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;

/// From the end of a day or a month back to its middle. A gateway whose clock is wrong by less finds the
/// period that most of its account is of.
const HALF_DAY_MS: i64 = 12 * 3600 * 1000;
const HALF_MONTH_MS: i64 = 15 * 24 * 3600 * 1000;

/// A call of the script: one limit's part.
#[derive(Debug, Clone)]
pub struct LeaseCall {
    /// The hash of the limit.
    pub key: String,
    /// The script's values for it.
    pub values: Vec<String>,
    report: LimitUse,
    seq: u64,
}

/// What was sent of one account, and what is known to have arrived.
#[derive(Debug, Clone, Default)]
struct SentReports {
    epoch: u64,
    ends: Tick,
    /// The hash of the limit. The store's clock at the first report says which day or month it is of.
    key: String,
    /// Number of the last report.
    seq: u64,
    /// The last report that was answered.
    acked: AckedReport,
}

#[derive(Debug, Clone, Copy, Default)]
struct AckedReport {
    seq: u64,
    /// Use that the report told.
    used: u64,
}

/// The reports of one gateway.
#[derive(Debug, Default)]
pub struct LeaseReportState {
    sent: BTreeMap<LimitId, SentReports>,
    /// Reports ever made. Their numbers only grow, whatever the wall clock does.
    seq: u64,
}

impl LeaseReportState {
    /// The call that reports `report`. `now` and `store_ms` are the same moment, by the core's clock
    /// and by the store's in milliseconds since 1970. `None` when the policy has forgotten the limit.
    pub fn call(
        &mut self,
        report: &LimitUse,
        prefix: &str,
        policy: &Policy,
        now: Tick,
        store_ms: i64,
    ) -> Option<LeaseCall> {
        let LimitUse { rule, epoch, ends, used, held, ceiling, missed, demand, others } = *report;
        scope_of(rule.id, policy)?;
        let sent = self.sent.entry(rule.id).or_default();
        if sent.key.is_empty() || (sent.epoch, sent.ends) != (epoch, ends) {
            let key = key_of(report, prefix, policy, now, store_ms)?;
            *sent = SentReports { epoch, ends, key, ..SentReports::default() };
        }
        self.seq += 1;
        sent.seq = self.seq;
        let acked = sent.acked;
        let numbers =
            [rule.amount, sent.seq, acked.seq, acked.used, used, held, ceiling, missed, demand, others];
        let mut values = vec![epoch.to_string(), rule.id.period.name().to_owned()];
        values.extend(numbers.iter().map(u64::to_string));
        Some(LeaseCall { key: sent.key.clone(), values, report: *report, seq: sent.seq })
    }

    /// The lease that the answer grants; `None` for an answer that does not count any more, or that
    /// is broken.
    pub fn grant(&mut self, call: &LeaseCall, answer: &str) -> Option<LeaseGrant> {
        let LimitUse { rule, epoch, ends, used, .. } = call.report;
        let sent = self.sent.get_mut(&rule.id).filter(|sent| sent.seq == call.seq)?;
        let numbers: Vec<f64> = answer.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [ceiling, keep, share, others, free, gateways] = *numbers.first_chunk()?;
        sent.acked = AckedReport { seq: call.seq, used };
        // Amounts are whole and not below 0, except for a share that is absent.
        let whole = |number: f64| number as u64;
        Some(LeaseGrant {
            rule: rule.id,
            epoch,
            ends,
            ceiling: whole(ceiling),
            keep: whole(keep),
            share: (share >= 0.0).then(|| whole(share)),
            others: whole(others),
            free: whole(free),
            gateways: whole(gateways),
        })
    }

    /// Forgets the limits that a policy no longer has.
    pub fn retain(&mut self, policy: &Policy) {
        let known: std::collections::BTreeSet<LimitId> = policy.limits.iter().map(|rule| rule.id).collect();
        self.sent.retain(|id, _| known.contains(id));
    }
}

/// Name of the hash of a limit. What is in braces decides on the node of a Valkey cluster.
fn key_of(report: &LimitUse, prefix: &str, policy: &Policy, now: Tick, store_ms: i64) -> Option<String> {
    let LimitId { unit, period, shadow, .. } = report.rule.id;
    let scope = scope_of(report.rule.id, policy)?;
    let mut key = format!("{prefix}:v1:{scope}:{}:{}", unit.name(), period.name());
    if matches!(period, LimitPeriod::Day | LimitPeriod::Month) {
        let left = i64::try_from(report.ends.since(now).as_millis()).ok()?;
        let (half, form) = match period {
            LimitPeriod::Month => (HALF_MONTH_MS, "%Y%m"),
            LimitPeriod::Now | LimitPeriod::Minute | LimitPeriod::Day => (HALF_DAY_MS, "%Y%m%d"),
        };
        let within = jiff::Timestamp::from_millisecond(store_ms.saturating_add(left) - half).ok()?;
        key = format!("{key}:{}", within.strftime(form));
    }
    if shadow {
        key.push_str(":shadow");
    }
    Some(key)
}

/// The scope of a limit as a part of keys; `None` when the policy has forgotten it.
pub(in crate::cluster) fn scope_of(id: LimitId, policy: &Policy) -> Option<String> {
    let tenant = |id| policy.tenants.get(id).map(|_| policy.tenants.name(id));
    Some(match id.scope {
        LimitScope::Tenant(id) => format!("{{t/{}}}", tenant(id)?),
        LimitScope::Key(id) => {
            policy.keys.get(id)?;
            format!("{{k/{}}}", policy.keys.name(id))
        }
        LimitScope::Model(id, model) => {
            policy.models.get(model)?;
            format!("{{t/{}}}:{}", tenant(id)?, policy.models.name(model))
        }
    })
}

impl LeaseCall {
    /// Whether the gateway still misses something after the grant.
    pub const fn misses(&self, grant: &LeaseGrant) -> bool {
        grant.ceiling.saturating_sub(self.report.held) < self.report.missed
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::MachineSecrets;
    use crate::core::limits::rule::{LimitRule, LimitUnit};
    use crate::core::model::ids::TenantId;

    const HOUR_MS: i64 = 3600 * 1000;
    /// 2026-11-26 06:00 UTC.
    const WALL: i64 = 1_795_651_200_000 + 6 * HOUR_MS;

    fn report(period: LimitPeriod, ends: Tick) -> LimitUse {
        let scope = LimitScope::Tenant(TenantId::new(0));
        let id = LimitId { scope, unit: LimitUnit::Requests, period, shadow: false };
        LimitUse {
            rule: LimitRule { id, amount: 100 },
            epoch: 3,
            ends,
            used: 7,
            held: 8,
            ceiling: 20,
            missed: 0,
            demand: 1,
            others: 0,
        }
    }

    /// The hash, and the numbers of the report and of the last one that was answered.
    fn shown(call: &LeaseCall) -> (&str, &str, &str) {
        (call.key.rsplit(':').next().unwrap(), &call.values[3], &call.values[4])
    }

    fn policy() -> std::sync::Arc<Policy> {
        let text = "{version: 1, auth: {mode: off}, pools: {p: {engine: vllm, models: [m], replicas: ['http://127.0.0.1:9']}}}";
        let outcome = load_str_with(text, "test", Path::new("."), None, &MachineSecrets);
        outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings.policy
    }

    /// A gateway knows by its own clock only how long its day or month lasts yet.
    #[test]
    fn the_stores_clock_names_the_day_and_the_month() {
        let policy = policy();
        let hours = |hours: u64| Tick::from_millis(hours * 3600 * 1000);
        let named = |period, left: u64, store_ms| {
            let report = report(period, hours(left));
            let call = LeaseReportState::default().call(&report, "penstock", &policy, Tick::ZERO, store_ms);
            call.unwrap().key.rsplit(':').next().unwrap().to_owned()
        };
        // 06:00 by the store. By the gateway 06:00 of any day, 08:00, and 22:00 the day before.
        for left in [18, 16, 2] {
            assert_eq!(named(LimitPeriod::Day, left, WALL), if left == 2 { "20261125" } else { "20261126" });
        }
        // 26 November by the store; by the gateway 26 November, 26 December, 26 February, 1 December.
        for days in [5, 6, 3, 31] {
            let name = if days == 31 { "202612" } else { "202611" };
            assert_eq!(named(LimitPeriod::Month, days * 24 - 6, WALL), name, "{days} days");
        }
        // The last hour of a year, and the first.
        assert_eq!(named(LimitPeriod::Day, 1, WALL + 35 * 24 * HOUR_MS + 17 * HOUR_MS), "20261231");
        assert_eq!(named(LimitPeriod::Month, 1, WALL + 35 * 24 * HOUR_MS + 17 * HOUR_MS), "202612");
        assert_eq!(named(LimitPeriod::Month, 31 * 24 - 1, WALL + 35 * 24 * HOUR_MS + 19 * HOUR_MS), "202701");
    }

    #[test]
    fn a_clock_that_is_set_back_changes_neither_the_day_nor_the_order_of_reports() {
        let policy = policy();
        let day = Tick::from_millis(18 * 3600 * 1000);
        let mut state = LeaseReportState::default();
        let mut call = |ends, now_ms, wall| {
            let report = report(LimitPeriod::Day, ends);
            state.call(&report, "penstock", &policy, Tick::from_millis(now_ms), wall).unwrap()
        };
        let first = call(day, 0, WALL);
        assert_eq!(shown(&first), ("20261126", "1", "0"));
        let back = call(day, 1_000, WALL - 24 * HOUR_MS);
        assert_eq!(shown(&back), ("20261126", "2", "0"));
        let next = call(day + Duration::from_secs(86_400), 18 * 3600 * 1000, WALL + 18 * HOUR_MS);
        assert_eq!(shown(&next), ("20261127", "3", "0"));
        let again = call(day, 1_000, WALL);
        assert_eq!(shown(&again), ("20261126", "4", "0"), "no number comes twice");
    }
}
