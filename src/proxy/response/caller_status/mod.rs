//! `GET /v1/me`: what the caller's tenant has used, what is left, what it cost, and why it waits.
//! The answer has nothing of other tenants, nor of other keys' limits.

pub(in crate::proxy) mod cache;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderValue};
use http::{HeaderMap, Response};
use serde_json::{Value, json};

use self::cache::{BilledTenant, CallerStatusBill, CallerStatusFacts, SpanUse};
use crate::auth::ConnectedClient;
use crate::auth::Identity;
use crate::config::settings::Settings;
use crate::core::limits::LimitStatus;
use crate::core::limits::rule::{LimitId, LimitScope, LimitUnit};
use crate::core::model::policy::Policy;
use crate::protocol::error::ApiError;
use crate::proxy::Proxy;
use crate::proxy::response::models_api::json_response;
use crate::usage::bill::BillSums;

/// Parts of a second, and of the currency, in limits and bills.
const PARTS: f64 = 1e9;

/// `GET /v1/me`.
pub(in crate::proxy) async fn me(
    proxy: &Proxy,
    headers: &HeaderMap,
    peer: &ConnectedClient,
) -> Result<Response<Bytes>, ApiError> {
    let settings = proxy.settings.load_full();
    let identity = proxy.identify(&settings, proxy.caller(&settings, headers, peer)).await?;
    let now = proxy.dispatcher.clock().now();
    let bill = proxy.cached.caller_status.bill(now).await;
    let facts = proxy.cached.caller_status.facts(&proxy.dispatcher, now);
    let waits = proxy.cached.caller_status.waits(
        &proxy.dispatcher,
        &proxy.telemetry,
        identity.tenant,
        &settings.policy,
        now,
    );
    let mut answer = json_response(&report(&settings, &identity, &facts, &waits, bill.as_ref()));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

fn report(
    settings: &Settings,
    identity: &Identity,
    facts: &CallerStatusFacts,
    waits: &Value,
    bill: Option<&CallerStatusBill>,
) -> Value {
    let (policy, grant) = (&settings.policy, &identity.grant);
    let (tenant, name) = (policy.tenants.get(identity.tenant), policy.tenants.name(identity.tenant));
    let classes: Vec<&str> = tenant
        .into_iter()
        .flat_map(|tenant| &tenant.classes)
        .filter(|class| grant.allows_class(**class))
        .map(|class| policy.classes.name(*class))
        .collect();
    let queues = facts.snapshot.queues.iter().filter(|queue| queue.tenant == identity.tenant);
    let waiting: Vec<Value> = queues
        .map(|queue| {
            json!({
                "class": policy.classes.name(queue.class),
                "model": policy.models.name(queue.model),
                "requests": queue.waiting,
                "tokens": queue.tokens,
                "oldest_seconds": queue.oldest.as_secs_f64(),
            })
        })
        .collect();
    let limits: Vec<Value> = facts
        .limits
        .iter()
        .filter(|row| is_own(row.rule.id, identity))
        .map(|row| limit(row, policy))
        .collect();
    json!({
        "tenant": name,
        "key": identity.key_id,
        "classes": classes,
        "today": bill.map(|bill| used(&bill.today, name)),
        "month": bill.map(|bill| used(&bill.month, name)),
        "limits": limits,
        "waiting": { "queues": waiting, "requests": waits },
    })
}

/// Whether a limit is the caller's: its tenant's, or its own key's.
fn is_own(limit: LimitId, identity: &Identity) -> bool {
    match limit.scope {
        LimitScope::Tenant(tenant) | LimitScope::Model(tenant, _) => tenant == identity.tenant,
        LimitScope::Key(key) => identity.grant.limited == Some(key),
    }
}

fn limit(row: &LimitStatus, policy: &Policy) -> Value {
    let LimitId { scope, unit, period, shadow } = row.rule.id;
    let amount = |amount: u64| match unit {
        LimitUnit::GpuTime | LimitUnit::Money => json!(amount as f64 / PARTS),
        _ => json!(amount),
    };
    let model = match scope {
        LimitScope::Model(_, model) => Some(policy.models.name(model)),
        LimitScope::Tenant(_) | LimitScope::Key(_) => None,
    };
    json!({
        "scope": scope.name(),
        "model": model,
        "unit": unit.name(),
        "period": period.name(),
        "amount": amount(row.rule.amount),
        "used": amount(row.rule.amount.saturating_sub(row.left)),
        "left": amount(row.left),
        "whole_in_seconds": row.reset.as_secs_f64(),
        "shadow": shadow,
    })
}

/// Use of a tenant in a time span.
fn used(span: &SpanUse, tenant: &str) -> Value {
    let none = BilledTenant::default();
    let BilledTenant { total, models } = span.tenants.get(tenant).unwrap_or(&none);
    let models = models.iter().map(|row| {
        let mut told = amounts(&row.sums);
        told["model"] = json!((!row.model.is_empty()).then_some(&row.model));
        told
    });
    let models: Vec<Value> = models.collect();
    let mut told = amounts(total);
    told["since"] = json!(span.since.to_string());
    told["models"] = json!(models);
    told
}

fn amounts(sums: &BillSums) -> Value {
    json!({
        "requests": sums.requests,
        "input_tokens": sums.input_tokens,
        "cached_tokens": sums.cached_tokens,
        "output_tokens": sums.output_tokens,
        "wasted_tokens": sums.wasted_tokens,
        "gpu_seconds": sums.gpu_ns as f64 / PARTS,
        "cost": sums.money_nano as f64 / PARTS,
    })
}
