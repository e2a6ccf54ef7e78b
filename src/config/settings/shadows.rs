//! Settings of shadow traffic: which requests are copied to which models.

use std::collections::BTreeMap;

use crate::core::model::ids::{ClassId, ModelId, TenantId};

/// The tenant under which copies are booked, and the class in which they run.
pub const NAME: &str = "shadow";

/// Copies of requests whose answers are thrown away.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowSettings {
    /// Who they are booked under.
    pub tenant: TenantId,
    /// The class that they run in.
    pub class: ClassId,
    /// By the model whose requests are copied.
    pub rules: BTreeMap<ModelId, ShadowRule>,
}

/// Copies of one model's requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShadowRule {
    /// The model that gets them.
    pub to: ModelId,
    /// Share of the requests, `0.0..=1.0`.
    pub share: f64,
    /// How many may run at once, at least 1.
    pub max_in_flight: u32,
}
