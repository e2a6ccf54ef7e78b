//! Superseding retries: a retry arrives while the request that it repeats is still running. The
//! engines never work for both, and no other request is touched.

use penstock::sim::faults::FaultKind;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::client::{Answer, Call, Raw};
use crate::support::gateway::{Rig, RigOptions, TENANT, chat, soon, until};

const CHAT: &str = "/v1/chat/completions";
/// 50 ms a token.
const SLOW: FaultKind = FaultKind::Slow { factor: 100.0 };

/// Two tenants at one engine that takes one request at a time.
async fn narrow() -> Rig {
    Rig::start(RigOptions {
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 1"),
        tenants: vec![(TENANT, ""), ("beta", "")],
        ..RigOptions::default()
    })
    .await
}

/// The `count`-th retry of a request.
fn attempt(rig: &Rig, tenant: &str, body: &Value, count: u32, id: &str) -> Call {
    let call = Call::post(CHAT, body).key(rig.key(tenant)).header("x-request-id", id);
    call.header("x-stainless-retry-count", &count.to_string())
}

fn send(rig: &Rig, call: Call) -> JoinHandle<Answer> {
    let to = rig.address();
    tokio::spawn(async move { call.send(to).await })
}

/// Holds the only place at the engine until it is dropped.
async fn occupant(rig: &Rig) -> Raw {
    let body = chat(2_000, true);
    let mut client = Raw::open(rig.address()).await;
    client.write(Call::post(CHAT, &body).key(rig.key(TENANT)).bytes()).await.unwrap();
    soon("the first token", client.read_past("\n\n")).await.unwrap();
    client
}

async fn answer(call: JoinHandle<Answer>) -> Answer {
    soon("an answer", call).await.unwrap()
}

async fn superseded(call: JoinHandle<Answer>) {
    let answer = answer(call).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "superseded"));
    assert_eq!(answer.header("x-should-retry"), "true");
}

/// The lines of both tell of each other.
async fn told(rig: &Rig, original: &str, retry: &str) {
    let (original_line, retry_line) = (rig.line_of(original).await, rig.line_of(retry).await);
    assert_eq!(
        (&original_line["replaced_by"], &original_line["reason"]),
        (&json!(retry), &json!("superseded"))
    );
    assert_eq!(original_line["outcome"], "client_gone");
    assert_eq!(retry_line["replaces"], original);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_takes_the_place_of_an_original_that_waits() {
    let rig = narrow().await;
    rig.engine(0).add(SLOW).unwrap();
    let occupant = occupant(&rig).await;
    let body = chat(1, false);
    let original = send(&rig, attempt(&rig, TENANT, &body, 0, "w0"));
    until("the original waits", || rig.waiting() == 1).await;
    // Equal, but nobody says that it is a retry.
    let other = send(&rig, Call::post(CHAT, &body).key(rig.key(TENANT)));
    until("both wait", || rig.waiting() == 2).await;
    let retry = send(&rig, attempt(&rig, TENANT, &body, 1, "w1"));
    superseded(original).await;
    until("two wait", || rig.waiting() == 2).await;
    drop(occupant);
    assert_eq!((answer(retry).await.status, answer(other).await.status), (200, 200));
    told(&rig, "w0", "w1").await;
    assert_eq!(rig.line_of("w1").await["outcome"], "success");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_ends_an_original_without_a_token() {
    let rig = narrow().await;
    rig.engine(0).add(FaultKind::Freeze).unwrap();
    let body = chat(1, true);
    let original = send(&rig, attempt(&rig, TENANT, &body, 0, "r0"));
    until("the original runs", || rig.snapshot().replicas[0].running == 1).await;
    let retry = send(&rig, attempt(&rig, TENANT, &body, 1, "r1"));
    superseded(original).await;
    until("the retry alone is there", || rig.snapshot().jobs == 1).await;
    rig.engine(0).clear();
    assert!(answer(retry).await.ok().is_done());
    told(&rig, "r0", "r1").await;
    assert_eq!(rig.line_of("r1").await["attempts"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_ends_an_original_that_streams() {
    let rig = narrow().await;
    rig.engine(0).add(SLOW).unwrap();
    let body = chat(2_000, true);
    let mut original = Raw::open(rig.address()).await;
    original.write(attempt(&rig, TENANT, &body, 0, "s0").bytes()).await.unwrap();
    soon("the first token", original.read_past("\n\n")).await.unwrap();
    let mut retry = Raw::open(rig.address()).await;
    retry.write(attempt(&rig, TENANT, &body, 1, "s1").bytes()).await.unwrap();
    let rest = soon("the end", original.read_to_end()).await;
    assert!(rest.contains("superseded") && !rest.contains("[DONE]"), "{rest}");
    soon("the first token", retry.read_past("\n\n")).await.unwrap();
    until("one runs", || rig.engine(0).state().running == 1).await;
    assert_eq!(rig.snapshot().jobs, 1);
    drop(retry);
    told(&rig, "s0", "s1").await;
    rig.emptied_within(crate::support::gateway::PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_that_retry_at_once_have_two_requests() {
    let rig = narrow().await;
    rig.engine(0).add(SLOW).unwrap();
    let occupant = occupant(&rig).await;
    let body = chat(1, false);
    let originals =
        [("a0", 0), ("b0", 0)].map(|(id, count)| send(&rig, attempt(&rig, TENANT, &body, count, id)));
    until("both wait", || rig.waiting() == 2).await;
    let retries =
        [("a1", 1), ("b1", 1)].map(|(id, count)| send(&rig, attempt(&rig, TENANT, &body, count, id)));
    for original in originals {
        superseded(original).await;
    }
    until("both retries wait", || rig.waiting() == 2).await;
    // And once more, one after the other: the last of each client is left.
    let last = [("a2", 2), ("b2", 2)].map(|(id, count)| send(&rig, attempt(&rig, TENANT, &body, count, id)));
    for retry in retries {
        superseded(retry).await;
    }
    drop(occupant);
    for retry in last {
        answer(retry).await.ok();
    }
    rig.emptied_within(crate::support::gateway::PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_elses_request_is_touched() {
    let rig = narrow().await;
    rig.engine(0).add(SLOW).unwrap();
    let occupant = occupant(&rig).await;
    let body = chat(1, false);
    let mine = send(&rig, attempt(&rig, TENANT, &body, 0, "m0"));
    until("mine waits", || rig.waiting() == 1).await;
    let theirs = send(&rig, attempt(&rig, "beta", &body, 1, "t1"));
    let longer = send(&rig, attempt(&rig, TENANT, &chat(2, false), 1, "l1"));
    let twin = send(&rig, attempt(&rig, TENANT, &body, 0, "m0-twin"));
    until("all wait", || rig.waiting() == 4).await;
    drop(occupant);
    for call in [mine, theirs, longer, twin] {
        answer(call).await.ok();
    }
    // What it repeats has ended: an ordinary request.
    answer(send(&rig, attempt(&rig, TENANT, &body, 1, "m1"))).await.ok();
    for id in ["m0", "t1", "l1", "m0-twin", "m1"] {
        let line = rig.line_of(id).await;
        assert!(line.get("replaces").is_none() && line.get("replaced_by").is_none(), "{line}");
    }
}
