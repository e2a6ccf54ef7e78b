//! Settings of what several gateways share.

use std::time::Duration;

use serde::Serialize;

use crate::config::secret::Secret;
use crate::config::settings::identity::ClientTls;
use crate::config::settings::shown;

/// What this gateway shares with others, and through what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterSettings {
    /// The store. A new connection uses the credentials and certificates as they are then. Another
    /// host, port or database takes effect only at a start.
    pub valkey: ValkeySettings,
    /// Beginning of all keys in the store. Takes effect only at a start.
    pub prefix: String,
    /// How long the last leases are used while the store is away. Takes effect only at a start.
    #[serde(serialize_with = "shown::seconds")]
    pub outage: Duration,
}

/// Where Valkey or Redis is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ValkeySettings {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    pub port: u16,
    /// Number of the database.
    pub database: i64,
    /// Whether connections use TLS.
    #[serde(rename = "tls")]
    pub is_tls: bool,
    /// Certificates; absent = what the system trusts.
    #[serde(skip)]
    pub tls: Option<ClientTls>,
    /// User of the store's ACL; absent = the default user.
    pub username: Option<String>,
    pub password: Option<Secret>,
}
