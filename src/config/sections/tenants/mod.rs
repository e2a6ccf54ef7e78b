//! Sections `auth` and `tenants`, as written.

pub(in crate::config) mod check;
pub mod classes;
pub(in crate::config) mod context;
mod family;
pub mod usage_limits;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::sections::guardrails::GuardrailRuleSection;
use crate::config::sections::identity::{ClientCertSection, FailuresSection, Moment, OidcSection};
use crate::config::sections::placement::PlacementSection;
use crate::config::sections::tenants::usage_limits::LimitsSection;
use crate::config::syntax::named::NamedEntries;
use crate::config::syntax::units::ByteSize;

/// Who may come in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSection {
    /// `keys`: holders of a key, of a token of `oidc`, or of a certificate.
    /// `off`: everybody who can connect, allowed only while `server.listen` is
    /// a loopback address.
    pub mode: AuthMode,
    /// With `mode: off`: the tenant that everybody is; absent = the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Folder with files of more keys, from this file's folder: a mounted Secret,
    /// or a folder that `POST /admin/v1/keys` writes to. It is watched. Each file
    /// whose name does not begin with a dot is YAML or JSON: `tenant: NAME` and
    /// `keys:`, a list as under a tenant. A broken file stays in force as it last
    /// was, and takes nothing of the others away. At most 4096 files, 16 MiB in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys_dir: Option<String>,
    /// Identity providers whose tokens (JWT) are taken as `Authorization:
    /// Bearer` beside keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub oidc: Vec<OidcSection>,
    /// How many failed attempts an address may make.
    pub failures: FailuresSection,
}

/// How clients are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// By an API key or another credential.
    #[default]
    Keys,
    /// Not at all.
    Off,
}

/// A tenant: who the work is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TenantSection {
    /// Share against the other tenants with the same `parent`; 2 gets twice as
    /// much as 1 when both want more than there is.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub weight: f64,
    /// The tenant that this one belongs to, such as its organisation; absent =
    /// none. A tenant and all who belong to it, directly or through others,
    /// have one share and one quota, which they divide among themselves. The
    /// tenant's own requests count as those of one more child of weight 1. There
    /// are at most 4 levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The class of a request that asks for none; absent = `standard` if the
    /// tenant may use it, else the first class that it may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_class: Option<String>,
    /// The classes the tenant may use; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<String>>,
    /// The models that the tenant may use; absent = all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Names of its own, each with the model that it stands for. They go
    /// before the aliases and models of everybody.
    #[serde(skip_serializing_if = "NamedEntries::is_empty")]
    pub model_map: NamedEntries<String>,
    /// Whether another model may serve its requests: one of the `fallbacks`
    /// of theirs that it may use.
    pub allow_fallback: bool,
    /// Whether its prompts share no prefix cache with those of other tenants.
    /// Otherwise another tenant can find out by the time of a first token
    /// whether somebody sent the same beginning. Only vLLM can do it.
    pub isolate_prefix_cache: bool,
    /// What may wait for this tenant; absent = as much as for all together.
    pub queue: TenantQueueSection,
    /// What it may hold of the replicas' places.
    pub quota: TenantQuotaSection,
    /// Where its work may go, of what its class allows, and where it goes
    /// first, before what its class says.
    #[serde(skip_serializing_if = "PlacementSection::is_empty")]
    pub placement: PlacementSection,
    /// What differs from `guardrails` for its requests.
    #[serde(skip_serializing_if = "GuardrailRuleSection::is_empty")]
    pub guardrails: GuardrailRuleSection,
    /// What it may use.
    #[serde(skip_serializing_if = "LimitsSection::is_empty")]
    pub limits: LimitsSection,
    /// What it may use of a model, by the model's name, beside what it may use
    /// in all.
    #[serde(skip_serializing_if = "NamedEntries::is_empty")]
    pub model_limits: NamedEntries<LimitsSection>,
    /// Its API keys. `penstock keys new` makes one. To change one without a
    /// break, add the new one, give the old one `expires`, and take it away
    /// later.
    pub keys: Vec<KeySection>,
    /// Its certificates, of the authorities in `server.tls.client_ca`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_certs: Vec<ClientCertSection>,
}

impl Default for TenantSection {
    fn default() -> Self {
        Self {
            weight: 1.0,
            parent: None,
            default_class: None,
            classes: None,
            models: None,
            model_map: NamedEntries::default(),
            allow_fallback: false,
            isolate_prefix_cache: false,
            queue: TenantQueueSection::default(),
            quota: TenantQuotaSection::default(),
            placement: PlacementSection::default(),
            guardrails: GuardrailRuleSection::default(),
            limits: LimitsSection::default(),
            model_limits: NamedEntries::default(),
            keys: Vec::new(),
            client_certs: Vec::new(),
        }
    }
}

/// What may wait for one tenant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TenantQueueSection {
    /// Waiting requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests: Option<u64>,
    /// Bytes of waiting bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ByteSize>,
    /// Tokens (prompt and requested output) of waiting requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tokens: Option<u64>,
}

/// The part of a tenant and its children in the places (sequences) that the
/// replicas of its models have, each from 0 to 1. What is guaranteed and idle is
/// lent to others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TenantQuotaSection {
    /// Served before every tenant that has more than its own guarantee. All
    /// guarantees together are at most 1, and those of the children of a tenant
    /// at most its own. What a child does not use goes to its siblings first.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub guarantee: f64,
    /// Part that the tenant may hold beyond its guarantee, of what others do not use.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub borrow: f64,
    /// How much of its idle guarantee others may use.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lend: f64,
}

impl Default for TenantQuotaSection {
    fn default() -> Self {
        let core = crate::core::model::policy::Quota::default();
        Self { guarantee: core.guarantee, borrow: core.borrow, lend: core.lend }
    }
}

/// An API key, of which the file holds only the digest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::key)]
pub struct KeySection {
    /// The public part of the key, between its two underscores; of another
    /// secret what `penstock keys hash` printed. It is what logs show.
    #[schemars(regex(pattern = "^[a-z0-9]{8,12}$"))]
    pub id: String,
    /// `blake3:` and 64 hex digits: the digest of the whole key. `sha256:`
    /// for one that another program hashed.
    #[schemars(regex(pattern = "^(blake3|sha256):[0-9a-f]{64}$"))]
    pub digest: String,
    /// The class of requests that ask for none; absent = the tenant's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What may be used with it, of what its tenant may use.
    #[serde(skip_serializing_if = "LimitsSection::is_empty")]
    pub limits: LimitsSection,
    /// The classes it may use, of the tenant's; absent = all of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<String>>,
    /// The models it may use, of the tenant's; absent = all of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// The key is not taken any more from this moment on: a day (its begin,
    /// UTC) or a time such as `2027-01-31T12:00:00Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Moment>,
    /// Who holds it, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
