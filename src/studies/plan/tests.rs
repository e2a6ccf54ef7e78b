//! Tests of plans, from demand to the page.

use std::time::Duration;

use crate::core::model::policy::Class;
use crate::core::placement::rules::Capacity;
use crate::sim::arrivals::{Length, Pattern, Sizes, Synthetic};
use crate::sim::engine::profile::StepProfile;
use crate::sim::trace::{TraceCall, TrafficTrace};
use crate::studies::plan::demand::TraceStretch;
use crate::studies::plan::make::{PlanRequest, plan};
use crate::studies::plan::report::page;
use crate::studies::plan::report::text;
use crate::studies::plan::report::{PlanReport, WhatIfRow};
use crate::studies::plan::setting::{PoolSpec, Setting};
use crate::studies::plan::trials::FleetTrials;
use crate::studies::plan::whatif::{Factor, WhatIf};

fn pool(name: &str, price: f64) -> PoolSpec {
    PoolSpec {
        name: name.to_owned(),
        profile: StepProfile::named(name).unwrap(),
        speed: name.to_owned(),
        price,
        capacity: Capacity::OnDemand,
        today: None,
        max_seqs: None,
        kv_tokens: None,
    }
}

fn class(rank: u32, ttft: u64, max_wait: u64) -> Class {
    Class {
        rank,
        min_share: 0.0,
        usage_half_life: None,
        max_wait: Duration::from_millis(max_wait),
        cold_start_tolerance: None,
        ttft_objective: Duration::from_millis(ttft),
        itl_objective: Duration::from_millis(80),
        demote_to: None,
        placement: Default::default(),
        scavenger: false,
    }
}

fn setting() -> Setting {
    Setting {
        classes: vec![
            ("interactive".to_owned(), class(0, 1_000, 1_000)),
            ("batch".to_owned(), class(1, 60_000, 600_000)),
        ],
        pools: vec![pool("a10-8b", 1.2)],
        start: Duration::from_secs(60),
        objective_share: 0.97,
    }
}

/// Four minutes of traffic; the third has three times the traffic of the
/// others.
fn demand() -> TrafficTrace {
    let sizes = Sizes::Independent { prompt: Length::Constant(900), output: Length::Constant(12) };
    let mut calls = Vec::new();
    for (minute, rate) in [2.0, 2.0, 6.0, 2.0].into_iter().enumerate() {
        let count = (rate * 60.0) as usize;
        let part =
            Synthetic { pattern: Pattern::Poisson, rate, count, sizes: sizes.clone() }.trace(minute as u64);
        let offset = Duration::from_secs(60 * minute as u64);
        calls.extend(part.calls.into_iter().map(|call| TraceCall { at: call.at + offset, ..call }));
    }
    let mut trace = TrafficTrace { calls, ..TrafficTrace::default() };
    trace.sort_and_rebase();
    trace
}

fn lab<'a>(setting: &'a Setting, progress: &'a (dyn Fn(&str) + Sync)) -> FleetTrials<'a> {
    FleetTrials { setting, threads: 2, progress }
}

fn report(setting: &Setting, trace: TrafficTrace, what_if: Vec<WhatIf>) -> Result<PlanReport, String> {
    let asked = PlanRequest { name: "a < b".to_owned(), what_if, notes: Vec::new() };
    plan(trace, &lab(setting, &|_| {}), asked)
}

#[test]
fn the_recommended_fleet_keeps_its_promise_and_a_smaller_one_does_not() {
    let setting = setting();
    let report = report(&setting, demand(), Vec::new()).unwrap();
    let maximum = report.advice.maximum;
    assert!(report.promise.holds && report.promise.kept.len() == 3, "{:?}", report.promise);
    assert!(report.promise.least() >= 0.97);
    assert!((1..=maximum).contains(&report.advice.floor) && maximum > 1, "{:?}", report.advice);
    let (lab, stretch) = (lab(&setting, &|_| {}), TraceStretch::of(&demand()));
    assert!(lab.meets_target(&lab.run(&stretch, &[maximum], "")));
    let fixed = report.by_replicas.iter().find(|run| run.replicas == maximum).unwrap();
    assert!(report.by_replicas.iter().any(|run| run.replicas < maximum && run.kept < fixed.kept));
    assert!(report.need.iter().all(|window| window.has >= window.needs.max(report.advice.floor)));
    let [peak, follows] = &report.fleets[..] else { panic!("{:?}", report.fleets) };
    assert!(follows.cost_per_hour <= peak.cost_per_hour * 1.3 && follows.kept >= 0.95, "{follows:?}");
    assert_eq!(report.source.requests, 720);
}

#[test]
fn what_ifs_point_the_right_way() {
    let mut setting = setting();
    setting.pools[0].today = Some(2);
    let asked = vec![
        WhatIf::AddReplica(None),
        WhatIf::Class("interactive.max_wait=100ms".to_owned()),
        WhatIf::Traffic(Factor(3.0)),
        WhatIf::Traffic(Factor(0.5)),
    ];
    let report = report(&setting, demand(), asked).unwrap();
    let base = report.fleets[0].run.clone().unwrap();
    assert_eq!((report.fleets[0].name.as_str(), base.replicas), ("today", 2));
    let [more, strict, much, little] = &report.what_if[..] else { panic!("{:?}", report.what_if) };
    let of = |row: &WhatIfRow| (row.run.replicas, row.run.cost_per_hour > base.cost_per_hour);
    assert_eq!((of(more), of(strict), of(much)), ((3, true), (2, false), (2, false)));
    assert!(more.run.kept >= base.kept && more.run.ttft_p99_ms <= base.ttft_p99_ms, "{more:?} {base:?}");
    assert!(strict.run.refused > base.refused, "{strict:?} {base:?}");
    assert!(much.run.goodput < base.goodput && much.run.ttft_p50_ms > base.ttft_p50_ms, "{much:?} {base:?}");
    assert!(little.run.goodput >= base.goodput && little.run.idle > base.idle, "{little:?} {base:?}");
}

#[test]
fn mistakes_are_told_before_the_work() {
    let cases = [
        (WhatIf::AddReplica(Some("h200".into())), "there is no pool `h200`; there are: a10-8b"),
        (WhatIf::Class("gold.ttft=1s".into()), "there is no class `gold`; there are: interactive, batch"),
        (WhatIf::Class("interactive=1s".into()), "write it like interactive.max_wait=5s"),
        (WhatIf::Class("interactive.max_wait=soon".into()), "is not a duration"),
        (WhatIf::Class("interactive.rank=1s".into()), "no `rank`"),
        (WhatIf::Class("interactive.ttft=0".into()), "longer than 0"),
    ];
    for (what_if, expected) in cases {
        let error = report(&setting(), demand(), vec![what_if]).unwrap_err();
        assert!(error.contains(expected), "{error}\nlacks\n{expected}");
    }
    let mut hasty = setting();
    hasty.classes[0].1.itl_objective = Duration::from_millis(5);
    let error = report(&hasty, demand(), Vec::new()).unwrap_err();
    assert!(error.contains("whatever the fleet") && error.contains("interactive asks for"), "{error}");
    let mut small = setting();
    small.pools[0].kv_tokens = Some(100);
    assert!(report(&small, demand(), Vec::new()).unwrap_err().contains("holds 100 tokens"));
}

#[test]
fn the_cheaper_pool_is_taken() {
    let mut setting = setting();
    setting.pools.push(pool("a100-8b", 1.3));
    let report = report(&setting, demand(), Vec::new()).unwrap();
    assert_eq!(report.setting.pool, "a100-8b");
    let costs: Vec<f64> = report.advice.pools.iter().filter_map(|pool| pool.cost_per_hour).collect();
    assert!(costs.len() == 2 && costs[1] < costs[0], "{:?}", report.advice.pools);
}

#[test]
fn a_long_source_is_simulated_where_it_is_busiest_and_says_so() {
    let mut trace = demand();
    // Quiet times before and after, whose output is far beyond the simulation
    // budget.
    let quiet = |second: u64| TraceCall {
        at: Duration::from_secs(second * 40),
        prompt: 10,
        output: 60_000,
        class: 1,
        ..TraceCall::default()
    };
    let calls: Vec<TraceCall> = trace
        .calls
        .iter()
        .map(|call| TraceCall { at: call.at + Duration::from_secs(8_000), ..call.clone() })
        .collect();
    trace.calls = (0..200).map(quiet).chain(calls).collect();
    trace.sort_and_rebase();
    let work = vec![1.0; trace.calls.len()];
    let part = super::demand::busiest(&trace, &work, super::demand::WHOLE);
    assert!(part.start > 0 && part.end == trace.calls.len(), "{part:?}");
    let output: u64 = trace.calls[part].iter().map(|call| u64::from(call.output)).sum();
    assert!(output <= super::demand::WHOLE.output);
}

#[test]
fn text_and_page_say_it_all() {
    let mut trace = demand();
    trace.calls.iter_mut().step_by(3).for_each(|call| call.class = 1);
    for call in &mut trace.calls {
        (call.waited, call.took) = (Some(Duration::from_millis(20)), Some(Duration::from_secs(1)));
    }
    let report = report(&setting(), trace, vec![WhatIf::Traffic(Factor(1.5))]).unwrap();
    assert!(report.measured.duration_from_source);
    assert!((report.measured.duration_s.p50 - 0.98).abs() < 1e-9);
    assert_eq!(report.measured.queue.unwrap().wait_s.p99, 0.02);
    let questions = [
        "What is the real concurrency floor?",
        "Is it burst or noise?",
        "How long does work stay resident?",
        "What can wait, and how long?",
    ];
    let (text, html) = (text::text(&report), page::html(&report));
    for question in questions {
        assert!(text.contains(question) && html.contains(question), "{text}");
    }
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:#?}");
    for part in ["RECOMMENDED", "fixed peak", "traffic x1.5", "kept", "burst ceiling", "class mix"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(html.matches("<svg").count(), 5);
    assert!(html.contains("a &lt; b") && !html.contains("<script") && !html.contains("a < b"));
    assert!(html.contains("color-scheme:light dark") && html.contains("prefers-color-scheme:dark"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["answers"].as_array().unwrap().len(), 4);
    assert!(json["advice"]["maximum"].as_u64() >= json["advice"]["floor"].as_u64());
    assert_eq!(json["what_if"][0]["name"], "traffic x1.5");
}

#[test]
fn the_plan_does_not_depend_on_the_number_of_cores() {
    let text = |threads| {
        let setting = setting();
        let lab = FleetTrials { setting: &setting, threads, progress: &|_| {} };
        let asked = PlanRequest { name: "x".to_owned(), ..PlanRequest::default() };
        let report = plan(demand(), &lab, asked).unwrap();
        (report.advice.floor, report.advice.maximum, report.promise.kept)
    };
    assert_eq!(text(1), text(3));
}
