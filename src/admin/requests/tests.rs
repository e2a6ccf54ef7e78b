//! Tests of the list of requests and of the live events, through the router.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use smallvec::SmallVec;
use tower_service::Service;

use crate::admin::fixtures::{settings, state};
use crate::admin::router;
use crate::config::watch::channel;
use crate::core::model::job::{JobSpec, PromptPrefix};
use crate::dispatcher::Dispatcher;
use crate::dispatcher::ticket::Ticket;
use crate::telemetry::request_history::live_events::MAX_READERS;
use crate::telemetry::request_history::{AttemptTrail, RequestEnd, RequestTrail, TrailRecorder};
use crate::telemetry::summary::RequestOutcome;
use crate::telemetry::{Telemetry, fixtures, wall};
use crate::tokens::CountSource;

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9);

struct World {
    router: Router,
    dispatcher: Arc<Dispatcher>,
    telemetry: Telemetry,
    tickets: Vec<Ticket>,
}

impl World {
    /// A gateway with one replica of one slot.
    fn new() -> Self {
        let telemetry = fixtures::telemetry(2);
        let state = state(&telemetry, channel().0);
        let dispatcher = Arc::clone(&state.dispatcher);
        Self { router: router(state, Router::new()), dispatcher, telemetry, tickets: Vec::new() }
    }

    /// A request of `team-<tenant>`, known to the scheduler. The first one runs, the others wait.
    fn arrive(&mut self, tenant: usize) -> TrailRecorder {
        let policy = settings().policy;
        let spec = JobSpec {
            id: self.dispatcher.next_job_id(),
            tenant: policy.tenants.id(&format!("team-{tenant}")).unwrap(),
            deadline: self.dispatcher.clock().now() + Duration::from_secs(60),
            ..JobSpec::example(0)
        };
        self.tickets.push(self.dispatcher.admit(spec, PromptPrefix::default(), &policy));
        self.telemetry.history().begin(RequestTrail {
            request_id: HeaderValue::try_from(format!("r-{}", spec.id.index())).unwrap(),
            gateway_id: None,
            guardrails: Vec::new(),
            job: spec.id,
            came: wall::now(),
            tenant: spec.tenant,
            class: spec.class,
            model: spec.model,
            fallback: None,
            api: "/v1/chat/completions",
            stream: true,
            prompt_tokens: 7,
            prompt_source: CountSource::Estimate,
            tries: SmallVec::new(),
            forgotten_tries: 0,
            end: None,
        })
    }

    fn end(&self, request: &TrailRecorder) {
        let (outcome, total) = (RequestOutcome::Success, Duration::from_secs(2));
        let end = RequestEnd { outcome, reason: None, status: 200, total, output_tokens: Some(9) };
        self.telemetry.history().ended(request, end);
    }

    async fn get(&self, path: &str, accept: &str) -> (StatusCode, String, Body) {
        let request = Request::builder().extension(ConnectInfo(HERE)).uri(path).header("accept", accept);
        let (head, body) =
            self.router.clone().call(request.body(Body::empty()).unwrap()).await.unwrap().into_parts();
        let media = head.headers["content-type"].to_str().unwrap().to_owned();
        (head.status, media, body)
    }

    async fn text(&self, path: &str, accept: &str) -> (StatusCode, String, String) {
        let (status, media, body) = self.get(path, accept).await;
        let body = body.collect().await.unwrap().to_bytes();
        (status, media, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn json(&self, path: &str) -> Value {
        let (status, media, body) = self.text(path, "*/*").await;
        assert_eq!((status, &*media), (StatusCode::OK, "application/json"), "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

fn attempt() -> AttemptTrail {
    let grant = fixtures::success().dispatch.grant.unwrap();
    AttemptTrail { at: Duration::ZERO, grant, first_token: None, back: None }
}

fn ids(list: &Value) -> Vec<&str> {
    let rows = list["requests"].as_array().unwrap();
    rows.iter().map(|row| row["request_id"].as_str().unwrap()).collect()
}

/// One request runs, two wait, one has ended.
fn busy() -> World {
    let mut world = World::new();
    let running = world.arrive(0);
    running.sent(attempt());
    running.first_token(Duration::from_millis(140));
    running.wrote(4);
    let _waiting = [world.arrive(1), world.arrive(0)];
    let ended = world.arrive(1);
    ended.sent(attempt());
    world.end(&ended);
    drop(world.tickets.pop());
    world
}

#[tokio::test]
async fn requests_are_listed_by_state_with_why_they_wait() {
    let world = busy();
    let list = world.json("/admin/v1/requests").await;
    assert_eq!(ids(&list), ["r-2", "r-3", "r-1", "r-4"]);
    assert_eq!(list["matched"], json!({ "waiting": 2, "running": 1, "finished": 1 }));
    let [waiting, _, running, finished] = list["requests"].as_array().unwrap().as_slice() else { panic!() };
    assert_eq!((&waiting["state"], &waiting["tenant"]), (&json!("waiting"), &json!("team-1")));
    let waits = &waiting["waits"];
    assert_eq!((&waits["obstacle"], &waits["ahead"]), (&json!("no_room"), &json!(0)));
    assert!(waits["may_wait_seconds"].as_f64().unwrap() > 50.0 && waits["starts_in_seconds"].is_null());
    let explained = world.json("/admin/v1/requests/r-2").await;
    assert_eq!(explained["waiting"]["obstacle"], waits["obstacle"], "as explain says");
    assert_eq!(
        (&running["replica"], &running["output_tokens"], &running["ttft_seconds"]),
        (&json!("a100/http://10.0.0.1:8000"), &json!(4), &json!(0.14))
    );
    assert!(running["waits"].is_null() && running["end"].is_null());
    let end = json!({ "outcome": "success", "reason": null, "status": 200, "total_seconds": 2.0 });
    assert_eq!((&finished["end"], &finished["output_tokens"]), (&end, &json!(9)));
}

#[tokio::test]
async fn a_list_is_filtered_and_bounded() {
    let world = busy();
    for (query, found) in [
        ("state=waiting", &["r-2", "r-3"][..]),
        ("state=running&state=finished", &["r-1", "r-4"]),
        ("tenant=team-1", &["r-2", "r-4"]),
        ("tenant=team-1&state=waiting&class=interactive&model=llama&pool=a100", &["r-2"]),
        ("limit=1", &["r-2"]),
    ] {
        assert_eq!(ids(&world.json(&format!("/admin/v1/requests?{query}")).await), found, "{query}");
    }
    assert_eq!(world.json("/admin/v1/requests?limit=1").await["matched"]["waiting"], 2);
    for (query, word) in [
        ("tenant=team-9", "did you mean"),
        ("state=late", "waiting, running, finished"),
        ("limit=0", "from 1 to 1000"),
        ("limit=1001", "from 1 to 1000"),
        ("colour=red", "`colour` is not known"),
        ("event=ended", "`event` is not known"),
        ("format=xml", "json, csv"),
    ] {
        let (status, _, body) = world.text(&format!("/admin/v1/requests?{query}"), "*/*").await;
        assert!(status.is_client_error() && body.contains(word), "{query}: {status} {body}");
    }
}

#[tokio::test]
async fn each_list_has_a_twin_in_csv() {
    let world = busy();
    for (list, first) in [
        ("requests", "request_id,state,tenant,class,model,"),
        ("queues", "tenant,class,model,waiting,"),
        ("pools", "pool,state,closed,"),
        ("replicas", "replica,pool,state,"),
        ("tenants", "tenant,parent,weight,"),
    ] {
        let path = format!("/admin/v1/{list}");
        let (_, media, by_header) = world.text(&path, "text/csv").await;
        let (_, _, by_query) = world.text(&format!("{path}?format=csv"), "*/*").await;
        assert!(media.starts_with("text/csv") && by_header.starts_with(first), "{by_header}");
        let (head, rows) = by_query.split_once("\r\n").unwrap();
        let as_json = world.json(&path).await;
        assert_eq!(rows.lines().count(), as_json[list].as_array().unwrap().len(), "{list}");
        let row = &as_json[list][0];
        for column in head.split(',').filter(|column| !column.contains('_')) {
            assert!(row.get(column).is_some(), "{list} has no {column}");
        }
    }
}

#[tokio::test]
async fn events_come_as_they_happen_and_filtered() {
    let mut world = World::new();
    let (status, media, mut body) =
        world.get("/admin/v1/events?tenant=team-1&event=arrived&event=ended", "*/*").await;
    assert_eq!((status, &*media), (StatusCode::OK, "text/event-stream"));
    let mut next = async || {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        String::from_utf8(frame.to_vec()).unwrap()
    };
    assert_eq!(next().await, "retry: 2000\n\n");
    let _other = world.arrive(0);
    let request = world.arrive(1);
    request.sent(attempt());
    world.end(&request);
    let text = next().await;
    let rows: Vec<Value> = text
        .split("\n\n")
        .filter(|row| !row.is_empty())
        .map(|row| serde_json::from_str(row.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let [arrived, ended] = rows.as_slice() else { panic!("{text}") };
    assert_eq!((&arrived["event"], &arrived["request_id"]), (&json!("arrived"), &json!("r-2")));
    assert_eq!(
        (&ended["event"], &ended["outcome"], &ended["pool"]),
        (&json!("ended"), &json!("success"), &json!("a100"))
    );
}

#[tokio::test]
async fn a_slow_reader_of_events_is_told_and_readers_are_few() {
    let mut world = World::new();
    let (_, _, mut slow) = world.get("/admin/v1/events", "*/*").await;
    slow.frame().await.unwrap().unwrap();
    let request = world.arrive(0);
    (0..5000).for_each(|_| request.sent(attempt()));
    let text = slow.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.contains("\"missed\":") && text.contains("too slow"), "{text}");
    let mut readers = Vec::new();
    for _ in 0..MAX_READERS {
        readers.push(world.get("/admin/v1/events", "*/*").await);
    }
    let (status, _, body) = world.text("/admin/v1/events", "*/*").await;
    assert!(
        status == StatusCode::SERVICE_UNAVAILABLE && body.contains("8 read the events already"),
        "{body}"
    );
    drop(readers);
    assert_eq!(world.get("/admin/v1/events?event=change", "*/*").await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_events_shows_that_it_lives_and_ends_in_time() {
    let world = World::new();
    let (_, _, body) = world.get("/admin/v1/events", "*/*").await;
    let text = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert_eq!(text.matches(": alive\n\n").count(), 23, "{text}");
    assert!(text.ends_with("data: {\"event\":\"end\",\"why\":\"connect again for more\"}\n\n"), "{text}");
}
