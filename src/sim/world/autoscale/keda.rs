//! KEDA's own decisions: scaling from zero replicas to one, and back to zero.

use std::time::Duration;

use penstock_core::model::time::Tick;

/// KEDA's loop for one ScaledObject.
#[derive(Debug, Clone)]
pub struct Keda {
    min: u32,
    cooldown: Duration,
    /// Time at which a poll or a push last saw activity.
    last_active: Option<Tick>,
}

impl Keda {
    /// A ScaledObject with this `minReplicaCount` and `cooldownPeriod`.
    pub fn new(min: u32, cooldown: Duration) -> Self {
        Self { min, cooldown, last_active: None }
    }

    /// One poll or push: the desired replicas where `current` replicas exist.
    /// An inactive ScaledObject goes to zero in one step when its cooldown is
    /// over. One that was never seen active goes to zero at once.
    pub fn poll(&mut self, now: Tick, current: u32, active: bool) -> u32 {
        if active {
            self.last_active = Some(now);
            return if current == 0 { self.min.max(1) } else { current };
        }
        let is_over = self.last_active.is_none_or(|last| now.since(last) >= self.cooldown);
        if is_over && self.min == 0 { 0 } else { current }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_one_at_once_and_to_zero_after_the_cooldown() {
        let mut keda = Keda::new(0, Duration::from_secs(300));
        let at = |seconds: u64| Tick::from_millis(seconds * 1_000);
        assert_eq!(keda.poll(at(0), 0, true), 1);
        assert_eq!(keda.poll(at(10), 7, true), 7, "the HPA goes up from there");
        assert_eq!(keda.poll(at(309), 7, false), 7);
        assert_eq!(keda.poll(at(310), 7, false), 0, "in one step");
        let mut fresh = Keda::new(0, Duration::from_secs(300));
        assert_eq!(fresh.poll(at(0), 5, false), 0, "never seen active");
    }

    #[test]
    fn a_least_number_is_kept() {
        let mut keda = Keda::new(3, Duration::ZERO);
        assert_eq!(keda.poll(Tick::ZERO, 0, true), 3);
        assert_eq!(keda.poll(Tick::ZERO, 3, false), 3);
    }
}
