//! What may be used, by whom, and in which time.

use crate::core::ids::{KeyId, ModelId, TenantId};

/// Whose use is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All of a tenant's.
    Tenant(TenantId),
    /// What comes with one API key.
    Key(KeyId),
    /// A tenant's of one model.
    Model(TenantId, ModelId),
}

impl Scope {
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
pub enum Unit {
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

impl Unit {
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
pub enum Period {
    /// What is admitted and has not ended.
    Now,
    /// The last 60 seconds, whenever one looks.
    Minute,
    /// The day, until its end.
    Day,
    /// The month, until its end.
    Month,
}

impl Period {
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
pub struct RuleId {
    /// Whose.
    pub scope: Scope,
    /// Of what.
    pub unit: Unit,
    /// Over which time.
    pub period: Period,
    /// It refuses nothing, and what it would refuse is counted.
    pub shadow: bool,
}

/// A limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Which.
    pub id: RuleId,
    /// How much, in the rule's unit. 0 allows nothing.
    pub amount: u64,
}

/// So much of each unit: what a job is expected to use, or what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
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
pub struct Used {
    /// Of each unit.
    pub amounts: Amounts,
    /// Whether anybody counted the tokens; what is not known stays as it was
    /// reserved.
    pub tokens_known: bool,
}

impl Used {
    /// How much of it the unit counts, if that is known.
    #[must_use]
    pub fn of(&self, unit: Unit) -> Option<u64> {
        let known = match unit {
            Unit::InputTokens | Unit::OutputTokens | Unit::Tokens => self.tokens_known,
            Unit::Requests | Unit::GpuTime | Unit::Money => true,
        };
        known.then(|| self.amounts.of(unit))
    }
}

impl Amounts {
    /// How much of it the unit counts; a request is one, whatever it uses.
    #[must_use]
    pub const fn of(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Requests => 1,
            Unit::InputTokens => self.input,
            Unit::OutputTokens => self.output,
            Unit::Tokens => self.input.saturating_add(self.output),
            Unit::GpuTime => self.gpu,
            Unit::Money => self.money,
        }
    }

    /// The part of it that is known before the job runs, and that no smaller
    /// answer avoids.
    #[must_use]
    pub const fn least(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Requests => 1,
            Unit::InputTokens | Unit::Tokens => self.input,
            Unit::OutputTokens | Unit::GpuTime | Unit::Money => 0,
        }
    }
}
