//! Limit rules: the unit, the scope and the period of each limit.

use serde::{Deserialize, Serialize};

use crate::model::ids::{KeyId, ModelId, TenantId};

/// Scope of a limit: the requests that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitScope {
    /// All requests of a tenant.
    Tenant(TenantId),
    /// Requests with one API key.
    Key(KeyId),
    /// Requests of a tenant for one model.
    Model(TenantId, ModelId),
}

impl LimitScope {
    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant(_) => "tenant",
            Self::Key(_) => "key",
            Self::Model(..) => "model",
        }
    }
}

/// Unit that a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitUnit {
    Requests,
    /// Prompt tokens, cached ones included.
    InputTokens,
    /// Generated tokens.
    OutputTokens,
    /// Prompt tokens and generated tokens together.
    Tokens,
    /// Nanoseconds of a replica's time.
    GpuTime,
    /// 1e-9 of the currency of the pools' prices.
    Money,
}

impl LimitUnit {
    /// Every unit, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Requests, Self::InputTokens, Self::OutputTokens, Self::Tokens, Self::GpuTime, Self::Money];

    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::Tokens => "tokens",
            Self::GpuTime => "gpu_seconds",
            Self::Money => "money",
        }
    }
}

/// Period over which a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitPeriod {
    /// At any time: what is admitted and has not ended.
    Now,
    /// The sixty seconds before any instant.
    Minute,
    /// The calendar day.
    Day,
    /// The calendar month.
    Month,
}

impl LimitPeriod {
    /// Short stable name for logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Now => "concurrent",
            Self::Minute => "per_minute",
            Self::Day => "per_day",
            Self::Month => "per_month",
        }
    }
}

/// Identity of a limit, which stays the same over reloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LimitId {
    pub scope: LimitScope,
    pub unit: LimitUnit,
    pub period: LimitPeriod,
    /// The limit refuses nothing; what it would refuse is counted.
    pub shadow: bool,
}

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRule {
    pub id: LimitId,
    /// The allowed amount, in the limit's unit. 0 allows nothing.
    pub amount: u64,
}

/// Amounts of each unit: the expected or the actual use of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitAmounts {
    /// Prompt tokens.
    pub input: u64,
    /// Generated tokens.
    pub output: u64,
    /// Nanoseconds of a replica's time.
    pub gpu: u64,
    /// 1e-9 of the currency.
    pub money: u64,
}

/// Actual use of a job, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsedAmounts {
    pub amounts: UnitAmounts,
    /// Whether the tokens were counted. Otherwise the reserved tokens are charged.
    pub tokens_known: bool,
}

impl UsedAmounts {
    /// Amount that counts for the unit; `None` when it is not known.
    pub fn of(&self, unit: LimitUnit) -> Option<u64> {
        let known = match unit {
            LimitUnit::InputTokens | LimitUnit::OutputTokens | LimitUnit::Tokens => self.tokens_known,
            LimitUnit::Requests | LimitUnit::GpuTime | LimitUnit::Money => true,
        };
        known.then(|| self.amounts.of(unit))
    }
}

impl UnitAmounts {
    /// Amount that counts for the unit. A request counts as one, whatever it uses.
    pub const fn of(&self, unit: LimitUnit) -> u64 {
        match unit {
            LimitUnit::Requests => 1,
            LimitUnit::InputTokens => self.input,
            LimitUnit::OutputTokens => self.output,
            LimitUnit::Tokens => self.input.saturating_add(self.output),
            LimitUnit::GpuTime => self.gpu,
            LimitUnit::Money => self.money,
        }
    }

    /// The part of the amount that is known before the job runs, and that no shorter answer avoids.
    pub const fn known_before_run(&self, unit: LimitUnit) -> u64 {
        match unit {
            LimitUnit::Requests => 1,
            LimitUnit::InputTokens | LimitUnit::Tokens => self.input,
            LimitUnit::OutputTokens | LimitUnit::GpuTime | LimitUnit::Money => 0,
        }
    }
}
