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
    /// Addresses of a name, such as that of a headless Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsSection>,
    /// Path of a YAML or JSON file with a list like that of `replicas`, from
    /// this file's folder. It counts as a part of this file: a new content is
    /// picked up without a restart, and a broken one is refused as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Endpoints of a Kubernetes Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesSection>,
}

/// Addresses of a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::dns)]
pub struct DnsSection {
    /// The name. Without a dot at its end the search list of
    /// `/etc/resolv.conf` applies.
    pub name: String,
    /// Records to ask for: `a` (addresses, IPv6 included) or `srv`
    /// (addresses and ports; of several priorities the lowest number).
    #[serde(rename = "type")]
    pub records: DnsRecords,
    /// Port of the engines; SRV records have their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// `http` or `https`.
    pub scheme: EndpointScheme,
    /// Port of the engines' metrics, when they have one of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub metrics_port: Option<u16>,
    /// Shortest time between two questions, whatever the records' TTL.
    pub min_refresh: Span,
    /// Longest time between two questions, whatever the records' TTL.
    pub max_refresh: Span,
    /// How long the last addresses hold when the name is gone or has none.
    pub empty_grace: Span,
    /// DNS servers such as `10.96.0.10:53`; empty = those of
    /// `/etc/resolv.conf`.
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
    /// A and AAAA.
    A,
    /// SRV.
    Srv,
}

/// How engines are spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EndpointScheme {
    /// Plain.
    Http,
    /// TLS; the engines' certificates must hold their IP addresses.
    Https,
}

/// Endpoints of a Kubernetes Service, watched as its EndpointSlices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesSection {
    /// Name of the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Labels of the EndpointSlices, instead of `service`:
    /// `app=vllm,tier in (gpu)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Its namespace; absent = the one that the gateway runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Number or name of the engines' port; absent = the slices' only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<EndpointPort>,
    /// `http` or `https`.
    pub scheme: EndpointScheme,
    /// Port of the engines' metrics, when they have one of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub metrics_port: Option<u16>,
    /// Time between two full lists, beside the watch.
    pub resync: Span,
    /// Watch the cluster's Nodes, and take a taint or condition that says that one
    /// is about to go as a spot notice for the replicas there. Needs a ClusterRole
    /// that may list and watch Nodes (`config/kubernetes/components/pools/nodes.yaml`);
    /// absent = nodes are not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesSection>,
    /// URL of the API server; absent = that of the cluster the gateway runs
    /// in, with the token and the CA of its service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// File with the token for it, from this file's folder; it is read again
    /// for every request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// File with the certificates that its own must lead to, from this file's
    /// folder; absent = those of the system.
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
    /// Keys of taints, whatever their effect.
    pub taints: Vec<String>,
    /// Types of conditions with the status `True`; with `=` and a reason, only
    /// those that carry it.
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
