//! TLS in front of a server of the tests.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::support::certificates::{Authority, Leaf};

/// Ends TLS and passes bytes on. Dropping it closes its port.
pub(crate) struct TlsFront {
    pub(crate) address: SocketAddr,
    /// The server name of each handshake that succeeded.
    names: Arc<Mutex<Vec<Option<String>>>>,
    serving: JoinHandle<()>,
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl TlsFront {
    /// Shows `own`; with `clients`, asks for a certificate of that authority.
    pub(crate) async fn start(own: &Leaf, clients: Option<&Authority>, behind: SocketAddr) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let cert = CertificateDer::from_pem_slice(own.cert.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(vec![cert], key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let names = Arc::<Mutex<Vec<Option<String>>>>::default();
        let kept = Arc::clone(&names);
        let serving = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (acceptor, kept) = (acceptor.clone(), Arc::clone(&kept));
                tokio::spawn(async move {
                    let Ok(mut client) = acceptor.accept(socket).await else { return };
                    kept.lock().push(client.get_ref().1.server_name().map(str::to_owned));
                    let mut server = TcpStream::connect(behind).await.unwrap();
                    let _ended = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { address, names, serving }
    }

    /// The server name of each handshake that succeeded.
    pub(crate) fn names(&self) -> Vec<Option<String>> {
        self.names.lock().clone()
    }
}
