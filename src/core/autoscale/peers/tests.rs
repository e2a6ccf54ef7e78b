//! Peer tests: gateways that hear each other, or do not.

use std::time::Duration;

use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::{MAX_PEERS, PeerGroup, PeerRole, PeerView};
use crate::autoscale::demand_report::{DecidedNumber, DemandReport, PoolReport, PoolSetKey, PoolSetReport};
use crate::autoscale::peers::report::{GatewayId, PeerReport, ReportOutcome, ScaleDecision};
use crate::model::time::Tick;

fn at(millis: u64) -> Tick {
    Tick::from_millis(millis)
}

fn name(id: u64) -> GatewayId {
    GatewayId { epoch: id, id: 100 - id }
}

fn place(id: u64) -> String {
    format!("10.0.0.{id}:8082")
}

/// Demand report of a gateway: this many jobs, and as much work per second.
fn demand(amount: u64) -> DemandReport {
    let part = PoolReport { in_flight: amount, queued_tokens: 10 * amount, ..PoolReport::default() };
    let key = PoolSetKey { class: "standard".into(), pools: vec!["main".into()] };
    let pool_set = PoolSetReport { sustained: amount as f64, waiting: amount, ..PoolSetReport::default() };
    DemandReport { pools: [("main".to_owned(), part)].into(), pool_sets: [(key, pool_set)].into() }
}

fn jobs(demand: &DemandReport) -> u64 {
    demand.pools.get("main").map_or(0, |part| part.in_flight)
}

fn decision(by: u64, desired: u32) -> ScaleDecision {
    let number = DecidedNumber { desired, reason: "sustained".into(), keep_above_zero: false };
    ScaleDecision { by: name(by), age: Duration::ZERO, numbers: [("main".to_owned(), number)].into() }
}

/// A report of gateway `from` in which it sees `amount`.
fn report(from: u64, sequence: u64, amount: u64) -> PeerReport {
    PeerReport { from: name(from), sequence, demand: demand(amount), ..PeerReport::default() }
}

/// Gateway 5 of the gateways `others` and itself, all listed at the start.
fn five(others: &[u64]) -> PeerGroup {
    let mut peers = PeerGroup::new(name(5));
    peers.list(&others.iter().chain(&[5]).map(|id| place(*id)).collect(), at(0));
    assert_eq!(peers.store_report(&place(5), report(5, 1, 9), at(0)), ReportOutcome::Own);
    peers
}

#[test]
fn what_all_see_is_summed_and_oneself_is_no_other() {
    let mut peers = five(&[1, 2]);
    assert_eq!(
        peers.update(&DemandReport::default(), false, at(10)).role,
        PeerRole::Blind,
        "nobody was heard yet"
    );
    assert_eq!(peers.store_report(&place(1), report(1, 1, 3), at(10)), ReportOutcome::Urgent);
    assert_eq!(peers.store_report(&place(2), report(2, 1, 4), at(10)), ReportOutcome::Urgent);
    let sight = peers.update(&DemandReport::default(), false, at(20));
    assert_eq!((jobs(&sight.others), sight.count.known, sight.count.live), (7, 3, 2));
    assert_eq!(sight.role, PeerRole::Waits, "1 decides, and has not yet");
    assert_eq!(
        peers.store_report("10.9.9.9:1", report(7, 1, 4), at(20)),
        ReportOutcome::Stale,
        "nobody should be there"
    );
}

#[test]
fn what_is_older_is_ignored_and_a_restart_counts_once() {
    let mut peers = five(&[1]);
    assert_eq!(peers.store_report(&place(1), report(1, 4, 3), at(0)), ReportOutcome::Urgent);
    assert_eq!(peers.store_report(&place(1), report(1, 4, 8), at(0)), ReportOutcome::Stale);
    assert_eq!(peers.store_report(&place(1), report(1, 3, 8), at(0)), ReportOutcome::Stale);
    assert_eq!(peers.store_report(&place(1), report(1, 5, 3), at(0)), ReportOutcome::Stored);
    // Another process at the same place, with a count of its own.
    assert_eq!(peers.store_report(&place(1), report(2, 1, 2), at(100)), ReportOutcome::Urgent);
    assert_eq!(
        peers.store_report(&place(1), report(1, 6, 9), at(200)),
        ReportOutcome::Stale,
        "the one before"
    );
    let sight = peers.update(&DemandReport::default(), false, at(300));
    assert_eq!((jobs(&sight.others), sight.count.live), (2, 1));
}

#[test]
fn one_at_two_places_counts_once() {
    let mut peers = five(&[1, 2]);
    peers.store_report(&place(1), report(1, 1, 3), at(0));
    peers.store_report(&place(2), report(1, 2, 4), at(0));
    let sight = peers.update(&DemandReport::default(), false, at(0));
    assert_eq!((jobs(&sight.others), sight.count.known), (4, 2));
}

#[test]
fn who_is_lost_counts_until_others_have_taken_over() {
    let mut peers = five(&[1, 2]);
    peers.store_report(&place(1), report(1, 1, 6), at(0));
    peers.store_report(&place(2), report(2, 1, 4), at(0));
    let others = |peers: &mut PeerGroup, second: u64, amount: u64| {
        peers.store_report(&place(2), report(2, second + 2, amount), at(second * 1000));
        let sight = peers.update(&DemandReport::default(), false, at(second * 1000));
        (jobs(&sight.others), sight.count.live, sight.count.replayed)
    };
    assert_eq!(others(&mut peers, 4, 4), (10, 2, 0));
    assert_eq!(others(&mut peers, 6, 4), (10, 1, 1), "1 is lost");
    assert_eq!(others(&mut peers, 10, 7), (10, 1, 1), "2 has half of its jobs");
    assert_eq!(others(&mut peers, 11, 12), (12, 1, 1), "and more than all");
    assert_eq!(others(&mut peers, 20, 1), (7, 1, 1), "no more than both");
    assert_eq!(others(&mut peers, 30, 5), (10, 1, 1));
    assert_eq!(others(&mut peers, 31, 5), (5, 1, 0), "it is over");
}

#[test]
fn what_this_one_has_taken_over_counts_as_taken_over() {
    let mut peers = five(&[1]);
    peers.store_report(&place(1), report(1, 1, 6), at(0));
    let others = |peers: &mut PeerGroup, second: u64, own: u64| {
        jobs(&peers.update(&demand(own), false, at(second * 1000)).others)
    };
    assert_eq!((others(&mut peers, 4, 4), others(&mut peers, 6, 4)), (6, 6));
    assert_eq!((others(&mut peers, 8, 7), others(&mut peers, 9, 30)), (3, 0));
    assert_eq!(others(&mut peers, 10, 1), 6, "no more than it said");
}

#[test]
fn a_goodbye_removes_at_once_and_nobody_is_missed() {
    let mut peers = five(&[1, 2, 3]);
    for id in 1..4 {
        peers.store_report(&place(id), report(id, 1, 2), at(0));
    }
    let mut last = report(1, 2, 2);
    last.leaving = true;
    assert_eq!(peers.store_report(&place(1), last, at(500)), ReportOutcome::Urgent);
    let sight = peers.update(&DemandReport::default(), false, at(500));
    assert_eq!((jobs(&sight.others), sight.count.known, sight.count.silent), (4, 3, 0));
    assert!(peers.is_listed(&place(1)), "it may come back");
}

#[test]
fn more_than_a_third_in_silence_is_too_much() {
    let mut peers = five(&[1, 2]);
    let hear = |peers: &mut PeerGroup, id: u64, second: u64| {
        peers.store_report(&place(id), report(id, second + 1, 1), at(second * 1000));
    };
    (1..3).for_each(|id| hear(&mut peers, id, 0));
    hear(&mut peers, 2, 9);
    let blind = |peers: &mut PeerGroup, second: u64| {
        peers.update(&DemandReport::default(), false, at(second * 1000)).blind
    };
    assert!(!blind(&mut peers, 12), "one of three");
    assert!(blind(&mut peers, 20), "two of three");
    hear(&mut peers, 2, 21);
    assert!(!blind(&mut peers, 21));
    // One of two gateways is lost: half of them.
    let mut peers = five(&[1]);
    hear(&mut peers, 1, 0);
    assert!(!blind(&mut peers, 10) && blind(&mut peers, 11));
    assert!(!blind(&mut peers, 301), "by now all of the demand was seen here");
}

#[test]
fn who_comes_later_has_time_to_come_up() {
    let mut peers = PeerGroup::new(name(5));
    assert!(peers.update(&DemandReport::default(), false, at(0)).blind, "nobody knows yet where others are");
    peers.list(&[place(5)].into(), at(0));
    assert!(peers.update(&DemandReport::default(), false, at(0)).blind, "it has not found itself yet");
    peers.store_report(&place(5), report(5, 1, 0), at(0));
    assert_eq!(
        peers.update(&DemandReport::default(), false, at(0)).role,
        PeerRole::Decides(None),
        "it is alone"
    );
    peers.list(&[place(5), place(6)].into(), at(1000));
    assert!(
        !peers.update(&DemandReport::default(), false, at(11_000)).blind
            && peers.update(&DemandReport::default(), false, at(11_001)).blind
    );
    peers.list(&[place(5)].into(), at(12_000));
    assert!(!peers.update(&DemandReport::default(), false, at(12_000)).blind, "it never came");
}

#[test]
fn without_a_whole_list_there_is_no_number() {
    let mut peers = five(&[1]);
    peers.store_report(&place(1), report(1, 1, 3), at(0));
    assert!(!peers.update(&DemandReport::default(), false, at(10)).blind);
    peers.mark_incomplete();
    let sight = peers.update(&DemandReport::default(), false, at(20));
    assert_eq!((sight.role, jobs(&sight.others)), (PeerRole::Blind, 3), "what is known counts");
    peers.list(&[place(1), place(5)].into(), at(30));
    assert!(!peers.update(&DemandReport::default(), false, at(30)).blind);
}

#[test]
fn who_runs_and_is_silent_is_missed_for_more_than_five_minutes() {
    let mut peers = five(&[1]);
    peers.store_report(&place(1), report(1, 1, 3), at(0));
    for second in 11..700 {
        peers.note_running(&place(1), at(second * 1000));
        let view = peers.update(&DemandReport::default(), false, at(second * 1000));
        assert_eq!((view.blind, view.count.silent, view.count.known), (true, 1, 2), "{second}");
    }
    assert!(peers.remove(&place(1)) && !peers.remove(&place(1)));
    assert!(!peers.update(&DemandReport::default(), false, at(700_000)).blind);
}

#[test]
fn who_was_replaced_counts_no_more() {
    let mut peers = five(&[1, 2]);
    peers.store_report(&place(1), report(1, 1, 3), at(0));
    peers.store_report(&place(2), report(2, 1, 4), at(0));
    assert!(peers.remove(&place(1)));
    let view = peers.update(&DemandReport::default(), false, at(3000));
    assert_eq!((jobs(&view.others), view.count.known, view.count.live), (4, 2, 1));
}

#[test]
fn the_eldest_decides_and_the_next_one_takes_over() {
    let mut peers = five(&[1, 7]);
    let hear = |peers: &mut PeerGroup, id: u64, millis: u64, told: Option<ScaleDecision>| {
        let told = PeerReport { decision: told, ..report(id, millis + 1, 1) };
        peers.store_report(&place(id), told, at(millis));
    };
    hear(&mut peers, 1, 0, Some(decision(1, 4)));
    hear(&mut peers, 7, 0, None);
    let sight = peers.update(&DemandReport::default(), false, at(100));
    let aged = ScaleDecision { age: Duration::from_millis(100), ..decision(1, 4) };
    assert_eq!((sight.role, sight.decider), (PeerRole::Follows(aged), Some(name(1))));
    // The decider falls silent. Another gateway repeats its decision with the decision's age.
    let old = ScaleDecision { age: Duration::from_millis(3000), ..decision(1, 4) };
    hear(&mut peers, 7, 4000, Some(old));
    assert!(matches!(peers.update(&DemandReport::default(), false, at(5999)).role, PeerRole::Follows(_)));
    assert_eq!(
        peers.update(&DemandReport::default(), false, at(6000)).role,
        PeerRole::Decides(None),
        "five seconds old"
    );
    // The decision of a younger gateway is continued, not followed.
    hear(&mut peers, 7, 7000, Some(decision(7, 9)));
    assert!(
        matches!(peers.update(&DemandReport::default(), false, at(7000)).role, PeerRole::Decides(Some(told)) if told.by == name(7))
    );
    // A draining gateway hands the decision over.
    let told = peers.update(&DemandReport::default(), true, at(7000)).role;
    assert!(matches!(told, PeerRole::Follows(told) if told.by == name(7)));
}

#[test]
fn who_drains_or_hears_too_little_does_not_decide() {
    let mut peers = five(&[1, 2]);
    let mut first = PeerReport { decision: Some(decision(1, 4)), ..report(1, 1, 1) };
    first.draining = true;
    peers.store_report(&place(1), first, at(0));
    let second = PeerReport { blind: true, ..report(2, 1, 1) };
    peers.store_report(&place(2), second, at(0));
    let sight = peers.update(&DemandReport::default(), false, at(100));
    assert_eq!(sight.role, PeerRole::Decides(None), "1 drains, 2 is blind");
    assert_eq!(jobs(&sight.others), 2, "but both count");
    assert!(
        matches!(peers.update(&DemandReport::default(), true, at(100)).role, PeerRole::Follows(told) if told.by == name(1)),
        "all drain"
    );
}

#[test]
fn places_and_pools_are_bounded() {
    let mut peers = PeerGroup::new(name(5));
    peers.list(&(0..200).map(|id| format!("h{id}:1")).collect(), at(0));
    assert_eq!(peers.update(&DemandReport::default(), false, at(0)).count.known, 1 + MAX_PEERS);
}

/// Event in a set of gateways.
#[derive(Debug, Clone)]
enum Step {
    /// This many milliseconds pass.
    Pass(u64),
    /// The demand that a gateway sees changes.
    Sees(usize, u64),
    /// A gateway restarts at its slot.
    Restarts(usize),
    /// A gateway is cut off, or connected again.
    Cut(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0..4_usize;
    prop_oneof![
        4 => (50..3000_u64).prop_map(Step::Pass),
        3 => (who.clone(), 0..50_u64).prop_map(|(who, amount)| Step::Sees(who, amount)),
        1 => who.clone().prop_map(Step::Restarts),
        1 => (who, any::<bool>()).prop_map(|(who, cut)| Step::Cut(who, cut)),
    ]
}

/// One gateway process of the simulation.
struct Process {
    peers: PeerGroup,
    sequence: u64,
    sees: u64,
    cut: bool,
    number: u32,
    role: Option<PeerRole>,
}

struct World {
    processes: Vec<Process>,
    now: u64,
    born: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self { processes: Vec::new(), now: 0, born: 0 };
        for _ in 0..4 {
            let process = world.process();
            world.processes.push(process);
        }
        world
    }

    fn process(&mut self) -> Process {
        self.born += 1;
        let mut peers = PeerGroup::new(name(self.born));
        peers.list(&(0..4).map(place).collect(), at(self.now));
        Process { peers, sequence: 0, sees: 0, cut: false, number: 0, role: None }
    }

    /// All gateways update their view and send their reports.
    fn exchange(&mut self) {
        self.now += 10;
        let now = at(self.now);
        for from in 0..self.processes.len() {
            let process = &mut self.processes[from];
            let PeerView { others, role, blind, .. } =
                process.peers.update(&demand(process.sees), false, now);
            let own = (jobs(&others) + process.sees) as u32;
            let told = |told: &ScaleDecision| told.numbers["main"].desired;
            let told = match &role {
                PeerRole::Decides(_) => Some(ScaleDecision { by: process.peers.me, ..decision(1, own) }),
                PeerRole::Follows(decision) => Some(decision.clone()).inspect(|it| process.number = told(it)),
                PeerRole::Waits | PeerRole::Blind => None,
            };
            if matches!(role, PeerRole::Decides(_)) {
                process.number = own;
            }
            process.sequence += 1;
            let sent = PeerReport {
                from: process.peers.me,
                sequence: process.sequence,
                blind,
                demand: demand(process.sees),
                decision: told,
                ..PeerReport::default()
            };
            process.role = Some(role);
            for to in 0..self.processes.len() {
                if to == from || !(self.processes[from].cut || self.processes[to].cut) {
                    self.processes[to].peers.store_report(&place(from as u64), sent.clone(), now);
                }
            }
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Pass(millis) => self.now += millis,
            Step::Sees(who, amount) => self.processes[who].sees = amount,
            Step::Restarts(who) => {
                let process = self.process();
                let cut = self.processes[who].cut;
                self.processes[who] = Process { cut, ..process };
            }
            Step::Cut(who, cut) => self.processes[who].cut = cut,
        }
        self.exchange();
    }
}

proptest! {
    #[test]
    fn all_that_hear_each_other_say_the_sum_and_one_decides(
        steps in proptest::collection::vec(step(), 1..60),
        end in prop_oneof![Just(false), Just(true)],
    ) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            for process in &mut world.processes {
                let sight = process.peers.update(&demand(process.sees), false, at(world.now));
                let most = sight.count.live + sight.count.replayed;
                prop_assert!(most <= 3 && sight.count.silent < sight.count.known);
            }
        }
        // Whatever happened, once all hear each other for a while they agree.
        world.processes.iter_mut().for_each(|process| process.cut = false);
        if end {
            world.now += 400_000;
        }
        (0..40).for_each(|_| world.take(&Step::Pass(1000)));
        let all: u64 = world.processes.iter().map(|process| process.sees).sum();
        let deciders = world.processes.iter().filter(|one| matches!(one.role, Some(PeerRole::Decides(_))));
        prop_assert_eq!(deciders.count(), 1);
        for process in &mut world.processes {
            let sight = process.peers.update(&demand(process.sees), false, at(world.now));
            prop_assert_eq!(jobs(&sight.others) + process.sees, all);
            prop_assert_eq!(u64::from(process.number), all);
            prop_assert_eq!((sight.count.known, sight.count.live, sight.count.silent), (4, 3, 0));
        }
    }

    #[test]
    fn what_is_bridged_lies_between_what_is_live_and_all(
        live in 0..100_u64, lost in 0..100_u64, before in 0..200_u64,
    ) {
        let sum = DemandReport::with_lost(&demand(live), &demand(lost), &demand(before));
        prop_assert!(jobs(&sum) >= live && jobs(&sum) <= live + lost);
        prop_assert!(jobs(&sum) >= before.min(live + lost));
        let pool_set = sum.pool_sets.values().next().unwrap();
        prop_assert_eq!((pool_set.sustained, pool_set.waiting), (jobs(&sum) as f64, jobs(&sum)));
    }
}
