//! Expected use of a job: the output, replica time and money to reserve.
//!
//! Nearly all similar jobs stayed below the reserved amount. A mean would be exceeded by every
//! second job. The requested maximum is rarely used, and would keep other jobs out.

use crate::model::ids::{ClassId, ModelId, TenantId};
use crate::model::job::JobSpec;
use crate::model::number_map::NumberMap;
use crate::model::policy::Policy;

/// One job in this many may exceed the expected amount.
const ONE_IN: u32 = 20;
/// Jobs of one kind after which their own amounts are relied on.
const MIN_SAMPLES: u32 = 20;
/// The least amount, in tokens, that a guess from the first few jobs assumes.
const MIN_GUESS: u64 = 256;
/// Samples in a histogram. At this number, all counts are halved.
const MEMORY: u32 = 512;
/// Buckets of a histogram: two for each doubling.
const BUCKETS: usize = 96;

/// Histogram of amounts of one kind of job: output lengths, replica time or cost.
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

/// The bucket of an amount: two times its binary logarithm, and one more for the upper half of a
/// doubling.
const fn bucket(length: u64) -> usize {
    if length < 2 {
        return 0;
    }
    let power = length.ilog2();
    let upper = (length >> (power - 1)) & 1;
    let bucket = (power as u64 * 2 + upper) as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The largest amount in a bucket.
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

    /// The amount that at most one job in [`ONE_IN`] exceeds.
    fn upper_quantile(&self) -> u64 {
        let mut above = self.total / ONE_IN;
        for (bucket, count) in self.counts.iter().enumerate().rev() {
            match above.checked_sub(u32::from(*count)) {
                Some(left) => above = left,
                None => return upper_end(bucket),
            }
        }
        0
    }

    /// A cautious guess from few samples: the largest of them, multiplied by a factor that falls as
    /// samples arrive. `None` without samples.
    fn guess(&self) -> Option<u64> {
        let largest = self.counts.iter().rposition(|count| *count > 0).map(upper_end)?;
        Some(largest.max(MIN_GUESS).saturating_mul(u64::from(1 + MIN_SAMPLES / self.total.max(1))))
    }
}

/// Learned amounts of one unit, by model, tenant and class.
#[derive(Debug, Clone, Default)]
struct LearnedSizes {
    own: NumberMap<(ModelId, TenantId, ClassId), SizeHistogram>,
    models: NumberMap<ModelId, SizeHistogram>,
}

impl LearnedSizes {
    /// The amount that at most one similar job in [`ONE_IN`] exceeds. Similar jobs share model,
    /// tenant and class once there are enough samples, and otherwise the model.
    fn upper_quantile(&self, spec: &JobSpec) -> Option<u64> {
        let own = self.own.get(&(spec.model, spec.tenant, spec.class));
        let known =
            [own, self.models.get(&spec.model)].into_iter().flatten().find(|kind| kind.total >= MIN_SAMPLES);
        known.map(SizeHistogram::upper_quantile)
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

/// Replica use of all attempts of a job; absent = not known, or counted by no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaUse {
    /// Nanoseconds of replica time.
    pub gpu: Option<u64>,
    /// Cost of that time, in 1e-9 of the currency.
    pub money: Option<u64>,
}

/// Amounts that jobs have used, by model, tenant and class.
#[derive(Debug, Clone, Default)]
pub struct ExpectedUse {
    output: LearnedSizes,
    gpu: LearnedSizes,
    money: LearnedSizes,
}

impl ExpectedUse {
    /// Output tokens to reserve for a job, over all its sequences; never more than the job may
    /// generate. The amount comes from jobs of the same model, tenant and class once there are
    /// enough samples, and otherwise from jobs of the model. A few samples of the model give a
    /// cautious guess. Without samples, the whole requested output is reserved.
    pub fn output(&self, spec: &JobSpec) -> u64 {
        let guess = || self.output.models.get(&spec.model)?.guess();
        let each = self.output.upper_quantile(spec).or_else(guess).unwrap_or(u64::MAX);
        each.saturating_mul(u64::from(spec.sequences)).min(spec.max_output_tokens)
    }

    /// Learns from the output of a job, in tokens over all its sequences.
    pub fn learn(&mut self, spec: &JobSpec, output: u64) {
        self.output.learn(spec, output / u64::from(spec.sequences.max(1)));
    }

    /// Replica time to reserve for a job, and its cost; not known before enough similar jobs have
    /// ended.
    pub fn replica_use(&self, spec: &JobSpec) -> ReplicaUse {
        ReplicaUse { gpu: self.gpu.upper_quantile(spec), money: self.money.upper_quantile(spec) }
    }

    /// Learns from the replica time, and its cost, of all attempts of a job.
    pub fn learn_replica_use(&mut self, spec: &JobSpec, used: ReplicaUse) {
        used.gpu.into_iter().for_each(|gpu| self.gpu.learn(spec, gpu));
        used.money.into_iter().for_each(|money| self.money.learn(spec, money));
    }

    /// Forgets models, tenants and classes that are no longer in the policy.
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
        assert_eq!(lengths.upper_quantile(), 127);
        (0..200).for_each(|_| lengths.add(4_000));
        assert_eq!(lengths.upper_quantile(), 4_095, "what has become usual is learned");
    }
}
