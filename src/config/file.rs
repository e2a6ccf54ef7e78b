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
    /// The operators' listener (`server.admin`): its TLS, and the credentials and roles of operators.
    pub admin: AdminSection,
    /// The audit log: what operators did, and how the configuration changed.
    pub audit: AuditSection,
    /// The usage journal and its database: what requests used and cost.
    pub usage: UsageSection,
    /// The scaler for KEDA: how the gateway tells how many replicas each pool needs.
    pub scale: ScaleSection,
    /// What several gateways share through a store: limits, fair shares, overrides and the scale signal.
    /// Absent = this gateway shares nothing through a store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterSection>,
    /// Which clients may come in, and the credentials that they need.
    pub auth: AuthSection,
    /// Limits of requests: bodies, answers, media, and the header for the class.
    pub requests: RequestsSection,
    /// A service of the operator's own that may refuse prompts and answers. Absent = no service is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guardrails: Option<GuardrailsSection>,
    /// Time limits and headers of connections to engines.
    pub upstream: UpstreamSection,
    /// Bounds of what may wait, for all tenants together. A request beyond a bound is refused with 503 and
    /// `Retry-After`.
    pub queue: QueueSection,
    /// Choice of a replica: what counts beside the time to first token.
    pub routing: RoutingSection,
    /// What happens to a request whose replica failed.
    pub retry: RetrySection,
    /// Health of replicas: ejection, probes, return and drain.
    pub health: HealthSection,
    /// Latency classes by name. The section replaces the built-in classes `interactive`, `standard` and
    /// `batch` as a whole. A class that keeps a built-in name keeps the built-in values of keys that the
    /// class leaves out; other classes take those of `standard`.
    pub classes: NamedEntries<ClassSection>,
    /// Tenants by name. With `auth: {mode: off}` and no tenants, the gateway has one tenant, which may use
    /// everything.
    pub tenants: NamedEntries<TenantSection>,
    /// Public models by name, for aliases, windows and the like. A model that a pool names exists by
    /// itself.
    pub models: NamedEntries<ModelSection>,
    /// Pools by name. The replicas of a pool are alike.
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
