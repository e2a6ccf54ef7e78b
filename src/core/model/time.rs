//! Time of the core: an instant is a number that the caller passes in.

use std::ops::{Add, AddAssign};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant, in nanoseconds since an origin that the caller chose.
///
/// The gateway counts from its start, the simulator from the start of the simulated world.
/// Arithmetic saturates, so that a hostile duration cannot wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Tick(u64);

impl Tick {
    pub const ZERO: Self = Self(0);
    /// Later than every instant that can be reached.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `by` earlier, at least the origin.
    pub fn earlier_by(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to this instant; zero when this instant is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Tick {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Tick {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}
