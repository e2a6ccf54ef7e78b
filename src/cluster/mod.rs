//! Cluster: what several gateways share through Valkey or Redis. A background task owns the
//! connection; requests never wait for it.

mod demand;
mod exchange;
mod leases;
mod load;
mod messages;
mod parts;
mod restarts;
mod service;
mod shared_overrides;
mod shares;
mod store;

pub use demand::{DemandCall, DemandReportState, OwnReport, RemoteGateway, SharedReports, StoreNames};
pub use exchange::{ALL_REPORT, ClusterHandle, start};
pub use leases::{LeaseCall, LeaseReportState};
pub use load::LoadTexts;
pub use messages::{FleetAnswer, RequestFinder};
pub use parts::{ClusterMember, ClusterParts, ClusterStatus, FindRequest};
pub use service::{ServiceBatches, ServiceCall};
pub use shared_overrides::{SharedOverride, SharedOverrides, target_name};
pub use store::scripts::{DEMAND, LEASES, LOAD, MEMBERS, MESSAGES, OVERRIDES, SERVICE};
