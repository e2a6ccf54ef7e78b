//! Prefill rate of a pool's replicas, learned from their first tokens.
//!
//! A first token waits for more than its own prompt: for prompts that the replica prefills before,
//! for the step under way, for the network. The sample is therefore the replica's time since
//! its previous first token, and first tokens that come together form one stretch. The rate is
//! the slope of a least-squares line through the stretches, prompt weight against time. The
//! line's constant holds the fixed time of each stretch.

use std::time::Duration;

use crate::model::time::Tick;

/// First tokens no further apart than this come from the same step.
const TOGETHER: Duration = Duration::from_millis(2);
/// Least spread of the stretches' weights for a line through them: standard deviation over mean.
const SPREAD: f64 = 0.1;

/// Prompts that a replica prefilled without a pause, and the time it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillBurst {
    weight: u64,
    took: Duration,
}

/// First tokens of one replica, collected into stretches.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrefillSampler {
    /// When the first tokens before this stretch came.
    before: Tick,
    since: Tick,
    at: Tick,
    weight: u64,
}

impl PrefillSampler {
    /// Adds a first token that came `observed` after the dispatch of its prompt. `weight` is the
    /// weight of the prompt's uncached tokens. Returns the previous stretch once it is whole.
    pub fn first_token(&mut self, observed: Duration, weight: u64, now: Tick) -> Option<PrefillBurst> {
        let sent = now.earlier_by(observed);
        if self.weight > 0 && now.since(self.at) <= TOGETHER {
            self.weight = self.weight.saturating_add(weight);
            self.since = self.since.min(sent.max(self.before));
            return None;
        }
        let whole = PrefillBurst { weight: self.weight, took: self.at.since(self.since) };
        *self = Self { before: self.at, since: sent.max(self.at), at: now, weight };
        (whole.weight > 0 && !whole.took.is_zero()).then_some(whole)
    }
}

/// Sums over a pool's stretches, for a least-squares line.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrefillRate {
    count: f64,
    weight: f64,
    seconds: f64,
    square: f64,
    product: f64,
}

impl PrefillRate {
    pub fn add(&mut self, stretch: PrefillBurst) {
        let (weight, seconds) = (stretch.weight as f64, stretch.took.as_secs_f64());
        self.count += 1.0;
        self.weight += weight;
        self.seconds += seconds;
        self.square += weight * weight;
        self.product += weight * seconds;
    }

    /// Multiplies all sums by `kept`, so that older stretches weigh less.
    pub fn fade(&mut self, kept: f64) {
        for sum in [&mut self.count, &mut self.weight, &mut self.seconds, &mut self.square, &mut self.product]
        {
            *sum *= kept;
        }
    }

    /// Prefill rate in prompt tokens per second; absent before the first whole stretch. The rate is
    /// never below that of all stretches together, nor above `best`.
    pub fn per_second(&self, best: u64) -> Option<u64> {
        if self.seconds <= 0.0 {
            return None;
        }
        let whole = self.weight / self.seconds;
        let spread = self.count * self.square - self.weight * self.weight;
        let slope = (self.count * self.product - self.weight * self.seconds) / spread;
        let told = spread > (self.weight * SPREAD).powi(2) && slope > 0.0;
        let rate = if told { (1.0 / slope).max(whole) } else { whole };
        Some(rate.min((best as f64).max(whole)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::from_millis(millis)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Prefills prompts of these weights, each sent when the one before was done, at 20,000
    /// tokens a second and 12 ms for each in any case.
    fn rate_of(weights: &[u64]) -> PrefillRate {
        let (mut sampler, mut rate, mut now) = (PrefillSampler::default(), PrefillRate::default(), 1_000);
        for weight in weights {
            let took = 12 + weight / 20;
            now += took;
            sampler.first_token(ms(took), *weight, at(now)).into_iter().for_each(|stretch| rate.add(stretch));
        }
        rate
    }

    #[test]
    fn what_each_prompt_takes_in_any_case_is_told_from_the_rate() {
        assert_eq!(PrefillRate::default().per_second(u64::MAX), None);
        let rate = rate_of(&[200, 1_000, 4_000, 400, 2_000, 600]).per_second(u64::MAX).unwrap();
        assert!((19_900..20_100).contains(&rate), "{rate}");
        let alike = rate_of(&[1_000; 9]).per_second(u64::MAX).unwrap();
        assert_eq!(alike, 16_129, "no line through prompts of one size: 1,000 in 62 ms");
        assert_eq!(rate_of(&[200, 1_000, 4_000, 9]).per_second(18_000), Some(18_000));
    }

    #[test]
    fn prompts_that_wait_for_each_other_count_once() {
        let (mut sampler, mut rate) = (PrefillSampler::default(), PrefillRate::default());
        // Ten prompts of 1,000 tokens sent at once, prefilled one after the other in 50 ms each.
        for nth in 1..=11 {
            let stretch = sampler.first_token(ms(50 * nth), 1_000, at(1_000 + 50 * nth));
            stretch.into_iter().for_each(|stretch| rate.add(stretch));
        }
        assert_eq!(rate.per_second(u64::MAX), Some(20_000));
    }

    #[test]
    fn first_tokens_of_one_step_are_one_stretch() {
        let (mut sampler, mut rate) = (PrefillSampler::default(), PrefillRate::default());
        for step in 1..=5 {
            for _ in 0..4 {
                let stretch = sampler.first_token(ms(100), 500, at(1_000 + 100 * step));
                stretch.into_iter().for_each(|stretch| rate.add(stretch));
            }
        }
        assert_eq!(rate.per_second(u64::MAX), Some(20_000));
    }
}
