//! Label values of metrics. A value comes from the configuration or from this program's own text,
//! never from a request. A subject without a name in the configuration gets `other`.

use metrics::Label;

use crate::core::model::ids::{ClassId, ModelId, PoolId, TenantId};
use crate::core::model::policy::Policy;
use crate::telemetry::summary::RequestSummary;
use crate::telemetry::text::known;

/// Label value of a subject that the configuration does not name.
pub(super) const OTHER: &str = "other";

/// Most owners with series of their own. Beyond this number, further tenants share the series of
/// the tenant `other`.
pub(super) const MAX_OWNERS: usize = 1_000;

/// Owner of series: tenant, class, model and pool. An id is present only when the policy has a name
/// for it, so that a cached series never keeps the label `other` of an id that gets a name later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SeriesOwner {
    pub(super) tenant: Option<TenantId>,
    pub(super) class: Option<ClassId>,
    pub(super) model: Option<ModelId>,
    pub(super) pool: Option<PoolId>,
}

impl SeriesOwner {
    pub(super) fn of(policy: &Policy, event: &RequestSummary<'_>) -> Self {
        Self {
            tenant: event.caller.tenant.filter(|id| known(policy.tenants.name(*id)).is_some()),
            class: event.caller.class.filter(|id| known(policy.classes.name(*id)).is_some()),
            model: event.models.served.filter(|id| known(policy.models.name(*id)).is_some()),
            pool: event.dispatch.pool().filter(|id| known(policy.pools.name(*id)).is_some()),
        }
    }

    pub(super) fn without_tenant(self) -> Self {
        Self { tenant: None, ..self }
    }

    pub(super) fn labels(&self, policy: &Policy) -> Vec<Label> {
        vec![
            Label::new("tenant", tenant(policy, self.tenant).to_owned()),
            Label::new("class", class(policy, self.class).to_owned()),
            Label::new("model", model(policy, self.model).to_owned()),
            Label::new("pool", pool(policy, self.pool).to_owned()),
        ]
    }
}

/// Every combination of tenant, class, model and pool that the policy allows, of at most
/// [`MAX_OWNERS`] owners.
pub(super) fn owners(policy: &Policy) -> impl Iterator<Item = SeriesOwner> {
    let all = policy.tenants.iter().flat_map(move |(tenant, _, rights)| {
        let models = policy
            .models
            .iter()
            .filter(|(id, ..)| rights.models.as_ref().is_none_or(|allowed| allowed.contains(id)));
        models.flat_map(move |(model, _, served)| {
            served.pools.iter().flat_map(move |pool| {
                rights.classes.iter().map(move |class| SeriesOwner {
                    tenant: Some(tenant),
                    class: Some(*class),
                    model: Some(model),
                    pool: Some(*pool),
                })
            })
        })
    });
    all.take(MAX_OWNERS)
}

pub(super) fn tenant(policy: &Policy, id: Option<TenantId>) -> &str {
    id.and_then(|id| known(policy.tenants.name(id))).unwrap_or(OTHER)
}

pub(super) fn class(policy: &Policy, id: Option<ClassId>) -> &str {
    id.and_then(|id| known(policy.classes.name(id))).unwrap_or(OTHER)
}

pub(super) fn model(policy: &Policy, id: Option<ModelId>) -> &str {
    id.and_then(|id| known(policy.models.name(id))).unwrap_or(OTHER)
}

pub(super) fn pool(policy: &Policy, id: Option<PoolId>) -> &str {
    id.and_then(|id| known(policy.pools.name(id))).unwrap_or(OTHER)
}
