//! Tests of demand reports: several gateways in front of the same replicas decide as one would.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::autoscale::demand_report::{DecidedNumber, DemandReport, PeerDemand};
use crate::autoscale::peers::{GatewayId, PeerGroup, PeerReport};
use crate::autoscale::replica_demand::ReplicaDemand;
use crate::model::event::{Action, AttemptOutcome, DispatchGrant, Event, JobAction};
use crate::model::ids::JobId;
use crate::model::job::{JobSpec, PromptPrefix};
use crate::model::policy::{Class, Policy};
use crate::model::time::Tick;
use crate::scheduler::tests::{ObservedScheduler, policy, spec, used};

/// Eight replicas, each for two jobs at once.
fn rules(replicas: usize) -> Policy {
    let mut rules = policy(&[&vec![2; replicas]], &[&[0]]);
    let rows: Vec<_> = rules.classes.iter().map(|(_, name, row)| (name.to_owned(), row.clone())).collect();
    for (name, row) in rows {
        rules.classes.insert(&name, Class { max_wait: Duration::from_secs(300), ..row });
    }
    rules
}

/// One gateway, whose jobs run for a second.
struct Gateway {
    scheduler: ObservedScheduler,
    now: Tick,
    running: VecDeque<(Tick, JobId)>,
    arrived: u64,
}

impl Gateway {
    fn new(policy: Policy) -> Self {
        Self {
            scheduler: ObservedScheduler::new(Arc::new(policy)),
            now: Tick::ZERO,
            running: VecDeque::new(),
            arrived: 0,
        }
    }

    fn event(&mut self, event: Event) {
        let mut out = Vec::new();
        self.scheduler.handle(self.now, event, &mut out);
        for action in out {
            if let Action::Job(JobAction::Dispatch(DispatchGrant { job, .. })) = action {
                self.running.push_back((self.now + Duration::from_secs(1), job));
            }
        }
    }

    /// Ends what is due.
    fn pass(&mut self, now: Tick) {
        while let Some((end, job)) = self.running.front().copied().filter(|(end, _)| *end <= now) {
            self.running.pop_front();
            self.now = end;
            self.event(Event::FirstToken { job });
            self.event(Event::Finished { job, outcome: AttemptOutcome::Done(used(10, 10)) });
        }
        self.now = now;
        self.event(Event::Timer);
    }

    fn arrive(&mut self) {
        self.arrived += 1;
        let (id, deadline) = (JobId::new(self.arrived), self.now + Duration::from_secs(300));
        self.event(Event::Arrived(
            JobSpec { id, arrived: self.now, deadline, ..spec(1) },
            PromptPrefix::default(),
        ));
    }

    fn need(&mut self, others: &PeerDemand) -> ReplicaDemand {
        let need = self.scheduler.replica_demand(self.now, others)[0];
        if let Some(growth) = self.scheduler.observer.take_growth() {
            self.event(growth);
        }
        need
    }

    fn report(&mut self) -> DemandReport {
        let ObservedScheduler { scheduler, observer } = &mut self.scheduler;
        let inputs = scheduler.demand_inputs(observer, self.now, true);
        observer.demand_report(&inputs)
    }
}

fn others(sum: DemandReport) -> PeerDemand {
    PeerDemand { sum, expected: true, ..PeerDemand::default() }
}

/// All jobs at `whole`, and each at one of the two others by turns, `rate` each
/// second; what the whole one and the first of the two say, each half of a second.
fn halves(replicas: usize, rate: u64, seconds: u64) -> (Vec<[ReplicaDemand; 2]>, [Gateway; 3]) {
    let mut all = [(); 3].map(|()| Gateway::new(rules(replicas)));
    let mut said = Vec::new();
    for step in 0..seconds * rate {
        let now = Tick::from_millis(step * 1000 / rate);
        all.iter_mut().for_each(|gateway| gateway.pass(now));
        all[0].arrive();
        all[1 + (step % 2) as usize].arrive();
        if !step.is_multiple_of(rate / 2) {
            continue;
        }
        let sums = [all[1].report(), all[2].report()];
        let whole = all[0].need(&PeerDemand::default());
        let half = all[1].need(&others(sums[1].clone()));
        all[2].need(&others(sums[0].clone()));
        said.push([whole, half]);
    }
    (said, all)
}

#[test]
fn two_that_have_half_each_say_what_one_with_all_says() {
    let (said, mut all) = halves(8, 10, 400);
    for [whole, half] in &said {
        assert_eq!((whole.in_flight, whole.queued), (half.in_flight, half.queued));
        assert_eq!(whole.queued_tokens, half.queued_tokens);
        let [one, other] = [whole, half].map(|need| need.desired.unwrap());
        assert!(one.abs_diff(other) <= 1, "{whole:?} {half:?}");
    }
    let last = said.last().unwrap();
    assert_eq!(last[0].desired, last[1].desired);
    let alone = all[1].need(&PeerDemand::default()).desired;
    assert!(alone <= last[0].desired, "the memory holds: {alone:?}");
}

#[test]
fn what_waits_elsewhere_counts_here_too() {
    let mut one = Gateway::new(rules(0));
    let mut other = Gateway::new(rules(0));
    other.pass(Tick::from_millis(1000));
    (0..3).for_each(|_| other.arrive());
    one.pass(Tick::from_millis(1000));
    assert_eq!(one.need(&PeerDemand::default()).desired, Some(0));
    let theirs = other.report();
    let need = one.need(&others(theirs.clone()));
    assert_eq!((need.desired, need.queued, need.reason), (Some(1), 3, "start"));
    let own = other.need(&PeerDemand::default());
    assert_eq!((need.queued_tokens, need.in_flight), (own.queued_tokens, 0));
    // Pools and classes of another file are nothing to this one.
    let mut odd = theirs;
    let pool_set = odd.pool_sets.pop_first().unwrap();
    odd.pool_sets.insert(
        crate::autoscale::demand_report::PoolSetKey { class: "gone".into(), ..pool_set.0 },
        pool_set.1,
    );
    odd.pools = [("gone".to_owned(), odd.pools["p0"])].into();
    let fresh = &mut Gateway::new(rules(0));
    fresh.pass(Tick::from_millis(1000));
    assert_eq!((fresh.need(&others(odd)).desired, fresh.need(&PeerDemand::default()).queued), (Some(0), 0));
}

#[test]
fn the_number_of_another_one_is_repeated_and_gone_on_from() {
    let mut gateway = Gateway::new(rules(2));
    let number = DecidedNumber { desired: 9, reason: "burst".into(), keep_above_zero: true };
    let decided: BTreeMap<String, DecidedNumber> = [("p0".to_owned(), number)].into();
    let told = PeerDemand { decided, follow: true, expected: true, ..PeerDemand::default() };
    for second in 0..200 {
        gateway.pass(Tick::from_millis(second * 1000));
        let need = gateway.need(&told);
        assert_eq!((need.desired, need.reason, need.keep_above_zero), (Some(9), "burst", true));
    }
    // It takes over: nothing is asked for, yet what was told holds for as long as
    // any number does.
    for second in 200..300 {
        gateway.pass(Tick::from_millis(second * 1000));
        assert_eq!(gateway.need(&others(DemandReport::default())).desired, Some(9));
    }
    gateway.pass(Tick::from_millis(700_000));
    assert!(gateway.need(&others(DemandReport::default())).desired < Some(9));
    // A reason that this version does not know is replaced by its own.
    let mut odd = told;
    odd.decided.values_mut().for_each(|number| number.reason = "tide".into());
    assert_eq!(gateway.need(&odd).reason, "idle");
}

#[test]
fn when_one_is_lost_and_the_other_gets_its_requests_the_number_stays() {
    let (said, mut all) = halves(8, 10, 400);
    let before = said.last().unwrap()[1].desired.unwrap();
    let mut peers = PeerGroup::new(GatewayId { epoch: 1, id: 1 });
    peers.list(&["other".to_owned()].into(), Tick::ZERO);
    let died = all[1].now;
    let report =
        PeerReport { from: GatewayId { epoch: 2, id: 2 }, demand: all[2].report(), ..PeerReport::default() };
    peers.store_report("other", report, died);
    let one = &mut all[1];
    let rate = |seen: &DemandReport| seen.pool_sets.values().map(|pool_set| pool_set.sustained).sum::<f64>();
    let all_of_it = rate(&one.report()) * 2.0;
    peers.update(&one.report(), false, died);
    for step in 1..900_u64 {
        let now = died + Duration::from_millis(step * 100);
        one.pass(now);
        one.arrive();
        let sum = peers.update(&one.report(), false, now).others;
        let total = rate(&sum) + rate(&one.report());
        // What came back here is not counted twice.
        assert!(step > 300 || (total / all_of_it - 1.0).abs() < 0.05, "{step}: {total} of {all_of_it}");
        assert_eq!(one.need(&others(sum)).desired, Some(before));
    }
}
