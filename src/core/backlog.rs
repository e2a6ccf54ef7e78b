//! How fast each tenant's waiting jobs go, within a class.

use crate::core::estimate::DrainRate;
use crate::core::ids::TenantId;
use crate::core::number_map::NumberMap;
use crate::core::time::Tick;

/// What waits for one tenant, and how fast it goes.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    waiting: u64,
    /// When it began to wait.
    since: Tick,
    drain: DrainRate,
}

/// The tenants of a class. Rows are kept when nothing waits, for what they
/// learned, and end with their tenant.
#[derive(Debug, Clone, Default)]
pub struct Backlogs {
    rows: NumberMap<TenantId, Row>,
    /// No replica is in service.
    halted: bool,
}

impl Backlogs {
    /// A job begins to wait.
    pub fn joined(&mut self, tenant: TenantId, now: Tick) {
        let row = self.rows.entry(tenant).or_default();
        if row.waiting == 0 {
            row.since = now;
            row.drain.busy(now, !self.halted);
        }
        row.waiting += 1;
    }

    /// A job waits no longer.
    pub fn left(&mut self, tenant: TenantId, now: Tick) {
        let Some(row) = self.rows.get_mut(&tenant) else { return };
        row.waiting = row.waiting.saturating_sub(1);
        if row.waiting == 0 {
            row.drain.busy(now, false);
        }
    }

    /// A job that still counts as waiting goes to a replica. One that goes in the
    /// instant in which the wait began says nothing of how fast jobs go.
    pub fn sent(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant).filter(|row| row.since < now) {
            row.drain.note(now);
        }
    }

    /// A job that was sent comes back.
    pub fn came_back(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant) {
            row.drain.take_back(now);
        }
    }

    /// Jobs per second that go while some wait; `None` before it is known.
    #[must_use]
    pub fn per_second(&self, tenant: TenantId, now: Tick) -> Option<f64> {
        self.rows.get(&tenant)?.drain.while_waiting(now)
    }

    /// Whether no replica is in service from now on. How long that lasts is not
    /// known, and how fast jobs go otherwise is not forgotten meanwhile.
    pub fn halt(&mut self, halted: bool, now: Tick) {
        if self.halted != halted {
            self.halted = halted;
            let waiting = self.rows.values_mut().filter(|row| row.waiting > 0);
            waiting.for_each(|row| row.drain.busy(now, !halted));
        }
    }

    /// Forgets how fast a tenant's jobs went.
    pub fn restart(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant) {
            *row = Row { since: now, drain: DrainRate::default(), ..*row };
            row.drain.busy(now, row.waiting > 0 && !self.halted);
        }
    }

    /// Forgets how fast all tenants' jobs went.
    pub fn restart_all(&mut self, now: Tick) {
        let tenants: Vec<TenantId> = self.rows.keys().copied().collect();
        tenants.into_iter().for_each(|tenant| self.restart(tenant, now));
    }

    /// The same tenants with nothing waiting, but for those to forget.
    #[must_use]
    pub fn emptied(&self, keep: impl Fn(TenantId) -> bool) -> Self {
        let rows = self.rows.iter().filter(|(tenant, _)| keep(**tenant));
        let empty = |row: &Row| Row { waiting: 0, drain: row.drain.stopped(), ..*row };
        Self { rows: rows.map(|(tenant, row)| (*tenant, empty(row))).collect(), halted: false }
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
    fn ten(rows: &mut Backlogs, from: u64) {
        (0..10).for_each(|_| rows.joined(TENANT, at(from)));
        for step in 1..=10 {
            rows.sent(TENANT, at(from + step * 100));
            rows.left(TENANT, at(from + step * 100));
        }
    }

    #[test]
    fn what_goes_at_once_teaches_nothing() {
        let mut rows = Backlogs::default();
        for step in 0..100 {
            rows.joined(TENANT, at(step));
            rows.sent(TENANT, at(step));
            rows.left(TENANT, at(step));
        }
        assert_eq!(rows.per_second(TENANT, at(100)), None);
    }

    #[test]
    fn the_rate_is_that_of_the_waits_and_outlives_a_reload() {
        let mut rows = Backlogs::default();
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
        let mut rows = Backlogs::default();
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
        let mut rows = Backlogs::default();
        ten(&mut rows, 0);
        let before = rows.per_second(TENANT, at(1_000)).unwrap();
        rows.joined(TENANT, at(2_000));
        rows.came_back(TENANT, at(2_000));
        assert!(rows.per_second(TENANT, at(2_000)).unwrap() < before);
    }
}
