//! Replica sources beside the file's list, as the rest of the program uses them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;

use crate::core::model::policy::Replica;

pub use crate::config::sections::pools::discover::{DnsRecords, EndpointPort, EndpointScheme};

/// Replicas that a pool may have at most.
pub const MAX_REPLICAS: usize = 10_000;

/// Where more replicas of a pool come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Discovery {
    /// Whom to ask.
    pub source: ReplicaSource,
    /// What the core knows of each replica that is found.
    pub row: Replica,
}

/// Whom to ask for replicas. A source that changes starts anew.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplicaSource {
    /// DNS.
    Dns(DnsSource),
    /// A Kubernetes API server.
    Kubernetes(KubernetesSource),
}

impl ReplicaSource {
    /// A short stable name for logs, metrics and the admin API.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Dns(_) => "dns",
            Self::Kubernetes(_) => "kubernetes",
        }
    }
}

/// Addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSource {
    pub name: String,
    /// What to ask for.
    pub records: DnsRecords,
    /// Port of the engines; 0 with SRV records, which have their own.
    pub port: u16,
    /// How URLs are made.
    pub form: EndpointForm,
    /// Shortest time between two questions; not zero.
    pub min_refresh: Duration,
    /// Longest time between two questions; not below `min_refresh`.
    pub max_refresh: Duration,
    /// How long the last addresses hold when there are none any more.
    pub empty_grace: Duration,
    /// DNS servers; empty = the system's.
    pub servers: Vec<SocketAddr>,
}

/// Endpoints of a Kubernetes Service.
#[derive(Debug, Clone, PartialEq)]
pub struct KubernetesSource {
    /// The label selector of its EndpointSlices.
    pub selector: String,
    /// Its namespace; absent = that of the service account.
    pub namespace: Option<String>,
    /// The engines' port; absent = the slices' only one.
    pub port: Option<EndpointPort>,
    /// How URLs are made.
    pub form: EndpointForm,
    /// Time between two full lists.
    pub resync: Duration,
    /// What tells that a node is about to go; absent = nodes are not looked at.
    pub nodes: Option<NodeNotices>,
    /// The API server; absent when the gateway does not run in a cluster and
    /// the file names none.
    pub server: Option<Uri>,
    /// Where its token is, read for every request.
    pub token_file: Option<PathBuf>,
    /// The certificates that its own must lead to; absent = the system's.
    pub ca_file: Option<PathBuf>,
}

/// What tells that a Kubernetes node is about to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNotices {
    /// Keys of taints.
    pub taints: Vec<String>,
    /// Types of conditions that are true, each perhaps with `=` and a reason.
    pub conditions: Vec<String>,
}

/// How the URL of an endpoint is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointForm {
    /// `http` or `https`.
    pub scheme: EndpointScheme,
    /// Port of the metrics, when they have one of their own.
    pub metrics_port: Option<u16>,
}

impl EndpointForm {
    /// The endpoint at a host (an IPv6 address without brackets) and port;
    /// `None` when they make no URL.
    pub fn endpoint(&self, host: &str, port: u16) -> Option<Endpoint> {
        let scheme = match self.scheme {
            EndpointScheme::Http => "http",
            EndpointScheme::Https => "https",
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let url = |port: u16| format!("{scheme}://{host}:{port}").parse::<Uri>().ok();
        let fits = |uri: &Uri| uri.host() == Some(&host) && !host.is_empty() && port > 0;
        let metrics_url = match self.metrics_port {
            Some(port) => Some(url(port)?),
            None => None,
        };
        Some(Endpoint {
            url: url(port).filter(fits)?,
            metrics_url,
            zone: None,
            draining: false,
            spot_notice: false,
        })
    }
}

/// A replica that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its base URL.
    pub url: Uri,
    /// Where its metrics are, when they have a port of their own.
    pub metrics_url: Option<Uri>,
    /// The zone that it is in, where that is known.
    pub zone: Option<Arc<str>>,
    /// Whether it is about to go.
    pub draining: bool,
    /// As `Drained`, since the machine will be taken away.
    pub spot_notice: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_urls() {
        let form = EndpointForm { scheme: EndpointScheme::Https, metrics_port: Some(8002) };
        let one = form.endpoint("fd00::5", 8000).unwrap();
        assert_eq!(one.url.to_string(), "https://[fd00::5]:8000/");
        assert_eq!(one.metrics_url.unwrap().to_string(), "https://[fd00::5]:8002/");
        let form = EndpointForm { scheme: EndpointScheme::Http, metrics_port: None };
        assert_eq!(form.endpoint("10.0.0.5", 80).unwrap().url.to_string(), "http://10.0.0.5:80/");
        for (host, port) in [("", 1), ("10.0.0.5", 0), ("a b", 1), ("a/b", 1), ("a?b", 1), ("u@h", 1)] {
            assert_eq!(form.endpoint(host, port), None, "{host}:{port}");
        }
    }
}
