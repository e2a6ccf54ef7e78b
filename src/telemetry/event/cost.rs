//! Events of billed stays.

use crate::core::billing::bill::StayBill;
use crate::core::model::ids::TenantId;
use crate::telemetry::Telemetry;

/// A stay of a request at a replica is over. Emitted with the request's end,
/// whose line has the sum of its stays.
#[derive(Debug, Clone, Copy)]
pub struct StayBilled<'a> {
    /// Who pays; absent = nobody known.
    pub tenant: Option<TenantId>,
    /// What it came to.
    pub bill: &'a StayBill,
}

impl StayBilled<'_> {
    /// Counts it.
    pub fn emit(&self, telemetry: &Telemetry) {
        telemetry.metrics().billed(&telemetry.policy(), self.tenant, self.bill);
    }
}
