//! Operator commands against a gateway under load.

pub(crate) mod completion;
pub(crate) mod drain;
pub(crate) mod record;
pub(crate) mod reload;
pub(crate) mod scarce;
pub(crate) mod simulate;

use http::Method;
use penstock::core::model::snapshot::ReplicaStatus;
use penstock::sim::faults::{Fault, FaultKind};
use penstock::sim::server::SimOptions;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::client::{Answer, Call};
use crate::support::gateway::{PATIENCE, Rig, RigOptions, TENANT, chat, soon, until};

const CHAT: &str = "/v1/chat/completions";

/// Two engines with four places each; a token takes `slow` times half a
/// millisecond.
async fn two_engines(slow: f64) -> Rig {
    let rig = Rig::start(RigOptions {
        engines: vec![SimOptions::default(), SimOptions::default()],
        pool: Some("engine: vllm\nmodels: [sim]\nmax_seqs: 4"),
        tenants: vec![(TENANT, ""), ("beta", "")],
        more: "health: {slow_start: 1ms}\n".into(),
        ..RigOptions::default()
    })
    .await;
    for number in 0..2 {
        rig.engine(number).add(FaultKind::Slow { factor: slow }).unwrap();
    }
    rig
}

impl Rig {
    async fn verb(&self, path: &str, body: &Value) -> Answer {
        Call::post(path, body).send(self.gateway.admin_address()).await
    }

    async fn done(&self, path: &str, body: &Value) -> Value {
        self.verb(path, body).await.ok().json()
    }

    fn begin(&self, tenant: &str, id: &str, body: &Value) -> JoinHandle<Answer> {
        let call = Call::post(CHAT, body).key(self.key(tenant)).header("x-request-id", id);
        tokio::spawn(call.send(self.address()))
    }

    async fn told(&self, id: &str) -> Value {
        self.admin(Method::GET, &format!("/admin/v1/requests/{id}")).await.ok().json()
    }

    fn name_of(&self, replica: usize) -> String {
        let policy = &self.gateway.proxy().settings.load().policy;
        let (_, name, _) = policy.replicas.iter().nth(replica).unwrap();
        name.to_owned()
    }

    fn running(&self, replica: usize) -> u32 {
        self.snapshot().replicas[replica].running
    }
}

#[tokio::test]
async fn a_drain_under_load_loses_nothing() {
    let rig = two_engines(100.0).await;
    let requests: Vec<_> = (0..24)
        .map(|number| (format!("r-{number}"), number % 3 != 0))
        .map(|(id, stream)| (id.clone(), stream, rig.begin(TENANT, &id, &chat(200, stream))))
        .collect();
    until("both engines are full", || rig.running(0) == 4 && rig.running(1) == 4).await;
    let name = rig.name_of(0);
    let answer = rig.done("/admin/v1/replicas/drain", &json!({ "name": name, "reason": "a test" })).await;
    assert_eq!((&answer["before"], &answer["after"]), (&json!("none"), &json!("drain")));
    assert_eq!(answer["notes"], json!([]));
    (0..2).for_each(|engine| rig.engine(engine).clear());
    for (id, stream, request) in requests {
        let answer = soon(&id, request).await.unwrap().ok();
        if stream {
            assert!(answer.is_done(), "{id}");
        }
    }
    assert_eq!(rig.snapshot().replicas[0].state, ReplicaStatus::Draining);
    until("its streams have ended", || rig.running(0) == 0).await;
    rig.emptied_within(PATIENCE).await;
    let lines = rig.finished();
    assert!(lines.iter().all(|line| line["outcome"] == "success"), "{lines:?}");
    let late = rig.begin(TENANT, "late", &chat(1, false));
    soon("a request after the drain", late).await.unwrap().ok();
    assert_eq!(rig.told("late").await["tries"][0]["replica"], rig.name_of(1));
    rig.done("/admin/v1/replicas/uncordon", &json!({ "name": rig.name_of(0) })).await;
    until("it serves again", || rig.snapshot().replicas[0].state == ReplicaStatus::Serving).await;
}

#[tokio::test]
async fn what_has_no_token_moves_and_streams_stay() {
    let rig = two_engines(100.0).await;
    // The other replica is full, so that both of these go to the first.
    rig.done("/admin/v1/replicas/cordon", &json!({ "name": rig.name_of(0) })).await;
    let others: Vec<_> = (0..4).map(|n| rig.begin(TENANT, &format!("o-{n}"), &chat(500, true))).collect();
    until("the other one is full", || rig.running(1) == 4).await;
    rig.done("/admin/v1/replicas/uncordon", &json!({ "name": rig.name_of(0) })).await;
    let stream = rig.begin(TENANT, "stream", &chat(2000, true));
    until("a token", || rig.running(0) == 1 && rig.snapshot().replicas[0].prefill_tokens == 0).await;
    let silent = FaultKind::Silent { after_tokens: 0, before_head: true };
    rig.engine(0).add(Fault { times: Some(1), ..silent.into() }).unwrap();
    let unseen = rig.begin(TENANT, "unseen", &chat(3, true));
    until("it is there", || rig.running(0) == 2).await;

    let answer = rig.done("/admin/v1/replicas/spot-notice", &json!({ "name": rig.name_of(0) })).await;
    assert_eq!((&answer["requeued"], &answer["still_running"]), (&json!(1), &json!(1)));
    assert_eq!(rig.told("unseen").await["state"], "waiting");
    rig.engine(1).clear();
    for other in others {
        soon("another stream", other).await.unwrap().ok();
    }
    soon("the one that moved", unseen).await.unwrap().ok();
    let told = rig.told("unseen").await;
    assert_eq!(told["tries"][0]["back"]["why"], "spot_notice");
    assert_eq!(told["tries"][1]["replica"], rig.name_of(1));
    assert_eq!(told["tries"][1]["why"]["turn"], "requeued");
    rig.engine(0).clear();
    assert!(soon("the stream", stream).await.unwrap().ok().is_done());
    assert_eq!(rig.told("stream").await["tries"].as_array().unwrap().len(), 1);
    assert_eq!(rig.metric("penstock_overrides").await, 1.0);
}

#[tokio::test]
async fn a_paused_tenant_waits_is_explained_and_resumes() {
    let rig = two_engines(1.0).await;
    rig.done("/admin/v1/tenants/pause", &json!({ "name": TENANT, "for": "12s" })).await;
    let waiting = rig.begin(TENANT, "waiting", &chat(2, true));
    until("it waits", || rig.waiting() == 1).await;
    soon("another tenant", rig.begin("beta", "other", &chat(2, true))).await.unwrap().ok();
    let told = rig.told("waiting").await;
    assert_eq!((&told["state"], &told["waiting"]["obstacle"]), (&json!("waiting"), &json!("tenant_paused")));
    assert_eq!(told["waiting"]["replicas"].as_array().unwrap().len(), 2);
    let list: Value = rig.admin(Method::GET, "/admin/v1/requests").await.ok().json();
    let [first, second] = list["requests"].as_array().unwrap().as_slice() else { panic!("{list}") };
    assert_eq!(
        (&first["request_id"], &first["waits"]["obstacle"]),
        (&json!("waiting"), &json!("tenant_paused"))
    );
    let (starts, replica) = (first["waits"]["starts_in_seconds"].as_f64().unwrap(), &second["replica"]);
    assert!((0.0..=12.0).contains(&starts) && replica.as_str().unwrap().starts_with("main/"), "{list}");
    assert_eq!((&second["end"]["outcome"], &second["output_tokens"]), (&json!("success"), &json!(2)));
    let status: Value = rig.admin(Method::GET, "/admin/v1/status").await.ok().json();
    assert_eq!(status["overrides"][0]["kind"], "pause");
    let answer = rig.done("/admin/v1/tenants/resume", &json!({ "name": TENANT })).await;
    assert_eq!(answer["before"], "pause");
    soon("the one that waited", waiting).await.unwrap().ok();
    let told = rig.told("waiting").await;
    assert_eq!((&told["state"], &told["end"]["status"]), (&json!("finished"), &json!(200)));

    rig.done("/admin/v1/tenants/pause", &json!({ "name": TENANT, "for": "10m" })).await;
    let refused = rig.post(CHAT, &chat(1, false)).await;
    assert_eq!((refused.status, refused.json()["error"]["code"].clone()), (503, json!("slow_down")));
    assert_eq!(rig.metric("penstock_rejections_total").await, 1.0);
}

#[tokio::test]
async fn an_override_ends_by_itself_and_outlives_a_reload() {
    let rig = two_engines(1.0).await;
    let cordon = async |lasts: &str| {
        let body = json!({ "name": "main", "for": lasts, "reason": "short" });
        rig.done("/admin/v1/pools/cordon", &body).await
    };
    let answer = cordon("10m").await;
    assert!(answer["notes"][1].as_str().unwrap().contains("nothing serves the model sim"), "{answer}");
    let waiting = rig.begin(TENANT, "waiting", &chat(2, false));
    until("it waits", || rig.waiting() == 1).await;
    let generation = rig.generation();
    rig.put(&std::fs::read_to_string(&rig.path).unwrap().replace("max_seqs: 4", "max_seqs: 5"));
    until("the reload", || rig.generation() > generation).await;
    assert_eq!(rig.waiting(), 1, "the cordon holds");
    cordon("300ms").await;
    soon("the end of the cordon", waiting).await.unwrap().ok();
    let line = rig.line_of("waiting").await;
    assert!(line["queue_ms"].as_f64().unwrap() > 200.0, "{line}");
    until("the log line of its end", || rig.telemetry.captured_log().contains("override expired")).await;
    assert_eq!(rig.snapshot().overrides, []);
}

#[tokio::test]
async fn verbs_need_json_and_names_that_exist() {
    let rig = two_engines(1.0).await;
    let plain = Call::new(Method::POST, "/admin/v1/tenants/pause").header("content-type", "text/plain");
    assert_eq!(plain.send(rig.gateway.admin_address()).await.status, 415);
    let answer = rig.verb("/admin/v1/pools/drain", &json!({ "name": "mian" })).await;
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("did you mean `main`?"), "{}", answer.text());
    assert_eq!(rig.admin(Method::GET, "/admin/v1/pools/drain").await.status, 405);
    assert_eq!(rig.admin(Method::GET, "/admin/v1/requests/nobody").await.status, 404);
    assert_eq!(rig.snapshot().overrides, []);
}
