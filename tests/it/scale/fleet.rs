//! Fleet monitor against engines that behave well, badly, and not at all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use parking_lot::Mutex;
use penstock::config::load::load_str;
use penstock::config::secret::Secret;
use penstock::config::settings::identity::Auth;
use penstock::config::settings::names::ModelNames;
use penstock::config::settings::{EdgeSettings, PoolSettings, ReplicaSettings, Settings};
use penstock::core::model::event::{Event, ReplicaReport};
use penstock::core::model::id_table::IdTable;
use penstock::core::model::ids::{ModelId, PoolId, ReplicaId, TenantId};
use penstock::core::model::policy::{Model, Policy, Pool, Replica};
use penstock::core::replica::health::sleep::SleepResult;
use penstock::dispatcher::Dispatcher;
use penstock::dispatcher::clock::GatewayClock;
use penstock::dispatcher::event_log::EventLog;
use penstock::engines::EngineKind;
use penstock::fleet::context::FleetTiming;
use penstock::fleet::fetch::FetchError;
use penstock::fleet::handle::FleetMonitor;
use penstock::fleet::sleep::SleepOrder;
use penstock::telemetry::Telemetry;
use penstock::telemetry::event::ConfigReloaded;
use penstock::telemetry::metrics::ModelPairs;
use serde_json::Value;
use tokio::sync::mpsc::channel;

const KEY: &str = "sk-very-secret";
const METRICS: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n\
                       vllm:kv_cache_usage_perc 0.5\nvllm:generation_tokens_total 41\n";
const MODELS: &str = r#"{"data":[{"id":"served","max_model_len":2048}]}"#;

/// What an engine does with a question.
#[derive(Clone)]
enum Reply {
    Text(u16, String),
    Redirect(String),
    Hang,
    Endless,
    Cut,
}

fn ok(text: &str) -> Reply {
    Reply::Text(200, text.to_owned())
}

#[derive(Default)]
struct Desk {
    replies: Mutex<HashMap<String, Reply>>,
    /// Path and `Authorization` of every question.
    asked: Mutex<Vec<(String, Option<String>)>>,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

struct Engine {
    desk: Arc<Desk>,
    url: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Engine {
    async fn new(replies: &[(&str, Reply)]) -> Self {
        let desk = Arc::new(Desk::default());
        for (path, reply) in replies {
            desk.replies.lock().insert((*path).to_owned(), reply.clone());
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(Arc::clone(&desk));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { desk, url, server }
    }

    async fn healthy() -> Self {
        Self::new(&[("/metrics", ok(METRICS)), ("/v1/models", ok(MODELS)), ("/health", ok(""))]).await
    }

    fn set(&self, path: &str, reply: Reply) {
        self.desk.replies.lock().insert(path.to_owned(), reply);
    }

    fn times(&self, path: &str) -> usize {
        self.desk.asked.lock().iter().filter(|(asked, _)| asked == path).count()
    }
}

struct Open(Arc<Desk>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn answer(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let now_open = desk.open.fetch_add(1, Ordering::SeqCst) + 1;
    desk.most_open.fetch_max(now_open, Ordering::SeqCst);
    let _open = Open(Arc::clone(&desk));
    let path = request.uri().path().to_owned();
    let key = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    desk.asked.lock().push((path.clone(), key));
    let reply = desk.replies.lock().get(&path).cloned();
    let stream = |parts: Vec<std::io::Result<Bytes>>| {
        Response::new(Body::from_stream(futures_util::stream::iter(parts)))
    };
    match reply {
        None => Response::builder().status(404).body(Body::empty()).unwrap(),
        Some(Reply::Text(status, text)) => Response::builder().status(status).body(Body::from(text)).unwrap(),
        Some(Reply::Redirect(to)) => {
            Response::builder().status(307).header("location", to).body(Body::empty()).unwrap()
        }
        Some(Reply::Hang) => std::future::pending().await,
        Some(Reply::Endless) => stream((0..200).map(|_| Ok(Bytes::from(vec![b'x'; 64 << 10]))).collect()),
        Some(Reply::Cut) => stream(vec![Ok(Bytes::from(METRICS)), Err(std::io::Error::other("cut"))]),
    }
}

/// What the fleet monitor told the dispatcher and the log, read from the start.
struct Reports {
    events: Arc<EventLog>,
    next_event: usize,
    telemetry: Telemetry,
    next_line: usize,
    dispatcher: Weak<Dispatcher>,
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it happens within 20 s")
}

impl Reports {
    /// The next event that is there already.
    fn next(&mut self) -> Option<Event> {
        let event = self.events.steps().get(self.next_event).map(|step| step.event.clone())?;
        self.next_event += 1;
        Some(event)
    }

    /// Drops the events that are there already.
    fn skip(&mut self) {
        self.next_event = self.events.steps().len();
    }

    async fn event(&mut self) -> Event {
        soon(async {
            loop {
                match self.next() {
                    Some(event) => return event,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        })
        .await
    }

    /// Waits until the fleet monitor holds the dispatcher no more.
    async fn ended(&self) {
        soon(async {
            while self.dispatcher.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// The next report; `ProbeSucceeded` and the like are an error.
    async fn report(&mut self) -> (ReplicaId, ReplicaReport) {
        match self.event().await {
            Event::ReplicaReported { replica, report } => (replica, report),
            other => panic!("{other:?}"),
        }
    }

    /// Drops events until a report of this replica is as wanted.
    async fn report_of(&mut self, replica: ReplicaId, wanted: impl Fn(&ReplicaReport) -> bool) {
        soon(async {
            loop {
                let (reported, report) = self.report().await;
                if reported == replica && wanted(&report) {
                    return;
                }
            }
        })
        .await;
    }

    /// Drops events until the answer to a probe: true for `ProbeSucceeded`.
    async fn probed(&mut self) -> (ReplicaId, bool) {
        soon(async {
            loop {
                match self.event().await {
                    Event::ProbeSucceeded { replica } => return (replica, true),
                    Event::ReplicaLost { replica, .. } => return (replica, false),
                    _ => {}
                }
            }
        })
        .await
    }

    /// Drops events until the answer to an order.
    async fn sleep_result(&mut self) -> (ReplicaId, SleepResult) {
        soon(async {
            loop {
                if let Event::SleepAnswered { replica, result: sleep_result } = self.event().await {
                    return (replica, sleep_result);
                }
            }
        })
        .await
    }

    /// The problem in the next log line with this message, and its replica.
    async fn logged(&mut self, message: &str) -> (String, String) {
        soon(async {
            loop {
                let log = self.telemetry.captured_log();
                for line in log.lines().skip(self.next_line) {
                    self.next_line += 1;
                    let line: Value = serde_json::from_str(line).unwrap();
                    if line["message"] == message {
                        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
                        return (text("replica"), text("problem"));
                    }
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
    }
}

/// Settings with one pool per row: engine, key, URL.
fn settings(previous: Option<&Settings>, rows: &[(EngineKind, Option<&str>, &str)]) -> Settings {
    let model = ModelId::new(0);
    let mut pools = IdTable::default();
    let mut replicas = previous.map(|old| IdTable::successor(&old.edge.replicas)).unwrap_or_default();
    let mut policy = Policy::default();
    for (index, (engine, key, url)) in rows.iter().enumerate() {
        let pool: PoolId = pools.insert(
            &format!("pool{index}"),
            PoolSettings {
                engine: *engine,
                model_names: BTreeMap::from([(model, "served".to_owned())]),
                adapters: BTreeSet::new(),
                api_key: key.map(Secret::new),
                tls: None,
                scrape_interval: Duration::from_millis(20),
                site: Default::default(),
                discover: None,
            },
        );
        let replica = replicas
            .insert(url, ReplicaSettings { pool, url: url.parse().unwrap(), metrics_url: None, zone: None });
        policy.pools.insert(
            &format!("pool{index}"),
            Pool { replicas: vec![replica], models: [model].into(), ..Pool::default() },
        );
        policy.replicas.insert(url, Replica { pool, max_seqs: None, kv_tokens: None });
    }
    let all = (0..rows.len()).map(PoolId::from).collect();
    policy.models.insert("public", Model { pools: all, max_model_len: None });
    let usual = usual();
    let auth = Auth::Off(TenantId::new(0));
    let names = ModelNames::default();
    Settings {
        digest: String::new(),
        edge: Arc::new(EdgeSettings { auth, names, pools, replicas, ..(*usual.edge).clone() }),
        policy: Arc::new(policy),
        ..usual
    }
}

/// The settings of a file that says no more than it must.
fn usual() -> Settings {
    let pool = "{engine: vllm, models: [m], replicas: [http://10.0.0.1:8000]}";
    let text = format!("version: 1\nauth: {{mode: off}}\npools:\n  pool0: {pool}\n");
    load_str(&text, "penstock.yaml", Path::new("/"), None).loaded.unwrap().settings
}

const PATIENT: FleetTiming = FleetTiming {
    scrape_timeout: Duration::from_secs(10),
    probe_timeout: Duration::from_secs(10),
    info_interval: Duration::from_secs(3600),
    info_retry: Duration::from_millis(20),
};

const HASTY: FleetTiming = FleetTiming {
    scrape_timeout: Duration::from_millis(50),
    probe_timeout: Duration::from_millis(50),
    ..PATIENT
};

fn start(
    rows: &[(EngineKind, Option<&str>, &str)],
    timing: FleetTiming,
) -> (FleetMonitor, Reports, Arc<ArcSwap<Settings>>) {
    let shared = Arc::new(ArcSwap::from_pointee(settings(None, rows)));
    let (telemetry, policy) = (Telemetry::for_tests(), Arc::clone(&shared.load().policy));
    let pairs = &ModelPairs::default();
    ConfigReloaded { policy: &policy, digest: "", restart_needed: &[], changed: &[], pairs }.emit(&telemetry);
    let (actions, _) = channel(1);
    let dispatcher = Dispatcher::new(policy, GatewayClock::start(), actions);
    let events = Arc::<EventLog>::default();
    dispatcher.log_events(&events);
    let reports = Reports {
        events,
        next_event: 0,
        telemetry: telemetry.clone(),
        next_line: telemetry.captured_log().lines().count(),
        dispatcher: Arc::downgrade(&dispatcher),
    };
    let fleet = FleetMonitor::start(Arc::clone(&shared), dispatcher, telemetry, timing).unwrap();
    (fleet, reports, shared)
}

/// The message of a replica that does not list its model.
const UNSERVED: &str = "model not served by engine";

const FIRST: ReplicaId = ReplicaId::new(0);
const SECOND: ReplicaId = ReplicaId::new(1);

#[tokio::test]
async fn reports_metrics_and_models_with_the_key() {
    let engine = Engine::healthy().await;
    let (fleet, mut reports, settings) = start(&[(EngineKind::Vllm, Some(KEY), &engine.url)], PATIENT);
    let (replica, report) = reports.report().await;
    let expected = ReplicaReport {
        running: Some(3),
        waiting: Some(2),
        kv_usage: Some(0.5),
        max_model_len: Some(2048),
        progress: Some(41),
        ..ReplicaReport::default()
    };
    assert_eq!((replica, report), (FIRST, expected));
    assert_eq!(reports.report().await.1, expected);

    let asked = engine.desk.asked.lock().clone();
    assert!(asked.iter().all(|(_, key)| key.as_deref() == Some("Bearer sk-very-secret")), "{asked:?}");
    assert_eq!(engine.times("/v1/models"), 1);

    let status = fleet.view().get(FIRST).unwrap();
    assert_eq!((status.gauges.running, status.failures, status.problem), (Some(3), 0, None));
    assert!(status.gauges_age().is_some() && status.unread_for().is_none() && status.info.is_some());
    assert_eq!(fleet.view().all().len(), 1);
    assert_eq!(fleet.view().context_window(&settings.load(), ModelId::new(0), PoolId::new(0)), Some(2048));
    assert_eq!(fleet.view().context_window(&settings.load(), ModelId::new(7), PoolId::new(0)), None);
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn answers_that_are_no_metrics_change_nothing() {
    let trap = Engine::healthy().await;
    let cases = [
        (Reply::Text(500, METRICS.to_owned()), FetchError::Status(500)),
        (Reply::Redirect(format!("{}/metrics", trap.url)), FetchError::Redirect(307)),
        (ok("<html>hello</html>"), FetchError::Malformed),
        (ok(""), FetchError::Malformed),
        (Reply::Endless, FetchError::TooLarge),
        (ok(&"x 1\n".repeat(2 << 20)), FetchError::TooLarge),
        (Reply::Cut, FetchError::Broken),
    ];
    let engine = Engine::healthy().await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, Some(KEY), &engine.url)], PATIENT);
    let (_, good) = reports.report().await;
    for (reply, expected) in cases {
        engine.set("/metrics", reply);
        let problem = expected.to_string();
        assert_eq!(reports.logged("scrape failed").await, (engine.url.clone(), problem.clone()));
        assert_eq!(reports.logged("scrape failed").await.1, problem);
        let status = fleet.view().get(FIRST).unwrap();
        assert!(status.failures >= 2 && status.problem == Some(expected), "{status:?}");
        assert!(status.gauges_age().is_some() && status.unread_for().is_none(), "it was read before");
        assert_eq!(status.gauges.running, good.running);

        while let Some(event) = reports.next() {
            assert!(matches!(event, Event::ReplicaReported { report, .. } if report == good), "{event:?}");
        }
        engine.set("/metrics", ok(METRICS));
        reports.logged("scrape recovered").await;
        assert_eq!(reports.report().await.1, good);
    }
    assert_eq!(trap.times("/metrics"), 0, "no redirect is followed");
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn old_gauges_are_not_reported_again() {
    let engine = Engine::healthy().await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], PATIENT);
    reports.report().await;
    engine.set("/metrics", Reply::Text(500, String::new()));
    reports.logged("scrape failed").await;
    reports.skip();
    fleet.probe(FIRST);
    assert_eq!(reports.probed().await, (FIRST, true));
    let (_, report) = reports.report().await;
    assert_eq!(report, ReplicaReport { max_model_len: Some(2048), ..ReplicaReport::default() });
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn an_engine_that_comes_back_is_asked_for_its_models_again() {
    let engine = Engine::healthy().await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], PATIENT);
    assert_eq!(reports.report().await.1.max_model_len, Some(2048));
    engine.set("/metrics", Reply::Text(500, String::new()));
    reports.logged("scrape failed").await;
    engine.set("/v1/models", ok(r#"{"data":[{"id":"served","max_model_len":4096}]}"#));
    engine.set("/metrics", ok(METRICS));
    reports.report_of(FIRST, |report| report.max_model_len == Some(4096)).await;
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn a_slow_engine_is_asked_one_question_at_a_time() {
    let engine = Engine::healthy().await;
    engine.set("/metrics", Reply::Hang);
    engine.set("/v1/models", Reply::Hang);
    // Ten ticks pass during each question.
    let timing = FleetTiming { scrape_timeout: Duration::from_millis(200), ..PATIENT };
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], timing);
    for _ in 0..3 {
        assert_eq!(reports.logged("scrape failed").await.1, FetchError::Timeout.to_string());
    }
    // One, and perhaps another whose connection is just closing.
    assert!((1..=2).contains(&engine.desk.most_open.load(Ordering::SeqCst)));
    assert!(reports.next().is_none(), "silence is no event");
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn an_engine_that_is_gone_changes_nothing() {
    let engine = Engine::healthy().await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], PATIENT);
    reports.report().await;
    let url = engine.url.clone();
    drop(engine);
    soon(async {
        // The server's end closes the listener a moment later.
        while tokio::net::TcpStream::connect(&url["http://".len()..]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let connect = FetchError::Connect.to_string();
    soon(async { while reports.logged("scrape failed").await.1 != connect {} }).await;
    while let Some(event) = reports.next() {
        assert!(matches!(event, Event::ReplicaReported { .. }), "{event:?}");
    }
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn engines_without_metrics_report_what_they_say_of_themselves() {
    let engine = Engine::new(&[
        ("/v1/models", ok(r#"{"data":[{"id":"served"}]}"#)),
        ("/props", ok(r#"{"default_generation_settings":{"n_ctx":512},"total_slots":4}"#)),
    ])
    .await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Llamacpp, None, &engine.url)], PATIENT);
    let expected = ReplicaReport { slots: Some(4), max_model_len: Some(512), ..ReplicaReport::default() };
    assert_eq!(reports.report().await.1, expected);
    assert_eq!(reports.logged("scrape failed").await.1, FetchError::Status(404).to_string());
    let status = fleet.view().get(FIRST).unwrap();
    assert!(status.gauges_age().is_none() && status.unread_for().is_some(), "{status:?}");
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn a_reload_ends_the_tasks_of_replicas_that_left() {
    let (leaves, stays) = (Engine::healthy().await, Engine::healthy().await);
    leaves.set("/health", Reply::Hang);
    let stay = (EngineKind::Vllm, None, stays.url.as_str());
    let (fleet, mut reports, shared) = start(&[stay, (EngineKind::Vllm, None, &leaves.url)], PATIENT);
    reports.report_of(SECOND, |_| true).await;
    fleet.probe(SECOND);
    soon(async {
        while leaves.times("/health") == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let next = settings(Some(&shared.load()), &[stay]);
    shared.store(Arc::new(next));
    fleet.apply_settings();
    assert!(fleet.view().get(SECOND).is_none());
    // A question may have been on its way; it is over once the door is empty.
    soon(async {
        while leaves.desk.open.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    reports.skip();
    let before = leaves.desk.asked.lock().len();
    fleet.probe(SECOND);
    for _ in 0..5 {
        assert_eq!(reports.report().await.0, FIRST);
    }
    assert_eq!(leaves.desk.asked.lock().len(), before);
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn a_reload_that_changes_a_replica_starts_it_anew() {
    let engine = Engine::healthy().await;
    engine.set("/health", Reply::Hang);
    let (fleet, mut reports, shared) = start(&[(EngineKind::Vllm, Some("old"), &engine.url)], PATIENT);
    reports.report().await;
    fleet.apply_settings();
    fleet.probe(FIRST);
    soon(async {
        while engine.times("/health") == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    fleet.probe(FIRST);
    engine.set("/health", ok(""));

    let next = settings(Some(&shared.load()), &[(EngineKind::Vllm, Some("new"), &engine.url)]);
    shared.store(Arc::new(next));
    fleet.apply_settings();
    assert_eq!(reports.probed().await, (FIRST, true), "the probe in flight is repeated");
    let asked = engine.desk.asked.lock().clone();
    let healths: Vec<_> = asked.iter().filter(|(path, _)| path == "/health").map(|(_, key)| key).collect();
    assert_eq!(healths, [&Some("Bearer old".to_owned()), &Some("Bearer new".to_owned())]);
    reports.skip();
    reports.report().await;
    assert_eq!(engine.desk.asked.lock().last().unwrap().1.as_deref(), Some("Bearer new"));
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn a_reload_brings_new_replicas_and_their_probes() {
    let (first, second) = (Engine::healthy().await, Engine::healthy().await);
    let old = (EngineKind::Vllm, None, first.url.as_str());
    let (fleet, mut reports, shared) = start(&[old], PATIENT);
    let next = settings(Some(&shared.load()), &[old, (EngineKind::Vllm, None, &second.url)]);
    shared.store(Arc::new(next));
    fleet.probe(SECOND);
    assert_eq!(reports.probed().await, (SECOND, true));
    reports.report_of(SECOND, |_| true).await;
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn probes_follow_the_engine() {
    let vllm = Engine::healthy().await;
    let triton = Engine::new(&[("/health/ready", ok(""))]).await;
    let openai = Engine::new(&[("/v1/models", Reply::Text(401, String::new()))]).await;
    let (fleet, mut reports, _) = start(
        &[
            (EngineKind::Vllm, Some(KEY), &vllm.url),
            (EngineKind::Triton, None, &triton.url),
            (EngineKind::Openai, None, &openai.url),
        ],
        PATIENT,
    );
    for id in 0..3 {
        fleet.probe(ReplicaId::new(id));
        assert_eq!(reports.probed().await, (ReplicaId::new(id), true));
    }
    vllm.set("/health", Reply::Text(503, String::new()));
    triton.set("/health/ready", Reply::Text(400, String::new()));
    openai.set("/v1/models", Reply::Text(502, String::new()));
    for (id, status) in [(0, 503), (1, 400), (2, 502)] {
        fleet.probe(ReplicaId::new(id));
        assert_eq!(reports.probed().await, (ReplicaId::new(id), false));
        assert_eq!(reports.logged("probe failed").await.1, FetchError::Status(status).to_string());
    }
    fleet.probe(ReplicaId::new(9));
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn a_probe_gives_up_in_time() {
    let engine = Engine::healthy().await;
    engine.set("/health", Reply::Hang);
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], HASTY);
    fleet.probe(FIRST);
    assert_eq!(reports.probed().await, (FIRST, false));
    assert_eq!(reports.logged("probe failed").await.1, FetchError::Timeout.to_string());
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn a_replica_that_is_found_is_asked_for_its_models_again() {
    let engine = Engine::healthy().await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], PATIENT);
    assert_eq!(reports.report().await.1.max_model_len, Some(2048));
    engine.set("/v1/models", ok(r#"{"data":[{"id":"served","max_model_len":4096}]}"#));
    fleet.probe(FIRST);
    assert_eq!(reports.probed().await, (FIRST, true));
    reports.report_of(FIRST, |report| report.max_model_len == Some(4096)).await;
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn a_vllm_that_sleeps_says_so() {
    let engine = Engine::healthy().await;
    engine.set("/metrics", ok("vllm:engine_sleep_state{sleep_state=\"weights_offloaded\"} 1\n"));
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], PATIENT);
    reports.report_of(FIRST, |report| report.asleep == Some(true)).await;
    reports.logged("replica was put to sleep or woken by others").await;
    fleet.probe(FIRST);
    assert_eq!(reports.probed().await, (FIRST, true), "it is there, and not broken");
    engine.set("/metrics", ok("vllm:engine_sleep_state{sleep_state=\"awake\"} 1\n"));
    reports.report_of(FIRST, |report| report.asleep == Some(false)).await;
    reports.logged("replica was put to sleep or woken by others").await;
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn orders_to_sleep_and_to_wake_are_answered() {
    let engine = Engine::healthy().await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, Some(KEY), &engine.url)], PATIENT);
    let wake = SleepOrder::Wake { limit: Duration::from_secs(20) };
    engine.set("/sleep", ok("{}"));
    fleet.send_sleep_order(FIRST, SleepOrder::Sleep);
    assert_eq!(reports.sleep_result().await, (FIRST, SleepResult::Asleep));
    reports.logged("replica told to sleep or wake").await;
    // The order fails, and the engine says what came of it.
    engine.set("/wake_up", Reply::Text(500, String::new()));
    for (state, sleep_result) in [
        (ok(r#"{"is_sleeping":true}"#), SleepResult::Asleep),
        (ok(r#"{"is_sleeping":false}"#), SleepResult::Awake),
        (ok("[]"), SleepResult::Failed),
        (Reply::Text(404, String::new()), SleepResult::Failed),
    ] {
        engine.set("/is_sleeping", state);
        fleet.send_sleep_order(FIRST, wake);
        assert_eq!(reports.sleep_result().await, (FIRST, sleep_result));
    }
    // Not started with VLLM_SERVER_DEV_MODE=1.
    engine.set("/sleep", Reply::Text(404, String::new()));
    fleet.send_sleep_order(FIRST, SleepOrder::Sleep);
    assert_eq!(reports.sleep_result().await, (FIRST, SleepResult::Unable));
    reports.logged("replica cannot sleep: it does not know /sleep").await;
    assert!(engine.desk.asked.lock().iter().all(|(_, key)| key.is_some()));
    soon(fleet.stop()).await;

    let tgi = Engine::new(&[]).await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Tgi, None, &tgi.url)], PATIENT);
    fleet.send_sleep_order(FIRST, SleepOrder::Sleep);
    assert_eq!(reports.sleep_result().await, (FIRST, SleepResult::Unable));
    assert_eq!(tgi.times("/sleep"), 0);
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn a_model_that_the_engine_does_not_list_is_noted_once() {
    let engine = Engine::healthy().await;
    engine.set("/v1/models", ok(r#"{"data":[{"id":"other"}]}"#));
    let often = FleetTiming { info_interval: Duration::from_millis(20), ..PATIENT };
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], often);
    reports.logged(UNSERVED).await;
    soon(async {
        while engine.times("/v1/models") < 4 {
            reports.report().await;
        }
    })
    .await;
    engine.set("/v1/models", ok(MODELS));
    soon(async {
        while !fleet.view().get(FIRST).unwrap().missing.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let log = reports.telemetry.captured_log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(UNSERVED)).collect();
    assert!(
        lines[0].contains(r#""expected":"served""#) && lines[0].contains(r#""served":"other""#),
        "{lines:?}"
    );
    assert_eq!(lines.len(), 1, "{lines:?}");
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn the_key_is_in_no_message() {
    let engine = Engine::new(&[]).await;
    let broken = format!("{KEY}\nx");
    let rows = [
        (EngineKind::Vllm, Some(KEY), engine.url.as_str()),
        (EngineKind::Vllm, Some(&broken), "http://[::1]:9"),
    ];
    let (fleet, mut reports, shared) = start(&rows, PATIENT);
    let mut texts = vec![format!("{fleet:?}"), format!("{shared:?}")];
    for _ in 0..2 {
        reports.logged("scrape failed").await;
    }
    fleet.probe(SECOND);
    assert_eq!(reports.probed().await, (SECOND, false));
    assert_eq!(reports.logged("probe failed").await.1, FetchError::Unsendable.to_string());
    texts.push(reports.telemetry.captured_log());
    texts.push(format!("{:?}", fleet.view().all()));
    for text in texts {
        assert!(!text.contains(KEY), "{text}");
    }
    soon(fleet.stop()).await;
}

#[tokio::test]
async fn nothing_is_reported_after_a_stop() {
    let engine = Engine::healthy().await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], PATIENT);
    reports.report().await;
    engine.set("/metrics", Reply::Hang);
    engine.set("/health", Reply::Hang);
    fleet.probe(FIRST);
    soon(fleet.stop()).await;
    reports.skip();
    fleet.probe(FIRST);
    fleet.apply_settings();
    drop(fleet);
    reports.ended().await;
    assert!(reports.next().is_none());
}

#[tokio::test]
async fn the_last_handle_ends_the_tasks() {
    let engine = Engine::healthy().await;
    let (fleet, mut reports, _) = start(&[(EngineKind::Vllm, None, &engine.url)], PATIENT);
    let view = fleet.view();
    reports.report().await;
    drop(fleet);
    reports.ended().await;
    assert_eq!(view.get(FIRST).unwrap().gauges.running, Some(3));
}
