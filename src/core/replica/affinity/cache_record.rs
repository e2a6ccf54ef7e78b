//! Prefix-cache accuracy: hits that a replica reports, relative to hits that the index predicted.
//!
//! The ratio is near 1 where the predictions hold, and 0 where prefix caching is off. Below
//! `MIN_FOUND`, predictions for the replica are ignored until hits return. Above it they count in
//! full: a job that goes where its prompt was last keeps a small cache useful, even when the cache
//! often misses.
//!
//! Per-answer counts are exact; without them the engine's counter is used. A replica that reports
//! neither is trusted.

/// Weight of an answer in the ratio.
const NEWS: f64 = 1.0 / 16.0;
/// Ratio below which nothing counts as cached.
const MIN_FOUND: f64 = 0.125;
/// Fewest predicted tokens of a prompt that counts.
const MIN_TOKENS: u64 = 128;
/// Fewest prompts after which the counter counts.
const MIN_PROMPTS: u32 = 4;

/// Record of a replica's prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CacheRecord {
    /// Mean predicted tokens of an answer.
    predicted_cached: f64,
    /// Mean tokens of these that were found.
    found: f64,
    /// Whether any were found since nothing counted.
    has_found: bool,
    counter: HitCounter,
}

/// The engine's counter of cached tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct HitCounter {
    /// Latest count.
    latest: Option<u64>,
    /// Predicted tokens of the prompts that were sent since then, and their number.
    predicted_cached: u64,
    prompts: u32,
    /// Whether the replica's answers tell what was cached, so that the counter is not needed.
    is_idle: bool,
}

impl CacheRecord {
    /// Whether the replica finds prompts in its cache, as far as it is known.
    pub fn finds(&self) -> bool {
        self.found >= self.predicted_cached * MIN_FOUND
    }

    /// Whether the replica reports that it finds prompts in its cache.
    pub fn is_proven(&self) -> bool {
        self.has_found && self.finds()
    }

    /// Notes that a prompt was sent, with the number of its tokens that are predicted to be cached.
    pub fn expect(&mut self, predicted_cached: u64) {
        if predicted_cached >= MIN_TOKENS && !self.counter.is_idle {
            self.counter.predicted_cached = self.counter.predicted_cached.saturating_add(predicted_cached);
            self.counter.prompts = self.counter.prompts.saturating_add(1);
        }
    }

    /// Learns from an answer that tells how many tokens of its prompt were cached.
    pub fn learn(&mut self, predicted_cached: u64, cached: u64) {
        self.counter = HitCounter { is_idle: true, ..HitCounter::default() };
        if predicted_cached >= MIN_TOKENS {
            self.add(predicted_cached as f64, cached.min(predicted_cached) as f64, NEWS);
        }
    }

    /// Learns from the engine's counter of cached prompt tokens.
    pub fn learn_count(&mut self, count: u64) {
        let HitCounter { latest, predicted_cached, prompts, is_idle } = self.counter;
        let hits = latest.and_then(|latest| count.checked_sub(latest));
        if is_idle || (hits.is_some() && prompts < MIN_PROMPTS) {
            return;
        }
        self.counter = HitCounter { latest: Some(count), ..HitCounter::default() };
        if let Some(hits) = hits {
            let each = f64::from(prompts);
            let weight = 1.0 - (1.0 - NEWS).powf(each);
            self.add(predicted_cached as f64 / each, hits.min(predicted_cached) as f64 / each, weight);
        }
    }

    fn add(&mut self, predicted_cached: f64, found: f64, weight: f64) {
        if self.predicted_cached <= 0.0 {
            (self.predicted_cached, self.found) = (predicted_cached, predicted_cached);
        }
        self.predicted_cached += (predicted_cached - self.predicted_cached) * weight;
        self.found += (found - self.found) * weight;
        self.has_found = self.finds() && (self.has_found || found > 0.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    #[test]
    fn where_nothing_is_ever_found_nothing_counts_until_hits_show_again() {
        let mut record = CacheRecord::default();
        assert!(record.finds() && !record.is_proven());
        let answers = (0..100).take_while(|_| {
            record.learn(2_048, 0);
            assert!(!record.is_proven());
            record.finds()
        });
        assert_eq!(answers.count(), 32);
        (0..3).for_each(|_| record.learn(2_048, 2_040));
        assert!(record.is_proven(), "{record:?}");
    }

    #[test]
    fn a_cache_that_often_misses_counts_and_short_prompts_say_nothing() {
        let mut record = CacheRecord::default();
        for _ in 0..100 {
            record.learn(2_048, 0);
            record.learn(2_048, 0);
            record.learn(2_048, 3_000);
            record.learn(100, 0);
        }
        assert!(record.finds(), "{record:?}");
    }

    #[test]
    fn a_counter_tells_of_all_prompts_together_unless_answers_do() {
        let mut record = CacheRecord::default();
        let count = |record: &mut CacheRecord, hits: u64| {
            (0..8).for_each(|_| record.expect(2_000));
            let total = record.counter.latest.unwrap_or(0) + hits;
            record.learn_count(total);
            record.finds()
        };
        assert!(count(&mut record, 5), "the first count is a beginning");
        assert!(count(&mut record, 16_000));
        assert!([0, 0, 0].map(|hits| count(&mut record, hits)) == [true; 3]);
        assert!(!count(&mut record, 0) || !count(&mut record, 0));
        assert!(count(&mut record, 8_000));
        record.learn(2_000, 2_000);
        assert!((0..9).all(|_| count(&mut record, 0)), "its answers tell");
    }

    #[test]
    fn a_counter_that_starts_again_is_a_beginning() {
        let mut record = CacheRecord::default();
        for total in [1_000, 3, 2, 1, 0] {
            (0..8).for_each(|_| record.expect(2_000));
            record.learn_count(total);
            assert!(record.finds());
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_its_figures_stay_sound(
            reports in vec((0..u64::MAX, 0..u64::MAX), 0..60),
        ) {
            let mut record = CacheRecord::default();
            for (predicted_cached, cached) in reports {
                record.expect(predicted_cached);
                if cached % 3 == 0 {
                    record.learn_count(cached);
                } else {
                    record.learn(predicted_cached, cached);
                }
                prop_assert!((0.0..=record.predicted_cached).contains(&record.found), "{record:?}");
            }
        }
    }
}
