//! Drain rates: how fast each tenant's waiting jobs start, within a class.

use std::time::Duration;

use crate::model::ids::TenantId;
use crate::model::number_map::NumberMap;
use crate::model::time::Tick;
use crate::queue::drain::DrainRate;

/// Time constant in seconds of the rate that predicts long waits. A burst of more urgent work must
/// not make them look endless.
const LONG_MEMORY: f64 = 600.0;

/// Dispatches of waiting jobs that are needed before their rate predicts a wait: the error of a
/// rate from 30 samples is about a fifth.
const MIN_DISPATCHES: u32 = 30;
/// Waiting time that must have been observed before a rate predicts a wait. A burst that fills idle
/// replicas says little about later dispatches.
const MIN_WAITED: Duration = Duration::from_secs(4);

/// Waiting jobs of one tenant, or of all tenants, and their drain rate.
#[derive(Debug, Clone, Copy)]
struct TenantDrain {
    waiting: u64,
    /// When the first of the waiting jobs began to wait.
    since: Tick,
    short_term: DrainRate,
    long_term: DrainRate,
}

impl Default for TenantDrain {
    fn default() -> Self {
        Self {
            waiting: 0,
            since: Tick::ZERO,
            short_term: DrainRate::default(),
            long_term: DrainRate::with_memory(LONG_MEMORY),
        }
    }
}

impl TenantDrain {
    fn for_each_rate(&mut self, change: impl Fn(&mut DrainRate)) {
        change(&mut self.short_term);
        change(&mut self.long_term);
    }

    fn joined(&mut self, jobs: u64, now: Tick, halted: bool) {
        if self.waiting == 0 {
            self.since = now;
            self.for_each_rate(|rate| rate.set_waiting(now, !halted));
        }
        self.waiting += jobs;
    }

    fn left(&mut self, now: Tick) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.for_each_rate(|rate| rate.set_waiting(now, false));
        }
    }

    /// See [`DrainRates::note_dispatch`].
    fn sent(&mut self, now: Tick) {
        if self.since < now {
            self.for_each_rate(|rate| rate.add_dispatch(now));
        }
    }

    fn halt(&mut self, halted: bool, now: Tick) {
        if self.waiting > 0 {
            self.for_each_rate(|rate| rate.set_waiting(now, !halted));
        }
    }

    fn restart(&mut self, halted: bool, now: Tick) {
        *self = Self { waiting: self.waiting, since: now, ..Self::default() };
        let waits = self.waiting > 0 && !halted;
        self.for_each_rate(|rate| rate.set_waiting(now, waits));
    }

    fn emptied(&self) -> Self {
        Self {
            waiting: 0,
            short_term: self.short_term.stopped(),
            long_term: self.long_term.stopped(),
            ..*self
        }
    }

    /// The larger of the rate of the last 30 s and the rate of the last ten minutes.
    fn best(&self, now: Tick) -> Option<f64> {
        let known = self.long_term.dispatches() >= MIN_DISPATCHES && self.long_term.waited(now) >= MIN_WAITED;
        let lasting = self.long_term.while_waiting(now).filter(|_| known)?;
        Some(self.short_term.while_waiting(now).map_or(lasting, |rate| rate.max(lasting)))
    }
}

/// Drain rates of a class's tenants. A row outlives its waiting jobs, for the rates that it
/// learned, and ends with its tenant.
#[derive(Debug, Clone, Default)]
pub struct DrainRates {
    rows: NumberMap<TenantId, TenantDrain>,
    /// All tenants together.
    all: TenantDrain,
    /// Tenants with waiting jobs.
    waiting_tenants: u64,
    /// No replica is in service.
    halted: bool,
}

impl DrainRates {
    /// Counts a tenant's jobs that begin to wait, at least one.
    pub fn joined(&mut self, tenant: TenantId, jobs: u64, now: Tick) {
        let row = self.rows.entry(tenant).or_default();
        self.waiting_tenants += u64::from(row.waiting == 0);
        row.joined(jobs, now, self.halted);
        self.all.joined(jobs, now, self.halted);
    }

    /// Counts a job that stops waiting.
    pub fn left(&mut self, tenant: TenantId, now: Tick) {
        let Some(row) = self.rows.get_mut(&tenant).filter(|row| row.waiting > 0) else { return };
        row.left(now);
        self.waiting_tenants -= u64::from(row.waiting == 0);
        self.all.left(now);
    }

    /// Counts the dispatch of a job, which still counts as waiting. A dispatch in the very instant
    /// in which the wait began is ignored: it says nothing about the drain rate.
    pub fn note_dispatch(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant) {
            row.sent(now);
            self.all.sent(now);
        }
    }

    /// Takes back the dispatch of a job that came back to the queue.
    pub fn undo_dispatch(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant) {
            row.for_each_rate(|rate| rate.undo_dispatch(now));
            self.all.for_each_rate(|rate| rate.undo_dispatch(now));
        }
    }

    /// Drain rate of a tenant in jobs per second while some wait; `None` before it is known.
    pub fn per_second(&self, tenant: TenantId, now: Tick) -> Option<f64> {
        self.rows.get(&tenant)?.short_term.while_waiting(now)
    }

    /// The time in which `before` jobs of a tenant are dispatched, at the tenant's own rate. Before
    /// that rate is known, the rate of all tenants counts, divided equally among the tenants that
    /// wait. The result is then at most the time that all waiting jobs take. `None` when no rate is
    /// known.
    pub fn wait(&self, tenant: TenantId, before: u64, now: Tick) -> Option<Duration> {
        let own = self.rows.get(&tenant).and_then(|row| row.best(now));
        let seconds = match own {
            Some(rate) => before as f64 / rate,
            None => {
                before.saturating_mul(self.waiting_tenants).min(self.all.waiting) as f64
                    / self.all.best(now)?
            }
        };
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(if before == 0 {
            Duration::ZERO
        } else {
            Duration::MAX
        }))
    }

    /// The time in which all waiting jobs are dispatched at the rate of the last 30 s; before that rate
    /// is known, how long some have waited. Zero when none waits.
    pub fn wait_of_all(&self, now: Tick) -> Duration {
        if self.all.waiting == 0 {
            return Duration::ZERO;
        }
        let Some(rate) = self.all.short_term.while_waiting(now) else { return now.since(self.all.since) };
        Duration::try_from_secs_f64(self.all.waiting as f64 / rate).unwrap_or(Duration::MAX)
    }

    /// Whether jobs of the tenant wait.
    pub fn waits(&self, tenant: TenantId) -> bool {
        self.rows.get(&tenant).is_some_and(|row| row.waiting > 0)
    }

    /// Tenants some of whose jobs have waited for at least `age`, with the number that wait.
    pub fn backlogs(&self, age: Duration, now: Tick) -> impl Iterator<Item = (TenantId, u64)> {
        let rows = self.rows.iter().filter(move |(_, row)| row.waiting > 0 && now.since(row.since) >= age);
        rows.map(|(tenant, row)| (*tenant, row.waiting))
    }

    /// Notes whether all replicas are out of service from now on. The length of an outage is not
    /// known, so that the rates learned before it are kept.
    pub fn halt(&mut self, halted: bool, now: Tick) {
        if self.halted != halted {
            self.halted = halted;
            self.rows.values_mut().chain([&mut self.all]).for_each(|row| row.halt(halted, now));
        }
    }

    /// Forgets the drain rates of a tenant.
    pub fn restart(&mut self, tenant: TenantId, now: Tick) {
        if let Some(row) = self.rows.get_mut(&tenant) {
            row.restart(self.halted, now);
        }
    }

    /// Forgets the drain rates of all tenants.
    pub fn restart_all(&mut self, now: Tick) {
        let halted = self.halted;
        self.rows.values_mut().chain([&mut self.all]).for_each(|row| row.restart(halted, now));
    }

    /// The rates of the tenants that `keep` accepts, with nothing waiting.
    pub fn without_waiting(&self, keep: impl Fn(TenantId) -> bool) -> Self {
        let rows = self.rows.iter().filter(|(tenant, _)| keep(**tenant));
        Self {
            rows: rows.map(|(tenant, row)| (*tenant, row.emptied())).collect(),
            all: self.all.emptied(),
            waiting_tenants: 0,
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
        rows.joined(TENANT, 10, at(from));
        for step in 1..=10 {
            rows.note_dispatch(TENANT, at(from + step * 100));
            rows.left(TENANT, at(from + step * 100));
        }
    }

    #[test]
    fn what_goes_at_once_teaches_nothing() {
        let mut rows = DrainRates::default();
        for step in 0..100 {
            rows.joined(TENANT, 1, at(step));
            rows.note_dispatch(TENANT, at(step));
            rows.left(TENANT, at(step));
        }
        assert_eq!(rows.per_second(TENANT, at(100)), None);
    }

    #[test]
    fn the_last_of_all_waits_for_as_long_as_the_rate_says() {
        let mut rows = DrainRates::default();
        assert_eq!(rows.wait_of_all(at(0)), Duration::ZERO);
        rows.joined(TENANT, 3, at(0));
        assert_eq!(rows.wait_of_all(at(5_000)), Duration::from_secs(5), "none has gone yet");
        let mut rows = DrainRates::default();
        ten(&mut rows, 0);
        rows.joined(TENANT, 40, at(1_000));
        let wait = rows.wait_of_all(at(1_000)).as_secs_f64();
        assert!((3.5..=4.5).contains(&wait), "{wait}");
    }

    #[test]
    fn the_rate_is_that_of_the_waits_and_outlives_a_reload() {
        let mut rows = DrainRates::default();
        ten(&mut rows, 0);
        ten(&mut rows, 60_000);
        let rate = rows.per_second(TENANT, at(90_000)).unwrap();
        assert!((9.8..10.2).contains(&rate), "{rate}");
        rows.joined(TENANT, 1, at(90_000));
        let next = rows.without_waiting(|_| true);
        assert_eq!(next.per_second(TENANT, at(200_000)), Some(rate), "nothing waits there yet");
        assert_eq!(rows.without_waiting(|_| false).per_second(TENANT, at(90_000)), None);
    }

    #[test]
    fn an_outage_is_not_a_slow_queue() {
        let mut rows = DrainRates::default();
        ten(&mut rows, 0);
        let rate = rows.per_second(TENANT, at(1_000));
        rows.joined(TENANT, 1, at(1_000));
        rows.halt(true, at(1_000));
        rows.joined(TENANT, 5, at(2_000));
        assert_eq!(rows.per_second(TENANT, at(61_000)), rate);
        rows.halt(false, at(61_000));
        assert!(rows.per_second(TENANT, at(62_000)) < rate, "what waits now could go");
    }

    #[test]
    fn what_comes_back_slows_it() {
        let mut rows = DrainRates::default();
        ten(&mut rows, 0);
        let before = rows.per_second(TENANT, at(1_000)).unwrap();
        rows.joined(TENANT, 1, at(2_000));
        rows.undo_dispatch(TENANT, at(2_000));
        assert!(rows.per_second(TENANT, at(2_000)).unwrap() < before);
    }
}
