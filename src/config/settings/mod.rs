//! The validated configuration, as the rest of the program sees it.
//!
//! `Serialize` of a section here is its form in `GET /admin/v1/config`: a new field is shown unless it
//! says `skip`. A [`Secret`] shows itself as `set`.

pub mod cluster;
pub mod guardrails;
pub mod identity;
pub mod names;
pub mod scale;
pub mod shadows;
pub(crate) mod shown;
pub mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::config::discover::Discovery;
pub use crate::config::secret::Secret;
pub use crate::config::sections::routing::SessionField;
use crate::config::settings::cluster::ClusterSettings;
use crate::config::settings::guardrails::GuardrailSettings;
use crate::config::settings::identity::{AuditFile, Auth, ClientTls, Listeners};
use crate::config::settings::names::ModelNames;
use crate::config::settings::scale::ScaleSettings;
use crate::config::settings::shadows::ShadowSettings;
use crate::config::settings::usage::UsageSettings;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::policy::Policy;
use crate::engines::EngineKind;
use crate::tokens::counter::{MediaCosts, TokenCounter};

/// One whole, valid configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Hash of the file's bytes, hex; tells two configurations apart.
    pub digest: String,
    /// What takes effect only at a start.
    pub startup: Startup,
    /// The listeners' certificates and operators; takes effect with the next
    /// connection or request there.
    pub listeners: Listeners,
    /// Scale signal settings.
    pub scale: ScaleSettings,
    /// What is shared with other gateways; absent = nothing.
    pub cluster: Option<ClusterSettings>,
    /// What the edges need; takes effect with the next request.
    pub edge: Arc<EdgeSettings>,
    /// What the core decides by; takes effect at once.
    pub policy: Arc<Policy>,
}

/// What takes effect only at a start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Startup {
    /// Address for clients.
    pub listen: SocketAddr,
    /// Where operators and Prometheus connect.
    pub admin: SocketAddr,
    /// Limits of the client listener.
    pub listener: ListenerLimits,
    /// How long running and queued requests may go on after SIGTERM.
    #[serde(serialize_with = "shown::seconds")]
    pub drain_grace: Duration,
    /// Where the audit log goes beside the log; absent = nowhere.
    pub audit: Option<AuditFile>,
    /// Usage journal. `None` = usage is not recorded.
    pub usage: Option<UsageSettings>,
    /// Logs and traces.
    pub telemetry: TelemetrySettings,
}

/// Load balancers in front of the client listener, and how they tell the client's address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    /// Their addresses.
    pub networks: Vec<IpNet>,
    /// How they tell the address of a client.
    pub header: ProxyHeader,
}

/// How a load balancer tells the address of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyHeader {
    /// The header `x-forwarded-for` of each request.
    #[default]
    #[serde(rename = "x-forwarded-for")]
    ForwardedFor,
    /// The PROXY protocol at the start of each connection.
    ProxyProtocol,
}

impl TrustedProxies {
    /// Whether the address is that of a load balancer that tells the client's address this way.
    pub fn trusts(&self, address: IpAddr, header: ProxyHeader) -> bool {
        let address = address.to_canonical();
        self.header == header && self.networks.iter().any(|network| network.contains(&address))
    }
}

/// Limits of the client listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListenerLimits {
    /// Load balancers in front of it.
    #[serde(skip)]
    pub proxies: TrustedProxies,
    /// Open client connections; more are accepted only as others close.
    pub max_connections: usize,
    /// Open client connections of one address.
    pub max_address_connections: usize,
    /// Time for a request head, from its first byte.
    #[serde(serialize_with = "shown::seconds")]
    pub head_timeout: Duration,
    /// Longest time without a byte of a request body.
    #[serde(serialize_with = "shown::seconds")]
    pub body_timeout: Duration,
    /// How far a client may fall behind with its answer.
    #[serde(serialize_with = "shown::seconds")]
    pub send_timeout: Duration,
    /// Bytes a second that a client must take on average while bytes wait for
    /// it; 0 = any progress will do.
    pub min_send_rate: u64,
    /// How long a connection may stay open without a request.
    #[serde(serialize_with = "shown::seconds")]
    pub idle_timeout: Duration,
    /// Bytes of a request head.
    pub max_head_bytes: usize,
    /// Time for a TLS handshake.
    #[serde(serialize_with = "shown::seconds")]
    pub handshake_timeout: Duration,
    /// Open TLS handshakes of one address.
    pub max_address_handshakes: usize,
}

/// Default of `telemetry.refusals_per_second`.
pub const REFUSALS_PER_SECOND: u32 = 10;

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TelemetrySettings {
    /// `json` or `text`.
    pub log_format: LogFormat,
    /// A tracing filter such as `info` or `penstock=debug`.
    pub log_level: String,
    /// How much of clients' addresses is logged.
    #[serde(rename = "log_client_address")]
    pub client_address: AddressForm,
    /// Refusals of one tenant and reason that are written whole in a second.
    pub refusals_per_second: u32,
    #[serde(flatten)]
    pub otlp: OtlpSettings,
}

/// Where traces go. What is absent, the `OTEL_*` variables may say.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OtlpSettings {
    /// URL of the collector; absent = no traces, unless a variable names one.
    #[serde(rename = "otlp_endpoint", serialize_with = "shown::endpoint")]
    pub endpoint: Option<String>,
    #[serde(skip)]
    pub protocol: Option<OtlpProtocol>,
    /// Headers of each call, by lower-case names.
    #[serde(rename = "otlp_headers", serialize_with = "shown::names")]
    pub headers: BTreeMap<String, Secret>,
    /// PEM file of the authorities that the collector's certificate may come from; absent = those
    /// of the system.
    #[serde(skip)]
    pub ca: Option<Vec<u8>>,
    /// Share of the requests that start a trace of their own, `0.0..=1.0`.
    #[serde(rename = "trace_sample")]
    pub sample: Option<f64>,
    /// Those of [`OTEL_VARIABLES`] that are set and not blank.
    #[serde(skip)]
    pub variables: BTreeMap<&'static str, String>,
}

/// Variables of the process that say what the file does not. The exporter itself reads those with
/// headers, which may be secrets.
pub const OTEL_VARIABLES: [&str; 14] = [
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
];

/// How spans travel to the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OtlpProtocol {
    /// gRPC, usually port 4317.
    #[serde(rename = "grpc")]
    Grpc,
    /// HTTP/1.1 with protobuf bodies, usually port 4318.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Plain text, for people.
    Text,
}

/// How much of an address is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AddressForm {
    /// The line has no address.
    Off,
    /// The line has the network of the address: /24 of IPv4, /48 of IPv6.
    #[default]
    Truncated,
    /// The line has the whole address.
    On,
}

impl AddressForm {
    /// The text that is logged.
    pub fn shown(self, address: IpAddr) -> Option<String> {
        let address = address.to_canonical();
        let bits = if address.is_ipv4() { 24 } else { 48 };
        match self {
            Self::Off => None,
            Self::Truncated => IpNet::new(address, bits).ok().map(|network| network.trunc().to_string()),
            Self::On => Some(address.to_string()),
        }
    }
}

/// What the edges need.
#[derive(Debug, Clone)]
pub struct EdgeSettings {
    /// Authentication of clients.
    pub auth: Auth,
    /// Model names and aliases.
    pub names: ModelNames,
    /// How prompts are counted and what becomes of those that are too long, for
    /// models where that is not as usual.
    pub models: BTreeMap<ModelId, ModelSettings>,
    /// Pools as the proxy and the probes see them.
    pub pools: IdTable<PoolId, PoolSettings>,
    /// Replicas as the proxy and the probes see them.
    pub replicas: IdTable<ReplicaId, ReplicaSettings>,
    pub requests: RequestLimits,
    /// Engine-side time limits.
    pub upstream: UpstreamLimits,
    /// Whether a stream that breaks after its first token goes on at another
    /// replica.
    pub continue_streams: bool,
    /// What names the session of a request, where sessions keep to a replica.
    pub session: Option<SessionKey>,
    /// Tenants that share no prefix cache with others.
    pub isolated_tenants: BTreeSet<TenantId>,
    /// Classes whose clients get the head of a stream while their requests are
    /// held for a pool that has to start.
    pub early_heads: BTreeSet<ClassId>,
    /// Which requests are copied to other models; absent = none.
    pub shadows: Option<ShadowSettings>,
    /// The service that may refuse prompts and answers; absent = none is asked.
    pub guardrails: Option<Arc<GuardrailSettings>>,
}

/// What names the session of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionKey {
    /// A header, lower case; it goes before the fields.
    pub header: Option<String>,
    /// Fields of the body; the first that is there counts.
    pub body: Vec<SessionField>,
}

/// A model as the edges see it.
#[derive(Debug, Clone, Default)]
pub struct ModelSettings {
    /// Its own tokenizer.
    pub counter: Option<Arc<TokenCounter>>,
    /// The tokens that images and sounds are counted as.
    pub media: MediaCosts,
    /// Whether a request is refused whose prompt and asked output together are
    /// too long; else the output gets what is left.
    pub rejects: bool,
    /// Whether clients may have their prompts cut.
    pub truncates: bool,
}

/// A pool as the edges see it.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// What runs there.
    pub engine: EngineKind,
    /// The engine's own name of each model it serves.
    pub model_names: BTreeMap<ModelId, String>,
    /// The adapters among them.
    pub adapters: BTreeSet<ModelId>,
    /// Sent as `Authorization: Bearer` to its engines.
    pub api_key: Option<Secret>,
    /// TLS of connections to its engines; absent = what the system trusts.
    pub tls: Option<ClientTls>,
    /// Time between two scrapes of an engine's own view.
    pub scrape_interval: Duration,
    /// Descriptive labels from the operator, for reports only.
    pub site: PoolLabels,
    /// Where more of its replicas come from.
    pub discover: Option<Discovery>,
}

/// Descriptive labels of a pool from the operator, for reports only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PoolLabels {
    /// The kind of accelerator.
    pub accelerator: Option<String>,
    /// The profile of its slices, where it has such.
    pub mig_profile: Option<String>,
    /// Region.
    pub region: Option<String>,
    /// Zone.
    pub zone: Option<String>,
    /// Other labels.
    pub labels: BTreeMap<String, String>,
}

/// A replica as the edges see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSettings {
    pub pool: PoolId,
    /// `http://host:port` or `https://host:port`, perhaps with a path prefix;
    /// no trailing slash.
    pub url: Uri,
    /// Where its metrics are, when they have a port of their own (Triton).
    pub metrics_url: Option<Uri>,
    /// The zone that it is in, where that is known.
    pub zone: Option<Arc<str>>,
}

/// Limits of one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestLimits {
    /// Bytes of one request body.
    pub max_body_bytes: u64,
    /// Bytes of all request bodies held at once.
    pub max_total_body_bytes: u64,
    /// Thousandths of the bytes that no other tenant holds which one tenant may
    /// hold.
    #[serde(rename = "tenant_body_share", serialize_with = "shown::share")]
    pub tenant_body_permille: u32,
    /// Bytes a second that a body must come at; 0 = at any rate.
    pub min_body_rate: u64,
    /// Bytes of one answer that is not a stream.
    pub max_answer_bytes: u64,
    /// Bytes of all answers held at once, streams and others.
    pub max_total_answer_bytes: u64,
    /// Bytes of one stream that are held for a client that reads more slowly
    /// than the engine writes.
    pub stream_buffer_bytes: usize,
    /// The header by which a client may ask for a class, lower case.
    pub class_header: String,
    /// Time between two signs of life to a client that has only the head of its
    /// answer.
    #[serde(serialize_with = "shown::seconds")]
    pub keepalive: Duration,
    /// From where engines may fetch media.
    #[serde(flatten)]
    pub media: MediaPolicy,
}

/// From where engines may fetch the images, sounds and videos of prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MediaPolicy {
    /// Schemes of URLs, lower case.
    #[serde(rename = "media_schemes")]
    pub schemes: Vec<String>,
    /// Domains, with those below them, and addresses, lower case; empty = all but private ones.
    #[serde(rename = "media_domains")]
    pub domains: Vec<String>,
}

impl RequestLimits {
    /// Bytes of bodies that a tenant may hold while the others hold so many: one
    /// body at least.
    pub const fn most_of_tenant(&self, others: u64) -> u64 {
        let free = self.max_total_body_bytes.saturating_sub(others);
        let share = free as u128 * self.tenant_body_permille as u128 / 1000;
        if share > self.max_body_bytes as u128 { share as u64 } else { self.max_body_bytes }
    }
}

/// Names of headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderNames {
    /// Whole names, lower case.
    pub names: Vec<String>,
    /// Beginnings of names, lower case.
    pub prefixes: Vec<String>,
}

impl HeaderNames {
    /// Whether it has this name, which is lower case.
    pub fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

impl Serialize for HeaderNames {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let prefixes = self.prefixes.iter().map(|prefix| format!("{prefix}*"));
        to.collect_seq(self.names.iter().cloned().chain(prefixes))
    }
}

/// What is particular to the connections with engines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamLimits {
    /// Further headers of clients that engines get.
    pub request_headers: HeaderNames,
    /// Further headers of engines that clients get.
    pub answer_headers: HeaderNames,
    /// Time for a connection to an engine.
    #[serde(serialize_with = "shown::seconds")]
    pub connect_timeout: Duration,
    /// Longest silence from dispatch to the first token of a stream.
    #[serde(serialize_with = "shown::seconds")]
    pub first_token_timeout: Duration,
    /// Longest time from dispatch to the whole of an answer that is not a stream.
    #[serde(serialize_with = "shown::seconds")]
    pub answer_timeout: Duration,
    /// Longest silence inside a stream.
    #[serde(serialize_with = "shown::seconds")]
    pub stream_idle_timeout: Duration,
    /// How long an unused connection to an engine is kept; below the 5 s
    /// after which uvicorn closes it.
    #[serde(serialize_with = "shown::seconds")]
    pub keep_alive: Duration,
}
