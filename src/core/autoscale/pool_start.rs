//! Pool starts: how long a pool without replicas takes from the first job that waits for it to
//! its first token.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::ids::PoolId;
use crate::model::time::Tick;

/// Longest start that counts; longer ones count as this.
pub const MAX_START: Duration = Duration::from_secs(3600);
/// Weight of the newest start in the expected time of the next one.
const NEWEST: f64 = 0.3;

/// Step of a pool start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStep {
    /// A job waits for a pool that has no replica in service.
    Wanted(PoolId),
    /// The first token came, this long after the first job began to wait.
    Started(PoolId, Duration),
}

/// When jobs wanted a pool.
#[derive(Debug, Clone, Copy)]
struct StartRequests {
    first: Tick,
    last: Tick,
}

/// Starts of one pool.
#[derive(Debug, Clone, Copy, Default)]
struct PoolStart {
    /// Jobs that wanted the pool since it has no replica in service, waiting or refused.
    asked: Option<StartRequests>,
    /// When the first job began to wait.
    waiting_since: Option<Tick>,
    /// True when the job waits until the pool's replicas wake.
    wakes: bool,
    measured: Option<Duration>,
    /// When a replica was first ordered to wake, while none has woken.
    wake_ordered_at: Option<Tick>,
    /// Mean time that replicas take to wake.
    wake: Option<Duration>,
}

/// Starts of all pools.
#[derive(Debug, Clone, Default)]
pub struct PoolStarts {
    rows: BTreeMap<PoolId, PoolStart>,
    steps: Vec<StartStep>,
    /// Sleeping pools that a job has asked for since the last [`Self::take_wake_wanted`].
    wake_wanted: BTreeSet<PoolId>,
}

impl PoolStarts {
    /// Notes that a job wants the pool, which has to start first. `expected` is the start time that
    /// the policy configures. A request after twice the expected time without any other may ask for
    /// another start.
    pub fn note_wanted(&mut self, pool: PoolId, expected: Option<Duration>, now: Tick) {
        let lapse = self.expected(pool, expected).unwrap_or(MAX_START) * 2;
        let row = self.rows.entry(pool).or_default();
        let recent = row.asked.filter(|asked| now.since(asked.last) <= lapse);
        row.asked = Some(StartRequests { first: recent.map_or(now, |asked| asked.first), last: now });
    }

    /// Notes that a job waits until the pool starts, or until its replicas wake.
    pub fn note_waiting(&mut self, pool: PoolId, wakes: bool, now: Tick) {
        let row = self.rows.entry(pool).or_default();
        if row.waiting_since.is_none() {
            (row.waiting_since, row.wakes) = (Some(now), wakes);
            if !wakes {
                self.steps.push(StartStep::Wanted(pool));
            }
        }
    }

    /// Notes that a job wants the pool, whose replicas sleep.
    pub fn note_wake_wanted(&mut self, pool: PoolId) {
        self.wake_wanted.insert(pool);
    }

    /// Takes the sleeping pools that jobs wanted since the last call.
    pub fn take_wake_wanted(&mut self) -> BTreeSet<PoolId> {
        std::mem::take(&mut self.wake_wanted)
    }

    /// Notes that a replica of the pool was ordered to wake.
    pub fn note_wake_order(&mut self, pool: PoolId, now: Tick) {
        self.rows.entry(pool).or_default().wake_ordered_at.get_or_insert(now);
    }

    /// Notes that a replica of the pool woke, `took` after the order.
    pub fn note_woken(&mut self, pool: PoolId, took: Duration) {
        let row = self.rows.entry(pool).or_default();
        (row.wake, row.wake_ordered_at) = (Some(smoothed(row.wake, took)), None);
    }

    /// Mean time that replicas of the pool took to wake, newer wakes weighing more; `None` before
    /// the first.
    pub fn wake(&self, pool: PoolId) -> Option<Duration> {
        self.rows.get(&pool)?.wake
    }

    /// Remaining time until a replica of the pool is expected to be awake; zero when overdue,
    /// `None` when no wake was measured.
    pub fn wake_left(&self, pool: PoolId, now: Tick) -> Option<Duration> {
        let row = self.rows.get(&pool)?;
        Some(row.wake?.saturating_sub(row.wake_ordered_at.map_or(Duration::ZERO, |at| now.since(at))))
    }

    /// Whether a job has waited for the pool since it has no replica in service, and no token
    /// has come yet.
    pub fn is_running(&self, pool: PoolId) -> bool {
        self.rows.get(&pool).is_some_and(|row| row.waiting_since.is_some())
    }

    /// Whether a job waits for any pool that starts.
    pub fn is_any_running(&self) -> bool {
        self.rows.values().any(|row| row.waiting_since.is_some())
    }

    /// Ends the pool's start without a result, because no job waits for the pool any more. Returns
    /// whether a start was running.
    pub fn give_up(&mut self, pool: PoolId) -> bool {
        self.rows.get_mut(&pool).and_then(|row| row.waiting_since.take()).is_some()
    }

    /// Notes the pool's first token, of a job that was dispatched at `sent`. Returns whether the
    /// token ended a start.
    pub fn note_first_token(&mut self, pool: PoolId, sent: Tick, now: Tick) -> bool {
        let Some(row) = self.rows.get_mut(&pool) else { return false };
        let Some(since) = row.waiting_since.filter(|since| *since <= sent) else { return false };
        if row.wakes {
            row.waiting_since = None;
            return true;
        }
        if since == sent {
            return false;
        }
        let took = now.since(since).min(MAX_START);
        *row = PoolStart {
            measured: Some(smoothed(row.measured, took)),
            wake: row.wake,
            ..PoolStart::default()
        };
        self.steps.push(StartStep::Started(pool, took));
        true
    }

    /// Restores the start time that was measured before a restart.
    pub fn restore(&mut self, pool: PoolId, took: Duration) {
        self.rows.entry(pool).or_default().measured.get_or_insert(took.min(MAX_START));
    }

    /// Mean time that starts of the pool took, newer starts weighing more; `None` before the first.
    pub fn measured(&self, pool: PoolId) -> Option<Duration> {
        self.rows.get(&pool)?.measured
    }

    /// Remaining time of the pool's start; zero when overdue, `None` when no start time is known.
    pub fn start_left(&self, pool: PoolId, expected: Option<Duration>, now: Tick) -> Option<Duration> {
        let whole = self.expected(pool, expected)?;
        let asked = self.rows.get(&pool).and_then(|row| row.asked);
        Some(whole.saturating_sub(asked.map_or(Duration::ZERO, |asked| now.since(asked.first))))
    }

    /// Takes the steps since the last call.
    pub fn take_steps(&mut self) -> Vec<StartStep> {
        std::mem::take(&mut self.steps)
    }

    /// Forgets pools for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(PoolId) -> bool) {
        self.rows.retain(|pool, _| keep(*pool));
    }

    fn expected(&self, pool: PoolId, configured: Option<Duration>) -> Option<Duration> {
        self.measured(pool).or(configured)
    }
}

/// Exponential mean with weight [`NEWEST`] for the newest value.
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

    /// A start from the first waiting job to the first token.
    fn start(starts: &mut PoolStarts, from: u64, to: u64) -> bool {
        starts.note_wanted(POOL, EXPECTED, at(from));
        starts.note_waiting(POOL, false, at(from));
        starts.note_first_token(POOL, at(to), at(to))
    }

    #[test]
    fn what_is_left_of_a_start_shrinks_from_the_first_who_asks() {
        let mut starts = PoolStarts::default();
        assert_eq!(starts.start_left(POOL, None, at(0)), None, "nothing is known");
        assert_eq!(starts.start_left(POOL, EXPECTED, at(50)), Some(secs(180)), "nobody has asked");
        starts.note_wanted(POOL, EXPECTED, at(100));
        starts.note_wanted(POOL, EXPECTED, at(200));
        assert_eq!(starts.start_left(POOL, EXPECTED, at(220)), Some(secs(60)));
        starts.note_wanted(POOL, EXPECTED, at(400));
        assert_eq!(starts.start_left(POOL, EXPECTED, at(400)), Some(secs(0)));
        starts.note_wanted(POOL, EXPECTED, at(761));
        assert_eq!(starts.start_left(POOL, EXPECTED, at(761)), Some(secs(180)), "that was long ago");
    }

    #[test]
    fn starts_are_measured_smoothed_and_bounded() {
        let mut starts = PoolStarts::default();
        assert!(!starts.note_first_token(POOL, at(0), at(1)), "nobody waited");
        assert!(start(&mut starts, 0, 100));
        assert_eq!(starts.measured(POOL), Some(secs(100)));
        assert_eq!(starts.start_left(POOL, EXPECTED, at(100)), Some(secs(100)), "measured beats configured");
        start(&mut starts, 1_000, 1_200);
        assert_eq!(starts.measured(POOL), Some(secs(130)));
        start(&mut starts, 10_000, 100_000);
        assert_eq!(starts.measured(POOL), Some(secs(91 + 1080)), "an hour is the longest that counts");
        let steps = starts.take_steps();
        assert_eq!(steps[..2], [StartStep::Wanted(POOL), StartStep::Started(POOL, secs(100))]);
        assert_eq!((steps.len(), starts.take_steps()), (6, Vec::new()));
    }

    #[test]
    fn only_a_job_that_was_sent_since_and_was_waited_for_ends_a_start() {
        let mut starts = PoolStarts::default();
        starts.note_waiting(POOL, false, at(10));
        assert!(!starts.note_first_token(POOL, at(9), at(20)), "it ran there before");
        assert!(starts.is_running(POOL));
        starts.give_up(POOL);
        assert!(!starts.note_first_token(POOL, at(30), at(31)));
        starts.note_waiting(POOL, false, at(40));
        starts.note_waiting(POOL, false, at(50));
        assert!(starts.note_first_token(POOL, at(60), at(61)));
        assert_eq!((starts.measured(POOL), starts.is_running(POOL)), (Some(secs(21)), false));
        starts.retain(|pool| pool != POOL);
        assert_eq!(starts.measured(POOL), None);
    }
}
