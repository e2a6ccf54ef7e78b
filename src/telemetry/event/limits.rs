//! Limit events: requests that a limit refused, or would have refused in shadow mode, refusals that
//! were only counted, and the store through which gateways share limits.

use std::time::Duration;

use tracing::{debug, info, warn};

use crate::core::limits::rule::LimitId;
use crate::core::model::ids::TenantId;
use crate::telemetry::summary::RequestIds;
use crate::telemetry::text::{known, shorten};
use crate::telemetry::{RefusalKind, Telemetry};

/// A limit refused a request, or would have refused it in shadow mode.
#[derive(Debug, Clone, Copy)]
pub struct LimitMet<'a> {
    pub ids: RequestIds<'a>,
    /// Tenant of the request; absent = no known tenant.
    pub tenant: Option<TenantId>,
    /// Limit that was met. When the limit is in shadow mode, the request went on.
    pub rule: LimitId,
    /// Whether the event is logged. Otherwise it is only counted, as the request is.
    pub is_logged: bool,
}

impl LimitMet<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let tenant = self.tenant.map_or("", |tenant| policy.tenants.name(tenant));
        let LimitId { scope, unit, period, shadow } = self.rule;
        let (scope, unit, period) = (scope.name(), unit.name(), period.name());
        if self.is_logged {
            let (request_id, gateway_id) = (shorten(self.ids.request), self.ids.gateway);
            telemetry.log(|| {
                info!(request_id, gateway_id, tenant, scope, unit, period, shadow, "limit met");
            });
        }
        telemetry.metrics().limit_met(tenant, [scope, unit, period], shadow);
    }
}

/// Further requests of one kind were refused, too many of them in a second for a line and a usage row
/// each.
#[derive(Debug, Clone, Copy)]
pub struct RefusalsCounted {
    pub kind: RefusalKind,
    /// Number of requests without a line of their own.
    pub requests: u64,
}

impl RefusalsCounted {
    /// Writes the event. Each of the requests is in the metrics already.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let RefusalKind { listener, tenant, reason, outcome, status } = self.kind;
        let tenant = tenant.and_then(|id| known(policy.tenants.name(id)));
        let kept_back = self.requests;
        telemetry.log(|| {
            info!(listener, tenant, reason, outcome, status, kept_back, "further requests were refused");
        });
    }
}

/// The store does not answer.
#[derive(Debug, Clone, Copy)]
pub struct StoreLost<'a> {
    pub problem: &'a str,
    /// Whether it answered until now.
    pub first: bool,
}

impl StoreLost<'_> {
    /// Writes and counts the event. The first failure in a row is a warning, the others are debug lines.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.metrics().cluster_store(false);
        let problem = shorten(self.problem);
        if self.first {
            telemetry.log(|| {
                warn!(problem, "the store of the cluster is away; limits go on with their last leases");
            });
        } else {
            telemetry.log(|| debug!(problem, "the store of the cluster is still away"));
        }
    }
}

/// The work of tenants here does not reach the other gateways through the store, so that each gateway is
/// fair by itself.
#[derive(Debug, Clone, Copy)]
pub struct ServiceNotShared<'a> {
    pub problem: &'a str,
}

impl ServiceNotShared<'_> {
    /// Writes the event to the log.
    pub fn emit(&self, telemetry: &Telemetry) {
        let problem = shorten(self.problem);
        telemetry.log(|| warn!(problem, "fair shares are not shared with the other gateways"));
    }
}

/// The load of this gateway does not reach the other gateways through the store, so that each sees the work of
/// others by the reports of engines.
#[derive(Debug, Clone, Copy)]
pub struct LoadNotShared<'a> {
    pub problem: &'a str,
}

impl LoadNotShared<'_> {
    /// Writes the event to the log.
    pub fn emit(&self, telemetry: &Telemetry) {
        let problem = shorten(self.problem);
        telemetry.log(|| warn!(problem, "loads are not shared with the other gateways"));
    }
}

/// Messages to the other gateways do not get through: `explain` finds a request only at its own gateway, and a gateway
/// that starts begins without past use.
#[derive(Debug, Clone, Copy)]
pub struct MessagesNotShared<'a> {
    pub problem: &'a str,
}

impl MessagesNotShared<'_> {
    /// Writes the event to the log.
    pub fn emit(&self, telemetry: &Telemetry) {
        let problem = shorten(self.problem);
        telemetry.log(|| warn!(problem, "messages to the other gateways do not get through"));
    }
}

/// The store was away for so long that leases of limits have ended.
#[derive(Debug, Clone, Copy)]
pub struct LeasesEnded {
    /// Time that the store has been away.
    pub after: Duration,
}

impl LeasesEnded {
    /// Writes the event and sets the metric.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.metrics().cluster_leases_over(true);
        let seconds = self.after.as_secs_f64();
        telemetry.log(|| {
            warn!(
                seconds,
                "the leases of limits have ended: what has a limit is refused until the store is back"
            );
        });
    }
}

/// The store answers again.
#[derive(Debug, Clone, Copy)]
pub struct StoreBack {
    /// Time that it was away.
    pub after: Duration,
}

impl StoreBack {
    /// Writes the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let seconds = self.after.as_secs_f64();
        telemetry.log(|| info!(seconds, "the store of the cluster is back"));
    }
}

/// The store has answered.
#[derive(Debug, Clone, Copy)]
pub struct ClusterSeen {
    /// Gateways that are there, this one included.
    pub gateways: usize,
}

impl ClusterSeen {
    /// Sets the metrics.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.metrics().cluster_store(true);
        telemetry.metrics().cluster_leases_over(false);
        telemetry.metrics().cluster_gateways(self.gateways);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::fixtures::{self, render, samples, success, telemetry};
    use crate::telemetry::summary::{AttemptCounts, RequestOutcome, RequestSummary};

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_is_few_lines_with_its_number_and_hides_no_others() {
        let telemetry = telemetry(2);
        let attempts = AttemptCounts::default();
        let outcome = RequestOutcome::Rejected;
        let refused =
            RequestSummary { outcome, reason: Some("queue_full"), status: 429, attempts, ..success() };
        let written = (0..427).filter(|_| refused.emit(&telemetry)).count();
        assert_eq!(written, 10);
        assert!(success().emit(&telemetry), "what an engine got is always written");
        let failed = RequestSummary { outcome: RequestOutcome::Failed, ..success() };
        assert_eq!((0..50).filter(|_| failed.emit(&telemetry)).count(), 50);
        let other = RequestSummary { reason: Some("bad_body"), ..refused };
        assert!(other.emit(&telemetry));
        for (kind, requests) in telemetry.take_counted_refusals() {
            RefusalsCounted { kind, requests }.emit(&telemetry);
        }
        let log = telemetry.captured_log();
        let line: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        assert_eq!((&line["kept_back"], &line["reason"]), (&417.into(), &"queue_full".into()));
        assert_eq!((&line["tenant"], &line["status"]), (&"team-0".into(), &429.into()));
        assert_eq!(log.lines().filter(|line| line.contains("request finished")).count(), 10 + 1 + 50 + 1);
        let text = render(&telemetry);
        let samples = samples(&text);
        assert_eq!(samples["penstock_log_lines_kept_back_total"], 417.0);
        let finished = samples.iter().filter(|(name, _)| name.starts_with("penstock_requests_total"));
        assert_eq!(finished.map(|(_, count)| count).sum::<f64>(), 479.0, "metrics count each request");
    }

    #[test]
    fn a_store_that_is_away_is_told_once() {
        let telemetry = fixtures::telemetry(1);
        let up = || {
            let text = fixtures::render(&telemetry);
            fixtures::samples(&text)["penstock_cluster_store_up"]
        };
        ClusterSeen { gateways: 3 }.emit(&telemetry);
        assert_eq!(up(), 1.0);
        for first in [true, false] {
            StoreLost { problem: "connection refused", first }.emit(&telemetry);
        }
        assert_eq!(up(), 0.0);
        let over = || {
            let text = fixtures::render(&telemetry);
            fixtures::samples(&text)["penstock_cluster_leases_over"]
        };
        assert_eq!(over(), 0.0);
        LeasesEnded { after: Duration::from_secs(3600) }.emit(&telemetry);
        assert_eq!(over(), 1.0);
        StoreBack { after: Duration::from_secs(3) }.emit(&telemetry);
        let log = telemetry.captured_log();
        assert_eq!(log.matches("the store of the cluster is away").count(), 1, "{log}");
        assert!(log.contains("the store of the cluster is back"), "{log}");
        let text = fixtures::render(&telemetry);
        assert_eq!(fixtures::samples(&text)["penstock_cluster_gateways"], 3.0);
    }
}
