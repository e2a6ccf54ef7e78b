//! JSON and metrics: the same numbers over HTTP, and as metrics.

use http::Method;
use penstock::sim::server::SimOptions;
use serde_json::json;

use super::setup::{Keda, rig};
use crate::support::client::Call;
use crate::support::gateway::{Rig, RigOptions, TENANT, chat};

#[tokio::test]
async fn people_and_metrics_api_get_the_numbers_of_the_scaler() {
    let rig = rig(Vec::new(), &[], "").await;
    let keda = Keda::of(&rig).await;
    let held = tokio::spawn(
        Call::post("/v1/chat/completions", &chat(3, true)).key(rig.key(TENANT)).send(rig.address()),
    );
    keda.wants(1).await;
    let get = |path: &'static str| rig.admin(Method::GET, path);
    let one = get("/scale/v1/main").await;
    let row = one.json();
    assert_eq!((one.status, &row["desired"], &row["active"]), (200, &json!(1), &json!(true)), "{row}");
    assert_eq!((&row["queued"], &row["inflight"], &row["reason"]), (&json!(1), &json!(0), &json!("start")));
    assert!(row["queued_tokens"].as_u64().unwrap() > 0);
    let all = get("/scale/v1/pools").await.json();
    let names: Vec<_> = all["pools"].as_array().unwrap().iter().map(|row| &row["pool"]).collect();
    assert_eq!(names, ["main", "other"]);
    assert_eq!(get("/scale/v1/pools/main").await.json()["desired"], 1);
    let bounded = get("/scale/v1/main?minReplicas=3&maxReplicas=4").await.json();
    assert_eq!((&bounded["desired"], &bounded["reason"]), (&json!(3), &json!("start, clamp")));
    assert_eq!(get("/scale/v1/main?mode=queue&target=1").await.json()["value"], 1);
    assert_eq!(get("/scale/v1/gone").await.status, 404);
    assert_eq!(get("/scale/v1/main?keepLast=soon").await.status, 400);
    // One for what waits, and one that is kept until a window was seen.
    assert_eq!(rig.metric("penstock_desired_replicas").await, 2.0);
    assert!(rig.metric("penstock_pool_queued_tokens").await > 0.0);
    held.abort();
}

#[tokio::test]
async fn without_a_scaler_the_numbers_are_on_the_admin_port_and_behind_its_token() {
    let rig = Rig::start(RigOptions {
        engines: vec![SimOptions::default()],
        more: "admin: {auth: {tokens: [{id: p8rometh, role: read, digest: \
               'blake3:4f2a6d8c1b3e5f7091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708'}]}}\n"
            .to_owned(),
        ..RigOptions::default()
    })
    .await;
    assert_eq!(rig.gateway.scale_address(), None);
    assert_eq!(rig.admin(Method::GET, "/scale/v1/main").await.status, 401);
    let rig = Rig::start(RigOptions::default()).await;
    assert_eq!(rig.admin(Method::GET, "/scale/v1/main").await.json()["desired"], 1);
}
