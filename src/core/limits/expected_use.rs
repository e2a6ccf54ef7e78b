//! Expected use of a job: the output, replica time and money to reserve, which nearly all jobs
//! like it stayed below.
//!
//! A mean would be passed by every second job, the asked maximum is rarely
//! used and would keep others out.

use crate::core::model::ids::{ClassId, ModelId, TenantId};
use crate::core::model::job::JobSpec;
use crate::core::model::number_map::NumberMap;
use crate::core::model::policy::Policy;

/// Of so many jobs, one may use more.
const ONE_IN: u32 = 20;
/// Jobs after which the own lengths are relied on.
const FEW: u32 = 20;
/// The shortest answer that the first ones are taken for, in tokens.
const USUAL: u64 = 256;
/// Jobs that are remembered; then each counts half.
const MEMORY: u32 = 512;
/// Buckets: two for each doubling.
const BUCKETS: usize = 96;

/// Output lengths of one kind of job, by size; or what else is reserved of it.
#[derive(Debug, Clone)]
struct SizeHistogram {
    counts: [u16; BUCKETS],
    total: u32,
}

impl Default for SizeHistogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

/// The bucket of a length: `2 log2`, the upper half of a doubling apart.
const fn bucket(length: u64) -> usize {
    if length < 2 {
        return 0;
    }
    let power = length.ilog2();
    let upper = (length >> (power - 1)) & 1;
    let bucket = (power as u64 * 2 + upper) as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The largest length in a bucket.
const fn upper_end(bucket: usize) -> u64 {
    if bucket < 2 {
        return 1;
    }
    let power = bucket / 2;
    if bucket.is_multiple_of(2) { (3 << (power - 1)) - 1 } else { (2 << power) - 1 }
}

impl SizeHistogram {
    fn add(&mut self, length: u64) {
        let count = &mut self.counts[bucket(length)];
        *count = count.saturating_add(1);
        self.total += 1;
        if self.total >= MEMORY {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
    }

    /// The length that at most one job in [`ONE_IN`] passes.
    fn most(&self) -> u64 {
        let mut above = self.total / ONE_IN;
        for (bucket, count) in self.counts.iter().enumerate().rev() {
            match above.checked_sub(u32::from(*count)) {
                Some(left) => above = left,
                None => return upper_end(bucket),
            }
        }
        0
    }

    /// A cautious guess from a few: the largest of them, the more often the fewer
    /// they are. Absent where there is none.
    fn guess(&self) -> Option<u64> {
        let largest = self.counts.iter().rposition(|count| *count > 0).map(upper_end)?;
        Some(largest.max(USUAL).saturating_mul(u64::from(1 + FEW / self.total.max(1))))
    }
}

/// What was learned of one unit, by model, tenant and class.
#[derive(Debug, Clone, Default)]
struct LearnedSizes {
    own: NumberMap<(ModelId, TenantId, ClassId), SizeHistogram>,
    models: NumberMap<ModelId, SizeHistogram>,
}

impl LearnedSizes {
    /// What at most one such job in [`ONE_IN`] passes: by its model, tenant and
    /// class once there are enough samples, else by its model.
    fn most(&self, spec: &JobSpec) -> Option<u64> {
        let own = self.own.get(&(spec.model, spec.tenant, spec.class));
        let known = [own, self.models.get(&spec.model)].into_iter().flatten().find(|kind| kind.total >= FEW);
        known.map(SizeHistogram::most)
    }

    fn learn(&mut self, spec: &JobSpec, amount: u64) {
        self.own.entry((spec.model, spec.tenant, spec.class)).or_default().add(amount);
        self.models.entry(spec.model).or_default().add(amount);
    }

    fn retain(&mut self, policy: &Policy) {
        self.models.retain(|model, _| policy.models.get(*model).is_some());
        self.own.retain(|(model, tenant, class), _| {
            policy.models.get(*model).is_some()
                && policy.tenants.get(*tenant).is_some()
                && policy.classes.get(*class).is_some()
        });
    }
}

/// What jobs used, by model, tenant and class.
#[derive(Debug, Clone, Default)]
pub struct ExpectedUse {
    output: LearnedSizes,
    gpu: LearnedSizes,
    money: LearnedSizes,
}

impl ExpectedUse {
    /// Output tokens to reserve for a job, over all its sequences; never more
    /// than it may generate. By its model, tenant and class once there are
    /// enough samples, else by its model, of which a few are enough for a
    /// cautious guess, else by what it asks for.
    #[must_use]
    pub fn output(&self, spec: &JobSpec) -> u64 {
        let guess = || self.output.models.get(&spec.model)?.guess();
        let each = self.output.most(spec).or_else(guess).unwrap_or(u64::MAX);
        each.saturating_mul(u64::from(spec.sequences)).min(spec.max_output_tokens)
    }

    /// Learns from a job's output.
    pub fn learn(&mut self, spec: &JobSpec, output: u64) {
        self.output.learn(spec, output / u64::from(spec.sequences.max(1)));
    }

    /// Nanoseconds of a replica's time to reserve for a job, and what they cost
    /// in 1e-9 of the currency; absent before enough such jobs were seen.
    #[must_use]
    pub fn spent(&self, spec: &JobSpec) -> (Option<u64>, Option<u64>) {
        (self.gpu.most(spec), self.money.most(spec))
    }

    /// Learns from what a job's stays at replicas came to.
    pub fn learn_spent(&mut self, spec: &JobSpec, (gpu, money): (Option<u64>, Option<u64>)) {
        gpu.into_iter().for_each(|gpu| self.gpu.learn(spec, gpu));
        money.into_iter().for_each(|money| self.money.learn(spec, money));
    }

    /// Forgets what is no longer in the policy.
    pub fn retain(&mut self, policy: &Policy) {
        [&mut self.output, &mut self.gpu, &mut self.money].into_iter().for_each(|kinds| kinds.retain(policy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_length() {
        for length in (0..5_000).chain([u64::MAX, 1 << 40]) {
            let bucket = bucket(length);
            assert!(length <= upper_end(bucket) || bucket == BUCKETS - 1, "{length}");
            assert!(bucket == 0 || length > upper_end(bucket - 1), "{length}");
        }
    }

    #[test]
    fn the_first_few_make_room_step_by_step() {
        let mut lengths = SizeHistogram::default();
        assert_eq!(lengths.guess(), None);
        let guesses: Vec<u64> = [1, 100, 500, 100, 100]
            .map(|length| {
                lengths.add(length);
                lengths.guess().unwrap_or_default()
            })
            .into();
        assert_eq!(guesses, [256 * 21, 256 * 11, 511 * 7, 511 * 6, 511 * 5]);
    }

    #[test]
    fn nearly_all_stay_below() {
        let mut lengths = SizeHistogram::default();
        (0..10_000_u64).for_each(|job| lengths.add(if job % 25 == 0 { 4_000 } else { 100 + job % 20 }));
        assert_eq!(lengths.most(), 127);
        (0..200).for_each(|_| lengths.add(4_000));
        assert_eq!(lengths.most(), 4_095, "what has become usual is learned");
    }
}
