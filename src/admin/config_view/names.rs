//! View of models and limits: aliases, fallbacks, splits, and the limits of tenants and keys.

use serde_json::{Value, json};

use crate::config::settings::names::Split;
use crate::config::settings::{EdgeSettings, ModelSettings};
use crate::core::limits::rule::{LimitId, LimitRule, LimitScope};
use crate::core::model::ids::{ModelId, TenantId};
use crate::core::model::policy::{Model, Policy};
use crate::engines::Ability;
use crate::tokens::CountSource;

use crate::admin::config_view::values::{amount, by_name};

/// Models with their aliases, fallbacks and shadows.
pub(super) fn models(edge: &EdgeSettings, policy: &Policy) -> Value {
    by_name(policy.models.iter().map(|(id, name, model)| {
        let named = edge.names.models.iter().filter(|(alias, of)| **of == id && *alias != name);
        let mut aliases: Vec<&str> = named.map(|(alias, _)| &**alias).collect();
        aliases.sort_unstable();
        let pools: Vec<&str> = model.pools.iter().map(|pool| policy.pools.name(*pool)).collect();
        let fallbacks = edge.names.fallbacks.get(&id).map_or(&[][..], Vec::as_slice);
        let shadow = edge.shadows.as_ref().and_then(|shadows| shadows.rules.get(&id));
        let row = json!({
            "pools": pools,
            "max_model_len": model.max_model_len,
            "aliases": aliases,
            "fallbacks": listed(fallbacks, policy),
            "shadow": shadow.map(|shadow| json!({
                "to": policy.models.name(shadow.to),
                "share": shadow.share,
                "max_in_flight": shadow.max_in_flight,
            })),
            "prompt_source": count_source(model, edge.models.get(&id), edge).name(),
            "context": edge.models.get(&id).map(context),
        });
        (name, row)
    }))
}

/// Source of the token count for a prompt near the context window.
fn count_source(model: &Model, own: Option<&ModelSettings>, edge: &EdgeSettings) -> CountSource {
    let counts = own.is_some_and(|own| own.counter.is_some());
    let mut engines = model.pools.iter().filter_map(|pool| edge.pools.get(*pool)).map(|pool| pool.engine);
    match counts {
        true => CountSource::Exact,
        false if engines.any(|engine| engine.can(Ability::Tokenize)) => CountSource::Engine,
        false => CountSource::Estimate,
    }
}

fn context(model: &ModelSettings) -> Value {
    json!({
        "policy": if model.rejects { "reject" } else { "clamp" },
        "truncate": if model.truncates { "allow" } else { "refuse" },
        "media_tokens": { "image": model.media.image, "audio": model.media.audio },
    })
}

/// Model names whose requests are split between models.
pub(super) fn splits(edge: &EdgeSettings, policy: &Policy) -> Value {
    let row = |split: &Split| {
        let targets = split.targets.iter().map(|to| (policy.models.name(to.model), json!(to.weight)));
        json!({ "targets": by_name(targets), "fallbacks": listed(&split.fallbacks, policy) })
    };
    by_name(edge.names.splits.iter().map(|(name, split)| (name.as_str(), row(split))))
}

/// Limits of a tenant, on all models or on one.
pub(super) fn tenant_limits(id: TenantId, policy: &Policy) -> Vec<Value> {
    let of = |rule: &&LimitRule| match rule.id.scope {
        LimitScope::Tenant(tenant) | LimitScope::Model(tenant, _) => tenant == id,
        LimitScope::Key(_) => false,
    };
    policy.limits.iter().filter(of).map(|rule| limit(rule, policy)).collect()
}

/// Limits of keys, by the keys' public ids.
pub(super) fn key_limits(policy: &Policy) -> Vec<Value> {
    let keys = policy.limits.iter().filter(|rule| matches!(rule.id.scope, LimitScope::Key(_)));
    keys.map(|rule| limit(rule, policy)).collect()
}

/// Limit as JSON: its owner, unit, period and amount.
fn limit(rule: &LimitRule, policy: &Policy) -> Value {
    let LimitId { scope, unit, period, shadow } = rule.id;
    let of = match scope {
        LimitScope::Tenant(tenant) => policy.tenants.name(tenant),
        LimitScope::Key(key) => policy.keys.name(key),
        LimitScope::Model(_, model) => policy.models.name(model),
    };
    json!({
        "scope": scope.name(),
        "of": of,
        "unit": unit.name(),
        "period": period.name(),
        "amount": amount(unit, rule.amount),
        "shadow": shadow,
    })
}

fn listed<'a>(models: &[ModelId], policy: &'a Policy) -> Vec<&'a str> {
    models.iter().map(|model| policy.models.name(*model)).collect()
}
