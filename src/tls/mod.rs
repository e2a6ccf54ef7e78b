//! TLS of the listeners: handshakes bounded in time, and in number by address, the names in a client's
//! certificate, and the places that one address may hold at a listener. The TLS configuration that
//! handshakes use is part of the settings.

mod address_group;
mod address_limit;
mod connection_places;
mod names;
mod stream;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

pub use address_group::address_group;
pub use address_limit::{AddressLimit, AddressPermit};
pub use connection_places::{ConnectionPlace, ConnectionPlaces, OpenCall};
pub use names::CertificateNames;
pub use stream::MaybeTlsStream;

/// Source of the TLS configuration of a listener; `None` = no TLS. The listener asks for each
/// connection, so a new certificate applies at once and no connection is dropped for it.
pub type CertificateSource = Arc<dyn Fn() -> Option<Arc<ServerConfig>> + Send + Sync>;

/// The reason why a handshake failed. It holds nothing that the client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HandshakeError {
    /// The client was too slow, or its address had too many handshakes open.
    #[error("no handshake in time")]
    Timeout,
    /// The client has no certificate, or one that none of the listener's authorities has signed.
    #[error("no certificate that is valid here")]
    Certificate,
    /// The client does not speak TLS; most such clients use `http://`.
    #[error("not TLS")]
    NotTls,
    /// The client refused the gateway's offer. Most such clients do not know the authority of the
    /// gateway's certificate.
    #[error("given up by the client")]
    GivenUp,
    /// The two sides have no version or cipher in common, or a message is broken.
    #[error("no version or cipher in common, or a broken message")]
    Protocol,
    /// The client closed the connection.
    #[error("closed by the client")]
    Closed,
}

impl HandshakeError {
    /// A stable name for logs and metric labels.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Certificate => "certificate",
            Self::NotTls => "not_tls",
            Self::GivenUp => "given_up",
            Self::Protocol => "protocol",
            Self::Closed => "closed",
        }
    }

    fn of(error: &io::Error) -> Self {
        use rustls::Error as Tls;
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>());
        match inner {
            None => Self::Closed,
            Some(Tls::InvalidCertificate(_) | Tls::NoCertificatesPresented) => Self::Certificate,
            Some(Tls::InvalidMessage(_)) => Self::NotTls,
            Some(Tls::AlertReceived(_)) => Self::GivenUp,
            Some(_) => Self::Protocol,
        }
    }
}

/// The handshakes of one listener.
#[derive(Debug)]
pub struct Handshakes {
    by_address: Arc<AddressLimit>,
    limit: Duration,
}

impl Handshakes {
    /// Lets each address have `of_one_address` handshakes open (at least one). Each may take `limit`,
    /// the wait for its place included.
    pub fn new(of_one_address: usize, limit: Duration) -> Self {
        Self { by_address: AddressLimit::new(of_one_address), limit }
    }

    /// Makes the stream that a listener serves: plain without `config`, else by a TLS handshake.
    /// The names are those of the client's certificate; absent where the client has none.
    ///
    /// # Errors
    /// The handshake failed; the connection is closed.
    pub async fn accept(
        &self,
        tcp: TcpStream,
        peer: IpAddr,
        config: Option<Arc<ServerConfig>>,
    ) -> Result<(MaybeTlsStream, Option<Arc<CertificateNames>>), HandshakeError> {
        let Some(config) = config else { return Ok((MaybeTlsStream::Left(tcp), None)) };
        let handshake = async {
            // A client that sends nothing takes no place from others of its address.
            let hello = LazyConfigAcceptor::new(Acceptor::default(), tcp).await?;
            let _place = self.by_address.enter(peer).await;
            hello.into_stream(config).await
        };
        let stream = match timeout(self.limit, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(HandshakeError::of(&error)),
            Err(_) => return Err(HandshakeError::Timeout),
        };
        let certs = stream.get_ref().1.peer_certificates();
        let names = certs.and_then(<[_]>::first).map(|cert| Arc::new(CertificateNames::of(cert)));
        Ok((MaybeTlsStream::Right(Box::new(stream)), names))
    }
}

/// Makes aws-lc the default provider of TLS clients. A provider that is installed already stays.
pub fn install_provider() {
    let already_there = rustls::crypto::aws_lc_rs::default_provider().install_default().is_err();
    if already_there {
        tracing::debug!("a TLS provider was installed before");
    }
}
