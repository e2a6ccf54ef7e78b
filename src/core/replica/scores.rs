//! Replica scores: how one decision rated the replica that it chose, and a few others.

use std::time::Duration;

use crate::model::ids::ReplicaId;

/// Other replicas that a decision keeps.
pub const MAX_OTHERS: usize = 4;

/// Scores of one decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaScores {
    /// Score of the chosen replica.
    pub chosen: Score,
    others: [Option<OtherReplica>; MAX_OTHERS],
}

/// Score of a job at a replica, a time; the least is best. The score is the predicted time to first
/// token, the time that the prompt takes from later prompts, and the time that the answer's tokens
/// add to the streams there. A session makes the score of its replica less by what the session's rule
/// allows.
///
/// The score is kept in microseconds; an hour and more is one score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score(u32);

impl Score {
    pub const ZERO: Self = Self(0);

    pub fn from_nanos(nanos: u64) -> Self {
        Self(u32::try_from(nanos / 1_000).unwrap_or(u32::MAX))
    }
}

impl From<Score> for Duration {
    fn from(score: Score) -> Self {
        Self::from_micros(score.0.into())
    }
}

/// A replica that a decision did not choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherReplica {
    pub replica: ReplicaId,
    pub score: Score,
    /// Predicted time to first token, kept as a score is.
    pub ttft: Score,
    /// Prompt tokens that the replica is expected to have in its prefix cache.
    pub cached_tokens: u32,
    pub why_not: WhyNot,
}

/// Why a decision did not choose a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNot {
    /// The replica had no room for the job.
    NoRoom,
    /// The replica failed the job before.
    Failed,
    /// The job's engine had failed, and another job whose engine had failed ran at the replica.
    Suspect,
    /// The replica's room was kept for another job, or it was on trial after a failure.
    Reserved,
    /// The replica's score was higher.
    Higher,
    /// Another pool went first, by the placement rules, the price or the inter-token objective.
    Pool,
    /// The replica was as good as the chosen one: waits below a sixteenth of the objective are equal,
    /// and the load decides; of equals, the one that was chosen longest ago goes first.
    Equal,
    /// The room of the chosen replica was kept for the job.
    Held,
}

impl WhyNot {
    /// A short stable name for the admin API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRoom => "no_room",
            Self::Failed => "failed_it_before",
            Self::Suspect => "other_suspect_there",
            Self::Reserved => "reserved",
            Self::Higher => "higher_score",
            Self::Pool => "other_pool_first",
            Self::Equal => "as_good",
            Self::Held => "other_was_held",
        }
    }
}

impl ReplicaScores {
    pub const fn new(chosen: Score) -> Self {
        Self { chosen, others: [None; MAX_OTHERS] }
    }

    /// Adds another replica, if it is among the best.
    pub fn add(&mut self, other: OtherReplica) {
        let rank = |other: &OtherReplica| (other.score, other.replica);
        let is_before =
            |place: &Option<OtherReplica>| place.as_ref().is_none_or(|one| rank(&other) < rank(one));
        if let Some(at) = self.others.iter().position(is_before) {
            self.others[at..].rotate_right(1);
            self.others[at] = Some(other);
        }
    }

    /// Other replicas, the best first.
    pub fn others(&self) -> impl Iterator<Item = &OtherReplica> {
        self.others.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn other(replica: usize, nanos: u64) -> OtherReplica {
        OtherReplica {
            replica: ReplicaId::from(replica),
            score: Score::from_nanos(nanos),
            ttft: Score::ZERO,
            cached_tokens: 0,
            why_not: WhyNot::Higher,
        }
    }

    #[test]
    fn a_score_is_small_and_keeps_microseconds() {
        assert_eq!(Duration::from(Score::from_nanos(1_234_999)), Duration::from_micros(1_234));
        assert_eq!(Score::from_nanos(u64::MAX), Score(u32::MAX));
        assert!(size_of::<ReplicaScores>() <= 96, "every request that runs keeps one");
    }

    proptest! {
        #[test]
        fn the_best_are_kept_in_order(nanos in vec(0_u64..20_000, 0..12)) {
            let mut scores = ReplicaScores::new(Score::ZERO);
            let mut all: Vec<_> = nanos.iter().enumerate().map(|(at, nanos)| other(at, *nanos)).collect();
            all.iter().for_each(|one| scores.add(*one));
            all.sort_by_key(|one| (one.score, one.replica));
            all.truncate(MAX_OTHERS);
            prop_assert_eq!(scores.others().copied().collect::<Vec<_>>(), all);
        }
    }
}
