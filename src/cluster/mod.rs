//! Cluster: what several gateways share through Valkey or Redis. A background task owns the
//! connection; requests never wait for it.

mod connection;
mod demand_book;
mod demand_share;
mod exchange;
mod lease_book;
mod missed;
mod override_book;
mod parts;
mod restarts;
mod shared_reports;

pub use connection::{DEMAND, LEASES, MEMBERS, OVERRIDES};
pub use demand_book::{DemandBook, DemandCall, StoreNames};
pub use exchange::{ALL_REPORT, ClusterHandle, start};
pub use lease_book::{LeaseBook, LeaseCall};
pub use override_book::{OverrideBook, SharedOverride, target_name};
pub use parts::{ClusterMember, ClusterParts, ClusterStatus};
pub use shared_reports::{HeardGateway, OwnReport, SharedReports};
