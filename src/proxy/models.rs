//! GET /v1/models: what this tenant may use.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::settings::Settings;
use crate::config::settings::names::Called;
use crate::core::ids::{ModelId, PoolId, TenantId};
use crate::core::placement::rules::largest_window;
use crate::core::policy::Policy;

/// The context window that the engines of a pool report for a model, in tokens.
pub type Windows = Arc<dyn Fn(&Settings, ModelId, PoolId) -> Option<u32> + Send + Sync>;

/// The answer to GET /v1/models.
#[must_use]
pub fn list(settings: &Settings, tenant: TenantId, windows: &Windows) -> Value {
    let names = settings.edge.names.of(tenant);
    let data: Vec<Value> =
        names.into_iter().filter_map(|name| one(settings, tenant, name, windows)).collect();
    json!({ "object": "list", "data": data })
}

/// The answer to GET /v1/models/{name}; `None` for a model that does not
/// exist or that the tenant may not use: the two look alike from outside.
#[must_use]
pub fn one(settings: &Settings, tenant: TenantId, name: &str, windows: &Windows) -> Option<Value> {
    Some(row(settings, name, called(settings, tenant, name)?, windows))
}

/// What the tenant means by the name, where it may use all that is meant.
#[must_use]
pub fn called<'a>(settings: &'a Settings, tenant: TenantId, name: &str) -> Option<Called<'a>> {
    let called = settings.edge.names.called(tenant, name)?;
    called.models().all(|model| may_use(&settings.policy, tenant, model)).then_some(called)
}

/// The models that the tenant may use.
pub fn usable(policy: &Policy, tenant: TenantId) -> impl Iterator<Item = ModelId> {
    policy.models.iter().map(|(id, _, _)| id).filter(move |id| may_use(policy, tenant, *id))
}

/// Whether the tenant may use the model.
#[must_use]
pub fn may_use(policy: &Policy, tenant: TenantId, model: ModelId) -> bool {
    let tenant = policy.tenants.get(tenant);
    tenant.is_some_and(|tenant| tenant.models.as_ref().is_none_or(|models| models.contains(&model)))
}

fn row(settings: &Settings, name: &str, called: Called<'_>, windows: &Windows) -> Value {
    let policy = &settings.policy;
    let root = match called {
        Called::Model(model) => policy.models.name(model),
        Called::Split(_) => name,
    };
    let mut row = json!({
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "penstock",
        "root": root,
    });
    let window = |model| {
        let row = policy.models.get(model);
        let configured = row.and_then(|row| largest_window(policy, row, &[]).or(row.max_model_len));
        let pools = row.map(|row| row.pools.as_slice()).unwrap_or_default();
        let reported = pools.iter().filter_map(|pool| windows(settings, model, *pool)).max();
        configured.into_iter().chain(reported).min()
    };
    if let Some(window) = called.models().filter_map(window).min() {
        row["max_model_len"] = window.into();
    }
    row
}
