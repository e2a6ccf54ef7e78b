//! Cluster: what several gateways share through Valkey or Redis. A background task owns the
//! connection; requests never wait for it.

mod connection;
mod demand_reports;
mod demand_share;
mod exchange;
mod lease_reports;
mod lease_shortfalls;
mod parts;
mod restarts;
mod service_batches;
mod service_share;
mod shared_overrides;
mod shared_reports;

pub use connection::{DEMAND, LEASES, MEMBERS, OVERRIDES, SERVICE};
pub use demand_reports::{DemandCall, DemandReportState, StoreNames};
pub use exchange::{ALL_REPORT, ClusterHandle, start};
pub use lease_reports::{LeaseCall, LeaseReportState};
pub use parts::{ClusterMember, ClusterParts, ClusterStatus};
pub use service_batches::{ServiceBatches, ServiceCall};
pub use shared_overrides::{SharedOverride, SharedOverrides, target_name};
pub use shared_reports::{OwnReport, RemoteGateway, SharedReports};
