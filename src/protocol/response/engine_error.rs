//! Engine errors: a classifier that decides whether an error is the fault of the engine or of the
//! request.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::Value;

use crate::core::model::event::EngineFault;
use crate::engines;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;

/// An engine's error, in an answer's status or in a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineError {
    /// The engine is at fault; another one may do better.
    Fault(EngineFault),
    /// The request is at fault; every engine would refuse it.
    Client(ApiError),
}

/// The longest error body that is read, in bytes.
const LONGEST_BODY: usize = 64 * 1024;
/// The longest message that a client gets, in characters. Longer messages are cut.
const LONGEST_MESSAGE: usize = 2000;

/// The parts of an error body, in any engine's format.
#[derive(Debug, Default)]
struct EngineErrorBody {
    message: String,
    kind: String,
    param: Option<String>,
    code: Option<String>,
    /// The HTTP status that the body itself gives.
    number: Option<u16>,
}

impl EngineErrorBody {
    fn read(body: &[u8]) -> Self {
        let value = if body.len() <= LONGEST_BODY {
            serde_json::from_slice(body).unwrap_or_default()
        } else {
            Value::Null
        };
        let inner = match &value["response"]["error"] {
            Value::Object(_) => &value["response"]["error"],
            _ => &value["error"],
        };
        let inner = if inner.is_object() { inner } else { &value };
        let text = |name: &str| inner[name].as_str().map(str::to_owned);
        let number = ["code", "http_status_code", "status"].into_iter().find_map(|name| inner[name].as_u64());
        Self {
            message: message(inner),
            kind: text("type").or_else(|| text("error_type")).unwrap_or_default(),
            param: text("param"),
            code: text("code"),
            number: number.and_then(|number| u16::try_from(number).ok()),
        }
    }

    /// The HTTP status that an error event corresponds to.
    fn status(&self) -> u16 {
        if let Some(number @ 400..600) = self.number {
            return number;
        }
        let kind = self.kind.to_ascii_lowercase().replace([' ', '_'], "");
        match kind.as_str() {
            "overloaded"
            | "overloadederror"
            | "serviceunavailable"
            | "serviceunavailableerror"
            | "ratelimiterror" => 503,
            "notfounderror" => 404,
            "validation"
            | "badrequest"
            | "badrequesterror"
            | "invalidrequesterror"
            | "exceedcontextsizeerror" => 400,
            _ => 500,
        }
    }

    fn is_drain(&self) -> bool {
        let message = self.message.to_ascii_lowercase();
        engines::says_draining(&message)
    }

    fn is_too_long(&self) -> bool {
        let message = self.message.to_ascii_lowercase();
        self.kind == "exceed_context_size_error"
            || self.code.as_deref() == Some("context_length_exceeded")
            || engines::says_too_long(&message)
    }

    fn is_unknown_model(&self) -> bool {
        let message = self.message.to_ascii_lowercase();
        self.code.as_deref() == Some("model_not_found")
            || self.param.as_deref() == Some("model")
            || message.contains("model")
                && (message.contains("does not exist") || message.contains("not found"))
    }
}

/// The message of an error in any format: a string in place of the object, a `detail`, or FastAPI's
/// list of details.
fn message(inner: &Value) -> String {
    let found = ["message", "error", "detail"].into_iter().find_map(|name| inner[name].as_str());
    let first_detail = || inner["detail"][0]["msg"].as_str();
    found.or_else(first_detail).or_else(|| inner.as_str()).unwrap_or_default().to_owned()
}

/// Classifies an answer whose status is not 2xx.
pub(crate) fn classify_status(
    api: Api,
    status: u16,
    body: &[u8],
    retry_after: Option<Duration>,
    shown_model: Option<&str>,
) -> EngineError {
    let error = EngineErrorBody::read(body);
    match fault_of(status, &error, retry_after) {
        Some(fault) => EngineError::Fault(fault),
        None => EngineError::Client(client_error(api, status, error, shown_model)),
    }
}

/// Classifies an error inside a stream (or inside an answer of status 200).
pub(crate) fn classify_event(api: Api, data: &[u8], shown_model: Option<&str>) -> EngineError {
    let error = EngineErrorBody::read(data);
    let status = error.status();
    match fault_of(status, &error, None) {
        Some(EngineFault::ServerError) => EngineError::Fault(EngineFault::ErrorEvent),
        Some(fault) => EngineError::Fault(fault),
        None => EngineError::Client(client_error(api, status, error, shown_model)),
    }
}

/// The engine's fault for a status; absent when the client is at fault.
fn fault_of(status: u16, error: &EngineErrorBody, retry_after: Option<Duration>) -> Option<EngineFault> {
    match status {
        // 501: llama.cpp refuses a call that its model cannot serve.
        501 => None,
        500..=599 if error.is_drain() => Some(EngineFault::Draining),
        // Busy goes by the status, alike for all engines. 503: vLLM is full, also as the code of an error
        // event behind a 200 (`tests/fixtures/vllm/err/admission_*`). 429: TGI is full. 529: `overloaded_error` of
        // the Messages API.
        429 | 503 | 529 => Some(EngineFault::Busy { retry_after }),
        // 401 and 403: the operator's key for the engine is wrong. 408: the engine did not get a
        // body in time. 424: TGI's generation failed.
        401 | 403 | 408 | 424 | 500..=599 => Some(EngineFault::ServerError),
        400..=499 => None,
        _ => Some(EngineFault::Malformed),
    }
}

fn client_error(api: Api, status: u16, reported: EngineErrorBody, shown_model: Option<&str>) -> ApiError {
    if reported.is_too_long() {
        let param = match reported.param.as_deref() {
            Some("max_tokens") => "max_tokens",
            _ => api.prompt_field(),
        };
        return ApiError::new(ErrorKind::ContextLength, redacted(&reported.message)).with_param(param);
    }
    if status == 404 && reported.is_unknown_model() {
        return match shown_model {
            Some(model) => ApiError::model_not_found(model),
            None => ApiError::new(ErrorKind::ModelNotFound, "The engine does not serve the model.")
                .with_param("model"),
        };
    }
    let is_plain = reported.message.is_empty() || reported.message == "Not Found";
    if matches!(status, 405 | 501) || status == 404 && is_plain {
        let message = format!("The model does not support `{}` requests.", api.operation_name());
        return ApiError::new(ErrorKind::Unsupported, message).with_param("model");
    }
    let kind = match status {
        404 => ErrorKind::NotFound,
        413 => ErrorKind::BodyTooLarge,
        415 => ErrorKind::UnsupportedMediaType,
        422 => ErrorKind::Unprocessable,
        _ => ErrorKind::InvalidRequest,
    };
    let message =
        if is_plain { "The engine refused the request.".to_owned() } else { redacted(&reported.message) };
    let mut error = ApiError::new(kind, message);
    if let Some(field) = reported.param.and_then(field_of) {
        error = error.with_param(field);
    }
    match reported.code {
        Some(code) if !code.is_empty() => error.with_code(code),
        _ => error,
    }
}

/// Turns `body.messages.0.role` into `messages.0.role`. Absent for the body itself and for a byte
/// position in it (`body.28`).
fn field_of(param: String) -> Option<String> {
    if param == "body" {
        return None;
    }
    let Some(field) = param.strip_prefix("body.") else {
        return Some(param);
    };
    (!field.starts_with(|first: char| first.is_ascii_digit())).then(|| field.to_owned())
}

/// The message without addresses and paths of the engine, cut to `LONGEST_MESSAGE` characters.
fn redacted(message: &str) -> String {
    let is_cut = |c: char| c.is_whitespace() || "\"'`()<>,;=[]{}".contains(c);
    let mut shown = String::with_capacity(message.len());
    for piece in message.split_inclusive(is_cut) {
        let word = piece.trim_end_matches(is_cut);
        if is_private(word.trim_end_matches(['.', ':'])) {
            shown.push_str("...");
            shown.push_str(&piece[word.len()..]);
        } else {
            shown.push_str(piece);
        }
    }
    if let Some((end, _)) = shown.char_indices().nth(LONGEST_MESSAGE) {
        shown.truncate(end);
        shown.push_str("...");
    }
    shown
}

/// Whether a word is an address or a file's path.
fn is_private(word: &str) -> bool {
    let is_path = || word.starts_with('/') && word.len() > 2 && word[1..].contains('/');
    word.contains("://")
        || is_path()
        || word.parse::<SocketAddr>().is_ok()
        || word.parse::<Ipv4Addr>().is_ok()
}
