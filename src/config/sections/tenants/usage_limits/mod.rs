//! Section `limits`, as written: what tenants, their keys and their models may use.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of what requests may use; absent = no limit. The gateway reserves what a request is
/// expected to use when the request comes. When the request ends, what was used replaces the
/// reservation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSection {
    /// Limits of what requests may hold at the same time, while they wait or run. A request beyond
    /// a limit gets 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<ConcurrentSection>,
    /// Limits of any 60 seconds (a sliding window). A request beyond a limit gets 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<AmountsSection>,
    /// Limits of a day, from midnight to midnight in UTC. A request beyond a limit gets 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_day: Option<QuotasSection>,
    /// Limits of a calendar month in UTC. A request beyond a limit gets 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_month: Option<QuotasSection>,
    /// Limits on trial, which refuse nothing. What they would refuse is logged and counted in
    /// `penstock_limits_met_total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<TriedLimitsSection>,
}

/// Limits that are tried out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TriedLimitsSection {
    /// Limits on trial of what requests hold at the same time, while they wait or run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<ConcurrentSection>,
    /// Limits on trial of any 60 seconds (a sliding window).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<AmountsSection>,
    /// Limits on trial of a day, from midnight to midnight in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_day: Option<QuotasSection>,
    /// Limits on trial of a calendar month in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_month: Option<QuotasSection>,
}

/// Limits of what requests may hold at the same time. An absent amount has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConcurrentSection {
    /// Requests that may wait or run at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens of the requests that wait or run at the same time: the prompts, and the output that
    /// is expected of the requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// Limits of what requests may use in any 60 seconds. An absent amount has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AmountsSection {
    /// Requests in any 60 seconds. Refused requests do not count, except those whose prompt
    /// guardrails deny.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens of prompts and answers together, in any 60 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens of prompts in any 60 seconds, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens of answers in any 60 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
}

/// Limits of what requests may use in a day or a month. An absent amount has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QuotasSection {
    /// Requests in the day or month. Refused requests do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens of prompts and answers together, in the day or month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens of prompts in the day or month, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens of answers in the day or month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Seconds of replicas' time in the day or month. Of each step of an engine, a request counts
    /// the part that its tokens have in the step. Failed attempts count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 1e9))]
    pub gpu_seconds: Option<f64>,
    /// Cost of the requests' `gpu_seconds` at the `price` of their pools, in the currency of the
    /// prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000001, max = 1e9))]
    pub money: Option<f64>,
}

impl From<AmountsSection> for QuotasSection {
    fn from(AmountsSection { requests, tokens, input_tokens, output_tokens }: AmountsSection) -> Self {
        Self { requests, tokens, input_tokens, output_tokens, gpu_seconds: None, money: None }
    }
}

impl LimitsSection {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
