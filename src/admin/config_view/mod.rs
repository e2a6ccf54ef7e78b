//! Configuration view: the configuration in force as JSON, without its secrets. Client keys appear
//! by their public id. Engine keys and URL credentials do not appear at all.
//!
//! Sections without ids of the core show themselves (`Serialize` of [`crate::config::settings`]). By
//! hand is what names tenants, classes, models and pools, credentials, and the core's own types,
//! whose serde form is that of records. Patterns without `..` make a field that is missing here an
//! error of the compiler.

mod listeners;
mod names;
mod rules;
mod values;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::admin::report::bounds::BoundsRow;
use crate::config::settings::guardrails::GuardrailRule;
use crate::config::settings::identity::{Auth, Grant};
use crate::config::settings::shown::without_credentials;
use crate::config::settings::{EdgeSettings, PoolSettings, SessionKey, Settings};
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::policy::{Class, HealthPolicy, Policy, Pool, Replica, RetryPolicy, Tenant};
use crate::core::placement::rules::{PoolTraits, Price};
use crate::core::replica::health::sleep::SleepPolicy;
use crate::telemetry::wall::unix_seconds;

use self::listeners::listeners_view;
use self::rules::rules_view;
use self::values::by_name;
pub(super) use crate::admin::config_view::values::amount;

/// Body of `GET /admin/v1/config`. Times are in seconds.
pub(super) fn effective(settings: &Settings) -> Value {
    let Settings { digest, startup, listeners, scale, cluster, edge, policy } = settings;
    json!({
        "digest": digest,
        "generation": policy.generation,
        "startup": startup,
        "listeners": listeners_view(listeners),
        "scale": scale,
        "cluster": cluster,
        "auth": auth(&edge.auth, policy),
        "classes": by_name(policy.classes.iter().map(|(_, name, class)| (name, class_view(class, policy)))),
        "tenants": by_name(policy.tenants.iter().map(|(id, name, row)| (name, tenant_view(id, row, edge, policy)))),
        "key_limits": names::key_limits(policy),
        "models": names::models(edge, policy),
        "splits": names::splits(edge, policy),
        "pools": by_name(policy.pools.iter().map(|(id, name, row)| (name, pool_view(id, row, edge, policy)))),
        "queue": BoundsRow::new(policy.bounds),
        "retry": retry_view(policy.retry, edge),
        "health": health_view(policy.health),
        "guardrails": edge.guardrails.as_deref(),
        "sessions": edge.session.as_ref().map(|key| session_view(key, policy)),
        "requests": edge.requests,
        "upstream": edge.upstream,
    })
}

fn retry_view(retry: RetryPolicy, edge: &EdgeSettings) -> Value {
    let RetryPolicy { max_attempts, budget_permille, budget_floor } = retry;
    json!({
        "max_attempts": max_attempts,
        "budget": f64::from(budget_permille) / 1000.0,
        "budget_floor": budget_floor,
        "continue_streams": edge.continue_streams,
    })
}

fn health_view(health: HealthPolicy) -> Value {
    let HealthPolicy { probe_min, probe_max, slow_start, busy_backoff, max_ejected_permille, drain } = health;
    json!({
        "probe_min": secs(probe_min),
        "probe_max": secs(probe_max),
        "slow_start": secs(slow_start),
        "busy_backoff": secs(busy_backoff),
        "max_ejected": f64::from(max_ejected_permille) / 1000.0,
        "drain": secs(drain),
    })
}

fn session_view(key: &SessionKey, policy: &Policy) -> Value {
    let SessionKey { header, body } = key;
    let rule = policy.sessions;
    json!({
        "header": header,
        "body": body,
        "max_delay": rule.map(|rule| secs(rule.max_delay)),
        "max_sessions": rule.map(|rule| rule.max_sessions),
    })
}

/// When the guardrails are asked about the tenant's requests, by class.
fn guardrail_rules(tenant: TenantId, edge: &EdgeSettings, policy: &Policy) -> Option<Value> {
    let rules = edge.guardrails.as_ref()?.rules.iter().filter(|((of, _), _)| *of == tenant);
    Some(by_name(rules.map(|((_, class), rule)| {
        let GuardrailRule { prompts, answers, fails_open } = rule;
        let on_failure = if *fails_open { "allow" } else { "refuse" };
        let view = json!({ "prompts": prompts, "answers": answers, "on_failure": on_failure });
        (policy.classes.name(*class), view)
    })))
}

fn auth(auth: &Auth, policy: &Policy) -> Value {
    match auth {
        Auth::Off(tenant) => json!({ "mode": "off", "tenant": policy.tenants.name(*tenant) }),
        Auth::Known(known) => {
            let keys = known.keys.iter().map(|(id, key)| {
                let mut row = grant(&key.grant, policy);
                row["expires"] = json!(key.expires.map(unix_seconds));
                (id, row)
            });
            let certs = known.certs.iter().map(|(name, held)| (&**name, grant(held, policy)));
            let issuers: Vec<&str> = known.issuers.iter().map(|issuer| &*issuer.source.issuer).collect();
            json!({
                "mode": "keys",
                "keys": by_name(keys),
                "client_certs": by_name(certs),
                "issuers": issuers,
                "keys_dir": known.key_folder.as_ref().map(|folder| folder.path.display().to_string()),
                "failures": known.failures,
            })
        }
    }
}

fn grant(grant: &Grant, policy: &Policy) -> Value {
    let classes =
        grant.classes.as_ref().map(|ids| ids.iter().map(|id| policy.classes.name(*id)).collect::<Vec<_>>());
    let models = grant.models.as_deref().map(|ids| model_names(ids, policy));
    json!({
        "tenant": policy.tenants.name(grant.tenant),
        "class": grant.class.map(|class| policy.classes.name(class)),
        "classes": classes,
        "models": models,
    })
}

fn class_view(class: &Class, policy: &Policy) -> Value {
    let Class {
        rank,
        min_share,
        usage_half_life,
        max_wait,
        cold_start_tolerance,
        ttft_objective,
        itl_objective,
        demote_to: _,
        placement,
        scavenger: _,
    } = class;
    json!({
        "rank": rank,
        "min_share": min_share,
        "max_wait": secs(*max_wait),
        "cold_start_tolerance": cold_start_tolerance.map(secs),
        "usage_half_life": usage_half_life.map(secs),
        "ttft_objective": secs(*ttft_objective),
        "itl_objective": secs(*itl_objective),
        "placement": rules_view(placement, policy),
    })
}

fn tenant_view(id: TenantId, row: &Tenant, edge: &EdgeSettings, policy: &Policy) -> Value {
    let Tenant { weight, parent, default_class, classes, models, bounds, quota, placement } = row;
    let class_name = |id: &ClassId| policy.classes.name(*id);
    let own = edge.names.tenants.get(&id);
    json!({
        "weight": weight,
        "parent": parent.map(|parent| policy.tenants.name(parent)),
        "default_class": class_name(default_class),
        "classes": classes.iter().map(class_name).collect::<Vec<_>>(),
        "models": models.as_ref().map(|models| model_names(models, policy)),
        "bounds": BoundsRow::new(*bounds),
        "quota": { "guarantee": quota.guarantee, "borrow": quota.borrow, "lend": quota.lend },
        "placement": rules_view(placement, policy),
        "model_map": own.map_or_else(|| json!({}), |own| json!(own.map)),
        "allow_fallback": own.is_some_and(|own| own.allow_fallback),
        "isolate_prefix_cache": edge.isolated_tenants.contains(&id),
        "guardrails": guardrail_rules(id, edge, policy),
        "limits": names::tenant_limits(id, policy),
    })
}

fn pool_view(id: PoolId, row: &Pool, edge: &EdgeSettings, policy: &Policy) -> Value {
    let Pool {
        replicas: _,
        models: _,
        engine_buffer,
        engine_priority,
        cold_start,
        scales_to_zero,
        min_replicas,
        max_replicas,
        sleep,
        traits,
        adapters: _,
        adapter_slots,
        adapter_load,
    } = row;
    let own = edge.pools.get(id);
    json!({
        "engine": own.map(|pool| pool.engine.name()),
        "models": own.map(|pool| engine_models(pool, policy)),
        "adapters": own.map(|pool| model_names(&pool.adapters, policy)),
        "adapter_slots": adapter_slots,
        "adapter_load": adapter_load.map(secs),
        "api_key": own.and_then(|pool| pool.api_key.as_ref()),
        "tls": own.and_then(|pool| pool.tls.as_ref()).map(|tls| json!({
            "server_name": tls.server_name.as_deref(),
        })),
        "scrape_interval": own.map(|pool| secs(pool.scrape_interval)),
        "engine_buffer": engine_buffer,
        "engine_priority": engine_priority,
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "cold_start": cold_start.map(secs),
        "scales_to_zero": scales_to_zero,
        "sleep": sleep.map(sleep_view),
        "supply": supply_view(traits),
        "site": own.map(|pool| &pool.site),
        "discover": own.and_then(|pool| pool.discover.as_ref()).map(|found| found.source.name()),
        "replicas": replicas_view(id, edge, policy),
    })
}

fn replicas_view(pool: PoolId, edge: &EdgeSettings, policy: &Policy) -> Vec<Value> {
    let replicas = policy.replicas.iter().filter(|(_, _, row)| row.pool == pool);
    let view = |(replica, name, row): (ReplicaId, &str, &Replica)| {
        let urls = edge.replicas.get(replica);
        let metrics = urls.and_then(|row| row.metrics_url.as_ref());
        json!({
            "name": without_credentials(name),
            "url": urls.map(|row| without_credentials(&row.url.to_string())),
            "metrics_url": metrics.map(|url| without_credentials(&url.to_string())),
            "max_seqs": row.max_seqs,
            "kv_tokens": row.kv_tokens,
            "zone": urls.and_then(|row| row.zone.as_deref()),
            "draining": policy.draining.contains(&replica),
            "spot_notice": policy.spot_notices.contains(&replica),
        })
    };
    replicas.map(view).collect()
}

fn sleep_view(sleep: SleepPolicy) -> Value {
    let SleepPolicy { after_idle, keep_awake, wake_timeout } = sleep;
    json!({
        "after_idle": secs(after_idle),
        "keep_awake": keep_awake,
        "wake_timeout": secs(wake_timeout),
    })
}

fn supply_view(supply: &PoolTraits) -> Value {
    let PoolTraits { isolation, capacity, price, window } = supply;
    json!({
        "isolation": isolation.name(),
        "capacity": capacity.name(),
        "price": price.map(Price::units),
        "max_model_len": window,
    })
}

/// The engine's own names of the pool's models.
fn engine_models(pool: &PoolSettings, policy: &Policy) -> Value {
    by_name(pool.model_names.iter().map(|(id, name)| (policy.models.name(*id), json!(name))))
}

fn model_names<'a>(models: &BTreeSet<ModelId>, policy: &'a Policy) -> Vec<&'a str> {
    models.iter().map(|id| policy.models.name(*id)).collect()
}

fn secs(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests;
