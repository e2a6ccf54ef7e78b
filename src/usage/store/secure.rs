//! TLS for PostgreSQL connections, on rustls like all other TLS of the gateway.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::ConfigVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;

use crate::tls;
use crate::usage::store::access::StoreError;

/// TLS configuration for PostgreSQL: it verifies the server's certificate.
#[derive(Clone)]
pub(super) struct PostgresTls(Arc<ClientConfig>);

/// TLS connector of one connection, with the server's name. The name is absent for a host that
/// cannot have a certificate, such as a local socket, which has no TLS.
pub(super) struct NamedConnector(Arc<ClientConfig>, Option<ServerName<'static>>);

pin_project! {
    /// TLS connection to PostgreSQL.
    pub(super) struct PostgresTlsStream<S> {
        #[pin]
        stream: tokio_rustls::client::TlsStream<S>,
    }
}

impl PostgresTls {
    /// Makes a configuration that trusts the authorities in `ca` (PEM), or those of the system.
    pub(super) fn new(ca: Option<&[u8]>) -> Result<Self, StoreError> {
        tls::install_provider();
        let config = match ca {
            None => ClientConfig::with_platform_verifier().map_err(|error| StoreError(error.to_string()))?,
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                let certs = CertificateDer::pem_slice_iter(pem).flatten();
                let (taken, _) = roots.add_parsable_certificates(certs);
                if taken == 0 {
                    return Err(StoreError("`ca_file` holds no certificate".into()));
                }
                ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
            }
        };
        Ok(Self(Arc::new(config)))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for PostgresTls {
    type Stream = PostgresTlsStream<S>;
    type TlsConnect = NamedConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<NamedConnector> {
        Ok(NamedConnector(Arc::clone(&self.0), ServerName::try_from(host.to_owned()).ok()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for NamedConnector {
    type Stream = PostgresTlsStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PostgresTlsStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = self.1.ok_or_else(|| io::Error::other("its host name can have no certificate"))?;
            let stream = TlsConnector::from(self.0).connect(name, stream).await?;
            Ok(PostgresTlsStream { stream })
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for PostgresTlsStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for PostgresTlsStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().stream.poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PostgresTlsStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.project().stream.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_shutdown(context)
    }
}
