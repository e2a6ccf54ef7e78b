//! Tests of replica demand under loads whose need is known: each replica serves two jobs at once,
//! each for a second.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use crate::autoscale::demand::state::{DemandState, ProfileKind};
use crate::autoscale::demand::work::work;
use crate::autoscale::demand_report::PeerDemand;
use crate::autoscale::replica_demand::ReplicaDemand;
use crate::model::event::{Action, AttemptOutcome, Event, JobAction};
use crate::model::id_table::IdTable;
use crate::model::ids::{JobId, PoolId, ReplicaId};
use crate::model::job::{JobSpec, PromptPrefix};
use crate::model::overrides::{Override, OverrideChange};
use crate::model::policy::{Class, Policy, Pool, Replica};
use crate::model::time::Tick;
use crate::scheduler::tests::{ObservedScheduler, policy, spec, used};

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
    scheduler: ObservedScheduler,
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
    /// Jobs that are not told to end.
    stuck: BTreeSet<JobId>,
    refused: u64,
    late: u64,
    /// Seconds, what it said and why, and what there was.
    log: Vec<(f64, u32, &'static str, u32)>,
    /// Replica seconds.
    held: f64,
}

fn farm(replicas: usize, start: u64, max_wait: u64, rate: fn(f64) -> f64) -> Farm {
    let mut rules = policy(&[&vec![EACH as u32; replicas]], &[&[0]]);
    rules.pools.insert(
        "p0",
        Pool {
            cold_start: Some(Duration::from_secs(start)),
            ..rules.pools.get(PoolId::new(0)).unwrap().clone()
        },
    );
    let ids: Vec<_> = rules.classes.iter().map(|(_, name, row)| (name.to_owned(), row.clone())).collect();
    for (name, row) in ids {
        rules.classes.insert(&name, Class { max_wait: Duration::from_secs(max_wait), ..row });
    }
    let heap = [(Tick::ZERO, Next::Looks), (Tick::ZERO, Next::Arrives)].map(Reverse);
    Farm {
        scheduler: ObservedScheduler::new(Arc::new(rules)),
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
        stuck: BTreeSet::new(),
        refused: 0,
        late: 0,
        log: Vec::new(),
        held: 0.0,
    }
}

impl Farm {
    fn need(&mut self) -> ReplicaDemand {
        let need = self.scheduler.replica_demand(self.now, &PeerDemand::default())[0];
        if let Some(growth) = self.scheduler.observer.take_growth() {
            self.event(growth);
        }
        assert!(!need.is_busy() || need.desired >= Some(1), "{need:?}");
        need
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.scheduler.handle(self.now, event, &mut out);
        for action in out {
            match action {
                Action::Job(JobAction::Dispatch(grant)) => {
                    self.on.insert(grant.job, grant.replica);
                    self.late += u64::from(grant.why.queued > Duration::from_secs(5));
                    self.plan(SECOND, Next::Ends(grant.job));
                }
                Action::Job(JobAction::Reject { .. }) => self.refused += 1,
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
            self.event(Event::Arrived(spec, PromptPrefix::default()));
        }
        let gap = self.gap();
        self.plan(gap, Next::Arrives);
    }

    /// Replicas come and go with a new policy, idle ones first.
    fn resize(&mut self, replicas: u32) {
        let old = Arc::clone(self.scheduler.policy());
        let busy: BTreeSet<ReplicaId> = self.on.values().copied().collect();
        let have: Vec<ReplicaId> = old.replicas.iter().map(|(id, ..)| id).collect();
        let mut keep = have;
        keep.sort_by_key(|id| !busy.contains(id));
        keep.truncate(replicas as usize);
        let mut next = Policy { generation: old.generation + 1, ..(*old).clone() };
        next.replicas = IdTable::successor(&old.replicas);
        let mut ids = Vec::new();
        for (id, name, row) in old.replicas.iter().filter(|(id, ..)| keep.contains(id)) {
            assert_eq!(next.replicas.insert(name, row.clone()), id);
            ids.push(id);
        }
        while ids.len() < replicas as usize {
            let row = Replica { pool: PoolId::new(0), max_seqs: Some(EACH as u32), kv_tokens: None };
            self.arrived += 1;
            ids.push(next.replicas.insert(&format!("p0/n{}", self.arrived), row));
        }
        let pool = Pool { replicas: ids, ..old.pools.get(PoolId::new(0)).unwrap().clone() };
        next.pools.insert("p0", pool);
        self.ready = replicas;
        self.event(Event::PolicyChanged(Arc::new(next)));
    }

    fn look(&mut self) {
        let need = self.need();
        let desired = need.desired.unwrap();
        let second = self.now.as_nanos() as f64 / SECOND as f64;
        self.held += f64::from(self.ready + self.starting);
        if self.log.last().is_none_or(|(_, last, ..)| *last != desired) {
            self.log.push((second, desired, need.reason, self.ready));
        }
        // As often as a horizontal autoscaler looks.
        if self.follows && (second as u64).is_multiple_of(15) {
            for _ in self.ready + self.starting..desired {
                self.starting += 1;
                self.plan(self.start * SECOND, Next::Ready);
            }
            if desired < self.ready {
                self.resize(desired);
            }
        }
        self.plan(SECOND, Next::Looks);
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
                Next::Ends(job) if self.stuck.contains(&job) => {}
                Next::Ends(job) => {
                    self.on.remove(&job);
                    self.event(Event::FirstToken { job });
                    self.event(Event::Finished { job, outcome: AttemptOutcome::Done(used(10, 10)) });
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

    /// Replica seconds, with those that start.
    fn seconds(&self) -> f64 {
        self.held
    }

    /// What it said and when, for a test that fails.
    fn story(&self) -> String {
        let word = |(at, desired, reason, ready): &(f64, u32, &str, u32)| {
            format!("{at:.0}s {desired} {reason} ({ready})")
        };
        let told: Vec<String> = self.log.iter().map(word).collect();
        format!("{} of {} refused, {} late; {}", self.refused, self.arrived, self.late, told.join(", "))
    }
}

#[test]
fn a_step_of_load_gets_what_it_needs_and_no_cascade() {
    // Ten replicas are needed from now on, and there is one.
    let mut patient = farm(1, 180, 300, |_| 20.0);
    patient.run(900);
    assert!((11..=24).contains(&patient.peak()), "{}", patient.story());
    assert!(patient.refused * 30 < patient.arrived, "{}", patient.story());
    let mut urgent = farm(1, 180, 30, |_| 20.0);
    urgent.run(900);
    assert!((11..=15).contains(&urgent.peak()), "{}", urgent.story());
    assert!(urgent.ready >= 10, "{}", urgent.story());
}

#[test]
fn a_burst_that_is_short_against_a_start_is_not_taken_for_a_load() {
    for (max_wait, most) in [(30, 4), (300, 6)] {
        let mut farm =
            farm(1, 180, max_wait, |second| if (600.0..640.0).contains(&second) { 20.0 } else { 0.4 });
        farm.run(2000);
        assert!(farm.peak() <= most, "{}", farm.story());
        assert_eq!(farm.log.last().unwrap().1, 1, "{}", farm.story());
    }
}

#[test]
fn a_ramp_is_followed() {
    let mut farm = farm(2, 180, 30, |second| 3.0 + second / 180.0);
    farm.noise = 3;
    farm.run(3600);
    // 23 jobs a second in the end: 11.5 replicas, 14.4 with headroom.
    assert!((12..=20).contains(&farm.peak()), "{}", farm.story());
    // What is late has its turn before more of what comes later than that.
    assert!(farm.refused * 150 < farm.arrived && farm.late * 12 < farm.arrived, "{}", farm.story());
}

#[test]
fn steady_demand_does_not_flap() {
    for rate in [|_| 1.7, |_| 3.1, |_| 4.8] as [fn(f64) -> f64; 3] {
        let need = rate(0.0) / EACH;
        let mut farm = farm(need.ceil() as usize + 1, 60, 30, rate);
        farm.noise = 7;
        farm.run(2 * 3600);
        assert!(farm.turns() <= 4, "{}", farm.story());
        assert!(farm.seconds() / 7200.0 < need * 1.6 + 1.3, "{}", farm.story());
        assert!(farm.refused * 500 < farm.arrived, "{}", farm.story());
    }
}

#[test]
fn a_load_that_comes_and_goes_is_let_go_in_between() {
    let mut farm = farm(2, 60, 120, |second| if second % 1800.0 < 600.0 { 20.0 } else { 1.0 });
    farm.noise = 5;
    farm.run(2 * 3600);
    let peak = f64::from(farm.peak());
    assert!(farm.seconds() < 0.75 * peak * 7200.0, "{}", farm.story());
    assert!(farm.refused * 50 < farm.arrived, "{}", farm.story());
}

#[test]
fn an_idle_pool_goes_to_zero_and_not_under_a_stream() {
    let mut farm = farm(1, 60, 60, |second| if second < 10.0 { 1.0 } else { 0.0 });
    farm.stuck.insert(JobId::new(3));
    farm.run(3600);
    assert_eq!(farm.log.last().unwrap().1, 1, "{}", farm.story());
    farm.on.remove(&JobId::new(3));
    farm.event(Event::Abandoned { job: JobId::new(3), usage: used(1, 1) });
    assert_eq!(farm.need().desired, Some(1), "for a while");
    farm.run(400);
    let need = farm.need();
    assert_eq!((need.desired, need.reason, farm.ready), (Some(0), "idle", 0), "{}", farm.story());
    farm.rate = |_| 1.0;
    farm.run(3);
    let need = farm.need();
    assert_eq!((need.desired, need.reason, need.ready), (Some(1), "start", 0));
}

#[test]
fn work_that_can_wait_starts_a_cold_pool_when_its_time_has_come() {
    let come = |second: f64| if second < 10.0 || (1000.0..1003.0).contains(&second) { 1.0 } else { 0.0 };
    let mut farm = farm(1, 60, 7200, come);
    farm.run(990);
    assert_eq!((farm.need().desired, farm.ready), (Some(0), 0), "{}", farm.story());
    farm.run(60);
    let need = farm.need();
    assert_eq!((need.desired, need.reason, need.queued, need.due), (Some(0), "later", 3, false));
    assert!(!need.is_busy(), "KEDA is not told of it either");
    farm.run(3400);
    assert_eq!((farm.ready, farm.need().queued), (0, 3), "{}", farm.story());
    farm.run(200);
    assert_eq!(
        (farm.need().queued, farm.refused),
        (0, 0),
        "half of two hours but for the start: {}",
        farm.story()
    );
}

#[test]
fn work_that_can_wait_and_keeps_a_replica_busy_is_worth_a_start() {
    let mut farm = farm(1, 60, 7200, |second| {
        if second < 10.0 {
            1.0
        } else if second < 1000.0 {
            0.0
        } else {
            4.0
        }
    });
    farm.run(990);
    assert_eq!(farm.ready, 0, "{}", farm.story());
    farm.run(1800);
    assert!(farm.ready >= 1 && farm.refused == 0, "{}", farm.story());
}

#[test]
fn after_a_restart_what_is_there_is_kept_until_a_window_has_passed() {
    let mut farm = farm(6, 90, 30, |_| 2.0);
    farm.follows = false;
    farm.run(89);
    assert!(farm.log.iter().all(|(_, desired, ..)| *desired >= 6), "{}", farm.story());
    assert_eq!(farm.need().reason, "hold_restart");
    farm.run(3);
    assert_eq!(farm.need().desired, Some(2), "{}", farm.story());
}

#[test]
fn bounds_of_the_file_hold() {
    let mut farm = farm(1, 60, 30, |_| 20.0);
    let mut rules = (**farm.scheduler.policy()).clone();
    let row = rules.pools.get(PoolId::new(0)).unwrap().clone();
    rules.pools.insert("p0", Pool { min_replicas: 2, max_replicas: Some(4), ..row });
    farm.event(Event::PolicyChanged(Arc::new(rules)));
    let need = farm.need();
    assert_eq!((need.desired, need.reason, need.keep_above_zero), (Some(2), "floor", true));
    farm.run(200);
    let need = farm.need();
    assert_eq!((need.desired, need.reason), (Some(4), "clamp"), "{}", farm.story());
}

#[test]
fn what_was_seen_survives_a_restart() {
    let mut farm = farm(2, 60, 30, |_| 3.0);
    farm.run(600);
    let save = |ObservedScheduler { scheduler, observer }: &mut ObservedScheduler| {
        scheduler.flush_demand_facts(observer);
        let mut state = observer.save();
        scheduler.complete_demand_state(&mut state);
        state
    };
    let state = save(&mut farm.scheduler);
    let text = serde_json::to_string(&state).unwrap();
    let back: DemandState = serde_json::from_str(&text).unwrap();
    assert_eq!(back, state);
    let cost = state.pools[0].cost.unwrap();
    assert!(
        (0.8..1.2).contains(&(cost * 2.0 * work(10, 10))),
        "half a second of a replica for a job: {cost}"
    );
    let class = state.rows.iter().find(|row| row.kind == ProfileKind::Class && row.name == "first").unwrap();
    let usual = class.seen.minutes.iter().filter(|minute| (minute.level - 3.0).abs() < 0.5).count();
    assert!(2 * usual > class.seen.minutes.len(), "{:?}", class.seen.minutes);

    let mut next = ObservedScheduler::new(Arc::clone(farm.scheduler.policy()));
    next.scheduler.flush_demand_facts(&mut next.observer);
    assert!(!next.observer.restore(&DemandState { version: 0, ..DemandState::default() }));
    assert!(next.observer.restore(&back));
    let starts = Event::StartsRestored(back.starts(next.policy()));
    next.scheduler.handle(Tick::ZERO, starts, &mut Vec::new());
    let mut again = state;
    assert!(again.pools[0].read_per_second.take().is_some(), "what replicas have shown is of this process");
    assert_eq!(save(&mut next), again);
}

#[test]
fn jobs_of_a_paused_tenant_start_no_replica() {
    let mut farm = farm(1, 60, 300, |second| if second < 20.0 { 10.0 } else { 0.0 });
    farm.follows = false;
    farm.run(20);
    let before = farm.need();
    assert!(before.queued > 100, "{before:?}");
    let tenant = spec(1).tenant;
    let measure = OverrideChange::Pause(tenant);
    let order = Override { change: measure, until: Tick::from_millis(120_000), reason: "".into() };
    farm.event(Event::Overridden(order));
    let paused = farm.need();
    assert_eq!((paused.queued, paused.queued_tokens), (0, 0), "{paused:?}");
    assert!(paused.in_flight > 0);
    farm.run(120);
    assert!(farm.need().queued > 0, "the pause is over");
}
