//! Penstock: an inference gateway and queue-aware request router.
//!
//! `ARCHITECTURE.md` has the map. A module may use those to the right of it: `app` →
//! `{admin, record}` → `studies` → `{proxy, scaler, sim}` → `{auth, cluster, fleet}` → `dispatcher` → `usage` → `{config, protocol, tls,
//! telemetry}` → `{engines, tokens}` → `core`.

pub use penstock_core as core;
pub use penstock_sim as sim;

pub mod admin;
pub mod app;
pub mod auth;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod dispatcher;
pub mod engines;
pub mod fleet;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod protocol;
pub mod proxy;
pub mod record;
pub mod scaler;
pub mod studies;
pub mod telemetry;
pub mod tls;
pub mod tokens;
pub mod usage;
