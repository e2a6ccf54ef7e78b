//! Penstock: an inference gateway and queue-aware request router.
//!
//! `ARCHITECTURE.md` has the map. Arrows between the modules point downwards
//! only: `app` → `{proxy, fleet, admin, sim}` → `usage` → `{config, wire,
//! tls, telemetry}` → `tokens` → `core`.

pub mod admin;
pub mod app;
pub mod auth;
pub mod cli;
pub mod config;
pub mod core;
pub mod dispatcher;
pub mod fleet;
pub mod protocol;
pub mod proxy;
pub mod scaler;
pub mod sim;
pub mod telemetry;
pub mod tls;
pub mod tokens;
pub mod usage;
