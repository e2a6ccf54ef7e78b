//! History of the scale signal: each pool's numbers of the last hour, and what scalers asked last.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::scaler::pool_signal::PoolSignal;
use crate::telemetry::wall;

/// Time between two samples.
const STEP: Duration = Duration::from_secs(10);
/// Samples of a pool: one hour.
const MAX_SAMPLES: usize = 360;
/// Most scaled objects whose last question is remembered.
const MAX_ASKING: usize = 64;

/// Most characters of a scaled object's name that are kept; Kubernetes allows 63 + 1 + 253.
pub(super) const MAX_NAME: usize = 320;

/// Numbers of one pool at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct ScaleSample {
    at_unix: f64,
    desired: Option<u32>,
    ready: u32,
    queued: u64,
    inflight: u64,
    reason: &'static str,
}

/// Last question of a scaled object, and the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ScaleQuestion {
    pub(super) pool: String,
    /// `namespace/name` of the ScaledObject.
    pub(super) scaled_object: String,
    pub(super) value: u64,
    pub(super) active: bool,
    pub(super) reason: String,
    pub(super) at_unix: f64,
    pub(super) times: u64,
}

/// Samples by pool, and questions by scaled object and pool.
#[derive(Debug, Default)]
pub(super) struct ScaleHistory {
    last: Option<Instant>,
    pools: BTreeMap<String, VecDeque<ScaleSample>>,
    asked: Vec<ScaleQuestion>,
}

impl ScaleHistory {
    /// Adds a sample of each pool if the last one is old enough. Pools that are gone are forgotten.
    pub(super) fn sample(&mut self, pools: &BTreeMap<String, PoolSignal>, now: Instant) {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < STEP) {
            return;
        }
        self.last = Some(now);
        self.pools.retain(|name, _| pools.contains_key(name));
        let at_unix = wall::unix_seconds(wall::now());
        for (name, row) in pools {
            let need = row.demand;
            let samples = self.pools.entry(name.clone()).or_default();
            if samples.len() == MAX_SAMPLES {
                samples.pop_front();
            }
            samples.push_back(ScaleSample {
                at_unix,
                desired: need.desired,
                ready: need.ready,
                queued: need.queued,
                inflight: need.in_flight,
                reason: need.reason,
            });
        }
    }

    /// Notes a question and its answer. Beyond a bound, the object that asked longest ago is
    /// forgotten.
    pub(super) fn asked(&mut self, question: ScaleQuestion) {
        let same = |old: &&mut ScaleQuestion| {
            old.pool == question.pool && old.scaled_object == question.scaled_object
        };
        if let Some(old) = self.asked.iter_mut().find(same) {
            *old = ScaleQuestion { times: old.times + 1, ..question };
            return;
        }
        if self.asked.len() == MAX_ASKING {
            let oldest = self.asked.iter().enumerate().min_by(|a, b| a.1.at_unix.total_cmp(&b.1.at_unix));
            if let Some((index, _)) = oldest {
                self.asked.swap_remove(index);
            }
        }
        self.asked.push(question);
    }

    /// The samples of each pool, oldest first.
    pub(super) const fn pools(&self) -> &BTreeMap<String, VecDeque<ScaleSample>> {
        &self.pools
    }

    /// The last question of each scaled object.
    pub(super) fn questions(&self) -> &[ScaleQuestion] {
        &self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::autoscale::replica_demand::ReplicaDemand;
    use crate::core::model::ids::PoolId;

    fn pools(names: &[&str]) -> BTreeMap<String, PoolSignal> {
        let demand = ReplicaDemand {
            pool: PoolId::new(0),
            desired: Some(3),
            reason: "burst",
            keep_above_zero: false,
            ready: 2,
            queued: 7,
            due: true,
            queued_tokens: 70,
            in_flight: 4,
            cold_start: None,
        };
        names.iter().map(|name| ((*name).to_owned(), PoolSignal { demand, last_busy: None })).collect()
    }

    fn question(object: usize, at_unix: f64) -> ScaleQuestion {
        ScaleQuestion {
            pool: "a".to_owned(),
            scaled_object: format!("llm/{object}"),
            value: 1,
            active: true,
            reason: "burst".to_owned(),
            at_unix,
            times: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_hour_of_samples_is_kept_of_the_pools_there_are() {
        let mut history = ScaleHistory::default();
        history.sample(&pools(&["a", "b"]), Instant::now());
        history.sample(&pools(&["a", "b"]), Instant::now());
        assert_eq!(history.pools()["b"].len(), 1, "one a step");
        for _ in 0..2 * MAX_SAMPLES {
            tokio::time::advance(STEP).await;
            history.sample(&pools(&["a"]), Instant::now());
        }
        assert_eq!(history.pools().len(), 1);
        assert_eq!(history.pools()["a"].len(), MAX_SAMPLES);
        assert_eq!((history.pools()["a"][0].desired, history.pools()["a"][0].reason), (Some(3), "burst"));
    }

    #[test]
    fn the_last_question_of_each_object_is_kept_and_their_number_is_bounded() {
        let mut history = ScaleHistory::default();
        history.asked(question(0, 1.0));
        history.asked(question(0, 2.0));
        assert_eq!((history.questions().len(), history.questions()[0].times), (1, 2));
        for object in 1..=MAX_ASKING {
            history.asked(question(object, 2.0 + object as f64));
        }
        assert_eq!(history.questions().len(), MAX_ASKING);
        assert!(history.questions().iter().all(|row| row.scaled_object != "llm/0"));
    }
}
