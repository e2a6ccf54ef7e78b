//! TLS of our listeners: handshakes, bounded in time and number, and what a
//! client's certificate says of it. What handshakes are made with is a part of
//! the settings.

mod address_group;
mod names;
mod stream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

pub use address_group::address_group;
pub use names::CertificateNames;
pub use stream::MaybeTlsStream;

/// What new connections of a listener get; `None` = no TLS. Asked for each
/// connection, so that a new certificate counts at once and no connection is
/// dropped for it.
pub type CertificateSource = Arc<dyn Fn() -> Option<Arc<ServerConfig>> + Send + Sync>;

/// Why there is no connection. It holds nothing that the client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HandshakeError {
    /// The client was too slow, or too many handshakes were under way.
    #[error("no handshake in time")]
    Timeout,
    /// The client has no certificate, or not one that the listener's
    /// authorities have signed.
    #[error("no certificate that is valid here")]
    Certificate,
    /// The client does not speak TLS; mostly it uses `http://`.
    #[error("not TLS")]
    NotTls,
    /// The client did not like what it was offered; mostly it does not know
    /// the authority of our certificate.
    #[error("given up by the client")]
    GivenUp,
    /// There is no version or cipher that both sides know.
    #[error("no version or cipher in common, or a broken message")]
    Protocol,
    /// The client went away.
    #[error("closed by the client")]
    Closed,
}

impl HandshakeError {
    /// A stable name for logs and metric labels.
    #[must_use]
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
    free: Semaphore,
    limit: Duration,
}

impl Handshakes {
    /// At most `at_once` (at least one), each of at most `limit`, the wait for
    /// its turn included.
    #[must_use]
    pub fn new(at_once: usize, limit: Duration) -> Self {
        Self { free: Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)), limit }
    }

    /// Makes the connection that a listener serves: as it is without `config`,
    /// else by a handshake. With it comes what the client's certificate says,
    /// where it has one.
    ///
    /// # Errors
    /// The handshake failed; the connection is closed.
    pub async fn welcome(
        &self,
        tcp: TcpStream,
        config: Option<Arc<ServerConfig>>,
    ) -> Result<(MaybeTlsStream, Option<Arc<CertificateNames>>), HandshakeError> {
        let Some(config) = config else { return Ok((MaybeTlsStream::Plain(tcp), None)) };
        let handshake = async {
            // Whoever says nothing takes nobody's turn.
            let hello = LazyConfigAcceptor::new(Acceptor::default(), tcp).await?;
            let _turn = self.free.acquire().await;
            hello.into_stream(config).await
        };
        let stream = match timeout(self.limit, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(HandshakeError::of(&error)),
            Err(_) => return Err(HandshakeError::Timeout),
        };
        let certs = stream.get_ref().1.peer_certificates();
        let names = certs.and_then(<[_]>::first).map(|cert| Arc::new(CertificateNames::of(cert)));
        Ok((MaybeTlsStream::Tls(Box::new(stream)), names))
    }
}

/// Makes aws-lc the provider of every TLS client that chooses none. A
/// provider that is already there stays.
pub fn install_provider() {
    let already_there = rustls::crypto::aws_lc_rs::default_provider().install_default().is_err();
    if already_there {
        tracing::debug!("a TLS provider was installed before");
    }
}
