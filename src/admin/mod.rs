//! Admin listener: metrics, health, reports for operators, and their overrides. The listener runs
//! on a thread of its own ([`spawn`]).

mod auth;
mod config_view;
mod console;
mod keys;
mod operate;
mod problem;
mod report;
mod requests;
mod routes;
mod server;
mod state;
mod usage;

pub use crate::admin::requests::explain::find as find_request;
pub use crate::admin::routes::router;
pub use crate::admin::server::{AdminHandle, AdminTls, spawn};
pub use crate::admin::state::AdminState;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
