//! vLLM 0.32 dialect.
//!
//! Simplifications against the real vLLM: schema errors name one detail where
//! vLLM names every alternative, texts and token ids come from a made-up
//! vocabulary, and tokens are counted by the rule of [`super::text`].

mod admin;
mod error;
mod fields;
mod generate;
mod meta;
mod metrics;
mod pooling;

use http::header::{ALLOW, HeaderName, HeaderValue, LOCATION, SERVER, VARY};
use http::{Method, Response};

use self::error::VllmError;
use self::generate::{audio, chat, completion, messages, responses};
use self::pooling::PoolingRoute;
use super::options::Tasks;
use crate::server::http::body::SimBody;
use crate::server::http::call::ServerCall;
use crate::server::http::json::ordered;
use crate::server::http::reply::{self, HandlerAnswer};

pub(super) use self::metrics::without_missing;

const GENERATE: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/invocations",
];
const POOL: &[(&str, PoolingRoute)] = &[
    ("/v1/embeddings", PoolingRoute::Embed),
    ("/pooling", PoolingRoute::Pool),
    ("/classify", PoolingRoute::Classify),
    ("/score", PoolingRoute::Score),
    ("/v1/score", PoolingRoute::Score),
    ("/rerank", PoolingRoute::Rerank),
    ("/v1/rerank", PoolingRoute::Rerank),
    ("/v2/rerank", PoolingRoute::Rerank),
];
const GET: &[&str] = &["/v1/models", "/health", "/ping", "/version", "/load", "/metrics"];
const POST: &[&str] = &["/tokenize", "/detokenize", "/ping", "/v1/messages/count_tokens"];
const DEV_GET: &[&str] = &["/is_paused", "/is_sleeping", "/server_info"];
const DEV_POST: &[&str] =
    &["/abort_requests", "/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache"];

/// Whether the engine works for requests of this path.
pub(super) fn is_work(path: &str) -> bool {
    GENERATE.contains(&path) || POOL.iter().any(|(known, _)| *known == path)
}

/// The answer of a `status` fault.
pub(super) fn fault_status(path: &str, status: u16, message: &str) -> Response<SimBody> {
    VllmError::from_status(status, message).respond(path)
}

/// Answers one request.
pub(super) async fn answer(call: ServerCall) -> HandlerAnswer {
    let id = call.headers.get("x-request-id").cloned().filter(|_| call.sim.options.vllm.request_id_headers);
    let mut response = dispatch(call).await?;
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    if let Some(id) = id {
        headers.insert(HeaderName::from_static("x-request-id"), id);
    }
    Ok(response)
}

fn detail(status: u16, text: &str) -> Response<SimBody> {
    reply::value(status, &ordered!({"detail": text}))
}

async fn dispatch(call: ServerCall) -> HandlerAnswer {
    let guarded = ["/v1", "/v2", "/inference", "/cohere"].iter().any(|prefix| call.path.starts_with(prefix));
    if guarded && call.sim.options.api_key.as_deref().is_some_and(|key| !call.has_bearer_token(key)) {
        return Ok(reply::value(401, &ordered!({"error": "Unauthorized"})));
    }
    let methods = methods(&call, &call.path);
    if methods.is_empty() {
        return Ok(redirect_or_not_found(&call));
    }
    if !methods.contains(&call.method) {
        let mut response = detail(405, "Method Not Allowed");
        let allowed = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
        if let Ok(allowed) = HeaderValue::from_str(&allowed) {
            response.headers_mut().insert(ALLOW, allowed);
        }
        return Ok(response);
    }
    if is_work(&call.path) {
        return work(call).await;
    }
    match call.path.as_str() {
        "/pause" => return Ok(admin::pause(&call).await),
        "/wake_up" => return Ok(admin::wake_up(&call).await),
        _ => {}
    }
    if call.path.starts_with("/v1/responses/") {
        return responses::stored(&call);
    }
    if call.path == "/v1/messages/count_tokens" {
        return messages::count(&call);
    }
    Ok(meta(&call))
}

/// The methods of a path; empty for an unknown path.
fn methods(call: &ServerCall, path: &str) -> Vec<Method> {
    let options = &call.sim.options;
    let generate = options.tasks != Tasks::Pool;
    let pool = options.tasks != Tasks::Generate;
    let get = GET.contains(&path)
        || (options.vllm.dev_mode && DEV_GET.contains(&path))
        || (generate && path.starts_with("/v1/responses/") && path.len() > "/v1/responses/".len());
    let post = POST.contains(&path)
        || (options.vllm.dev_mode && DEV_POST.contains(&path))
        || (generate && GENERATE.contains(&path))
        || (pool && POOL.iter().any(|(known, _)| *known == path));
    [(get, Method::GET), (post, Method::POST)].into_iter().filter(|(on, _)| *on).map(|(_, m)| m).collect()
}

/// A redirect for a known path with a slash too many, else 404.
fn redirect_or_not_found(call: &ServerCall) -> Response<SimBody> {
    let trimmed = call.path.trim_end_matches('/');
    if trimmed == call.path || methods(call, trimmed).is_empty() {
        return detail(404, "Not Found");
    }
    let own = call.sim.addr.to_string();
    let location = format!("http://{}{trimmed}", call.header("host").unwrap_or(&own));
    let mut response = reply::empty(307);
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

async fn work(call: ServerCall) -> HandlerAnswer {
    if std::str::from_utf8(&call.body).is_err() && !call.path.starts_with("/v1/audio/") {
        return Ok(detail(400, "There was an error parsing the body"));
    }
    if let Some((_, route)) = POOL.iter().find(|(path, _)| *path == call.path) {
        return pooling::answer(call, *route).await;
    }
    match call.path.as_str() {
        "/v1/chat/completions" => chat::answer(call).await,
        "/v1/completions" => completion::answer(call).await,
        "/v1/messages" => messages::answer(call).await,
        "/v1/responses" => responses::answer(call).await,
        "/invocations" => {
            let has_prompt = fields::parse(&call).is_ok_and(|fields| fields.get("prompt").is_some());
            if has_prompt { completion::answer(call).await } else { chat::answer(call).await }
        }
        _ => audio::answer(call).await,
    }
}

fn meta(call: &ServerCall) -> Response<SimBody> {
    match call.path.as_str() {
        "/v1/models" => meta::models(call),
        "/version" => reply::value(200, &ordered!({"version": "0.32.0"})),
        "/load" => meta::load(call),
        "/metrics" => metrics::answer(call),
        "/tokenize" => meta::tokenize(call),
        "/detokenize" => meta::detokenize(call),
        "/server_info" => {
            let options = &call.sim.options;
            let max_seqs = options.engine.max_seqs.unwrap_or(options.profile.max_seqs);
            reply::value(
                200,
                &ordered!({"vllm_config": ordered!({
                    "model_config": ordered!({"model": options.model(), "max_model_len": options.window()}),
                    "scheduler_config": ordered!({"max_num_seqs": max_seqs})
                })}),
            )
        }
        "/is_paused" => admin::state(call, "is_paused"),
        "/is_sleeping" => admin::state(call, "is_sleeping"),
        "/abort_requests" => admin::abort(call),
        "/resume" => admin::resume(call),
        "/sleep" => admin::sleep(call),
        "/reset_prefix_cache" => admin::reset_prefix_cache(call),
        _ => reply::empty(200),
    }
}
