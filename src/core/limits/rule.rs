//! Limit rules: the unit, the scope and the period of each limit.

use crate::core::model::ids::{KeyId, ModelId, TenantId};

/// Whose use is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitScope {
    /// All of a tenant's.
    Tenant(TenantId),
    /// What comes with one API key.
    Key(KeyId),
    /// A tenant's of one model.
    Model(TenantId, ModelId),
}

impl LimitScope {
    /// A short stable name for logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant(_) => "tenant",
            Self::Key(_) => "key",
            Self::Model(..) => "model",
        }
    }
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitUnit {
    /// Requests.
    Requests,
    /// Prompt tokens, cached ones included.
    InputTokens,
    /// Generated tokens.
    OutputTokens,
    /// Both.
    Tokens,
    /// Nanoseconds of a replica's time.
    GpuTime,
    /// 1e-9 of the currency that pools' prices are in.
    Money,
}

impl LimitUnit {
    /// Each unit, in the order in which it is told.
    pub const ALL: [Self; 6] =
        [Self::Requests, Self::InputTokens, Self::OutputTokens, Self::Tokens, Self::GpuTime, Self::Money];

    /// A short stable name for logs and metric labels.
    #[must_use]
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

/// The time over which it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitPeriod {
    /// What is admitted and has not ended.
    Now,
    /// The last 60 seconds, whenever one looks.
    Minute,
    /// The day, until its end.
    Day,
    /// The month, until its end.
    Month,
}

impl LimitPeriod {
    /// A short stable name for logs and metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Now => "concurrent",
            Self::Minute => "per_minute",
            Self::Day => "per_day",
            Self::Month => "per_month",
        }
    }
}

/// Names one limit, over reloads too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId {
    /// Whose.
    pub scope: LimitScope,
    /// Of what.
    pub unit: LimitUnit,
    /// Over which time.
    pub period: LimitPeriod,
    /// It refuses nothing, and what it would refuse is counted.
    pub shadow: bool,
}

/// A limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRule {
    /// Which.
    pub id: LimitId,
    /// How much, in the rule's unit. 0 allows nothing.
    pub amount: u64,
}

/// So much of each unit: what a job is expected to use, or what it used.
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

/// What a job used, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsedAmounts {
    /// Of each unit.
    pub amounts: UnitAmounts,
    /// Whether anybody counted the tokens; what is not known stays as it was
    /// reserved.
    pub tokens_known: bool,
}

impl UsedAmounts {
    /// How much of it the unit counts, if that is known.
    #[must_use]
    pub fn of(&self, unit: LimitUnit) -> Option<u64> {
        let known = match unit {
            LimitUnit::InputTokens | LimitUnit::OutputTokens | LimitUnit::Tokens => self.tokens_known,
            LimitUnit::Requests | LimitUnit::GpuTime | LimitUnit::Money => true,
        };
        known.then(|| self.amounts.of(unit))
    }
}

impl UnitAmounts {
    /// How much of it the unit counts; a request is one, whatever it uses.
    #[must_use]
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

    /// The part of it that is known before the job runs, and that no smaller
    /// answer avoids.
    #[must_use]
    pub const fn least(&self, unit: LimitUnit) -> u64 {
        match unit {
            LimitUnit::Requests => 1,
            LimitUnit::InputTokens | LimitUnit::Tokens => self.input,
            LimitUnit::OutputTokens | LimitUnit::GpuTime | LimitUnit::Money => 0,
        }
    }
}
