//! Troubles of a soak: what goes wrong around the gateways, one after the other, drawn from the seed.

use std::time::Duration;

use penstock::sim::rng::Rng;
use serde::Serialize;

/// Shortest trouble.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longest trouble.
const LONGEST: Duration = Duration::from_secs(45);

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A gateway's writes to files fail.
    DiskFull,
    /// A gateway can open no more files and connections.
    Descriptors,
    /// The gateways are restarted one after the other.
    Restart,
    /// Configurations follow each other, broken ones among them.
    Reload,
    /// The usage database cannot be reached.
    Database,
    /// The trace collector is away, or silent.
    Collector,
    /// The identity provider is away, or silent.
    Identity,
    /// The name server is away, or fails.
    Names,
    /// The Kubernetes API server is away, or silent.
    Cluster,
    /// The wall clock jumps.
    Clock,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::DiskFull,
        Self::Descriptors,
        Self::Restart,
        Self::Reload,
        Self::Database,
        Self::Collector,
        Self::Identity,
        Self::Names,
        Self::Cluster,
        Self::Clock,
    ];

    /// What reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DiskFull => "disk full",
            Self::Descriptors => "no descriptors",
            Self::Restart => "restart",
            Self::Reload => "reload",
            Self::Database => "database",
            Self::Collector => "collector",
            Self::Identity => "identity",
            Self::Names => "DNS",
            Self::Cluster => "Kubernetes",
            Self::Clock => "clock",
        }
    }
}

/// One trouble to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// What.
    pub kind: Kind,
    /// How long it lasts, where it does not end by itself.
    pub lasts: Duration,
    /// Quiet time after it.
    pub rest: Duration,
    /// Decides what is left open, such as the gateway that is hit.
    pub draw: u64,
}

/// Troubles without end: every kind once, in a drawn order, then all again in another one.
#[derive(Debug, Clone)]
pub struct Troubles {
    rng: Rng,
    kinds: Vec<Kind>,
    left: Vec<Kind>,
    longest: Duration,
}

impl Troubles {
    /// Troubles of these kinds, so long that a run of this duration has several rounds where it can.
    pub fn new(seed: u64, kinds: &[Kind], duration: Duration) -> Self {
        let longest = (duration / 20).clamp(2 * SHORTEST, LONGEST);
        Self { rng: Rng::new(seed ^ 0x50A4), kinds: kinds.to_vec(), left: Vec::new(), longest }
    }
}

impl Iterator for Troubles {
    type Item = Trouble;

    fn next(&mut self) -> Option<Trouble> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
        }
        let chosen = self.rng.below(self.left.len() as u64) as usize;
        let kind = (!self.left.is_empty()).then(|| self.left.swap_remove(chosen))?;
        let lasts = SHORTEST + (self.longest - SHORTEST).mul_f64(self.rng.unit());
        Some(Trouble { kind, lasts, rest: lasts / 3, draw: self.rng.bits() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_and_each_round_has_every_kind() {
        let minute = Duration::from_secs(60);
        let of = |seed| Troubles::new(seed, &Kind::ALL, minute).take(30).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        for round in of(3).chunks(Kind::ALL.len()) {
            let mut kinds: Vec<Kind> = round.iter().map(|trouble| trouble.kind).collect();
            kinds.sort();
            assert_eq!(kinds, Kind::ALL);
            assert!(round.iter().all(|t| (SHORTEST..=Duration::from_secs(3)).contains(&t.lasts)));
        }
        assert_eq!(Troubles::new(1, &[], minute).next(), None);
    }
}
