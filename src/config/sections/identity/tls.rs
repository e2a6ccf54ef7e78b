//! Sections `server.tls`, `admin.tls` and `scale.tls`: the certificate files of a listener, and
//! what handshakes are made with.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use x509_parser::parse_x509_certificate;

use crate::config::secret::SecretReader;
use crate::config::settings::identity::ListenerTls;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;

const PATHS: &str = "paths start at this file's folder";
/// What a listener speaks, the best first.
pub(in crate::config) const CLIENTS: &[&[u8]] = &[b"h2", b"http/1.1"];
pub(in crate::config) const OPERATORS: &[&[u8]] = &[b"http/1.1"];
pub(in crate::config) const SCALER: &[&[u8]] = &[b"h2"];

/// TLS of a listener. The gateway reads the files again when they change: new connections use the
/// new files, and open ones stay. Broken files leave the last good files in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::tls)]
pub struct TlsSection {
    /// Path of a PEM file with the listener's certificate, followed by the certificates that lead
    /// to its authority.
    pub cert: String,
    /// Path of a PEM file with the private key of `cert`.
    pub key: String,
    /// Path of a PEM file with the authorities that may sign clients' certificates. Absent = the
    /// listener asks clients for no certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<String>,
    /// Whether a client needs a certificate of `client_ca` to connect. `false` = a client may
    /// connect without a certificate.
    pub require_client_cert: bool,
    /// Oldest version of TLS that clients may use.
    pub min_version: TlsVersion,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    V12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V13,
}

impl<'de> Deserialize<'de> for TlsVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "1.2" => Ok(Self::V12),
            "1.3" => Ok(Self::V13),
            _ => Err(serde::de::Error::custom(format!(
                "{text:?} is not a version of TLS that can be asked for\nwrite '1.2' or '1.3'"
            ))),
        }
    }
}

impl JsonSchema for TlsVersion {
    fn schema_name() -> Cow<'static, str> {
        "TlsVersion".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A version of TLS.", "enum": ["1.2", "1.3"] })
    }
}

/// Reads the files of a listener; `alpn` names what it speaks.
pub(in crate::config) fn validate(
    tls: Option<&TlsSection>,
    alpn: &[&[u8]],
    section: &str,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<ListenerTls> {
    let tls = tls?;
    let field = FieldPath::top(section).key("tls");
    let mut read = |key: &str, path: Option<&str>| -> Option<Vec<u8>> {
        let path = path?;
        let field = field.key(key);
        if path.is_empty() {
            findings.error(&field, "is missing", "name a PEM file");
            return None;
        }
        secrets.bytes(path).map_err(|message| findings.error(&field, message, PATHS)).ok()
    };
    let cert = read("cert", Some(&tls.cert));
    let key = read("key", Some(&tls.key));
    let authorities = read("client_ca", tls.client_ca.as_deref());
    if tls.require_client_cert && tls.client_ca.is_none() {
        let hint = "name the authorities in `client_ca`";
        findings.error(&field.key("require_client_cert"), "says no certificate of whom", hint);
    }
    if tls.client_ca.is_some() && authorities.is_none() {
        return None;
    }
    let files = TlsFiles { cert: &cert?, key: &key?, authorities: authorities.as_deref() };
    files.build(tls, alpn).map_err(|(key, message, hint)| findings.error(&field.key(key), message, hint)).ok()
}

/// What the files hold.
struct TlsFiles<'a> {
    cert: &'a [u8],
    key: &'a [u8],
    authorities: Option<&'a [u8]>,
}

/// The key at fault, what is wrong with it, and what to do.
type TlsFault = (&'static str, String, &'static str);

impl TlsFiles<'_> {
    fn build(&self, tls: &TlsSection, alpn: &[&[u8]]) -> Result<ListenerTls, TlsFault> {
        let chain = chain(self.cert).ok_or_else(|| {
            ("cert", format!("the file {:?} holds no certificate", tls.cert), "name a PEM file")
        })?;
        let ends = ends(&chain[0]).ok_or_else(|| {
            ("cert", format!("the certificate in {:?} cannot be read", tls.cert), "name a PEM file")
        })?;
        let key = PrivateKeyDer::from_pem_slice(self.key).map_err(|_| {
            ("key", format!("the file {:?} holds no private key", tls.key), "name a PEM file")
        })?;
        let verifier = self.authorities.map(|pem| verifier(pem, tls)).transpose()?;
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&versions(tls.min_version))
            .map_err(|error| ("min_version", error.to_string(), "write '1.2' or '1.3'"))?;
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|_| {
            let message =
                format!("the key in {:?} is not that of the certificate in {:?}", tls.key, tls.cert);
            ("key", message, "name the two files that belong together")
        })?;
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let rules = [u8::from(tls.require_client_cert), u8::from(tls.min_version == TlsVersion::V13)];
        let mut hash = blake3::Hasher::new();
        for part in [self.cert, self.key, self.authorities.unwrap_or_default(), &rules] {
            hash.update(blake3::hash(part).as_bytes());
        }
        Ok(ListenerTls { config: Arc::new(config), ends, digest: *hash.finalize().as_bytes() })
    }
}

pub(in crate::config) fn chain(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!chain.is_empty()).then_some(chain)
}

fn ends(cert: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = parse_x509_certificate(cert).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// The authorities of a PEM file. The error is a sentence for people.
pub(in crate::config) fn authorities(pem: &[u8], path: &str) -> Result<RootCertStore, String> {
    let none = || format!("the file {path:?} holds no certificate of an authority");
    let mut roots = RootCertStore::empty();
    for cert in chain(pem).ok_or_else(none)? {
        roots.add(cert).map_err(|_| none())?;
    }
    Ok(roots)
}

fn verifier(pem: &[u8], tls: &TlsSection) -> Result<Arc<dyn ClientCertVerifier>, TlsFault> {
    let path = tls.client_ca.as_deref().unwrap_or_default();
    let roots = authorities(pem, path).map_err(|message| ("client_ca", message, "name a PEM file"))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if tls.require_client_cert { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| ("client_ca", format!("the file {path:?}: {error}"), "name a PEM file"))
}

fn versions(least: TlsVersion) -> Vec<&'static SupportedProtocolVersion> {
    match least {
        TlsVersion::V12 => vec![&TLS13, &TLS12],
        TlsVersion::V13 => vec![&TLS13],
    }
}
