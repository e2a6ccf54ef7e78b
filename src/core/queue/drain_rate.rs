//! Drain rates: how fast each tenant's waiting jobs start, within a class.

use std::time::Duration;

use crate::core::model::ids::TenantId;
use crate::core::model::number_map::NumberMap;
use crate::core::model::time::Tick;
use crate::core::queue::estimate::DrainRate;

/// Time constant in seconds of the rate by which long waits are foretold: a burst of
/// more urgent work must not make them look endless.
const LASTING: f64 = 600.0;

/// Dispatches that ended a wait before a wait is foretold from them: the error of a rate
/// from so many is a fifth.
const ENOUGH: u32 = 30;
/// For how long jobs must have waited before: a burst that fills idle replicas says
/// little of what comes after it.
const LONG_ENOUGH: Duration = Duration::from_secs(4);

/// What waits for one tenant or for all, and how fast it goes.
#[derive(Debug, Clone, Copy)]
struct TenantDrain {
    waiting: u64,
    /// When it began to wait.
    since: Tick,
    drain: DrainRate,
    lasting: DrainRate,
}

impl Default for TenantDrain {
    fn default() -> Self {
        Self { waiting: 0, since: Tick::ZERO, drain: DrainRate::default(), lasting: DrainRate::over(LASTING) }
    }
}

impl TenantDrain {
    fn each(&mut self, change: impl Fn(&mut DrainRate)) {
        change(&mut self.drain);
        change(&mut self.lasting);
    }

    fn joined(&mut self, now: Tick, halted: bool) {
        if self.waiting == 0 {
            self.since = now;
            self.each(|rate| rate.busy(now, !halted));
        }
        self.waiting += 1;
    }

    fn left(&mut self, now: Tick) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.each(|rate| rate.busy(now, false));
        }
    }

    /// See [`DrainRates::sent`].
    fn sent(&mut self, now: Tick) {
        if self.since < now {
            self.each(|rate| rate.note(now));
        }
    }

    fn halt(&mut self, halted: bool, now: Tick) {
        if self.waiting > 0 {
            self.each(|rate| rate.busy(now, !halted));
        }
    }

    fn restart(&mut self, halted: bool, now: Tick) {
        *self = Self { waiting: self.waiting, since: now, ..Self::default() };
        let waits = self.waiting > 0 && !halted;
        self.each(|rate| rate.busy(now, waits));
    }

    fn emptied(&self) -> Self {
        Self { waiting: 0, drain: self.drain.stopped(), lasting: self.lasting.stopped(), ..*self }
    }

    /// The better of the rates of late and of the last ten minutes.
    fn best(&self, now: Tick) -> Option<f64> {
        let known = self.lasting.seen() >= ENOUGH && self.lasting.waited(now) >= LONG_ENOUGH;
        let lasting = self.lasting.while_waiting(now).filter(|_| known)?;
        Some(self.drain.while_waiting(now).map_or(lasting, |rate| rate.max(lasting)))
    }
}

/// The tenants of a class. Rows are kept when nothing waits, for what they
/// learned, and end with their tenant.
#[derive(Debug, Clone, Default)]
pub struct DrainRates {
    rows: NumberMap<TenantId, TenantDrain>,
    /// The tenants together.
    all: TenantDrain,
    /// Tenants of which jobs wait.
    present: u64,
    /// No replica is in service.
    halted: bool,
}

impl DrainRates {
    /// A job begins to wait.
    pub fn joined(&mut self, tenant: TenantId, now: Tick) {
        let row = self.rows.entry(tenant).or_default();
        self.present += u64::from(row.waiting == 0);
        row.joined(now, self.halted);
        self.all.joined(now, self.halted);
    }

    /// A job waits no longer.
    pub fn left(&mut self, tenant: TenantId, now: Tick) {
        let Some(row) = self.rows.get_mut(&tenant).filter(|row| row.waiting > 0) else { return };
        row.left(now);
        self.present -= u64::from(row.waiting == 0);
        self.all.left(now);
    }

    /// A job that still counts as waiting goes to a replica. One that goes in the
    /// instant in which the wait began says nothing of how fast jobs go.
    pub fn sent(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant) {
            row.sent(now);
            self.all.sent(now);
        }
    }

    /// A job that was sent comes back.
    pub fn came_back(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant) {
            row.each(|rate| rate.take_back(now));
            self.all.each(|rate| rate.take_back(now));
        }
    }

    /// Jobs per second that go while some wait; `None` before it is known.
    #[must_use]
    pub fn per_second(&self, tenant: TenantId, now: Tick) -> Option<f64> {
        self.rows.get(&tenant)?.drain.while_waiting(now)
    }

    /// The time in which so many of a tenant's jobs go, by its own rate. Before
    /// that is known: by the rate of all tenants, where each that waits has an
    /// equal part, but no longer than everything takes that waits. `None` when
    /// nothing is known.
    #[must_use]
    pub fn wait(&self, tenant: TenantId, before: u64, now: Tick) -> Option<Duration> {
        let own = self.rows.get(&tenant).and_then(|row| row.best(now));
        let seconds = match own {
            Some(rate) => before as f64 / rate,
            None => before.saturating_mul(self.present).min(self.all.waiting) as f64 / self.all.best(now)?,
        };
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(if before == 0 {
            Duration::ZERO
        } else {
            Duration::MAX
        }))
    }

    /// Whether no replica is in service from now on. How long that lasts is not
    /// known, and how fast jobs go otherwise is not forgotten meanwhile.
    pub fn halt(&mut self, halted: bool, now: Tick) {
        if self.halted != halted {
            self.halted = halted;
            self.rows.values_mut().chain([&mut self.all]).for_each(|row| row.halt(halted, now));
        }
    }

    /// Forgets how fast a tenant's jobs went.
    pub fn restart(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant) {
            row.restart(self.halted, now);
        }
    }

    /// Forgets how fast all tenants' jobs went.
    pub fn restart_all(&mut self, now: Tick) {
        let halted = self.halted;
        self.rows.values_mut().chain([&mut self.all]).for_each(|row| row.restart(halted, now));
    }

    /// The same tenants with nothing waiting, but for those to forget.
    #[must_use]
    pub fn emptied(&self, keep: impl Fn(TenantId) -> bool) -> Self {
        let rows = self.rows.iter().filter(|(tenant, _)| keep(**tenant));
        Self {
            rows: rows.map(|(tenant, row)| (*tenant, row.emptied())).collect(),
            all: self.all.emptied(),
            present: 0,
            halted: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId::new(3);

    fn at(millis: u64) -> Tick {
        Tick::from_millis(millis)
    }

    /// Ten jobs that all wait from the start; one goes every 100 ms.
    fn ten(rows: &mut DrainRates, from: u64) {
        (0..10).for_each(|_| rows.joined(TENANT, at(from)));
        for step in 1..=10 {
            rows.sent(TENANT, at(from + step * 100));
            rows.left(TENANT, at(from + step * 100));
        }
    }

    #[test]
    fn what_goes_at_once_teaches_nothing() {
        let mut rows = DrainRates::default();
        for step in 0..100 {
            rows.joined(TENANT, at(step));
            rows.sent(TENANT, at(step));
            rows.left(TENANT, at(step));
        }
        assert_eq!(rows.per_second(TENANT, at(100)), None);
    }

    #[test]
    fn the_rate_is_that_of_the_waits_and_outlives_a_reload() {
        let mut rows = DrainRates::default();
        ten(&mut rows, 0);
        ten(&mut rows, 60_000);
        let rate = rows.per_second(TENANT, at(90_000)).unwrap();
        assert!((9.8..10.2).contains(&rate), "{rate}");
        rows.joined(TENANT, at(90_000));
        let next = rows.emptied(|_| true);
        assert_eq!(next.per_second(TENANT, at(200_000)), Some(rate), "nothing waits there yet");
        assert_eq!(rows.emptied(|_| false).per_second(TENANT, at(90_000)), None);
    }

    #[test]
    fn an_outage_is_not_a_slow_queue() {
        let mut rows = DrainRates::default();
        ten(&mut rows, 0);
        let rate = rows.per_second(TENANT, at(1_000));
        rows.joined(TENANT, at(1_000));
        rows.halt(true, at(1_000));
        (0..5).for_each(|_| rows.joined(TENANT, at(2_000)));
        assert_eq!(rows.per_second(TENANT, at(61_000)), rate);
        rows.halt(false, at(61_000));
        assert!(rows.per_second(TENANT, at(62_000)) < rate, "what waits now could go");
    }

    #[test]
    fn what_comes_back_slows_it() {
        let mut rows = DrainRates::default();
        ten(&mut rows, 0);
        let before = rows.per_second(TENANT, at(1_000)).unwrap();
        rows.joined(TENANT, at(2_000));
        rows.came_back(TENANT, at(2_000));
        assert!(rows.per_second(TENANT, at(2_000)).unwrap() < before);
    }
}
