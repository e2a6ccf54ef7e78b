//! Leases: the part of each limit that this gateway has.

pub(super) mod reports;
pub(super) mod shortfalls;

pub use reports::{LeaseCall, LeaseReportState};
