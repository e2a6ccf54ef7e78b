//! Following: a number of replicas that another gateway decides, kept so that this gateway can
//! take over the decision.

use std::time::Duration;

use crate::model::time::Tick;

use super::{DesiredReplicas, SLACK, whole};

impl DesiredReplicas {
    /// Follows the decision `number` of another gateway, where `replicas` are needed as seen from
    /// here. The need is remembered for `hold`, as if this gateway had decided the number. A
    /// gateway that takes over the decision therefore keeps the number for as long.
    pub fn follow(&mut self, replicas: f64, number: u32, hold: Duration, now: Tick) {
        if number > self.number {
            self.lowered_at = None;
            self.remember(number, hold, now);
        } else if number < self.number {
            self.lowered_at = Some(now);
            self.peaks.iter_mut().for_each(|peak| peak.replicas = peak.replicas.min(number));
        }
        self.number = number;
        self.remember(whole(replicas / SLACK).min(number), hold, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(60);
    const HOLD: Duration = Duration::from_secs(300);

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    /// A decider and a follower, both sampling each second.
    fn pair(need: impl Fn(u64) -> f64, seconds: u64) -> (DesiredReplicas, DesiredReplicas) {
        let (mut first, mut second) = (DesiredReplicas::default(), DesiredReplicas::default());
        for now in 0..seconds {
            let (number, _) = first.update(need(now), 0, HOLD, START, at(now));
            second.follow(need(now), number, HOLD, at(now));
        }
        (first, second)
    }

    #[test]
    fn who_goes_on_says_what_the_other_would_have_said() {
        let needs: [fn(u64) -> f64; 3] =
            [|_| 7.2, |now| if now < 600 { 9.5 } else { 3.0 }, |now| 4.0 + (now / 100) as f64];
        for need in needs {
            for until in [10, 610, 890, 905, 1500] {
                let (mut first, mut second) = pair(need, until);
                for now in until..until + 900 {
                    let one = first.update(need(now), 0, HOLD, START, at(now)).0;
                    let other = second.update(need(now), 0, HOLD, START, at(now)).0;
                    assert_eq!(one, other, "{until} {now}");
                }
            }
        }
    }

    #[test]
    fn who_has_just_come_keeps_what_it_was_told() {
        let mut memory = DesiredReplicas::default();
        memory.follow(3.0, 12, HOLD, at(1000));
        let after = |memory: &mut DesiredReplicas, now| memory.update(3.0, 0, HOLD, START, at(now)).0;
        assert_eq!((after(&mut memory, 1001), after(&mut memory, 1300)), (12, 12));
        assert_eq!(after(&mut memory, 1301), 9, "and falls as everybody does");
    }
}
