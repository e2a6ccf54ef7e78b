//! Tests of preempted requests, against scripted engines on loopback. The test plays the
//! scheduler's part.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::auth::{Authenticator, Identity};
use crate::config::load::load_str_with;
use crate::config::secret::MachineSecrets;
use crate::config::settings::identity::Grant;
use crate::core::model::event::{Action, DispatchGrant, DispatchReason, JobAction, PreemptReason};
use crate::core::model::ids::{JobId, PoolId, ReplicaId};
use crate::core::model::job::PromptPrefix;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::clock::GatewayClock;
use crate::protocol::api::Api;
use crate::protocol::request::prefix::PrefixHasher;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::proxy::active_request::ActiveRequest;
use crate::proxy::attempt::EngineAnswer;
use crate::proxy::body::RequestBody;
use crate::proxy::handler::ServeError;
use crate::proxy::relay::live_stream::LiveStream;
use crate::proxy::request::{self, InferenceRequest};
use crate::proxy::response::AnswerBody;
use crate::proxy::summary::RequestRecord;
use crate::proxy::upstream::Upstreams;
use crate::proxy::upstream::guardrails::Guardrails;
use crate::proxy::{CachedAnswers, EdgeMemory, Proxy};
use crate::telemetry::Telemetry;

const PATIENCE: Duration = Duration::from_secs(10);
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const ROLE: &str = r#"{"role":"assistant","content":""}"#;
const TOKEN: &str = r#"{"content":"b"}"#;
const PLAIN: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n\
    {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"message\":{\"content\":\"b\"}}]}";

/// A chunk with one event.
fn event(delta: &str) -> String {
    chunk(&format!("{{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}"))
}

fn chunk(data: &str) -> String {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len())
}

/// A gateway without a listener.
pub(super) async fn proxy(urls: [String; 2]) -> Arc<Proxy> {
    let text = format!(
        "version: 1\nauth: {{mode: off}}\npools:\n  p: {{engine: vllm, models: [m], max_seqs: 1, replicas: ['{}', '{}']}}\n",
        urls[0], urls[1]
    );
    let outcome = load_str_with(&text, "test", Path::new("."), None, &MachineSecrets);
    let settings = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings;
    let (actions, _receiver) = tokio::sync::mpsc::channel(8);
    Arc::new(Proxy {
        dispatcher: Dispatcher::new(Arc::clone(&settings.policy), GatewayClock::start(), actions),
        settings: Arc::new(ArcSwap::from_pointee(settings)),
        authenticator: Authenticator::default(),
        upstreams: Upstreams::default(),
        guardrails: Guardrails::default(),
        memory: EdgeMemory::default(),
        pumps: TaskTracker::new(),
        telemetry: Telemetry::for_tests(),
        token_counters: Arc::default(),
        engines: Arc::default(),
        live_requests: Arc::default(),
        prefixes: PrefixHasher::default(),
        engine_signals: Arc::default(),
        shadow_copies: Arc::default(),
        cached: CachedAnswers::default(),
        journal: None,
    })
}

type Asked = (Result<EngineAnswer, ServeError>, ActiveRequest);

/// A request on its way through the proxy, and the job that it is.
fn ask(proxy: &Arc<Proxy>, stream: bool) -> (Box<InferenceRequest>, JoinHandle<Asked>) {
    let settings = proxy.settings.load_full();
    let tenant = settings.policy.tenants.iter().map(|(id, _, _)| id).next().unwrap();
    let identity = Identity { tenant, key_id: None, grant: Grant::whole(tenant) };
    let body = Bytes::from(format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],"stream":{stream}}}"#
    ));
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let (id, now) = (proxy.dispatcher.next_job_id(), proxy.dispatcher.clock().now());
    let read = || {
        let body = RequestBody::for_test(tenant, body.clone());
        request::read(&settings, &identity, Api::Chat, &headers, body, id, now).unwrap()
    };
    let (request, kept, proxy) = (read(), read(), Arc::clone(proxy));
    let ticket = proxy.dispatcher.admit(request.job(false), PromptPrefix::default(), &settings.policy);
    let running = tokio::spawn(async move {
        let id = HeaderValue::from_static("r");
        let record = RequestRecord::new(&proxy.telemetry, proxy.dispatcher.clock(), id, Api::Chat);
        let mut active = ActiveRequest::new(record);
        active.attach_ticket(ticket);
        let nothing = PartialAnswer::default();
        let answer = proxy.attempt_until_answered(&request, Some(&nothing), &mut active).await;
        (answer, active)
    });
    (kept, running)
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// The next connection, once something has come over it.
async fn called(listener: &TcpListener) -> TcpStream {
    let (mut socket, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let mut some = [0; 4096];
    assert!(timeout(PATIENCE, socket.read(&mut some)).await.unwrap().unwrap() > 0);
    socket
}

/// Reads until something has come.
async fn heard(socket: &mut TcpStream, what: &str) {
    let (mut all, mut some) = (String::new(), [0; 4096]);
    while !all.contains(what) {
        let read = timeout(PATIENCE, socket.read(&mut some)).await.unwrap().unwrap();
        assert!(read > 0, "{all}");
        all += &String::from_utf8_lossy(&some[..read]);
    }
}

async fn hung_up(mut socket: TcpStream) {
    let mut rest = Vec::new();
    let _end_or_reset = timeout(PATIENCE, socket.read_to_end(&mut rest)).await.unwrap();
}

/// Moves the job from the first engine to the second.
fn move_over(proxy: &Proxy, request: &InferenceRequest) {
    let job = request.id;
    let recall =
        Action::Job(JobAction::Preempt { job, replica: ReplicaId::new(0), why: PreemptReason::Stalled });
    let why = DispatchReason { attempt: 2, ..DispatchReason::ALONE };
    let grant = DispatchGrant { job, pool: PoolId::new(0), replica: ReplicaId::new(1), why };
    proxy.dispatcher.apply_for_test([recall, Action::Job(JobAction::Dispatch(grant))]);
}

#[tokio::test]
async fn a_silent_engine_is_left_and_another_answers() {
    let ((first, a), (second, b)) = (listen().await, listen().await);
    let proxy = proxy([format!("http://{a}"), format!("http://{b}")]).await;
    let (request, running) = ask(&proxy, false);
    let silent = called(&first).await;
    move_over(&proxy, &request);
    hung_up(silent).await;
    called(&second).await.write_all(PLAIN.as_bytes()).await.unwrap();
    let (answer, active) = timeout(PATIENCE, running).await.unwrap().unwrap();
    assert!(matches!(answer, Ok(EngineAnswer::Whole { .. })));
    assert_eq!(
        (
            active.record.at_engine.attempts,
            active.record.at_engine.preemptions,
            active.record.at_engine.preempt_reason
        ),
        (2, 1, Some(PreemptReason::Stalled))
    );
    assert_eq!(active.record.at_engine.dispatch.replica(), Some(ReplicaId::new(1)));
    assert_eq!(proxy.dispatcher.snapshot().jobs, 0);
}

#[tokio::test]
async fn a_stream_without_a_token_is_left_too() {
    let ((first, a), (second, b)) = (listen().await, listen().await);
    let proxy = proxy([format!("http://{a}"), format!("http://{b}")]).await;
    let (request, running) = ask(&proxy, true);
    let mut dumb = called(&first).await;
    dumb.write_all((HEAD.to_owned() + &event(ROLE)).as_bytes()).await.unwrap();
    tokio::task::yield_now().await;
    move_over(&proxy, &request);
    hung_up(dumb).await;
    let mut other = called(&second).await;
    other.write_all((HEAD.to_owned() + &event(ROLE) + &event(TOKEN)).as_bytes()).await.unwrap();
    let (answer, active) = timeout(PATIENCE, running).await.unwrap().unwrap();
    let Ok(EngineAnswer::Stream { stream, .. }) = answer else { panic!("no stream") };
    assert!(stream.has_output() && active.record.at_engine.first_token.is_some());
    assert_eq!((active.record.at_engine.attempts, active.record.at_engine.preemptions), (2, 1));
    drop((stream, active));
    hung_up(other).await;
    assert_eq!(proxy.dispatcher.snapshot().jobs, 0);
}

#[tokio::test]
async fn an_engine_that_does_not_finish_the_handshake_is_left() {
    let ((first, a), (second, b)) = (listen().await, listen().await);
    let proxy = proxy([format!("https://{a}"), format!("http://{b}")]).await;
    let (request, running) = ask(&proxy, false);
    let connecting = called(&first).await;
    move_over(&proxy, &request);
    hung_up(connecting).await;
    called(&second).await.write_all(PLAIN.as_bytes()).await.unwrap();
    let (answer, active) = timeout(PATIENCE, running).await.unwrap().unwrap();
    assert!(answer.is_ok() && active.record.at_engine.preemptions == 1);
}

#[tokio::test]
async fn a_client_that_leaves_between_two_tries_leaves_nothing() {
    let ((first, a), (_second, b)) = (listen().await, listen().await);
    let proxy = proxy([format!("http://{a}"), format!("http://{b}")]).await;
    let (request, running) = ask(&proxy, false);
    let silent = called(&first).await;
    let recall = Action::Job(JobAction::Preempt {
        job: request.id,
        replica: ReplicaId::new(0),
        why: PreemptReason::Stalled,
    });
    proxy.dispatcher.apply_for_test([recall]);
    hung_up(silent).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_eq!(proxy.dispatcher.snapshot().jobs, 0);
}

/// Answers every request at once.
fn eager(listener: TcpListener) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            // The gateway may have hung up already.
            if matches!(socket.read(&mut [0; 4096]).await, Ok(1..)) {
                let _gone = socket.write_all(PLAIN.as_bytes()).await;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_a_preemption_comes_there_is_one_answer_and_nothing_stays() {
    let ((first, a), (second, b)) = (listen().await, listen().await);
    let engines = [eager(first), eager(second)];
    let proxy = proxy([format!("http://{a}"), format!("http://{b}")]).await;
    let mut preempted = 0;
    for round in 0..300_u32 {
        let (request, running) = ask(&proxy, false);
        // From before the connection to after the answer.
        for _ in 0..round % 30 {
            tokio::task::yield_now().await;
        }
        move_over(&proxy, &request);
        let (answer, active) = timeout(PATIENCE, running).await.unwrap().unwrap();
        assert!(matches!(answer, Ok(EngineAnswer::Whole { .. })), "{round}");
        assert_eq!(active.record.at_engine.attempts, active.record.at_engine.preemptions + 1);
        preempted += active.record.at_engine.preemptions;
        drop(active);
        let snapshot = proxy.dispatcher.snapshot();
        assert_eq!((snapshot.jobs, snapshot.replicas[0].running), (0, 0), "{round}");
    }
    assert!(preempted > 0);
    engines.iter().for_each(JoinHandle::abort);
}

/// A stream that has given a first token, as its client gets it.
async fn relayed(proxy: &Arc<Proxy>, first: &TcpListener) -> (JobId, TcpStream, AnswerBody) {
    let (request, running) = ask(proxy, true);
    let mut engine = called(first).await;
    engine.write_all((HEAD.to_owned() + &event(ROLE) + &event(TOKEN)).as_bytes()).await.unwrap();
    let (answer, active) = timeout(PATIENCE, running).await.unwrap().unwrap();
    let Ok(EngineAnswer::Stream { stream, .. }) = answer else { panic!("no stream") };
    let job = request.id;
    let live = Box::new(LiveStream { stream, active, request: Some(request) });
    (job, engine, AnswerBody::Stream(proxy.stream(live)))
}

async fn text(body: &mut AnswerBody) -> String {
    let frame = timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn a_stream_that_is_asked_for_goes_on_elsewhere_while_its_engine_says_nothing() {
    let ((first, a), (second, b)) = (listen().await, listen().await);
    let proxy = proxy([format!("http://{a}"), format!("http://{b}")]).await;
    let (job, engine, mut body) = relayed(&proxy, &first).await;
    let mut seen = text(&mut body).await;
    let frozen = hung_up(engine);
    let rest = async {
        tokio::task::yield_now().await;
        proxy.dispatcher.apply_for_test([Action::Job(JobAction::Migrate {
            job,
            replica: ReplicaId::new(0),
            why: PreemptReason::Stalled,
        })]);
        frozen.await;
        // The gateway asks for the tokens of the partial answer, and then for its continuation.
        let mut asked = timeout(PATIENCE, second.accept()).await.unwrap().unwrap().0;
        heard(&mut asked, "add_special_tokens").await;
        let count = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"count\":1}";
        asked.write_all(count.as_bytes()).await.unwrap();
        heard(&mut asked, "continue_final_message").await;
        let stop = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        let end = event(ROLE) + &event(r#"{"content":"c"}"#) + &chunk(stop) + &chunk("[DONE]") + "0\r\n\r\n";
        asked.write_all((HEAD.to_owned() + &end).as_bytes()).await.unwrap();
    };
    let all = async {
        while let Some(frame) = timeout(PATIENCE, body.frame()).await.unwrap() {
            seen += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
        }
    };
    tokio::join!(rest, all);
    assert!(seen.contains(r#""content":"b""#) && seen.contains(r#""content":"c""#), "{seen}");
    assert_eq!(seen.matches(r#""role""#).count(), 1, "{seen}");
    assert!(seen.ends_with("data: [DONE]\n\n"), "{seen}");
    drop(body);
    assert_eq!(proxy.dispatcher.snapshot().jobs, 0);
}

#[tokio::test]
async fn a_stream_that_cannot_go_on_stays_where_it_is() {
    let ((first, a), (_second, b)) = (listen().await, listen().await);
    let proxy = proxy([format!("http://{a}"), format!("http://{b}")]).await;
    let (job, mut engine, mut body) = relayed(&proxy, &first).await;
    text(&mut body).await;
    let call = r#"{"tool_calls":[{"index":0,"id":"x","function":{"name":"f","arguments":"{}"}}]}"#;
    engine.write_all(event(call).as_bytes()).await.unwrap();
    text(&mut body).await;
    proxy.dispatcher.apply_for_test([Action::Job(JobAction::Migrate {
        job,
        replica: ReplicaId::new(0),
        why: PreemptReason::Drained,
    })]);
    let (next, sent) = tokio::join!(text(&mut body), async {
        tokio::task::yield_now().await;
        engine.write_all(event(TOKEN).as_bytes()).await
    });
    assert!(next.contains("\"b\"") && sent.is_ok());
    assert_eq!(proxy.dispatcher.snapshot().replicas[0].running, 1);
}

#[tokio::test]
async fn the_gaps_of_a_relayed_stream_are_counted() {
    let ((first, a), (_second, b)) = (listen().await, listen().await);
    let proxy = proxy([format!("http://{a}"), format!("http://{b}")]).await;
    let (_request, running) = ask(&proxy, true);
    let mut engine = called(&first).await;
    engine.write_all((HEAD.to_owned() + &event(ROLE) + &event(TOKEN)).as_bytes()).await.unwrap();
    let (answer, active) = timeout(PATIENCE, running).await.unwrap().unwrap();
    let Ok(EngineAnswer::Stream { stream, .. }) = answer else { panic!("no stream") };
    let live = Box::new(LiveStream { stream, active, request: None });
    let mut body = AnswerBody::Stream(proxy.stream(live));
    // The role and the first token, which came with the head.
    timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
    for _ in 0..3 {
        let (frame, sent) = tokio::join!(timeout(PATIENCE, body.frame()), async {
            tokio::task::yield_now().await;
            engine.write_all(event(TOKEN).as_bytes()).await
        });
        assert!(frame.unwrap().unwrap().is_ok() && sent.is_ok());
    }
    let sample = proxy.engine_signals.attach(ReplicaId::new(0)).take().unwrap();
    assert!(sample.gaps == 3 && !sample.total.is_zero(), "{sample:?}");
}
