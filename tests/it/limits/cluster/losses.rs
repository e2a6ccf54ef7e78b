//! The bounds of decision 075: what all gateways together use of a limit, whatever is lost.

use std::time::Duration;

use super::fleet::{Arrivals, Faults, Fleet};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Requests of up to 200 tokens, so many times what the limit of a minute allows.
fn busy(limit: u64, gateways: u64, times: u64) -> Arrivals {
    // 150 tokens on average are reserved; a step is a 50th of a second.
    let permille = limit * times * 1000 / 60 / 50 / 100 / gateways.max(1);
    Arrivals { permille, tokens: 200, runs: 4 * SECOND }
}

const NONE: Arrivals = Arrivals { permille: 0, tokens: 1, runs: SECOND };

/// Asserts the use of the limit by minutes from the second one on.
fn assert_used(fleet: &mut Fleet, what: &str, arrivals: impl Fn(usize) -> Arrivals) {
    fleet.run(MINUTE, &arrivals);
    for _ in 0..2 {
        fleet.used = 0;
        fleet.run(MINUTE, &arrivals);
        let percent = fleet.used as f64 * 100.0 / fleet.limit as f64;
        println!("{what}: {percent:.1} % used, at most {} of {}", fleet.highest, fleet.limit);
        assert!(percent >= 97.0, "{what}: {percent:.1} %");
    }
    assert!(fleet.highest <= fleet.limit, "{what}: {} of {}", fleet.highest, fleet.limit);
}

#[test]
fn nearly_all_of_a_minute_is_used_and_never_more_under_any_split() {
    for gateways in [2_u64, 4] {
        let minute = "limits: {per_minute: {tokens: 60000}}";
        let mut fleet = Fleet::new(gateways as usize, minute, gateways);
        assert_used(&mut fleet, "alike", |_| busy(60_000, gateways, 2));
        let mut fleet = Fleet::new(gateways as usize, minute, gateways);
        assert_used(&mut fleet, "one", |at| if at == 0 { busy(60_000, 1, 2) } else { NONE });
        // All traffic moves to another gateway.
        assert_used(&mut fleet, "moved", |at| if at == 1 { busy(60_000, 1, 2) } else { NONE });
    }
}

#[test]
fn whatever_is_lost_on_the_way_no_limit_is_passed() {
    for seed in 0..6 {
        let limits =
            ["per_minute: {tokens: 20000}", "per_day: {tokens: 60000}", "concurrent: {tokens: 4000}"];
        let limit = limits[seed as usize % 3];
        let mut fleet = Fleet::new(3, &format!("limits: {{{limit}}}"), seed);
        fleet.faults = Faults { lost_calls: 10, lost_answers: 10, late: 10 };
        for _ in 0..12 {
            let gap = 1 + fleet.dice.below(8);
            let weights = [fleet.dice.below(4), fleet.dice.below(4), fleet.dice.below(4)];
            fleet.run(Duration::from_secs(gap), |at| busy(20_000, 1, weights[at % 3]));
            // The store is away for some seconds, and for all gateways.
            fleet.up = false;
            let away = Duration::from_secs(fleet.dice.below(8));
            fleet.run(away, |at| busy(20_000, 1, weights[at % 3]));
            fleet.up = true;
        }
        println!("{limit}: {} of {}, {} refused", fleet.highest, fleet.limit, fleet.refused);
        assert!(fleet.highest <= fleet.limit, "seed {seed}, {limit}: {}", fleet.highest);
    }
}

#[test]
fn a_store_that_forgets_everything_lets_nothing_more_pass() {
    for limit in ["per_minute: {tokens: 20000}", "per_day: {tokens: 100000}"] {
        let mut fleet = Fleet::new(3, &format!("limits: {{{limit}}}"), 7);
        for round in 0..10 {
            let weights = [round % 3, (round + 1) % 3, 1];
            fleet.run(4 * SECOND, |at| busy(20_000, 1, weights[at]));
            fleet.server.flush();
        }
        fleet.run(50 * SECOND, |_| busy(20_000, 1, 2));
        println!("{limit}: {} of {}", fleet.highest, fleet.limit);
        assert!(fleet.highest <= fleet.limit, "{limit}: {}", fleet.highest);
        assert!(fleet.highest * 100 >= fleet.limit * 97, "{limit}: {}", fleet.highest);
    }
}

/// What gateways used that are gone still counts, with a store that keeps its data and with one that
/// has lost them; and what a journal tells is counted once.
#[test]
fn a_day_is_whole_over_restarts_of_gateways_and_of_the_store() {
    for loses in [false, true] {
        let mut fleet = Fleet::new(2, "limits: {per_day: {tokens: 100000}}", 3);
        for round in 0..6 {
            fleet.run(5 * SECOND, |_| busy(60_000, 2, 1));
            // What runs ends before the gateway does.
            fleet.run(5 * SECOND, |_| NONE);
            let used = fleet.used;
            fleet.restart(round % 2, if loses { used / 2 } else { 0 });
            if loses {
                fleet.server.flush();
            }
        }
        fleet.run(60 * SECOND, |_| busy(60_000, 2, 4));
        println!("{} used of {}, {} at most", fleet.used, fleet.limit, fleet.highest);
        assert!(fleet.highest <= fleet.limit + 1, "{}", fleet.highest);
        assert!(fleet.used * 100 >= fleet.limit * 97, "{}", fleet.used);
    }
}

#[test]
fn a_gateway_that_is_killed_costs_its_lease_for_some_seconds() {
    let mut fleet = Fleet::new(3, "limits: {per_minute: {tokens: 60000}}", 5);
    fleet.run(MINUTE, |_| busy(60_000, 3, 2));
    fleet.kill(2);
    // What it used counts for a minute more, and its lease is free after five seconds.
    fleet.run(2 * MINUTE, |_| busy(60_000, 2, 2));
    assert!(fleet.highest <= fleet.limit, "{}", fleet.highest);
    fleet.highest = 0;
    fleet.run(SECOND, |_| busy(60_000, 2, 2));
    let percent = fleet.highest * 100 / fleet.limit;
    assert!((97..=100).contains(&percent), "{percent} %");
}

#[test]
fn a_gateway_that_is_cut_off_passes_by_its_lease_at_most() {
    let mut fleet = Fleet::new(3, "limits: {per_minute: {tokens: 60000}}", 9);
    fleet.run(MINUTE, |_| busy(60_000, 3, 2));
    fleet.members[0].connected = false;
    let refused = fleet.refused;
    fleet.run(2 * MINUTE, |_| busy(60_000, 3, 2));
    println!("{} of {}, {} refused", fleet.highest, fleet.limit, fleet.refused - refused);
    assert!(fleet.highest <= fleet.limit * 4 / 3 + fleet.limit / 20, "{}", fleet.highest);
    fleet.members[0].connected = true;
    fleet.run(MINUTE + 2 * SECOND, |_| busy(60_000, 3, 2));
    fleet.highest = 0;
    fleet.run(MINUTE, |_| busy(60_000, 3, 2));
    assert!(fleet.highest <= fleet.limit, "it is settled: {}", fleet.highest);
}

/// A limit that is too small to be divided works at each gateway, and is passed by one request of
/// each other gateway at most.
#[test]
fn a_limit_of_two_at_once_works_at_four_gateways() {
    let mut fleet = Fleet::new(4, "limits: {concurrent: {requests: 2}}", 1);
    for at in 0..4 {
        // One after the other: at each gateway both places are to be had.
        let one =
            |other| if other == at { Arrivals { permille: 1000, tokens: 4, runs: SECOND } } else { NONE };
        fleet.run(2 * SECOND, |_| NONE);
        fleet.highest = 0;
        fleet.run(3 * SECOND, one);
        assert_eq!(fleet.highest, 2, "gateway {at}");
    }
    fleet.run(10 * SECOND, |_| Arrivals { permille: 500, tokens: 4, runs: SECOND });
    assert!(fleet.highest <= 2 + 3, "{}", fleet.highest);
}

/// The hash of a day does not grow with each start of a gateway, and what was used by those that are
/// gone still counts, once, also when one of them comes back.
#[test]
fn what_gateways_that_are_gone_have_used_is_one_number() {
    let mut fleet = Fleet::new(2, "limits: {per_day: {tokens: 10000000}}", 13);
    let (some, silent) = (busy(60_000, 2, 1), 6 * SECOND);
    for round in 0..30 {
        fleet.run(SECOND, |_| some);
        fleet.run(4 * SECOND, |_| NONE);
        fleet.restart(round % 2, 0);
        fleet.pass(silent);
    }
    // One is cut off for long, and uses something meanwhile.
    fleet.members[0].connected = false;
    fleet.run(SECOND, |_| some);
    fleet.pass(silent);
    fleet.run(SECOND, |_| some);
    fleet.members[0].connected = true;
    fleet.run(6 * SECOND, |_| NONE);
    let fields = fleet.fields();
    println!("{fields:?}, {} used", fleet.used);
    assert!(fields.len() <= 4, "two gateways, when it was born, and what is lost: {fields:?}");
    let number = |value: &str, at: usize| value.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
    let used = fields.iter().map(|(name, value)| match name.as_str() {
        "_born" => 0,
        "_lost" => number(value, 0),
        _ => number(value, 1),
    });
    assert_eq!(used.sum::<u64>(), fleet.used);
}

/// Gateways come back one after the other, the last one nearly two seconds after the first: what it has
/// used and holds is not granted to the others meanwhile.
#[test]
fn a_gateway_that_connects_late_to_an_empty_store_has_lost_nothing() {
    for seed in 0..3 {
        let mut fleet = Fleet::new(3, "limits: {per_minute: {tokens: 20000}}", seed);
        fleet.run(12 * SECOND, |_| busy(20_000, 3, 1));
        fleet.server.flush();
        fleet.members[0].connected = false;
        fleet.run(Duration::from_millis(1_900), |at| busy(20_000, 1, u64::from(at > 0)));
        fleet.members[0].connected = true;
        fleet.run(45 * SECOND, |_| busy(20_000, 3, 3));
        println!("{} of {}", fleet.highest, fleet.limit);
        assert!(fleet.highest <= fleet.limit, "seed {seed}: {}", fleet.highest);
    }
}

/// The bound of decision 075 for gateways that are gone when the store loses its data: what is forgotten of
/// their use is less than what the others used in one interval of reports, although one of them rests.
#[test]
fn nearly_all_use_of_gateways_that_are_gone_outlives_the_stores_data() {
    let mut fleet = Fleet::new(3, "limits: {per_day: {tokens: 10000000}}", 21);
    fleet.run(20 * SECOND, |_| busy(60_000, 3, 1));
    fleet.run(5 * SECOND, |_| NONE);
    let gone = fleet.used;
    fleet.kill(2);
    fleet.pass(6 * SECOND);
    for _ in 0..10 {
        fleet.run(3 * SECOND, |at| if at == 0 { busy(60_000, 1, 1) } else { NONE });
        fleet.server.flush();
    }
    fleet.run(6 * SECOND, |_| NONE);
    let fields = fleet.fields();
    let number = |value: &str, at: usize| value.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
    let known: u64 = fields
        .iter()
        .map(|(name, value)| match name.as_str() {
            "_born" => 0,
            "_lost" => number(value, 0),
            _ => number(value, 1),
        })
        .sum();
    // A minute's worth of 60,000 in 200 ms, ten times.
    println!("{known} of {} known, {gone} before", fleet.used);
    assert!(known <= fleet.used && fleet.used - known <= 10 * 200, "{known} of {}", fleet.used);
}
