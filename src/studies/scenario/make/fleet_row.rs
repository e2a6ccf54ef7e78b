//! Engines of a scenario's fleet: one row makes the setup of engines that are alike.

use crate::core::model::time::Tick;
use crate::sim::engine::EngineOptions;
use crate::sim::engine::profile::StepProfile;
use crate::sim::world::replica::{ReplicaSetup, WorldFault, WorldFaultKind};
use crate::studies::scenario::file::{FaultName, ScenarioFleet};

/// The value, which must be greater than 0.
pub(super) fn positive(field: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(format!("{field}: must be greater than 0")) }
}

/// Names of the models of a fleet, in the order in which they first appear.
pub(super) fn models_of(fleet: &[ScenarioFleet]) -> Vec<String> {
    let mut models: Vec<String> = Vec::new();
    for name in fleet.iter().filter_map(|row| row.models.as_ref()).flatten() {
        if !models.contains(name) {
            models.push(name.clone());
        }
    }
    models
}

pub(super) fn engine(row: &ScenarioFleet) -> Result<ReplicaSetup, String> {
    let names = || StepProfile::names().collect::<Vec<_>>().join(", ");
    let profile = StepProfile::named(&row.profile);
    let mut profile =
        profile.ok_or_else(|| format!("profile: `{}` is not one of {}", row.profile, names()))?;
    for (name, factor) in row.off.iter() {
        let constant = profile.constant(name);
        let constant = constant.ok_or_else(|| format!("off.{name}: must be t_ovh, t_w, i0, a, c or d"))?;
        *constant *= positive(&format!("off.{name}"), *factor)?;
    }
    let options = EngineOptions {
        max_seqs: row.max_seqs,
        max_tokens: row.max_tokens,
        kv_tokens: row.kv_tokens,
        prefix_cache: row.prefix_cache,
        cache_tokens: row.cache_tokens,
        priority_scheduling: false,
        ..EngineOptions::default()
    };
    if row.fault.is_some_and(|fault| fault.every.is_some_and(|every| every.0 <= fault.lasts.0)) {
        return Err("fault.every must be longer than fault.lasts".into());
    }
    let fault = row.fault.map(|fault| WorldFault {
        at: Tick::ZERO + fault.at.0,
        lasts: fault.lasts.0,
        every: fault.every.map(|every| every.0),
        kind: match fault.kind {
            FaultName::Frozen => WorldFaultKind::Frozen,
            FaultName::Crashed => WorldFaultKind::Crashed,
        },
    });
    let slowness = positive("slowness", row.slowness.unwrap_or(1.0))?;
    let usual = if row.pool.is_some() { profile.cost_h } else { 0.0 };
    let price = row.price.unwrap_or(usual);
    let one_way = row.rtt.unwrap_or_default().0 / 2;
    let told_hits = row.told_hits;
    Ok(ReplicaSetup { slowness, fault, price, one_way, told_hits, ..ReplicaSetup::new(profile, options) })
}
