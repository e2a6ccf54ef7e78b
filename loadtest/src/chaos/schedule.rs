//! Fault schedule of a chaos run, drawn from the seed alone.

use std::time::Duration;

use penstock::sim::rng::Rng;
use serde::Serialize;

/// The shortest run in which every kind of fault has its time.
pub const SHORTEST_RUN: Duration = Duration::from_secs(10);
/// The shortest time from a fault to its repair.
const SHORTEST: Duration = Duration::from_millis(400);

/// A way in which an engine goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The process is gone at once: every connection ends, the port refuses.
    Kill,
    /// vLLM's default end: every request is aborted, the port closes later.
    Sigterm,
    /// The engine hangs: streams are silent, its health says 200.
    Freeze,
    /// Half of its streams end early, in one of several ways.
    Cut,
    /// Every step takes four times as long.
    Slow,
    /// An operator drains the replica.
    Drain,
    /// A spot notice; the machine is gone soon after.
    Spot,
    /// Every request is answered 503.
    Busy,
    /// The metrics say what is not so, or stand still; the engine works.
    Lie,
}

impl Kind {
    /// Those of [`Schedule::new`], in the order of its phases.
    pub const PHASES: [Self; 8] =
        [Self::Kill, Self::Sigterm, Self::Freeze, Self::Cut, Self::Slow, Self::Drain, Self::Spot, Self::Busy];
    /// Those of [`Schedule::steady`]: what an engine can do by itself.
    pub const STEADY: [Self; 7] =
        [Self::Kill, Self::Sigterm, Self::Freeze, Self::Cut, Self::Slow, Self::Busy, Self::Lie];

    /// What reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Sigterm => "sigterm",
            Self::Freeze => "freeze",
            Self::Cut => "cut",
            Self::Slow => "slow",
            Self::Drain => "drain",
            Self::Spot => "spot",
            Self::Busy => "busy",
            Self::Lie => "lie",
        }
    }
}

/// One engine goes wrong, and is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Episode {
    /// How.
    pub kind: Kind,
    /// Which engine, from 0.
    pub engine: usize,
    /// Since the start of the load.
    pub at: Duration,
    /// Until it is repaired.
    pub lasts: Duration,
    /// Decides what is left open.
    pub draw: u64,
}

impl Episode {
    /// When the engine is whole again.
    pub fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

/// A part of the run, with a name for reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// The kind of fault, or `all`.
    pub name: &'static str,
    /// Where it begins.
    pub from: Duration,
    /// Where it ends.
    pub to: Duration,
}

/// The whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Schedule {
    /// One after the other, without gaps.
    pub phases: Vec<Phase>,
    /// In the order of their starts.
    pub episodes: Vec<Episode>,
}

impl Schedule {
    /// One kind after the other, then all at once for twice as long. At most
    /// `most` of the engines are hit at a time, and all are whole at the end of
    /// a phase. `duration` is [`SHORTEST_RUN`] or more.
    pub fn new(seed: u64, duration: Duration, engines: usize, most: usize) -> Self {
        let part = duration / (Kind::PHASES.len() as u32 + 2);
        let mut rng = Rng::new(seed);
        let (mut phases, mut episodes) = (Vec::new(), Vec::new());
        let singles = Kind::PHASES.iter().map(|kind| (kind.name(), vec![*kind], part));
        for (name, kinds, lasts) in singles.chain([("all", Kind::PHASES.to_vec(), part * 2)]) {
            let from = phases.last().map_or(Duration::ZERO, |phase: &Phase| phase.to);
            let phase = Phase { name, from, to: from + lasts };
            episodes.append(&mut within(&phase, &kinds, part, (engines, most), &mut rng));
            phases.push(phase);
        }
        Self { phases, episodes }
    }

    /// What an engine can do by itself, all at once and from the start to the end.
    pub fn steady(seed: u64, duration: Duration, engines: usize, most: usize) -> Self {
        const PART: Duration = Duration::from_secs(20);
        let phase = Phase { name: "all", from: Duration::ZERO, to: duration };
        let episodes = within(&phase, &Kind::STEADY, PART, (engines, most), &mut Rng::new(seed));
        Self { phases: vec![phase], episodes }
    }

    /// Every engine answers 503 in the second and third sixth.
    pub fn storm(duration: Duration, engines: usize) -> Self {
        let (from, to) = (duration / 6, duration / 2);
        let phases = vec![
            Phase { name: "before", from: Duration::ZERO, to: from },
            Phase { name: "storm", from, to },
            Phase { name: "after", from: to, to: duration },
        ];
        let hit = |engine| Episode { kind: Kind::Busy, engine, at: from, lasts: to - from, draw: 0 };
        Self { phases, episodes: (0..engines).map(hit).collect() }
    }

    /// The phase of an instant; the last one holds what comes later.
    pub fn phase_at(&self, at: Duration) -> usize {
        self.phases.partition_point(|phase| phase.to <= at).min(self.phases.len().saturating_sub(1))
    }
}

/// The episodes of a phase. As many hands as engines may be hit each break an
/// engine, wait, repair it, and rest for twice as long: about every sixth engine
/// of eight is hit or coming back at any time, so that the others can do the work.
fn within(
    phase: &Phase,
    kinds: &[Kind],
    part: Duration,
    (engines, most): (usize, usize),
    rng: &mut Rng,
) -> Vec<Episode> {
    let mut hands: Vec<Duration> = (0..most)
        .map(|hand| phase.from + part.mul_f64(if hand == 0 { 0.05 } else { 0.3 * rng.unit() }))
        .collect();
    let mut free_at = vec![phase.from; engines];
    let mut episodes: Vec<Episode> = Vec::new();
    while let Some((hand, at)) = hands.iter().copied().enumerate().min_by_key(|(_, at)| *at) {
        let lasts = part.mul_f64(0.06 + 0.1 * rng.unit()).max(SHORTEST);
        let whole: Vec<usize> = (0..engines).filter(|engine| free_at[*engine] <= at).collect();
        let end = at + lasts;
        // Else the hand rests: there is no time for it, or no engine.
        if end + part.mul_f64(0.02) >= phase.to || whole.is_empty() {
            hands.remove(hand);
            continue;
        }
        let engine = whole[rng.below(whole.len() as u64) as usize];
        let kind = kinds[rng.below(kinds.len() as u64) as usize];
        free_at[engine] = end;
        hands[hand] = end + part.mul_f64(0.1 + 0.2 * rng.unit()).max(SHORTEST * 2);
        episodes.push(Episode { kind, engine, at, lasts, draw: rng.bits() });
    }
    episodes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTES: Duration = Duration::from_secs(600);

    #[test]
    fn the_seed_alone_decides() {
        let of = |seed| Schedule::new(seed, MINUTES, 8, 3);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1).episodes, of(2).episodes);
    }

    #[test]
    fn never_more_than_most_are_hit_and_each_engine_by_one_at_a_time() {
        for seed in 0..50 {
            let schedule = Schedule::new(seed, MINUTES, 8, 3);
            for episode in &schedule.episodes {
                let open = |at| {
                    let hit = schedule.episodes.iter().filter(move |e| e.at <= at && at < e.end());
                    hit.map(|e| e.engine).collect::<Vec<_>>()
                };
                let mut hit = open(episode.at);
                assert!(hit.len() <= 3, "{hit:?}");
                hit.sort_unstable();
                hit.dedup();
                assert_eq!(hit.len(), open(episode.at).len());
                let phase = &schedule.phases[schedule.phase_at(episode.at)];
                assert!(episode.end() < phase.to, "{episode:?} {phase:?}");
                assert!(phase.name == "all" || phase.name == episode.kind.name());
            }
            for kind in Kind::PHASES {
                assert!(schedule.episodes.iter().any(|e| e.kind == kind), "{seed} {kind:?}");
            }
        }
    }

    #[test]
    fn a_short_run_has_every_kind_and_phases_without_gaps() {
        let schedule = Schedule::new(3, SHORTEST_RUN, 4, 1);
        for phase in &schedule.phases {
            assert!(schedule.episodes.iter().any(|e| (phase.from..phase.to).contains(&e.at)), "{phase:?}");
        }
        assert!(schedule.phases.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert_eq!(schedule.phase_at(Duration::ZERO), 0);
        assert_eq!(schedule.phase_at(Duration::from_secs(100)), 8);
    }

    #[test]
    fn a_steady_run_has_every_kind_that_needs_no_operator() {
        let schedule = Schedule::steady(1, MINUTES, 6, 1);
        for kind in Kind::STEADY {
            assert!(schedule.episodes.iter().any(|e| e.kind == kind), "{kind:?}");
        }
        assert!(schedule.episodes.iter().all(|e| Kind::STEADY.contains(&e.kind)));
    }

    #[test]
    fn a_storm_hits_everybody_for_a_third() {
        let storm = Schedule::storm(Duration::from_secs(60), 4);
        assert_eq!(storm.episodes.len(), 4);
        assert!(storm.episodes.iter().all(|e| e.lasts == Duration::from_secs(20) && e.kind == Kind::Busy));
    }
}
