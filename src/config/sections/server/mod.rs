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
    /// Address of the client listener: an IP address and a port. `0.0.0.0:8080` listens on all
    /// interfaces.
    pub listen: ListenAddress,
    /// Address of the operators' listener, which operators and Prometheus use. Without
    /// `admin.auth`, the listener asks for no credential: keep the port inside the cluster.
    pub admin: ListenAddress,
    /// TLS of the client listener (`server.listen`). Absent = the listener takes connections
    /// without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSection>,
    /// Longest time for a TLS handshake, at each listener. A connection whose handshake takes
    /// longer is closed.
    pub handshake_timeout: Span,
    /// TLS handshakes that one client address (IPv6: a /64) may have open at each listener. Further
    /// handshakes wait, within `handshake_timeout`. Handshakes have no other bound than this and
    /// the number of connections.
    #[schemars(range(min = 1))]
    pub max_address_handshakes: u32,
    /// Open client connections. At the limit, a new connection takes the place of one without a
    /// request, else of the one whose request bodies arrive most slowly. Where every connection has
    /// a whole request, the new connection waits.
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Open connections of one client address (IPv6: a /64). A further connection is closed at
    /// once. Absent = half of `max_connections`.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_address_connections: Option<u32>,
    /// Load balancers in front of `server.listen` that tell the addresses of their clients. Limits
    /// by address then count the clients' addresses. Absent = limits count the address at the other
    /// end of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxies: Option<ProxiesSection>,
    /// Longest time for a request head, from its first byte. A slower head gets 408. At
    /// `scale.listen`, also the longest time from a connection to its first call.
    pub head_timeout: Span,
    /// Longest time without a byte of a request body. A request that is silent for longer gets 408.
    pub body_timeout: Span,
    /// How far a client may fall behind in taking its answer before the gateway cuts the client
    /// off. Time counts while bytes wait for the client, and each byte that the client takes gives
    /// back `1 / min_send_rate` seconds.
    pub send_timeout: Span,
    /// Bytes a second that a client must take on average while bytes of its answer wait. A slower
    /// client is cut off once the client has fallen behind by `send_timeout`. 0 = any byte taken
    /// gives back the whole `send_timeout`.
    pub min_send_rate: ByteSize,
    /// How long a connection may stay open without a request. Keep the value above the idle timeout
    /// of the load balancer in front.
    pub idle_timeout: Span,
    /// Largest request head in bytes, from 8 KiB to 1 MiB. A larger head gets 431.
    pub max_head_bytes: ByteSize,
    /// How long running and queued requests may go on after SIGTERM. Keep the value below
    /// Kubernetes' `terminationGracePeriodSeconds`.
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
    /// Addresses or networks of the load balancers, such as `10.0.0.0/8`. What others say about a
    /// client's address is not believed.
    #[schemars(length(min = 1))]
    pub trusted: Vec<String>,
    /// How the load balancers tell the client's address. With `proxy-protocol`, each connection
    /// from a load balancer must begin with a PROXY protocol header of version 1 or 2.
    #[serde(default)]
    pub header: ProxyHeader,
}

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct TelemetrySection {
    /// Log lines, which the gateway writes to standard error.
    pub log: LogSection,
    /// Traces, which the gateway sends to a collector over OTLP. The usual `OTEL_*` variables give
    /// what is absent here.
    pub otlp: OtlpSection,
    /// Requests that no engine got and that are written whole in a second, for each tenant and
    /// reason: each as a log line and a row of `usage`. Further ones are counted, and one line and
    /// one row a second have their number. Requests without a valid credential have no rows.
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
    /// Form of log lines: `json` for machines, `text` for people.
    pub format: LogFormat,
    /// Level from which on lines are logged (`error`, `warn`, `info`, `debug`, `trace`), or a
    /// filter such as `info,penstock::proxy=debug`.
    pub level: String,
    /// How much of the client's address a request's log line has: `truncated` (/24 of IPv4, /48 of
    /// IPv6), `on` (all of the address) or `off`. Behind a load balancer of `server.proxies`, the
    /// line has the address that the load balancer tells.
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
    /// URL of the collector, such as `http://otel-collector:4317`. With `http/protobuf`, the
    /// gateway adds `/v1/traces` to a URL without a path. Absent =
    /// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`; without these, no
    /// traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Protocol in which spans travel to the collector. Absent =
    /// `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` or `OTEL_EXPORTER_OTLP_PROTOCOL`, else `grpc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<OtlpProtocol>,
    /// Headers of each call to the collector, such as `authorization`. The gateway also sends the
    /// headers in `OTEL_EXPORTER_OTLP_HEADERS`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, SecretRef>,
    /// Path of a PEM file with the authorities that may sign the collector's certificate, for
    /// `https`. Absent = the file in `OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE` or
    /// `OTEL_EXPORTER_OTLP_CERTIFICATE`, else the authorities of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Share of the requests without a `traceparent` that are traced, from 0 to 1. A request with a
    /// `traceparent` is traced if that is sampled. Absent = the sampler in `OTEL_TRACES_SAMPLER`,
    /// else 0.1.
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
