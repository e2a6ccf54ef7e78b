//! Billing events: bills of attempts.

use crate::core::billing::bill::AttemptBill;
use crate::core::model::ids::TenantId;
use crate::telemetry::Telemetry;

/// An attempt of a request was billed. The event is emitted at the end of the request. It has no log
/// line of its own: the line of the request has the sum of its attempts.
#[derive(Debug, Clone, Copy)]
pub struct AttemptBilled<'a> {
    /// Tenant that pays; absent = no known tenant.
    pub tenant: Option<TenantId>,
    pub bill: &'a AttemptBill,
}

impl AttemptBilled<'_> {
    /// Adds the attempt to the metrics.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.metrics().billed(&telemetry.policy(), self.tenant, self.bill);
    }
}
