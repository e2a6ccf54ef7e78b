//! Seeded random number generator (SplitMix64). A run with the same seed can be
//! repeated.

/// Stream of pseudo-random numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts the stream of the seed.
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

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An exponentially distributed number with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// A normally distributed number with mean 0 and deviation 1 (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A Gamma distributed number of this shape with mean 1, after Marsaglia
    /// and Tsang (2000). A shape that is not positive counts as 1.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape.is_nan() || shape <= 0.0 {
            return self.exponential();
        }
        if shape < 1.0 {
            // For shapes below 1: a draw with shape + 1, times a power of a
            // uniform draw.
            let power = (1.0 - self.unit()).powf(1.0 / shape);
            return self.gamma(shape + 1.0) * (shape + 1.0) / shape * power;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.unit()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v / shape;
            }
        }
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

    #[test]
    fn draws_have_the_mean_and_deviation_they_say() {
        type Draw = fn(&mut Rng) -> f64;
        let table: [(&str, Draw, f64, f64); 5] = [
            ("unit", Rng::unit, 0.5, 0.2887),
            ("exponential", Rng::exponential, 1.0, 1.0),
            ("normal", Rng::normal, 0.0, 1.0),
            ("gamma 4", |rng| rng.gamma(4.0), 1.0, 0.5),
            ("gamma 1/4", |rng| rng.gamma(0.25), 1.0, 2.0),
        ];
        for (name, draw, mean, deviation) in table {
            let mut rng = Rng::new(11);
            let samples: Vec<f64> = (0..40_000).map(|_| draw(&mut rng)).collect();
            let count = samples.len() as f64;
            let found = samples.iter().sum::<f64>() / count;
            let spread = (samples.iter().map(|s| (s - found).powi(2)).sum::<f64>() / count).sqrt();
            assert!((found - mean).abs() < 0.04, "{name}: mean {found}");
            assert!((spread - deviation).abs() < 0.06 * deviation.max(0.5), "{name}: deviation {spread}");
        }
    }
}
