//! GET /v1/models: what this tenant may use.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::config::settings::Settings;
use crate::core::ids::{ModelId, TenantId};
use crate::core::placement::rules::largest_window;
use crate::core::policy::Policy;

/// The context window that the engines report for a model, in tokens.
pub type Windows = Arc<dyn Fn(&Settings, ModelId) -> Option<u32> + Send + Sync>;

/// The answer to GET /v1/models.
#[must_use]
pub fn list(settings: &Settings, tenant: TenantId, windows: &Windows) -> Value {
    let names: BTreeMap<&str, ModelId> =
        settings.edge.model_names.iter().map(|(name, id)| (name.as_str(), *id)).collect();
    let rows = names.into_iter().filter(|(_, id)| may_use(&settings.policy, tenant, *id));
    let data: Vec<Value> = rows.map(|(name, id)| row(settings, name, id, windows)).collect();
    json!({ "object": "list", "data": data })
}

/// The answer to GET /v1/models/{name}; `None` for a model that does not
/// exist or that the tenant may not use: the two look alike from outside.
#[must_use]
pub fn one(settings: &Settings, tenant: TenantId, name: &str, windows: &Windows) -> Option<Value> {
    let id = *settings.edge.model_names.get(name)?;
    may_use(&settings.policy, tenant, id).then(|| row(settings, name, id, windows))
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

fn row(settings: &Settings, name: &str, id: ModelId, windows: &Windows) -> Value {
    let policy = &settings.policy;
    let mut row = json!({
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "penstock",
        "root": policy.models.name(id),
    });
    let model = policy.models.get(id);
    let configured = model.and_then(|model| largest_window(policy, model, &[]).or(model.max_model_len));
    let window = configured.into_iter().chain(windows(settings, id)).min();
    if let Some(window) = window {
        row["max_model_len"] = window.into();
    }
    row
}
