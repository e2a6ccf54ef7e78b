//! Names of requests and clients: the gateway's own ids beside those of clients, and the addresses of
//! clients in the log.

use http::Method;
use serde_json::Value;

use crate::support::client::{Answer, Call};
use crate::support::gateway::{PATIENCE, Rig, RigOptions, chat, until};

const CHAT: &str = "/v1/chat/completions";

async fn ask(rig: &Rig, tenant: &str, headers: &[(&str, &str)]) -> Answer {
    let call = Call::post(CHAT, &chat(2, false)).key(rig.key(tenant));
    let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
    call.send(rig.address()).await
}

async fn explained(rig: &Rig, id: &str) -> Value {
    rig.admin(Method::GET, &format!("/admin/v1/requests/{id}")).await.ok().json()
}

#[tokio::test]
async fn no_client_hides_or_impersonates_a_request() {
    let rig =
        Rig::start(RigOptions { tenants: vec![("good", ""), ("evil", "")], ..RigOptions::default() }).await;
    let good = ask(&rig, "good", &[]).await.ok();
    let id = good.header("x-request-id").to_owned();
    assert!(!good.headers.contains_key("x-penstock-request-id"), "it is the gateway's own already");
    let evil = ask(&rig, "evil", &[("x-request-id", &id)]).await.ok();
    assert_eq!(evil.header("x-request-id"), id, "a client has its own id back");
    let own = evil.header("x-penstock-request-id").to_owned();
    assert_ne!(own, id);
    let story = explained(&rig, &id).await;
    assert_eq!((&story["tenant"], &story["gateway_id"]), (&"good".into(), &id.clone().into()));
    assert_eq!(story["same_request_id"], serde_json::json!([own]));
    let story = explained(&rig, &own).await;
    assert_eq!((&story["tenant"], &story["request_id"]), (&"evil".into(), &id.clone().into()));
    // Two clients that choose the same id, of which one is refused.
    let first = ask(&rig, "good", &[("x-request-id", "same")]).await.ok();
    let refused = ask(&rig, "evil", &[("x-request-id", "same"), ("x-penstock-class", "none")]).await;
    assert_eq!(refused.status, 403);
    assert!(refused.headers.contains_key("x-penstock-request-id"), "also in refusals");
    let story = explained(&rig, first.header("x-penstock-request-id")).await;
    assert_eq!(story["tenant"], "good");
    until("four lines", || rig.finished().len() == 4).await;
    let lines: Vec<Value> = rig.finished().into_iter().filter(|line| line["request_id"] == *id).collect();
    let names: Vec<_> = lines.iter().map(|line| (&line["tenant"], &line["gateway_id"])).collect();
    assert_eq!(names, [(&"good".into(), &Value::Null), (&"evil".into(), &own.into())]);
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn the_log_has_as_much_of_an_address_as_it_may() {
    let forwarded = |address: &'static str| vec![("x-forwarded-for", address)];
    for (form, cases) in [
        ("off", vec![(forwarded("203.0.113.77"), Value::Null)]),
        (
            "on",
            vec![
                (forwarded("203.0.113.77"), "203.0.113.77".into()),
                (forwarded("198.51.100.1, 203.0.113.77"), "203.0.113.77".into()),
                (Vec::new(), "127.0.0.1".into()),
            ],
        ),
        (
            "truncated",
            vec![
                (forwarded("203.0.113.77"), "203.0.113.0/24".into()),
                (forwarded("2001:db8:1:2::3"), "2001:db8:1::/48".into()),
                (Vec::new(), "127.0.0.0/24".into()),
            ],
        ),
    ] {
        let rig = Rig::start(RigOptions {
            tenants: vec![("alpha", "")],
            server: "proxies: {trusted: [127.0.0.1/32]}",
            more: format!("telemetry: {{log: {{client_address: {form}}}}}\n"),
            ..RigOptions::default()
        })
        .await;
        for (number, (headers, expected)) in cases.into_iter().enumerate() {
            let id = format!("r{number}");
            ask(&rig, "alpha", &[&headers[..], &[("x-request-id", &*id)]].concat()).await.ok();
            assert_eq!(rig.line_of(&id).await["client_address"], expected, "{form}");
        }
        // A caller without a key is in the log by its address, too.
        let wrong = Call::post(CHAT, &chat(2, false)).header("x-request-id", "wrong");
        assert_eq!(wrong.send(rig.address()).await.status, 401);
        let shown = !rig.line_of("wrong").await["client_address"].is_null();
        assert_eq!(shown, form != "off");
    }
}
