//! `GET /v1/me`: a tenant's own view.

use penstock::sim::server::SimOptions;
use penstock::usage::each_row;
use penstock::usage::row::RowKind;
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
    assert_eq!(seen.header("cache-control"), "no-store");
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
    assert_eq!((&request["request_id"], &request["model"]), (&json!("mine"), &json!("sim")), "{seen}");
    assert!(request.get("starts_in_seconds").is_some(), "null while nothing is predicted: {seen}");
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

#[tokio::test]
async fn use_and_cost_are_told_by_model_for_today_and_the_month() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(RigOptions {
        tenants: vec![("alpha", ""), ("beta", "")],
        pool: Some("engine: vllm\nmodels: [sim]\nprice: 3.6"),
        more: format!("usage: {{folder: \"{}\", database: none}}\n", folder.path().display()),
        ..RigOptions::default()
    })
    .await;
    for _ in 0..2 {
        let call = Call::post(CHAT, &chat(5, false)).key(&key_of("alpha").text);
        call.send(rig.address()).await.ok();
    }
    // The first question makes the bill that holds for a minute.
    let is_written = || {
        let mut requests = 0;
        let read = each_row(folder.path(), |row| requests += u64::from(row.kind == RowKind::Request));
        read.is_ok() && requests == 2
    };
    until("both requests are written down", is_written).await;

    let seen = me(&rig, "alpha").await.ok().json();
    for span in ["today", "month"] {
        let used = &seen[span];
        assert_eq!(used["requests"], 2, "{span}: {seen}");
        assert!(used["cost"].as_f64().unwrap() > 0.0, "{span}: {seen}");
        assert!(used["since"].as_str().unwrap().ends_with("T00:00:00Z"), "{span}: {seen}");
        let models = used["models"].as_array().unwrap();
        assert_eq!((models.len(), &models[0]["model"]), (1, &json!("sim")), "{span}: {seen}");
        for name in ["requests", "input_tokens", "output_tokens", "gpu_seconds", "cost"] {
            assert_eq!(models[0][name], used[name], "{span}, {name}: {seen}");
        }
    }
    let other = me(&rig, "beta").await.ok().json();
    for span in ["today", "month"] {
        let used = &other[span];
        assert_eq!((&used["requests"], &used["models"]), (&json!(0), &json!([])), "{span}: {other}");
    }
}
