//! Clients that wait for each answer before they send again: what they ask for
//! never exceeds what they get, however long they wait.

use std::time::Duration;

use crate::core::ids::ClassId;
use crate::core::job::JobSpec;
use crate::core::policy::Class;
use crate::core::scheduler::tests::{World, class, policy, rejected, sent, spec};
use crate::core::time::Tick;

/// Seconds that an engine takes for each job.
const EACH: u64 = 10;

/// A closed loop of clients of the second class.
struct Loop {
    world: World,
    max_wait: Duration,
    next: u64,
    refused: u64,
    /// Ends of the jobs that run, and when clients come back.
    running: Vec<(u64, u64)>,
    back: Vec<u64>,
}

impl Loop {
    /// So many clients at a replica that runs ten jobs at once; with `chat`, one job
    /// of the first class runs there all the time, so that the others are guests.
    fn new(clients: usize, max_wait: u64, chat: bool) -> Self {
        let max_wait = Duration::from_secs(max_wait);
        let mut rules = policy(&[&[10]], &[&[0]]);
        let row = Class { max_wait, ttft_objective: Duration::from_secs(5), ..class(1, 0.0) };
        rules.classes.insert("second", row);
        let mut world = World::new(rules);
        if chat {
            assert_eq!(sent(&world.arrive(spec(0))).len(), 1);
        }
        Self { world, max_wait, next: 1, refused: 0, running: Vec::new(), back: vec![0; clients] }
    }

    /// Lets the second pass; what is needed at its end: number, reason, what there is.
    fn second(&mut self, second: u64) -> (Option<u32>, &'static str, u32) {
        self.world.at(second * 1_000);
        while let Some(place) = self.running.iter().position(|(end, _)| *end <= second) {
            let (_, job) = self.running.remove(place);
            self.back.push(second);
            let actions = self.world.done(job);
            self.running.extend(sent(&actions).iter().map(|(job, _)| (second + EACH, *job)));
        }
        while let Some(place) = self.back.iter().position(|at| *at <= second) {
            self.back.remove(place);
            let arrived = self.world.now;
            let class = ClassId::new(1);
            let job = JobSpec { class, arrived, deadline: arrived + self.max_wait, ..spec(self.next) };
            self.next += 1;
            let actions = self.world.arrive(job);
            self.running.extend(sent(&actions).iter().map(|(job, _)| (second + EACH, *job)));
            self.gone(second, rejected(&actions).len());
        }
        let need = self.world.scheduler.needs(Tick::from_millis(second * 1_000))[0];
        (need.desired, need.reason, need.ready)
    }

    fn gone(&mut self, second: u64, clients: usize) {
        self.refused += clients as u64;
        self.back.extend(std::iter::repeat_n(second + 5, clients));
    }
}

#[test]
fn what_waits_in_a_closed_loop_is_demand() {
    let mut few = Loop::new(4, 300, false);
    let calm: Vec<_> = (0..900).map(|second| few.second(second)).collect();
    assert!(calm.iter().all(|(desired, ..)| *desired == Some(1)), "{calm:?}");

    let mut many = Loop::new(30, 300, true);
    let seen: Vec<_> = (0..900).map(|second| many.second(second)).collect();
    assert_eq!(many.refused, 0);
    assert!(seen[..60].iter().all(|(desired, ..)| *desired == Some(1)), "{seen:?}");
    assert!(seen[300..].iter().all(|(desired, _, ready)| *desired > Some(*ready)), "{seen:?}");
    assert!(seen[300..].iter().any(|(_, why, _)| *why == "unmet"), "{seen:?}");
}

#[test]
fn what_is_refused_in_a_closed_loop_is_demand() {
    let mut many = Loop::new(30, 60, true);
    let seen: Vec<_> = (0..900).map(|second| many.second(second)).collect();
    assert!(many.refused > 10, "{}", many.refused);
    assert!(seen[300..].iter().all(|(desired, _, ready)| *desired > Some(*ready)), "{seen:?}");
}
