//! vLLM's error answers, in their three shapes and exact texts.

use crate::server::core::Refused;
use crate::server::feed::Failure;
use crate::server::http::body::SimBody;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply;
use http::Response;

/// An error in vLLM's format and texts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VllmError {
    pub(crate) status: u16,
    kind: String,
    message: String,
    param: Option<String>,
}

impl VllmError {
    fn new(status: u16, kind: &str, message: impl Into<String>, param: Option<&str>) -> Self {
        Self { status, kind: kind.to_owned(), message: message.into(), param: param.map(str::to_owned) }
    }

    /// 400 `BadRequestError`.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequestError", message, None)
    }

    /// The same error with its `param` set.
    pub(crate) fn about(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// 400 `BadRequestError` with the parameter, and its value in the text.
    pub(crate) fn parameter(param: &str, message: &str, value: impl std::fmt::Display) -> Self {
        let message = format!("{message} (parameter={param}, value={value})");
        Self::new(400, "BadRequestError", message, Some(param))
    }

    /// 400 `Bad Request` from the schema check, with one detail.
    pub(crate) fn invalid(param: Option<&str>, detail: &str) -> Self {
        Self::new(400, "Bad Request", format!("1 validation error:\n  {detail}"), param)
    }

    /// 400 from the schema check: a field and what it should be.
    pub(crate) fn field(kind: &str, loc: &str, message: &str, input: &str) -> Self {
        let detail = format!("{{'type': '{kind}', 'loc': '{loc}', 'msg': '{message}', 'input': '{input}'}}");
        Self::invalid(Some(loc), &detail)
    }

    /// 400 with two details, as for a field that may have two types.
    pub(crate) fn either(loc: &str, input: &str) -> Self {
        let detail = |kind: &str, name: &str| {
            format!(
                "\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': 'Input should be a valid {name}', \
                 'input': '{input}'}}"
            )
        };
        let message =
            format!("2 validation errors:{}{}", detail("string_type", "string"), detail("list_type", "list"));
        Self::new(400, "Bad Request", message, Some(loc))
    }

    pub(crate) fn unknown_model<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known = known.collect::<Vec<_>>().join(", ");
        let message = format!("The model `{name}` does not exist. Valid aliases: {known}.");
        Self::new(404, "NotFoundError", message, Some("model"))
    }

    pub(crate) fn not_found(message: String, param: &str) -> Self {
        Self::new(404, "invalid_request_error", message, Some(param))
    }

    pub(crate) fn too_long_text(window: u32, chars: usize) -> Self {
        let bound = u64::from(window) * CHARS_PER_TOKEN;
        let message = format!(
            "This model's maximum context length is {window} tokens. However, your prompt contains {chars} \
             characters (more than {bound} characters, which is the upper bound for {window} input tokens). \
             Please reduce the length of the input prompt."
        );
        Self::parameter("input_text", &message, chars)
    }

    pub(crate) fn too_long_tokens(window: u32, tokens: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {window} tokens. However, your prompt contains {tokens} \
             input tokens, which exceeds this limit. Please reduce the length of the input prompt."
        );
        Self::parameter("input_tokens", &message, tokens)
    }

    pub(crate) fn from_status(status: u16, message: &str) -> Self {
        let kind = match status {
            429 => "TooManyRequestsError",
            503 => "Service Unavailable",
            400..=499 => "BadRequestError",
            _ => "InternalServerError",
        };
        Self::new(status, kind, message, None)
    }

    /// `{"error":{...}}`, or the Anthropic shape on `/v1/messages`.
    pub(crate) fn respond(&self, path: &str) -> Response<SimBody> {
        reply::value(self.status, &self.body(path))
    }

    fn body(&self, path: &str) -> Json {
        if path.starts_with("/v1/messages") {
            return ordered!({"type": "error", "error": ordered!({"type": self.kind, "message": self.message})});
        }
        let Self { status, kind, message, param } = self;
        ordered!({"error": ordered!({"message": message, "type": kind, "param": param, "code": status})})
    }
}

/// Characters per token above which a text is refused without counting its
/// tokens.
pub(crate) const CHARS_PER_TOKEN: u64 = 13;

impl From<Failure> for VllmError {
    fn from(failure: Failure) -> Self {
        Self::new(failure.status, failure.kind, failure.message, None)
    }
}

impl From<Refused> for VllmError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Failed(failure) => failure.into(),
            Refused::TooLarge => Self::bad("The request does not fit the KV cache."),
        }
    }
}

/// The error event of a chat or completion stream (Python's JSON spacing).
pub(crate) fn event(failure: &Failure) -> String {
    format!(
        "data: {{\"error\": {{\"message\": \"{}\", \"type\": \"{}\", \"param\": null, \"code\": {}}}}}\n\n",
        failure.message, failure.kind, failure.status
    )
}
