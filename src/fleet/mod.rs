//! Fleet monitor: metrics, served models and presence of the replicas. It reports and decides
//! nothing: a scrape that fails changes nothing by itself, and only a probe that the core asked
//! for says that a replica is lost or found.

pub mod context;
pub mod discovery;
pub mod engine;
pub mod fetch;
pub mod handle;
pub mod promtext;
pub mod view;

mod probe;
mod scrape;
pub mod sleep;
mod target;
