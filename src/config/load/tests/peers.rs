//! `scale.peers`.

use crate::config::load::tests::{errors, load};
use crate::config::report::diff::diff;
use crate::config::settings::scale::PeerAddress;

use super::identity::load_with;

fn file(scale: &str) -> String {
    format!(
        "version: 1\nauth: {{mode: off}}\nscale: {{{scale}}}\n\
         pools: {{p: {{engine: openai, models: [m], replicas: ['http://p:1']}}}}\n"
    )
}

#[test]
fn places_are_read_and_may_be_written_in_both_ways() {
    let text = file(
        "listen: '127.0.0.1:8082', peers: {urls: ['http://A.Test', 'https://[fd00::5]:8082'], ca: a.crt, \
         dns: {name: peers.test., port: 8082, servers: ['10.0.0.1:53']}}",
    );
    let loaded = load_with(&text, 0);
    let peers = loaded.settings.scale.peers.as_ref().unwrap();
    let place = |host: &str, port, certified: Option<&str>| PeerAddress {
        host: host.to_owned(),
        port,
        certified: certified.map(str::to_owned),
    };
    let listed: Vec<&PeerAddress> = peers.listed.iter().collect();
    assert_eq!(listed, [&place("a.test", 80, None), &place("fd00::5", 8082, Some("fd00::5"))]);
    assert_eq!(listed[1].to_string(), "[fd00::5]:8082");
    let dns = peers.named.as_ref().unwrap();
    assert_eq!((&*dns.name, dns.port, dns.servers.len()), ("peers.test.", 8082, 1));
    assert_eq!(peers.tls.as_ref().unwrap().config.alpn_protocols, [b"h2".to_vec()]);
}

#[test]
fn a_new_certificate_of_theirs_counts_without_a_restart() {
    let text =
        file("listen: '127.0.0.1:8082', peers: {urls: ['https://a:1'], ca: a.crt, cert: a.crt, key: a.key}");
    let (before, after) = (load_with(&text, 0), load_with(&text, 1));
    let changes: Vec<String> = diff(&before, &after).iter().map(ToString::to_string).collect();
    assert_eq!(changes, ["~ scale.peers: the secret has a new value"]);
}

#[test]
fn with_a_store_the_section_is_not_used() {
    // What is wrong in a section that is not used stops nothing.
    for scale in ["listen: '127.0.0.1:8082', peers: {urls: ['http://a:1']}", "peers: {}"] {
        let outcome = load(&(file(scale) + "cluster: {valkey: {url: 'redis://store:6379'}}\n"));
        let report = outcome.report.to_string();
        assert!(report.contains("scale.peers: is not used with `cluster`"), "{report}");
        let loaded = outcome.loaded.unwrap_or_else(|| panic!("{report}"));
        assert!(loaded.settings.scale.peers.is_none());
    }
}

#[test]
fn what_is_wrong_is_said_with_its_field() {
    let listen = "listen: '127.0.0.1:8082', ";
    let cases = [
        ("", "peers: {urls: ['http://a:1']}", "scale.peers: needs `scale.listen`"),
        (listen, "peers: {}", "scale.peers: names no gateways"),
        (listen, "peers: {urls: ['a:1']}", "scale.peers.urls[0]: \"a:1\" is not a whole URL"),
        (listen, "peers: {urls: ['http://a:1/x']}", "scale.peers.urls[0]: \"http://a:1/x\" has a path"),
        (listen, "peers: {urls: ['https://a:1']}", "scale.peers.urls[0]: says https"),
        (listen, "peers: {dns: {name: 'a b', port: 1}}", "scale.peers.dns.name: \"a b\" is no name"),
        (listen, "peers: {dns: {name: a}}", "scale.peers.dns.port: is missing"),
        (listen, "peers: {urls: ['http://a:1'], cert: a.crt, key: a.key}", "scale.peers.ca: is missing"),
        (listen, "peers: {urls: ['http://a:1'], ca: a.crt, cert: a.crt}", "scale.peers.key: is missing"),
        (listen, "peers: {urls: ['http://a:1'], ca: a.crt, key: a.crt}", "scale.peers.cert: is missing"),
        (
            listen,
            "peers: {urls: ['http://a:1'], ca: none.crt}",
            "scale.peers.ca: the file \"none.crt\" cannot be read",
        ),
    ];
    for (before, peers, message) in cases {
        let found = errors(&file(&format!("{before}{peers}")));
        assert!(found.iter().any(|error| error.contains(message)), "{message}: {found:?}");
    }
    let many: Vec<String> = (0..65).map(|at| format!("'http://a:{}'", at + 1)).collect();
    let found = errors(&file(&format!("{listen}peers: {{urls: [{}]}}", many.join(", "))));
    assert!(found.iter().any(|error| error.contains("65 gateways are too many")), "{found:?}");
    let fine = load(&file("listen: '127.0.0.1:8082', peers: {urls: ['http://a:1']}"));
    assert!(fine.loaded.is_some(), "{}", fine.report);
}
