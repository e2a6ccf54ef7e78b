//! Limit refusal: the error of a request that is over a limit.

use std::time::Duration;

use crate::core::limits::LimitExceeded;
use crate::core::limits::rule::{LimitPeriod, LimitScope, LimitUnit};
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;

pub(super) const fn of_whom(scope: LimitScope) -> &'static str {
    match scope {
        LimitScope::Tenant(_) => "your tenant",
        LimitScope::Key(_) => "this API key",
        LimitScope::Model(..) => "your tenant for this model",
    }
}

/// An amount of a unit, as text for people.
pub(super) fn amount(unit: LimitUnit, amount: u64) -> String {
    match unit {
        LimitUnit::Requests if amount == 1 => "1 request".to_owned(),
        LimitUnit::Requests => format!("{amount} requests"),
        LimitUnit::InputTokens => format!("{amount} input tokens"),
        LimitUnit::OutputTokens => format!("{amount} output tokens"),
        LimitUnit::Tokens => format!("{amount} tokens"),
        LimitUnit::GpuTime => format!("{:.3} GPU seconds", amount as f64 / 1e9),
        LimitUnit::Money => format!("{} of cost", money(amount)),
    }
}

/// Billionths of a unit of money as a decimal number of units, with at most six places.
fn money(amount: u64) -> String {
    let text = format!("{:.6}", amount as f64 / 1e9);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(super) const fn over(period: LimitPeriod) -> &'static str {
    match period {
        LimitPeriod::Now => "at a time",
        LimitPeriod::Minute => "a minute",
        LimitPeriod::Day => "a day",
        LimitPeriod::Month => "a month",
    }
}

/// The refusal of a request that would exceed a limit. The message names the limit, its owner, the
/// amount that the request needs and the amount that is left.
pub fn refusal(why: &LimitExceeded) -> ApiError {
    let unit = why.rule.unit;
    let limit = format!("{} {}", amount(unit, why.limit), over(why.rule.period));
    let numbers = format!(
        "The limit of {} is {limit}: {} left, and this request needs {}.",
        of_whom(why.rule.scope),
        amount(unit, why.left),
        amount(unit, why.asked),
    );
    let Some(wait) = why.retry_after else {
        let text = format!("{numbers} It alone is more than the limit, so trying again does not help.");
        return ApiError::new(ErrorKind::QuotaSpent, text);
    };
    if why.is_quota() {
        return ApiError::new(ErrorKind::QuotaSpent, numbers).with_retry_after(wait);
    }
    let text = format!("{numbers} Try again in {}.", seconds(wait));
    ApiError::new(ErrorKind::RateLimited, text).with_retry_after(wait.min(LONGEST))
}

pub(super) fn seconds(wait: Duration) -> String {
    format!("{:.2} s", (wait.as_secs_f64() * 100.0).ceil() / 100.0)
}

/// The longest wait that SDKs respect. The window of a minute ends a little later, which costs one
/// more refusal at most.
pub(super) const LONGEST: Duration = Duration::from_secs(60);
