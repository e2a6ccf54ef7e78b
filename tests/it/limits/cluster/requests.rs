//! Requests of other gateways, through a real Redis: an operator finds one from any gateway, and a
//! gateway that starts hears what tenants have used.

use http::Method;
use penstock::cluster::MESSAGES;
use penstock::sim::server::{SimOptions, SimServer};
use redis::{Connection, Script};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::limits::cluster::gateways::gateways;
use crate::support::client::Call;
use crate::support::gateway::{Rig, RigOptions, TENANT, chat, until};
use crate::support::redis::RedisServer;

const CHAT: &str = "/v1/chat/completions";

/// A gateway with an engine, whose URL two gateways may share.
async fn rig(server: &RedisServer, url: &str) -> Rig {
    let more = format!(
        "cluster: {{valkey: {{url: '{}'}}}}\nclasses: {{interactive: {{usage_half_life: 1h}}}}\n",
        server.url()
    );
    let urls = vec![url.to_owned()];
    Rig::start(RigOptions { urls, tenants: vec![(TENANT, "")], more, ..RigOptions::default() }).await
}

async fn explained(rig: &Rig, id: &str) -> (u16, Value) {
    let answer = rig.admin(Method::GET, &format!("/admin/v1/requests/{id}")).await;
    (answer.status, answer.json())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_is_found_from_any_gateway() {
    let mut server = block_in_place(RedisServer::start);
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let [one, two] = [rig(&server, &engine.url()).await, rig(&server, &engine.url()).await];
    for rig in [&one, &two] {
        gateways(rig, 2).await;
    }
    let call = Call::post(CHAT, &chat(3, false)).key(one.key(TENANT)).header("x-request-id", "r-1");
    call.send(one.address()).await.ok();
    let (_, own) = explained(&one, "r-1").await;
    assert_eq!(own["gateway"], Value::Null, "it is at this gateway");
    let (status, mut found) = explained(&two, "r-1").await;
    let name = found["gateway"].as_str().unwrap().to_owned();
    assert!(name.contains(':'), "{found}");
    assert_eq!((status, &found["end"]["outcome"]), (200, &json!("success")));
    found["gateway"].take();
    assert_eq!((&found["tries"], &found["end"]), (&own["tries"], &own["end"]));
    let (status, unknown) = explained(&two, "r-2").await;
    let message = unknown["error"]["message"].as_str().unwrap();
    assert_eq!(status, 404);
    assert!(
        message.starts_with("no request `r-2` is remembered") && message.ends_with("in the log"),
        "{message}"
    );
    block_in_place(|| server.kill());
    until("it is noticed", || two.telemetry.captured_log().contains("is away")).await;
    let (status, unasked) = explained(&two, "r-1").await;
    let message = unasked["error"]["message"].as_str().unwrap();
    assert!(status == 404 && message.contains("could not be asked: the store is away"), "{message}");
}

/// Tokens that tenants have used lately, as this gateway knows.
fn used(rig: &Rig) -> i64 {
    rig.gateway.proxy().dispatcher.past_use(10).iter().map(|report| report.tokens).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_that_starts_knows_what_tenants_have_used() {
    let server = block_in_place(RedisServer::start);
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let old = rig(&server, &engine.url()).await;
    for _ in 0..4 {
        Call::post(CHAT, &chat(20, false)).key(old.key(TENANT)).send(old.address()).await.ok();
    }
    let known = used(&old);
    assert!(known > 100, "{known}");
    let new = rig(&server, &engine.url()).await;
    until("it is told", || used(&new) > 0).await;
    // Some seconds' decay of an hour's half-life.
    assert!((known * 98 / 100..=known).contains(&used(&new)), "{} of {known}", used(&new));
    assert_eq!(used(&old), known, "the old one takes nothing over");
}

/// Calls the script at this time of the store. Returns the number of the last message, and what was heard.
fn turn(store: &mut Connection, at: u64, id: &str, last: &str, sent: &[[&str; 2]]) -> (String, Vec<String>) {
    let script = Script::new(&MESSAGES.replace("--NOW", "local now = tonumber(table.remove(ARGV))"));
    let mut call = script.key("p:v1:{messages}");
    call.arg(id).arg(last);
    sent.iter().flatten().for_each(|value| {
        call.arg(*value);
    });
    let mut answer: Vec<String> = call.arg(1_795_651_200_000 + at).invoke(store).unwrap();
    let last = answer.remove(0);
    (last, answer.chunks_exact(2).map(|row| format!("{}: {}", row[0], row[1])).collect())
}

#[test]
fn a_message_is_heard_once_by_those_that_it_is_for() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    let nothing = Vec::<String>::new();
    let (last_of_a, heard) = turn(store, 0, "a", "", &[["*", "to all"], ["b", "to b"]]);
    assert_eq!(heard, nothing, "nobody hears what it says itself");
    let (last_of_b, heard) = turn(store, 10, "b", "", &[]);
    assert_eq!(heard, ["a: to all", "a: to b"]);
    assert_eq!(turn(store, 20, "b", &last_of_b, &[]).1, nothing);
    assert_eq!(turn(store, 30, "c", "", &[["a", "an {\"answer\"}"]]).1, ["a: to all"]);
    assert_eq!(turn(store, 40, "a", &last_of_a, &[]).1, ["c: an {\"answer\"}"]);
    assert_eq!(turn(store, 2_050, "d", "", &[]).1, nothing, "they are two seconds old");
    // The clock of the store goes back, as after a change of servers.
    let (last, _) = turn(store, 100_000, "a", "", &[["*", "later"]]);
    turn(store, 3_000, "b", "", &[["*", "earlier"]]);
    assert_eq!(turn(store, 3_010, "a", &last, &[]).1, ["b: earlier"]);
}

#[test]
fn the_store_holds_a_bounded_number_of_messages_for_a_while() {
    let server = RedisServer::start();
    let store = &mut server.connect();
    turn(store, 0, "a", "", &vec![["*", "question"]; 300]);
    assert_eq!(turn(store, 1, "b", "", &[]).1.len(), 256);
    let long = "x".repeat(900_000);
    turn(store, 5_000, "a", "", &[["*", &long], ["*", &long], ["*", "short"]]);
    let (_, heard) = turn(store, 5_001, "b", "", &[]);
    assert_eq!((heard.len(), &*heard[1]), (2, "a: short"));
    redis::cmd("HSET").arg("p:v1:{messages}").arg("odd").arg("no message").exec(store).unwrap();
    turn(store, 9_000, "b", "", &[]);
    let left: u64 = redis::cmd("HLEN").arg("p:v1:{messages}").query(store).unwrap();
    assert_eq!(left, 0);
}
