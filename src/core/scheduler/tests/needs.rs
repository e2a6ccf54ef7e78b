//! What pools need, under loads whose need is known: each replica serves two
//! jobs at once, each for a second.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use crate::core::event::{Action, Event, Outcome};
use crate::core::ids::{JobId, PoolId, ReplicaId};
use crate::core::job::{JobSpec, Prefix};
use crate::core::need::Need;
use crate::core::policy::Policy;
use crate::core::scheduler::Scheduler;
use crate::core::scheduler::tests::{policy, spec, used};
use crate::core::time::Tick;

const SECOND: u64 = 1_000_000_000;
/// Jobs that a replica serves in a second.
const EACH: f64 = 2.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Ends(JobId),
    Arrives,
    Looks,
    Ready,
}

/// A pool whose replicas start and stop as it says it needs them.
struct Farm {
    scheduler: Scheduler,
    now: Tick,
    heap: BinaryHeap<Reverse<(Tick, Next)>>,
    /// Replicas that there are and that are starting.
    ready: u32,
    starting: u32,
    start: u64,
    /// Jobs per second at an instant in seconds.
    rate: fn(f64) -> f64,
    /// A state of the random numbers between arrivals; 0 = evenly spaced.
    noise: u64,
    arrived: u64,
    on: BTreeMap<JobId, ReplicaId>,
    /// Whether replicas follow what is said.
    follows: bool,
    refused: u64,
    late: u64,
    log: Vec<(f64, u32, &'static str, u32)>,
    held: f64,
}

fn farm(replicas: usize, start: u64, max_wait: u64, rate: fn(f64) -> f64) -> Farm {
    let mut rules = policy(&[&vec![EACH as u32; replicas]], &[&[0]]);
    rules.pools.insert("p0", crate::core::policy::Pool {
        cold_start: Some(Duration::from_secs(start)),
        ..rules.pools.get(PoolId::new(0)).unwrap().clone()
    });
    let ids: Vec<_> = rules.classes.iter().map(|(_, name, row)| (name.to_owned(), row.clone())).collect();
    for (name, row) in ids {
        rules.classes.insert(&name, crate::core::policy::Class { max_wait: Duration::from_secs(max_wait), ..row });
    }
    let heap = [(Tick::ZERO, Next::Looks), (Tick::ZERO, Next::Arrives)].map(Reverse);
    Farm {
        scheduler: Scheduler::new(Arc::new(rules)),
        now: Tick::ZERO,
        heap: heap.into_iter().collect(),
        ready: replicas as u32,
        starting: 0,
        start,
        rate,
        noise: 0,
        arrived: 0,
        on: BTreeMap::new(),
        follows: true,
        refused: 0,
        late: 0,
        log: Vec::new(),
        held: 0.0,
    }
}

impl Farm {
    fn need(&mut self) -> Need {
        let one = self.scheduler.needs(self.now);
        assert_eq!(one, self.scheduler.needs(self.now), "asked twice");
        let need = one[0];
        assert!(!need.is_busy() || need.desired >= Some(1), "{need:?}");
        need
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.scheduler.handle(self.now, event, &mut out);
        for action in out {
            match action {
                Action::Dispatch { job, replica, why } => {
                    self.on.insert(job, replica);
                    self.late += u64::from(why.queued > Duration::from_secs(5));
                    self.plan(SECOND, Next::Ends(job));
                }
                Action::Reject { .. } => self.refused += 1,
                _ => {}
            }
        }
    }

    fn plan(&mut self, after: u64, next: Next) {
        self.heap.push(Reverse((self.now + Duration::from_nanos(after), next)));
    }

    fn gap(&mut self) -> u64 {
        let rate = (self.rate)(self.now.as_nanos() as f64 / SECOND as f64);
        if rate <= 0.0 {
            return SECOND;
        }
        let mut gap = SECOND as f64 / rate;
        if self.noise != 0 {
            self.noise = self.noise.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            let unit = ((self.noise >> 11) as f64 / (1u64 << 53) as f64).max(1e-9);
            gap *= -unit.ln();
        }
        gap as u64
    }

    fn arrive(&mut self) {
        if (self.rate)(self.now.as_nanos() as f64 / SECOND as f64) > 0.0 {
            self.arrived += 1;
            let max_wait = self.scheduler.policy().classes.iter().next().unwrap().2.max_wait;
            let id = JobId::new(self.arrived);
            let spec = JobSpec { id, arrived: self.now, deadline: self.now + max_wait, ..spec(1) };
            self.event(Event::Arrived(spec, Prefix::default()));
        }
        let gap = self.gap();
        self.plan(gap, Next::Arrives);
    }

    /// Replicas come and go with a new policy, idle ones first.
    fn resize(&mut self, replicas: u32) {
        let old = Arc::clone(self.scheduler.policy());
        let busy: BTreeSet<ReplicaId> = self.on.values().copied().collect();
        let have: Vec<ReplicaId> = old.replicas.iter().map(|(id, ..)| id).collect();
        let mut keep = have.clone();
        keep.sort_by_key(|id| !busy.contains(id));
        keep.truncate(replicas as usize);
        let mut next = Policy { generation: old.generation + 1, ..(*old).clone() };
        next.replicas = crate::core::table::Table::successor(&old.replicas);
        let mut ids = Vec::new();
        for (id, name, row) in old.replicas.iter().filter(|(id, ..)| keep.contains(id)) {
            assert_eq!(next.replicas.insert(name, row.clone()), id);
            ids.push(id);
        }
        while ids.len() < replicas as usize {
            let row = crate::core::policy::Replica { pool: PoolId::new(0), max_seqs: Some(EACH as u32), kv_tokens: None };
            self.arrived += 1;
            ids.push(next.replicas.insert(&format!("p0/n{}", self.arrived), row));
        }
        let pool = crate::core::policy::Pool { replicas: ids, ..old.pools.get(PoolId::new(0)).unwrap().clone() };
        next.pools.insert("p0", pool);
        self.ready = replicas;
        self.event(Event::PolicyChanged(Arc::new(next)));
    }

    fn look(&mut self) {
        let need = self.need();
        let desired = need.desired.unwrap();
        let second = self.now.as_nanos() as f64 / SECOND as f64;
        self.held += f64::from(self.ready + self.starting) * 0.25;
        if self.log.last().is_none_or(|(_, last, ..)| *last != desired) {
            self.log.push((second, desired, need.reason, self.ready));
        }
        // As often as a horizontal autoscaler looks.
        if self.follows && (second as u64).is_multiple_of(15) && second.fract() == 0.0 {
            for _ in self.ready + self.starting..desired {
                self.starting += 1;
                self.plan(self.start * SECOND, Next::Ready);
            }
            if desired < self.ready {
                self.resize(desired);
            }
        }
        self.plan(SECOND / 4, Next::Looks);
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while let Some(Reverse((at, next))) = self.heap.pop() {
            while let Some(due) = self.scheduler.next_deadline().filter(|due| *due < at.min(end)) {
                self.now = self.now.max(due);
                self.event(Event::Timer);
            }
            if at > end {
                self.heap.push(Reverse((at, next)));
                break;
            }
            self.now = at;
            match next {
                Next::Ends(job) => {
                    self.on.remove(&job);
                    self.event(Event::FirstToken { job });
                    self.event(Event::Finished { job, outcome: Outcome::Done(used(10, 10)) });
                }
                Next::Arrives => self.arrive(),
                Next::Looks => self.look(),
                Next::Ready => {
                    self.starting -= 1;
                    self.resize(self.ready + 1);
                }
            }
        }
        self.now = end;
    }

    fn peak(&self) -> u32 {
        self.log.iter().map(|(_, desired, ..)| *desired).max().unwrap()
    }

    fn turns(&self) -> usize {
        let ways: Vec<bool> = self.log.windows(2).map(|pair| pair[1].1 > pair[0].1).collect();
        ways.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    fn tell(&self, what: &str) {
        let hours = self.held / 3600.0;
        eprintln!("{what}: peak {} turns {} replica hours {hours:.2} arrived {} refused {} late {}", self.peak(), self.turns(), self.arrived, self.refused, self.late);
        for (at, desired, reason, ready) in &self.log {
            eprint!(" {at:.0}s:{desired}({reason},{ready})");
        }
        eprintln!();
    }
}

#[test]
fn a_step_of_load_gets_what_it_needs_and_no_cascade() {
    let mut farm = farm(1, 180, 300, |_| 20.0);
    farm.run(900);
    farm.tell("step, 180 s");
}

#[test]
fn a_step_of_load_sixty() {
    let mut farm = farm(1, 60, 300, |_| 20.0);
    farm.run(900);
    farm.tell("step, 60 s");
}

#[test]
fn a_step_of_load_hopeless() {
    let mut farm = farm(1, 180, 30, |_| 20.0);
    farm.run(1800);
    farm.tell("step, 180 s, hopeless");
}

#[test]
fn a_short_burst_is_not_taken_for_a_load() {
    for max_wait in [30, 300] {
        let mut farm = farm(1, 180, max_wait, |s| if s < 40.0 { 20.0 } else { 0.4 });
        farm.run(1800);
        farm.tell(&format!("burst, tolerance {max_wait}"));
    }
}

#[test]
fn a_burst_in_the_middle() {
    for max_wait in [30, 300] {
        let mut farm = farm(1, 180, max_wait, |s| if s > 600.0 && s < 640.0 { 20.0 } else { 0.4 });
        farm.run(2400);
        farm.tell(&format!("burst in the middle, tolerance {max_wait}"));
    }
}

#[test]
fn a_ramp() {
    let mut farm = farm(2, 180, 30, |s| 3.0 + 40.0 * s / 7200.0);
    farm.noise = 3;
    farm.run(7200);
    farm.tell("ramp");
}

#[test]
fn steady_poisson() {
    for rate in [|_| 1.7, |_| 3.1, |_| 4.8, |_| 8.0, |_| 15.7, |_| 31.0_f64] as [fn(f64) -> f64; 6] {
        let mut farm = farm(1, 60, 30, rate);
        farm.noise = 7;
        farm.run(3 * 3600);
        farm.tell(&format!("steady {}", rate(0.0)));
    }
}

#[test]
fn square_waves() {
    for (start, wait) in [(60, 30), (180, 30), (180, 300)] {
        let mut farm = farm(2, start, wait, |s| if s % 1800.0 < 600.0 { 20.0 } else { 2.0 });
        farm.noise = 5;
        farm.run(4 * 3600);
        farm.tell(&format!("square {start} {wait}"));
    }
}
