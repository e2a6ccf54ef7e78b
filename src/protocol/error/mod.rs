//! API errors: built from the catalogue, rendered in the client's dialect, before or inside a
//! stream.

pub mod catalogue;
mod limit_refusal;
pub mod rate_limits;
mod rejection;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Response};
use serde_json::json;

use crate::core::model::event::EngineFault;
use crate::core::queue::drain::retry_after::MIN_RETRY_AFTER;
use crate::protocol::api::{Api, Dialect};
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::route::RouteHint;

/// The longest wait that SDKs respect. With a longer one some SDKs give up and some come back too
/// early.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Longest message of the guardrail service that a client gets, in characters.
const MAX_GUARDRAIL_MESSAGE: usize = 1000;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const QUEUE_ETA_MS: HeaderName = HeaderName::from_static("x-queue-eta-ms");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// A refusal or failure that the gateway reports to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    kind: ErrorKind,
    message: Cow<'static, str>,
    param: Option<Cow<'static, str>>,
    code: Option<String>,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

impl ApiError {
    /// An error of a kind with a message for people.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), param: None, code: None, retry_after: None, allow: None }
    }

    /// Names the request field at fault.
    pub fn with_param(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Keeps an engine's own code in place of the catalogue's.
    pub fn with_code(mut self, code: String) -> Self {
        self.code = Some(code);
        self
    }

    /// Sets the wait after which a retry makes sense.
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// A field whose value cannot be used. `fix` names the allowed values.
    pub fn invalid_field(field: &'static str, fix: &str) -> Self {
        Self::new(ErrorKind::InvalidRequest, format!("`{field}` {fix}")).with_param(field)
    }

    /// A model that the gateway does not serve.
    pub fn model_not_found(model: &str) -> Self {
        let message = format!(
            "The model `{}` does not exist or is not served here. GET /v1/models lists the models you can use.",
            shortened(model)
        );
        Self::new(ErrorKind::ModelNotFound, message).with_param("model")
    }

    /// A path that does not exist.
    pub fn not_found(path: &str, hint: Option<RouteHint>) -> Self {
        let path = shortened(path);
        let message = match hint {
            Some(RouteHint::BaseUrl { path: base }) => format!(
                "There is nothing at {path}. Your client adds the path itself: set its base URL to end with {base}"
            ),
            Some(RouteHint::TrailingSlash) => {
                format!("There is nothing at {path}. Leave out the slash at the end.")
            }
            Some(RouteHint::NotStored) => {
                format!(
                    "There is nothing at {path}. Responses are not stored, so they cannot be fetched by id."
                )
            }
            None => format!("There is nothing at {path}."),
        };
        Self::new(ErrorKind::NotFound, message)
    }

    /// A method that the path does not have; `allow` lists the methods that it has.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        let mut error =
            Self::new(ErrorKind::MethodNotAllowed, format!("Use one of these methods here: {allow}"));
        error.allow = Some(allow);
        error
    }

    /// A body over the limit of `limit` bytes.
    pub fn body_too_large(limit: u64) -> Self {
        Self::new(
            ErrorKind::BodyTooLarge,
            format!("The request body is longer than the limit of {limit} bytes."),
        )
    }

    /// An engine's answer of more than `limit` bytes. The message says how the client makes the
    /// answer smaller.
    pub fn answer_too_large(api: Api, limit: u64) -> Self {
        let (fix, field) = match api {
            Api::Embeddings => (
                "Ask for fewer inputs at once, or for `\"encoding_format\": \"base64\"`, which takes about a third.",
                Some("input"),
            ),
            api if api.can_stream() => ("Ask for a stream (`\"stream\": true`), or for less output.", None),
            _ => ("Send fewer inputs at once.", None),
        };
        let message =
            format!("The engine's answer is longer than the {limit} bytes that this gateway takes. {fix}");
        let error = Self::new(ErrorKind::AnswerTooLarge, message);
        field.map_or(error.clone(), |field| error.with_param(field))
    }

    /// A prompt, alone or with the asked output, that is longer than the context window (all in
    /// tokens). The wording is the one that clients already know.
    pub fn context_too_long(window: u32, prompt: u64, output: Option<u64>, field: &'static str) -> Self {
        let message = match output {
            Some(output) => format!(
                "This model's maximum context length is {window} tokens. However, you requested {} tokens \
                 ({prompt} in the prompt, {output} in the completion). Please reduce the length of the prompt or the completion.",
                prompt.saturating_add(output),
            ),
            None => format!(
                "This model's maximum context length is {window} tokens. However, your prompt has {prompt} tokens\
                 {}. Please reduce its length.",
                if prompt == u64::from(window) { ", which leaves none for the completion" } else { "" },
            ),
        };
        Self::new(ErrorKind::ContextLength, message).with_param(field)
    }

    /// A prompt or an answer (`stage`) that the operator's guardrails refused. `message` is the
    /// service's own for the client.
    pub fn guardrail_denied(stage: &str, message: Option<String>) -> Self {
        let message = match message {
            Some(message) => message.chars().take(MAX_GUARDRAIL_MESSAGE).collect(),
            None => format!("The {stage} was refused by the guardrails of this gateway."),
        };
        Self::new(ErrorKind::GuardrailDenied, message)
    }

    /// A prompt or an answer (`stage`) that is longer than what the guardrails check.
    pub fn guardrail_too_large(stage: &str, limit: u64) -> Self {
        let message = format!("The {stage} is longer than the {limit} bytes that guardrails check here.");
        Self::new(ErrorKind::GuardrailDenied, message)
    }

    /// A prompt or an answer (`stage`) about which the guardrails gave no verdict.
    pub fn guardrail_unavailable(stage: &str) -> Self {
        let message = format!("The {stage} could not be checked by the guardrails of this gateway.");
        Self::new(ErrorKind::GuardrailUnavailable, message).with_retry_after(MIN_RETRY_AFTER)
    }

    /// A stream that broke after its client had received part of it.
    pub fn broken_stream(fault: EngineFault) -> Self {
        let message = format!(
            "The engine failed while it was answering ({}). The answer is not complete.",
            fault.name()
        );
        Self::new(ErrorKind::UpstreamBroken, message)
    }

    /// The last fault of a request that has no attempts left.
    fn exhausted(fault: EngineFault) -> Self {
        match fault {
            EngineFault::Busy { .. } => {
                Self::new(ErrorKind::QueueFull, "Every engine for the model is busy.")
            }
            EngineFault::AnswerTimeout => Self::new(
                ErrorKind::AnswerTimeout,
                "The answer took longer than an answer that is not a stream may take. \
                 Ask for a stream, or for less output.",
            ),
            _ => Self::new(
                ErrorKind::UpstreamFailed,
                format!("Every engine that was tried failed the request, the last with: {}.", fault.name()),
            ),
        }
    }

    /// The client's own deadline, passed while an engine had the request.
    pub fn client_deadline() -> Self {
        Self::new(ErrorKind::DeadlineUnmeetable, "No engine answered before the deadline that you named.")
    }

    /// A wait that reached the longest wait of the request's class.
    pub fn max_wait_reached(retry_after: Option<Duration>) -> Self {
        let text = "No replica can start the request within the longest wait of its class.";
        Self::new(ErrorKind::QueueFull, text).with_retry_after(retry_after.unwrap_or(MIN_RETRY_AFTER))
    }

    /// Replaces the word `from`, an engine's own name of a model, by `to` in the message.
    pub fn with_word_replaced(mut self, from: &str, to: &str) -> Self {
        let is_part = |c: char| c.is_alphanumeric() || "-_./:@".contains(c);
        let is_whole = |at: usize| {
            let (before, after) = (&self.message[..at], &self.message[at + from.len()..]);
            // A full stop after the word ends the sentence and is not part of the name.
            let after = after.strip_prefix('.').unwrap_or(after);
            !before.ends_with(is_part) && !after.starts_with(is_part)
        };
        let found: Vec<usize> =
            self.message.match_indices(from).map(|(at, _)| at).filter(|at| is_whole(*at)).collect();
        if from.is_empty() || found.is_empty() {
            return self;
        }
        let mut message = self.message.clone().into_owned();
        for at in found.into_iter().rev() {
            message.replace_range(at..at + from.len(), to);
        }
        self.message = message.into();
        self
    }

    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The request field at fault.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// The code that applications branch on.
    pub fn code(&self) -> &str {
        self.code.as_deref().unwrap_or_else(|| self.kind.code())
    }

    /// The wait after which a retry makes sense.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the answer asks SDKs to retry by themselves: the kind allows a retry, and the wait
    /// is not longer than SDKs respect.
    pub fn should_retry(&self) -> bool {
        self.kind.row().retryable && self.retry_after.is_none_or(|wait| wait <= LONGEST_RETRY_AFTER)
    }

    /// The error as an HTTP answer.
    pub fn into_response(self, dialect: Dialect, request_id: &HeaderValue) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.body(dialect, request_id)));
        *response.status_mut() = self.kind.status(dialect);
        self.write_headers(dialect, request_id, response.headers_mut());
        response
    }

    /// The error as the last event of a stream that has begun. `[DONE]` does not follow it.
    pub fn sse_event(&self, dialect: Dialect) -> Bytes {
        let text = match dialect {
            Dialect::OpenAi => format!("data: {}\n\n", json!({ "error": self.openai_object() })),
            Dialect::Tgi => format!("data: {}\n\n", self.tgi_object()),
            Dialect::Anthropic => {
                let body = json!({ "type": "error", "error": self.anthropic_object() });
                format!("event: error\ndata: {body}\n\n")
            }
            Dialect::Responses => {
                // The typed event of the API, with the `error` member by which SDKs know that they
                // must raise an exception.
                let body = json!({
                    "type": "error", "code": self.code(), "message": self.message,
                    "param": self.param, "sequence_number": 0, "error": self.openai_object(),
                });
                format!("event: error\ndata: {body}\n\n")
            }
        };
        Bytes::from(text)
    }

    fn body(&self, dialect: Dialect, request_id: &HeaderValue) -> String {
        let body = match dialect {
            Dialect::OpenAi | Dialect::Responses => json!({ "error": self.openai_object() }),
            Dialect::Tgi => self.tgi_object(),
            Dialect::Anthropic => json!({
                "type": "error", "error": self.anthropic_object(),
                "request_id": request_id.to_str().unwrap_or_default(),
            }),
        };
        body.to_string()
    }

    fn openai_object(&self) -> serde_json::Value {
        let row = self.kind.row();
        json!({ "message": self.message, "type": row.openai_type, "param": self.param, "code": self.code() })
    }

    fn anthropic_object(&self) -> serde_json::Value {
        // SDKs show `details.error_code` to applications. The type alone does not distinguish a
        // long prompt from a bad field.
        json!({
            "type": self.kind.row().anthropic_type, "message": self.message,
            "details": { "error_code": self.code() },
        })
    }

    fn tgi_object(&self) -> serde_json::Value {
        json!({ "error": self.message, "error_type": self.kind.row().tgi_type })
    }

    fn write_headers(&self, dialect: Dialect, request_id: &HeaderValue, headers: &mut HeaderMap) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(REQUEST_ID, request_id.clone());
        if dialect == Dialect::Anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, request_id.clone());
        }
        let again = if self.should_retry() { "true" } else { "false" };
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(again));
        match self.retry_after {
            Some(wait) if self.should_retry() => {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds_rounded_up(wait)));
                headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis_rounded_up(wait)));
            }
            // The header is for people and for SDKs that do not know `x-should-retry`.
            Some(wait) if self.kind == ErrorKind::TooManyFailures => {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds_rounded_up(wait)));
            }
            Some(wait) if wait > LONGEST_RETRY_AFTER => {
                headers.insert(QUEUE_ETA_MS, HeaderValue::from(millis_rounded_up(wait)));
            }
            Some(_) | None => {}
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if matches!(self.kind, ErrorKind::MissingKey | ErrorKind::InvalidKey) {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.message)
    }
}

impl std::error::Error for ApiError {}

fn seconds_rounded_up(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn millis_rounded_up(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The first 200 characters of a client's own text, enough to recognise it.
fn shortened(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::reason::{QueueBound, RejectReason, Rejection};

    fn response(error: ApiError, dialect: Dialect) -> (http::response::Parts, serde_json::Value) {
        let (parts, body) = error.into_response(dialect, &HeaderValue::from_static("r-1")).into_parts();
        (parts, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn a_drain_says_when_to_come_back() {
        let (parts, body) = response(ApiError::from(RejectReason::Draining), Dialect::OpenAi);
        assert_eq!(body["error"]["code"], "draining");
        assert_eq!(parts.status, 503);
        assert_eq!(parts.headers[SHOULD_RETRY], "true");
        assert_eq!(parts.headers[RETRY_AFTER], "1");
        assert_eq!(parts.headers[RETRY_AFTER_MS], "1000");
    }

    #[test]
    fn anthropic_clients_get_the_code_as_well() {
        let error = ApiError::new(ErrorKind::ContextLength, "too long");
        let event = String::from_utf8(error.sse_event(Dialect::Anthropic).to_vec()).unwrap();
        let (parts, body) = response(error, Dialect::Anthropic);
        assert_eq!(parts.headers[ANTHROPIC_REQUEST_ID], "r-1");
        assert_eq!(body["error"]["details"]["error_code"], "context_length_exceeded");
        assert_eq!((&body["type"], &body["request_id"]), (&"error".into(), &"r-1".into()));
        assert!(event.starts_with("event: error\ndata: {") && event.contains("context_length_exceeded"));
    }

    #[test]
    fn waits_that_sdks_do_not_keep_to_are_not_announced() {
        let error = |seconds| {
            ApiError::new(ErrorKind::QueueFull, "full").with_retry_after(Duration::from_secs(seconds))
        };
        let (parts, _) = response(error(60), Dialect::OpenAi);
        assert_eq!(parts.headers[RETRY_AFTER], "60");
        let (parts, _) = response(error(61), Dialect::OpenAi);
        assert_eq!(parts.headers[SHOULD_RETRY], "false");
        assert_eq!(parts.headers[QUEUE_ETA_MS], "61000");
        assert!(!parts.headers.contains_key(RETRY_AFTER) && !parts.headers.contains_key(RETRY_AFTER_MS));
    }

    #[test]
    fn refusals_of_the_scheduler_say_when_to_come_back() {
        let wait = Duration::from_millis(2_300);
        for (reason, code, name, statuses) in [
            (RejectReason::Unmeetable, "deadline_unmeetable", "deadline_unmeetable", (504, 504, 429)),
            (RejectReason::DeadlineExceeded, "deadline_unmeetable", "deadline_exceeded", (504, 504, 429)),
            (RejectReason::Displaced, "slow_down", "displaced", (503, 529, 429)),
            (RejectReason::Paused, "slow_down", "tenant_paused", (503, 529, 429)),
            (RejectReason::ColdStart, "slow_down", "cold_start", (503, 529, 429)),
            (RejectReason::QueueFull(QueueBound::Bytes), "slow_down", "queue_full", (503, 529, 429)),
        ] {
            assert_eq!(reason.name(), name);
            for (dialect, status) in
                [(Dialect::OpenAi, statuses.0), (Dialect::Anthropic, statuses.1), (Dialect::Tgi, statuses.2)]
            {
                let rejection = Rejection { reason, queued: Duration::ZERO, retry_after: Some(wait) };
                let error = ApiError::from(rejection);
                assert_eq!(error.code(), code);
                let (parts, _) = response(error, dialect);
                assert_eq!(parts.status, status, "{name}");
                assert_eq!(parts.headers[SHOULD_RETRY], "true");
                assert_eq!([&parts.headers[RETRY_AFTER], &parts.headers[RETRY_AFTER_MS]], ["3", "2300"]);
            }
        }
        // An unknown wait is not sent, nor one that is longer than SDKs respect.
        let rejection =
            |retry_after| Rejection { reason: RejectReason::Unmeetable, queued: Duration::ZERO, retry_after };
        let (parts, _) = response(rejection(None).into(), Dialect::OpenAi);
        assert!(!parts.headers.contains_key(RETRY_AFTER) && !parts.headers.contains_key(RETRY_AFTER_MS));
        let (parts, _) = response(rejection(Some(Duration::from_secs(90))).into(), Dialect::OpenAi);
        assert_eq!([&parts.headers[SHOULD_RETRY], &parts.headers[QUEUE_ETA_MS]], ["false", "90000"]);
    }

    #[test]
    fn only_whole_words_are_replaced() {
        let said = |message: &'static str| {
            let error = ApiError::new(ErrorKind::InvalidRequest, message).with_word_replaced("tgi", "llama");
            error.message().to_owned()
        };
        assert_eq!(
            said("The model `tgi` is not tgi-2 but \"tgi\": tgi."),
            "The model `llama` is not tgi-2 but \"llama\": llama."
        );
        assert_eq!(said("/data/tgi antgi tgis org/tgi"), "/data/tgi antgi tgis org/tgi");
        assert_eq!(said("é`tgi`é"), "é`llama`é");
        let untouched = ApiError::new(ErrorKind::InvalidRequest, "x").with_word_replaced("", "llama");
        assert_eq!(untouched.message(), "x");
    }
}
