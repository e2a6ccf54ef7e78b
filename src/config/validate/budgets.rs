//! `limits` of tenants, of their keys and of their models.

use crate::config::field::Field;
use crate::config::file::budgets::{Amounts, Concurrent, Limits};
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
                let Some(amount) = amount else { continue };
                let field = field.key(key).key(unit.name());
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

struct Periods<'a> {
    concurrent: &'a Option<Concurrent>,
    per_minute: &'a Option<Amounts>,
    per_day: &'a Option<Amounts>,
    per_month: &'a Option<Amounts>,
}

type Row = (Period, &'static str, Vec<(Unit, Option<u64>)>);

impl Periods<'_> {
    fn each(&self) -> impl Iterator<Item = Row> {
        let held =
            self.concurrent.map(|held| vec![(Unit::Requests, held.requests), (Unit::Tokens, held.tokens)]);
        let used = |amounts: &Option<Amounts>| amounts.map(units);
        let rows = [
            (Period::Now, held),
            (Period::Minute, used(self.per_minute)),
            (Period::Day, used(self.per_day)),
            (Period::Month, used(self.per_month)),
        ];
        rows.into_iter().filter_map(|(period, amounts)| Some((period, period.name(), amounts?)))
    }
}

fn units(amounts: Amounts) -> Vec<(Unit, Option<u64>)> {
    vec![
        (Unit::Requests, amounts.requests),
        (Unit::Tokens, amounts.tokens),
        (Unit::InputTokens, amounts.input_tokens),
        (Unit::OutputTokens, amounts.output_tokens),
    ]
}
