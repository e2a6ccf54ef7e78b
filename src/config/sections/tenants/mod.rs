//! Sections `auth` and `tenants`, as written; section `classes` is in [`classes`].

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
    /// Credentials that clients need: `keys` or `off`.
    pub mode: AuthMode,
    /// Tenant of all clients with `mode: off`. Absent = the only tenant of the file, or `default`
    /// where the file has no tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Folder with files of more keys, from the configuration file's folder: a mounted Secret, or a
    /// folder that `POST /admin/v1/keys` writes to; at most 4096 files and 16 MiB. Each file whose
    /// name does not begin with a dot is YAML or JSON with `tenant: NAME` and `keys:`, a list as
    /// under a tenant. The gateway watches the folder; a broken file stays in force as the file
    /// last was, and other files are not affected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys_dir: Option<String>,
    /// Identity providers whose tokens (JWT) clients may send as `Authorization: Bearer` in place
    /// of an API key, at most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub oidc: Vec<OidcSection>,
    /// Failed attempts that a client address (IPv6: a /64) may make before a further one gets 429.
    /// Valid credentials always pass.
    pub failures: FailuresSection,
}

/// How clients are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// A client needs an API key, a token of `auth.oidc`, or a client certificate of a tenant.
    #[default]
    Keys,
    /// A client needs no credential: everybody who can connect is let in. `off` is allowed only
    /// while `server.listen` is a loopback address.
    Off,
}

/// A tenant: who the work is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TenantSection {
    /// Share of the tenant against the other tenants with the same `parent`, above 0. A tenant of
    /// weight 2 gets twice as much as one of weight 1 while both want more than there is.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub weight: f64,
    /// Tenant that this tenant belongs to, such as its organisation; at most 4 levels. A parent and
    /// all tenants below it have one share and one quota, which they divide among themselves; the
    /// parent's own requests count as those of one more child of weight 1. Absent = the tenant
    /// belongs to no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Class of the tenant's requests that ask for no class. Absent = `standard` if the tenant may
    /// use `standard`, else the first class that the tenant may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_class: Option<String>,
    /// Classes that the tenant may use. Absent = all classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<String>>,
    /// Models that the tenant may use. Absent = all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Names for models that only this tenant has, each with the model that the name stands for.
    /// These names take precedence over models and aliases of the same name.
    #[serde(skip_serializing_if = "NamedEntries::is_empty")]
    pub model_map: NamedEntries<String>,
    /// Whether another model may serve the tenant's requests when the requested model surely
    /// cannot: one of the model's `fallbacks` that the tenant may use.
    pub allow_fallback: bool,
    /// Whether the tenant's prompts share no prefix cache with prompts of other tenants. With a
    /// shared cache, another tenant can find out from the time to first token whether somebody sent
    /// the same beginning of a prompt. Only vLLM can isolate the cache.
    pub isolate_prefix_cache: bool,
    /// Bounds of what may wait for this tenant. Absent = only the bounds of all tenants together
    /// (`queue`).
    pub queue: TenantQueueSection,
    /// Parts of the replicas' places (sequences) that the tenant and its children are guaranteed,
    /// may borrow, and lend.
    pub quota: TenantQuotaSection,
    /// Where the tenant's work may go, within what its class allows, and where the tenant's work
    /// goes first, in place of what its class says.
    #[serde(skip_serializing_if = "PlacementSection::is_empty")]
    pub placement: PlacementSection,
    /// Differences from the section `guardrails` for the tenant's requests.
    #[serde(skip_serializing_if = "GuardrailRuleSection::is_empty")]
    pub guardrails: GuardrailRuleSection,
    /// Limits of what the tenant's own requests may use. Requests of its children have their own
    /// limits.
    #[serde(skip_serializing_if = "LimitsSection::is_empty")]
    pub limits: LimitsSection,
    /// Limits of what the tenant's requests for one model may use, by the model's name. The
    /// tenant's `limits` hold as well.
    #[serde(skip_serializing_if = "NamedEntries::is_empty")]
    pub model_limits: NamedEntries<LimitsSection>,
    /// API keys of the tenant. `penstock keys new` makes a key. To change a key without a break,
    /// add the new key, give the old one `expires`, and remove the old one later.
    pub keys: Vec<KeySection>,
    /// Client certificates of the tenant. An authority of `server.tls.client_ca` must have signed
    /// them.
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
    /// Requests of the tenant that may wait. A further request gets 503. Absent = `queue.requests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests: Option<u64>,
    /// Bytes of request bodies of the tenant that may wait. A request beyond the bound gets 503.
    /// Absent = `queue.bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ByteSize>,
    /// Tokens (prompt and requested output) of requests of the tenant that may wait. A request
    /// beyond the bound gets 503. Absent = `queue.tokens`.
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
    /// Part of the replicas' places, from 0 to 1, up to which the tenant is served before every
    /// tenant that has more than its own guarantee. The guarantees of all tenants without a parent
    /// are at most 1 together, and those of a tenant's children at most the tenant's own. What a
    /// child does not use goes to its siblings first.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub guarantee: f64,
    /// Part of the replicas' places, from 0 to 1, that the tenant may hold beyond its guarantee
    /// while others do not use the places.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub borrow: f64,
    /// Part of the replicas' places, from 0 to 1, that others may use of the tenant's idle
    /// guarantee. From the value of `guarantee` on, the whole idle guarantee is lent.
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
    /// Public part of the key, between its two underscores; for a secret of another form, the id
    /// that `penstock keys hash` printed. Logs show the id.
    #[schemars(regex(pattern = "^[a-z0-9]{8,12}$"))]
    pub id: String,
    /// Digest of the whole key: `blake3:` and 64 hex digits, or `sha256:` and 64 hex digits where
    /// another program made the digest.
    #[schemars(regex(pattern = "^(blake3|sha256):[0-9a-f]{64}$"))]
    pub digest: String,
    /// Class of the key's requests that ask for no class. Absent = the tenant's `default_class`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Limits of what requests with this key may use. The tenant's `limits` hold as well.
    #[serde(skip_serializing_if = "LimitsSection::is_empty")]
    pub limits: LimitsSection,
    /// Classes that requests with this key may use, among the tenant's `classes`. Absent = all
    /// classes of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<String>>,
    /// Models that requests with this key may use, among the tenant's `models`. Absent = all models
    /// of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Time from which the key is refused: a day (its begin, UTC) or a time such as
    /// `2027-01-31T12:00:00Z`. Absent = the key does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Moment>,
    /// Note for people, such as who holds the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
