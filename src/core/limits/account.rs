//! Limit account: the use and the reservations of one limit.

use std::time::Duration;

use crate::limits::rule::LimitPeriod;
use crate::limits::window::{MinuteWindow, SlotAmount};
use crate::model::time::Tick;

/// Retry-After for amounts that running jobs hold, whose end is not known.
pub(super) const HELD_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Use and reservations of one limit.
#[derive(Debug, Clone)]
pub enum LimitAccount {
    /// Amount that unfinished jobs hold.
    Now(u64),
    /// Use in the last minute.
    Minute(MinuteWindow),
    /// Use in a day or a month.
    Calendar {
        /// Amount that ended jobs have used.
        used: u64,
        /// Amount reserved for unfinished jobs.
        reserved: u64,
    },
}

/// Reservation of a job in one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountShare {
    /// In the unit of the limit.
    pub amount: u64,
    /// Slot of the minute window; 0 in an account without a window.
    pub slot: u64,
}

impl LimitAccount {
    pub fn new(period: LimitPeriod) -> Self {
        match period {
            LimitPeriod::Now => Self::Now(0),
            LimitPeriod::Minute => Self::Minute(MinuteWindow::default()),
            LimitPeriod::Day | LimitPeriod::Month => Self::Calendar { used: 0, reserved: 0 },
        }
    }

    /// Moves the minute window to the present.
    pub fn advance(&mut self, now: Tick, limit: u64) {
        if let Self::Minute(window) = self {
            window.advance(now, limit);
        }
    }

    /// Amount used and reserved. The account must have been advanced to the present.
    pub const fn used(&self) -> u64 {
        match self {
            Self::Now(held) => *held,
            Self::Minute(window) => window.used(),
            Self::Calendar { used, reserved } => used.saturating_add(*reserved),
        }
    }

    /// Amount used; what is only reserved is left out where the account tracks it.
    pub const fn settled(&self) -> u64 {
        match self {
            Self::Calendar { used, .. } => *used,
            Self::Now(_) | Self::Minute(_) => self.used(),
        }
    }

    /// Amount reserved and not settled; `None` where the account does not track it.
    pub const fn reserved(&self) -> Option<u64> {
        match self {
            Self::Now(held) => Some(*held),
            Self::Minute(_) => None,
            Self::Calendar { reserved, .. } => Some(*reserved),
        }
    }

    /// Time until `amount` can be reserved. `ends` is the end of the calendar period.
    pub fn wait(&self, now: Tick, ends: Tick, limit: u64, amount: u64) -> Duration {
        let fits = self.used().saturating_add(amount) <= limit;
        match self {
            _ if fits => Duration::ZERO,
            Self::Now(_) => HELD_RETRY_AFTER,
            Self::Minute(window) => window.wait(now, limit, amount),
            Self::Calendar { .. } => ends.since(now),
        }
    }

    pub fn reserve(&mut self, now: Tick, amount: u64) -> AccountShare {
        let mut slot = 0;
        match self {
            Self::Now(held) => *held = held.saturating_add(amount),
            Self::Minute(window) => slot = window.book(now, amount).slot,
            Self::Calendar { reserved, .. } => *reserved = reserved.saturating_add(amount),
        }
        AccountShare { amount, slot }
    }

    /// Replaces a reservation by the actual use of its job.
    pub fn settle(&mut self, now: Tick, limit: u64, share: AccountShare, actual: u64) {
        match self {
            Self::Now(held) => *held = held.saturating_sub(share.amount),
            Self::Minute(window) => {
                let AccountShare { amount, slot } = share;
                window.settle(now, limit, SlotAmount { slot, amount }, actual);
            }
            Self::Calendar { used, reserved } => {
                *reserved = reserved.saturating_sub(share.amount);
                *used = used.saturating_add(actual);
            }
        }
    }

    /// Starts a new day or month. Jobs that have not ended are settled in the new period.
    pub const fn start_period(&mut self) {
        if let Self::Calendar { used, .. } = self {
            *used = 0;
        }
    }

    /// Adds an amount that was used before the gateway started.
    pub const fn restore(&mut self, amount: u64) {
        if let Self::Calendar { used, .. } = self {
            *used = used.saturating_add(amount);
        }
    }
}
