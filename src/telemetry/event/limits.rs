//! Events of limits.

use tracing::info;

use crate::core::limits::rule::LimitId;
use crate::core::model::ids::TenantId;
use crate::telemetry::Telemetry;
use crate::telemetry::event::shorten;

/// A limit refused a request, or would have.
#[derive(Debug, Clone, Copy)]
pub struct LimitMet<'a> {
    /// The request.
    pub request_id: &'a str,
    /// Whose it is.
    pub tenant: Option<TenantId>,
    /// Which limit. Where it is in shadow mode, the request went on.
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
