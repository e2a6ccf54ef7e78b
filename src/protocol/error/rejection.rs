//! Errors of rejections: what a client reads when the scheduler rejects its request.

use crate::core::model::reason::{QueueBound, RejectReason, Rejection};
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::error::{ApiError, MIN_RETRY_AFTER, limit_refusal};

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let error = Self::from(rejection.reason);
        match rejection.retry_after {
            Some(wait) if error.retry_after.is_none() => error.with_retry_after(wait),
            _ => error,
        }
    }
}

impl From<RejectReason> for ApiError {
    fn from(reason: RejectReason) -> Self {
        match reason {
            RejectReason::Limited(why) => limit_refusal::refusal(&why),
            RejectReason::TenantQueueFull(bound) => Self::new(
                ErrorKind::QueueFull,
                format!("Your queue is full: too many {} wait already.", bound_name(bound)),
            ),
            RejectReason::QueueFull(bound) => Self::new(
                ErrorKind::QueueFull,
                format!("The queue is full: too many {} wait already.", bound_name(bound)),
            ),
            RejectReason::DeadlineExceeded => Self::new(
                ErrorKind::DeadlineUnmeetable,
                "No replica could start the request before its deadline.",
            ),
            RejectReason::Unmeetable => Self::new(
                ErrorKind::DeadlineUnmeetable,
                "The queue before this request takes longer than its deadline allows.",
            ),
            RejectReason::ColdStart => Self::new(
                ErrorKind::QueueFull,
                "No replica of the model is running, and none will be in the time that the request can wait.",
            ),
            RejectReason::Displaced => {
                Self::new(ErrorKind::QueueFull, "The queue is full, and you have more in it than your share.")
            }
            RejectReason::Paused => Self::new(
                ErrorKind::QueueFull,
                "An operator has paused your tenant for longer than the request can wait.",
            ),
            RejectReason::NoReplica => {
                Self::new(ErrorKind::UpstreamFailed, "No engine for the model is in service.")
            }
            RejectReason::NoRoom => {
                Self::new(ErrorKind::QueueFull, "There is no spare room for the request.")
            }
            RejectReason::TooManySequences { most } => Self::new(
                ErrorKind::InvalidRequest,
                format!("The model answers at most {most} prompts or choices at once."),
            ),
            RejectReason::NoPool => {
                Self::new(ErrorKind::ModelNotFound, "The model is not served here any more.")
                    .with_param("model")
            }
            RejectReason::Withdrawn => Self::new(
                ErrorKind::ClassForbidden,
                "The latency class or the tenant of this request was withdrawn.",
            ),
            RejectReason::AttemptsExhausted(fault) => Self::exhausted(fault),
            RejectReason::RetryBudgetSpent(fault) => Self::new(
                ErrorKind::QueueFull,
                format!(
                    "The engines fail too many requests at the moment; the last fault of this one was {}.",
                    fault.name()
                ),
            ),
            RejectReason::Draining => {
                Self::new(ErrorKind::Draining, "The gateway is shutting down. Try again.")
                    .with_retry_after(MIN_RETRY_AFTER)
            }
        }
    }
}

const fn bound_name(bound: QueueBound) -> &'static str {
    match bound {
        QueueBound::Requests => "requests",
        QueueBound::Bytes => "bytes",
        QueueBound::Tokens => "tokens",
    }
}
