//! Identity provider tokens: a real provider on loopback that signs with changing keys.

use std::sync::atomic::Ordering;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{Rig, chat, head, pool_lines, tenant_lines, until};
use crate::support::provider::{Provider, Signer, now};

const CHAT: &str = "/v1/chat/completions";

/// A gateway that trusts the provider; limits on failures are as given.
async fn rig(provider: &Provider, failures: &str) -> Rig {
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let auth = format!(
        "auth:\n  failures: {{{failures}}}\n  oidc:\n    - issuer: {}\n      audience: [penstock]\n      tenant_claim: team.name\n      \
         tenants: {{ml-alpha: alpha, ml-beta: beta}}\n      class_claim: classes\n      model_claim: models\n      leeway: 0s\n",
        provider.issuer()
    );
    let text = format!(
        "{}{auth}tenants:\n{}{}pools:\n{}",
        head(""),
        tenant_lines("alpha", ""),
        tenant_lines("beta", ""),
        pool_lines("main", "engine: vllm\nmodels: [sim, other]", &[engine.url()])
    );
    Rig::with_file(&text, vec![engine], ["alpha", "beta"]).await
}

async fn ask(rig: &Rig, token: &str) -> Answer {
    Call::post(CHAT, &chat(2, true)).key(token).send(rig.address()).await
}

/// The reasons for which nobody was let in, one for each time.
fn reasons(rig: &Rig) -> Vec<String> {
    let log = rig.telemetry.captured_log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines = lines.filter(|line| line["message"] == "authentication failed");
    lines.map(|line| line["reason"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_token_opens_the_door_for_its_tenant_and_what_it_may_use() {
    let (rsa, ec) = (Signer::new("r1", Algorithm::RS256), Signer::new("e1", Algorithm::ES256));
    let provider = Provider::start(&[&rsa, &ec]).await;
    let rig = rig(&provider, "").await;
    for (signer, id) in [(&rsa, "by-rsa"), (&ec, "by-ec")] {
        let token = signer.sign(&provider.claims());
        let call = Call::post(CHAT, &chat(2, true)).key(&token).header("x-request-id", id);
        assert!(call.send(rig.address()).await.is_done());
        let line = rig.line_of(id).await;
        assert_eq!((&line["tenant"], &line["class"]), (&"alpha".into(), &"standard".into()));
        assert!(line["key_id"].as_str().unwrap().starts_with("jwt:"), "{line}");
    }
    assert!(ask(&rig, rig.key("alpha")).await.is_done(), "keys go on as before");
    let log = rig.telemetry.captured_log();
    for secret in ["somebody", "ml-alpha", "eyJ"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
    let token = rsa.sign(&provider.claims());
    let urgent = Call::post(CHAT, &chat(2, true)).key(&token).header("x-penstock-class", "interactive");
    let answer = urgent.send(rig.address()).await;
    assert_eq!((answer.status, &*answer.code()), (403, "class_not_allowed"));
    let listed = Call::get("/v1/models").key(&token).send(rig.address()).await.ok();
    assert_eq!(listed.json()["data"].as_array().unwrap().len(), 1);
    // No claim of classes, none that is ours, no tenant, no audience that fits.
    for claims in [
        provider.claims_with("classes", Value::Null),
        provider.claims_with("classes", json!(["admin"])),
        provider.claims_with("models", json!([])),
        provider.claims_with("team", json!({ "name": "ml-gamma" })),
        provider.claims_with("team", json!("ml-alpha")),
    ] {
        let answer = ask(&rig, &rsa.sign(&claims)).await;
        assert_eq!((answer.status, &*answer.code()), (403, "identity_not_mapped"), "{claims}");
    }
    let many = provider.claims_with("team", json!({ "name": ["x", "ml-beta", "ml-alpha"] }));
    assert!(ask(&rig, &rsa.sign(&many)).await.is_done(), "of a list the first of the file counts");
    assert_eq!(rig.finished().last().unwrap()["tenant"], "alpha");
}

#[tokio::test]
async fn keys_rotate_and_one_unknown_key_does_not_flood_the_provider() {
    let (first, second) = (Signer::new("k1", Algorithm::RS256), Signer::new("k2", Algorithm::ES256));
    let provider = Provider::start(&[&first]).await;
    let rig = rig(&provider, "per_minute: 0").await;
    assert!(ask(&rig, &first.sign(&provider.claims())).await.is_done());
    assert_eq!(provider.fetches(), 1);
    // Both for a while, then only the new one: each is known at the first try.
    provider.publish(&[&first, &second]);
    assert!(ask(&rig, &second.sign(&provider.claims())).await.is_done());
    assert!(ask(&rig, &first.sign(&provider.claims())).await.is_done());
    assert_eq!(provider.fetches(), 2);
    let held = first.sign(&provider.claims_with("sub", json!("held")));
    assert!(ask(&rig, &held).await.is_done());
    provider.publish(&[&second]);
    let third = Signer::new("k3", Algorithm::ES256);
    let answer = ask(&rig, &third.sign(&provider.claims())).await;
    assert_eq!((answer.status, &*answer.code()), (401, "invalid_api_key"), "a key that nobody published");
    assert_eq!(provider.fetches(), 3);
    let answer = ask(&rig, &held).await;
    assert_eq!(
        answer.status, 401,
        "what was signed with a key that is withdrawn is over, though it was known"
    );
    for _ in 0..30 {
        assert_eq!(ask(&rig, &third.sign(&provider.claims())).await.status, 401);
    }
    assert!(provider.fetches() <= 6, "{} fetches for 31 tokens", provider.fetches());
    assert!(ask(&rig, &second.sign(&provider.claims())).await.is_done());
}

#[tokio::test]
async fn tokens_that_are_not_right_in_every_way_are_refused() {
    let (signer, stranger) = (Signer::new("k1", Algorithm::RS256), Signer::new("k1", Algorithm::RS256));
    let provider = Provider::start(&[&signer]).await;
    let rig = rig(&provider, "per_minute: 0").await;
    let good = signer.sign(&provider.claims());
    assert!(ask(&rig, &good).await.is_done());
    let part = |value: &Value| base64url(value.to_string().as_bytes());
    let [header, payload, signature] = <[&str; 3]>::try_from(good.split('.').collect::<Vec<_>>()).unwrap();
    let none = json!({ "alg": "none", "typ": "JWT", "kid": "k1" });
    // The provider's public key as a shared secret: what a careless verifier
    // would take.
    let modulus = signer.public["n"].as_str().unwrap();
    let mut confused = Header::new(Algorithm::HS256);
    confused.kid = Some("k1".to_owned());
    let confused = |secret: &[u8]| {
        jsonwebtoken::encode(&confused, &provider.claims(), &EncodingKey::from_secret(secret)).unwrap()
    };
    let mut critical = Header::new(Algorithm::RS256);
    (critical.kid, critical.crit) = (Some("k1".to_owned()), Some(vec!["exp".to_owned()]));
    let critical = jsonwebtoken::encode(&critical, &provider.claims(), &signer.key).unwrap();
    let with = |key: &str, value: Value| signer.sign(&provider.claims_with(key, value));
    let other = provider.claims_with("team", json!({ "name": "ml-beta" }));
    let cases = [
        (format!("{}.{payload}.", part(&none)), "token_algorithm"),
        (format!("{}.{payload}.{signature}", part(&none)), "token_algorithm"),
        (confused(modulus.as_bytes()), "token_algorithm"),
        (confused(signer.public.to_string().as_bytes()), "token_algorithm"),
        (critical, "token_critical"),
        (stranger.sign(&provider.claims()), "token_signature"),
        (format!("{header}.{}.{signature}", part(&other)), "token_signature"),
        (with("exp", json!(now() - 1)), "token_expired"),
        (with("exp", Value::Null), "token_malformed"),
        (with("nbf", json!(now() + 300)), "token_not_yet"),
        (with("aud", json!("somebody-else")), "token_audience"),
        (with("aud", Value::Null), "token_audience"),
        (with("iss", json!("https://evil.example.com")), "token_issuer"),
        (with("padding", json!("x".repeat(9_000))), "token_too_long"),
        ("eyJhbGciOiJSUzI1NiJ9..".to_owned(), "token_malformed"),
        ("eyJ.eyJ.x".to_owned(), "token_malformed"),
    ];
    let begun = reasons(&rig).len();
    for (token, reason) in &cases {
        let answer = ask(&rig, token).await;
        assert_eq!((answer.status, &*answer.code()), (401, "invalid_api_key"), "{reason}");
        assert_eq!(answer.header("x-should-retry"), "false");
        assert_eq!(reasons(&rig).last().unwrap(), reason);
        assert!(
            !answer.text().contains("alpha") && !answer.text().contains(&token[..9]),
            "{}",
            answer.text()
        );
    }
    assert_eq!(reasons(&rig).len() - begun, cases.len());
    assert!(ask(&rig, &good).await.is_done());
    assert_eq!(rig.engine(0).state().total, 2);
}

#[tokio::test]
async fn a_provider_that_is_away_is_no_refusal() {
    let (first, second) = (Signer::new("k1", Algorithm::ES256), Signer::new("k2", Algorithm::ES256));
    let provider = Provider::start(&[&first]).await;
    provider.away.store(true, Ordering::SeqCst);
    let rig = rig(&provider, "").await;
    let token = first.sign(&provider.claims());
    let answer = ask(&rig, &token).await;
    assert_eq!((answer.status, &*answer.code()), (503, "identity_provider_unavailable"));
    assert_eq!(answer.header("x-should-retry"), "true");
    assert!(ask(&rig, rig.key("alpha")).await.is_done(), "keys need no provider");
    provider.away.store(false, Ordering::SeqCst);
    until("the keys are there", || rig.telemetry.captured_log().contains("issuer keys fetched")).await;
    assert!(ask(&rig, &token).await.is_done());
    // Away again: what is known holds, what is not is not called wrong.
    provider.away.store(true, Ordering::SeqCst);
    let answer = ask(&rig, &second.sign(&provider.claims())).await;
    assert_eq!((answer.status, &*answer.code()), (503, "identity_provider_unavailable"));
    assert!(ask(&rig, &first.sign(&provider.claims_with("sub", json!("new")))).await.is_done());
}

#[tokio::test]
async fn failures_are_answered_more_shortly_and_never_stop_who_is_right() {
    let signer = Signer::new("k1", Algorithm::ES256);
    let provider = Provider::start(&[&signer]).await;
    let rig = rig(&provider, "burst: 3, per_minute: 1").await;
    let right = signer.sign(&provider.claims());
    assert!(ask(&rig, &right).await.is_done());
    for _ in 0..3 {
        assert_eq!(ask(&rig, "sk-wrong").await.status, 401);
    }
    let wrong_token = signer.sign(&provider.claims_with("aud", json!("x")));
    for wrong in ["sk-wrong", &*wrong_token] {
        let answer = ask(&rig, wrong).await;
        assert_eq!((answer.status, &*answer.code()), (429, "too_many_failed_attempts"));
        let wait: u64 = answer.header("retry-after").parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
        assert_eq!(answer.header("x-should-retry"), "false");
    }
    for _ in 0..5 {
        assert!(ask(&rig, &right).await.is_done());
        assert!(ask(&rig, rig.key("beta")).await.is_done());
        let new = signer.sign(&provider.claims_with("sub", json!(now())));
        assert!(ask(&rig, &new).await.is_done());
    }
    let bare = Call::post(CHAT, &chat(2, true)).send(rig.address()).await;
    assert_eq!((bare.status, &*bare.code()), (401, "missing_api_key"), "nothing was tried");
}

fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| usize::from(byte >> (7 - at % 8) & 1));
    let letter = |at: usize| char::from(LETTERS[(at..at + 6).fold(0, |value, at| value << 1 | bit(at))]);
    (0..bytes.len() * 8).step_by(6).map(letter).collect()
}
