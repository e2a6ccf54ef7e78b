//! Retry storm check: every engine is busy for a while, and the retries must not multiply the load.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::fleet::Fleet;
use super::load::Planned;
use super::schedule::{Phase, Schedule};

/// Attempts that engines may see for each request that comes meanwhile.
const MOST_ATTEMPTS: f64 = 1.2;
/// Until every engine works again.
const RECOVERY: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);

/// What a storm was like.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Storm {
    /// Requests that came while it lasted.
    pub requests: u64,
    /// Requests that came to engines while it lasted, tries again included.
    pub attempts: u64,
    /// All requests of the run.
    pub all_requests: u64,
    /// All that came to engines.
    pub all_attempts: u64,
    /// From its end until every engine had work again; absent when that took
    /// too long to wait for.
    pub recovery_ms: Option<f64>,
}

impl Storm {
    /// Watches the engines through the storm of a schedule.
    pub(super) async fn watch(
        schedule: &Schedule,
        planned: &[Planned],
        fleet: &Fleet,
        start: Instant,
    ) -> Self {
        let Some(Phase { from, to, .. }) = schedule.phases.get(1) else {
            return Self { requests: 0, attempts: 0, all_requests: 0, all_attempts: 0, recovery_ms: None };
        };
        sleep_until(start + *to).await;
        let recovery = fleet.all_at_work(PATIENCE).await;
        Self {
            requests: planned.iter().filter(|call| (*from..*to).contains(&call.at)).count() as u64,
            attempts: fleet.refused(),
            all_requests: planned.len() as u64,
            all_attempts: 0,
            recovery_ms: recovery.map(|time| time.as_secs_f64() * 1e3),
        }
    }

    /// The end of the run, when all requests are over.
    pub(super) fn over(self, fleet: &Fleet) -> Self {
        Self { all_attempts: fleet.attempts(), ..self }
    }

    fn ratio(&self) -> f64 {
        self.attempts as f64 / self.requests.max(1) as f64
    }

    /// Those that were not kept.
    pub fn broken_promises(&self) -> Vec<String> {
        let mut broken = Vec::new();
        if self.ratio() > MOST_ATTEMPTS {
            broken.push(format!("{:.2} attempts for each request in the storm", self.ratio()));
        }
        if self.recovery_ms.is_none_or(|time| time > RECOVERY.as_secs_f64() * 1e3) {
            broken.push("the fleet was not at work again 2 s after the storm".to_owned());
        }
        broken
    }
}

impl fmt::Display for Storm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, attempts, all_requests, all_attempts, recovery_ms } = self;
        let ratio = self.ratio();
        let all = *all_attempts as f64 / (*all_requests).max(1) as f64;
        write!(
            f,
            "storm: {attempts} attempts for {requests} requests ({ratio:.2}); in the whole run {all_attempts} for {all_requests} ({all:.2}); "
        )?;
        match recovery_ms {
            Some(time) => write!(f, "all engines at work again after {time:.0} ms"),
            None => write!(f, "not all engines at work again after {} s", PATIENCE.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_promises_can_be_broken() {
        let kept = Storm {
            requests: 100,
            attempts: 120,
            all_requests: 300,
            all_attempts: 320,
            recovery_ms: Some(1999.0),
        };
        assert_eq!(kept.broken_promises(), Vec::<String>::new());
        assert_eq!(Storm { attempts: 121, ..kept }.broken_promises().len(), 1);
        assert_eq!(Storm { recovery_ms: Some(2001.0), ..kept }.broken_promises().len(), 1);
        assert_eq!(Storm { recovery_ms: None, attempts: 200, ..kept }.broken_promises().len(), 2);
        assert!(kept.to_string().contains("(1.20)"), "{kept}");
    }
}
