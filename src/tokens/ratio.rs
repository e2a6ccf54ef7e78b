//! Estimate ratios: the error of estimates, learned from engines' counts for each model and
//! tenant, since languages and templates differ.

use dashmap::DashMap;

/// The most pairs of model and tenant that are kept. Estimates of other pairs stay unchanged.
const MAX_PAIRS: usize = 4096;
/// The number of later counts after which a count weighs half as much.
const HALF_LIFE: f64 = 50.0;
/// The range of a ratio. An engine may count other things than text, so a count far outside this
/// range is ignored.
const RANGE: (f64, f64) = (0.25, 4.0);

/// Model and tenant that have a ratio of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenRatioKey {
    /// Number of the model.
    pub model: u32,
    /// Number of the tenant.
    pub tenant: u32,
}

/// The ratios of counted to estimated tokens, one for each pair of model and tenant.
#[derive(Debug, Default)]
pub struct TokenRatios {
    known: DashMap<TokenRatioKey, TokenRatio>,
}

/// Decaying sums of tokens: long prompts weigh more, old prompts weigh less.
#[derive(Debug, Clone, Copy, Default)]
struct TokenRatio {
    counted: f64,
    estimated: f64,
}

impl TokenRatio {
    fn factor(self) -> f64 {
        // A prior of 50 tokens on both sides, so that the first prompt does not decide alone.
        let doubt = 50.0;
        ((self.counted + doubt) / (self.estimated + doubt)).clamp(RANGE.0, RANGE.1)
    }

    fn learn(&mut self, estimated: u64, counted: u64) {
        let keep = 0.5_f64.powf(1.0 / HALF_LIFE);
        self.counted = self.counted * keep + counted as f64;
        self.estimated = self.estimated * keep + estimated as f64;
    }
}

impl TokenRatios {
    /// The estimate, corrected by the ratio of the key. At least 1, unless the estimate is 0.
    pub fn apply(&self, key: TokenRatioKey, estimated: u64) -> u64 {
        let ratio = self.known.get(&key).map_or(1.0, |ratio| ratio.factor());
        ((estimated as f64 * ratio).round() as u64).max(estimated.min(1))
    }

    /// Learns from an engine's count of a prompt. `estimated` is the estimate before any ratio.
    pub fn learn(&self, key: TokenRatioKey, estimated: u64, counted: u64) {
        if estimated == 0 || counted == 0 {
            return;
        }
        let ratio = counted as f64 / estimated as f64;
        if !(RANGE.0 / 2.0..=RANGE.1 * 2.0).contains(&ratio) {
            return;
        }
        if self.known.len() < MAX_PAIRS || self.known.contains_key(&key) {
            self.known.entry(key).or_default().learn(estimated, counted);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: TokenRatioKey = TokenRatioKey { model: 1, tenant: 1 };

    #[test]
    fn it_learns_and_forgets() {
        let ratios = TokenRatios::default();
        assert_eq!(ratios.apply(KEY, 100), 100);
        for _ in 0..20 {
            ratios.learn(KEY, 1000, 1500);
        }
        assert!((148..=150).contains(&ratios.apply(KEY, 100)));
        assert_eq!(
            ratios.apply(TokenRatioKey { tenant: 2, ..KEY }, 100),
            100,
            "another tenant's texts are others"
        );
        for _ in 0..400 {
            ratios.learn(KEY, 1000, 800);
        }
        assert!((80..=82).contains(&ratios.apply(KEY, 100)));
        assert_eq!((ratios.apply(KEY, 0), ratios.apply(KEY, 1)), (0, 1));
    }

    #[test]
    fn what_is_far_off_says_nothing() {
        let ratios = TokenRatios::default();
        ratios.learn(KEY, 100, 100_000);
        ratios.learn(KEY, 100, 0);
        assert_eq!(ratios.apply(KEY, 100), 100);
    }

    proptest! {
        #[test]
        fn the_table_is_bounded_and_the_ratio_clamped(rows in prop::collection::vec((0_u32..90, 0_u32..90, 1_u64..100_000, 1_u64..100_000), 1..200)) {
            let ratios = TokenRatios::default();
            for (model, tenant, estimated, counted) in rows {
                let key = TokenRatioKey { model, tenant };
                ratios.learn(key, estimated, counted);
                let applied = ratios.apply(key, 1000);
                prop_assert!((250..=4000).contains(&applied));
            }
            prop_assert!(ratios.known.len() <= MAX_PAIRS);
        }
    }
}
