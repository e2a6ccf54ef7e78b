//! A small seeded generator (SplitMix64), so that a run can be repeated.

/// A stream of pseudo-random numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts the stream that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.bits()) * u128::from(bound);
        (wide >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_stream() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        let first: Vec<u64> = (0..4).map(|_| a.bits()).collect();
        assert_eq!(first, (0..4).map(|_| b.bits()).collect::<Vec<_>>());
        assert_ne!(first, (0..4).map(|_| c.bits()).collect::<Vec<_>>());
    }

    #[test]
    fn below_covers_its_range() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 5];
        for _ in 0..5_000 {
            seen[usize::try_from(rng.below(5)).expect("small")] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1_200).contains(&n)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
