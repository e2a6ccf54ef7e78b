//! Fleet monitor: metrics, served models and presence of the replicas. The monitor reports and
//! decides nothing. A scrape that fails changes nothing by itself; only a probe that the scheduler
//! asked for reports that a replica is lost or found.

pub mod context;
pub mod discovery;
pub mod fetch;
pub mod handle;
pub mod view;

mod probe;
mod scrape;
pub mod sleep;
mod target;
