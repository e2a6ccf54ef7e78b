//! `limits` of tenants, of their keys and of their models.

use crate::config::field::Field;
use crate::config::file::budgets::{Amounts, Concurrent, Limits, Quotas};
use crate::config::file::tenants::Key;
use crate::config::settings::Settings;
use crate::config::validate::findings::Findings;
use crate::core::budget::rule::{Period, Rule, RuleId, Scope, Unit};
use crate::core::ids::KeyId;
use crate::core::table::Table;

/// All limits, and the credentials that have some.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    pub(super) rules: Vec<Rule>,
    pub(super) keys: Table<KeyId, ()>,
}

impl Budgets {
    /// None, with the numbers that credentials had.
    pub(super) fn new(previous: Option<&Settings>) -> Self {
        let keys = previous.map(|old| Table::successor(&old.policy.keys)).unwrap_or_default();
        Self { rules: Vec::new(), keys }
    }

    /// Adds those of one scope.
    pub(super) fn add(&mut self, limits: &Limits, scope: Scope, field: &Field, findings: &mut Findings<'_>) {
        rules(limits, scope, field, &mut self.rules, findings);
    }

    /// Adds those of a key; returns its number if there are any.
    pub(super) fn add_key(&mut self, key: &Key, field: &Field, findings: &mut Findings<'_>) -> Option<KeyId> {
        let id = (!key.limits.is_empty()).then(|| self.keys.insert(&key.id, ()))?;
        self.add(&key.limits, Scope::Key(id), &field.key("limits"), findings);
        Some(id)
    }
}

fn rules(limits: &Limits, scope: Scope, field: &Field, rules: &mut Vec<Rule>, findings: &mut Findings<'_>) {
    let mut add = |shadow, field: &Field, periods: Periods<'_>| {
        for (period, key, amounts) in periods.each() {
            for (unit, amount) in amounts {
                let field = field.key(key).key(unit.name());
                let Some(amount) = amount.and_then(|amount| whole(amount, unit, &field, findings)) else {
                    continue;
                };
                if amount == 0 {
                    let hint = "write how much is allowed; to keep a tenant out, take its keys away";
                    findings.error(&field, "a limit of 0 would refuse everything", hint);
                }
                rules.push(Rule { id: RuleId { scope, unit, period, shadow }, amount });
            }
        }
    };
    let Limits { concurrent, per_minute, per_day, per_month, shadow } = limits;
    add(false, field, Periods { concurrent, per_minute, per_day, per_month });
    if let Some(shadow) = shadow {
        let periods = Periods {
            concurrent: &shadow.concurrent,
            per_minute: &shadow.per_minute,
            per_day: &shadow.per_day,
            per_month: &shadow.per_month,
        };
        add(true, &field.key("shadow"), periods);
    }
}

/// The amount in the unit of the core.
fn whole(amount: Amount, unit: Unit, field: &Field, findings: &mut Findings<'_>) -> Option<u64> {
    let units = match amount {
        Amount::Count(count) => return Some(count),
        Amount::Parts(units) => units,
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
enum Amount {
    /// Of what there are whole numbers of.
    Count(u64),
    /// In seconds, or in units of the currency.
    Parts(f64),
}

struct Periods<'a> {
    concurrent: &'a Option<Concurrent>,
    per_minute: &'a Option<Amounts>,
    per_day: &'a Option<Quotas>,
    per_month: &'a Option<Quotas>,
}

type Row = (Period, &'static str, Vec<(Unit, Option<Amount>)>);

impl Periods<'_> {
    fn each(&self) -> impl Iterator<Item = Row> {
        let held = self.concurrent.map(|held| {
            let count = |amount: Option<u64>| amount.map(Amount::Count);
            vec![(Unit::Requests, count(held.requests)), (Unit::Tokens, count(held.tokens))]
        });
        let rows = [
            (Period::Now, held),
            (Period::Minute, self.per_minute.map(|amounts| units(amounts.into()))),
            (Period::Day, self.per_day.map(units)),
            (Period::Month, self.per_month.map(units)),
        ];
        rows.into_iter().filter_map(|(period, amounts)| Some((period, period.name(), amounts?)))
    }
}

fn units(amounts: Quotas) -> Vec<(Unit, Option<Amount>)> {
    let count = |amount: Option<u64>| amount.map(Amount::Count);
    let parts = |amount: Option<f64>| amount.map(Amount::Parts);
    vec![
        (Unit::Requests, count(amounts.requests)),
        (Unit::Tokens, count(amounts.tokens)),
        (Unit::InputTokens, count(amounts.input_tokens)),
        (Unit::OutputTokens, count(amounts.output_tokens)),
        (Unit::GpuTime, parts(amounts.gpu_seconds)),
        (Unit::Money, parts(amounts.money)),
    ]
}
