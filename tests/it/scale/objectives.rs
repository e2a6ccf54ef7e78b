//! Objectives that no pool can reach, as a running gateway measures them.

use http::Method;
use penstock::core::placement::unattainable::{ENOUGH_FIRST_TOKENS, ENOUGH_GAPS};
use penstock::sim::faults::FaultKind;
use serde_json::{Value, json};

use crate::support::client::Call;
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, chat, until};

const CHAT: &str = "/v1/chat/completions";

/// Objectives that no engine keeps, and one that every engine does.
const CLASSES: &str =
    "classes:\n  standard: {rank: 0, ttft: 1ms, itl: 1ms}\n  slow: {rank: 1, ttft: 1m, itl: 1m}\n";

async fn unkept(rig: &Rig) -> Vec<Value> {
    let status = rig.admin(Method::GET, "/admin/v1/status").await.ok().json();
    status["unkept_promises"].as_array().unwrap().clone()
}

#[tokio::test]
async fn what_no_pool_keeps_is_found_once_it_is_measured() {
    let rig = Rig::start(RigOptions { more: CLASSES.into(), ..RigOptions::default() }).await;
    rig.engine(0).add(FaultKind::Slow { factor: 20.0 }).unwrap();
    assert!(unkept(&rig).await.is_empty(), "nothing is known yet");
    let mut running = Vec::new();
    let count = ENOUGH_FIRST_TOKENS + 20;
    for _ in 0..count {
        let call = Call::post(CHAT, &chat(30, true)).key(rig.key(TENANT));
        // In this one its sequences are not cut to keep the pace.
        let call = call.header("x-penstock-class", "slow");
        running.push(tokio::spawn(call.send(rig.address())));
    }
    for answer in running {
        assert!(answer.await.unwrap().is_done());
    }
    let best = || rig.snapshot().pools[0].best;
    until("the gaps are counted", || best().gaps >= ENOUGH_GAPS).await;
    let shown = best();
    assert_eq!(shown.first_tokens, count);
    let rows = unkept(&rig).await;
    let names = |row: &Value| json!([row["class"], row["model"], row["objective"], row["pool"]]);
    let names: Vec<Value> = rows.iter().map(names).collect();
    assert_eq!(
        names,
        [json!(["standard", "sim", "ttft", "main"]), json!(["standard", "sim", "itl", "main"])]
    );
    let pools = rig.admin(Method::GET, "/admin/v1/pools").await.ok().json();
    let row = &pools["pools"][0]["best"];
    assert_eq!(row["ttft_seconds"], json!(shown.first_token.unwrap().as_secs_f64()), "{row}");
    assert!(row["itl_seconds"].as_f64().unwrap() > 0.0 && row["read_tokens_per_second"].as_u64() > Some(0));
    rig.emptied_within(PATIENCE).await;
}
