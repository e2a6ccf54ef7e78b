//! Connection peer: the client at the other end of a connection, before its first request.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::tls::CertificateNames;

/// The address of a connected client and the names that its certificate proves.
#[derive(Debug, Clone)]
pub struct ConnectedClient {
    /// The client's end of the TCP connection.
    pub address: SocketAddr,
    /// The subject alternative names of the client's certificate. `None` if the client has no
    /// certificate that an authority of this listener signed.
    pub names: Option<Arc<CertificateNames>>,
}
