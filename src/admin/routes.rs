//! Routes of the admin API.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router, middleware};
use serde_json::json;
use tokio::time::Instant;

use crate::admin::auth::{self, AdminGuard, Operator};
use crate::admin::keys::{self, KeyMaker};
use crate::admin::operate::{self, OperatorVerb, VERBS, VerbError};
pub(super) use crate::admin::problem::problem;
use crate::admin::report::{csv, overview};
use crate::admin::state::AdminState;
use crate::admin::usage::BillMaker;
use crate::admin::{config_view, console, report, requests};
use crate::cluster::FleetAnswer;
use crate::config::watch::ReloadOutcome;
use crate::telemetry::metrics::{CONTENT_TYPE, Scrape};

/// Longest time for a reload.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Most bytes of a command's body.
const MAX_BODY: usize = 8 * 1024;

const INDEX: &str = "\
penstock admin

GET  /metrics             metrics, Prometheus text format
GET  /livez               200 while the process runs
GET  /readyz              200 while new requests are taken, else 503 with the reason
GET  /healthz             the same as /readyz
GET  /admin/v1/status     everything of one screen: configuration, pools, replicas, classes, tenants, overrides
GET  /admin/v1/queues     what waits, by tenant, class and model
GET  /admin/v1/pools      pools with what runs there, and how their sources of replicas stand
GET  /admin/v1/replicas   ledger and engine report of each replica
GET  /admin/v1/tenants    tenants with their weights, classes, limits, what is left of them and what waits
GET  /admin/v1/overrides  what operators have set apart from the file
GET  /admin/v1/keys       API keys: whose they are, what they may do, when they end; nothing secret
GET  /scale/v1/pools      what each pool needs, as scalers are told it
GET  /scale/v1/{pool}     the same of one, for KEDA's metrics-api; takes a trigger's keys as its query
GET  /admin/v1/demand     the demand that was seen, of models, pools, classes and tenants
GET  /admin/v1/requests   requests that wait, run and ended last: ?state=waiting&tenant=...&class=...&model=...&pool=...&limit=100
GET  /admin/v1/events     what happens to requests, as server-sent events: ?event=dispatched&tenant=...&class=...&model=...&pool=...
GET  /admin/v1/requests/{id}  why a recent request went where it went, or why it waits
GET  /admin/v1/usage      who used what, and what it cost: ?by=tenant,model&since=7d&until=...&share=steps&format=csv
GET  /admin/v1/config     the configuration in force, without secrets
GET  /admin/v1/shares     who waits and runs: share against use, what is borrowed, predicted wait, what blocks
GET  /admin/v1/scale      desired and ready replicas of the last hour, and what KEDA asked last
GET  /admin/v1/live       status and shares once a second, as a stream of events
GET  /console             the same for people, as web pages
GET  /console/sign-in     the identity provider at which the console signs in, or null
POST /admin/v1/reload     read the configuration again; takes `content-type: application/json`

/admin/v1/queues, pools, replicas, tenants, shares and requests are also CSV: ?format=csv,
or `Accept: text/csv`.

Where the configuration has `admin.auth`, everything but /livez, /readyz, /healthz
and what is below /console asks for `Authorization: Bearer <token>`.

POST   /admin/v1/keys     make a key: {\"tenant\": ..., \"for\": \"90d\", \"note\": ...}; to replace one: {\"replaces\": id, \"overlap\": \"24h\"}
DELETE /admin/v1/keys/{id}  revoke a key that was made so

POST with a JSON body {\"name\": ..., \"for\": \"30m\" or \"forever\", \"reason\": ...}:
POST /admin/v1/pools/     cordon, drain, spot-notice, uncordon
POST /admin/v1/replicas/  cordon, drain, spot-notice, uncordon
POST /admin/v1/tenants/   pause, boost (with \"by\": 4), resume
";

#[derive(Clone)]
struct AdminRoutes {
    state: Arc<AdminState>,
    started: Instant,
    bills: Arc<BillMaker>,
    keys: KeyMaker,
}

/// Admin routes, and the routes of `more` behind the same credentials. The uptime counts from this
/// call.
pub fn router(state: AdminState, more: Router) -> Router {
    let admin = AdminRoutes {
        state: Arc::new(state),
        started: Instant::now(),
        bills: Arc::default(),
        keys: KeyMaker::default(),
    };
    let guard = AdminGuard::new(&admin.state, admin.started);
    let verbs = VERBS.into_iter().fold(Router::new(), |router, (path, verb)| {
        router.route(path, post(move |state, who, headers, body| act(verb, state, who, headers, body)))
    });
    verbs
        .route("/", get(|| async { INDEX }))
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/healthz", get(ready))
        .route("/admin/v1/status", get(status))
        .route("/admin/v1/queues", get(queues))
        .route("/admin/v1/replicas", get(replicas))
        .route("/admin/v1/tenants", get(tenants))
        .route("/admin/v1/pools", get(pools))
        .route("/admin/v1/overrides", get(overrides))
        .route("/admin/v1/shares", get(shares))
        .route("/admin/v1/requests", get(requests))
        .route("/admin/v1/requests/{id}", get(request))
        .route("/admin/v1/events", get(events))
        .route("/admin/v1/usage", get(usage))
        .route("/admin/v1/keys", get(list_keys).post(make_key))
        .route("/admin/v1/keys/{id}", delete(revoke_key))
        .route("/admin/v1/demand", get(demand))
        .route("/admin/v1/config", get(config))
        .route("/admin/v1/reload", post(reload))
        .with_state(admin.clone())
        .merge(console::router(admin.state, admin.started))
        .merge(more)
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(guard, auth::check))
}

/// Metrics in text 0.0.4, whatever format is requested: every Prometheus reads it.
async fn metrics(State(admin): State<AdminRoutes>) -> impl IntoResponse {
    let (snapshot, engines) = (admin.state.snapshot(), admin.state.engine_views());
    let needs = admin.state.demands();
    let scrape = Scrape { snapshot: &snapshot, engines: &engines, needs: &needs };
    let text = admin.state.telemetry.render(&scrape);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text)
}

async fn ready(State(admin): State<AdminRoutes>) -> (StatusCode, String) {
    match admin.state.readiness() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn status(State(admin): State<AdminRoutes>) -> impl IntoResponse {
    Json(report::StatusReport::of(&admin.state, admin.started.elapsed()))
}

async fn queues(State(admin): State<AdminRoutes>, uri: Uri, headers: HeaderMap) -> Response {
    let settings = admin.state.settings();
    let body = json!({ "queues": report::queues(&admin.state.snapshot(), &settings.policy) });
    answered(csv::answer(&headers, uri.query(), body, "queues", csv::QUEUES))
}

async fn replicas(State(admin): State<AdminRoutes>, uri: Uri, headers: HeaderMap) -> Response {
    let settings = admin.state.settings();
    let (snapshot, engines) = (admin.state.snapshot(), admin.state.engine_views());
    let body = json!({ "replicas": report::replicas(&snapshot, &engines, &settings.policy) });
    answered(csv::answer(&headers, uri.query(), body, "replicas", csv::REPLICAS))
}

async fn tenants(State(admin): State<AdminRoutes>, uri: Uri, headers: HeaderMap) -> Response {
    let settings = admin.state.settings();
    let limits = admin.state.dispatcher.limits();
    let body = json!({ "tenants": report::tenants(&admin.state.snapshot(), &limits, &settings) });
    answered(csv::answer(&headers, uri.query(), body, "tenants", csv::TENANTS))
}

async fn pools(State(admin): State<AdminRoutes>, uri: Uri, headers: HeaderMap) -> Response {
    let settings = admin.state.settings();
    let (snapshot, sources, needs) =
        (admin.state.snapshot(), admin.state.sources.statuses(), admin.state.demands());
    let body = json!({ "pools": overview::pools(&snapshot, &sources, &needs, &settings.policy) });
    answered(csv::answer(&headers, uri.query(), body, "pools", csv::POOLS))
}

async fn shares(State(admin): State<AdminRoutes>, uri: Uri, headers: HeaderMap) -> Response {
    let body = json!({ "shares": report::shares::now(&admin.state) });
    answered(csv::answer(&headers, uri.query(), body, "shares", csv::SHARES))
}

async fn requests(State(admin): State<AdminRoutes>, uri: Uri, headers: HeaderMap) -> Response {
    let listed = requests::list(&admin.state, uri.query().unwrap_or_default());
    answered(listed.and_then(|body| csv::answer(&headers, uri.query(), body, "requests", requests::COLUMNS)))
}

async fn events(State(admin): State<AdminRoutes>, uri: Uri) -> Response {
    answered(requests::events::stream(&admin.state, uri.query().unwrap_or_default()))
}

fn answered(answer: Result<Response, VerbError>) -> Response {
    answer.unwrap_or_else(|VerbError(status, message)| problem(status, &message))
}

async fn overrides(State(admin): State<AdminRoutes>) -> impl IntoResponse {
    let settings = admin.state.settings();
    let cluster = admin.state.cluster.as_ref().map(|status| status.lock().overrides.clone());
    let rows = overview::overrides(&admin.state.snapshot(), &settings.policy, cluster.as_ref());
    Json(json!({ "overrides": rows }))
}

async fn request(State(admin): State<AdminRoutes>, Path(id): Path<String>) -> Response {
    let AdminState { telemetry, dispatcher, finder, .. } = &*admin.state;
    if let Some(view) = requests::explain::find(&id, telemetry, dispatcher, &admin.state.settings().policy) {
        return Json(view).into_response();
    }
    let others = match finder {
        Some(finder) => finder.find(&id).await,
        None => FleetAnswer::Alone,
    };
    match requests::elsewhere::answer(&id, others) {
        Ok(view) => Json(view).into_response(),
        Err(message) => problem(StatusCode::NOT_FOUND, &message),
    }
}

async fn act(
    verb: OperatorVerb,
    State(admin): State<AdminRoutes>,
    Extension(who): Extension<Operator>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match operate::carry_out(&admin.state, verb, &who, &headers, &body) {
        Ok(outcome) => Json(outcome).into_response(),
        Err(VerbError(status, message)) => problem(status, &message),
    }
}

async fn list_keys(State(admin): State<AdminRoutes>) -> impl IntoResponse {
    Json(json!({ "keys": keys::list(&admin.state.settings()) }))
}

/// Makes a key. The work goes on when the caller hangs up.
async fn make_key(
    State(admin): State<AdminRoutes>,
    Extension(who): Extension<Operator>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(VerbError(status, message)) = operate::require_json(&headers) {
        return problem(status, &message);
    }
    let made = tokio::spawn(async move { admin.keys.create(&admin.state, &who, &body).await });
    match made.await {
        Ok(Ok(made)) => (StatusCode::CREATED, Json(made)).into_response(),
        Ok(Err(VerbError(status, message))) => problem(status, &message),
        Err(_) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "it broke off; GET /admin/v1/keys says what is in force",
        ),
    }
}

async fn revoke_key(
    State(admin): State<AdminRoutes>,
    Extension(who): Extension<Operator>,
    Path(id): Path<String>,
) -> Response {
    let revoked = id.clone();
    let done = tokio::spawn(async move { admin.keys.revoke(&admin.state, &who, &id).await });
    match done.await {
        Ok(Ok(())) => Json(json!({ "id": revoked, "revoked": true })).into_response(),
        Ok(Err(VerbError(status, message))) => problem(status, &message),
        Err(_) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "it broke off; GET /admin/v1/keys says what is in force",
        ),
    }
}

async fn usage(State(admin): State<AdminRoutes>, uri: Uri, headers: HeaderMap) -> Response {
    let query = uri.query().unwrap_or_default();
    let (form, query) = match csv::BillForm::asked(&headers, query) {
        Ok(asked) => asked,
        Err(VerbError(status, message)) => return problem(status, &message),
    };
    answered(admin.bills.make(admin.state.usage.as_ref(), &query).await.map(|bill| form.answer(&bill)))
}

async fn demand(State(admin): State<AdminRoutes>) -> impl IntoResponse {
    Json(admin.state.dispatcher.demand_state())
}

async fn config(State(admin): State<AdminRoutes>) -> impl IntoResponse {
    Json(config_view::effective(&admin.state.settings()))
}

/// Reloads the configuration. Answers 200 when the file is in force, and 422 with every problem
/// when the file is not valid. The reload continues when the caller hangs up.
async fn reload(
    State(admin): State<AdminRoutes>,
    Extension(who): Extension<Operator>,
    headers: HeaderMap,
) -> Response {
    if let Err(VerbError(status, message)) = operate::require_json(&headers) {
        return problem(status, &message);
    }
    let reload = admin.state.reload.clone();
    let reloading = tokio::spawn(async move { reload.reload(who.who).await });
    let report = match tokio::time::timeout(RELOAD_TIMEOUT, reloading).await {
        Ok(Ok(Some(report))) => report,
        Ok(Ok(None)) => return problem(StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down"),
        Ok(Err(_)) => return problem(StatusCode::INTERNAL_SERVER_ERROR, "the reload broke off; see the log"),
        Err(_) => {
            let message = "the reload takes long; GET /admin/v1/status has its result when it is over";
            return problem(StatusCode::GATEWAY_TIMEOUT, message);
        }
    };
    let status = match report.outcome {
        ReloadOutcome::Applied | ReloadOutcome::Unchanged => StatusCode::OK,
        ReloadOutcome::Failed => StatusCode::UNPROCESSABLE_ENTITY,
    };
    (status, Json(report)).into_response()
}

async fn not_found(uri: Uri) -> Response {
    let message = format!("no route {}; GET / lists the routes", uri.path());
    problem(StatusCode::NOT_FOUND, &message)
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let message = format!("{method} is not allowed on {}; GET / lists the routes", uri.path());
    problem(StatusCode::METHOD_NOT_ALLOWED, &message)
}
