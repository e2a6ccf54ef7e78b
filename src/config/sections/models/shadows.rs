//! Check of `shadow`: source and target models.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::config::file::ConfigFile;
use crate::config::sections::models::checked::CheckedModels;
use crate::config::settings::shadows::{NAME, ShadowRule, ShadowSettings};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, ModelId, TenantId};
use crate::core::model::policy::{Class, QueueBounds, Quota, Tenant};
use crate::core::placement::rules::PlacementRules;

/// What a pool that serves nothing but copies aims at.
const TTFT: Duration = Duration::from_secs(60);
const ITL: Duration = Duration::from_millis(500);
/// A copy does not wait; this bounds its way back into a lane that it leaves at
/// once.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Checks the copies and enters their class and their tenant, which the file
/// does not have.
pub(in crate::config) fn validate(
    file: &ConfigFile,
    models: &CheckedModels,
    classes: &mut IdTable<ClassId, Class>,
    tenants: &mut IdTable<TenantId, Tenant>,
    findings: &mut Findings<'_>,
) -> Option<ShadowSettings> {
    let rules = rules(file, models, findings);
    if rules.is_empty() {
        return None;
    }
    let taken =
        [("classes", file.classes.get(NAME).is_some()), ("tenants", file.tenants.get(NAME).is_some())];
    for (section, _) in taken.into_iter().filter(|(_, taken)| *taken) {
        let message = format!("`{NAME}` is where the copies of requests are booked");
        findings.error(&FieldPath::top(section).key(NAME), message, "choose another name");
    }
    let last = classes.iter().map(|(_, _, class)| class.rank).max().unwrap_or_default();
    let class = classes.insert(NAME, class(last.saturating_add(1)));
    let tenant = tenants.insert(NAME, tenant(class, rules.values().map(|rule| rule.to).collect()));
    Some(ShadowSettings { tenant, class, rules })
}

fn rules(
    file: &ConfigFile,
    models: &CheckedModels,
    findings: &mut Findings<'_>,
) -> BTreeMap<ModelId, ShadowRule> {
    let mut rules = BTreeMap::new();
    for (name, model) in file.models.iter() {
        let Some(shadow) = &model.shadow else { continue };
        let field = FieldPath::top("models").key(name).key("shadow");
        let share = numbers::share(shadow.share, &field.key("share"), findings);
        numbers::at_least_one(shadow.max_in_flight.into(), &field.key("max_in_flight"), findings);
        if shadow.to == name {
            findings.error(&field.key("to"), "is the model itself", "name another one");
            continue;
        }
        let Some(to) = models.served(&shadow.to, file, &field.key("to"), findings) else { continue };
        let Some(id) = models.table.id(name) else {
            if !model.split.is_empty() {
                let hint = "give it to the models that share its requests";
                findings.error(&field, "belongs to a model that a pool serves", hint);
            }
            continue;
        };
        rules.insert(id, ShadowRule { to, share, max_in_flight: shadow.max_in_flight });
    }
    rules
}

/// After every other class.
fn class(rank: u32) -> Class {
    Class {
        rank,
        min_share: 0.0,
        usage_half_life: None,
        max_wait: MAX_WAIT,
        cold_start_tolerance: None,
        ttft_objective: TTFT,
        itl_objective: ITL,
        demote_to: None,
        placement: PlacementRules::default(),
        scavenger: true,
    }
}

fn tenant(class: ClassId, models: BTreeSet<ModelId>) -> Tenant {
    Tenant {
        weight: 1.0,
        parent: None,
        default_class: class,
        classes: BTreeSet::from([class]),
        models: Some(models),
        bounds: QueueBounds::default(),
        quota: Quota::default(),
        placement: PlacementRules::default(),
    }
}
