//! Objective check: warns when a class has an objective that no pool can reach.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, interval};

use crate::core::model::ids::{ClassId, ModelId};
use crate::core::placement::unattainable::{ObjectiveKind, UnattainableObjective, unattainable};
use crate::proxy::Proxy;
use crate::telemetry::event::ObjectiveUnattainable;

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two warnings about the same objective.
const REPEAT_INTERVAL: Duration = Duration::from_secs(3600);

/// Time of the last warning, by class, model and objective.
#[derive(Debug, Default)]
struct RecentWarnings(HashMap<(ClassId, ModelId, ObjectiveKind), Instant>);

impl RecentWarnings {
    /// The objectives without a warning in the last hour. Marks them as warned about.
    fn take_new(&mut self, found: Vec<UnattainableObjective>, now: Instant) -> Vec<UnattainableObjective> {
        self.0.retain(|_, at| now.duration_since(*at) < REPEAT_INTERVAL);
        let mut is_news =
            |row: &UnattainableObjective| match self.0.entry((row.class, row.model, row.objective)) {
                Entry::Occupied(_) => false,
                Entry::Vacant(free) => {
                    free.insert(now);
                    true
                }
            };
        found.into_iter().filter(|row| is_news(row)).collect()
    }
}

/// Checks the objectives every [`CHECK_INTERVAL`], until dropped.
pub(in crate::app) async fn watch(proxy: Arc<Proxy>) {
    let mut said = RecentWarnings::default();
    let mut every = interval(CHECK_INTERVAL);
    loop {
        every.tick().await;
        let policy = Arc::clone(&proxy.settings.load().policy);
        let snapshot = proxy.dispatcher.snapshot();
        let best = |pool| snapshot.pools.iter().find(|view| view.pool == pool).map(|view| view.best);
        for row in said.take_new(unattainable(&policy, best), Instant::now()) {
            ObjectiveUnattainable(row).emit(&proxy.telemetry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::ids::PoolId;

    #[test]
    fn the_same_is_said_once_an_hour() {
        let row = |model| UnattainableObjective {
            class: ClassId::new(0),
            model: ModelId::new(model),
            objective: ObjectiveKind::Itl,
            target: Duration::from_millis(5),
            pool: PoolId::new(0),
            best: Duration::from_millis(9),
            samples: 5_000,
        };
        let (mut said, start) = (RecentWarnings::default(), Instant::now());
        let mut count = |minutes: u64, rows: &[UnattainableObjective]| {
            said.take_new(rows.to_vec(), start + Duration::from_secs(60 * minutes)).len()
        };
        assert_eq!(count(0, &[row(1)]), 1);
        assert_eq!(count(1, &[row(1), row(2)]), 1, "the other one is news");
        assert_eq!(count(59, &[row(1), row(2)]), 0);
        assert_eq!(count(60, &[row(1), row(2)]), 1);
    }
}
