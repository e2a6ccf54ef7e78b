//! Copies of requests, and what they show.

use std::time::Duration;

use tracing::{debug, info};

use crate::core::model::ids::{ModelId, PoolId};
use crate::telemetry::Telemetry;
use crate::telemetry::event::{RequestOutcome, known, millis, shorten};

/// How a request went, or its copy. Times count from when it was sent to the
/// engine that answered it: waits in the queue say nothing of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowSide {
    /// How it ended.
    pub outcome: RequestOutcome,
    /// Where it ran.
    pub pool: Option<PoolId>,
    /// To the first token; absent for what is not a stream.
    pub first_token: Option<Duration>,
    /// To its end.
    pub total: Duration,
    /// Tokens that were generated; absent = nobody counted.
    pub output_tokens: Option<u64>,
}

impl ShadowSide {
    /// What is counted of the two sides, under these names.
    pub(in crate::telemetry) const NAMES: [&'static str; 2] = ["original", "copy"];
}

/// A request and its copy are both over.
#[derive(Debug, Clone, Copy)]
pub struct ShadowCompared<'a> {
    /// The request.
    pub request_id: &'a str,
    /// The model that served it.
    pub model: ModelId,
    /// The model that served the copy.
    pub to: ModelId,
    /// The request.
    pub original: ShadowSide,
    /// Its copy.
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
                request_id = shorten(self.request_id),
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

/// A request was to be copied, and was not, or its copy was dropped.
#[derive(Debug, Clone, Copy)]
pub struct ShadowSkipped {
    /// The model that served the request.
    pub model: ModelId,
    /// The model that was to serve the copy.
    pub to: ModelId,
    /// Why, as a stable code.
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
