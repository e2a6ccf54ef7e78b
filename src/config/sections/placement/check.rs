//! Check of pool traits, and of `placement` of classes and tenants.

use std::collections::BTreeSet;

use crate::config::file::ConfigFile;
use crate::config::sections::placement as written;
use crate::config::sections::pools::PoolSection as WrittenPool;
use crate::config::sections::tenants::classes::builtin_classes;
use crate::config::settings::PoolLabels;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::names;
use crate::config::validate::numbers;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, PoolId};
use crate::core::model::policy::{Class, Pool};
use crate::core::placement::rules::{Capacity, Isolation, LatePolicy, PlacementRules, PoolTraits, Price};

/// What a pool is, for the core and for people.
pub(in crate::config) fn pool(
    pool: &WrittenPool,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> (PoolTraits, PoolLabels) {
    let (kind, profile) = match pool.isolation.split_once(':') {
        Some((kind, profile)) => (kind, Some(profile)),
        None => (&*pool.isolation, None),
    };
    let isolation = Isolation::ALL.into_iter().find(|known| known.name() == kind);
    let profiled = profile.is_none_or(|name| isolation == Some(Isolation::Mig) && !name.is_empty());
    if isolation.is_none() || !profiled {
        let message = format!("`{}` is no kind of isolation", pool.isolation);
        let hint = "write dedicated, mig, mig:PROFILE such as mig:1g.10gb, mps or time-sliced";
        findings.error(&field.key("isolation"), message, hint);
    }
    numbers::at_least_one(pool.max_model_len.map_or(1, u64::from), &field.key("max_model_len"), findings);
    let supply = PoolTraits {
        isolation: isolation.unwrap_or_default(),
        capacity: capacity(pool.capacity),
        price: pool.price.and_then(|units| price(units, &field.key("price"), findings)),
        window: pool.max_model_len,
    };
    let site = PoolLabels {
        accelerator: pool.accelerator.clone(),
        mig_profile: profile.map(str::to_owned),
        region: pool.region.clone(),
        zone: pool.zone.clone(),
        labels: pool.labels.clone(),
    };
    (supply, site)
}

/// Gives the classes their rules, which name pools.
pub(in crate::config) fn classes(
    file: &ConfigFile,
    pools: &IdTable<PoolId, Pool>,
    classes: &mut IdTable<ClassId, Class>,
    findings: &mut Findings<'_>,
) {
    let builtin = builtin_classes();
    let first = classes.iter().map(|(_, _, class)| class.rank).min();
    for (name, class) in file.classes.iter() {
        let Some(row) = classes.id(name).and_then(|id| classes.get(id)) else { continue };
        let mut row = row.clone();
        let base = builtin.get(name).map(|class| class.placement.clone()).unwrap_or_default();
        let field = FieldPath::top("classes").key(name).key("placement");
        row.placement = rules(&class.placement.over(&base), pools, &field, findings);
        if row.placement.isolation.is_none() && Some(row.rank) == first {
            let kinds = Isolation::ALL.into_iter().filter(|kind| *kind != Isolation::TimeSliced);
            row.placement.isolation = Some(kinds.collect());
        }
        classes.insert(name, row);
    }
}

/// The rules as the core knows them.
pub(in crate::config) fn rules(
    rules: &written::PlacementSection,
    pools: &IdTable<PoolId, Pool>,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> PlacementRules {
    let mut named = |key: &str, list: &[String]| pools_of(list, pools, &field.key(key), findings);
    let allowed = rules.pools.as_ref().map(|list| named("pools", list).into_iter().collect());
    let spill = rules.spill.as_ref().map(|list| named("spill", list));
    PlacementRules {
        isolation: kinds(rules.isolation.as_deref(), isolation, &field.key("isolation"), findings),
        capacity: kinds(rules.capacity.as_deref(), capacity, &field.key("capacity"), findings),
        pools: allowed,
        max_price: rules.max_price.and_then(|units| price(units, &field.key("max_price"), findings)),
        spill,
        prefer: rules.prefer.map(capacity),
        late_policy: rules.otherwise.map(|otherwise| match otherwise {
            written::LatePolicyName::Fastest => LatePolicy::Fastest,
            written::LatePolicyName::Wait => LatePolicy::Wait,
        }),
    }
}

fn kinds<W: Copy, K: Ord>(
    list: Option<&[W]>,
    kind: fn(W) -> K,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Option<BTreeSet<K>> {
    if list.is_some_and(<[W]>::is_empty) {
        findings.error(field, "allows nothing", "list some, or take the key away to allow all");
    }
    list.map(|list| list.iter().map(|written| kind(*written)).collect())
}

fn pools_of(
    list: &[String],
    pools: &IdTable<PoolId, Pool>,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Vec<PoolId> {
    if list.is_empty() {
        findings.error(field, "names no pool", "list some, or take the key away");
    }
    let mut ids = Vec::new();
    for (at, name) in list.iter().enumerate() {
        let field = field.index(at);
        match pools.id(name).filter(|id| pools.get(*id).is_some()) {
            Some(id) if ids.contains(&id) => {
                findings.error(&field, format!("`{name}` is listed twice"), "list it once");
            }
            Some(id) => ids.push(id),
            None if findings.whole("pools") => {
                names::unknown("pool", name, pools.iter().map(|(_, name, _)| name), &field, findings);
            }
            None => {}
        }
    }
    ids
}

fn price(units: f64, field: &FieldPath, findings: &mut Findings<'_>) -> Option<Price> {
    let price = Price::new(units);
    if price.is_none() {
        let hint = format!("write what a replica costs for an hour, from 0 to {}", Price::MAX);
        findings.error(field, format!("{units} is not a price"), hint);
    }
    price
}

const fn isolation(written: written::IsolationName) -> Isolation {
    match written {
        written::IsolationName::Dedicated => Isolation::Dedicated,
        written::IsolationName::Mig => Isolation::Mig,
        written::IsolationName::Mps => Isolation::Mps,
        written::IsolationName::TimeSliced => Isolation::TimeSliced,
    }
}

const fn capacity(written: written::CapacityName) -> Capacity {
    match written {
        written::CapacityName::OnDemand => Capacity::OnDemand,
        written::CapacityName::Spot => Capacity::Spot,
    }
}
