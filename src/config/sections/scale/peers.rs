//! Check of `scale.peers`: the other gateways.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;

use crate::config::discover::{DnsRecords, DnsSource, EndpointForm, EndpointScheme};
use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::identity::tls;
use crate::config::sections::pools::discover::check::{is_name, servers};
use crate::config::sections::scale::{PeersDnsSection, PeersSection};
use crate::config::settings::scale::{self, PeerPlace, PeerTls};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::url;
use crate::core::autoscale::peers::MAX_PEERS;

/// Times between two questions.
const REFRESH: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// How long the last addresses hold when there are none any more.
const GRACE: Duration = Duration::from_secs(10);
const PEM: &str = "name a PEM file; paths start at this file's folder";

pub(in crate::config) fn validate(
    file: &ConfigFile,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<scale::PeerSettings> {
    let peers = file.scale.peers.as_ref()?;
    let field = FieldPath::top("scale").key("peers");
    if file.scale.listen.is_none() {
        let hint = "set `scale.listen`, where the others ask this one, or take the section away";
        findings.error(&field, "needs `scale.listen`", hint);
    }
    let tls = secured(peers, &field, secrets, findings);
    let asks = file.scale.tls.as_ref().is_some_and(|tls| tls.require_client_cert);
    if asks && peers.cert.is_none() {
        let hint = "set `cert` and `key`, signed by what is `client_ca` there";
        findings.warn(&field.key("cert"), "is missing, and gateways like this one ask for it", hint);
    }
    if peers.urls.is_empty() && peers.dns.is_none() {
        findings.error(&field, "names no gateways", "write `urls` or `dns`, or take the section away");
    }
    let listed = listed(peers, &field, findings);
    let named = peers.dns.as_ref().map(|dns| named(dns, peers.ca.is_some(), &field.key("dns"), findings));
    Some(scale::PeerSettings { listed, named, tls })
}

fn listed(peers: &PeersSection, field: &FieldPath, findings: &mut Findings<'_>) -> BTreeSet<PeerPlace> {
    let mut places = BTreeSet::new();
    if peers.urls.len() > MAX_PEERS {
        let message = format!("{} gateways are too many", peers.urls.len());
        findings.error(&field.key("urls"), message, "write at most 64");
    }
    for (at, text) in peers.urls.iter().enumerate() {
        let field = field.key("urls").index(at);
        let uri = match url::any(text) {
            Ok(uri) if uri.path().len() > 1 => {
                findings.error(&field, format!("{text:?} has a path"), "write it like http://10.0.0.5:8082");
                continue;
            }
            Ok(uri) => uri,
            Err((message, hint)) => {
                findings.error(&field, message, hint);
                continue;
            }
        };
        let secure = uri.scheme_str() == Some("https");
        if secure && peers.ca.is_none() {
            findings.error(&field, "says https, and no authority is known", "name the authorities in `ca`");
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        places.insert(PeerPlace { certified: secure.then(|| host.clone()), host, port });
    }
    places
}

fn named(dns: &PeersDnsSection, secure: bool, field: &FieldPath, findings: &mut Findings<'_>) -> DnsSource {
    if !is_name(&dns.name) {
        let message = format!("{:?} is no name", dns.name);
        findings.error(&field.key("name"), message, "write it like penstock-peers.ml.svc.cluster.local");
    }
    if dns.port == 0 {
        findings.error(&field.key("port"), "is missing", "write that of `scale.listen`, such as 8082");
    }
    let scheme = if secure { EndpointScheme::Https } else { EndpointScheme::Http };
    DnsSource {
        name: dns.name.clone(),
        records: DnsRecords::A,
        port: dns.port,
        form: EndpointForm { scheme, metrics_port: None },
        min_refresh: REFRESH[0],
        max_refresh: REFRESH[1],
        empty_grace: GRACE,
        servers: servers(&dns.servers, field, findings),
    }
}

fn secured(
    peers: &PeersSection,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<PeerTls> {
    let missing = match (&peers.ca, &peers.cert, &peers.key) {
        (None, Some(_), _) | (None, _, Some(_)) => {
            Some(("ca", "name the authorities of the gateways' certificates"))
        }
        (_, Some(_), None) => Some(("key", "name the certificate's key")),
        (_, None, Some(_)) => Some(("cert", "name the key's certificate")),
        _ => None,
    };
    if let Some((key, hint)) = missing {
        findings.error(&field.key(key), "is missing", hint);
        return None;
    }
    let mut read = |key: &'static str, path: &Option<String>| -> Option<Option<Vec<u8>>> {
        let Some(path) = path else { return Some(None) };
        let found = secrets.bytes(path);
        found.map_err(|message| findings.error(&field.key(key), message, PEM)).ok().map(Some)
    };
    let [ca, cert, key] = [read("ca", &peers.ca), read("cert", &peers.cert), read("key", &peers.key)];
    let (ca, cert, key) = (ca??, cert?, key?);
    let own = cert.as_deref().zip(key.as_deref());
    let made = build(&ca, own, peers);
    made.map_err(|(key, message)| findings.error(&field.key(key), message, PEM)).ok()
}

/// The key at fault, and what is wrong with it.
type PeerFault = (&'static str, String);

fn build(ca: &[u8], own: Option<(&[u8], &[u8])>, peers: &PeersSection) -> Result<PeerTls, PeerFault> {
    let path = |path: &Option<String>| path.clone().unwrap_or_default();
    let roots = tls::authorities(ca, &path(&peers.ca)).map_err(|message| ("ca", message))?;
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ("ca", error.to_string()))?
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let (files, keys) = (path(&peers.cert), path(&peers.key));
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
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut hash = blake3::Hasher::new();
    let (cert, key) = own.unwrap_or_default();
    for part in [ca, cert, key] {
        hash.update(blake3::hash(part).as_bytes());
    }
    Ok(PeerTls { config: Arc::new(config), digest: *hash.finalize().as_bytes() })
}
