//! Gateway clock: tokio's clock, counted in the core's ticks since the gateway's start.

use tokio::time::Instant;

use crate::core::model::time::Tick;

/// Clock that counts from the gateway's start. Copies share the origin.
#[derive(Debug, Clone, Copy)]
pub struct GatewayClock {
    origin: Instant,
}

impl GatewayClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub fn now(self) -> Tick {
        Tick::ZERO + self.origin.elapsed()
    }

    /// The tick of an instant of tokio's clock. An instant before the start gives [`Tick::ZERO`].
    pub fn tick(self, at: Instant) -> Tick {
        Tick::ZERO + at.saturating_duration_since(self.origin)
    }

    /// The instant of tokio's clock for a tick.
    pub fn instant(self, at: Tick) -> Instant {
        self.origin + at.since(Tick::ZERO)
    }
}
