//! Objective events: objectives of a class that no pool has ever met.

use tracing::warn;

use crate::core::placement::unattainable::UnattainableObjective;
use crate::telemetry::Telemetry;
use crate::telemetry::text::millis;

/// A class has an objective that none of its pools has ever met. The event is emitted at most once
/// an hour.
#[derive(Debug, Clone, Copy)]
pub struct ObjectiveUnattainable(pub UnattainableObjective);

impl ObjectiveUnattainable {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let UnattainableObjective {
            class,
            model,
            objective: aim,
            target: promised,
            pool,
            best: shown,
            samples,
        } = self.0;
        let (class, model) = (policy.classes.name(class), policy.models.name(model));
        telemetry.log(|| {
            warn!(
                class,
                model,
                objective = aim.name(),
                promised_ms = millis(promised),
                pool = policy.pools.name(pool),
                best_ms = millis(shown),
                samples,
                "no pool can keep this objective"
            );
        });
        telemetry.metrics().promise_unkept(class, model, aim.name());
    }
}
