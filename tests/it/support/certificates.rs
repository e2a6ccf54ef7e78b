//! Certificates for tests, and clients that use them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::client::{Answer, Call, Session};
use crate::support::gateway::soon;

/// An authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, both PEM.
pub(crate) struct Leaf {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A name of its own: OpenSSL takes a certificate for self-signed whose issuer has the same name.
        params.distinguished_name.push(DnType::CommonName, "authority of the tests");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate of a server at 127.0.0.1.
    pub(crate) fn server(&self) -> Leaf {
        self.leaf(vec![SanType::IpAddress([127, 0, 0, 1].into())])
    }

    /// A certificate with such names.
    pub(crate) fn leaf(&self, names: Vec<SanType>) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.subject_alt_names = names;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Leaf { cert: params.signed_by(&key, &self.0).unwrap().pem(), key: key.serialize_pem() }
    }

    /// A client that trusts this authority.
    pub(crate) fn client(&self, own: Option<&Leaf>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(leaf) => {
                let cert = CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }
}

impl Leaf {
    /// Writes it as `<name>.crt` and `<name>.key`, each at once.
    pub(crate) fn put(&self, folder: &Path, name: &str) {
        for (end, text) in [("crt", &self.cert), ("key", &self.key)] {
            put(&folder.join(format!("{name}.{end}")), text);
        }
    }
}

/// Replaces a file at once.
pub(crate) fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

pub(crate) fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

/// A TLS connection.
pub(crate) async fn connect(to: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(to).await?;
    let name = ServerName::from(to.ip());
    soon("a handshake", TlsConnector::from(Arc::clone(config)).connect(name, tcp)).await
}

/// One request over TLS.
pub(crate) async fn send(to: SocketAddr, config: &Arc<ClientConfig>, call: Call) -> Answer {
    Session::over(connect(to, config).await.unwrap()).await.call(call).await
}
