//! Credentials and certificates in the file.

use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use crate::config::keys;
use crate::config::load::{LoadOutcome, Loaded, load_str_with};
use crate::config::report::diff::diff;
use crate::config::secret::SecretSource;
use crate::config::settings::identity::{Auth, Credentials, OperatorRole};
use crate::core::model::ids::{ClassId, TenantId};

/// Two certificates with their keys.
struct Files {
    /// What stands in `a.crt` and `a.key`.
    first: usize,
}

impl SecretSource for Files {
    fn env(&self, _: &str) -> Option<String> {
        None
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        static MADE: OnceLock<[[String; 2]; 2]> = OnceLock::new();
        let made = MADE.get_or_init(|| {
            [(); 2].map(|()| {
                let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
                [made.cert.pem(), made.signing_key.serialize_pem()]
            })
        });
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = match name {
            "a.crt" => &made[self.first][0],
            "a.key" => &made[self.first][1],
            "b.key" => &made[1 - self.first][1],
            "text" => "secret-text",
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(text.as_bytes().to_vec())
    }
}

fn key(id: &str, more: &str) -> String {
    format!("{{id: {id}, digest: '{}'{more}}}", keys::digest_text(&keys::digest(id)))
}

/// A file with such sections, and keys of the tenant `a`.
fn load(sections: &str, keys: &str, tenant: &str) -> LoadOutcome {
    let text = format!(
        "version: 1\n{sections}\ntenants:\n  a: {{classes: [standard, batch], models: [m], keys: [{keys}]{tenant}}}\n\
         pools: {{p: {{engine: openai, models: [m, n], replicas: ['http://p:1']}}}}\n"
    );
    load_str_with(&text, "p", Path::new("/"), None, &Files { first: 0 })
}

/// A file of its own, with the first or the second certificate in `a.crt`.
pub(super) fn load_with(text: &str, first: usize) -> Loaded {
    let outcome = load_str_with(text, "p", Path::new("/"), None, &Files { first });
    outcome.into_result().unwrap_or_else(|report| panic!("{report}"))
}

fn known(outcome: LoadOutcome) -> (Loaded, std::sync::Arc<Credentials>) {
    let loaded = outcome.into_result().unwrap_or_else(|report| panic!("{report}"));
    let Auth::Known(known) = loaded.settings.edge.auth.clone() else { panic!("no credentials") };
    (loaded, known)
}

#[test]
fn what_credentials_leave_their_tenant_is_what_the_file_says() {
    let keys = [
        key("aaaaaaaa", ", classes: [batch], class: batch, expires: 1970-01-02"),
        key("bbbbbbbb", ", models: [m]"),
    ];
    let sections = "server: {tls: {cert: a.crt, key: a.key, client_ca: a.crt, min_version: '1.3'}}
admin: {auth: {tokens: [{id: cccccccc, digest: 'blake3:0000000000000000000000000000000000000000000000000000000000000000', role: operate}]}}
auth: {oidc: [{issuer: 'https://id.test', audience: [x], class_claim: c, tenants: {one: a}}], failures: {burst: 3}}";
    let (loaded, known) =
        known(load(sections, &keys.join(", "), ", client_certs: [{dns: A.Test}, {uri: 'spiffe://x'}]"));
    let first = known.keys.get("aaaaaaaa").unwrap();
    let batch = loaded.settings.policy.classes.id("batch").unwrap();
    assert_eq!((first.grant.tenant, first.grant.class), (TenantId::new(0), Some(batch)));
    assert!(first.grant.allows_class(batch) && !first.grant.allows_class(ClassId::new(0)));
    assert_eq!(first.expires, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400)));
    assert_eq!(known.keys.get("bbbbbbbb").unwrap().grant.models.as_ref().unwrap().len(), 1);
    assert!(known.certs.contains_key("dns:a.test") && known.certs.contains_key("uri:spiffe://x"));
    let issuer = &known.issuers[0];
    assert_eq!(issuer.claims.tenants.values, [("one".to_owned(), TenantId::new(0))]);
    assert_eq!(issuer.claims.classes.as_ref().unwrap().values.len(), 3);
    assert_eq!((known.failures.burst, known.failures.per_minute), (3, 30));
    let listeners = &loaded.settings.listeners;
    assert_eq!(listeners.operators.tokens.get("cccccccc").unwrap().role, OperatorRole::Operate);
    let tls = listeners.clients.as_ref().unwrap();
    assert_eq!(tls.config.alpn_protocols, [b"h2".to_vec(), b"http/1.1".to_vec()]);
    assert!(listeners.admin.is_none());
}

#[test]
fn what_an_operators_provider_gives_is_what_the_file_says() {
    let oidc = "issuer: 'https://id.test', client_id: console, audience: [cli], scopes: [groups], \
                roles: {everybody: read, sre: operate}";
    let (loaded, _) =
        known(load(&format!("admin: {{auth: {{oidc: {{{oidc}}}}}}}"), &key("aaaaaaaa", ""), ""));
    let issuer = loaded.settings.listeners.operators.oidc.clone().expect("a provider");
    assert_eq!(issuer.audience, ["console", "cli"]);
    let claims = &issuer.claims;
    assert_eq!((&*claims.roles.claim, &*claims.name), ("groups", "email"));
    assert_eq!(claims.roles.values[1], ("sre".to_owned(), OperatorRole::Operate));
    let console = claims.console.as_ref().expect("a client");
    assert_eq!(
        (&*console.id, &console.scopes[..]),
        ("console", &["openid".to_owned(), "groups".to_owned()][..])
    );
}

#[test]
fn operators_and_clients_of_one_provider_have_their_own_audiences() {
    let report = |audience: &str| {
        let clients = format!(
            "auth: {{oidc: [{{issuer: 'https://id.test', audience: [{audience}], tenants: {{x: a}}}}]}}"
        );
        let operators = "admin: {auth: {oidc: {issuer: 'https://id.test', client_id: c, audience: [cli], roles: {a: read}}}}";
        load(&format!("{clients}\n{operators}"), &key("aaaaaaaa", ""), "").report.to_string()
    };
    for shared in ["c", "penstock, cli"] {
        let said = report(shared);
        assert!(said.contains("warning: auth.oidc[0].audience: "), "{shared}: {said}");
    }
    assert!(!report("penstock").contains("auth.oidc[0].audience"));
}

#[test]
fn scopes_without_a_client_are_remarked_on() {
    let report = |more: &str| {
        let oidc = format!("issuer: 'https://id.test', audience: [cli], roles: {{a: read}}{more}");
        load(&format!("admin: {{auth: {{oidc: {{{oidc}}}}}}}"), &key("aaaaaaaa", ""), "").report.to_string()
    };
    assert!(report(", scopes: [groups]").contains("warning: admin.auth.oidc.scopes: "));
    assert!(!report("").contains("oidc.scopes"));
    assert!(!report(", scopes: [groups], client_id: c").contains("oidc.scopes"));
}

#[test]
fn a_new_certificate_in_the_same_file_is_a_change_without_a_value() {
    let text = "version: 1\nauth: {mode: off}\nserver: {tls: {cert: a.crt, key: a.key}}\n\
                pools: {p: {engine: openai, models: [m], replicas: ['http://p:1']}}\n";
    let load = |first| {
        let outcome = load_str_with(text, "p", Path::new("/"), None, &Files { first });
        outcome.into_result().unwrap_or_else(|report| panic!("{report}"))
    };
    let changes: Vec<String> = diff(&load(0), &load(1)).iter().map(ToString::to_string).collect();
    assert_eq!(changes, ["~ server.tls: the secret has a new value"]);
    assert_eq!(diff(&load(0), &load(0)), []);
}

#[test]
fn what_is_wrong_is_said_with_what_to_do_and_without_the_secret() {
    let good = key("aaaaaaaa", "");
    let oidc = |more: &str| format!("auth: {{oidc: [{{issuer: 'https://id.test', audience: [x], {more}}}]}}");
    let tls = |files: &str| format!("server: {{tls: {{{files}}}}}");
    let cases: [(String, &str, &str, &str, &str); 23] = [
        (tls("cert: none.crt, key: a.key"), &good, "", "server.tls.cert", "cannot be read"),
        (tls("cert: text, key: a.key"), &good, "", "server.tls.cert", "holds no certificate"),
        (tls("cert: a.crt, key: text"), &good, "", "server.tls.key", "holds no private key"),
        (tls("cert: a.crt, key: b.key"), &good, "", "server.tls.key", "is not that of the certificate"),
        (
            tls("cert: a.crt, key: a.key, client_ca: text"),
            &good,
            "",
            "server.tls.client_ca",
            "no certificate",
        ),
        (
            tls("cert: a.crt, key: a.key, require_client_cert: true"),
            &good,
            "",
            "require_client_cert",
            "of whom",
        ),
        (
            tls("cert: a.crt, key: a.key, min_version: '1.1'"),
            &good,
            "",
            "min_version",
            "write '1.2' or '1.3'",
        ),
        (tls("key: a.key"), &good, "", "server.tls.cert", "is missing"),
        (String::new(), &good, ", client_certs: [{dns: x}]", "client_certs", "server.tls.client_ca"),
        (
            String::new(),
            &good,
            ", client_certs: [{dns: x, uri: y}]",
            "client_certs[0]",
            "one of `dns`, `uri`",
        ),
        (oidc("algorithms: [HS256]"), &good, "", "algorithms[0]", "HS256"),
        (oidc("algorithms: [none]"), &good, "", "algorithms[0]", "none"),
        (oidc("jwks_url: 'http://id.test/keys'"), &good, "", "jwks_url", "in the clear"),
        (oidc("leeway: 1h"), &good, "", "leeway", "5m or less"),
        (oidc("max_token: 1MiB"), &good, "", "max_token", "256B to 64KiB"),
        (oidc("jwks_url: ''"), &good, "", "jwks_url", "take the key away"),
        (oidc("tenants: {x: nobody}"), &good, "", "tenants.x", "no tenant `nobody`"),
        (oidc("tenant_claim: a..b"), &good, "", "tenant_claim", "no claim"),
        ("auth: {oidc: [{audience: []}]}".into(), &good, "", "issuer", "is missing"),
        ("auth: {failures: {burst: 0}}".into(), &good, "", "failures.burst", "1 or more"),
        ("audit: {file: a, keep: 5000}".into(), &good, "", "audit.keep", "0 to 1000"),
        ("audit: {file: /no/such/folder/a}".into(), &good, "", "audit.file", "is not there"),
        ("admin: {auth: {client_certs: [{dns: x}]}}".into(), &good, "", "admin.auth", "admin.tls.client_ca"),
    ];
    for (sections, keys, tenant, field, said) in cases {
        is_refused(&load(&sections, keys, tenant), field, said);
    }
}

fn is_refused(outcome: &LoadOutcome, field: &str, said: &str) {
    let report = outcome.report.to_string();
    assert!(outcome.loaded.is_none(), "{field}: {said}");
    assert!(report.contains(field) && report.contains(said), "{field}: {report}");
    assert!(!report.contains("secret-text") && !report.contains("BEGIN"), "{report}");
}

#[test]
fn what_is_wrong_with_an_operators_provider_is_said_with_what_to_do() {
    let good = "issuer: 'https://id.test', client_id: c, roles: {a: read}";
    for (oidc, field, said) in [
        ("issuer: 'https://id.test', client_id: c".to_owned(), "oidc.roles", "nobody a right"),
        ("issuer: 'https://id.test', roles: {a: read}".to_owned(), "oidc.client_id", "is missing"),
        ("client_id: c, roles: {a: read}".to_owned(), "oidc.issuer", "is missing"),
        ("client_id: c, roles: {a: admin}".to_owned(), "oidc.roles.a", "operate"),
        (format!("{good}, scopes: ['a b']"), "oidc.scopes", "is no scope"),
        (format!("{good}, max_token: 13KiB"), "oidc.max_token", "256B to 12KiB"),
        (good.replace("https", "http"), "oidc.issuer", "in the clear"),
    ] {
        let sections = format!("admin: {{auth: {{oidc: {{{oidc}}}}}}}");
        is_refused(&load(&sections, &key("aaaaaaaa", ""), ""), field, said);
    }
}

#[test]
fn a_key_has_no_more_than_its_tenant_and_is_nobody_elses() {
    for (more, said) in [
        (", classes: [interactive]", "the tenant may not use `interactive`"),
        (", classes: [batch], class: standard", "is not in its own `classes`"),
        (", models: [n]", "the tenant may not use `n`"),
        (", classes: []", "allows no class"),
        (", expires: soon", "write a day"),
    ] {
        let report = load("", &key("aaaaaaaa", more), "").report.to_string();
        assert!(report.contains(said), "{more}: {report}");
    }
    let good = key("aaaaaaaa", "");
    let twice = format!("admin: {{auth: {{tokens: [{good}]}}}}");
    assert!(
        load(&twice, &good, "").report.to_string().contains("already"),
        "a tenant's key is no operator's"
    );
}

#[test]
fn a_version_of_tls_may_stand_without_quotes() {
    let text = "server: {tls: {cert: a.crt, key: a.key, min_version: 1.3}}";
    assert!(load(text, &key("aaaaaaaa", ""), "").loaded.is_some());
}

#[test]
fn keys_that_nobody_is_asked_for_are_remarked_on() {
    let outcome = load("auth: {mode: off, tenant: a}", &key("abcdefgh", ""), "");
    let report = outcome.report.to_string();
    assert!(outcome.loaded.is_some(), "{report}");
    assert!(
        report
            .contains("warning: auth.mode: `off` asks nobody for a credential: those of `a` have no effect"),
        "{report}"
    );
    let report = load("", &key("abcdefgh", ""), "").report.to_string();
    assert!(!report.contains("auth.mode"), "{report}");
}

#[test]
fn loopback_needs_a_token_where_there_are_some() {
    let operators = |auth: &str| {
        let outcome = load(&format!("admin: {{auth: {auth}}}"), &key("abcdefgh", ""), "");
        let report = outcome.report.to_string();
        let loaded = outcome.loaded.unwrap_or_else(|| panic!("{report}"));
        (loaded.settings.listeners.operators.loopback, report.contains("warning: admin.auth.loopback: "))
    };
    let tokens = format!("tokens: [{}]", key("operator1", ""));
    assert_eq!(operators("{}"), (true, false), "nothing is asked of anybody");
    assert_eq!(operators(&format!("{{{tokens}}}")), (false, false));
    assert_eq!(operators(&format!("{{loopback: true, {tokens}}}")), (true, true));
    assert_eq!(operators(&format!("{{loopback: false, {tokens}}}")), (false, false));
    let oidc = "oidc: {issuer: 'https://id.test', client_id: c, roles: {a: read}}";
    assert_eq!(operators(&format!("{{{oidc}}}")), (false, false));
    assert_eq!(operators(&format!("{{loopback: true, {oidc}}}")), (true, true));
}

#[test]
fn built_in_classes_that_are_left_out_are_named() {
    let report = |classes: &str| {
        let sections = format!("classes: {{{classes}}}");
        load(&sections, &key("abcdefgh", ""), "").report.to_string()
    };
    let some = report("standard: {}, batch: {max_wait: 5m}");
    assert!(
        some.contains("info: classes: replaces the built-in classes, of which it leaves out `interactive`"),
        "{some}"
    );
    let all = report("standard: {}, batch: {}, interactive: {rank: 0}, own: {}");
    assert!(!all.contains("built-in"), "{all}");
}
