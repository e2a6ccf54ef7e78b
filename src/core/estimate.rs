//! What is learned from finished work: output lengths and the drain rate.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::ids::{ClassId, ModelId, TenantId};
use crate::core::job::{JobSpec, Usage};
use crate::core::policy::Policy;
use crate::core::time::Tick;

/// Output tokens of one sequence that are expected before anything is known.
pub const START_OUTPUT: u64 = 256;
/// Finished jobs of a tenant, model and class after which their own mean is
/// used in place of the model's.
const OWN_SAMPLES: u32 = 4;
/// Weight of the newest sample once the mean has settled.
const NEWEST: f64 = 0.1;
/// Time constant of the drain rate.
const DRAIN_MEMORY: Duration = Duration::from_secs(30);

/// A plain mean of the first samples, an exponential one later.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    value: f64,
    samples: u32,
}

impl Mean {
    fn add(&mut self, sample: f64) {
        self.samples = self.samples.saturating_add(1);
        self.value += (sample - self.value) * (1.0 / f64::from(self.samples)).max(NEWEST);
    }
}

/// Learned output tokens per sequence.
#[derive(Debug, Clone, Default)]
pub struct OutputLengths {
    own: BTreeMap<(ModelId, TenantId, ClassId), Mean>,
    models: BTreeMap<ModelId, Mean>,
}

impl OutputLengths {
    /// Output tokens to expect of a job, over all its sequences: the mean of
    /// its model, tenant and class once there are a few samples, else the mean
    /// of its model, else [`START_OUTPUT`]; never more than it may generate.
    #[must_use]
    pub fn expect(&self, spec: &JobSpec) -> u64 {
        let own = self.own.get(&(spec.model, spec.tenant, spec.class));
        let known = own.filter(|mean| mean.samples >= OWN_SAMPLES).or_else(|| self.models.get(&spec.model));
        let each = known.map_or(START_OUTPUT, |mean| mean.value.ceil() as u64).max(1);
        each.saturating_mul(u64::from(spec.sequences)).min(spec.max_output_tokens)
    }

    /// Learns from a finished job. Only an exact count teaches: a lower bound
    /// would pull the mean down.
    pub fn learn(&mut self, spec: &JobSpec, usage: Usage) {
        let Usage::Exact(tokens) = usage else { return };
        if spec.max_output_tokens == 0 {
            return;
        }
        let each = tokens.output as f64 / f64::from(spec.sequences.max(1));
        self.own.entry((spec.model, spec.tenant, spec.class)).or_default().add(each);
        self.models.entry(spec.model).or_default().add(each);
    }

    /// Forgets what is no longer in the policy.
    pub fn retain(&mut self, policy: &Policy) {
        self.models.retain(|model, _| policy.models.get(*model).is_some());
        self.own.retain(|(model, tenant, class), _| {
            policy.models.get(*model).is_some()
                && policy.tenants.get(*tenant).is_some()
                && policy.classes.get(*class).is_some()
        });
    }
}

/// Dispatched jobs per second, with an exponential memory of 30 s.
#[derive(Debug, Clone, Copy, Default)]
pub struct DrainRate {
    sum: f64,
    last: Tick,
    first: Option<Tick>,
}

impl DrainRate {
    /// One job left the queue for a replica.
    pub fn note(&mut self, now: Tick) {
        self.sum = self.sum_at(now) + 1.0;
        self.last = now;
        self.first.get_or_insert(now);
    }

    /// A job that was noted came back: its replica failed it, so nothing was
    /// drained. Otherwise replicas that are down would look like fast ones.
    pub fn take_back(&mut self, now: Tick) {
        self.sum = (self.sum_at(now) - 1.0).max(0.0);
        self.last = now;
    }

    /// Jobs per second; `None` before anything was dispatched. The sum is
    /// divided by the part of the memory that has been lived through, at least
    /// one second, so that the rate is right from the start.
    #[must_use]
    pub fn per_second(&self, now: Tick) -> Option<f64> {
        let memory = DRAIN_MEMORY.as_secs_f64();
        let lived = now.since(self.first?).as_secs_f64().max(1.0);
        Some(self.sum_at(now) / (memory * (1.0 - (-lived / memory).exp())))
    }

    fn sum_at(&self, now: Tick) -> f64 {
        self.sum * (-now.since(self.last).as_secs_f64() / DRAIN_MEMORY.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::JobId;
    use crate::core::job::Tokens;

    fn spec(tenant: u32, max_output_tokens: u64, sequences: u32) -> JobSpec {
        JobSpec {
            id: JobId::new(1),
            tenant: TenantId::new(tenant),
            class: ClassId::new(0),
            model: ModelId::new(0),
            prompt_tokens: 10,
            max_output_tokens,
            sequences,
            bytes: 10,
            deadline: Tick::NEVER,
        }
    }

    fn exact(output: u64) -> Usage {
        Usage::Exact(Tokens { input: 10, cached: 0, output })
    }

    #[test]
    fn starts_with_a_guess_within_the_allowance() {
        let lengths = OutputLengths::default();
        assert_eq!(lengths.expect(&spec(0, 10_000, 1)), 256);
        assert_eq!(lengths.expect(&spec(0, 100, 1)), 100);
        assert_eq!(lengths.expect(&spec(0, 10_000, 4)), 1024);
        assert_eq!(lengths.expect(&spec(0, 0, 1)), 0);
    }

    #[test]
    fn learns_the_model_first_and_the_tenant_later() {
        let mut lengths = OutputLengths::default();
        lengths.learn(&spec(0, 1000, 1), exact(40));
        assert_eq!(lengths.expect(&spec(0, 1000, 1)), 40);
        assert_eq!(lengths.expect(&spec(7, 1000, 2)), 80, "another tenant gets the model's mean");
        for _ in 0..10 {
            lengths.learn(&spec(7, 1000, 2), exact(400));
        }
        assert_eq!(lengths.expect(&spec(7, 1000, 1)), 200, "its own mean, per sequence");
    }

    #[test]
    fn lower_bounds_and_unknowns_teach_nothing() {
        let mut lengths = OutputLengths::default();
        lengths.learn(&spec(0, 1000, 1), Usage::Unknown);
        lengths.learn(&spec(0, 1000, 1), Usage::Partial(Tokens { input: 1, cached: 0, output: 1 }));
        assert_eq!(lengths.expect(&spec(0, 1000, 1)), 256);
    }

    #[test]
    fn drain_rate_is_right_early_and_late_and_fades() {
        let mut rate = DrainRate::default();
        assert_eq!(rate.per_second(Tick::ZERO), None);
        for step in 0..1000u64 {
            rate.note(Tick::from_millis(step * 100));
            if step == 50 || step == 999 {
                let found = rate.per_second(Tick::from_millis(step * 100)).unwrap_or(0.0);
                assert!((9.0..11.5).contains(&found), "{found} at step {step}");
            }
        }
        assert!(rate.per_second(Tick::from_millis(400_000)).unwrap_or(9.9) < 0.01);
    }

    #[test]
    fn what_comes_back_was_not_drained() {
        let mut rate = DrainRate::default();
        for step in 0..1000u64 {
            rate.note(Tick::from_millis(step * 10));
            rate.take_back(Tick::from_millis(step * 10 + 3));
        }
        assert!(rate.per_second(Tick::from_millis(10_000)).unwrap_or(9.9) < 0.01);
    }
}
