//! Text Generation Inference 3 dialect (written from TGI's source; there is no
//! capture). Tokens are counted by the rule of [`super::text`].

mod generate;
mod meta;
mod openai;

use http::header::{HeaderName, HeaderValue};
use http::{Method, Response};

use super::feed::Failure;
use crate::sim::server::core::Refused;
use crate::sim::server::http::body::SimBody;
use crate::sim::server::http::json::{Json, ordered};
use crate::sim::server::http::reply::{self, HandlerAnswer};
use crate::sim::server::http::route::ServerCall;

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

/// An error in TGI's format and texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TgiError {
    status: u16,
    message: String,
    kind: &'static str,
}

impl TgiError {
    fn validation(message: impl Into<String>) -> Self {
        Self { status: 422, message: message.into(), kind: "validation" }
    }

    fn body(&self) -> Json {
        ordered!({"error": self.message, "error_type": self.kind})
    }

    /// The object of an error event on the OpenAI routes.
    fn openai(&self) -> Json {
        ordered!({"error": ordered!({"message": self.message, "http_status_code": self.status})})
    }

    fn respond(&self) -> Response<SimBody> {
        reply::value(self.status, &self.body())
    }

    /// The error for a generation that ended early.
    fn incomplete(stream: bool) -> Self {
        let message = "Incomplete generation".to_owned();
        let kind = if stream { "incomplete_generation_stream" } else { "incomplete_generation" };
        Self { status: 500, message, kind }
    }
}

impl From<&Failure> for TgiError {
    fn from(failure: &Failure) -> Self {
        match failure.status {
            429 | 503 => Self { status: 429, message: "Model is overloaded".to_owned(), kind: "overloaded" },
            _ => Self {
                status: 424,
                message: "Request failed during generation: Server error: ".to_owned(),
                kind: "generation",
            },
        }
    }
}

impl From<Refused> for TgiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Failed(failure) => Self::from(&failure),
            Refused::TooLarge => Self::validation("the request does not fit the KV cache"),
        }
    }
}

/// Whether the engine works for requests of this path.
pub(super) fn is_work(path: &str) -> bool {
    WORK.contains(&path)
}

/// The answer of a `status` fault.
pub(super) fn fault_status(status: u16, message: &str) -> Response<SimBody> {
    let kind = match status {
        422 => "validation",
        429 | 503 => "overloaded",
        _ => "generation",
    };
    TgiError { status, message: message.to_owned(), kind }.respond()
}

/// Adds TGI's timing headers and the like.
fn with_headers(mut response: Response<SimBody>, headers: &[(&'static str, String)]) -> Response<SimBody> {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
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
