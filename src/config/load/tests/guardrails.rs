//! Guardrails, certificates towards engines, and listeners that others reach.

use crate::config::keys;
use crate::config::load::tests::{SMALL, errors, problems, with};

#[test]
fn keys_in_the_clear_are_remarked_on() {
    let text = |server: &str| {
        let digest = keys::digest_text(&[1; 32]);
        format!(
            "version: 1\nserver: {{{server}}}\ntenants: {{a: {{keys: [{{id: abcdefgh, digest: '{digest}'}}]}}}}\n\
             pools: {{p: {{engine: vllm, models: [m], max_seqs: 4, replicas: [http://p:1]}}}}\n"
        )
    };
    let found = problems(&text("listen: 0.0.0.0:8080"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("keys come in the clear"), "{found:?}");
    for quiet in ["listen: 127.0.0.1:8080", "listen: 0.0.0.0:8080, proxies: {trusted: [10.0.0.0/8]}"] {
        assert_eq!(problems(&text(quiet)), [] as [String; 0], "{quiet}");
    }
}

#[test]
fn operators_tokens_in_the_clear_are_remarked_on() {
    let digest = keys::digest_text(&[1; 32]);
    let found = |address: &str| {
        problems(&format!(
            "version: 1\nauth: {{mode: off}}\nserver: {{admin: '{address}:8081'}}\n\
             admin: {{auth: {{tokens: [{{id: operator1, digest: '{digest}', role: read}}]}}}}\n\
             pools: {{p: {{engine: vllm, models: [m], max_seqs: 4, replicas: [http://p:1]}}}}\n"
        ))
    };
    let outside = found("0.0.0.0");
    assert!(outside.len() == 1 && outside[0].contains("their tokens come in the clear"), "{outside:?}");
    assert_eq!(found("127.0.0.1"), [] as [String; 0]);
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
