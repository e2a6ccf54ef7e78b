//! Throttle of failures by client address, in bounded memory: failed authentication, and streams that
//! clients reset.
//!
//! Each address has a bucket of failures (the generic cell rate algorithm: one tick is a bucket's
//! whole state). Only failures take from a bucket; a success is never throttled. While the table
//! is full, all new addresses share one bucket.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::model::time::Tick;

/// Most addresses that have a bucket of their own.
const MAX_ROWS: usize = 16_384;
const MINUTE: Duration = Duration::from_secs(60);
/// Least time between two searches for addresses that may be forgotten.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);

/// Rate limit: a burst, and a refill per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureRate {
    /// Capacity of the bucket, at least 1.
    pub burst: u32,
    /// Refill per minute, at least 1.
    pub per_minute: u32,
}

/// Token bucket of a [`FailureRate`]. The default bucket is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenBucket {
    /// Tick at which the bucket will be full again.
    full_at: Tick,
}

impl TokenBucket {
    /// Takes one token.
    ///
    /// # Errors
    /// The bucket is empty. The error is the time until the next token.
    pub fn take(&mut self, now: Tick, rate: FailureRate) -> Result<(), Duration> {
        let each = MINUTE / rate.per_minute.max(1);
        let full_at = self.full_at.max(now);
        let owed = full_at.since(now);
        let room = each.saturating_mul(rate.burst.saturating_sub(1));
        if owed > room {
            return Err(owed - room);
        }
        self.full_at = full_at + each;
        Ok(())
    }

    /// Takes `count` tokens, also where the bucket has fewer: it then owes them, at most the refill of
    /// a minute.
    fn charge(&mut self, count: u32, now: Tick, rate: FailureRate) {
        let each = MINUTE / rate.per_minute.max(1);
        let most = now + each.saturating_mul(rate.burst.max(1)) + MINUTE;
        self.full_at = (self.full_at.max(now) + each.saturating_mul(count)).min(most);
    }

    /// Whether the bucket has no token.
    fn is_empty(self, now: Tick, rate: FailureRate) -> bool {
        let mut after = self;
        after.take(now, rate).is_err()
    }
}

/// Buckets of failures, by client address.
#[derive(Debug, Default)]
pub struct FailureThrottle {
    rows: BTreeMap<u128, TokenBucket>,
    /// Bucket shared by all addresses that have no row.
    others: TokenBucket,
    /// Time from which a full table may be searched again.
    prune_at: Tick,
}

impl FailureThrottle {
    /// Counts a failure of the address group `who`.
    ///
    /// # Errors
    /// `who` is above its failure rate. The error is the time until its bucket has a token again.
    pub fn failed(&mut self, who: u128, now: Tick, rate: FailureRate) -> Result<(), Duration> {
        self.bucket(who, now).take(now, rate)
    }

    /// Counts `count` failures of the address group `who` that have happened, also those above its
    /// failure rate. Returns whether `who` is above its failure rate now.
    pub fn charge(&mut self, who: u128, count: u32, now: Tick, rate: FailureRate) -> bool {
        let bucket = self.bucket(who, now);
        bucket.charge(count, now, rate);
        bucket.is_empty(now, rate)
    }

    /// Whether the address group `who` is above its failure rate. One that has no bucket of its own
    /// is not.
    pub fn is_above_rate(&self, who: u128, now: Tick, rate: FailureRate) -> bool {
        self.rows.get(&who).is_some_and(|bucket| bucket.is_empty(now, rate))
    }

    fn bucket(&mut self, who: u128, now: Tick) -> &mut TokenBucket {
        if !self.rows.contains_key(&who) && self.rows.len() >= MAX_ROWS {
            if now >= self.prune_at {
                self.rows.retain(|_, bucket| bucket.full_at > now);
                self.prune_at = now + PRUNE_INTERVAL;
            }
            if self.rows.len() >= MAX_ROWS {
                return &mut self.others;
            }
        }
        self.rows.entry(who).or_default()
    }

    /// Number of addresses that have a bucket of their own now.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no address has failed.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    const RATE: FailureRate = FailureRate { burst: 3, per_minute: 6 };

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    #[test]
    fn a_burst_then_one_each_ten_seconds() {
        let mut throttle = FailureThrottle::default();
        for _ in 0..3 {
            assert_eq!(throttle.failed(1, at(5), RATE), Ok(()));
        }
        assert_eq!(throttle.failed(1, at(5), RATE), Err(Duration::from_secs(10)));
        assert_eq!(throttle.failed(1, at(9), RATE), Err(Duration::from_secs(6)));
        assert_eq!(throttle.failed(2, at(9), RATE), Ok(()), "each address has its own");
        assert_eq!(throttle.failed(1, at(15), RATE), Ok(()));
        assert!(throttle.failed(1, at(15), RATE).is_err());
        for _ in 0..3 {
            assert_eq!(throttle.failed(1, at(100), RATE), Ok(()), "it fills up, and no further");
        }
        assert!(throttle.failed(1, at(100), RATE).is_err());
    }

    #[test]
    fn the_table_is_bounded_and_the_rest_shares_one_row() {
        let mut throttle = FailureThrottle::default();
        let all = MAX_ROWS as u128;
        for who in 0..all {
            assert_eq!(throttle.failed(who, at(1), RATE), Ok(()));
        }
        let more = (all..2 * all).filter(|who| throttle.failed(*who, at(1), RATE).is_ok()).count();
        assert_eq!((more, throttle.len()), (3, MAX_ROWS));
        assert_eq!(throttle.failed(0, at(1), RATE), Ok(()), "who is known keeps its own");
        assert_eq!(throttle.failed(all, at(60), RATE), Ok(()));
        assert_eq!(throttle.len(), 1, "those whose buckets are full again are forgotten");
    }

    #[test]
    fn what_has_happened_is_owed_up_to_a_minute() {
        let mut throttle = FailureThrottle::default();
        assert!(!throttle.charge(1, 2, at(5), RATE), "one is left of three");
        assert!(throttle.charge(1, 1, at(5), RATE));
        assert!(throttle.charge(1, 1000, at(5), RATE));
        // Six are owed, at one each ten seconds, and one more makes a token.
        assert!(throttle.is_above_rate(1, at(74), RATE));
        assert!(!throttle.is_above_rate(1, at(75), RATE));
        assert!(!throttle.is_above_rate(2, at(5), RATE), "each address has its own");
        for who in 10..10 + MAX_ROWS as u128 {
            throttle.charge(who, 1000, at(5), RATE);
        }
        assert!(throttle.charge(9, 1, at(5), RATE), "whoever has no bucket shares one");
        assert!(!throttle.is_above_rate(9, at(5), RATE), "and is not kept out for the others' failures");
    }

    #[test]
    fn a_full_table_is_searched_once_a_second() {
        let mut throttle = FailureThrottle::default();
        for who in 0..MAX_ROWS as u128 {
            assert_eq!(throttle.failed(who, at(1), RATE), Ok(()));
        }
        let (next, more) = (Tick::from_millis(10_999), Tick::from_millis(11_001));
        assert_eq!(throttle.failed(1 << 64, next, RATE), Ok(()));
        assert_eq!(throttle.failed(2 << 64, more, RATE), Ok(()));
        assert_eq!(throttle.len(), MAX_ROWS, "all could be forgotten, a millisecond after the last search");
        assert_eq!(throttle.failed(3 << 64, at(12), RATE), Ok(()));
        assert_eq!(throttle.len(), 1);
    }

    proptest! {
        /// No window of time accepts more than the burst and its refill, whenever failures come.
        #[test]
        fn never_more_than_the_burst_and_what_grows_back(
            gaps in proptest::collection::vec(0_u64..20_000, 1..200), burst in 1_u32..9, per_minute in 1_u32..100,
            from in any::<u32>(),
        ) {
            let rate = FailureRate { burst, per_minute };
            let (mut bucket, mut now) = (TokenBucket::default(), Tick::from_millis(from.into()));
            let mut heard: Vec<Tick> = Vec::new();
            for gap in gaps {
                now += Duration::from_millis(gap);
                match bucket.take(now, rate) {
                    Ok(()) => heard.push(now),
                    Err(wait) => {
                        prop_assert!(!wait.is_zero());
                        prop_assert!(bucket.clone().take(now + wait, rate).is_ok(), "the wait is honest");
                    }
                }
            }
            for (at, first) in heard.iter().enumerate() {
                for (count, last) in heard[at..].iter().enumerate() {
                    let grown = last.since(*first).as_secs_f64() / 60.0 * f64::from(per_minute);
                    prop_assert!((count + 1) as f64 <= f64::from(burst) + grown + 1e-6);
                }
            }
        }
    }
}
