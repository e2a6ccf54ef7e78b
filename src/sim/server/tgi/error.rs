//! TGI's error answers and response headers.

use http::Response;
use http::header::{HeaderName, HeaderValue};

use crate::server::core::Refused;
use crate::server::feed::Failure;
use crate::server::http::body::SimBody;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply;

/// An error in TGI's format and texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TgiError {
    pub(super) status: u16,
    pub(super) message: String,
    pub(super) kind: &'static str,
}

impl TgiError {
    pub(super) fn validation(message: impl Into<String>) -> Self {
        Self { status: 422, message: message.into(), kind: "validation" }
    }

    pub(super) fn body(&self) -> Json {
        ordered!({"error": self.message, "error_type": self.kind})
    }

    /// The object of an error event on the OpenAI routes.
    pub(super) fn openai(&self) -> Json {
        ordered!({"error": ordered!({"message": self.message, "http_status_code": self.status})})
    }

    pub(super) fn respond(&self) -> Response<SimBody> {
        reply::value(self.status, &self.body())
    }

    /// The error for a generation that ended early.
    pub(super) fn incomplete(stream: bool) -> Self {
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

/// Adds TGI's timing headers and the like.
pub(super) fn with_headers(
    mut response: Response<SimBody>,
    headers: &[(&'static str, String)],
) -> Response<SimBody> {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// The answer of a `status` fault.
pub(in crate::server) fn fault_status(status: u16, message: &str) -> Response<SimBody> {
    let kind = match status {
        422 => "validation",
        429 | 503 => "overloaded",
        _ => "generation",
    };
    TgiError { status, message: message.to_owned(), kind }.respond()
}
