//! Demand state file: the measured demand outlives the gateway.

use std::path::Path;

use http::Method;
use serde_json::Value;

use crate::support::gateway::{Rig, RigOptions, chat};

async fn gateway(file: &Path) -> Rig {
    let more = format!("scale: {{state_file: {}}}\n", file.display());
    Rig::start(RigOptions { more, ..RigOptions::default() }).await
}

fn state(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// What the row of the pool says was seen.
fn seen(state: &Value) -> Value {
    let rows = state["rows"].as_array().unwrap();
    let pool = rows.iter().find(|row| row["kind"] == "pool" && row["name"] == "main");
    pool.unwrap_or_else(|| panic!("{state}"))["seen"].clone()
}

async fn serve(rig: &Rig, requests: usize) {
    for _ in 0..requests {
        assert_eq!(rig.post("/v1/chat/completions", &chat(2, false)).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_seen_before_a_restart_is_known_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("demand.json");
    let first = gateway(&file).await;
    assert!(!first.telemetry.captured_log().contains("demand not kept"), "no file is no fault");
    serve(&first, 5).await;
    first.gateway.drain().await;
    let kept = state(&file);
    assert_eq!((&kept["version"], seen(&kept)["kept"].as_f64()), (&1.into(), Some(5.0)), "{kept}");

    let second = gateway(&file).await;
    assert!(second.telemetry.captured_log().contains("demand restored"));
    serve(&second, 2).await;
    let now: Value = second.admin(Method::GET, "/admin/v1/demand").await.json();
    second.gateway.drain().await;
    let sum = seen(&now)["kept"].as_f64().unwrap();
    assert!((6.9..=7.0).contains(&sum), "what is old fades, slowly: {sum}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_cannot_be_read_is_said_and_written_anew() {
    let cases =
        [("{\"version\":", "EOF"), ("{\"version\": 99, \"pools\": [], \"rows\": []}", "version is 99")];
    for (text, why) in cases {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("demand.json");
        std::fs::write(&file, text).unwrap();
        let rig = gateway(&file).await;
        let log = rig.telemetry.captured_log();
        let said = log.lines().any(|line| line.contains("demand not kept") && line.contains(why));
        assert!(said, "{why}: {log}");
        serve(&rig, 1).await;
        rig.gateway.drain().await;
        assert_eq!(seen(&state(&file))["kept"].as_f64(), Some(1.0));
    }
}
