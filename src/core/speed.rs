//! How fast a replica is: one learned factor on its predicted times.
//!
//! The factor is the ratio of two sums, observed over predicted times to the
//! first token, in which older requests fade. The prediction in the sum is the
//! raw one, without the factor; a factor that corrects itself, or a mean of
//! ratios, makes routing swing. Replicas whose factor lies near the median of
//! their pool count as equal, so that noise does not prefer one for ever.

/// How much of the sums is left after each request.
const KEEP: f64 = 0.98;
/// Weight of "as predicted" at the start, in nanoseconds of either sum.
const PRIOR: f64 = 20e6;
/// Factors between these multiples of the pool's median count as the median.
const DEAD_BAND: std::ops::RangeInclusive<f64> = 0.6..=1.6;
/// The slowest and fastest that is believed.
const BOUNDS: (f64, f64) = (1.0 / 256.0, 256.0);

/// One replica's speed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Speed {
    observed: f64,
    raw: f64,
    samples: u32,
}

impl Speed {
    /// Times its predictions have to be multiplied by; above 1 for slow ones.
    #[must_use]
    pub fn factor(&self) -> f64 {
        ((self.observed + PRIOR) / (self.raw + PRIOR)).clamp(BOUNDS.0, BOUNDS.1)
    }

    /// Whether anything was learned.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.samples > 0
    }

    /// A first token came `observed` nanoseconds after its dispatch, where
    /// `raw` were predicted for a replica of speed 1.
    pub fn learn(&mut self, observed: u64, raw: u64) {
        self.observed = self.observed * KEEP + observed as f64;
        self.raw = self.raw * KEEP + raw as f64;
        self.samples = self.samples.saturating_add(1);
    }
}

/// Steps of an octave in which factors are told apart.
const STEPS: f64 = 16.0;
/// From a 256th to 256 times.
const BINS: usize = 16 * STEPS as usize + 1;

/// The factors of a pool's replicas, for their median.
#[derive(Debug, Clone)]
pub struct Speeds {
    bins: Vec<u32>,
    known: u32,
    median: f64,
}

impl Default for Speeds {
    fn default() -> Self {
        Self { bins: vec![0; BINS], known: 0, median: 1.0 }
    }
}

/// Where a factor stands in [`Speeds`].
pub type Bin = u16;

impl Speeds {
    /// The bin of a factor.
    #[must_use]
    pub fn bin(factor: f64) -> Bin {
        let at = (factor.log2() + 8.0) * STEPS;
        at.round().clamp(0.0, (BINS - 1) as f64) as Bin
    }

    /// Moves a replica from one bin to another; `None` where it had or has
    /// none.
    pub fn shift(&mut self, from: Option<Bin>, to: Option<Bin>) {
        if let Some(bin) = from {
            self.bins[usize::from(bin)] -= 1;
            self.known -= 1;
        }
        if let Some(bin) = to {
            self.bins[usize::from(bin)] += 1;
            self.known += 1;
        }
        self.median = self.find_median();
    }

    /// The median factor, the lower one of two; 1 while none is known.
    #[must_use]
    pub const fn median(&self) -> f64 {
        self.median
    }

    fn find_median(&self) -> f64 {
        let mut left = self.known.div_ceil(2);
        let at = self.bins.iter().position(|count| {
            left = left.saturating_sub(*count);
            left == 0
        });
        match at.filter(|_| self.known > 0) {
            Some(bin) => ((bin as f64) / STEPS - 8.0).exp2(),
            None => 1.0,
        }
    }

    /// What a replica's predictions are multiplied by.
    #[must_use]
    pub fn applied(&self, speed: &Speed) -> f64 {
        let (median, own) = (self.median, speed.factor());
        if !speed.is_known() || DEAD_BAND.contains(&(own / median)) { median } else { own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_slow_replica_is_found_within_fifty_requests() {
        let mut speed = Speed::default();
        for _ in 0..50 {
            speed.learn(90 * MS, 30 * MS);
        }
        assert!((2.8..3.01).contains(&speed.factor()), "{}", speed.factor());
        for _ in 0..200 {
            speed.learn(30 * MS, 30 * MS);
        }
        assert!(speed.factor() < 1.1, "{}", speed.factor());
    }

    #[test]
    fn one_outlier_moves_little() {
        let mut speed = Speed::default();
        for _ in 0..50 {
            speed.learn(30 * MS, 30 * MS);
        }
        speed.learn(300 * MS, 30 * MS);
        assert!(speed.factor() < 1.3, "{}", speed.factor());
    }

    #[test]
    fn the_median_follows_its_members() {
        let mut speeds = Speeds::default();
        assert_eq!(speeds.median(), 1.0);
        for factor in [0.33, 3.0, 3.1, 9.0] {
            speeds.shift(None, Some(Speeds::bin(factor)));
        }
        assert!((2.8..3.2).contains(&speeds.median()), "{}", speeds.median());
        speeds.shift(Some(Speeds::bin(9.0)), None);
        speeds.shift(Some(Speeds::bin(3.1)), Some(Speeds::bin(0.3)));
        assert!((0.28..0.36).contains(&speeds.median()), "{}", speeds.median());
    }

    #[test]
    fn near_the_median_counts_as_the_median() {
        let mut speeds = Speeds::default();
        let known = |observed: u64| {
            let mut speed = Speed::default();
            for _ in 0..100 {
                speed.learn(observed * MS, 100 * MS);
            }
            speed
        };
        for observed in [100, 100, 130, 400] {
            speeds.shift(None, Some(Speeds::bin(known(observed).factor())));
        }
        let median = speeds.median();
        assert_eq!(speeds.applied(&known(130)), median);
        assert!(speeds.applied(&known(400)) > 3.5);
        assert_eq!(speeds.applied(&Speed::default()), median);
    }
}
