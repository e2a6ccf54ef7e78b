//! Section `limits`, as written: what tenants, their keys and their models may use.

pub(in crate::config) mod check;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What may be used; absent = as much as there is. What a request is expected
/// to use is reserved when it comes, and settled by what it used when it ends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSection {
    /// At the same time: by requests that wait or run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<ConcurrentSection>,
    /// In any 60 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<AmountsSection>,
    /// In a day, from midnight to midnight in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_day: Option<QuotasSection>,
    /// In a calendar month in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_month: Option<QuotasSection>,
    /// Limits that refuse nothing: what they would refuse is logged and
    /// counted in `penstock_limits_met_total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow: Option<TriedLimitsSection>,
}

/// Limits that are tried out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TriedLimitsSection {
    /// As in `limits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<ConcurrentSection>,
    /// As in `limits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<AmountsSection>,
    /// As in `limits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_day: Option<QuotasSection>,
    /// As in `limits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_month: Option<QuotasSection>,
}

/// What may be held at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConcurrentSection {
    /// Requests that wait or run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Their tokens: prompts, and the output that is expected of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// How much of what may be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AmountsSection {
    /// Requests, refused ones not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens of prompts and answers together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens of prompts, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens of answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
}

/// How much of what may be used in a day or a month.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QuotasSection {
    /// Requests, refused ones not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens of prompts and answers together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens of prompts, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens of answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Seconds of replicas' time: of each step of an engine the part that a
    /// request's tokens have in it. Tries that failed count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 1e9))]
    pub gpu_seconds: Option<f64>,
    /// What that time costs at the `price` of its pool, in the same currency.
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
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
