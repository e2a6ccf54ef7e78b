//! Output lengths: expected output tokens, learned from finished jobs.

use crate::model::averages::RunningMean;
use crate::model::ids::{ClassId, ModelId, TenantId};
use crate::model::job::{JobSpec, JobUsage};
use crate::model::number_map::NumberMap;
use crate::model::policy::Policy;

/// Expected output tokens of one sequence before anything is known.
pub const START_OUTPUT: u64 = 256;
/// Finished jobs of a tenant, model and class after which their own mean replaces the model's mean.
const OWN_SAMPLES: u32 = 4;
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
}
