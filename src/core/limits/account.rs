//! Account of one limit.

use std::time::Duration;

use crate::core::limits::rule::LimitPeriod;
use crate::core::limits::window::MinuteWindow;
use crate::core::model::time::Tick;

/// When to come back for what is held by jobs that run: nobody knows when they
/// end.
const HELD: Duration = Duration::from_secs(1);

/// What has been used of a limit, and what is reserved.
#[derive(Debug, Clone)]
pub enum LimitAccount {
    /// What jobs hold that have not ended.
    Now(u64),
    /// The last minute.
    Minute(MinuteWindow),
    /// A day or a month.
    Calendar {
        /// Used by jobs that have ended.
        used: u64,
        /// Reserved for those that have not.
        reserved: u64,
    },
}

/// A part of an account that a job has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountShare {
    /// How much.
    pub amount: u64,
    /// In which slot of the window, where the account has one.
    pub slot: u64,
}

impl LimitAccount {
    /// An empty account.
    #[must_use]
    pub fn new(period: LimitPeriod) -> Self {
        match period {
            LimitPeriod::Now => Self::Now(0),
            LimitPeriod::Minute => Self::Minute(MinuteWindow::default()),
            LimitPeriod::Day | LimitPeriod::Month => Self::Calendar { used: 0, reserved: 0 },
        }
    }

    /// Brings it up to the present.
    pub fn advance(&mut self, now: Tick, limit: u64) {
        if let Self::Minute(window) = self {
            window.advance(now, limit);
        }
    }

    /// What is used and reserved; the account is up to date.
    #[must_use]
    pub const fn used(&self) -> u64 {
        match self {
            Self::Now(held) => *held,
            Self::Minute(window) => window.used(),
            Self::Calendar { used, reserved } => used.saturating_add(*reserved),
        }
    }

    /// What is reserved and not settled; absent where nobody keeps it apart.
    #[must_use]
    pub const fn reserved(&self) -> Option<u64> {
        match self {
            Self::Now(held) => Some(*held),
            Self::Minute(_) => None,
            Self::Calendar { reserved, .. } => Some(*reserved),
        }
    }

    /// How long until so much can be reserved; `ends` is when the calendar's
    /// period does.
    #[must_use]
    pub fn wait(&self, now: Tick, ends: Tick, limit: u64, amount: u64) -> Duration {
        let fits = self.used().saturating_add(amount) <= limit;
        match self {
            _ if fits => Duration::ZERO,
            Self::Now(_) => HELD,
            Self::Minute(window) => window.wait(now, limit, amount),
            Self::Calendar { .. } => ends.since(now),
        }
    }

    /// Reserves an amount.
    pub fn reserve(&mut self, now: Tick, amount: u64) -> AccountShare {
        let mut slot = 0;
        match self {
            Self::Now(held) => *held = held.saturating_add(amount),
            Self::Minute(window) => slot = window.book(now, amount),
            Self::Calendar { reserved, .. } => *reserved = reserved.saturating_add(amount),
        }
        AccountShare { amount, slot }
    }

    /// Replaces a reservation by what its job came to.
    pub fn settle(&mut self, now: Tick, limit: u64, share: AccountShare, actual: u64) {
        match self {
            Self::Now(held) => *held = held.saturating_sub(share.amount),
            Self::Minute(window) => window.correct(now, limit, (share.slot, share.amount), actual),
            Self::Calendar { used, reserved } => {
                *reserved = reserved.saturating_sub(share.amount);
                *used = used.saturating_add(actual);
            }
        }
    }

    /// A new day or month has begun. What has not ended is settled in it.
    pub const fn begin(&mut self) {
        if let Self::Calendar { used, .. } = self {
            *used = 0;
        }
    }

    /// Adds what was used before the start.
    pub const fn restore(&mut self, amount: u64) {
        if let Self::Calendar { used, .. } = self {
            *used = used.saturating_add(amount);
        }
    }
}
