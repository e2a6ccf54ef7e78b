//! Tests of the no-harm matrix in virtual time. The cells are measured by the optimized program:
//! `tests/commands/test_no_harm.py`.

use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::world::arrival::Arrival;
use crate::sim::world::gateway::SimGateway;
use crate::sim::world::record::{Objectives, WorldRecord};
use crate::sim::world::run::run;
use crate::studies::no_harm::matrix::{CLASSES, CellClass, MatrixFleet, RequestKind};
use crate::studies::no_harm::{CellConditions, measure};

#[test]
fn classes_of_the_matrix_are_those_that_are_built_in() {
    let policy = super::policy(MatrixFleet::named("l4").expect("a fleet")).expect("a policy");
    for class in &CLASSES {
        let built_in = policy.classes.id(class.name).and_then(|id| policy.classes.get(id)).expect(class.name);
        let times = [built_in.ttft_objective, built_in.itl_objective, built_in.max_wait];
        let [ttft, itl, wait] = times.map(|time| time.as_secs_f64());
        assert_eq!([ttft, itl * 1e3, wait], [class.ttft_s, class.itl_ms, class.max_wait_s], "{}", class.name);
    }
}

#[test]
fn a_cell_is_measured_straight_and_through_the_scheduler() {
    let (warmup, window) = (Duration::from_secs(10), Duration::from_secs(10));
    let conditions = CellConditions { warmup, window, ..CellConditions::default() };
    let fleet = MatrixFleet::named("l4").expect("a fleet");
    let classes =
        [CellClass::named("standard").expect("a class"), CellClass::named("batch").expect("a class")];
    let rows = measure(fleet, RequestKind::Plain, &classes, &conditions).expect("cells");
    let names: Vec<_> = rows.iter().map(|row| row.cell.name()).collect();
    assert_eq!(names, ["l4/plain/standard", "l4/plain/batch"]);
    assert!(rows.iter().all(|row| row.direct > 100.0 && row.ratio() > 0.9 && row.refused == 0), "{rows:?}");
}

/// Batch work at four a100s, of which there is always more than they do, beside a chat each `gap`.
struct BatchBesideChats {
    /// Output tokens of batch work per second.
    batch: f64,
    /// Part of the chats that kept their objectives.
    good: f64,
}

fn batch_beside_chats(kind: RequestKind, gap: Option<Duration>, rtt: Duration) -> BatchBesideChats {
    let fleet = MatrixFleet::named("a100-8b").expect("a fleet");
    // The gateway takes a minute to learn how few replicas the chats need.
    let (warmup, window) = (Duration::from_secs(80), Duration::from_secs(30));
    let conditions = CellConditions { warmup, window, rtt, ..CellConditions::default() };
    let policy = super::policy(fleet).expect("a policy");
    let of = |name| policy.classes.id(name).expect("a class").index() as u32;
    let (batch, chat) = (of("batch"), of("interactive"));
    let mut setup = super::setup(fleet, &fleet.requests(kind), &conditions);
    setup.clients = None;
    setup.arrivals.truncate(9_900);
    setup.arrivals.iter_mut().for_each(|arrival| arrival.class = batch);
    let times = gap.into_iter().flat_map(|gap| (1..).map(move |chat| gap * chat));
    let size = Arrival { class: chat, prompt: 500, output: 150, max_output: 150, ..Arrival::default() };
    let chats = times.take_while(|at| *at < warmup + window - Duration::from_secs(8));
    setup.arrivals.extend(chats.map(|at| Arrival { at: Tick::ZERO + at, ..size.clone() }));
    setup.arrivals.sort_by_key(|arrival| arrival.at);
    let outcome = run(&setup, &mut [Box::new(SimGateway::new(policy))]);
    assert_eq!(outcome.broken_invariants, 0);
    assert!(outcome.records.iter().all(|record| !record.refused && !record.cut));
    let of = |class| outcome.records.iter().filter(move |record: &&WorldRecord| record.class == class);
    let ended = of(batch).filter(|record| record.ended.is_some_and(|at| at >= Tick::ZERO + warmup));
    let tokens: f64 = ended.map(|record| f64::from(record.output)).sum();
    let goal = Objectives { ttft: Duration::from_secs(1), itl: Duration::from_millis(50) };
    let good = of(chat).filter(|record| record.met_objectives(&goal)).count();
    BatchBesideChats {
        batch: tokens / window.as_secs_f64(),
        good: good as f64 / of(chat).count().max(1) as f64,
    }
}

/// Measures batch work alone and beside one chat a second; the parts of the throughput and of the
/// chats that are kept.
fn kept_beside_a_chat_a_second(kind: RequestKind, rtt: Duration) -> (f64, f64) {
    let alone = batch_beside_chats(kind, None, rtt);
    let beside = batch_beside_chats(kind, Some(Duration::from_secs(1)), rtt);
    println!(
        "{kind:?} batch beside one chat a second, {rtt:?} away: {:.0} alone, {:.0} beside, chats {:.3}",
        alone.batch, beside.batch, beside.good
    );
    (beside.batch / alone.batch, beside.good)
}

#[test]
fn one_chat_a_second_leaves_plain_batch_work_its_throughput() {
    let (batch, chats) = kept_beside_a_chat_a_second(RequestKind::Plain, Duration::ZERO);
    assert!(batch >= 0.88 && chats >= 0.9, "{batch:.3} {chats:.3}");
}

/// A fixed time in each first token says nothing about steps: engines must not look too slow for
/// batch work.
#[test]
fn first_tokens_that_come_late_leave_batch_work_its_throughput() {
    let (batch, chats) = kept_beside_a_chat_a_second(RequestKind::Stream, Duration::from_millis(80));
    assert!(batch >= 0.88 && chats >= 0.9, "{batch:.3} {chats:.3}");
}
