//! Limit events: requests that a limit refused, or would have refused in shadow mode.

use tracing::info;

use crate::core::limits::rule::LimitId;
use crate::core::model::ids::TenantId;
use crate::telemetry::Telemetry;
use crate::telemetry::text::shorten;

/// A limit refused a request, or would have refused it in shadow mode.
#[derive(Debug, Clone, Copy)]
pub struct LimitMet<'a> {
    pub request_id: &'a str,
    /// Tenant of the request; absent = no known tenant.
    pub tenant: Option<TenantId>,
    /// Limit that was met. When the limit is in shadow mode, the request went on.
    pub rule: LimitId,
}

impl LimitMet<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let tenant = self.tenant.map_or("", |tenant| policy.tenants.name(tenant));
        let LimitId { scope, unit, period, shadow } = self.rule;
        let (scope, unit, period) = (scope.name(), unit.name(), period.name());
        telemetry.log(|| {
            info!(request_id = shorten(self.request_id), tenant, scope, unit, period, shadow, "limit met");
        });
        telemetry.metrics().limit_met(tenant, [scope, unit, period], shadow);
    }
}
