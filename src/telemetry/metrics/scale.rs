//! Scale metrics: the replica demand of each pool, read when Prometheus asks.

use std::fmt::Display;

use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::policy::Policy;
use crate::telemetry::metrics::catalogue::{self, Metric};
use crate::telemetry::metrics::exposition::Exposition;
use crate::telemetry::metrics::labels;

/// Writes the metrics of the scale signal, one sample for each pool. An unknown number is `NaN`: a
/// scaler reads a missing series as zero.
pub(super) fn write(out: &mut Exposition<'_>, policy: &Policy, needs: &[ReplicaDemand]) {
    let mut gauge = |metric: &Metric, value: &dyn Fn(&ReplicaDemand) -> Box<dyn Display>| {
        out.family(metric);
        for need in needs {
            out.sample(metric, &[("pool", labels::pool(policy, Some(need.pool)))], value(need));
        }
    };
    gauge(&catalogue::pools::DESIRED, &|need| match need.desired {
        Some(desired) => Box::new(desired),
        None => Box::new("NaN"),
    });
    gauge(&catalogue::pools::POOL_READY, &|need| Box::new(need.ready));
    gauge(&catalogue::pools::POOL_IN_FLIGHT, &|need| Box::new(need.in_flight));
    gauge(&catalogue::pools::POOL_QUEUED_TOKENS, &|need| Box::new(need.queued_tokens));
    out.family(&catalogue::pools::DESIRED_REASON);
    for need in needs {
        let pool = labels::pool(policy, Some(need.pool));
        out.sample(&catalogue::pools::DESIRED_REASON, &[("pool", pool), ("reason", need.reason)], 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::ids::PoolId;
    use crate::core::model::snapshot::Snapshot;
    use crate::telemetry::fixtures::{samples, telemetry};
    use crate::telemetry::metrics::Scrape;

    #[test]
    fn what_is_not_known_is_not_zero() {
        let telemetry = telemetry(1);
        let need = ReplicaDemand {
            pool: PoolId::new(0),
            desired: Some(7),
            reason: "burst",
            keep_above_zero: false,
            ready: 3,
            due: true,
            queued: 2,
            queued_tokens: 500,
            in_flight: 4,
            cold_start: None,
        };
        let pool = telemetry.policy().pools.name(need.pool).to_owned();
        let render = |needs: &[ReplicaDemand]| {
            telemetry.render(&Scrape { snapshot: &Snapshot::default(), engines: &[], needs })
        };
        let text = render(&[need]);
        let of = |name: &str| samples(&text)[&*format!("penstock_{name}{{pool=\"{pool}\"}}")];
        let numbers =
            ["desired_replicas", "pool_ready_replicas", "pool_in_flight", "pool_queued_tokens"].map(of);
        assert_eq!(numbers, [7.0, 3.0, 4.0, 500.0]);
        assert!(text.contains(&format!("penstock_desired_reason{{pool=\"{pool}\",reason=\"burst\"}} 1\n")));
        let text = render(&[ReplicaDemand { desired: None, ..need }]);
        assert!(text.contains(&format!("penstock_desired_replicas{{pool=\"{pool}\"}} NaN\n")), "{text}");
    }
}
