//! Settings of what several gateways share.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::config::secret::Secret;
use crate::config::settings::identity::ClientTls;
use crate::config::settings::shown;

/// What this gateway shares with others, and through what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterSettings {
    /// The store. A new connection uses the credentials and certificates as they are then. Another
    /// server or database takes effect only at a start.
    pub valkey: ValkeySettings,
    /// Beginning of all keys in the store. Takes effect only at a start.
    pub prefix: String,
    /// How long the last leases are used while the store is away. Takes effect only at a start.
    #[serde(serialize_with = "shown::seconds")]
    pub outage: Duration,
}

/// Where Valkey or Redis is, and who this gateway is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ValkeySettings {
    #[serde(flatten)]
    pub servers: StoreServers,
    /// Number of the database.
    pub database: i64,
    /// Whether connections use TLS.
    #[serde(rename = "tls")]
    pub is_tls: bool,
    /// Certificates; absent = what the system trusts.
    #[serde(skip)]
    pub tls: Option<ClientTls>,
    /// For the servers that have the data.
    #[serde(flatten)]
    pub credentials: StoreCredentials,
    /// For sentinels.
    pub sentinel_credentials: StoreCredentials,
}

/// How the servers that have the data are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreServers {
    /// It is one server.
    Server(ServerAddress),
    /// Some nodes of a Valkey cluster. They know the others.
    Nodes(Vec<ServerAddress>),
    /// Sentinels, and the name under which they watch the primary.
    Sentinels { sentinels: Vec<ServerAddress>, primary: String },
}

/// A server of the store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerAddress {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Serialize for ServerAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Who this gateway is at a server of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StoreCredentials {
    /// User of the store's ACL; absent = the default user.
    pub username: Option<String>,
    pub password: Option<Secret>,
}
