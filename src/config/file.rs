//! The file as it is written: every section, every key, every default.
//!
//! The comments on the fields are what an editor shows for them; they go into
//! `config/schema.json`.

pub mod budgets;
pub mod discover;
pub mod identity;
pub mod limits;
pub mod placement;
pub mod pools;
pub mod routing;
pub mod scale;
pub mod server;
pub mod sleep;
pub mod tenants;
pub mod usage;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::file::identity::{Admin, Audit};
use crate::config::file::limits::{Health, Queue, Requests, Retry, Upstream};
use crate::config::file::pools::{Model, Pool};
use crate::config::file::routing::Routing;
use crate::config::file::scale::Scale;
use crate::config::file::server::{Server, Telemetry};
use crate::config::file::tenants::{Access, Class, Tenant, builtin_classes};
use crate::config::file::usage::Usage;
use crate::config::named::Named;

/// Configuration of Penstock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Penstock", transform = crate::config::schema::top)]
pub struct File {
    /// Version of the file's format: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1))]
    pub version: Option<u32>,
    /// Listeners and their limits.
    pub server: Server,
    /// Logs and traces.
    pub telemetry: Telemetry,
    /// The operators' listener: its certificate, and who may do what there.
    pub admin: Admin,
    /// What is written down of operators and of the configuration.
    pub audit: Audit,
    /// What requests used and cost.
    pub usage: Usage,
    /// How the scale signal is told.
    pub scale: Scale,
    /// Who may come in.
    pub auth: Access,
    /// Limits of one request.
    pub requests: Requests,
    /// Time limits towards the engines.
    pub upstream: Upstream,
    /// What may wait in all; a request that would pass a bound is refused
    /// with an honest Retry-After.
    pub queue: Queue,
    /// What counts for the choice of a replica beside its time to the first
    /// token.
    pub routing: Routing,
    /// What happens to a request whose replica failed.
    pub retry: Retry,
    /// How replicas come and go.
    pub health: Health,
    /// Latency classes by name. The section replaces the built-in classes
    /// `interactive`, `standard` and `batch` as a whole; a class that keeps
    /// one of these names keeps that class's values for keys it leaves out,
    /// other classes take those of `standard`.
    pub classes: Named<Class>,
    /// Tenants by name. With `auth: {mode: off}` and no tenants there is one
    /// that may use everything.
    pub tenants: Named<Tenant>,
    /// Public models by name. Only for aliases and windows: a model that a
    /// pool names exists by itself.
    pub models: Named<Model>,
    /// Pools of alike replicas by name.
    pub pools: Named<Pool>,
}

impl Default for File {
    fn default() -> Self {
        Self {
            version: None,
            server: Server::default(),
            telemetry: Telemetry::default(),
            admin: Admin::default(),
            audit: Audit::default(),
            usage: Usage::default(),
            scale: Scale::default(),
            auth: Access::default(),
            requests: Requests::default(),
            upstream: Upstream::default(),
            queue: Queue::default(),
            routing: Routing::default(),
            retry: Retry::default(),
            health: Health::default(),
            classes: builtin_classes(),
            tenants: Named::default(),
            models: Named::default(),
            pools: Named::default(),
        }
    }
}
