//! TLS of connections that the gateway opens: the authorities that it trusts, the certificate that it
//! shows, and the name that it asks for.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::secret::SecretReader;
use crate::config::sections::identity::tls;
use crate::config::settings::identity::ClientTls;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;

const PEM: &str = "name a PEM file; paths start at this file's folder";

/// TLS of connections that the gateway opens. The gateway reads the files again when they change,
/// and new connections use what the files then hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::client_tls)]
pub struct ClientTlsSection {
    /// Path of a PEM file with the authorities that may sign the other side's certificate. The
    /// gateway trusts no other authority.
    pub ca: String,
    /// Path of a PEM file with the certificate that the gateway shows. Absent = the gateway shows
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<String>,
    /// Path of a PEM file with the private key of `cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Name that the other side's certificate must have; the gateway also sends the name as server
    /// name (SNI). Absent = the host of the URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

/// Reads the files of the section.
pub(in crate::config) fn validate(
    written: Option<&ClientTlsSection>,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<ClientTls> {
    let written = written?;
    let name = written.server_name.as_deref();
    if name.is_some_and(|name| !matches!(ServerName::try_from(name), Ok(ServerName::DnsName(_)))) {
        let hint = "write a DNS name such as engines.internal";
        findings.error(&field.key("server_name"), "is no name of a host", hint);
    }
    let paths = CertificatePaths {
        ca: Some(&written.ca),
        cert: written.cert.as_deref(),
        key: written.key.as_deref(),
    };
    let tls = paths.read(&[], field, secrets, findings)?;
    Some(ClientTls { server_name: name.map(Arc::from), ..tls })
}

/// Paths of the files of a client.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct CertificatePaths<'a> {
    pub(in crate::config) ca: Option<&'a str>,
    pub(in crate::config) cert: Option<&'a str>,
    pub(in crate::config) key: Option<&'a str>,
}

/// Certificate that the gateway shows, and its private key, as the PEM files hold them.
#[derive(Debug, Clone, Copy, Default)]
struct ShownCertificate<'a> {
    cert: &'a [u8],
    key: &'a [u8],
}

/// The key at fault, and what is wrong with it.
type CertificateFault = (&'static str, String);

impl CertificatePaths<'_> {
    /// Reads the files; `None` without any, or with a fault, which is reported. `alpn` names what
    /// the gateway speaks.
    pub(in crate::config) fn read(
        &self,
        alpn: &[&[u8]],
        field: &FieldPath,
        secrets: &mut SecretReader<'_>,
        findings: &mut Findings<'_>,
    ) -> Option<ClientTls> {
        let missing = match (self.ca, self.cert, self.key) {
            (None, Some(_), _) | (None, _, Some(_)) => {
                Some(("ca", "name the authorities of the other side's certificates"))
            }
            (_, Some(_), None) => Some(("key", "name the certificate's key")),
            (_, None, Some(_)) => Some(("cert", "name the key's certificate")),
            _ => None,
        };
        if let Some((key, hint)) = missing {
            findings.error(&field.key(key), "is missing", hint);
            return None;
        }
        let mut read = |key: &'static str, path: Option<&str>| -> Option<Option<Vec<u8>>> {
            let Some(path) = path else { return Some(None) };
            let found = if path.is_empty() { Err("is missing".to_owned()) } else { secrets.bytes(path) };
            found.map_err(|message| findings.error(&field.key(key), message, PEM)).ok().map(Some)
        };
        let [ca, cert, key] = [read("ca", self.ca), read("cert", self.cert), read("key", self.key)];
        let (ca, cert, key) = (ca??, cert?, key?);
        let own = cert.as_deref().zip(key.as_deref()).map(|(cert, key)| ShownCertificate { cert, key });
        let made = self.build(&ca, own, alpn);
        made.map_err(|(key, message)| findings.error(&field.key(key), message, PEM)).ok()
    }

    fn build(
        &self,
        ca: &[u8],
        own: Option<ShownCertificate<'_>>,
        alpn: &[&[u8]],
    ) -> Result<ClientTls, CertificateFault> {
        let roots = tls::authorities(ca, self.ca.unwrap_or_default()).map_err(|message| ("ca", message))?;
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| ("ca", error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(ShownCertificate { cert, key }) => {
                let (files, keys) = (self.cert.unwrap_or_default(), self.key.unwrap_or_default());
                let chain = tls::chain(cert)
                    .ok_or_else(|| ("cert", format!("the file {files:?} holds no certificate")))?;
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|_| ("key", format!("the file {keys:?} holds no private key")))?;
                let made = builder.with_client_auth_cert(chain, key);
                made.map_err(|_| {
                    ("key", format!("the key in {keys:?} is not that of the certificate in {files:?}"))
                })?
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let mut hash = blake3::Hasher::new();
        let ShownCertificate { cert, key } = own.unwrap_or_default();
        for part in [ca, cert, key] {
            hash.update(blake3::hash(part).as_bytes());
        }
        Ok(ClientTls { config: Arc::new(config), server_name: None, digest: *hash.finalize().as_bytes() })
    }
}
