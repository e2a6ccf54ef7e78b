//! The scale signal.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::config::discover::DnsSource;
use crate::config::settings::identity::ClientTls;
use crate::config::settings::shown;

/// How the scale signal is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScaleSettings {
    /// Where KEDA connects; absent = nowhere. Takes effect only at a start.
    pub listen: Option<SocketAddr>,
    /// Streams that may be open at once. Takes effect only at a start.
    pub max_streams: usize,
    /// Subject alternative names, one of which a client's certificate must
    /// have; absent = none is asked for beyond TLS.
    #[serde(rename = "client_certs")]
    pub names: Option<BTreeSet<String>>,
    /// Keeps the demand that was seen over a restart; absent = nothing does.
    /// Takes effect only at a start.
    #[serde(serialize_with = "shown::path")]
    pub state_file: Option<PathBuf>,
    /// Age at which what is known is not told any more.
    #[serde(serialize_with = "shown::seconds")]
    pub stale_after: Duration,
    /// The other gateways that serve the same demand; absent = none.
    #[serde(skip)]
    pub peers: Option<PeerSettings>,
}

/// The other gateways, this one perhaps among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSettings {
    /// Where some are. Takes effect only at a start.
    pub listed: BTreeSet<PeerAddress>,
    /// The name that leads to more of them; absent = there are no more. Takes
    /// effect only at a start.
    pub named: Option<DnsSource>,
    /// What connections to them are made with; absent = no TLS.
    pub tls: Option<ClientTls>,
}

/// Where a gateway's scaler is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerAddress {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    pub port: u16,
    /// The name that its certificate must have; absent = no TLS.
    pub certified: Option<String>,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}
