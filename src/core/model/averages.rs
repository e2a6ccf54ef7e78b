//! Averages of what was measured: a running mean, and the rate of events.

use crate::model::time::Tick;

/// Weight of the newest sample once the mean has settled.
const NEWEST: f64 = 0.1;
/// Time constant of an [`EventRate`], in seconds.
pub const RATE_MEMORY: f64 = 30.0;

/// A plain mean of the first samples, an exponential one later.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct RunningMean {
    pub(crate) value: f64,
    pub(crate) samples: u32,
}

impl RunningMean {
    pub(crate) fn add(&mut self, sample: f64) {
        self.samples = self.samples.saturating_add(1);
        self.value += (sample - self.value) * (1.0 / f64::from(self.samples)).max(NEWEST);
    }
}

/// Events per second, with an exponential memory of 30 s.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventRate {
    sum: f64,
    last: Tick,
    first: Option<Tick>,
}

impl EventRate {
    /// A rate before its first event.
    pub const fn new() -> Self {
        Self { sum: 0.0, last: Tick::ZERO, first: None }
    }

    /// Counts `events` events; a negative number takes back earlier ones.
    pub fn add(&mut self, now: Tick, events: f64) {
        self.sum = (self.sum_at(now) + events).max(0.0);
        self.last = now;
        self.first.get_or_insert(now);
    }

    /// The rate; `None` before the first event. The sum is divided by the part of the memory that
    /// has passed since the first event, at least one second. The rate is therefore right from the
    /// start.
    pub fn per_second(&self, now: Tick) -> Option<f64> {
        let lived = now.since(self.first?).as_secs_f64().max(1.0);
        Some(self.sum_at(now) / (RATE_MEMORY * (1.0 - decay(lived))))
    }

    fn sum_at(&self, now: Tick) -> f64 {
        self.sum * decay(now.since(self.last).as_secs_f64())
    }
}

/// The part of a memory that is left after `seconds`.
fn decay(seconds: f64) -> f64 {
    (-seconds / RATE_MEMORY).exp()
}
