//! Guardrails, certificates towards engines, and listeners that others reach.

use crate::config::keys;
use crate::config::load::tests::{SMALL, errors, problems, with};

#[test]
fn listeners_that_strangers_reach_are_remarked_on() {
    let digest = keys::digest_text(&[1; 32]);
    let key = format!("[{{id: abcdefgh, digest: '{digest}'}}]");
    let keyed = SMALL.replace("auth: {mode: off}", &format!("tenants: {{a: {{keys: {key}}}}}"));
    let of_listeners = |lines: &str| {
        let mut found = problems(&format!("{keyed}{lines}\n"));
        found.retain(|problem| problem.contains("from outside"));
        found
    };
    let digest = keys::digest_text(&[2; 32]);
    let tokens = format!("admin: {{auth: {{tokens: [{{id: operator1, digest: '{digest}', role: read}}]}}}}");
    for (lines, message) in [
        (
            "server: {listen: '0.0.0.0:8080'}".to_owned(),
            "clients reach 0.0.0.0:8080 from outside, and their keys come in the clear (set `server.tls`",
        ),
        (
            "server: {admin: '0.0.0.0:8081'}".to_owned(),
            "the admin port can be reached from outside (0.0.0.0:8081) and asks for no password",
        ),
        (
            format!("server: {{admin: '0.0.0.0:8081'}}\n{tokens}"),
            "operators reach 0.0.0.0:8081 from outside, and their tokens come in the clear (set `admin.tls`",
        ),
        (
            "scale: {listen: '0.0.0.0:8082'}".to_owned(),
            "the scaler can be reached from outside (0.0.0.0:8082) and asks for no certificate",
        ),
    ] {
        let found = of_listeners(&lines);
        assert_eq!(found.len(), 1, "{lines}\n{found:#?}");
        assert!(found[0].starts_with("warning") && found[0].contains(message), "{message}\n{found:#?}");
    }
    let silent =
        format!("server: {{listen: '127.0.0.1:8080'}}\nscale: {{listen: '127.0.0.1:8082'}}\n{tokens}");
    assert_eq!(of_listeners(&silent), [""; 0]);
    let balanced = "server: {listen: '0.0.0.0:8080', proxies: {trusted: [10.0.0.0/8]}}";
    assert_eq!(of_listeners(balanced), [""; 0]);
}

#[test]
fn guardrails_and_certificates_of_engines_are_checked() {
    for (added, said) in [
        ("guardrails: {}", "guardrails.url"),
        ("guardrails: {url: 'ftp://a'}", "neither http nor https"),
        ("guardrails: {url: 'http://a/b', tls: {ca: none.crt}}", "is not used with `http`"),
        ("guardrails: {url: 'http://a/b', max_calls: 0}", "guardrails.max_calls"),
        ("guardrails: {url: 'http://a/b', timeout: 0s}", "must not be zero"),
        ("guardrails: {url: 'http://a/b', api_key: secret}", "must not stand in the file"),
        (
            "guardrails: {url: 'https://a/b', tls: {ca: none.crt, server_name: 10.0.0.1}}",
            "is no name of a host",
        ),
        ("guardrails: {url: 'https://a/b', tls: {ca: none.crt, cert: a.crt}}", "tls.key: is missing"),
        ("tenants: {a: {guardrails: {answers: true}}}", "needs the section `guardrails`"),
        ("classes: {standard: {guardrails: {on_failure: allow}}}", "needs the section `guardrails`"),
        ("usage: {folder: ., retention: 1h}", "is too short"),
    ] {
        let found = errors(&with(added));
        assert!(found.iter().any(|error| error.contains(said)), "{added}: {found:?}");
    }
    let tls = SMALL.replace("    replicas", "    tls: {ca: none.crt}\n    replicas");
    let found = errors(&tls);
    assert!(found.iter().any(|error| error.contains("tls.ca")), "{found:?}");
}
