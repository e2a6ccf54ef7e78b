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
    /// Address of the scaler for KEDA (gRPC): an IP address and a port. Absent = no scaler; the
    /// numbers are on the admin port in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<ListenAddress>,
    /// TLS of the scaler (`scale.listen`). Absent = the scaler takes connections without TLS. KEDA
    /// shows a certificate where a TriggerAuthentication gives KEDA one, and has no other
    /// credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSection>,
    /// Client certificates that may connect to the scaler, by a subject alternative name. Absent =
    /// all certificates that an authority of `scale.tls.client_ca` has signed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub client_certs: Vec<ScalerCertSection>,
    /// Age of the last known state of the pools from which on the scaler answers with an error.
    /// KEDA and the HPA then keep the current number of replicas.
    pub stale_after: Span,
    /// Streams of `external-push` triggers that may be open at the scaler at once. A further stream
    /// is refused.
    #[schemars(range(min = 1, max = 10000))]
    pub max_streams: u32,
    /// Path of a file that keeps the measured demand over a restart: how fast replicas are, how
    /// long they take to start, and the profiles of `GET /admin/v1/demand`. The gateway writes the
    /// file once a minute and at its end. Absent = a start knows nothing of the past.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_file: Option<String>,
    /// The other gateways behind the same Service, for gateways without `cluster`: the gateways
    /// exchange what they see, and all tell KEDA the same number. With `cluster`, the store does
    /// this and the section is not used. Absent without `cluster` = this gateway takes its own
    /// demand for the whole.
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
    /// URLs of the gateways' scalers (`scale.listen`), such as `https://penstock-0.penstock:8082`;
    /// at most 64. This gateway may be among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// DNS name whose addresses are those of the gateways, beside or in place of `urls`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<PeersDnsSection>,
    /// Path of a PEM file with the authorities that may sign the gateways' certificates. With `ca`,
    /// connections to the addresses of `dns` use TLS. Absent = connections without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Path of a PEM file with the certificate that this gateway shows to the other gateways. Where
    /// the other gateways have `scale.client_certs`, one of the certificate's names must be in that
    /// list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<String>,
    /// Path of a PEM file with the private key of `cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Addresses of gateways.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PeersDnsSection {
    /// DNS name whose addresses are those of the gateways, such as the name of a headless Service.
    /// With `scale.peers.ca`, the gateways' certificates must have this name.
    pub name: String,
    /// Port of the gateways' scalers (`scale.listen`) at the addresses of `name`. Required.
    #[schemars(range(min = 1))]
    pub port: u16,
    /// DNS servers to ask, such as `10.96.0.10:53`. Empty = the servers of `/etc/resolv.conf`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<String>,
}

/// A certificate that may ask the scaler: exactly one of `dns`, `uri` and
/// `email`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScalerCertSection {
    /// DNS name among the certificate's subject alternative names, such as
    /// `keda-operator.keda.svc`. An entry has exactly one of `dns`, `uri` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// URI among the certificate's subject alternative names, such as
    /// `spiffe://example.com/ns/keda/sa/keda-operator`. An entry has exactly one of `dns`, `uri`
    /// and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// E-mail address among the certificate's subject alternative names. An entry has exactly one
    /// of `dns`, `uri` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}
