//! `GET /v1/me`: a tenant's own view.

use penstock::sim::server::SimOptions;
use serde_json::{Value, json};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{Rig, RigOptions, chat, key_of, until};

const CHAT: &str = "/v1/chat/completions";

async fn me(rig: &Rig, tenant: &str) -> Answer {
    Call::get("/v1/me").key(&key_of(tenant).text).send(rig.address()).await
}

#[tokio::test]
async fn a_tenant_sees_its_own_use_and_nothing_of_others() {
    let mut options = RigOptions {
        tenants: vec![
            ("alpha", "limits: {per_minute: {requests: 10}, concurrent: {requests: 9}}"),
            ("beta", "limits: {per_minute: {requests: 77}}\nclasses: [batch]"),
        ],
        more: "usage: {folder: usage, database: none}\n".to_owned(),
        ..RigOptions::default()
    };
    let mut engine = SimOptions::default();
    engine.engine.max_seqs = Some(1);
    engine.speed = 0.05;
    options.engines = vec![engine];
    options.pool = Some("engine: vllm\nmodels: [sim]\nmax_seqs: 1");
    let rig = Rig::start(options).await;
    let post = |tenant: &str, tokens| Call::post(CHAT, &chat(tokens, false)).key(&key_of(tenant).text);
    let address = rig.address();
    let long = tokio::spawn(post("beta", 6_000).send(address));
    until("beta runs", || rig.snapshot().replicas.iter().any(|row| row.running > 0)).await;
    let waits = tokio::spawn(post("alpha", 2).header("x-request-id", "mine").send(address));
    until("alpha waits", || rig.waiting() > 0).await;

    let seen = me(&rig, "alpha").await.ok();
    assert!(!seen.text().contains("beta"), "{}", seen.text());
    let seen = seen.json();
    assert_eq!((seen["tenant"].clone(), seen["key"].clone()), (json!("alpha"), json!(key_of("alpha").id)));
    let limits = seen["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 2, "{seen}");
    let minute = limits.iter().find(|row| row["period"] == "per_minute").unwrap();
    assert_eq!(
        (minute["amount"].clone(), minute["used"].clone(), minute["left"].clone()),
        (json!(10), json!(1), json!(9))
    );
    let waiting = &seen["waiting"];
    assert_eq!(waiting["queues"][0]["requests"], 1);
    let request = &waiting["requests"][0];
    assert_eq!(request["request_id"], "mine", "{seen}");
    assert!(request["why"].is_string() && request["waits_seconds"].as_f64().unwrap() >= 0.0);
    assert_eq!(seen["month"]["cost"], 0.0, "{seen}");

    let other = me(&rig, "beta").await.ok().json();
    assert_eq!(
        (other["classes"].clone(), other["waiting"]["requests"].clone()),
        (json!(["batch"]), json!([]))
    );
    let nobody = Call::get("/v1/me").send(rig.address()).await;
    assert_eq!(nobody.status, 401);
    let wrong = Call::post("/v1/me", &Value::Null).key(&key_of("alpha").text).send(rig.address()).await;
    assert_eq!(wrong.status, 405);
    long.abort();
    waits.abort();
}
