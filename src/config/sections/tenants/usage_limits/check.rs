//! Check of `limits` of tenants, of their keys and of their models.

use crate::config::sections::tenants::KeySection;
use crate::config::sections::tenants::usage_limits::{
    AmountsSection, ConcurrentSection, LimitsSection, QuotasSection,
};
use crate::config::settings::Settings;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::core::limits::rule::{LimitId, LimitPeriod, LimitRule, LimitScope, LimitUnit};
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::KeyId;

/// All limits, and the credentials that have some.
#[derive(Debug, Default)]
pub(in crate::config) struct CheckedLimits {
    pub(in crate::config) rules: Vec<LimitRule>,
    pub(in crate::config) keys: IdTable<KeyId, ()>,
}

impl CheckedLimits {
    /// No limits yet; keys keep the ids of the settings before.
    pub(in crate::config) fn new(previous: Option<&Settings>) -> Self {
        let keys = previous.map(|old| IdTable::successor(&old.policy.keys)).unwrap_or_default();
        Self { rules: Vec::new(), keys }
    }

    /// Adds the limits of one tenant, key or model.
    pub(in crate::config) fn add(
        &mut self,
        limits: &LimitsSection,
        scope: LimitScope,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) {
        rules(limits, scope, field, &mut self.rules, findings);
    }

    /// Adds the limits of a key. Returns the key's id if the key has limits.
    pub(in crate::config) fn add_key(
        &mut self,
        key: &KeySection,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Option<KeyId> {
        let id = (!key.limits.is_empty()).then(|| self.keys.insert(&key.id, ()))?;
        self.add(&key.limits, LimitScope::Key(id), &field.key("limits"), findings);
        Some(id)
    }
}

fn rules(
    limits: &LimitsSection,
    scope: LimitScope,
    field: &FieldPath,
    rules: &mut Vec<LimitRule>,
    findings: &mut Findings<'_>,
) {
    let mut add = |shadow, field: &FieldPath, periods: LimitPeriods<'_>| {
        for (period, amounts) in periods.each() {
            for (unit, amount) in amounts {
                let field = field.key(period.name()).key(unit.name());
                let Some(amount) = amount.and_then(|amount| whole(amount, unit, &field, findings)) else {
                    continue;
                };
                if amount == 0 {
                    let hint = "write how much is allowed; to keep a tenant out, take its keys away";
                    findings.error(&field, "a limit of 0 would refuse everything", hint);
                }
                rules.push(LimitRule { id: LimitId { scope, unit, period, shadow }, amount });
            }
        }
    };
    let LimitsSection { concurrent, per_minute, per_day, per_month, shadow } = limits;
    add(false, field, LimitPeriods { concurrent, per_minute, per_day, per_month });
    if let Some(shadow) = shadow {
        let periods = LimitPeriods {
            concurrent: &shadow.concurrent,
            per_minute: &shadow.per_minute,
            per_day: &shadow.per_day,
            per_month: &shadow.per_month,
        };
        add(true, &field.key("shadow"), periods);
    }
}

/// The amount in the unit of the core.
fn whole(
    amount: WrittenAmount,
    unit: LimitUnit,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Option<u64> {
    let units = match amount {
        WrittenAmount::Count(count) => return Some(count),
        WrittenAmount::Parts(units) => units,
    };
    if !(0.0..=MAX_PARTS).contains(&units) {
        let hint = format!("write a number from 0 to {MAX_PARTS}");
        findings.error(field, format!("{units} is not an amount of {}", unit.name()), &hint);
        return None;
    }
    Some((units * PARTS).round() as u64)
}

/// Parts of a second, and of the currency, that limits are counted in.
const PARTS: f64 = 1e9;
/// The largest limit in seconds or in units of the currency.
const MAX_PARTS: f64 = 1e9;

/// An amount as written.
#[derive(Debug, Clone, Copy)]
enum WrittenAmount {
    /// Of what there are whole numbers of.
    Count(u64),
    /// In seconds, or in units of the currency.
    Parts(f64),
}

struct LimitPeriods<'a> {
    concurrent: &'a Option<ConcurrentSection>,
    per_minute: &'a Option<AmountsSection>,
    per_day: &'a Option<QuotasSection>,
    per_month: &'a Option<QuotasSection>,
}

type AmountsByUnit = Vec<(LimitUnit, Option<WrittenAmount>)>;

impl LimitPeriods<'_> {
    fn each(&self) -> impl Iterator<Item = (LimitPeriod, AmountsByUnit)> {
        let held = self.concurrent.map(|held| {
            let count = |amount: Option<u64>| amount.map(WrittenAmount::Count);
            vec![(LimitUnit::Requests, count(held.requests)), (LimitUnit::Tokens, count(held.tokens))]
        });
        let rows = [
            (LimitPeriod::Now, held),
            (LimitPeriod::Minute, self.per_minute.map(|amounts| units(amounts.into()))),
            (LimitPeriod::Day, self.per_day.map(units)),
            (LimitPeriod::Month, self.per_month.map(units)),
        ];
        rows.into_iter().filter_map(|(period, amounts)| Some((period, amounts?)))
    }
}

fn units(amounts: QuotasSection) -> AmountsByUnit {
    let count = |amount: Option<u64>| amount.map(WrittenAmount::Count);
    let parts = |amount: Option<f64>| amount.map(WrittenAmount::Parts);
    vec![
        (LimitUnit::Requests, count(amounts.requests)),
        (LimitUnit::Tokens, count(amounts.tokens)),
        (LimitUnit::InputTokens, count(amounts.input_tokens)),
        (LimitUnit::OutputTokens, count(amounts.output_tokens)),
        (LimitUnit::GpuTime, parts(amounts.gpu_seconds)),
        (LimitUnit::Money, parts(amounts.money)),
    ]
}
