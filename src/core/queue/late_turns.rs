//! Late turns: how many turns of a lane go to its late jobs while jobs in time wait.
//!
//! Each turn of a late job makes a job in time late when more arrives than the replicas can do. So
//! late jobs get only a part of the turns, and the rest of them is refused early.

/// Weight of the newest turn in the part that late jobs took.
const NEWEST: f64 = 1.0 / 64.0;

/// Turns that a lane's late jobs may take, and took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LateTurns {
    /// Turns in time that late jobs have paid for, less those that their turns cost. At most 1.
    saved: f64,
    /// Part of the latest turns that late jobs took. 1 before there were any.
    taken: f64,
}

impl Default for LateTurns {
    fn default() -> Self {
        Self { saved: 0.0, taken: 1.0 }
    }
}

impl LateTurns {
    /// Whether an overdue late job goes before the jobs in time.
    pub(super) fn is_next(self) -> bool {
        self.saved >= 0.0
    }

    /// Counts a turn. `share` is the largest part of the turns for late jobs, above 0 and at most 1;
    /// `contested` says whether a job of the other kind waited as well.
    pub(super) fn note(&mut self, late: bool, contested: bool, share: f64) {
        self.taken += (f64::from(u8::from(late)) - self.taken) * NEWEST;
        if late && contested {
            self.saved -= (1.0 - share) / share;
        } else if !late {
            self.saved = (self.saved + 1.0).min(1.0);
        }
    }

    /// The part of the turns that late jobs can expect.
    pub(super) fn expected(self, share: f64) -> f64 {
        self.taken.max(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Late turns among `turns` turns when both kinds always wait.
    fn late_of(turns: u32, share: f64) -> u32 {
        let mut lane = LateTurns::default();
        let turn = |_: &u32| {
            let late = lane.is_next();
            lane.note(late, true, share);
            late
        };
        (0..turns).filter(turn).count() as u32
    }

    #[test]
    fn late_jobs_get_their_share_of_the_turns() {
        assert_eq!([1.0, 0.5, 0.125].map(|share| late_of(800, share)), [800, 400, 100]);
        let odd = late_of(8_000, 0.3);
        assert!((2_390..=2_410).contains(&odd), "{odd}");
    }

    #[test]
    fn turns_that_nobody_else_wanted_cost_nothing() {
        let mut lane = LateTurns::default();
        for _ in 0..100 {
            lane.note(true, false, 0.125);
        }
        assert!(lane.is_next());
        lane.note(true, true, 0.125);
        assert!(!lane.is_next());
    }

    #[test]
    fn the_expected_part_follows_the_turns_and_never_falls_below_the_share() {
        let mut lane = LateTurns::default();
        assert!((lane.expected(0.125) - 1.0).abs() < 1e-9, "nothing is known");
        for _ in 0..1_000 {
            lane.note(false, false, 0.125);
        }
        assert!((lane.expected(0.125) - 0.125).abs() < 1e-9);
        for _ in 0..1_000 {
            lane.note(true, false, 0.125);
        }
        assert!(lane.expected(0.125) > 0.99);
    }
}
