//! Section `discover`: replica sources beside the file's list.

pub(in crate::config) mod check;

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

use crate::config::syntax::units::Span;

/// Where more replicas come from: exactly one of the sources. While a source
/// cannot be asked its last answer holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::one_key)]
pub struct DiscoverSection {
    /// DNS name whose addresses are the pool's replicas, such as the name of a headless Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsSection>,
    /// Path of a YAML or JSON file with a list like that of `replicas`, from the configuration
    /// file's folder. The file counts as a part of the configuration: new content is picked up
    /// without a restart, and with a broken file the whole new configuration is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Kubernetes Service whose endpoints are the pool's replicas. The gateway watches the
    /// EndpointSlices of the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesSection>,
}

/// Addresses of a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::dns)]
pub struct DnsSection {
    /// DNS name to ask for. For a name without a dot at its end, the search list of
    /// `/etc/resolv.conf` applies.
    pub name: String,
    /// Kind of DNS records to ask for: `a` or `srv`.
    #[serde(rename = "type")]
    pub records: DnsRecords,
    /// Port of the engines, required with `type: a`. SRV records have their own ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Scheme of the engines' URLs: `http` or `https`.
    pub scheme: EndpointScheme,
    /// Port of the engines' metrics, where it differs from the engines' port. Absent = the engines'
    /// port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub metrics_port: Option<u16>,
    /// Shortest time between two DNS queries, whatever the records' TTL; at least 100 ms.
    pub min_refresh: Span,
    /// Longest time between two DNS queries, whatever the records' TTL.
    pub max_refresh: Span,
    /// How long the last addresses hold when the DNS name is gone or has no addresses.
    pub empty_grace: Span,
    /// DNS servers to ask, such as `10.96.0.10:53`. Empty = the servers of `/etc/resolv.conf`.
    pub servers: Vec<String>,
}

impl Default for DnsSection {
    fn default() -> Self {
        Self {
            name: String::new(),
            records: DnsRecords::A,
            port: None,
            scheme: EndpointScheme::Http,
            metrics_port: None,
            min_refresh: Span::secs(1),
            max_refresh: Span::secs(30),
            empty_grace: Span::secs(30),
            servers: Vec::new(),
        }
    }
}

/// Kinds of DNS records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DnsRecords {
    /// Addresses (A and AAAA records).
    A,
    /// Addresses and ports (SRV records). Of several priorities, the lowest number counts.
    Srv,
}

/// How engines are spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EndpointScheme {
    /// Connections without TLS.
    Http,
    /// Connections with TLS. The engines' certificates must hold the engines' IP addresses, or the
    /// name in `tls.server_name` of the pool.
    Https,
}

/// Endpoints of a Kubernetes Service, watched as its EndpointSlices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesSection {
    /// Name of the Kubernetes Service whose endpoints are the pool's replicas. Exactly one of
    /// `service` and `selector` must be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Labels of the EndpointSlices whose endpoints are the pool's replicas, in place of `service`:
    /// `app=vllm,tier in (gpu)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Namespace of the Service. Absent = the namespace that the gateway runs in; required with
    /// `server`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Number or name of the engines' port. Absent = the only TCP port of the EndpointSlices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<EndpointPort>,
    /// Scheme of the engines' URLs: `http` or `https`.
    pub scheme: EndpointScheme,
    /// Port of the engines' metrics, where it differs from the engines' port. Absent = the engines'
    /// port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub metrics_port: Option<u16>,
    /// Time between two full lists of the endpoints, beside the watch; at least 100 ms.
    pub resync: Span,
    /// Watch of the cluster's Nodes: a taint or condition that says that a Node is about to go is a
    /// spot notice for the replicas on the Node. The gateway then needs a ClusterRole that may list
    /// and watch Nodes (`config/kubernetes/components/pools/nodes.yaml`). Absent = the gateway does
    /// not look at Nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesSection>,
    /// URL of the Kubernetes API server. Absent = the API server of the cluster that the gateway
    /// runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Path of a file with the token for the Kubernetes API server, from the configuration file's
    /// folder; the file is read again for every request. Absent = the token of the gateway's
    /// service account, or no token with `server`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// Path of a PEM file with the authorities that may sign the certificate of the Kubernetes API
    /// server, from the configuration file's folder. Absent = the CA of the gateway's service
    /// account, or the authorities of the system with `server`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
}

impl Default for KubernetesSection {
    fn default() -> Self {
        Self {
            service: None,
            selector: None,
            namespace: None,
            port: None,
            scheme: EndpointScheme::Http,
            metrics_port: None,
            resync: Span::secs(600),
            nodes: None,
            server: None,
            token_file: None,
            ca_file: None,
        }
    }
}

/// What tells that a Kubernetes node is about to go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodesSection {
    /// Keys of the taints that are a spot notice, whatever the taint's effect.
    pub taints: Vec<String>,
    /// Types of the conditions that are a spot notice while their status is `True`. With `=` and a
    /// reason, only a condition with that reason counts.
    pub conditions: Vec<String>,
}

impl Default for NodesSection {
    fn default() -> Self {
        let taints = [
            "aws-node-termination-handler/spot-itn",
            "cloud.google.com/impending-node-termination",
            "remediator.kubernetes.azure.com/unschedulable",
            "karpenter.sh/disrupted",
            "ToBeDeletedByClusterAutoscaler",
        ];
        Self { taints: taints.map(str::to_owned).to_vec(), conditions: Vec::new() }
    }
}

/// A port by its number or its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum EndpointPort {
    /// Its number.
    Number(u16),
    /// Its name in the Service.
    Name(String),
}

impl<'de> Deserialize<'de> for EndpointPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EndpointPortVisitor;
        impl Visitor<'_> for EndpointPortVisitor {
            type Value = EndpointPort;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number or the name of a port")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<EndpointPort, E> {
                let fits = u16::try_from(number).ok().filter(|port| *port > 0);
                fits.map(EndpointPort::Number)
                    .ok_or_else(|| E::custom("not a port\nwrite a number from 1 to 65535"))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<EndpointPort, E> {
                self.visit_u64(u64::try_from(number).unwrap_or(0))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<EndpointPort, E> {
                Ok(EndpointPort::Name(name.to_owned()))
            }
        }
        deserializer.deserialize_any(EndpointPortVisitor)
    }
}
