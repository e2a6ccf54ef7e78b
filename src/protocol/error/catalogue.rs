//! Error catalogue: the one table that gives each kind of error its status, type and code in each
//! dialect.

use http::StatusCode;

use crate::protocol::api::Dialect;

/// Kinds of errors that a client can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A field is missing, of the wrong type or out of range.
    InvalidRequest,
    /// An engine understood the request and cannot act on it.
    Unprocessable,
    /// The body is not JSON, or not a valid form.
    BadBody,
    /// Prompt and output do not fit the context window.
    ContextLength,
    /// No credentials were sent.
    MissingKey,
    /// The credentials are not valid.
    InvalidKey,
    /// The tenant may not use the model.
    ModelForbidden,
    /// The tenant may not use the latency class.
    ClassForbidden,
    /// The model does not exist here.
    ModelNotFound,
    /// The path does not exist.
    NotFound,
    /// The path exists for another method.
    MethodNotAllowed,
    /// The model's engine does not offer this call.
    Unsupported,
    /// The answer is longer than the gateway's limit.
    AnswerTooLarge,
    /// The body is longer than the limit.
    BodyTooLarge,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The `Content-Type` is wrong.
    UnsupportedMediaType,
    /// The request would exceed a rate limit of the tenant.
    RateLimited,
    /// A quota of the tenant is used up.
    QuotaSpent,
    /// A queue is full.
    QueueFull,
    /// No replica can start the request before its deadline.
    DeadlineUnmeetable,
    /// An answer that is not a stream took longer than its limit.
    AnswerTimeout,
    /// A retry of the same request has replaced the request.
    Superseded,
    /// Every engine that was tried failed the request.
    UpstreamFailed,
    /// An engine failed after it had sent part of the answer.
    UpstreamBroken,
    /// The gateway is shutting down.
    Draining,
    /// The client's identity is proved, but no tenant is mapped to it.
    IdentityNotMapped,
    /// The client made too many attempts with credentials that are not valid.
    TooManyFailures,
    /// The token cannot be checked: the keys of its provider are not known.
    IdentityUnavailable,
    /// The operator's guardrails refused the prompt or the answer.
    GuardrailDenied,
    /// The operator's guardrails gave no verdict in time.
    GuardrailUnavailable,
    /// The gateway itself has a fault.
    Internal,
}

/// One kind of error in every dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorRow {
    pub kind: ErrorKind,
    /// HTTP status.
    pub status: u16,
    /// OpenAI `type`.
    pub openai_type: &'static str,
    /// OpenAI `code`, the string that applications branch on.
    pub code: &'static str,
    /// HTTP status on Anthropic's calls.
    pub anthropic_status: u16,
    /// Anthropic `type`.
    pub anthropic_type: &'static str,
    /// HTTP status on TGI's calls.
    pub tgi_status: u16,
    /// TGI `error_type`.
    pub tgi_type: &'static str,
    /// Whether the same request may succeed later, so that SDKs should retry it by themselves.
    pub retryable: bool,
}

const INVALID: &str = "invalid_request_error";
const UNAVAILABLE: &str = "service_unavailable_error";

type StatusAndType = (u16, &'static str);

const fn row(
    kind: ErrorKind,
    openai: (u16, &'static str, &'static str),
    anthropic: StatusAndType,
    tgi: StatusAndType,
    again: bool,
) -> ErrorRow {
    ErrorRow {
        kind,
        status: openai.0,
        openai_type: openai.1,
        code: openai.2,
        anthropic_status: anthropic.0,
        anthropic_type: anthropic.1,
        tgi_status: tgi.0,
        tgi_type: tgi.1,
        retryable: again,
    }
}

const MISSING_KEY: (u16, &str, &str) = (401, INVALID, "missing_api_key");
const QUOTA: (u16, &str, &str) = (429, "insufficient_quota", "insufficient_quota");
const UNPROCESSABLE: (u16, &str, &str) = (422, INVALID, "unprocessable_entity");
const ANSWER: (u16, &str, &str) = (400, INVALID, "answer_too_large");
const MEDIA: (u16, &str, &str) = (415, INVALID, "unsupported_media_type");
const METHOD: (u16, &str, &str) = (405, INVALID, "method_not_allowed");
const DEADLINE: (u16, &str, &str) = (504, "timeout_error", "deadline_unmeetable");
const OVERTIME: (u16, &str, &str) = (504, "timeout_error", "answer_timeout");
const FAILED: (u16, &str, &str) = (502, "server_error", "upstream_failed");
const CLASS: (u16, &str, &str) = (403, INVALID, "class_not_allowed");

/// Every kind of error, in the order of [`ErrorKind`].
pub const TABLE: [ErrorRow; 31] = {
    use ErrorKind::{
        AnswerTimeout, AnswerTooLarge, BadBody, BodyTimeout, BodyTooLarge, ClassForbidden, ContextLength,
        DeadlineUnmeetable, Draining, GuardrailDenied, GuardrailUnavailable, IdentityNotMapped,
        IdentityUnavailable, Internal, InvalidKey, InvalidRequest, MethodNotAllowed, MissingKey,
        ModelForbidden, ModelNotFound, NotFound, QueueFull, QuotaSpent, RateLimited, Superseded,
        TooManyFailures, Unprocessable, Unsupported, UnsupportedMediaType, UpstreamBroken, UpstreamFailed,
    };
    [
        row(InvalidRequest, (400, INVALID, "invalid_value"), (400, INVALID), (422, "validation"), false),
        row(Unprocessable, UNPROCESSABLE, (422, INVALID), (422, "validation"), false),
        row(BadBody, (400, INVALID, "invalid_body"), (400, INVALID), (422, "validation"), false),
        row(
            ContextLength,
            (400, INVALID, "context_length_exceeded"),
            (400, INVALID),
            (422, "validation"),
            false,
        ),
        row(MissingKey, MISSING_KEY, (401, "authentication_error"), (401, "unauthorized"), false),
        row(
            InvalidKey,
            (401, INVALID, "invalid_api_key"),
            (401, "authentication_error"),
            (401, "unauthorized"),
            false,
        ),
        row(
            ModelForbidden,
            (403, INVALID, "model_not_allowed"),
            (403, "permission_error"),
            (403, "forbidden"),
            false,
        ),
        row(ClassForbidden, CLASS, (403, "permission_error"), (403, "forbidden"), false),
        row(
            ModelNotFound,
            (404, INVALID, "model_not_found"),
            (404, "not_found_error"),
            (404, "not_found"),
            false,
        ),
        row(NotFound, (404, INVALID, "unknown_url"), (404, "not_found_error"), (404, "not_found"), false),
        row(MethodNotAllowed, METHOD, (405, INVALID), (405, "validation"), false),
        row(
            Unsupported,
            (404, INVALID, "unsupported_operation"),
            (404, "not_found_error"),
            (404, "not_found"),
            false,
        ),
        row(AnswerTooLarge, ANSWER, (400, INVALID), (422, "validation"), false),
        row(
            BodyTooLarge,
            (413, INVALID, "body_too_large"),
            (413, "request_too_large"),
            (413, "validation"),
            false,
        ),
        row(BodyTimeout, (408, INVALID, "body_timeout"), (408, "timeout_error"), (408, "validation"), true),
        row(UnsupportedMediaType, MEDIA, (415, INVALID), (415, "validation"), false),
        row(
            RateLimited,
            (429, "rate_limit_error", "rate_limit_exceeded"),
            (429, "rate_limit_error"),
            BUSY,
            true,
        ),
        row(QuotaSpent, QUOTA, (429, "rate_limit_error"), BUSY, false),
        row(QueueFull, (503, UNAVAILABLE, "slow_down"), (529, "overloaded_error"), BUSY, true),
        row(DeadlineUnmeetable, DEADLINE, (504, "timeout_error"), BUSY, true),
        row(AnswerTimeout, OVERTIME, (504, "timeout_error"), (504, "generation"), false),
        row(Superseded, (503, UNAVAILABLE, "superseded"), (529, "overloaded_error"), BUSY, true),
        row(UpstreamFailed, FAILED, (502, "api_error"), (502, "generation"), false),
        row(
            UpstreamBroken,
            (502, "server_error", "upstream_broken"),
            (502, "api_error"),
            (502, "generation"),
            false,
        ),
        row(Draining, (503, UNAVAILABLE, "draining"), (529, "overloaded_error"), (503, "healthcheck"), true),
        row(
            IdentityNotMapped,
            (403, INVALID, "identity_not_mapped"),
            (403, "permission_error"),
            (403, "forbidden"),
            false,
        ),
        row(TooManyFailures, FAILURES, (429, "rate_limit_error"), BUSY, false),
        row(IdentityUnavailable, IDENTITY, (503, "api_error"), (503, "healthcheck"), true),
        row(GuardrailDenied, GUARDRAIL, (400, INVALID), (422, "validation"), false),
        row(GuardrailUnavailable, UNCHECKED, (503, "api_error"), (503, "healthcheck"), true),
        row(Internal, (500, "server_error", "internal_error"), (500, "api_error"), (500, "generation"), true),
    ]
};

const FAILURES: (u16, &str, &str) = (429, "rate_limit_error", "too_many_failed_attempts");
const IDENTITY: (u16, &str, &str) = (503, UNAVAILABLE, "identity_provider_unavailable");
const GUARDRAIL: (u16, &str, &str) = (400, INVALID, "guardrail_denied");
const UNCHECKED: (u16, &str, &str) = (503, UNAVAILABLE, "guardrail_unavailable");
const BUSY: StatusAndType = (429, "overloaded");

impl ErrorKind {
    /// The row of this kind.
    pub const fn row(self) -> &'static ErrorRow {
        &TABLE[self as usize]
    }

    /// The stable code of this kind, also for logs and metric labels.
    pub const fn code(self) -> &'static str {
        self.row().code
    }

    /// The HTTP status in a dialect.
    pub fn status(self, dialect: Dialect) -> StatusCode {
        let row = self.row();
        let status = match dialect {
            Dialect::OpenAi | Dialect::Responses => row.status,
            Dialect::Anthropic => row.anthropic_status,
            Dialect::Tgi => row.tgi_status,
        };
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn rows_stand_where_their_kind_says() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.kind as usize, index);
            assert_eq!(row.kind.row(), row);
            for status in [row.status, row.anthropic_status, row.tgi_status] {
                assert!((400..600).contains(&status));
                assert_ne!(status, 409, "every SDK tries a 409 again");
            }
        }
        let codes: HashSet<_> = TABLE.iter().map(|row| row.code).collect();
        assert_eq!(codes.len(), TABLE.len());
    }

    #[test]
    fn the_catalogue() {
        let mut text = String::new();
        for row in &TABLE {
            let again = if row.retryable { "retry" } else { "final" };
            writeln!(
                text,
                "{} {} {} | {} {} | {} {} | {again}",
                row.status,
                row.openai_type,
                row.code,
                row.anthropic_status,
                row.anthropic_type,
                row.tgi_status,
                row.tgi_type
            )
            .unwrap();
        }
        insta::assert_snapshot!(text, @r#"
        400 invalid_request_error invalid_value | 400 invalid_request_error | 422 validation | final
        422 invalid_request_error unprocessable_entity | 422 invalid_request_error | 422 validation | final
        400 invalid_request_error invalid_body | 400 invalid_request_error | 422 validation | final
        400 invalid_request_error context_length_exceeded | 400 invalid_request_error | 422 validation | final
        401 invalid_request_error missing_api_key | 401 authentication_error | 401 unauthorized | final
        401 invalid_request_error invalid_api_key | 401 authentication_error | 401 unauthorized | final
        403 invalid_request_error model_not_allowed | 403 permission_error | 403 forbidden | final
        403 invalid_request_error class_not_allowed | 403 permission_error | 403 forbidden | final
        404 invalid_request_error model_not_found | 404 not_found_error | 404 not_found | final
        404 invalid_request_error unknown_url | 404 not_found_error | 404 not_found | final
        405 invalid_request_error method_not_allowed | 405 invalid_request_error | 405 validation | final
        404 invalid_request_error unsupported_operation | 404 not_found_error | 404 not_found | final
        400 invalid_request_error answer_too_large | 400 invalid_request_error | 422 validation | final
        413 invalid_request_error body_too_large | 413 request_too_large | 413 validation | final
        408 invalid_request_error body_timeout | 408 timeout_error | 408 validation | retry
        415 invalid_request_error unsupported_media_type | 415 invalid_request_error | 415 validation | final
        429 rate_limit_error rate_limit_exceeded | 429 rate_limit_error | 429 overloaded | retry
        429 insufficient_quota insufficient_quota | 429 rate_limit_error | 429 overloaded | final
        503 service_unavailable_error slow_down | 529 overloaded_error | 429 overloaded | retry
        504 timeout_error deadline_unmeetable | 504 timeout_error | 429 overloaded | retry
        504 timeout_error answer_timeout | 504 timeout_error | 504 generation | final
        503 service_unavailable_error superseded | 529 overloaded_error | 429 overloaded | retry
        502 server_error upstream_failed | 502 api_error | 502 generation | final
        502 server_error upstream_broken | 502 api_error | 502 generation | final
        503 service_unavailable_error draining | 529 overloaded_error | 503 healthcheck | retry
        403 invalid_request_error identity_not_mapped | 403 permission_error | 403 forbidden | final
        429 rate_limit_error too_many_failed_attempts | 429 rate_limit_error | 429 overloaded | final
        503 service_unavailable_error identity_provider_unavailable | 503 api_error | 503 healthcheck | retry
        400 invalid_request_error guardrail_denied | 400 invalid_request_error | 422 validation | final
        503 service_unavailable_error guardrail_unavailable | 503 api_error | 503 healthcheck | retry
        500 server_error internal_error | 500 api_error | 500 generation | retry
        "#);
    }
}
