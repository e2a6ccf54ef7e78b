//! Guardrails: a service that may refuse prompts and answers, and what happens when it does not
//! answer as it should.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::certificates::{Authority, put};
use crate::support::client::{Answer, Call};
use crate::support::gateway::{
    MODEL, PATIENCE, Rig, RigOptions, TENANT, chat, head, key_of, pool_lines, soon, tenant_lines, until,
};
use crate::support::tls_front::TlsFront;

const CHAT: &str = "/v1/chat/completions";
const ALLOW: &str = r#"{"verdict":"allow"}"#;

/// A question that the service got.
#[derive(Debug, Clone)]
struct Question {
    headers: HeaderMap,
    body: Value,
}

/// What the service answers: after how long, with which status and text.
type Script = dyn Fn(&Value) -> (Duration, u16, String) + Send + Sync;

/// The service.
pub(crate) struct Service {
    address: SocketAddr,
    questions: Arc<Mutex<Vec<Question>>>,
    /// Calls that it works on, and the most that there were.
    at_once: Arc<[AtomicUsize; 2]>,
    serving: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A call that the service works on.
struct Working(Arc<[AtomicUsize; 2]>);

impl Working {
    fn begin(at_once: &Arc<[AtomicUsize; 2]>) -> Self {
        let now = at_once[0].fetch_add(1, Ordering::SeqCst) + 1;
        at_once[1].fetch_max(now, Ordering::SeqCst);
        Self(Arc::clone(at_once))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0[0].fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service {
    pub(crate) async fn start(
        script: impl Fn(&Value) -> (Duration, u16, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (questions, at_once) = (Arc::<Mutex<Vec<Question>>>::default(), Arc::default());
        let script: Arc<Script> = Arc::new(script);
        let (kept, counted) = (Arc::clone(&questions), Arc::clone(&at_once));
        let serving = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (script, kept, counted) = (Arc::clone(&script), Arc::clone(&kept), Arc::clone(&counted));
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (script, kept, counted) =
                        (Arc::clone(&script), Arc::clone(&kept), Arc::clone(&counted));
                    async move {
                        let _working = Working::begin(&counted);
                        assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/check"));
                        let headers = request.headers().clone();
                        let bytes = request.into_body().collect().await?.to_bytes();
                        let body: Value = serde_json::from_slice(&bytes).unwrap();
                        let (time, status, text) = script(&body);
                        kept.lock().push(Question { headers, body });
                        sleep(time).await;
                        let location = if status == 302 { "/check" } else { "" };
                        let answer = Response::builder().status(status).header("location", location);
                        Ok::<_, hyper::Error>(answer.body(Full::new(Bytes::from(text))).unwrap())
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), answer));
            }
        });
        Self { address, questions, at_once, serving }
    }

    /// One that always says this at once.
    async fn saying(status: u16, text: &'static str) -> Self {
        Self::start(move |_| (Duration::ZERO, status, text.to_owned())).await
    }

    /// One that is not there: its port is taken, so that nobody else has it, and nobody listens.
    fn absent() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let _taken = socket;
            std::future::pending::<()>().await;
        });
        Self { address, questions: Arc::default(), at_once: Arc::default(), serving }
    }

    fn questions(&self) -> Vec<Question> {
        self.questions.lock().clone()
    }

    fn working(&self) -> usize {
        self.at_once[0].load(Ordering::SeqCst)
    }

    /// The section of the file, with more keys, and with time enough for each verdict.
    pub(crate) fn section(&self, more: &str) -> String {
        self.section_within("30s", more)
    }

    /// The same with so much time for a verdict.
    fn section_within(&self, timeout: &str, more: &str) -> String {
        format!("guardrails: {{url: 'http://{}/check', timeout: {timeout}{more}}}\n", self.address)
    }
}

async fn rig(more: String) -> Rig {
    Rig::start(RigOptions { more, ..RigOptions::default() }).await
}

async fn ask(rig: &Rig, id: &str, body: &Value) -> Answer {
    Call::post(CHAT, body).key(rig.key(TENANT)).header("x-request-id", id).send(rig.address()).await
}

fn about_water(word: &str) -> Value {
    let mut body = chat(4, false);
    body["messages"][0]["content"] = word.into();
    body
}

/// Denies prompts and answers with the word "flood" in what it looks at.
fn no_floods(question: &Value) -> (Duration, u16, String) {
    let text = question["request"].to_string();
    let verdict = match text.contains("flood") {
        true => json!({"verdict": "deny", "message": "Do not mention floods.", "reason": "topic.flood"}),
        false => json!({"verdict": "allow"}),
    };
    (Duration::ZERO, 200, verdict.to_string())
}

/// A transcription's prompt steers what is written: it is checked, without the audio.
#[tokio::test]
async fn the_prompt_of_a_form_is_checked() {
    let service = Service::start(no_floods).await;
    let rig = rig(service.section("")).await;
    let part = |name: &str, value: &str| {
        format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let file = part("file\"; filename=\"a.wav", "a flood of noise");
    let mut answers = Vec::new();
    for prompt in ["a lake", "a flood"] {
        let body = format!("{}{file}{}--edge--\r\n", part("model", MODEL), part("prompt", prompt));
        let call = Call::post_text("/v1/audio/transcriptions", &body)
            .key(rig.key(TENANT))
            .header("content-type", "multipart/form-data; boundary=edge");
        answers.push(call.send(rig.address()).await.status);
    }
    assert_eq!(answers, [200, 400]);
    let asked: Vec<Value> = service.questions().iter().map(|asked| asked.body["request"].clone()).collect();
    assert_eq!(asked, [json!({"prompt": ["a lake"]}), json!({"prompt": ["a flood"]})]);
    assert_eq!(rig.engine(0).state().total, 1);
}

#[tokio::test]
async fn a_prompt_is_checked_before_it_is_queued() {
    let service = Service::start(no_floods).await;
    let rig = rig(service.section("")).await;
    let denied = ask(&rig, "denied", &about_water("a flood")).await;
    let error = denied.json()["error"].clone();
    assert_eq!(denied.status, 400, "{denied:?}");
    assert_eq!(error["code"], "guardrail_denied");
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(error["message"], "Do not mention floods.");
    assert_eq!(denied.header("x-should-retry"), "false");
    assert_eq!(rig.engine(0).state().total, 0, "no engine saw it");
    let line = rig.line_of("denied").await;
    assert_eq!(line["guardrail"], "denied");
    assert_eq!(line["guardrail_reason"], "topic.flood");
    assert!(line["guardrail_ms"].as_f64().unwrap() > 0.0);
    assert_eq!((&line["outcome"], &line["reason"]), (&json!("client_error"), &json!("guardrail_denied")));
    assert!(!rig.telemetry.captured_log().contains("Do not mention"), "the message is the client's alone");
    let explained = rig.admin(Method::GET, "/admin/v1/requests/denied").await.ok().json();
    let check = &explained["guardrails"][0];
    assert_eq!((&check["stage"], &check["outcome"]), (&json!("prompt"), &json!("denied")));
    assert_eq!((&check["reason"], &check["passed"]), (&json!("topic.flood"), &json!(false)));
    assert!(check["took"].as_f64().unwrap() > 0.0);

    let allowed = ask(&rig, "allowed", &about_water("a lake")).await.ok();
    assert!(allowed.header("server-timing").contains("guardrail;dur="), "{allowed:?}");
    assert_eq!(rig.line_of("allowed").await["guardrail"], "allowed");
    let questions = service.questions();
    assert_eq!(questions.len(), 2);
    let Question { headers, body } = &questions[1];
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["x-request-id"], "allowed");
    assert!(!headers.contains_key("authorization"), "the client's key stays here");
    let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
    let names =
        ["answer", "api", "class", "key_id", "model", "request", "request_id", "stage", "stream", "tenant"];
    assert_eq!(keys, names);
    assert_eq!(
        (&body["tenant"], &body["class"], &body["model"]),
        (&json!(TENANT), &json!("standard"), &json!(MODEL))
    );
    assert_eq!((&body["stage"], &body["key_id"]), (&json!("prompt"), &json!(key_of(TENANT).id)));
    assert_eq!((&body["request"], &body["answer"]), (&about_water("a lake"), &Value::Null));
    let text = rig.admin(Method::GET, "/metrics").await.text();
    for series in [
        r#"penstock_guardrail_checks_total{stage="prompt",outcome="denied"} 1"#,
        r#"penstock_guardrail_checks_total{stage="prompt",outcome="allowed"} 1"#,
        r#"penstock_guardrail_check_seconds_count{stage="prompt"} 2"#,
    ] {
        assert!(text.contains(series), "{series} in {text}");
    }
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_plain_answer_is_checked_and_a_stream_is_not() {
    let service = Service::start(|question| {
        let verdict = if question["stage"] == "answer" { "deny" } else { "allow" };
        (Duration::ZERO, 200, json!({ "verdict": verdict, "reason": "leak" }).to_string())
    })
    .await;
    let rig = rig(service.section(", answers: true")).await;
    let denied = ask(&rig, "plain", &chat(4, false)).await;
    assert_eq!((denied.status, &*denied.code()), (400, "guardrail_denied"), "{denied:?}");
    assert!(denied.text().contains("The answer was refused by the guardrails"), "{}", denied.text());
    assert!(!denied.text().contains("choices"));
    let line = rig.line_of("plain").await;
    assert_eq!((&line["guardrail"], &line["answer_guardrail"]), (&json!("allowed"), &json!("denied")));
    assert_eq!(line["answer_guardrail_reason"], "leak");
    assert_eq!(
        (&line["usage"], &line["output_tokens"]),
        (&json!("exact"), &json!(4)),
        "the engine did the work"
    );
    let asked = service.questions().pop().unwrap().body;
    assert_eq!((&asked["stage"], &asked["request"]), (&json!("answer"), &chat(4, false)));
    assert_eq!(asked["answer"]["choices"][0]["finish_reason"], "length");
    assert!(ask(&rig, "stream", &chat(4, true)).await.is_done());
    assert_eq!(service.questions().len(), 3, "the prompt of the stream");
    rig.emptied_within(PATIENCE).await;
}

/// A service that gives no verdict, in each way that it can.
async fn broken() -> Vec<(&'static str, Service)> {
    let slow = Service::start(|_| (Duration::from_secs(60), 200, ALLOW.to_owned())).await;
    vec![
        ("timeout", slow),
        ("unreachable", Service::absent()),
        ("bad_status", Service::saying(500, ALLOW).await),
        ("bad_status", Service::saying(302, ALLOW).await),
        ("malformed", Service::saying(200, "yes").await),
        ("malformed", Service::saying(200, r#"{"verdict":"maybe"}"#).await),
    ]
}

#[tokio::test]
async fn without_a_verdict_the_class_says_what_happens() {
    for (outcome, service) in broken().await {
        let timeout = if outcome == "timeout" { "300ms" } else { "30s" };
        let more = format!(
            "{}classes: {{standard: {{}}, open: {{guardrails: {{on_failure: allow}}}}}}\n",
            service.section_within(timeout, "")
        );
        let rig = rig(more).await;
        let refused = ask(&rig, "closed", &chat(2, false)).await;
        assert_eq!(
            (refused.status, &*refused.code()),
            (503, "guardrail_unavailable"),
            "{outcome}: {refused:?}"
        );
        assert_eq!(refused.header("retry-after"), "1");
        assert_eq!(rig.line_of("closed").await["guardrail"], outcome);
        assert_eq!(rig.engine(0).state().total, 0);
        let call = Call::post(CHAT, &chat(2, false)).key(rig.key(TENANT)).header("x-penstock-class", "open");
        call.header("x-request-id", "open").send(rig.address()).await.ok();
        let line = rig.line_of("open").await;
        assert_eq!((&line["guardrail"], &line["outcome"]), (&json!(outcome), &json!("success")));
        let explained = rig.admin(Method::GET, "/admin/v1/requests/open").await.ok().json();
        assert_eq!(explained["guardrails"][0]["passed"], true);
        rig.emptied_within(PATIENCE).await;
    }
}

#[tokio::test]
async fn what_is_too_long_is_not_sent() {
    let service = Service::saying(200, ALLOW).await;
    let rig = rig(service.section(", max_body: 2KiB")).await;
    let long = ask(&rig, "long", &about_water(&"water ".repeat(1000))).await;
    assert_eq!((long.status, &*long.code()), (400, "guardrail_denied"), "{long:?}");
    assert!(long.text().contains("longer than the 2048 bytes"), "{}", long.text());
    assert_eq!(rig.line_of("long").await["guardrail"], "too_large");
    assert!(service.questions().is_empty());
    ask(&rig, "short", &about_water("water")).await.ok();
}

#[tokio::test]
async fn one_tenant_has_at_most_half_of_the_calls() {
    let service = Service::start(|question| {
        let slow = question["tenant"] == "evil";
        (if slow { PATIENCE } else { Duration::ZERO }, 200, ALLOW.to_owned())
    })
    .await;
    let rig = Rig::start(RigOptions {
        tenants: vec![("evil", ""), ("good", "")],
        more: service.section_within("20s", ", max_calls: 4"),
        ..RigOptions::default()
    })
    .await;
    let evil: Vec<_> = (0..10)
        .map(|_| tokio::spawn(Call::post(CHAT, &chat(2, false)).key(rig.key("evil")).send(rig.address())))
        .collect();
    until("the tenant has its part", || service.working() == 2).await;
    let began = Instant::now();
    for _ in 0..5 {
        Call::post(CHAT, &chat(2, false)).key(rig.key("good")).send(rig.address()).await.ok();
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(service.at_once[1].load(Ordering::SeqCst) <= 3);
    assert_eq!(rig.snapshot().jobs, 0, "a check holds no place in the queue");
    evil.iter().for_each(JoinHandle::abort);
    for task in evil {
        let _aborted = task.await;
    }
    until("the calls end with their clients", || service.working() == 0).await;
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn the_wait_for_a_verdict_is_no_wait_in_the_queue() {
    let wait = Duration::from_millis(600);
    let service = Service::start(move |_| (wait, 200, ALLOW.to_owned())).await;
    let rig = rig(service.section("")).await;
    assert!(ask(&rig, "one", &chat(4, true)).await.is_done());
    let line = rig.line_of("one").await;
    let millis = |key: &str| line[key].as_f64().unwrap();
    assert!(millis("guardrail_ms") >= 600.0 && millis("ttft_ms") >= 600.0, "{line}");
    assert!(millis("queue_ms") < 300.0, "{line}");
}

#[tokio::test]
async fn a_request_that_a_limit_refuses_is_not_sent() {
    let service = Service::saying(200, ALLOW).await;
    let rig = Rig::start(RigOptions {
        engines: vec![SimOptions::default()],
        tenants: vec![(TENANT, "limits: {per_minute: {requests: 2}}")],
        more: service.section(""),
        ..RigOptions::default()
    })
    .await;
    let mut refused = 0;
    for number in 0..6 {
        let answer = ask(&rig, &format!("r{number}"), &chat(2, false)).await;
        if answer.status == 429 {
            assert_eq!(answer.code(), "rate_limit_exceeded");
            refused += 1;
        }
    }
    assert_eq!((refused, service.questions().len()), (4, 2));
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn a_denied_prompt_counts_in_the_limits_per_minute() {
    let service = Service::start(no_floods).await;
    let limits = "limits: {per_minute: {requests: 3}, per_day: {requests: 100}}";
    let rig = Rig::start(RigOptions {
        engines: vec![SimOptions::default()],
        tenants: vec![(TENANT, limits), ("other", "")],
        more: service.section(""),
        ..RigOptions::default()
    })
    .await;
    let mut codes = Vec::new();
    for number in 0..10 {
        codes.push(ask(&rig, &format!("r{number}"), &about_water("flood")).await.code());
    }
    assert_eq!(codes[..3], ["guardrail_denied"; 3]);
    assert_eq!(codes[3..], ["rate_limit_exceeded"; 7]);
    assert_eq!(service.questions().len(), 3, "what the limit refuses is not asked about");
    Call::post(CHAT, &chat(2, false)).key(rig.key("other")).send(rig.address()).await.ok();
    let limits = rig.admin(Method::GET, "/admin/v1/tenants").await.json()["tenants"][0]["limits"].clone();
    let left = |period: &str| {
        limits.as_array().unwrap().iter().find(|limit| limit["period"] == period).unwrap()["left"].clone()
    };
    assert_eq!((left("per_minute"), left("per_day")), (json!(0), json!(100)), "{limits}");
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn tenants_may_differ_and_the_key_is_read_again() {
    let service = Service::saying(200, ALLOW).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("penstock.yaml");
    put(&folder.path().join("guard.key"), "first-secret\n");
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let text = format!(
        "{}tenants:\n{}{}pools:\n{}{}",
        head(""),
        tenant_lines("checked", ""),
        tenant_lines("free", "guardrails: {prompts: false}"),
        pool_lines("main", "engine: vllm\nmodels: [sim]", &[engine.url()]),
        service.section(", api_key: {file: guard.key}")
    );
    std::fs::write(&path, &text).unwrap();
    let rig = Rig::at(folder, path, vec![engine], ["checked", "free"]).await;
    let send = |tenant: &str| Call::post(CHAT, &chat(2, false)).key(rig.key(tenant)).send(rig.address());
    send("free").await.ok();
    assert!(service.questions().is_empty());
    send("checked").await.ok();
    assert_eq!(service.questions()[0].headers["authorization"], "Bearer first-secret");
    put(&rig.folder.path().join("guard.key"), "second-secret\n");
    soon("a reload", rig.gateway.reload_handle().reload("test".into())).await.unwrap();
    send("checked").await.ok();
    assert_eq!(service.questions()[1].headers["authorization"], "Bearer second-secret");
    let shown = rig.admin(Method::GET, "/admin/v1/config").await.text();
    assert!(!shown.contains("secret") && shown.contains("\"api_key\":\"set\""), "{shown}");
    assert!(!rig.telemetry.captured_log().contains("-secret"));
}

#[tokio::test]
async fn only_the_authority_of_the_file_is_trusted() {
    let service = Service::saying(200, ALLOW).await;
    let [right, wrong] = [Authority::new(), Authority::new()];
    let front = TlsFront::start(&right.server(), None, service.address).await;
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.crt");
    for (authority, status) in [(&right, 200), (&wrong, 503)] {
        put(&ca, &authority.pem());
        let url = format!("https://{}/check", front.address);
        let more = format!("guardrails: {{url: '{url}', tls: {{ca: '{}'}}, timeout: 30s}}\n", ca.display());
        assert_eq!(ask(&rig(more).await, "tls", &chat(2, false)).await.status, status);
    }
}
