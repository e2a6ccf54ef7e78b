//! One limit's account.

use std::time::Duration;

use crate::core::budget::rule::Period;
use crate::core::budget::window::Window;
use crate::core::time::Tick;

/// When to come back for what is held by jobs that run: nobody knows when they
/// end.
const HELD: Duration = Duration::from_secs(1);

/// What has been used of a limit, and what is reserved.
#[derive(Debug, Clone)]
pub enum Account {
    /// What jobs hold that have not ended.
    Now(u64),
    /// The last minute.
    Minute(Window),
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
pub struct Share {
    /// How much.
    pub amount: u64,
    /// In which slot of the window, where the account has one.
    pub slot: u64,
}

impl Account {
    /// An empty account.
    #[must_use]
    pub fn new(period: Period) -> Self {
        match period {
            Period::Now => Self::Now(0),
            Period::Minute => Self::Minute(Window::default()),
            Period::Day | Period::Month => Self::Calendar { used: 0, reserved: 0 },
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
    pub fn reserve(&mut self, now: Tick, amount: u64) -> Share {
        let mut slot = 0;
        match self {
            Self::Now(held) => *held = held.saturating_add(amount),
            Self::Minute(window) => slot = window.book(now, amount),
            Self::Calendar { reserved, .. } => *reserved = reserved.saturating_add(amount),
        }
        Share { amount, slot }
    }

    /// Replaces a reservation by what its job came to.
    pub fn settle(&mut self, now: Tick, limit: u64, share: Share, actual: u64) {
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
