//! Shadow events: comparisons of a request with its shadow copy, and copies that were skipped.

use tracing::{debug, info};

use crate::core::model::ids::ModelId;
use crate::telemetry::Telemetry;
use crate::telemetry::summary::RequestIds;
pub(super) use crate::telemetry::summary::ShadowSide;
use crate::telemetry::text::{known, millis, shorten};

/// A request and its shadow copy have both ended.
#[derive(Debug, Clone, Copy)]
pub struct ShadowCompared<'a> {
    pub ids: RequestIds<'a>,
    /// Model that served the request.
    pub model: ModelId,
    /// Model that served the copy.
    pub to: ModelId,
    pub original: ShadowSide,
    pub copy: ShadowSide,
}

impl ShadowCompared<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (model, to) = (policy.models.name(self.model), policy.models.name(self.to));
        let (original, copy) = (&self.original, &self.copy);
        telemetry.log(|| {
            info!(
                request_id = shorten(self.ids.request),
                gateway_id = self.ids.gateway,
                model,
                to,
                pool = original.pool.and_then(|id| known(policy.pools.name(id))),
                to_pool = copy.pool.and_then(|id| known(policy.pools.name(id))),
                outcome = original.outcome.name(),
                copy_outcome = copy.outcome.name(),
                ttft_ms = original.first_token.map(millis),
                copy_ttft_ms = copy.first_token.map(millis),
                total_ms = millis(original.total),
                copy_total_ms = millis(copy.total),
                output_tokens = original.output_tokens,
                copy_output_tokens = copy.output_tokens,
                "shadow"
            );
        });
        telemetry.metrics().shadow_compared(model, to, [original, copy]);
    }
}

/// A shadow copy was not made, or was dropped before its end.
#[derive(Debug, Clone, Copy)]
pub struct ShadowSkipped {
    /// Model that served the request.
    pub model: ModelId,
    /// Model that was to serve the copy.
    pub to: ModelId,
    /// Reason, as a stable code.
    pub reason: &'static str,
}

impl ShadowSkipped {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (model, to) = (policy.models.name(self.model), policy.models.name(self.to));
        telemetry.log(|| debug!(model, to, reason = self.reason, "shadow skipped"));
        telemetry.metrics().shadow_skipped(model, to, self.reason);
    }
}
