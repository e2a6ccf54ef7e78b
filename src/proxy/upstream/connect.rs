//! Opening of connections to engines: plain TCP or TLS.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::config::settings::identity::ClientTls;
use crate::tls::MaybeTlsStream;

/// The byte stream of a connection to an engine.
pub(super) type UpstreamStream = MaybeTlsStream<TlsStream<TcpStream>>;

/// TLS of connections to one engine.
#[derive(Debug)]
pub(super) struct UpstreamTls {
    /// The name that its certificate must have.
    pub(super) name: Box<str>,
    /// TLS of its pool. `None` = the system's authorities.
    pub(super) own: Option<ClientTls>,
}

/// Opens a connection. `tls` = `None` means plain TCP.
pub(super) async fn connect(address: &str, tls: Option<&UpstreamTls>) -> io::Result<UpstreamStream> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let Some(UpstreamTls { name, own }) = tls else {
        return Ok(UpstreamStream::Left(tcp));
    };
    let name = ServerName::try_from(name.to_string()).map_err(io::Error::other)?;
    let config = own.as_ref().map_or_else(tls_config, |own| Ok(Arc::clone(&own.config)))?;
    let stream = TlsConnector::from(config).connect(name, tcp).await?;
    Ok(UpstreamStream::Right(Box::new(stream)))
}

fn tls_config() -> io::Result<Arc<ClientConfig>> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, String>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        // An error here only means that a provider is already installed.
        let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        ClientConfig::with_platform_verifier().map(Arc::new).map_err(|error| error.to_string())
    });
    config.clone().map_err(io::Error::other)
}
