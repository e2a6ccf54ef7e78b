//! Text Generation Inference 3 dialect (written from TGI's source; there is no
//! capture). Tokens are counted by the rule of [`super::text`].

mod error;
mod generate;
mod meta;
mod openai;

use http::Method;

pub(super) use self::error::fault_status;

use crate::server::http::call::ServerCall;
use crate::server::http::reply::{self, HandlerAnswer};

const WORK: &[&str] = &[
    "/",
    "/generate",
    "/generate_stream",
    "/v1/chat/completions",
    "/v1/completions",
    "/invocations",
    "/vertex",
];
const BODY_LIMIT: usize = 2_000_000;

/// Whether the engine works for requests of this path.
pub(super) fn is_work(path: &str) -> bool {
    WORK.contains(&path)
}

/// Answers one request.
pub(super) async fn answer(call: ServerCall) -> HandlerAnswer {
    let path = call.path.as_str();
    let work = is_work(path) || path == "/tokenize";
    if call.method == Method::POST && work {
        if !has_key(&call) {
            return Ok(reply::empty(401));
        }
        if call.body.len() > BODY_LIMIT {
            return Ok(reply::typed(413, "text/plain; charset=utf-8", "length limit exceeded"));
        }
        if path == "/tokenize" {
            return Ok(meta::tokenize(&call));
        }
        return match path {
            "/v1/chat/completions" | "/v1/completions" | "/vertex" | "/invocations" => {
                openai::answer(call).await
            }
            _ => generate::answer(call).await,
        };
    }
    let readable = meta::is_path(path);
    if call.method != Method::GET || !readable {
        return Ok(reply::empty(if work || readable { 405 } else { 404 }));
    }
    Ok(meta::answer(&call))
}

/// Whether the request has the API key. TGI lower-cases both sides.
fn has_key(call: &ServerCall) -> bool {
    let Some(key) = &call.sim.options.api_key else { return true };
    let given = call.header("authorization").unwrap_or_default();
    given.to_lowercase() == format!("bearer {}", key.to_lowercase())
}
