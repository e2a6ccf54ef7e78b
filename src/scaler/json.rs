//! JSON API of the scale signal, for KEDA's `metrics-api` trigger and for people: one pool or all,
//! under the admin port's credentials.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::scaler::answer::answer;
use crate::scaler::peers::shown;
use crate::scaler::pool_signal::PoolSignal;
use crate::scaler::signal_cache::{MissingSignal, SignalCache};
use crate::scaler::trigger::{TriggerError, TriggerMode, TriggerQuery};

/// Routes `GET /scale/v1/pools` and `GET /scale/v1/{pool}`. The second takes the keys of a trigger
/// as its query. A pool named `pools` is at `/scale/v1/pools/pools`. `GET /admin/v1/scale` has the
/// numbers of the last hour.
pub fn router(cache: Arc<SignalCache>) -> Router {
    Router::new()
        .route("/scale/v1/pools", get(list_pools))
        .route("/scale/v1/pools/{pool}", get(get_pool))
        .route("/scale/v1/{pool}", get(get_pool))
        .route("/admin/v1/scale", get(past))
        .with_state(cache)
}

async fn list_pools(State(cache): State<Arc<SignalCache>>) -> Json<Value> {
    let (now, view) = (Instant::now(), cache.view());
    let rows = view.pools.iter().filter_map(|(name, row)| {
        let ask = cache.parse_query([("pool", &**name)]).ok()?;
        Some(pool_json(&ask, row, now))
    });
    let age = now.saturating_duration_since(view.as_of).as_secs_f64();
    let mut picture = json!({ "pools": rows.collect::<Vec<_>>(), "age_seconds": age });
    if let Some(fleet) = &view.peers {
        picture["gateways"] = json!({
            "id": shown(fleet.me),
            "decider": fleet.decider.map(shown),
            "known": fleet.count.known,
            "live": fleet.count.live + 1,
            "replayed": fleet.count.replayed,
            "silent": fleet.count.silent,
        });
    }
    Json(picture)
}

async fn past(State(cache): State<Arc<SignalCache>>) -> Json<Value> {
    let history = cache.history.lock();
    Json(json!({ "pools": history.pools(), "asked": history.questions() }))
}

async fn get_pool(State(cache): State<Arc<SignalCache>>, Path(pool): Path<String>, uri: Uri) -> Response {
    let query = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let keys = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let ask = match cache.parse_query(keys.filter(|(key, _)| *key != "pool").chain([("pool", &*pool)])) {
        Ok(ask) => ask,
        Err(TriggerError::NotFound(message)) => return error_response(StatusCode::NOT_FOUND, &message),
        Err(TriggerError::Invalid(message)) => return error_response(StatusCode::BAD_REQUEST, &message),
    };
    let now = Instant::now();
    let blank = match (cache.signal(&ask.pool, now), cache.missing_peers()) {
        (Err(blank), _) | (Ok(_), Some(blank)) => blank,
        (Ok(row), None) if answer(&ask, &row, now).value.is_some() => {
            return Json(pool_json(&ask, &row, now)).into_response();
        }
        (Ok(_), None) => MissingSignal::NotYetKnown,
    };
    error_response(StatusCode::SERVICE_UNAVAILABLE, &blank.to_string())
}

fn pool_json(ask: &TriggerQuery, row: &PoolSignal, now: Instant) -> Value {
    let (told, need) = (answer(ask, row, now), row.demand);
    let mut picture = json!({
        "pool": ask.pool,
        "desired": answer(&TriggerQuery { mode: TriggerMode::Desired, ..ask.clone() }, row, now).value,
        "active": told.active,
        "reason": told.reason.to_string(),
        "ready": need.ready,
        "queued": need.queued,
        "queued_tokens": need.queued_tokens,
        "inflight": need.in_flight,
        "cold_start_seconds": need.cold_start.map(|time| time.as_secs_f64()),
        "idle_seconds": row.last_busy.map(|last| now.saturating_duration_since(last).as_secs_f64()),
    });
    if ask.mode != TriggerMode::Desired {
        picture["value"] = json!(told.value);
    }
    picture
}

fn error_response(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": { "message": message } }))).into_response()
}
