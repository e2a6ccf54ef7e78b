//! Pool starts: how long a pool without replicas takes from the first job that is held for it to
//! its first token.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::model::ids::PoolId;
use crate::core::model::time::Tick;

/// The longest start that is believed.
pub const MAX_START: Duration = Duration::from_secs(3600);
/// Weight of the newest start in what is expected of the next one.
const NEWEST: f64 = 0.3;

/// A step of a pool's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStep {
    /// A job is held for a pool that has nothing in service.
    Wanted(PoolId),
    /// Its first token came, so long after that.
    Started(PoolId, Duration),
}

/// What is known of one pool's starts.
#[derive(Debug, Clone, Copy, Default)]
struct PoolStart {
    /// The first and the last job that wanted the pool since it has nothing in
    /// service, held or not.
    asked: Option<(Tick, Tick)>,
    /// The first that is held.
    held: Option<Tick>,
    /// It is held until the pool's replicas wake.
    wakes: bool,
    measured: Option<Duration>,
    /// When a replica was last told to wake, while none has.
    roused: Option<Tick>,
    /// How long replicas take to wake.
    wake: Option<Duration>,
}

/// The starts of all pools.
#[derive(Debug, Clone, Default)]
pub struct PoolStarts {
    rows: BTreeMap<PoolId, PoolStart>,
    steps: Vec<StartStep>,
}

impl PoolStarts {
    /// A job wants the pool, which has to start first. `expected` is what the
    /// policy says of its start. Who asks after nobody has for twice that long
    /// may be asking for another start.
    pub fn ask(&mut self, pool: PoolId, expected: Option<Duration>, now: Tick) {
        let lapse = self.expected(pool, expected).unwrap_or(MAX_START) * 2;
        let row = self.rows.entry(pool).or_default();
        let first = row.asked.filter(|(_, last)| now.since(*last) <= lapse).map_or(now, |(first, _)| first);
        row.asked = Some((first, now));
    }

    /// A job is held for the pool, which has to start, or whose replicas have to
    /// wake.
    pub fn hold(&mut self, pool: PoolId, wakes: bool, now: Tick) {
        let row = self.rows.entry(pool).or_default();
        if row.held.is_none() {
            (row.held, row.wakes) = (Some(now), wakes);
            if !wakes {
                self.steps.push(StartStep::Wanted(pool));
            }
        }
    }

    /// A replica of the pool was told to wake.
    pub fn note_wake_order(&mut self, pool: PoolId, now: Tick) {
        self.rows.entry(pool).or_default().roused.get_or_insert(now);
    }

    /// It woke, so long after that.
    pub fn note_woken(&mut self, pool: PoolId, took: Duration) {
        let row = self.rows.entry(pool).or_default();
        (row.wake, row.roused) = (Some(smoothed(row.wake, took)), None);
    }

    /// How long replicas of the pool took to wake, the newer the heavier; `None`
    /// before the first.
    #[must_use]
    pub fn wake(&self, pool: PoolId) -> Option<Duration> {
        self.rows.get(&pool)?.wake
    }

    /// What is left of the time that a replica of the pool is expected to take
    /// until it is awake; zero when it is over, `None` when nothing is known.
    #[must_use]
    pub fn wake_left(&self, pool: PoolId, now: Tick) -> Option<Duration> {
        let row = self.rows.get(&pool)?;
        Some(row.wake?.saturating_sub(row.roused.map_or(Duration::ZERO, |at| now.since(at))))
    }

    /// Whether a job has been held for the pool since it has nothing in service,
    /// and no token has come yet.
    #[must_use]
    pub fn is_running(&self, pool: PoolId) -> bool {
        self.rows.get(&pool).is_some_and(|row| row.held.is_some())
    }

    /// The same of any pool.
    #[must_use]
    pub fn any(&self) -> bool {
        self.rows.values().any(|row| row.held.is_some())
    }

    /// Nobody waits for the pool any more. Says whether anybody did.
    pub fn give_up(&mut self, pool: PoolId) -> bool {
        self.rows.get_mut(&pool).and_then(|row| row.held.take()).is_some()
    }

    /// The pool's first token came, of a job that was sent there at `sent`. Says
    /// whether that ended a start.
    pub fn started(&mut self, pool: PoolId, sent: Tick, now: Tick) -> bool {
        let Some(row) = self.rows.get_mut(&pool) else { return false };
        let Some(held) = row.held.filter(|held| *held <= sent) else { return false };
        if row.wakes {
            row.held = None;
            return true;
        }
        if held == sent {
            return false;
        }
        let took = now.since(held).min(MAX_START);
        *row = PoolStart {
            measured: Some(smoothed(row.measured, took)),
            wake: row.wake,
            ..PoolStart::default()
        };
        self.steps.push(StartStep::Started(pool, took));
        true
    }

    /// Takes over how long starts took before a restart.
    pub fn restore(&mut self, pool: PoolId, took: Duration) {
        self.rows.entry(pool).or_default().measured.get_or_insert(took.min(MAX_START));
    }

    /// How long starts of the pool took, the newer the heavier; `None` before
    /// the first.
    #[must_use]
    pub fn measured(&self, pool: PoolId) -> Option<Duration> {
        self.rows.get(&pool)?.measured
    }

    /// What is left of the time that the pool's start is expected to take; zero
    /// when it is over, `None` when nothing is known.
    #[must_use]
    pub fn left(&self, pool: PoolId, expected: Option<Duration>, now: Tick) -> Option<Duration> {
        let whole = self.expected(pool, expected)?;
        let asked = self.rows.get(&pool).and_then(|row| row.asked);
        Some(whole.saturating_sub(asked.map_or(Duration::ZERO, |(first, _)| now.since(first))))
    }

    /// What has happened since this was last asked.
    pub fn steps(&mut self) -> Vec<StartStep> {
        std::mem::take(&mut self.steps)
    }

    /// Forgets pools that are gone.
    pub fn retain(&mut self, keep: impl Fn(PoolId) -> bool) {
        self.rows.retain(|pool, _| keep(*pool));
    }

    fn expected(&self, pool: PoolId, configured: Option<Duration>) -> Option<Duration> {
        self.measured(pool).or(configured)
    }
}

/// A mean in which the newest has a weight of its own.
fn smoothed(mean: Option<Duration>, took: Duration) -> Duration {
    mean.map_or(took, |mean| mean.mul_f64(1.0 - NEWEST) + took.mul_f64(NEWEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId::new(1);
    const EXPECTED: Option<Duration> = Some(Duration::from_secs(180));

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A start from the first held job to the first token.
    fn start(starts: &mut PoolStarts, from: u64, to: u64) -> bool {
        starts.ask(POOL, EXPECTED, at(from));
        starts.hold(POOL, false, at(from));
        starts.started(POOL, at(to), at(to))
    }

    #[test]
    fn what_is_left_of_a_start_shrinks_from_the_first_who_asks() {
        let mut starts = PoolStarts::default();
        assert_eq!(starts.left(POOL, None, at(0)), None, "nothing is known");
        assert_eq!(starts.left(POOL, EXPECTED, at(50)), Some(secs(180)), "nobody has asked");
        starts.ask(POOL, EXPECTED, at(100));
        starts.ask(POOL, EXPECTED, at(200));
        assert_eq!(starts.left(POOL, EXPECTED, at(220)), Some(secs(60)));
        starts.ask(POOL, EXPECTED, at(400));
        assert_eq!(starts.left(POOL, EXPECTED, at(400)), Some(secs(0)));
        starts.ask(POOL, EXPECTED, at(761));
        assert_eq!(starts.left(POOL, EXPECTED, at(761)), Some(secs(180)), "that was long ago");
    }

    #[test]
    fn starts_are_measured_smoothed_and_bounded() {
        let mut starts = PoolStarts::default();
        assert!(!starts.started(POOL, at(0), at(1)), "nobody was held");
        assert!(start(&mut starts, 0, 100));
        assert_eq!(starts.measured(POOL), Some(secs(100)));
        assert_eq!(starts.left(POOL, EXPECTED, at(100)), Some(secs(100)), "measured beats configured");
        start(&mut starts, 1_000, 1_200);
        assert_eq!(starts.measured(POOL), Some(secs(130)));
        start(&mut starts, 10_000, 100_000);
        assert_eq!(starts.measured(POOL), Some(secs(91 + 1080)), "an hour is the longest that counts");
        let steps = starts.steps();
        assert_eq!(steps[..2], [StartStep::Wanted(POOL), StartStep::Started(POOL, secs(100))]);
        assert_eq!((steps.len(), starts.steps()), (6, Vec::new()));
    }

    #[test]
    fn only_a_job_that_was_sent_since_and_was_waited_for_ends_a_start() {
        let mut starts = PoolStarts::default();
        starts.hold(POOL, false, at(10));
        assert!(!starts.started(POOL, at(9), at(20)), "it ran there before");
        assert!(starts.is_running(POOL));
        starts.give_up(POOL);
        assert!(!starts.started(POOL, at(30), at(31)));
        starts.hold(POOL, false, at(40));
        starts.hold(POOL, false, at(50));
        assert!(starts.started(POOL, at(60), at(61)));
        assert_eq!((starts.measured(POOL), starts.is_running(POOL)), (Some(secs(21)), false));
        starts.retain(|pool| pool != POOL);
        assert_eq!(starts.measured(POOL), None);
    }
}
