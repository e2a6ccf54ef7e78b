//! The gateway's clock: tokio's, counted in the core's ticks from the start.

use tokio::time::Instant;

use crate::core::model::time::Tick;

/// Time since the gateway's start. Copies share the origin.
#[derive(Debug, Clone, Copy)]
pub struct GatewayClock {
    origin: Instant,
}

impl GatewayClock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Now.
    #[must_use]
    pub fn now(self) -> Tick {
        Tick::ZERO + self.origin.elapsed()
    }

    /// An instant of tokio's clock as a tick.
    #[must_use]
    pub fn tick(self, at: Instant) -> Tick {
        Tick::ZERO + at.saturating_duration_since(self.origin)
    }

    /// A tick as an instant of tokio's clock.
    #[must_use]
    pub fn instant(self, at: Tick) -> Instant {
        self.origin + at.since(Tick::ZERO)
    }
}
