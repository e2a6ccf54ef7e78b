//! The file as it is written: every section, every key, every default.
//!
//! The comments on the fields are what an editor shows for them; they go into
//! `config/schema.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::sections::guardrails::GuardrailsSection;
use crate::config::sections::identity::AdminSection;
use crate::config::sections::identity::audit::AuditSection;
use crate::config::sections::models::ModelSection;
use crate::config::sections::pools::PoolSection;
use crate::config::sections::request_path::{
    HealthSection, QueueSection, RequestsSection, RetrySection, UpstreamSection,
};
use crate::config::sections::routing::RoutingSection;
use crate::config::sections::scale::ScaleSection;
use crate::config::sections::scale::cluster::ClusterSection;
use crate::config::sections::server::{ServerSection, TelemetrySection};
use crate::config::sections::tenants::classes::{ClassSection, builtin_classes};
use crate::config::sections::tenants::{AuthSection, TenantSection};
use crate::config::sections::usage::UsageSection;
use crate::config::syntax::named::NamedEntries;

/// Configuration of Penstock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Penstock", transform = crate::config::schema::transforms::top)]
pub struct ConfigFile {
    /// Version of the file's format: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1))]
    pub version: Option<u32>,
    /// Listeners and their limits.
    pub server: ServerSection,
    /// Logs and traces.
    pub telemetry: TelemetrySection,
    /// The operators' listener: its certificate, and who may do what there.
    pub admin: AdminSection,
    /// What is written down of operators and of the configuration.
    pub audit: AuditSection,
    /// What requests used and cost.
    pub usage: UsageSection,
    /// How the scale signal is told.
    pub scale: ScaleSection,
    /// What several gateways share; absent = this one is alone, or each keeps its own
    /// limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterSection>,
    /// Who may come in.
    pub auth: AuthSection,
    /// Limits of one request.
    pub requests: RequestsSection,
    /// A service of the operator's own that may refuse prompts and answers;
    /// absent = none is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guardrails: Option<GuardrailsSection>,
    /// Time limits towards the engines.
    pub upstream: UpstreamSection,
    /// What may wait in all; a request that would pass a bound is refused
    /// with an honest Retry-After.
    pub queue: QueueSection,
    /// What counts for the choice of a replica beside its time to the first
    /// token.
    pub routing: RoutingSection,
    /// What happens to a request whose replica failed.
    pub retry: RetrySection,
    /// How replicas come and go.
    pub health: HealthSection,
    /// Latency classes by name. The section replaces the built-in classes
    /// `interactive`, `standard` and `batch` as a whole; a class that keeps
    /// one of these names keeps that class's values for keys it leaves out,
    /// other classes take those of `standard`.
    pub classes: NamedEntries<ClassSection>,
    /// Tenants by name. With `auth: {mode: off}` and no tenants there is one
    /// that may use everything.
    pub tenants: NamedEntries<TenantSection>,
    /// Public models by name. Only for aliases and windows: a model that a
    /// pool names exists by itself.
    pub models: NamedEntries<ModelSection>,
    /// Pools of alike replicas by name.
    pub pools: NamedEntries<PoolSection>,
}

impl Default for ConfigFile {
    fn default() -> Self {
        Self {
            version: None,
            server: ServerSection::default(),
            telemetry: TelemetrySection::default(),
            admin: AdminSection::default(),
            audit: AuditSection::default(),
            usage: UsageSection::default(),
            scale: ScaleSection::default(),
            cluster: None,
            auth: AuthSection::default(),
            requests: RequestsSection::default(),
            guardrails: None,
            upstream: UpstreamSection::default(),
            queue: QueueSection::default(),
            routing: RoutingSection::default(),
            retry: RetrySection::default(),
            health: HealthSection::default(),
            classes: builtin_classes(),
            tenants: NamedEntries::default(),
            models: NamedEntries::default(),
            pools: NamedEntries::default(),
        }
    }
}
