//! Tests of the no-harm matrix: every cell reaches its mark, except the cells
//! listed here with the ratio that they reach today. Read the table with `cargo
//! nextest run -p penstock --lib no_harm --no-capture`.

use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::no_harm::matrix::{CLASSES, CellClass, KINDS, MatrixCell, MatrixFleet, RequestKind};
use crate::sim::no_harm::{CellConditions, CellRow, measure};
use crate::sim::world::arrival::Arrival;
use crate::sim::world::gateway::SimGateway;
use crate::sim::world::record::{Objectives, WorldRecord};
use crate::sim::world::run::run;

/// Cells below their marks: fleet, kind, class (empty = all classes), and the
/// least ratio that they must reach. Remove a cell when it reaches its mark.
const SHORT: [(&str, RequestKind, &str, f64); 5] = [
    // Clients that overload the engine with 8,000-token prompts are refused after `max_wait`.
    ("70b", RequestKind::Long, "interactive", 0.79),
    // The last chunk of a prompt and the first of the next do not always share a step.
    ("70b", RequestKind::Long, "", 0.91),
    // While the fast engines prefill, long prompts go to the slow engines.
    ("mixed", RequestKind::Long, "", 0.86),
    // No load meets the objective, and the limit by ITL notices that late.
    ("l4", RequestKind::Shared, "interactive", 0.84),
    // Without a prefix cache the clients overload the engines with prompts, and are refused after
    // `max_wait`. Prompts of this size that share nothing come to 0.84.
    ("a100-8b", RequestKind::Shared, "interactive", 0.85),
];

/// Whether the row reaches the ratio required of it today.
fn reaches(row: &CellRow) -> bool {
    let (cell, ratio) = (&row.cell, row.ratio());
    let listed = SHORT.iter().find(|(fleet, kind, class, _)| {
        (*fleet, *kind) == (cell.fleet.name, cell.kind) && (class.is_empty() || *class == cell.class.name)
    });
    row.passed() || listed.is_some_and(|(.., least)| ratio >= *least)
}

/// Prints the rows, and fails with the rows below their marks.
fn judge(rows: &[CellRow], what: &str) {
    let table = |rows: &mut dyn Iterator<Item = &CellRow>| {
        rows.map(|row| format!("{row}  {what}\n")).collect::<String>()
    };
    print!("{}", table(&mut rows.iter()));
    let low = table(&mut rows.iter().filter(|row| !reaches(row)));
    assert!(low.is_empty(), "below their marks (output tokens/s straight, through, ratio, mark):\n{low}");
}

fn of_fleet(name: &str) {
    let fleet = MatrixFleet::named(name).expect("a fleet");
    let rows =
        KINDS.into_iter().flat_map(|kind| measure(fleet, kind, &CellConditions::default()).expect("a cell"));
    let rows: Vec<CellRow> = rows.collect();
    assert_eq!(rows.len(), KINDS.len() * CLASSES.len());
    judge(&rows, "");
}

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
fn a100s_lose_nothing() {
    of_fleet("a100-8b");
}

#[test]
fn engines_with_1024_places_lose_nothing() {
    of_fleet("h100-8b");
}

#[test]
fn a10s_lose_nothing() {
    of_fleet("a10");
}

#[test]
fn l4s_lose_nothing() {
    of_fleet("l4");
}

#[test]
fn large_models_lose_nothing() {
    of_fleet("70b");
}

#[test]
fn a_mixed_fleet_loses_nothing() {
    of_fleet("mixed");
}

/// Streams and plain answers at a100s whose step times differ from the model.
fn at_odd_engines(conditions: &CellConditions, what: &str) {
    let fleet = MatrixFleet::named("a100-8b").expect("a fleet");
    let kinds = [RequestKind::Stream, RequestKind::Plain, RequestKind::Shared];
    let rows = kinds.into_iter().flat_map(|kind| measure(fleet, kind, conditions).expect("a cell"));
    judge(&rows.collect::<Vec<_>>(), what);
}

#[test]
fn a_long_way_to_the_engines_costs_nothing() {
    at_odd_engines(
        &CellConditions { rtt: Duration::from_millis(80), ..CellConditions::default() },
        "rtt 80 ms",
    );
}

#[test]
fn engines_without_a_prefix_cache_lose_nothing() {
    at_odd_engines(&CellConditions { prefix_cache: false, ..CellConditions::default() }, "no prefix cache");
}

#[test]
fn engines_off_the_model_lose_nothing() {
    for constant in ["t_ovh", "t_w", "i0", "a", "c", "d"] {
        for factor in [0.5, 2.0] {
            let off = vec![(constant.to_owned(), factor)];
            at_odd_engines(
                &CellConditions { step_time_factors: off, ..CellConditions::default() },
                &format!("{constant} x {factor}"),
            );
        }
    }
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
    let class = CellClass::named("batch").expect("a class");
    // The gateway takes a minute to learn how few replicas the chats need.
    let (warmup, window) = (Duration::from_secs(80), Duration::from_secs(30));
    let conditions = CellConditions { warmup, window, rtt, ..CellConditions::default() };
    let policy = super::policy(fleet).expect("a policy");
    let of = |name| policy.classes.id(name).expect("a class").index() as u32;
    let (batch, chat) = (of("batch"), of("interactive"));
    let mut setup = super::setup(&MatrixCell { fleet, kind, class }, &conditions).expect("a setup");
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
