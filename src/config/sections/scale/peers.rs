//! Check of `scale.peers`: the other gateways.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::discover::{DnsRecords, DnsSource, EndpointForm, EndpointScheme};
use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::identity::client_tls::CertificatePaths;
use crate::config::sections::pools::discover::check::{is_name, servers};
use crate::config::sections::scale::{PeersDnsSection, PeersSection};
use crate::config::settings::scale::{self, PeerAddress};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::url;
use crate::core::autoscale::peers::MAX_PEERS;

/// Times between two questions.
const REFRESH: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// How long the last addresses hold when there are none any more.
const GRACE: Duration = Duration::from_secs(10);

pub(in crate::config) fn validate(
    file: &ConfigFile,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<scale::PeerSettings> {
    let peers = file.scale.peers.as_ref()?;
    let field = FieldPath::top("scale").key("peers");
    if file.cluster.is_some() {
        let hint = "take the section away";
        findings.warn(&field, "is not used with `cluster`: its store carries the reports of gateways", hint);
        return None;
    }
    if file.scale.listen.is_none() {
        let hint = "set `scale.listen`, where the others ask this one, or take the section away";
        findings.error(&field, "needs `scale.listen`", hint);
    }
    let (ca, cert, key) = (peers.ca.as_deref(), peers.cert.as_deref(), peers.key.as_deref());
    let tls = CertificatePaths { ca, cert, key }.read(&[b"h2"], &field, secrets, findings);
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

fn listed(peers: &PeersSection, field: &FieldPath, findings: &mut Findings<'_>) -> BTreeSet<PeerAddress> {
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
        places.insert(PeerAddress { certified: secure.then(|| host.clone()), host, port });
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
