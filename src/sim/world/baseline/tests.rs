//! Tests of the baselines.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::profile::StepProfile;
use crate::world::arrival::Arrival;
use crate::world::baseline::at_once::least_request::LeastRequest;
use crate::world::baseline::at_once::power_of_two::PowerOfTwo;
use crate::world::baseline::at_once::random::Random;
use crate::world::baseline::at_once::round_robin::RoundRobin;
use crate::world::baseline::at_once::shortest_scraped::ShortestScraped;
use crate::world::baseline::at_once::{AtOnce, EnginePick};
use crate::world::baseline::fair::{DeficitRound, VirtualCounters};
use crate::world::baseline::flights::KnownEngine;
use crate::world::baseline::held::{Cap, Fifo, HeldRouter, WaitOrder};
use crate::world::baseline::prequal::Prequal;
use crate::world::baseline::scorers::Scorers;
use crate::world::baseline::shedding::{Shedding, first_token};
use crate::world::router::{Input, JobIndex, PolledLoad, Router, RouterCommand};
use penstock_core::model::event::ReplicaReport;
use penstock_core::model::time::Tick;

/// Gives a router inputs and keeps its commands.
struct RouterHarness {
    router: Box<dyn Router>,
    now: Tick,
    next: JobIndex,
}

impl RouterHarness {
    fn new(router: impl Router + 'static) -> Self {
        Self { router: Box::new(router), now: Tick::ZERO, next: 0 }
    }

    fn at_once(count: usize, pick: impl EnginePick + 'static) -> Self {
        Self::new(AtOnce::new(count, pick))
    }

    fn tell(&mut self, input: Input<'_>) -> Vec<RouterCommand> {
        let mut out = Vec::new();
        self.router.handle(self.now, input, &mut out);
        out
    }

    fn arrive(&mut self, arrival: &Arrival) -> Vec<RouterCommand> {
        self.next += 1;
        let arrival = Arrival { at: self.now, ..arrival.clone() };
        self.tell(Input::Arrived { job: self.next - 1, arrival: &arrival })
    }

    fn replica(&mut self) -> usize {
        let sent = sent(&self.arrive(&Arrival::default()));
        assert_eq!(sent.len(), 1);
        sent[0].1
    }

    fn report(&mut self, replica: usize, running: u64, kv: f64) {
        let report = ReplicaReport {
            running: Some(running),
            waiting: Some(running / 2),
            kv_usage: Some(kv),
            ..ReplicaReport::default()
        };
        assert_eq!(self.tell(Input::Reported { replica, report }), []);
    }

    fn finish(&mut self, job: JobIndex, replica: usize) -> Vec<(JobIndex, usize)> {
        sent(&self.tell(Input::Finished { job, replica, cached: None }))
    }
}

fn sent(commands: &[RouterCommand]) -> Vec<(JobIndex, usize)> {
    let send = |command: &RouterCommand| match command {
        RouterCommand::Send { job, replica, .. } => Some((*job, *replica)),
        _ => None,
    };
    commands.iter().filter_map(send).collect()
}

#[test]
fn turns_go_round_from_where_they_are_told_and_by_weight() {
    for first in 0..6 {
        let mut harness = RouterHarness::at_once(3, RoundRobin::new(vec![1.0; 3], first));
        let turns: Vec<usize> = (0..6).map(|_| harness.replica()).collect();
        assert_eq!(turns, (0..6).map(|turn| (first + turn) % 3).collect::<Vec<_>>());
    }
    let mut harness = RouterHarness::at_once(3, RoundRobin::new(vec![5.0, 1.0, 1.0], 0));
    let turns: Vec<usize> = (0..7).map(|_| harness.replica()).collect();
    assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0], "spread, not in a row");
}

#[test]
fn own_counts_go_up_and_down() {
    let mut harness = RouterHarness::at_once(3, LeastRequest::default());
    let places: Vec<usize> = (0..4).map(|_| harness.replica()).collect();
    assert_eq!(places, [0, 1, 2, 0]);
    harness.finish(2, 2);
    harness.finish(99, 2);
    assert_eq!(harness.replica(), 2, "an unknown job changes nothing");
    let mut harness = RouterHarness::at_once(2, PowerOfTwo::new(1));
    let mut counts = [0u32; 2];
    (0..200).for_each(|_| counts[harness.replica()] += 1);
    assert!(counts[0].abs_diff(counts[1]) <= 20, "{counts:?}");
    let mut harness = RouterHarness::at_once(2, Random::new(1));
    let mut counts = [0u32; 2];
    (0..1_000).for_each(|_| counts[harness.replica()] += 1);
    assert!(counts[0].abs_diff(counts[1]) <= 150 && counts[0] != counts[1], "{counts:?}");
}

#[test]
fn old_gauges_make_a_herd_and_an_own_share_ends_it() {
    for (own, expected) in [(false, [0, 10]), (true, [3, 7])] {
        let mut harness = RouterHarness::at_once(2, ShortestScraped::new(own, 7));
        harness.report(0, 8, 0.1);
        harness.report(1, 2, 0.1);
        let mut counts = [0; 2];
        (0..10).for_each(|_| counts[harness.replica()] += 1);
        // 12 + 3 = 3 + ... only where the router adds its own share.
        assert_eq!(counts[0] + counts[1], 10);
        if own {
            assert!(counts[0] <= expected[0], "{counts:?}");
        } else {
            assert_eq!(counts, expected);
        }
    }
}

#[test]
fn scores_weigh_queue_cache_use_and_prefix() {
    let mut harness = RouterHarness::at_once(2, Scorers::new(2, false, 3));
    harness.report(0, 0, 0.9);
    harness.report(1, 0, 0.1);
    assert_eq!(harness.replica(), 1, "less KV in use");
    let talk = |hashes: &[u64]| Arrival { prompt: 1024, prefix: Arc::from(hashes), ..Arrival::default() };
    assert_eq!(sent(&harness.arrive(&talk(&[1, 2])))[0].1, 1);
    harness.report(0, 0, 0.0);
    harness.report(1, 0, 0.9);
    assert_eq!(
        sent(&harness.arrive(&talk(&[1, 2, 3, 4])))[0].1,
        0,
        "half a prefix weighs less than the cache"
    );
    assert_eq!(sent(&harness.arrive(&talk(&[1, 2])))[0].1, 0, "both know it now");
    harness.report(0, 10, 0.0);
    harness.report(1, 0, 0.0);
    assert_eq!(sent(&harness.arrive(&talk(&[9])))[0].1, 1, "nobody waits there");
}

#[test]
fn probes_find_the_idle_engine() {
    let mut harness = RouterHarness::new(Prequal::new(3, true, 5));
    let polls = harness.arrive(&Arrival::default());
    assert_eq!(polls.len(), 3, "all of them: {polls:?}");
    let answer = |in_flight, millis| Some(PolledLoad { in_flight, latency: Duration::from_millis(millis) });
    assert_eq!(harness.tell(Input::Polled { replica: 0, load: answer(9, 500) }), []);
    assert_eq!(harness.tell(Input::Polled { replica: 1, load: None }), []);
    let out = harness.tell(Input::Polled { replica: 2, load: answer(1, 40) });
    assert_eq!(sent(&out), [(0, 2)]);
    let mut harness = RouterHarness::new(Prequal::new(3, false, 5));
    let out = harness.arrive(&Arrival::default());
    assert_eq!(sent(&out).len(), 1, "at once, with an empty pool");
    harness.tell(Input::Polled { replica: 1, load: answer(1, 40) });
    harness.tell(Input::Polled { replica: 0, load: answer(9, 400) });
    assert_eq!(sent(&harness.arrive(&Arrival::default()))[0].1, 1);
}

#[test]
fn a_failed_request_is_tried_elsewhere_and_its_engine_rests() {
    let mut harness = RouterHarness::at_once(3, LeastRequest::default());
    assert_eq!(harness.replica(), 0);
    let fail = |harness: &mut RouterHarness, job, replica| {
        harness.tell(Input::Failed { job, replica, refused: true })
    };
    assert_eq!(sent(&fail(&mut harness, 0, 0)), [(0, 1)]);
    assert_eq!((harness.replica(), harness.replica(), harness.replica()), (2, 1, 2), "0 rests");
    harness.now = Tick::from_millis(5_000);
    assert_eq!(harness.replica(), 0);
    assert_eq!(sent(&fail(&mut harness, 0, 1)).len(), 1);
    assert_eq!(sent(&fail(&mut harness, 0, 2)).len(), 1);
    assert_eq!(
        fail(&mut harness, 0, 0),
        [RouterCommand::Refuse { job: 0, retry_after: None }],
        "four are enough"
    );
    harness.tell(Input::FirstToken { job: 2, replica: 1 });
    assert_eq!(fail(&mut harness, 2, 1), [], "its client has seen part of it");
}

#[test]
fn caps_hold_and_what_is_freed_is_used() {
    let cap = Cap { requests: 2, prefill: 100 };
    let mut harness = RouterHarness::new(HeldRouter::new(2, cap, Fifo::default()));
    let long = Arrival { prompt: 100, ..Arrival::default() };
    assert_eq!(sent(&harness.arrive(&long)), [(0, 0)]);
    assert_eq!(sent(&harness.arrive(&long)), [(1, 1)]);
    assert_eq!(sent(&harness.arrive(&long)), [], "prompts are outstanding everywhere");
    assert_eq!(sent(&harness.tell(Input::FirstToken { job: 1, replica: 1 })), [(2, 1)]);
    harness.arrive(&long);
    harness.tell(Input::FirstToken { job: 2, replica: 1 });
    assert_eq!(harness.finish(2, 1), [(3, 1)]);
    assert_eq!(
        sent(&harness.tell(Input::Failed { job: 3, replica: 1, refused: true })),
        [],
        "the other one is full"
    );
    assert_eq!(sent(&harness.tell(Input::FirstToken { job: 0, replica: 0 })), [(3, 0)]);
}

/// Number of each tenant's requests among the first 60 served: a flood of 100,
/// and two polite tenants with 20 each.
fn first_sixty(line: impl WaitOrder + 'static) -> [usize; 3] {
    let mut harness = RouterHarness::new(HeldRouter::new(1, Cap { requests: 1, prefill: u64::MAX }, line));
    let of = |tenant| Arrival { tenant, prompt: 200, output: 150, ..Arrival::default() };
    let mut owners = Vec::new();
    for (tenant, count) in [(0, 100), (1, 20), (2, 20)] {
        for _ in 0..count {
            harness.arrive(&of(tenant));
            owners.push(tenant as usize);
        }
    }
    let (mut served, mut running) = ([0; 3], 0);
    for _ in 0..60 {
        served[owners[running]] += 1;
        let next = harness.finish(running, 0);
        running = next[0].0;
    }
    served
}

#[test]
fn a_flood_gets_its_share_and_no_more() {
    assert_eq!(first_sixty(Fifo::default()), [60, 0, 0]);
    for served in
        [first_sixty(VirtualCounters::new(vec![1.0; 3])), first_sixty(DeficitRound::new(vec![1.0; 3]))]
    {
        assert!(served.iter().all(|count| (14..=26).contains(count)), "{served:?}");
    }
    let weighted = first_sixty(VirtualCounters::new(vec![4.0, 1.0, 1.0]));
    assert!((36..=44).contains(&weighted[0]), "{weighted:?}");
}

#[test]
fn late_requests_are_refused_and_forgotten() {
    let profile = StepProfile::named("h100-8b").unwrap();
    let inner = Box::new(AtOnce::new(1, LeastRequest::default()));
    let mut harness =
        RouterHarness::new(Shedding::new(inner, vec![profile], vec![Duration::from_millis(150)]));
    let prompt = Arrival { prompt: 2_000, ..Arrival::default() };
    let mut taken = 0;
    let refused = loop {
        let out = harness.arrive(&prompt);
        match out[..] {
            [RouterCommand::Send { .. }] => taken += 1,
            [RouterCommand::Refuse { job, .. }] => break job,
            _ => panic!("{out:?}"),
        }
    };
    // 2,000 tokens take about 45 ms.
    assert!((2..=4).contains(&taken), "{taken} taken");
    assert_eq!(refused, taken);
    (0..taken).for_each(|job| assert_eq!(harness.finish(job, 0), []));
    assert_eq!(sent(&harness.arrive(&prompt)).len(), 1, "nothing is left of those that ended");
}

#[test]
fn the_prediction_grows_with_what_is_there() {
    let profile = StepProfile::named("h100-8b").unwrap();
    let idle = KnownEngine::default();
    let alone = first_token(&profile, &idle, 1024).as_secs_f64() * 1e3;
    assert!((alone - 26.0).abs() < 1.0, "{alone} ms on an idle engine");
    let behind = KnownEngine { prefill: 10_000, in_flight: 3, ..idle };
    let decoding = KnownEngine { decodes: 100, in_flight: 100, context: 100_000, ..idle };
    assert!(first_token(&profile, &behind, 1024).as_secs_f64() * 1e3 > 8.0 * alone);
    assert!(first_token(&profile, &decoding, 1024) > first_token(&profile, &idle, 1024));
    assert!(
        first_token(&profile, &KnownEngine { prefill: u64::MAX / 4, ..idle }, 1)
            < Duration::from_secs(1_000_001)
    );
}
