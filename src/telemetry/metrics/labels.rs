//! Label values. They come from the configuration or from this program's own
//! text, never from a request: whatever has no name there is called `other`.

use metrics::{Key, Label};

use crate::core::model::ids::{ClassId, ModelId, PoolId, TenantId};
use crate::core::model::policy::Policy;
use crate::telemetry::event::{RequestSummary, known};

/// The value of a label whose subject the configuration does not know.
pub(super) const OTHER: &str = "other";

/// Whose series. An id is only there when the policy has a name for it, so
/// that a series cannot be stuck with `other`.
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
            tenant: event.tenant.filter(|id| known(policy.tenants.name(*id)).is_some()),
            class: event.class.filter(|id| known(policy.classes.name(*id)).is_some()),
            model: event.model.filter(|id| known(policy.models.name(*id)).is_some()),
            pool: event.pool.filter(|id| known(policy.pools.name(*id)).is_some()),
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

/// The key of a series.
pub(super) fn key(name: &'static str, labels: Vec<Label>) -> Key {
    Key::from_parts(name, labels)
}
