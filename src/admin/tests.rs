//! Tests of the admin routes in process, and of the listener over loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower_service::Service;

use crate::admin::fixtures::{KEY_DIGEST, settings, snapshot, state, unchanged};
use crate::admin::report::overview;
use crate::admin::state::AdminState;
use crate::admin::{AdminTls, report, router, spawn};
use crate::config::report::problem::ConfigProblem;
use crate::config::watch::{ReloadOutcome, ReloadReport, ReloadRequests, channel};
use crate::core::model::event::ReplicaReport;
use crate::core::model::ids::ReplicaId;
use crate::core::model::job::{JobSpec, PromptPrefix};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::ticket::Ticket;
use crate::telemetry::Telemetry;
use crate::telemetry::event::ConfigRejected;
use crate::telemetry::fixtures;
use crate::telemetry::metrics::EngineView;
use crate::tls::Handshakes;
use crate::usage::bill::RowSource;

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9);

fn no_tls() -> AdminTls {
    AdminTls {
        source: Arc::new(|| None),
        handshakes: Handshakes::new(1, Duration::from_secs(1)),
        telemetry: Telemetry::for_tests(),
    }
}

struct World {
    router: Router,
    dispatcher: Arc<Dispatcher>,
    telemetry: Telemetry,
    reloads: ReloadRequests,
}

/// A gateway that does nothing, under the fixtures' settings.
fn world() -> World {
    with_usage(None)
}

fn with_usage(usage: Option<RowSource>) -> World {
    let telemetry = fixtures::telemetry(2);
    let (reload, reloads) = channel();
    let state = AdminState { usage, ..state(&telemetry, reload) };
    let dispatcher = Arc::clone(&state.dispatcher);
    let empty = || axum::routing::get(async || "{}");
    let more = Router::new().route("/scale/v1/pools", empty()).route("/admin/v1/scale", empty());
    World { router: router(state, more), dispatcher, telemetry, reloads }
}

impl World {
    /// A job of `team-1` in the only class, which may wait for a minute.
    fn admit(&self) -> Ticket {
        let policy = settings().policy;
        let spec = JobSpec {
            id: self.dispatcher.next_job_id(),
            tenant: policy.tenants.id("team-1").unwrap(),
            deadline: self.dispatcher.clock().now() + Duration::from_secs(60),
            ..JobSpec::example(0)
        };
        self.dispatcher.admit(spec, PromptPrefix::default(), &policy)
    }

    /// Answers the next reload request with `report`, after `delay`.
    async fn answer_reload(&mut self, report: ReloadReport, delay: Duration) {
        let reply = self.reloads.next().await.unwrap();
        tokio::time::sleep(delay).await;
        let _gone = reply.send(report);
    }
}

async fn call(world: &World, method: &str, path: &str) -> (StatusCode, HeaderMap, String) {
    send(world.router.clone(), method, path).await
}

async fn send(mut router: Router, method: &str, path: &str) -> (StatusCode, HeaderMap, String) {
    let request = Request::builder()
        .extension(ConnectInfo(HERE))
        .method(method)
        .uri(path)
        .header(
            "accept",
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        )
        .header("accept-encoding", "gzip")
        .header("content-type", "application/json")
        .body(Body::empty())
        .unwrap();
    let (head, body) = router.call(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
}

async fn json_of(world: &World, path: &str) -> Value {
    let (status, headers, body) = call(world, "GET", path).await;
    assert_eq!((status, &headers["content-type"]), (StatusCode::OK, &"application/json".parse().unwrap()));
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn metrics_are_plain_text_0_0_4_whatever_is_asked_for() {
    let world = world();
    let _tickets = [world.admit(), world.admit()];
    let (status, headers, body) = call(&world, "GET", "/metrics").await;
    assert_eq!(
        (status, &headers["content-type"]),
        (StatusCode::OK, &"text/plain; version=0.0.4; charset=utf-8".parse().unwrap())
    );
    assert!(!headers.contains_key("content-encoding"));
    for sample in [
        r#"penstock_queue_depth{tenant="team-1",class="interactive",model="llama"} 1"#,
        r#"penstock_replica_running{pool="a100",replica="a100/http://10.0.0.1:8000"} 1"#,
        "penstock_jobs 2",
    ] {
        assert!(body.lines().any(|line| line == sample), "{sample}");
    }
    let (status, headers, body) = call(&world, "HEAD", "/metrics").await;
    assert_eq!((status, &*body), (StatusCode::OK, ""));
    assert_eq!(headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
}

#[tokio::test]
async fn readiness_ends_with_the_drain_and_liveness_does_not() {
    let world = world();
    for path in ["/readyz", "/healthz", "/livez"] {
        assert_eq!(call(&world, "GET", path).await.0, StatusCode::OK, "{path}");
    }
    world.dispatcher.shutdown().begin_drain();
    for path in ["/readyz", "/healthz"] {
        let (status, _, body) = call(&world, "GET", path).await;
        assert_eq!((status, &*body), (StatusCode::SERVICE_UNAVAILABLE, "draining\n"), "{path}");
    }
    assert_eq!(call(&world, "GET", "/livez").await.0, StatusCode::OK);
    let status = json_of(&world, "/admin/v1/status").await;
    assert_eq!((&status["ready"], &status["not_ready_reason"]), (&json!(false), &json!("draining")));
}

#[tokio::test]
async fn status_has_the_problems_of_the_last_reload() {
    let world = world();
    let _ticket = world.admit();
    ConfigRejected { problems: &["pools.a: no replicas".into()] }.emit(&world.telemetry);
    let status = json_of(&world, "/admin/v1/status").await;
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&status["jobs"], &status["broken_invariants"]), (&json!(1), &json!(0)));
    assert!(status["uptime_seconds"].as_f64().unwrap() >= 0.0);
    let config = &status["config"];
    assert_eq!((&config["generation"], &config["digest"]), (&json!(1), &json!("d1")));
    assert!(config["loaded_at_unix"].as_f64().unwrap() > 1.6e9);
    assert_eq!(config["last_reload"]["successful"], false);
    assert_eq!(config["last_reload"]["problems"], json!(["pools.a: no replicas"]));
}

#[tokio::test]
async fn queues_pools_replicas_and_tenants_are_lists_of_rows() {
    let world = world();
    let _tickets = [world.admit(), world.admit()];
    for (path, list) in [
        ("/admin/v1/queues", "queues"),
        ("/admin/v1/pools", "pools"),
        ("/admin/v1/replicas", "replicas"),
        ("/admin/v1/shares", "shares"),
    ] {
        let rows = json_of(&world, path).await;
        assert_eq!(rows[list].as_array().unwrap().len(), 1, "{path}");
    }
    let tenants = json_of(&world, "/admin/v1/tenants").await;
    assert_eq!(
        (&tenants["tenants"][1]["tenant"], &tenants["tenants"][1]["waiting"]),
        (&json!("team-1"), &json!(1))
    );
}

#[test]
fn rows_name_what_they_are_of() {
    let (snapshot, settings) = (snapshot(), settings());
    let policy = &settings.policy;
    let queues = json!(report::queues(&snapshot, policy));
    let row = json!({
        "tenant": "team-1", "class": "interactive", "model": "llama",
        "waiting": 3, "bytes": 900, "tokens": 70, "oldest_seconds": 2.5,
    });
    assert_eq!(queues, json!([row]));

    let pools = json!(overview::pools(&snapshot, &[], &[], policy));
    assert_eq!((&pools[0]["pool"], &pools[0]["state"]), (&json!("a100"), &json!("ready")));
    assert_eq!((&pools[0]["waiting"], &pools[0]["cold_start_seconds"]), (&json!(3), &json!(41.5)));

    let engine = EngineView {
        replica: ReplicaId::new(0),
        report: Some(ReplicaReport { running: Some(1), ..ReplicaReport::default() }),
        age: Some(Duration::from_millis(500)),
        unread_for: None,
        problem: None,
    };
    let replicas = json!(report::replicas(&snapshot, &[engine], policy));
    let row = json!({
        "replica": "a100/http://10.0.0.1:8000", "pool": "a100", "state": "slow_start",
        "running": 2, "limit": 4, "prefill_tokens": 10, "kv_tokens": 20,
        "speed": 1.0 / 1.5, "speed_factor": 1.5, "expected_ttft_seconds": 0.08,
        "held_back_by": null, "guests_held_back_by": "reading",
        "slots": {"running": 2, "free": 2, "above_limit": 0, "withheld": 0, "out_of_service": 0},
        "engine": {
            "running": 1, "waiting": null, "kv_usage": null, "slots": null, "kv_tokens": null,
            "max_model_len": null, "age_seconds": 0.5, "problem": null,
        },
    });
    assert_eq!(replicas, json!([row]));

    let tenants = json!(report::tenants(&snapshot, &[], &settings));
    let row = json!({
        "tenant": "team-1", "weight": 1.0, "parent": null, "default_class": "interactive", "classes": ["interactive"],
        "models": null, "bounds": { "requests": null, "bytes": null, "tokens": null }, "limits": [],
        "waiting": 3, "oldest_seconds": 2.5, "overrides": [],
    });
    assert_eq!(tenants[1], row);
}

#[tokio::test]
async fn the_config_is_shown_whole_without_its_secrets() {
    let world = world();
    let config = json_of(&world, "/admin/v1/config").await;
    let key = &config["auth"]["keys"]["pk_1"];
    assert_eq!((&key["tenant"], &key["class"]), (&json!("team-0"), &json!("interactive")));
    assert_eq!(config["models"]["llama"]["aliases"], json!(["gpt-4o"]));
    assert_eq!(config["models"]["llama"]["prompt_source"], "engine", "vLLM counts");
    assert_eq!(config["splits"], json!({ "both": { "targets": { "llama": 3 }, "fallbacks": ["llama"] } }));
    let tenant = &config["tenants"]["team-1"];
    assert_eq!(
        (&tenant["model_map"], &tenant["allow_fallback"], &tenant["placement"]["otherwise"]),
        (&json!({ "mine": "gpt-4o" }), &json!(true), &Value::Null)
    );
    assert_eq!(config["queue"], json!({ "requests": 500, "bytes": null, "tokens": null }));
    let pool = &config["pools"]["a100"];
    assert_eq!((&pool["engine"], &pool["api_key"]), (&json!("vllm"), &json!("set")));
    assert_eq!((&pool["min_replicas"], &pool["max_replicas"]), (&json!(0), &Value::Null));
    assert_eq!(config["retry"]["continue_streams"], true);
    assert_eq!(config["requests"]["keepalive"], 10.0);
    assert_eq!(pool["models"], json!({ "llama": "meta/llama" }));
    assert_eq!(pool["replicas"][0]["url"], "http://10.0.0.1:8000/");
    assert_eq!(config["startup"]["telemetry"]["otlp_endpoint"], "http://collector:4317");
    assert_eq!(config["startup"]["telemetry"]["otlp_headers"], json!(["x-key"]));

    let digest: String = KEY_DIGEST.iter().map(|byte| format!("{byte:02x}")).collect();
    for path in
        ["/admin/v1/config", "/admin/v1/tenants", "/admin/v1/status", "/admin/v1/replicas", "/metrics"]
    {
        let (_, _, body) = call(&world, "GET", path).await;
        for secret in ["engine-secret", "password", "digest-of-a-key", &digest] {
            assert!(!body.contains(secret), "{path} shows {secret}");
        }
    }
}

#[tokio::test]
async fn a_reload_answers_200_or_422_with_the_problems() {
    let reloaded = async |report| {
        let mut world = world();
        let router = world.router.clone();
        let asked = tokio::spawn(async move { send(router, "POST", "/admin/v1/reload").await });
        world.answer_reload(report, Duration::ZERO).await;
        let (status, _, body) = asked.await.unwrap();
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let (status, body) = reloaded(unchanged()).await;
    assert_eq!((status, &body["outcome"]), (StatusCode::OK, &json!("unchanged")));

    let rejected = ReloadReport {
        outcome: ReloadOutcome::Failed,
        problems: vec![ConfigProblem::of_file("tenants.a: unknown class")],
        ..unchanged()
    };
    let (status, body) = reloaded(rejected).await;
    assert_eq!((status, &body["outcome"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("failed")));
    assert_eq!(body["problems"][0]["message"], "tenants.a: unknown class");
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_hangs_is_answered_and_goes_on() {
    let mut world = world();
    let router = world.router.clone();
    let answering =
        tokio::spawn(async move { world.answer_reload(unchanged(), Duration::from_secs(45)).await });
    let (status, _, body) = send(router, "POST", "/admin/v1/reload").await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(body.contains("/admin/v1/status"), "{body}");
    assert!(!answering.is_finished());
    answering.await.unwrap();
}

#[tokio::test]
async fn a_bill_is_made_as_it_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let world = with_usage(Some(RowSource::Journal(folder.path().to_owned())));
    let (status, _, body) = call(&world, "GET", "/admin/v1/usage?by=tenant,day&since=7d&share=tokens").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &body["by"], &body["total"]["requests"]),
        (StatusCode::OK, &json!(["tenant", "day"]), &json!(0))
    );
    let (status, _, body) = call(&world, "GET", "/admin/v1/usage?by=colour").await;
    assert!(status == StatusCode::BAD_REQUEST && body.contains("there are: tenant"), "{body}");
    let (status, _, body) = call(&self::world(), "GET", "/admin/v1/usage").await;
    assert!(status == StatusCode::NOT_FOUND && body.contains("usage.folder"), "{body}");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_json_errors_that_help() {
    let folder = tempfile::tempdir().unwrap();
    let world = with_usage(Some(RowSource::Journal(folder.path().to_owned())));
    for (method, path, expected) in [
        ("GET", "/admin/v2/status", StatusCode::NOT_FOUND),
        ("GET", "/admin/v1/reload", StatusCode::METHOD_NOT_ALLOWED),
        ("POST", "/metrics", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let (status, _, body) = call(&world, method, path).await;
        assert_eq!(status, expected, "{method} {path}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(path) && message.contains("GET / lists the routes"), "{message}");
    }
    let (status, headers, index) = call(&world, "GET", "/").await;
    assert_eq!(status, StatusCode::OK);
    assert!(headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    for line in index.lines().filter(|line| line.starts_with("GET  ") && !line.contains('{')) {
        let path = line.split_whitespace().nth(1).unwrap();
        if ["/admin/v1/events", "/admin/v1/live"].contains(&path) {
            continue; // These answers do not end.
        }
        assert_eq!(call(&world, "GET", path).await.0, StatusCode::OK, "{path}");
    }
}

fn ask(addr: SocketAddr, request: &str) -> String {
    talk(TcpStream::connect(addr).unwrap(), request)
}

fn talk(mut stream: TcpStream, request: &str) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const LIVEZ: &str = "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

/// The test's own runtime is one thread, and that thread blocks in `ask`: the
/// listener can only answer from its own.
#[tokio::test]
async fn the_listener_answers_while_the_callers_runtime_is_blocked() {
    let handle = spawn("127.0.0.1:0".parse().unwrap(), world().router, no_tls()).unwrap();
    let answer = ask(handle.addr(), LIVEZ);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("ok\n"), "{answer}");
    let head = ask(handle.addr(), &LIVEZ.replace("GET /livez", "HEAD /metrics"));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let huge = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(32 * 1024));
    assert!(ask(handle.addr(), &huge).starts_with("HTTP/1.1 431"));

    let addr = handle.addr();
    let idle = TcpStream::connect(addr).unwrap();
    handle.stop();
    assert!(TcpStream::connect(addr).is_err(), "the listener is closed");
    drop(idle);
}

fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

/// Silent clients, and clients that stop in the middle of a call's body.
#[tokio::test]
async fn connections_of_many_addresses_leave_room_for_probes() {
    let handle = spawn("127.0.0.1:0".parse().unwrap(), world().router, no_tls()).unwrap();
    let held: Vec<_> = (0..10)
        .flat_map(|address| (0..40).map(move |n| (address, n)))
        .map(|(address, n)| {
            let mut stream = connect_from([127, 0, 0, 10 + address], handle.addr());
            if n % 2 == 0 {
                let _ended = stream
                    .write_all(b"POST /admin/v1/reload HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n");
            }
            stream
        })
        .collect();
    for _ in 0..3 {
        let answer = talk(connect_from([127, 0, 0, 2], handle.addr()), LIVEZ);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    drop(held);
}

#[tokio::test]
async fn a_taken_address_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let problem = spawn(taken.local_addr().unwrap(), world().router, no_tls()).unwrap_err();
    assert_eq!(problem.kind(), std::io::ErrorKind::AddrInUse);
}
