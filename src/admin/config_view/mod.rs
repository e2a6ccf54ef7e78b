//! Configuration view: the configuration in force as JSON, without its secrets. Client keys appear
//! by their public id. Engine keys and URL credentials do not appear at all.

mod listeners;
mod names;
mod rules;
mod values;

use std::time::Duration;

use serde_json::{Value, json};

use crate::admin::report::bounds::BoundsRow;
use crate::config::settings::cluster::ClusterSettings;
use crate::config::settings::guardrails::GuardrailSettings;
use crate::config::settings::identity::{Auth, Grant};
use crate::config::settings::scale::ScaleSettings;
use crate::config::settings::usage::UsageDatabase;
use crate::config::settings::{
    AddressForm, EdgeSettings, HeaderNames, LogFormat, PoolLabels, PoolSettings, SessionField, SessionKey,
    Settings, Startup,
};
use crate::core::model::ids::{PoolId, TenantId};
use crate::core::model::policy::{Class, Policy, Tenant};
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
        "startup": startup_view(startup),
        "listeners": listeners_view(listeners),
        "scale": scale_view(scale),
        "cluster": cluster.as_ref().map(cluster_view),
        "auth": auth(&edge.auth, policy),
        "classes": by_name(policy.classes.iter().map(|(_, name, class)| (name, class_view(class, policy)))),
        "tenants": by_name(policy.tenants.iter().map(|(id, name, row)| (name, tenant_view(id, row, edge, policy)))),
        "key_limits": names::key_limits(policy),
        "models": names::models(edge, policy),
        "splits": names::splits(edge, policy),
        "pools": by_name(policy.pools.iter().map(|(id, name, _)| (name, pool_view(id, edge, policy)))),
        "queue": BoundsRow::new(policy.bounds),
        "retry": {
            "max_attempts": policy.retry.max_attempts,
            "budget": f64::from(policy.retry.budget_permille) / 1000.0,
            "budget_floor": policy.retry.budget_floor,
            "continue_streams": edge.continue_streams,
        },
        "health": {
            "probe_min": secs(policy.health.probe_min),
            "probe_max": secs(policy.health.probe_max),
            "slow_start": secs(policy.health.slow_start),
            "busy_backoff": secs(policy.health.busy_backoff),
            "max_ejected": f64::from(policy.health.max_ejected_permille) / 1000.0,
            "drain": secs(policy.health.drain),
        },
        "guardrails": edge.guardrails.as_deref().map(guardrails_view),
        "sessions": edge.session.as_ref().map(|key| session_view(key, policy)),
        "requests": {
            "max_body_bytes": edge.requests.max_body_bytes,
            "max_total_body_bytes": edge.requests.max_total_body_bytes,
            "tenant_body_share": f64::from(edge.requests.tenant_body_permille) / 1000.0,
            "min_body_rate": edge.requests.min_body_rate,
            "max_answer_bytes": edge.requests.max_answer_bytes,
            "max_total_answer_bytes": edge.requests.max_total_answer_bytes,
            "stream_buffer_bytes": edge.requests.stream_buffer_bytes,
            "class_header": edge.requests.class_header,
            "keepalive": secs(edge.requests.keepalive),
            "media_schemes": edge.requests.media.schemes,
            "media_domains": edge.requests.media.domains,
        },
        "upstream": {
            "connect_timeout": secs(edge.upstream.connect_timeout),
            "first_token_timeout": secs(edge.upstream.first_token_timeout),
            "answer_timeout": secs(edge.upstream.answer_timeout),
            "stream_idle_timeout": secs(edge.upstream.stream_idle_timeout),
            "keep_alive": secs(edge.upstream.keep_alive),
            "request_headers": header_names(&edge.upstream.request_headers),
            "answer_headers": header_names(&edge.upstream.answer_headers),
        },
    })
}

fn header_names(names: &HeaderNames) -> Vec<String> {
    let prefixes = names.prefixes.iter().map(|prefix| format!("{prefix}*"));
    names.names.iter().cloned().chain(prefixes).collect()
}

fn session_view(key: &SessionKey, policy: &Policy) -> Value {
    let fields = key.body.iter().map(|field| match field {
        SessionField::PromptCacheKey => "prompt_cache_key",
        SessionField::User => "user",
    });
    let rule = policy.sessions;
    json!({
        "header": key.header,
        "body": fields.collect::<Vec<_>>(),
        "max_delay": rule.map(|rule| secs(rule.max_delay)),
        "max_sessions": rule.map(|rule| rule.max_sessions),
    })
}

fn scale_view(scale: &ScaleSettings) -> Value {
    json!({
        "listen": scale.listen.map(|address| address.to_string()),
        "client_certs": scale.names,
        "stale_after": secs(scale.stale_after),
        "max_streams": scale.max_streams,
        "state_file": scale.state_file,
    })
}

fn cluster_view(cluster: &ClusterSettings) -> Value {
    let ClusterSettings { valkey, prefix, outage } = cluster;
    json!({
        "valkey": {
            "host": valkey.host,
            "port": valkey.port,
            "database": valkey.database,
            "tls": valkey.is_tls,
            "username": valkey.username,
            "password": valkey.password.as_ref().map(|_| "set"),
        },
        "prefix": prefix,
        "outage": secs(*outage),
    })
}

fn guardrails_view(guardrails: &GuardrailSettings) -> Value {
    json!({
        "url": guardrails.url.to_string(),
        "api_key": guardrails.bearer.as_ref().map(|_| "set"),
        "timeout": secs(guardrails.timeout),
        "max_body_bytes": guardrails.max_bytes,
        "max_calls": guardrails.max_calls,
    })
}

/// When the guardrails are asked about the tenant's requests, by class.
fn guardrail_rules(tenant: TenantId, edge: &EdgeSettings, policy: &Policy) -> Option<Value> {
    let rules = edge.guardrails.as_ref()?.rules.iter().filter(|((of, _), _)| *of == tenant);
    Some(by_name(rules.map(|((_, class), rule)| {
        let on_failure = if rule.fails_open { "allow" } else { "refuse" };
        let view = json!({ "prompts": rule.prompts, "answers": rule.answers, "on_failure": on_failure });
        (policy.classes.name(*class), view)
    })))
}

fn startup_view(startup: &Startup) -> Value {
    let Startup { listen, admin, listener, drain_grace, audit, usage, telemetry } = startup;
    json!({
        "listen": listen.to_string(),
        "admin": admin.to_string(),
        "drain_grace": secs(*drain_grace),
        "listener": {
            "max_connections": listener.max_connections,
            "max_address_connections": listener.max_address_connections,
            "head_timeout": secs(listener.head_timeout),
            "body_timeout": secs(listener.body_timeout),
            "send_timeout": secs(listener.send_timeout),
            "min_send_rate": listener.min_send_rate,
            "idle_timeout": secs(listener.idle_timeout),
            "max_head_bytes": listener.max_head_bytes,
            "handshake_timeout": secs(listener.handshake_timeout),
            "max_address_handshakes": listener.max_address_handshakes,
        },
        "audit": audit.as_ref().map(|audit| audit.path.display().to_string()),
        "usage": usage.as_ref().map(|usage| json!({
            "folder": usage.folder.display().to_string(),
            "database": usage.database.as_ref().map_or("none", UsageDatabase::name),
            "segment_bytes": usage.segment_bytes,
            "segment_age": secs(usage.segment_age),
            "keep_bytes": usage.keep_bytes,
            "retention": usage.retention.map(secs),
            "queue": usage.queue,
        })),
        "telemetry": {
            "log_format": match telemetry.log_format {
                LogFormat::Json => "json",
                LogFormat::Text => "text",
            },
            "log_level": telemetry.log_level,
            "log_client_address": match telemetry.client_address {
                AddressForm::Off => "off",
                AddressForm::Truncated => "truncated",
                AddressForm::On => "on",
            },
            "refusals_per_second": telemetry.refusals_per_second,
            "otlp_endpoint": telemetry.otlp.endpoint.as_deref().map(without_credentials),
            "otlp_headers": telemetry.otlp.headers.keys().collect::<Vec<_>>(),
            "trace_sample": telemetry.otlp.sample,
        },
    })
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
                "failures": { "burst": known.failures.burst, "per_minute": known.failures.per_minute },
            })
        }
    }
}

fn grant(grant: &Grant, policy: &Policy) -> Value {
    let classes =
        grant.classes.as_ref().map(|ids| ids.iter().map(|id| policy.classes.name(*id)).collect::<Vec<_>>());
    let models =
        grant.models.as_ref().map(|ids| ids.iter().map(|id| policy.models.name(*id)).collect::<Vec<_>>());
    json!({
        "tenant": policy.tenants.name(grant.tenant),
        "class": grant.class.map(|class| policy.classes.name(class)),
        "classes": classes,
        "models": models,
    })
}

fn class_view(class: &Class, policy: &Policy) -> Value {
    json!({
        "rank": class.rank,
        "min_share": class.min_share,
        "max_wait": secs(class.max_wait),
        "cold_start_tolerance": class.cold_start_tolerance.map(secs),
        "usage_half_life": class.usage_half_life.map(secs),
        "ttft_objective": secs(class.ttft_objective),
        "itl_objective": secs(class.itl_objective),
        "placement": rules_view(&class.placement, policy),
    })
}

fn tenant_view(id: TenantId, row: &Tenant, edge: &EdgeSettings, policy: &Policy) -> Value {
    let models = row.models.as_ref();
    let mut view = names::tenant(id, row, edge, policy);
    view["weight"] = json!(row.weight);
    view["parent"] = json!(row.parent.map(|parent| policy.tenants.name(parent)));
    view["default_class"] = json!(policy.classes.name(row.default_class));
    view["classes"] = row.classes.iter().map(|id| policy.classes.name(*id)).collect();
    view["models"] =
        json!(models.map(|ids| ids.iter().map(|id| policy.models.name(*id)).collect::<Vec<_>>()));
    view["isolate_prefix_cache"] = json!(edge.isolated_tenants.contains(&id));
    view["guardrails"] = json!(guardrail_rules(id, edge, policy));
    view["bounds"] = json!(BoundsRow::new(row.bounds));
    view
}

fn pool_view(id: PoolId, edge: &EdgeSettings, policy: &Policy) -> Value {
    let replicas = policy.replicas.iter().filter(|(_, _, row)| row.pool == id);
    let replicas: Vec<Value> = replicas
        .map(|(replica, name, row)| {
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
        })
        .collect();
    let pool_edge = edge.pools.get(id);
    let pool = policy.pools.get(id);
    json!({
        "engine": pool_edge.map(|pool| pool.engine.name()),
        "models": pool_edge.map(|pool| engine_models(pool, policy)),
        "adapters": pool_edge.map(|pool| adapters(pool, policy)),
        "adapter_slots": pool.and_then(|pool| pool.adapter_slots),
        "adapter_load": pool.and_then(|pool| pool.adapter_load).map(secs),
        "api_key": pool_edge.and_then(|pool| pool.api_key.as_ref()).map(|_| "set"),
        "tls": pool_edge.and_then(|pool| pool.tls.as_ref()).map(|tls| json!({
            "server_name": tls.server_name.as_deref(),
        })),
        "scrape_interval": pool_edge.map(|pool| secs(pool.scrape_interval)),
        "engine_buffer": pool.map(|pool| pool.engine_buffer),
        "engine_priority": pool.is_some_and(|pool| pool.engine_priority),
        "min_replicas": pool.map(|pool| pool.min_replicas),
        "max_replicas": pool.and_then(|pool| pool.max_replicas),
        "cold_start": pool.and_then(|pool| pool.cold_start).map(secs),
        "scales_to_zero": pool.is_some_and(|pool| pool.scales_to_zero),
        "sleep": pool.and_then(|pool| pool.sleep).map(sleep_view),
        "supply": pool.map(|pool| supply_view(&pool.traits)),
        "site": pool_edge.map(|pool| site_view(&pool.site)),
        "discover": pool_edge.and_then(|pool| pool.discover.as_ref()).map(|found| found.source.name()),
        "replicas": replicas,
    })
}

fn sleep_view(sleep: SleepPolicy) -> Value {
    json!({
        "after_idle": secs(sleep.after_idle),
        "keep_awake": sleep.keep_awake,
        "wake_timeout": secs(sleep.wake_timeout),
    })
}

fn supply_view(supply: &PoolTraits) -> Value {
    json!({
        "isolation": supply.isolation.name(),
        "capacity": supply.capacity.name(),
        "price": supply.price.map(Price::units),
        "max_model_len": supply.window,
    })
}

fn site_view(site: &PoolLabels) -> Value {
    json!({
        "accelerator": site.accelerator,
        "mig_profile": site.mig_profile,
        "region": site.region,
        "zone": site.zone,
        "labels": site.labels,
    })
}

/// The engine's own names of the pool's models.
fn engine_models(pool: &PoolSettings, policy: &Policy) -> Value {
    by_name(pool.model_names.iter().map(|(id, name)| (policy.models.name(*id), json!(name))))
}

fn adapters<'a>(pool: &PoolSettings, policy: &'a Policy) -> Vec<&'a str> {
    pool.adapters.iter().map(|id| policy.models.name(*id)).collect()
}

fn secs(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// The URL without `user:password@`. A pool's name may stand before the URL.
fn without_credentials(url: &str) -> String {
    let Some((before, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{before}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_leave_urls_and_nothing_else_does() {
        for (url, shown) in [
            ("http://u:p@10.0.0.1:80/a@b?c", "http://10.0.0.1:80/a@b?c"),
            ("pool/https://u:p@q@host/", "pool/https://host/"),
            ("http://host:4317", "http://host:4317"),
            ("no url", "no url"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
