//! The scale signal: `scale`, and what else gateways share: `cluster`.

pub(in crate::config) mod check;
pub mod cluster;
pub(in crate::config) mod peers;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::sections::identity::tls::TlsSection;
use crate::config::sections::server::ListenAddress;
use crate::config::syntax::units::Span;

/// KEDA's external scaler (gRPC): tells how many replicas each pool needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct ScaleSection {
    /// Where KEDA connects: an IP address and a port. Absent = no scaler; the
    /// numbers are on the admin port in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<ListenAddress>,
    /// TLS of `listen`; absent = none. KEDA shows a certificate where a
    /// TriggerAuthentication gives it one, and has no other credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSection>,
    /// Certificates that may connect, by a subject alternative name; absent =
    /// all that `tls.client_ca` has signed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_certs: Vec<ScalerCertSection>,
    /// Age at which what is known of the pools is not told any more: KEDA and
    /// the HPA then hold what they have.
    pub stale_after: Span,
    /// Streams of `external-push` triggers that may be open at once.
    #[schemars(range(min = 1, max = 10000))]
    pub max_streams: u32,
    /// A file that keeps the demand that was seen over a restart: how fast
    /// replicas are, how long they take to start, and the profiles of
    /// `GET /admin/v1/demand`. Written once a minute and at the end. Absent = a
    /// start knows nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_file: Option<String>,
    /// The other gateways behind the same Service: together they name one
    /// number. For gateways without `cluster`, whose store does it. Absent
    /// without both = this one serves all of the demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersSection>,
}

impl Default for ScaleSection {
    fn default() -> Self {
        Self {
            listen: None,
            tls: None,
            client_certs: Vec::new(),
            stale_after: Span::secs(10),
            max_streams: 1000,
            state_file: None,
            peers: None,
        }
    }
}

/// Where the scalers (`scale.listen`) of all gateways are: `urls`, `dns` or
/// both. This gateway may be among them; it knows itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PeersSection {
    /// Their URLs, such as `https://penstock-0.penstock:8082`; at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// Their addresses by DNS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<PeersDnsSection>,
    /// A PEM file with the authorities of their certificates; with it, `dns`
    /// means TLS, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// A PEM file with the certificate that this gateway shows them. Where they
    /// have `client_certs`, one of its names must be among those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<String>,
    /// The PEM file with its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Addresses of gateways.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PeersDnsSection {
    /// The name, such as that of a headless Service. With TLS it must be one of
    /// their certificates' names.
    pub name: String,
    /// Port of their scalers.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// DNS servers such as `10.96.0.10:53`; empty = those of
    /// `/etc/resolv.conf`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
}

/// A certificate that may ask the scaler: exactly one of `dns`, `uri` and
/// `email`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScalerCertSection {
    /// A DNS name, such as `keda-operator.keda.svc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// A URI, such as `spiffe://example.com/ns/keda/sa/keda-operator`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// An e-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}
