//! Operators with tokens of an identity provider, and what the console is told of it.

use std::sync::atomic::Ordering;

use jsonwebtoken::Algorithm;
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{Rig, head, key_of, pool_lines, tenant_lines, until};
use crate::support::provider::{Provider, Signer, now};

const STATUS: &str = "/admin/v1/status";

fn oidc(provider: &Provider) -> String {
    format!(
        "oidc: {{issuer: '{}', client_id: console, role_claim: team.groups, roles: {{viewers: read, sre: operate}}, \
         leeway: 0s}}",
        provider.issuer()
    )
}

fn text(url: &str, auth: &str) -> String {
    format!(
        "{}admin: {{auth: {{{auth}}}}}\naudit: {{file: audit.jsonl}}\ntenants:\n{}pools:\n{}",
        head(""),
        tenant_lines("alpha", ""),
        pool_lines("main", "engine: vllm\nmodels: [sim]", &[url.to_owned()])
    )
}

/// A gateway whose operators' provider is this one, and the address of its engine.
async fn rig_with_url(provider: &Provider) -> (Rig, String) {
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let url = engine.url();
    (Rig::with_file(&text(&url, &oidc(provider)), vec![engine], ["alpha"]).await, url)
}

async fn rig(provider: &Provider) -> Rig {
    rig_with_url(provider).await.0
}

fn claims(provider: &Provider, groups: &Value) -> Value {
    let mut claims = provider.claims_with("team", json!({ "groups": groups }));
    claims["aud"] = json!("console");
    claims["email"] = json!("ann@example.com");
    claims
}

async fn send(rig: &Rig, token: &str, call: Call) -> Answer {
    call.key(token).send(rig.gateway.admin_address()).await
}

async fn look(rig: &Rig, token: &str) -> Answer {
    send(rig, token, Call::get(STATUS)).await
}

fn pause() -> Call {
    let body = json!({ "name": "alpha", "for": "5m", "reason": "runaway job" });
    Call::post("/admin/v1/tenants/pause", &body)
}

async fn fetched(rig: &Rig) {
    until("the keys are there", || rig.telemetry.captured_log().contains("issuer keys fetched")).await;
}

/// Has the gateway tell its sign-in addresses.
async fn endpoints(rig: &Rig) -> Value {
    for _ in 0..500 {
        let told = Call::get("/console/sign-in").send(rig.gateway.admin_address()).await.ok().json();
        if told["provider"]["token_endpoint"] != Value::Null {
            return told["provider"].clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the provider's addresses are not told: {}", rig.telemetry.captured_log())
}

/// Puts a file in force, which the watcher may do before the operator's call.
async fn reload(rig: &Rig, token: &str, text: &str) {
    let generation = rig.generation();
    rig.put(text);
    let answer = send(rig, token, Call::post("/admin/v1/reload", &json!({}))).await.ok();
    let outcome = answer.json()["outcome"].clone();
    assert!(outcome == "applied" || outcome == "unchanged", "{outcome}");
    until("the file is in force", || rig.generation() > generation).await;
}

#[tokio::test]
async fn groups_give_the_role_and_the_audit_file_has_the_name() {
    let signer = Signer::new("k1", Algorithm::ES256);
    let provider = Provider::start(&[&signer]).await;
    let rig = rig(&provider).await;
    fetched(&rig).await;
    let viewer = signer.sign(&claims(&provider, &json!(["viewers", "others"])));
    look(&rig, &viewer).await.ok();
    let answer = send(&rig, &viewer, pause()).await;
    assert_eq!(answer.status, 403);
    assert!(answer.text().contains("oidc:ann@example.com may only look"), "{}", answer.text());

    let operator = signer.sign(&claims(&provider, &json!(["viewers", "sre"])));
    send(&rig, &operator, pause()).await.ok();
    rig.telemetry.flush_audit(std::time::Duration::from_secs(10));
    let audit = std::fs::read_to_string(rig.folder.path().join("audit.jsonl")).unwrap();
    assert!(audit.contains("\"oidc:ann@example.com\""), "{audit}");

    let mut nameless = claims(&provider, &json!(["sre"]));
    nameless["email"] = Value::Null;
    nameless["sub"] = json!("some body\n7");
    let config = send(&rig, &signer.sign(&nameless), Call::get("/admin/v1/config")).await.ok().json();
    let shown = &config["listeners"]["admin_oidc"];
    assert_eq!((&shown["client_id"], &shown["roles"]["sre"]), (&json!("console"), &json!("operate")));
    send(&rig, &signer.sign(&nameless), Call::post("/admin/v1/reload", &json!({}))).await.ok();
}

#[tokio::test]
async fn a_token_that_is_not_right_is_refused_with_the_reason() {
    let signer = Signer::new("k1", Algorithm::ES256);
    let provider = Provider::start(&[&signer]).await;
    let rig = rig(&provider).await;
    fetched(&rig).await;
    let with = |key: &str, value: Value| {
        let mut claims = claims(&provider, &json!(["sre"]));
        claims[key] = value;
        signer.sign(&claims)
    };
    look(&rig, &with("sub", json!("right"))).await.ok();
    let stranger = Signer::new("k1", Algorithm::ES256);
    let cases = [
        (with("aud", json!(["penstock"])), 401, "`aud`"),
        (with("azp", json!("another")), 401, "`azp`"),
        (with("iss", json!("https://elsewhere.example")), 401, "admin.auth.oidc.issuer"),
        (stranger.sign(&claims(&provider, &json!(["sre"]))), 401, "not valid here"),
        (with("exp", json!(now() - 5)), 401, "sign in again"),
        (with("team", json!({ "groups": ["others"] })), 403, "admin.auth.oidc.roles"),
        (with("team", Value::Null), 403, "admin.auth.oidc.roles"),
    ];
    for (token, status, said) in cases {
        let answer = look(&rig, &token).await;
        assert_eq!(answer.status, status, "{said}");
        assert!(answer.text().contains(said), "{}", answer.text());
        assert_eq!(answer.header("www-authenticate"), if status == 401 { "Bearer" } else { "" });
    }
    // What has expired, and what gives no right, is no guess: only the others count.
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(look(&rig, &with("exp", json!(now() - 5))).await.status);
        statuses.push(look(&rig, &with("team", Value::Null)).await.status);
    }
    assert!(!statuses.contains(&429), "{statuses:?}");
    assert_eq!(Call::get(STATUS).send(rig.gateway.admin_address()).await.status, 401);
    assert_eq!(look(&rig, &key_of("alpha").text).await.status, 401, "a tenant is no operator");
}

#[tokio::test]
async fn a_provider_that_is_away_is_told_and_comes_back() {
    let signer = Signer::new("k1", Algorithm::ES256);
    let provider = Provider::start(&[&signer]).await;
    provider.away.store(true, Ordering::SeqCst);
    let rig = rig(&provider).await;
    let at = rig.gateway.admin_address();
    let token = signer.sign(&claims(&provider, &json!(["sre"])));
    let answer = look(&rig, &token).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("identity provider"), "{}", answer.text());
    let told = Call::get("/console/sign-in").send(at).await.ok().json();
    assert_eq!(told["provider"]["issuer"], provider.issuer());
    assert_eq!(told["provider"]["token_endpoint"], Value::Null);
    let page = Call::get("/console").send(at).await.ok();
    assert!(page.header("content-security-policy").ends_with("connect-src 'self'"));

    provider.away.store(false, Ordering::SeqCst);
    fetched(&rig).await;
    look(&rig, &token).await.ok();
    let told = endpoints(&rig).await;
    let expected = json!({
        "issuer": provider.issuer(), "client_id": "console", "scopes": "openid profile email",
        "authorization_endpoint": format!("{}/authorize", provider.issuer()),
        "token_endpoint": format!("{}/token", provider.issuer()),
    });
    assert_eq!(told, expected);
    let page = Call::get("/console").send(at).await.ok();
    let origin = provider.issuer().trim_end_matches("/realm").to_owned();
    let policy = page.header("content-security-policy");
    assert!(policy.ends_with(&format!("connect-src 'self' {origin}")), "{policy}");
}

#[tokio::test]
async fn a_reload_changes_who_may_come_and_ends_the_sign_in_but_keeps_the_keys() {
    let signer = Signer::new("k1", Algorithm::ES256);
    let provider = Provider::start(&[&signer]).await;
    let (rig, url) = rig_with_url(&provider).await;
    fetched(&rig).await;
    endpoints(&rig).await;
    let at = rig.gateway.admin_address();
    let viewer = signer.sign(&claims(&provider, &json!(["viewers"])));
    look(&rig, &viewer).await.ok();
    let operator = |name: &str| {
        let mut claims = claims(&provider, &json!(["sre"]));
        claims["email"] = json!(name);
        signer.sign(&claims)
    };
    reload(&rig, &operator("a"), &text(&url, &oidc(&provider).replace("viewers: read, ", ""))).await;
    assert_eq!(look(&rig, &viewer).await.status, 403, "though its token was known");

    provider.away.store(true, Ordering::SeqCst);
    let without_client = oidc(&provider).replace("client_id: console", "audience: [console]");
    reload(&rig, &operator("b"), &text(&url, &without_client)).await;
    let told = Call::get("/console/sign-in").send(at).await.ok().json();
    assert_eq!(told["provider"], Value::Null, "tokens are taken, and the console offers no sign-in");
    look(&rig, &operator("c")).await.ok();
    reload(&rig, &operator("d"), &text(&url, &oidc(&provider))).await;
    look(&rig, &operator("e")).await.ok();
    until("a line", || rig.telemetry.captured_log().contains("sign-in addresses not known")).await;
}

#[tokio::test]
async fn tokens_are_checked_while_discovery_hangs_or_fails() {
    let signer = Signer::new("k1", Algorithm::ES256);
    let provider = Provider::start(&[&signer]).await;
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = provider.issuer().replace("/realm", "/other");
    for issuer in [format!("http://{}/realm", deaf.local_addr().unwrap()), absent.clone()] {
        let engine = SimServer::start(SimOptions::default()).await.unwrap();
        let keys = format!("{{issuer: '{issuer}', jwks_url: '{}/keys', max_token: 12KiB,", provider.issuer());
        let auth = oidc(&provider).replace(&format!("{{issuer: '{}',", provider.issuer()), &keys);
        let rig = Rig::with_file(&text(&engine.url(), &auth), vec![engine], ["alpha"]).await;
        fetched(&rig).await;
        let mut claims = claims(&provider, &json!(["sre"]));
        claims["iss"] = json!(issuer);
        // As long as one may be: it fits into a head, with what else is there.
        claims["more"] = json!("x".repeat(8_500));
        let token = signer.sign(&claims);
        assert!(token.len() > 11 * 1024 && token.len() <= 12 * 1024, "{}", token.len());
        look(&rig, &token).await.ok();
        let told = Call::get("/console/sign-in").send(rig.gateway.admin_address()).await.ok().json();
        assert_eq!(told["provider"]["token_endpoint"], Value::Null);
        if issuer == absent {
            let line = r#""problem":"status 404""#;
            until("a line", || rig.telemetry.captured_log().contains(line)).await;
        }
    }
}
