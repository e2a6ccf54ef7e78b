//! How many sequences a replica may run so that its streams keep their pace.
//!
//! Additive increase, multiplicative decrease on the measured time between
//! tokens: above the aim the limit falls to the part of what runs that would
//! keep it, below the aim it grows while it is used up. The cut is taken from
//! what runs, not from the limit: streams leave slowly, so cutting the limit
//! again and again meanwhile would overshoot.

use std::time::Duration;

use crate::core::event::Pace;

/// The aim as a part of the objective.
const AIM: f64 = 0.92;
/// The most that one cut takes.
const DEEPEST_CUT: f64 = 0.7;
/// Weight of the newest pace in the mean: with ten paces a second, a memory of
/// about three seconds. A shorter one takes each prompt that is read for a
/// lack of room.
const NEWEST: f64 = 0.03;
/// Growth of a used-up limit per pace.
const GROWTH: f64 = 0.01;

/// One replica's limit by pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaceLimit {
    limit: f64,
    mean: Option<f64>,
}

impl Default for PaceLimit {
    fn default() -> Self {
        Self { limit: f64::INFINITY, mean: None }
    }
}

impl PaceLimit {
    /// Sequences; at least 1, `u32::MAX` before anything was learned.
    #[must_use]
    pub fn seqs(&self) -> u32 {
        self.limit as u32
    }

    /// Mean time between tokens just now, in nanoseconds.
    #[must_use]
    pub const fn mean(&self) -> Option<f64> {
        self.mean
    }

    /// The mean that it keeps to under an objective, in nanoseconds.
    #[must_use]
    pub fn aim(&self, objective: Duration) -> f64 {
        objective.as_nanos() as f64 * AIM
    }

    /// Learns from what streams showed. `running` are the sequences there,
    /// `cap` what the limit may grow to.
    pub fn learn(&mut self, pace: &Pace, running: u32, objective: Duration, cap: u32) {
        if pace.gaps == 0 {
            return;
        }
        let now = pace.total.as_nanos() as f64 / pace.gaps as f64;
        let mean = self.mean.map_or(now, |mean| mean + (now - mean) * NEWEST);
        self.mean = Some(mean);
        let aim = self.aim(objective);
        let running = f64::from(running).max(1.0);
        if mean > aim {
            self.limit = self.limit.min((running * (aim / mean).max(DEEPEST_CUT)).max(1.0));
        } else if running + 1.0 >= self.limit {
            self.limit = (self.limit + (self.limit * GROWTH).max(0.25)).min(f64::from(cap)).max(1.0);
        }
    }
}
