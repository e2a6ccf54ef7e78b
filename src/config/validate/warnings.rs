//! Warnings about configurations that are valid but hardly meant.

use std::collections::BTreeSet;

use crate::config::file::ConfigFile;
use crate::config::sections::pools::{PoolSection, ReplicaSection};
use crate::config::sections::tenants::classes::builtin_classes;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::core::model::policy::{Model, Policy};
use crate::core::placement::rules::{PlacementRules, eligible};
use crate::engines::Ability;

/// Looks at a file without errors only: after one, what seems unused may not
/// be.
pub(in crate::config) fn validate(file: &ConfigFile, policy: &Policy, findings: &mut Findings<'_>) {
    if findings.any_error() {
        return;
    }
    unused_classes(file, policy, findings);
    unused_models(file, policy, findings);
    unserved(policy, findings);
    unpriced(file, findings);
    unused_fallbacks(file, findings);
    shared_caches(file, findings);
    shared_audiences(file, findings);
    for (name, pool) in file.pools.iter() {
        sizes(pool, &FieldPath::top("pools").key(name), findings);
    }
}

fn unused_classes(file: &ConfigFile, policy: &Policy, findings: &mut Findings<'_>) {
    if file.classes == builtin_classes() {
        return;
    }
    for (id, name, _) in policy.classes.iter() {
        if !policy.tenants.iter().any(|(_, _, tenant)| tenant.classes.contains(&id)) {
            let field = FieldPath::top("classes").key(name);
            findings.warn(
                &field,
                format!("no tenant may use the class `{name}`"),
                "allow it, or take it away",
            );
        }
    }
}

/// Tokens that clients get of a provider must not be operators' tokens.
fn shared_audiences(file: &ConfigFile, findings: &mut Findings<'_>) {
    let Some(operators) = &file.admin.auth.oidc else { return };
    for (at, clients) in file.auth.oidc.iter().enumerate().filter(|(_, of)| of.issuer == operators.issuer) {
        let mut accepted = operators.client_id.iter().chain(&operators.audience);
        if let Some(name) = accepted.find(|name| clients.audience.contains(name)) {
            let field = FieldPath::top("auth").key("oidc").index(at).key("audience");
            let message = format!("tokens for `{name}` of this provider are taken at the admin port, too");
            let hint = "give operators an audience of their own in `admin.auth.oidc`, so that a client's token never \
                        is an operator's";
            findings.warn(&field, message, hint);
        }
    }
}

fn unused_models(file: &ConfigFile, policy: &Policy, findings: &mut Findings<'_>) {
    for (id, name, model) in policy.models.iter() {
        let allowed = |models: &Option<BTreeSet<_>>| models.as_ref().is_none_or(|set| set.contains(&id));
        if policy.tenants.iter().any(|(_, _, tenant)| allowed(&tenant.models)) {
            continue;
        }
        let pool = model.pools.first().map_or("", |pool| policy.pools.name(*pool));
        let field = match file.models.get(name) {
            Some(_) => FieldPath::top("models").key(name),
            None => FieldPath::top("pools").key(pool).key("models"),
        };
        findings.warn(&field, format!("no tenant may use the model `{name}`"), "allow it, or take it away");
    }
}

/// Says which work no pool may serve by the rules of its class and tenant. What
/// the class forbids to everybody is said once, of the class.
fn unserved(policy: &Policy, findings: &mut Findings<'_>) {
    let hint = "allow one of the model's pools in `placement`, or take the class or model from the tenant";
    let served = |model: &Model, rules: &PlacementRules| !eligible(policy, model, rules, 0).is_empty();
    for (class_id, class_name, class) in policy.classes.iter() {
        let users: Vec<_> =
            policy.tenants.iter().filter(|(_, _, tenant)| tenant.classes.contains(&class_id)).collect();
        for (model_id, model_name, model) in policy.models.iter() {
            let mut users = users.iter().filter(|(_, _, tenant)| {
                tenant.models.as_ref().is_none_or(|models| models.contains(&model_id))
            });
            if !served(model, &class.placement) {
                if users.next().is_some() {
                    let message =
                        format!("leaves the class `{class_name}` no pool for the model `{model_name}`");
                    findings.warn(&FieldPath::top("classes").key(class_name).key("placement"), message, hint);
                }
                continue;
            }
            for (_, tenant_name, tenant) in users {
                if tenant.placement != PlacementRules::default()
                    && !served(model, &class.placement.combined_with(&tenant.placement))
                {
                    let message = format!(
                        "leaves the tenant `{tenant_name}` no pool for the model `{model_name}` in the class `{class_name}`"
                    );
                    findings.warn(
                        &FieldPath::top("tenants").key(tenant_name).key("placement"),
                        message,
                        hint,
                    );
                }
            }
        }
    }
}

/// Where some pools have a price, those without one count as the dearest.
fn unpriced(file: &ConfigFile, findings: &mut Findings<'_>) {
    if file.pools.iter().all(|(_, pool)| pool.price.is_none()) {
        return;
    }
    for (name, _) in file.pools.iter().filter(|(_, pool)| pool.price.is_none()) {
        let field = FieldPath::top("pools").key(name);
        findings.warn(&field, "has no price, others have: it counts as the dearest", "give it a `price`");
    }
}

fn unused_fallbacks(file: &ConfigFile, findings: &mut Findings<'_>) {
    if file.tenants.iter().any(|(_, tenant)| tenant.allow_fallback) {
        return;
    }
    for (name, _) in file.models.iter().filter(|(_, model)| !model.fallbacks.is_empty()) {
        let field = FieldPath::top("models").key(name).key("fallbacks");
        findings.warn(&field, "no tenant allows a fallback", "give some tenant `allow_fallback: true`");
    }
}

fn shared_caches(file: &ConfigFile, findings: &mut Findings<'_>) {
    let can = |pool: &PoolSection| pool.engine.is_some_and(|engine| engine.can(Ability::CacheSalt));
    let Some((pool, _)) = file.pools.iter().find(|(_, pool)| !can(pool)) else { return };
    for (name, _) in file.tenants.iter().filter(|(_, tenant)| tenant.isolate_prefix_cache) {
        let field = FieldPath::top("tenants").key(name).key("isolate_prefix_cache");
        let message = format!("the engines of pool `{pool}` have one prefix cache for all tenants");
        findings.warn(&field, message, "keep the tenant to vLLM pools with `placement.pools`");
    }
}

fn sizes(pool: &PoolSection, field: &FieldPath, findings: &mut Findings<'_>) {
    let Some(engine) = pool.engine else { return };
    let replicas = || pool.replicas.iter().map(ReplicaSection::detail);
    let sized = pool.max_seqs.is_some() || replicas().all(|replica| replica.max_seqs.is_some());
    if !engine.can(Ability::ReportSlots) && !sized && !pool.replicas.is_empty() {
        let hint = "for a good start, set `max_seqs` to what the engine runs (vLLM: --max-num-seqs)";
        let text = format!(
            "an engine of kind `{}` does not say how many sequences it runs at once; the limit is learned",
            engine.name(),
        );
        findings.info(field, text, hint);
    }
    if !engine.can(Ability::MetricsOnApiPort) && replicas().any(|replica| replica.metrics_url.is_none()) {
        let hint = "give each replica a `metrics_url` such as http://10.0.0.5:8002/metrics";
        let text = format!("an engine of kind `{}` serves its metrics on a port of its own", engine.name());
        findings.info(&field.key("replicas"), text, hint);
    }
}
