//! Sections that take effect only at a start: `server` and `telemetry`.

pub(in crate::config) mod check;
mod telemetry;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use crate::config::sections::identity::tls::TlsSection;
use crate::config::sections::secret_ref::SecretRef;
use crate::config::settings::{AddressForm, LogFormat, OtlpProtocol, ProxyHeader, REFUSALS_PER_SECOND};
use crate::config::syntax::units::{ByteSize, Span};

/// Listeners and their limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct ServerSection {
    /// Where clients connect: an IP address and a port. `0.0.0.0:8080` for
    /// all interfaces.
    pub listen: ListenAddress,
    /// Where operators and Prometheus connect. This port asks for no
    /// password unless `admin.auth` has some: keep it inside the cluster.
    pub admin: ListenAddress,
    /// TLS of `listen`; absent = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSection>,
    /// Time for a TLS handshake, at each listener.
    pub handshake_timeout: Span,
    /// Open TLS handshakes of one client address (IPv6: of a /64), at each
    /// listener; more wait, within their time. Nothing else bounds them:
    /// a handshake computes on the thread of its connection.
    #[schemars(range(min = 1))]
    pub max_address_handshakes: u32,
    /// Open client connections. For one more, a connection without a request
    /// ends; where all have requests, it waits.
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Open connections of one client address (IPv6: of a /64); more are
    /// closed at once. Absent = half of `max_connections`.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_address_connections: Option<u32>,
    /// Load balancers in front of `listen` that tell the addresses of their
    /// clients. Limits by address then count those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxies: Option<ProxiesSection>,
    /// Time for a request head, from its first byte. At `scale.listen` also
    /// the time from a connection to its first call.
    pub head_timeout: Span,
    /// Longest time without a byte of a request body.
    pub body_timeout: Span,
    /// How far a client may fall behind with its answer: the longest time in
    /// which it takes nothing of the bytes that wait for it. Each byte that it
    /// takes gives back `1 / min_send_rate` seconds.
    pub send_timeout: Span,
    /// Bytes a second that a client must take on average while bytes wait for
    /// it; below that it is cut off once it has fallen behind by
    /// `send_timeout`. 0 = any progress will do.
    pub min_send_rate: ByteSize,
    /// How long a connection may stay open without a request. Keep it above
    /// the idle timeout of the load balancer in front.
    pub idle_timeout: Span,
    /// Bytes of a request head, at least 8KiB.
    pub max_head_bytes: ByteSize,
    /// How long running and queued requests may go on after SIGTERM. Keep it
    /// below Kubernetes' `terminationGracePeriodSeconds`.
    pub drain_grace: Span,
}

impl Default for ServerSection {
    fn default() -> Self {
        Self {
            listen: ListenAddress::loopback(8080),
            admin: ListenAddress::loopback(8081),
            tls: None,
            handshake_timeout: Span::secs(10),
            max_address_handshakes: 128,
            max_connections: 10_000,
            max_address_connections: None,
            proxies: None,
            head_timeout: Span::secs(10),
            body_timeout: Span::secs(30),
            send_timeout: Span::secs(60),
            min_send_rate: ByteSize(1 << 10),
            idle_timeout: Span::secs(75),
            max_head_bytes: ByteSize(64 << 10),
            drain_grace: Span::secs(60),
        }
    }
}

/// Load balancers in front of the client listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct ProxiesSection {
    /// Their addresses or networks, such as `10.0.0.0/8`. What others say
    /// about a client's address is not believed.
    #[schemars(length(min = 1))]
    pub trusted: Vec<String>,
    /// How they tell it. With `proxy-protocol`, each of their connections must
    /// begin with a header of version 1 or 2.
    #[serde(default)]
    pub header: ProxyHeader,
}

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct TelemetrySection {
    /// Log lines, to standard error.
    pub log: LogSection,
    /// Traces.
    pub otlp: OtlpSection,
    /// Requests of one tenant and reason that no engine got and that are written whole in a second,
    /// each as a log line and a row of `usage`. The others are counted: one line and one row a second
    /// have their number. Requests without a valid credential have no rows.
    pub refusals_per_second: u32,
}

impl Default for TelemetrySection {
    fn default() -> Self {
        Self {
            log: LogSection::default(),
            otlp: OtlpSection::default(),
            refusals_per_second: REFUSALS_PER_SECOND,
        }
    }
}

/// Log lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct LogSection {
    /// `json` for machines, `text` for people.
    pub format: LogFormat,
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such
    /// as `info,penstock::proxy=debug`.
    pub level: String,
    /// How much of a client's address is in the line of its request: `truncated` (/24 of
    /// IPv4, /48 of IPv6), `on` (all of it) or `off`. Behind a load balancer of
    /// `server.proxies` it is the address that the load balancer tells.
    pub client_address: AddressForm,
}

impl Default for LogSection {
    fn default() -> Self {
        Self { format: LogFormat::Json, level: "info".to_owned(), client_address: AddressForm::Truncated }
    }
}

/// Traces over OTLP. The usual `OTEL_*` variables say what is absent here.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct OtlpSection {
    /// URL of the collector, such as `http://otel-collector:4317`. With
    /// `http/protobuf`, `/v1/traces` is added to a URL without a path. Absent =
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`;
    /// without these, no traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// How spans travel. Absent = `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` or
    /// `OTEL_EXPORTER_OTLP_PROTOCOL`, else `grpc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<OtlpProtocol>,
    /// Headers of each call to the collector, such as `authorization`. Those of
    /// `OTEL_EXPORTER_OTLP_HEADERS` are sent, too.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, SecretRef>,
    /// PEM file of the authorities that may sign the collector's certificate, for
    /// `https`. Absent = `OTEL_EXPORTER_OTLP_CERTIFICATE`, else those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Share of the requests that start a trace of their own, from 0 to 1.
    /// Requests that bring a sampled `traceparent` are always traced. Absent =
    /// what `OTEL_TRACES_SAMPLER` says, else 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sample: Option<f64>,
}

/// An IP address and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ListenAddress(pub SocketAddr);

impl ListenAddress {
    fn loopback(port: u16) -> Self {
        Self((Ipv4Addr::LOCALHOST, port).into())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|_| {
            let hint = "write an IP address and a port, such as 127.0.0.1:8080 or 0.0.0.0:8080";
            D::Error::custom(format!("{text:?} is not an address to listen on\n{hint}"))
        })
    }
}

impl JsonSchema for ListenAddress {
    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "An IP address and a port.",
            "pattern": "^(\\d+\\.\\d+\\.\\d+\\.\\d+|\\[[0-9a-fA-F:.%]+\\]):\\d+$",
            "examples": ["127.0.0.1:8080", "0.0.0.0:8080", "[::]:8080"],
        })
    }
}
