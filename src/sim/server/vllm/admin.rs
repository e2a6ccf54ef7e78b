//! vLLM's development-mode routes: abort, pause, sleep.

use std::time::Duration;

use http::Response;
use serde_json::Value;

use crate::server::core::ServerCore;
use crate::server::feed::FeedEnd;
use crate::server::http::body::SimBody;
use crate::server::http::call::ServerCall;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply;

pub(super) fn abort(call: &ServerCall) -> Response<SimBody> {
    let body: Value = serde_json::from_slice(&call.body).unwrap_or(Value::Null);
    let names = body.get("request_ids").and_then(Value::as_array);
    let names: Option<Vec<&str>> = names.map(|names| names.iter().filter_map(Value::as_str).collect());
    let aborted = call.sim.end_requests(names.as_deref(), &FeedEnd::Aborted);
    reply::value(200, &ordered!({"status": "aborted", "aborted": aborted}))
}

/// Pauses the engine. `mode=wait` answers when the last running request has
/// ended.
pub(super) async fn pause(call: &ServerCall) -> Response<SimBody> {
    let mode = call.query("mode").unwrap_or("abort");
    if !["abort", "wait", "keep"].contains(&mode) {
        return reply::value(400, &ordered!({"error": "mode must be abort, wait or keep"}));
    }
    call.sim.work.lock().holds_new = true;
    if mode == "abort" {
        call.sim.end_requests(None, &FeedEnd::Aborted);
    }
    while mode == "wait" && call.sim.work.lock().engine_is_busy() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    call.sim.work.lock().paused = true;
    reply::value(200, &ordered!({"status": "paused"}))
}

pub(super) fn resume(call: &ServerCall) -> Response<SimBody> {
    let mut work = call.sim.work.lock();
    (work.paused, work.holds_new) = (false, false);
    drop(work);
    submit_held(&call.sim);
    reply::value(200, &ordered!({"status": "resumed"}))
}

pub(super) fn sleep(call: &ServerCall) -> Response<SimBody> {
    call.sim.end_requests(None, &FeedEnd::Aborted);
    call.sim.work.lock().asleep = true;
    let level = call.query("level").and_then(|level| level.parse::<u8>().ok()).unwrap_or(1);
    reply::value(200, &ordered!({"status": "sleeping", "level": level}))
}

pub(super) async fn wake_up(call: &ServerCall) -> Response<SimBody> {
    tokio::time::sleep(call.sim.options.vllm.wake_time).await;
    call.sim.work.lock().asleep = false;
    submit_held(&call.sim);
    reply::value(200, &ordered!({"status": "awake", "tags": ()}))
}

pub(super) fn state(call: &ServerCall, name: &str) -> Response<SimBody> {
    let work = call.sim.work.lock();
    let on = if name == "is_paused" { work.holds_new } else { work.asleep };
    reply::value(200, &Json::object().and(name, &on))
}

pub(super) fn reset_prefix_cache(call: &ServerCall) -> Response<SimBody> {
    call.sim.work.lock().engine.reset_prefix_cache();
    reply::value(200, &ordered!({"success": true}))
}

/// Hands the held requests to the engine.
fn submit_held(sim: &ServerCore) {
    let mut work = sim.work.lock();
    if !work.holds_new && !work.asleep {
        for request in std::mem::take(&mut work.held) {
            let refused = work.engine.submit(request);
            debug_assert!(refused.is_ok(), "ids are new and lengths were checked");
        }
    }
    drop(work);
    sim.stepping.notify_one();
}
