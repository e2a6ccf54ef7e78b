//! Keys that expire, that overlap, and that may do less than their tenant.

use penstock::config::keys::NewKey;
use penstock::sim::server::{SimOptions, SimServer};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{Rig, chat, head, key_of, pool_lines};

const CHAT: &str = "/v1/chat/completions";

fn line(name: &str, more: &str) -> String {
    let NewKey { id, digest, .. } = key_of(name);
    format!("      - {{id: {id}, digest: '{digest}'{more}}}\n")
}

async fn rig() -> Rig {
    let engine = SimServer::start(SimOptions::default()).await.expect("an engine");
    let text = format!(
        "{}tenants:\n  alpha:\n    keys:\n{}{}{}{}pools:\n{}",
        head(""),
        line("old", ", expires: 2001-01-31"),
        line("going", ", expires: '2999-01-31T12:00:00Z'"),
        line("new", ""),
        line("narrow", ", classes: [batch], models: [other]"),
        pool_lines("main", "engine: vllm\nmodels: {sim: sim, other: sim}", &[engine.url()])
    );
    Rig::with_file(&text, vec![engine], ["alpha"]).await
}

async fn ask(rig: &Rig, name: &str, model: &str, class: Option<&str>) -> Answer {
    let mut body = chat(2, true);
    body["model"] = model.into();
    let mut call = Call::post(CHAT, &body).key(&key_of(name).text).header("x-request-id", name);
    if let Some(class) = class {
        call = call.header("x-penstock-class", class);
    }
    call.send(rig.address()).await
}

#[tokio::test]
async fn a_key_gives_way_to_the_next_without_a_break() {
    let rig = rig().await;
    for name in ["going", "new"] {
        assert!(ask(&rig, name, "sim", None).await.is_done(), "{name}");
    }
    let answer = ask(&rig, "old", "sim", None).await;
    assert_eq!((answer.status, &*answer.code()), (401, "invalid_api_key"));
    assert!(answer.text().contains("has expired"), "{}", answer.text());
    assert!(rig.telemetry.captured_log().contains("\"reason\":\"expired\""));
}

#[tokio::test]
async fn a_key_may_do_less_than_its_tenant() {
    let rig = rig().await;
    assert!(ask(&rig, "narrow", "other", None).await.is_done());
    assert_eq!(rig.line_of("narrow").await["class"], "batch", "the first that it may use");
    let answer = ask(&rig, "narrow", "sim", None).await;
    assert_eq!((answer.status, &*answer.code()), (404, "model_not_found"));
    let answer = ask(&rig, "narrow", "other", Some("standard")).await;
    assert_eq!((answer.status, &*answer.code()), (403, "class_not_allowed"));
    assert!(ask(&rig, "new", "sim", Some("standard")).await.is_done());
    let listed = Call::get("/v1/models").key(&key_of("narrow").text).send(rig.address()).await.ok().json();
    let names: Vec<&str> =
        listed["data"].as_array().into_iter().flatten().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(names, ["other"]);
}
