//! Promises against what pools have shown.

use tracing::warn;

use crate::core::placement::unattainable::UnattainableObjective;
use crate::telemetry::Telemetry;
use crate::telemetry::event::millis;

/// A class promises what none of its pools has ever kept. Said once an hour at
/// most.
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
