//! Sections of the file: the keys of each section as written, with their defaults, and the check that
//! turns them into [`settings`](crate::config::settings). A module holds one section or a few.
//!
//! The keys stand in the section's `mod.rs`, the check in `check.rs`. A small section is one file
//! with both. The doc comments of the keys are what an editor shows for them; they go into
//! `config/schema.json`.
//!
//! Keys of the file that stand in a folder of another name:
//!
//! | Key | Folder |
//! |---|---|
//! | `requests`, `upstream`, `queue`, `retry`, `health` | `request_path` |
//! | `telemetry` | `server` |
//! | `cluster` | `scale` |
//! | `auth`, `classes` | `tenants` |
//! | `limits` and `model_limits` of tenants, `limits` of keys | `tenants/usage_limits` |
//! | `admin`, `audit`; `tls` of each listener; credentials and `oidc` of `auth` | `identity` |
//! | `placement` of classes and tenants, traits of pools | `placement` |

pub mod guardrails;
pub mod identity;
pub mod models;
pub mod placement;
pub mod pools;
pub mod request_path;
pub mod routing;
pub mod scale;
pub mod secret_ref;
pub mod server;
pub mod tenants;
pub mod usage;
