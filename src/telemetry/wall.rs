//! Wall clock: no other module reads it.

use std::time::{Duration, SystemTime};

use crate::core::model::time::Tick;

/// Reads the wall clock. The clock may jump, so use it for timestamps only (for people and other
/// systems), never for durations.
#[expect(clippy::disallowed_methods, reason = "this is the file that reads the wall clock")]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// Seconds since 1970-01-01 UTC; 0 for an earlier time.
pub fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// Seconds from a moment until now; 0 for a moment in the future.
pub fn seconds_since(at: SystemTime) -> f64 {
    now().duration_since(at).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// Anchor of the two clocks: one moment as a wall time and as a tick. It turns nearby ticks into
/// timestamps.
#[derive(Debug, Clone, Copy)]
pub struct Anchor {
    wall: SystemTime,
    tick: Tick,
}

impl Anchor {
    /// Makes an anchor at `tick`, which must be the present moment.
    pub fn at(tick: Tick) -> Self {
        Self { wall: now(), tick }
    }

    /// Converts a tick to its wall time. When that overflows, the anchor's own wall time is
    /// returned.
    pub fn wall(&self, tick: Tick) -> SystemTime {
        let shifted = if tick >= self.tick {
            self.wall.checked_add(tick.since(self.tick))
        } else {
            self.wall.checked_sub(self.tick.since(tick))
        };
        shifted.unwrap_or(self.wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_before_and_after_the_anchor_become_wall_times() {
        let anchor = Anchor::at(Tick::from_millis(5_000));
        let earlier = anchor.wall(Tick::from_millis(4_000));
        let later = anchor.wall(Tick::from_millis(7_500));
        assert_eq!(later.duration_since(earlier).unwrap(), Duration::from_millis(3_500));
        assert!(unix_seconds(earlier) > 1.6e9);
        assert_eq!(unix_seconds(SystemTime::UNIX_EPOCH - Duration::from_secs(9)), 0.0);
    }
}
