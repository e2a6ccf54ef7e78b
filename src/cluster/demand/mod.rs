//! Demand reports of the gateways, for one scale signal.

pub(super) mod reports;
pub(super) mod share;
pub(super) mod shared_reports;

pub use reports::{DemandCall, DemandReportState, StoreNames};
pub use shared_reports::{OwnReport, RemoteGateway, SharedReports};
