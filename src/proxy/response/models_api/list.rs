//! Model list: `GET /v1/models`, the models that the caller may use.

use serde_json::{Value, json};

use crate::config::settings::Settings;
use crate::config::settings::identity::Grant;
use crate::config::settings::names::NamedModel;
use crate::core::model::ids::ModelId;
use crate::core::model::policy::Policy;
use crate::core::placement::rules::largest_window;
use crate::fleet::view::FleetView;

/// The answer to `GET /v1/models`.
pub(crate) fn list(settings: &Settings, grant: &Grant, engines: &FleetView) -> Value {
    let names = settings.edge.names.of(grant.tenant);
    let data: Vec<Value> = names.into_iter().filter_map(|name| one(settings, grant, name, engines)).collect();
    json!({ "object": "list", "data": data })
}

/// The answer to `GET /v1/models/{name}`. `None` for a model that does not exist or that the caller
/// may not use. The client cannot tell the two apart.
pub(crate) fn one(settings: &Settings, grant: &Grant, name: &str, engines: &FleetView) -> Option<Value> {
    Some(row(settings, name, called(settings, grant, name)?, engines))
}

/// The model or split that `name` denotes for the caller. `None` unless the caller may use all of
/// its models.
pub(crate) fn called<'a>(settings: &'a Settings, grant: &Grant, name: &str) -> Option<NamedModel<'a>> {
    let called = settings.edge.names.called(grant.tenant, name)?;
    called.models().all(|model| may_use(&settings.policy, grant, model)).then_some(called)
}

/// The models that the caller may use.
pub(crate) fn usable(policy: &Policy, grant: &Grant) -> impl Iterator<Item = ModelId> {
    policy.models.iter().map(|(id, _, _)| id).filter(move |id| may_use(policy, grant, *id))
}

/// Whether both the tenant and the credential may use the model.
pub(crate) fn may_use(policy: &Policy, grant: &Grant, model: ModelId) -> bool {
    let tenant = policy.tenants.get(grant.tenant).filter(|_| grant.allows_model(model));
    tenant.is_some_and(|tenant| tenant.models.as_ref().is_none_or(|models| models.contains(&model)))
}

fn row(settings: &Settings, name: &str, called: NamedModel<'_>, engines: &FleetView) -> Value {
    let policy = &settings.policy;
    let root = match called {
        NamedModel::Model(model) => policy.models.name(model),
        NamedModel::Split(_) => name,
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
        let configured = row.and_then(|row| largest_window(policy, row, &[], |_| None).or(row.max_model_len));
        let pools = row.map(|row| row.pools.as_slice()).unwrap_or_default();
        let reported = pools.iter().filter_map(|pool| engines.context_window(settings, model, *pool)).max();
        configured.into_iter().chain(reported).min()
    };
    if let Some(window) = called.models().filter_map(window).min() {
        row["max_model_len"] = window.into();
    }
    row
}
