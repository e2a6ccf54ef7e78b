//! Estimates learned from finished jobs and dispatches: output lengths and the drain rate.

use std::time::Duration;

use crate::model::ids::{ClassId, ModelId, TenantId};
use crate::model::job::{JobSpec, JobUsage};
use crate::model::number_map::NumberMap;
use crate::model::policy::Policy;
use crate::model::time::Tick;

/// Expected output tokens of one sequence before anything is known.
pub const START_OUTPUT: u64 = 256;
/// Finished jobs of a tenant, model and class after which their own mean replaces the model's mean.
const OWN_SAMPLES: u32 = 4;
/// Weight of the newest sample once the mean has settled.
const NEWEST: f64 = 0.1;
/// Dispatches of waiting jobs before their rate is relied on.
pub const FEW_DRAINED: u32 = 5;
/// Time constant of rates, in seconds.
const MEMORY: f64 = 30.0;

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

/// Learned output tokens per sequence.
#[derive(Debug, Clone, Default)]
pub struct OutputLengths {
    own: NumberMap<(ModelId, TenantId, ClassId), RunningMean>,
    models: NumberMap<ModelId, RunningMean>,
}

impl OutputLengths {
    /// Expected output tokens of a job, over all its sequences. The mean of its model, tenant and
    /// class counts once there are a few samples, else the mean of its model, else
    /// [`START_OUTPUT`]. The result is never more than the job may generate.
    #[must_use]
    pub fn expected(&self, spec: &JobSpec) -> u64 {
        let own = self.own.get(&(spec.model, spec.tenant, spec.class));
        let known = own.filter(|mean| mean.samples >= OWN_SAMPLES).or_else(|| self.models.get(&spec.model));
        let each = known.map_or(START_OUTPUT, |mean| mean.value.ceil() as u64).max(1);
        each.saturating_mul(u64::from(spec.sequences)).min(spec.max_output_tokens)
    }

    /// Learns from a finished job. Only an exact count is learned: a lower bound would pull the
    /// mean down.
    pub fn learn(&mut self, spec: &JobSpec, usage: JobUsage) {
        let JobUsage::Exact(tokens) = usage else { return };
        if spec.max_output_tokens == 0 {
            return;
        }
        let each = tokens.output as f64 / f64::from(spec.sequences.max(1));
        self.own.entry((spec.model, spec.tenant, spec.class)).or_default().add(each);
        self.models.entry(spec.model).or_default().add(each);
    }

    /// Forgets models, tenants and classes that are no longer in the policy.
    pub fn retain(&mut self, policy: &Policy) {
        self.models.retain(|model, _| policy.models.get(*model).is_some());
        self.own.retain(|(model, tenant, class), _| {
            policy.models.get(*model).is_some()
                && policy.tenants.get(*tenant).is_some()
                && policy.classes.get(*class).is_some()
        });
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
    /// Counts `events` events; a negative number takes back earlier ones.
    pub fn add(&mut self, now: Tick, events: f64) {
        self.sum = (self.sum_at(now) + events).max(0.0);
        self.last = now;
        self.first.get_or_insert(now);
    }

    /// The rate; `None` before the first event. The sum is divided by the part of the memory that
    /// has passed since the first event, at least one second. The rate is therefore right from the
    /// start.
    #[must_use]
    pub fn per_second(&self, now: Tick) -> Option<f64> {
        let lived = now.since(self.first?).as_secs_f64().max(1.0);
        Some(self.sum_at(now) / (MEMORY * (1.0 - decay(lived))))
    }

    fn sum_at(&self, now: Tick) -> f64 {
        self.sum * decay(now.since(self.last).as_secs_f64())
    }
}

/// Drain rate: jobs per second that leave a queue for a replica while some jobs wait.
///
/// The clock of the rate has an exponential memory of 30 s and stops while nothing waits. The full
/// speed of the replicas is therefore not forgotten while there is little to do. Until one second
/// of waiting has been seen, the rate of all dispatches stands in for the rest of that second. The
/// drain rate is never less than the rate of all dispatches: a queue that stops behind one long job
/// is not stuck for ever.
#[derive(Debug, Clone, Copy)]
pub struct DrainRate {
    /// Time constant in seconds of the memory of times in which jobs waited.
    memory: f64,
    all: EventRate,
    drained: f64,
    /// Seconds of waiting within the memory.
    waited: f64,
    /// Dispatches of waiting jobs that did not come back, since the start.
    dispatches: u32,
    waiting: bool,
    last: Tick,
}

impl Default for DrainRate {
    fn default() -> Self {
        Self::with_memory(MEMORY)
    }
}

impl DrainRate {
    /// A rate whose memory of waiting times has the time constant `memory`, in seconds.
    #[must_use]
    pub const fn with_memory(memory: f64) -> Self {
        let all = EventRate { sum: 0.0, last: Tick::ZERO, first: None };
        Self { memory, all, drained: 0.0, waited: 0.0, dispatches: 0, waiting: false, last: Tick::ZERO }
    }

    /// Notes whether any job waits from now on.
    pub fn set_waiting(&mut self, now: Tick, waiting: bool) {
        *self = Self { waiting, ..self.at(now) };
    }

    /// Counts one job that left the queue for a replica.
    pub fn add_dispatch(&mut self, now: Tick) {
        self.add(now, 1.0);
    }

    /// Takes back a dispatch whose replica failed the job: nothing was drained. Otherwise replicas
    /// that are down would look fast.
    pub fn undo_dispatch(&mut self, now: Tick) {
        self.add(now, -1.0);
    }

    /// Drain rate in jobs per second; `None` before the first dispatch.
    #[must_use]
    pub fn per_second(&self, now: Tick) -> Option<f64> {
        let here = self.at(now);
        let all = here.all.per_second(now)?;
        let drained = (here.drained + all * (1.0 - here.waited).max(0.0)) / here.waited.max(1.0);
        Some(drained.max(all))
    }

    /// Jobs per second while some waited, without any stand-in; `None` before [`FEW_DRAINED`]
    /// dispatches, and once all of them are forgotten.
    #[must_use]
    pub fn while_waiting(&self, now: Tick) -> Option<f64> {
        let here = self.at(now);
        let rate = here.drained / here.waited;
        (here.dispatches >= FEW_DRAINED && rate.is_finite()).then_some(rate)
    }

    /// Dispatches of waiting jobs that did not come back, since the start.
    #[must_use]
    pub const fn dispatches(&self) -> u32 {
        self.dispatches
    }

    /// The remembered time in which jobs waited.
    #[must_use]
    pub fn waited(&self, now: Tick) -> Duration {
        Duration::from_secs_f64(self.at(now).waited)
    }

    /// The same rate with its clock stopped.
    #[must_use]
    pub const fn stopped(self) -> Self {
        Self { waiting: false, ..self }
    }

    /// Only a dispatch of a waiting job drains the queue. A dispatch while nothing waits shows the
    /// demand on the replicas, not their capacity.
    fn add(&mut self, now: Tick, jobs: f64) {
        *self = self.at(now);
        self.all.add(now, jobs);
        if self.waiting {
            self.drained = (self.drained + jobs).max(0.0);
            self.dispatches = if jobs > 0.0 {
                self.dispatches.saturating_add(1)
            } else {
                self.dispatches.saturating_sub(1)
            };
        }
    }

    fn at(self, now: Tick) -> Self {
        let last = self.last.max(now);
        if !self.waiting {
            return Self { last, ..self };
        }
        let kept = (-now.since(self.last).as_secs_f64() / self.memory).exp();
        let waited = self.waited * kept + self.memory * (1.0 - kept);
        Self { drained: self.drained * kept, waited, last, ..self }
    }
}

/// The part of a memory that is left after `seconds`.
fn decay(seconds: f64) -> f64 {
    (-seconds / MEMORY).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::job::TokenCounts;

    fn spec(tenant: u32, max_output_tokens: u64, sequences: u32) -> JobSpec {
        JobSpec { tenant: TenantId::new(tenant), max_output_tokens, sequences, ..JobSpec::example(1) }
    }

    fn exact(output: u64) -> JobUsage {
        JobUsage::Exact(TokenCounts { input: 10, cached: None, output })
    }

    #[test]
    fn starts_with_a_guess_within_the_allowance() {
        let lengths = OutputLengths::default();
        assert_eq!(lengths.expected(&spec(0, 10_000, 1)), 256);
        assert_eq!(lengths.expected(&spec(0, 100, 1)), 100);
        assert_eq!(lengths.expected(&spec(0, 10_000, 4)), 1024);
        assert_eq!(lengths.expected(&spec(0, 0, 1)), 0);
    }

    #[test]
    fn learns_the_model_first_and_the_tenant_later() {
        let mut lengths = OutputLengths::default();
        lengths.learn(&spec(0, 1000, 1), exact(40));
        assert_eq!(lengths.expected(&spec(0, 1000, 1)), 40);
        assert_eq!(lengths.expected(&spec(7, 1000, 2)), 80, "another tenant gets the model's mean");
        for _ in 0..10 {
            lengths.learn(&spec(7, 1000, 2), exact(400));
        }
        assert_eq!(lengths.expected(&spec(7, 1000, 1)), 200, "its own mean, per sequence");
    }

    #[test]
    fn lower_bounds_and_unknowns_teach_nothing() {
        let mut lengths = OutputLengths::default();
        lengths.learn(&spec(0, 1000, 1), JobUsage::Unknown);
        lengths
            .learn(&spec(0, 1000, 1), JobUsage::Partial(TokenCounts { input: 1, cached: None, output: 1 }));
        assert_eq!(lengths.expected(&spec(0, 1000, 1)), 256);
    }

    #[test]
    fn drain_rate_is_right_early_and_late_and_fades() {
        let mut rate = DrainRate::default();
        assert_eq!(rate.per_second(Tick::ZERO), None);
        for step in 0..1000u64 {
            rate.add_dispatch(Tick::from_millis(step * 100));
            if step == 50 || step == 999 {
                let found = rate.per_second(Tick::from_millis(step * 100)).unwrap_or(0.0);
                assert!((9.0..11.5).contains(&found), "{found} at step {step}");
            }
        }
        assert!(rate.per_second(Tick::from_millis(400_000)).unwrap_or(9.9) < 0.01);
    }

    /// Jobs wait all the time and one goes every 100 ms.
    fn ten_a_second(rate: &mut DrainRate, from: u64, count: u64) -> u64 {
        rate.set_waiting(Tick::from_millis(from), true);
        (1..=count).for_each(|step| rate.add_dispatch(Tick::from_millis(from + step * 100)));
        from + count * 100
    }

    fn found(rate: &DrainRate, millis: u64) -> f64 {
        rate.per_second(Tick::from_millis(millis)).unwrap_or(f64::NAN)
    }

    #[test]
    fn drain_rate_is_right_early_in_the_first_wait() {
        let mut rate = DrainRate::default();
        for millis in [700, 5_000, 60_000] {
            let end = ten_a_second(&mut rate, 0, millis / 100);
            assert!((9.0..11.5).contains(&found(&rate, end)), "{} at {end}", found(&rate, end));
            rate = DrainRate::default();
        }
    }

    #[test]
    fn drain_rate_is_right_after_idle_and_quiet_times() {
        let mut rate = DrainRate::default();
        let mut now = ten_a_second(&mut rate, 0, 300);
        for idle in [1_000, 20_000, 3_600_000] {
            rate.set_waiting(Tick::from_millis(now), false);
            assert!((9.5..10.5).contains(&found(&rate, now + idle)), "{}", found(&rate, now + idle));
            now = ten_a_second(&mut rate, now + idle, 2);
            assert!((9.5..10.5).contains(&found(&rate, now)), "{}", found(&rate, now));
        }
        rate.set_waiting(Tick::from_millis(now), false);
        (0..600).for_each(|second| rate.add_dispatch(Tick::from_millis(now + second * 1000)));
        let quiet = found(&rate, now + 600_000);
        assert!((9.5..10.5).contains(&quiet), "one a second was all that was asked for: {quiet}");
    }

    #[test]
    fn drain_rate_fades_while_somebody_waits_in_vain() {
        let mut rate = DrainRate::default();
        let now = ten_a_second(&mut rate, 0, 300);
        let half_in_vain = found(&rate, now + 30_000);
        assert!((2.6..2.8).contains(&half_in_vain), "10 / (e + 1): {half_in_vain}");
        assert!(found(&rate, now + 300_000) < 0.01);
    }

    #[test]
    fn drain_rate_takes_short_waits_for_what_they_are() {
        let mut rate = DrainRate::default();
        for second in 0..200 {
            rate.set_waiting(Tick::from_millis(second * 1000), true);
            rate.add_dispatch(Tick::from_millis(second * 1000 + 50));
            rate.set_waiting(Tick::from_millis(second * 1000 + 50), false);
        }
        let each_waits_50_ms = found(&rate, 200_000);
        assert!((19.0..21.0).contains(&each_waits_50_ms), "{each_waits_50_ms}");
    }

    #[test]
    fn the_rate_while_waiting_leaves_out_what_did_not_wait() {
        let mut rate = DrainRate::default();
        (0..100).for_each(|second| rate.add_dispatch(Tick::from_millis(second * 1000)));
        assert_eq!(rate.while_waiting(Tick::from_millis(100_000)), None, "nobody ever waited");
        let now = ten_a_second(&mut rate, 100_000, 4);
        assert_eq!(rate.while_waiting(Tick::from_millis(now)), None, "too few were seen");
        let now = ten_a_second(&mut rate, now, 1);
        let ten = rate.while_waiting(Tick::from_millis(now)).unwrap();
        assert!((9.9..10.2).contains(&ten), "{ten}");
        rate = rate.stopped();
        assert_eq!(rate.while_waiting(Tick::from_millis(now + 60_000)), Some(ten));
    }

    #[test]
    fn what_comes_back_was_not_drained() {
        let mut rate = DrainRate::default();
        for step in 0..1000u64 {
            rate.add_dispatch(Tick::from_millis(step * 10));
            rate.undo_dispatch(Tick::from_millis(step * 10 + 3));
        }
        assert!(rate.per_second(Tick::from_millis(10_000)).unwrap_or(9.9) < 0.01);
    }
}
