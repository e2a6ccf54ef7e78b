//! Tests of closed loops: clients that wait for each answer before they send again. Their
//! measured demand never exceeds what is served, however long they wait.

use std::time::Duration;

use crate::autoscale::demand_report::PeerDemand;
use crate::model::event::{Action, AttemptOutcome, Event, Rejection};
use crate::model::ids::ClassId;
use crate::model::job::JobSpec;
use crate::model::policy::Class;
use crate::model::time::Tick;
use crate::scheduler::tests::{World, class, policy, rejected, sent, spec, used};

/// Seconds that an engine takes for each job, and the tokens of its answer.
const EACH: u64 = 2;
const OUTPUT: u64 = 200;

/// A closed loop of clients of the second class.
struct Loop {
    world: World,
    max_wait: Duration,
    next: u64,
    refused: u64,
    /// Those of them that had waited for more than five seconds.
    told_late: usize,
    /// Ends of the jobs that run, and when clients come back.
    running: Vec<(u64, u64)>,
    back: Vec<u64>,
    /// Whether they ask for plain answers, of which no first token is seen.
    plain: bool,
}

impl Loop {
    /// So many clients at a replica that runs ten jobs at once; with `chat`, one job
    /// of the first class runs there all the time, so that the others are background. With `plain`,
    /// nothing is seen of the clients' answers before their end.
    fn new(clients: usize, max_wait: u64, chat: bool, plain: bool) -> Self {
        let max_wait = Duration::from_secs(max_wait);
        let mut rules = policy(&[&[10]], &[&[0]]);
        let row = Class { max_wait, ..class(1, 0.0) };
        rules.classes.insert("second", row);
        let mut world = World::new(rules).audited_every(50);
        if chat {
            assert_eq!(sent(&world.arrive(spec(0))).len(), 1);
            world.event(Event::FirstToken { job: spec(0).id });
        }
        Self {
            world,
            max_wait,
            next: 1,
            refused: 0,
            told_late: 0,
            running: Vec::new(),
            back: vec![0; clients],
            plain,
        }
    }

    /// Lets the second pass; what is needed at its end: number, reason, what there is.
    fn second(&mut self, second: u64) -> (Option<u32>, &'static str, u32) {
        let now = Tick::from_millis(second * 1_000);
        while let Some(due) = self.world.scheduler.next_deadline().filter(|due| *due < now) {
            self.world.now = self.world.now.max(due);
            let actions = self.world.event(Event::Timer);
            self.note(&actions);
        }
        let actions = self.world.at(second * 1_000);
        self.note(&actions);
        while let Some(place) = self.running.iter().position(|(end, _)| *end <= second) {
            let (_, job) = self.running.remove(place);
            self.back.push(second);
            let actions = self.world.finish(job, AttemptOutcome::Done(used(10, OUTPUT)));
            self.note(&actions);
        }
        while let Some(place) = self.back.iter().position(|at| *at <= second) {
            self.back.remove(place);
            let arrived = self.world.now;
            let class = ClassId::new(1);
            let job = JobSpec {
                class,
                arrived,
                deadline: arrived + self.max_wait,
                max_output_tokens: OUTPUT,
                streams: !self.plain,
                ..spec(self.next)
            };
            self.next += 1;
            let actions = self.world.arrive(job);
            self.note(&actions);
        }
        let need = self.world.scheduler.replica_demand(now, &PeerDemand::default())[0];
        if let Some(growth) = self.world.scheduler.observer.take_growth() {
            let actions = self.world.event(growth);
            self.note(&actions);
        }
        (need.desired, need.reason, need.ready)
    }

    fn note(&mut self, actions: &[Action]) {
        let second = self.world.now.as_nanos() / 1_000_000_000;
        for (job, _) in sent(actions) {
            self.running.push((second + EACH, job));
            if self.plain {
                continue;
            }
            let more = self.world.event(Event::FirstToken { job: spec(job).id });
            self.note(&more);
        }
        let refused = rejected(actions);
        self.refused += refused.len() as u64;
        let late = |(_, why): &&(u64, Rejection)| why.queued > Duration::from_secs(5);
        self.told_late += refused.iter().filter(late).count();
        self.back.extend(refused.iter().map(|_| second + 5));
    }
}

/// The last minutes of what was said.
fn end(of: &mut Loop) -> Vec<(Option<u32>, &'static str, u32)> {
    let seen = (0..1_200).map(|second| of.second(second));
    seen.skip(1_080).collect()
}

#[test]
fn what_waits_in_a_closed_loop_is_demand() {
    for plain in [false, true] {
        let calm = end(&mut Loop::new(3, 300, false, plain));
        assert!(calm.iter().all(|(desired, ..)| *desired == Some(1)), "{plain} {calm:?}");
        let mut many = Loop::new(120, 60, true, plain);
        let seen = end(&mut many);
        // Clients whose plain answers end together come back together and are in time. They take three
        // of four turns of a class with this `max_wait`, so that late ones are refused early: rule 3
        // of `docs/decisions/027-late-jobs.md`.
        assert!(plain || many.refused == 0, "{}", many.refused);
        assert!(seen.iter().all(|(desired, _, ready)| *desired > Some(*ready)), "{plain} {seen:?}");
    }
}

#[test]
fn what_is_refused_in_a_closed_loop_is_demand() {
    for plain in [false, true] {
        let mut many = Loop::new(120, 30, true, plain);
        let seen = end(&mut many);
        assert!(many.refused > 10, "{plain} {}", many.refused);
        assert!(many.told_late * 4 < many.refused as usize, "{plain} {} of {}", many.told_late, many.refused);
        assert!(seen.iter().all(|(desired, _, ready)| *desired > Some(*ready)), "{plain} {seen:?}");
    }
}
