//! Tests of scenarios, from text to figures.

use std::fs;
use std::path::PathBuf;

use crate::config::load::read_as;
use crate::studies::scenario::case::Trial;
use crate::studies::scenario::design::DESIGNS;
use crate::studies::scenario::figures::{Figures, column_index};
use crate::studies::scenario::file::{Scenario, WorldSection};
use crate::studies::scenario::page;
use crate::studies::scenario::plan::ScenarioPlan;
use crate::studies::scenario::report::ScenarioReport;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("loadtest/scenarios")
}

fn plan(text: &str) -> Result<ScenarioPlan, String> {
    let scenario: Scenario = read_as(text, "test.yaml").map_err(|report| report.to_string())?;
    ScenarioPlan::new(&scenario, &folder())
}

fn of(figures: &Figures, name: &str) -> f64 {
    figures[column_index(name).unwrap()]
}

fn run(text: &str) -> (ScenarioPlan, Vec<(Trial, Vec<Figures>)>) {
    let plan = plan(text).unwrap();
    let runs = plan.trials().into_iter().map(|trial| (trial, plan.run(trial))).collect();
    (plan, runs)
}

#[test]
fn every_committed_scenario_can_be_run() {
    let mut count = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "yaml") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let plan = plan(&text).unwrap_or_else(|error| panic!("{}:\n{error}", path.display()));
        assert!(!plan.trials().is_empty(), "{}", path.display());
        assert!(plan.cases.iter().all(|case| case.designs.iter().any(|design| design.is_penstock())));
        count += 1;
    }
    assert!(count >= 10, "{count} scenarios");
}

/// `late.yaml` at a tenth of its times.
#[test]
fn late_batch_work_waits_no_longer_than_in_order_of_arrival() {
    let text = "seeds: 1\nwarmup: 0\n\
        classes: {batch: {ttft: 6s, itl: 500ms, max_wait: 360s}}\n\
        world:\n  fleet: [{profile: h100-8b, count: 1}]\n  capacity: 19.6\n  loads: [1.15, 2]\n  \
        designs: [penstock, fcfs]\n  \
        traffic: [{pattern: poisson, sizes: {trace: ../traces/azure2023_conv.csv.gz}, span: 720s}]\n";
    let (plan, runs) = run(text);
    let rows: Vec<&Figures> = runs.iter().map(|(_, groups)| &groups[0]).collect();
    assert_eq!((plan.cases[0].loads.len(), rows.len()), (2, 4));
    let [ours, fcfs, twice, _] = rows[..] else { panic!("{rows:?}") };
    assert!(of(ours, "ttft_most_ms") <= 1.3 * of(fcfs, "ttft_most_ms"), "{ours:?} {fcfs:?}");
    assert!(of(ours, "tokens_per_s") >= 0.98 * of(fcfs, "tokens_per_s"), "{ours:?} {fcfs:?}");
    assert!(of(ours, "goodput") > of(fcfs, "goodput"), "{ours:?} {fcfs:?}");
    assert_eq!(of(ours, "refused"), 0.0);
    assert!((0.2..0.45).contains(&of(twice, "refused")), "{twice:?}");
    assert!(of(twice, "told_most_ms") <= 5_000.0, "told early or never: {twice:?}");
}

/// `beside` of `late.yaml` at a tenth of its times, with half the engines.
#[test]
fn late_batch_work_beside_chats_waits_little_longer_than_in_order_of_arrival() {
    let one = "{pattern: poisson, sizes: {trace: ../traces/azure2023_conv.csv.gz},";
    let (plan, runs) = run(&format!(
        "seeds: 1\nwarmup: 0\nby: class\n\
         classes: {{interactive: {{ttft: 1s, itl: 50ms, max_wait: 30s}}, \
         batch: {{ttft: 6s, itl: 500ms, max_wait: 360s, min_share: 0.05}}}}\n\
         world:\n  fleet: [{{profile: h100-8b, count: 1}}]\n  capacity: 19.6\n  designs: [penstock, fcfs]\n  \
         traffic:\n    - {one} load: 0.3, span: 900s}}\n    - {one} load: 0.85, span: 720s, class: batch}}\n"
    ));
    assert_eq!(plan.groups(), ["all", "interactive", "batch"]);
    let [(_, ours), (_, fcfs)] = &runs[..] else { panic!("{} runs", runs.len()) };
    let told = format!("{:?}\n{:?}", ours[2], fcfs[2]);
    println!("batch beside chats, ours and first come first served:\n{told}");
    assert!(of(&ours[2], "told_most_ms") <= 5_000.0, "told early or never: {told}");
    assert!(of(&ours[2], "ttft_most_ms") <= 2.0 * of(&fcfs[2], "ttft_most_ms"), "{told}");
    assert!(of(&ours[1], "goodput") > of(&fcfs[1], "goodput"), "{ours:?} {fcfs:?}");
}

/// Chats with the sizes and times of the Azure trace at four a100s.
#[test]
fn chats_below_capacity_keep_their_objectives() {
    let (_, runs) = run("seeds: 1\nclasses: {interactive: {ttft: 1s, itl: 50ms, max_wait: 15s}}\n\
         world: {fleet: [{profile: a100-8b, count: 4}], capacity: 28, scrape: 2s, loads: [0.7, 0.9], \
         designs: [penstock], traffic: [{trace: ../traces/azure2023_conv.csv.gz, count: 6000}]}\n");
    let rows: Vec<&Figures> = runs.iter().map(|(_, groups)| &groups[0]).collect();
    println!("azure at 0.7 and 0.9: {rows:?}");
    for (row, goodput) in rows.iter().zip([0.94, 0.91]) {
        assert!(of(row, "goodput") >= goodput, "{row:?}");
        assert!(of(row, "ttft_p99_ms") <= 5_000.0, "{row:?}");
    }
}

/// `odd.yaml` with one seed and a few hundred requests in each case.
#[test]
fn odd_requests_and_engines_cost_nothing() {
    let text = fs::read_to_string(folder().join("odd.yaml")).unwrap();
    let mut scenario: Scenario = read_as(&text, "odd.yaml").unwrap();
    scenario.seeds = Some(1);
    let short = |shape: &WorldSection| {
        let mut shape = shape.clone();
        shape.traffic.iter_mut().flatten().for_each(|stream| stream.count = Some(400));
        shape
    };
    scenario.world = short(&scenario.world);
    scenario.cases = scenario.cases.iter().map(|(name, shape)| (name.to_owned(), short(shape))).collect();
    let plan = ScenarioPlan::new(&scenario, &folder()).unwrap();
    let runs: Vec<(Trial, Vec<Figures>)> =
        plan.trials().into_iter().map(|trial| (trial, plan.run(trial))).collect();
    assert_eq!(runs.len(), 2 * plan.cases.len());
    for pair in runs.chunks(2) {
        let [(trial, ours), (_, least)] = pair else { panic!("two designs") };
        let (ours, least) = (&ours[0], &least[0]);
        let [good, their] = [ours, least].map(|row| of(row, "goodput"));
        let told = format!("{}: {good:.3} {their:.3} {ours:?}", plan.cases[trial.case].name);
        println!("{told}");
        for name in ["lost", "cut", "refused", "broken_invariants"] {
            assert_eq!(of(ours, name), 0.0, "{name} {told}");
        }
        assert!(good >= 0.9 * their, "{told}");
    }
}

/// `flood.yaml` with half the engines and a third of its time.
#[test]
fn one_tenant_s_flood_slows_nobody_else() {
    let one = "{pattern: poisson, sizes: {trace: ../traces/azure2023_conv.csv.gz}, span: 35s, tenant:";
    let polite: String = (1..=4).map(|nth| format!("    - {one} polite-{nth}, load: 0.12}}\n")).collect();
    let text = format!(
        "seeds: 1\nwarmup: 0\nby: tenant\ngoal: {{ttft: 1s, itl: 50ms}}\n\
         classes: {{interactive: {{ttft: 1s, itl: 50ms, max_wait: 600s}}}}\n\
         tenants: {{flood: {{}}, polite-1: {{}}, polite-2: {{}}, polite-3: {{}}, polite-4: {{}}}}\n\
         world:\n  fleet: [{{profile: h100-8b, count: 2}}]\n  capacity: 39.2\n  designs: [penstock, fcfs]\n  \
         traffic:\n    - {one} flood, load: 1.5}}\n{polite}"
    );
    let (plan, runs) = run(&text);
    let [(_, ours), (_, fcfs)] = &runs[..] else { panic!("{} runs", runs.len()) };
    let groups = plan.groups();
    assert_eq!((groups.len(), ours.len()), (6, 6), "all, the flood and four polite tenants");
    for (name, row) in groups.iter().zip(ours).skip(2) {
        assert!(of(row, "goodput") >= 0.95, "{name}: {row:?}");
        assert!(of(row, "ttft_p99_ms") <= 1_000.0, "{name}: {row:?}");
    }
    let all = |groups: &[Figures]| of(&groups[0], "tokens_per_s");
    assert!(all(ours) >= 0.9 * all(fcfs), "{} of {}", all(ours), all(fcfs));
}

/// Faulty scenarios with their error texts.
const MISTAKES: &[(&str, &str)] = &[
    ("", "traffic: needs a stream"),
    ("world: {trafic: []}", "trafic"),
    ("world: {traffic: [{trace: none.csv}]}", "none.csv: cannot read it"),
    ("world: {traffic: [{pattern: poisson, trace: a.csv}]}", "traffic[0].trace: give exactly one of"),
    ("world: {traffic: [{pattern: poisson, class: gold}]}", "traffic[0].class: `gold` is not one of"),
    ("world: {traffic: [{pattern: poisson, rate: 1, load: 1}]}", "traffic[0].rate: give it or load"),
    ("world: {traffic: [{pattern: poisson, shares: {x: 1}}]}", "traffic[0].tenant: `x` is not one of"),
    ("world: {traffic: [{pattern: poisson}], fleet: [{profile: v100}]}", "fleet[0].profile: `v100` is not"),
    ("world: {traffic: [{pattern: poisson, plain: 2}]}", "traffic[0].plain: must be from 0 to 1"),
    ("world: {traffic: [{pattern: poisson, n: 0}]}", "traffic[0].n: must be from 1 to 128"),
    (
        "world: {traffic: [{pattern: poisson, held: {share: 2, lasts: 1s}}]}",
        "traffic[0].held.share: must be from 0 to 1",
    ),
    (
        "world: {traffic: [{pattern: poisson, system: {prompts: 0, tokens: 9}}]}",
        "traffic[0].system.prompts: must be greater than 0",
    ),
    ("world: {traffic: [{pattern: poisson}], clients: 0}", "clients: must be greater than 0"),
    (
        "world: {traffic: [{pattern: poisson}], fleet: [{profile: l4-8b, off: {b: 2}}]}",
        "off.b: must be t_ovh",
    ),
    (
        "world: {traffic: [{pattern: poisson}], fleet: [{profile: l4-8b, off: {a: 0}}]}",
        "off.a: must be greater",
    ),
    ("world: {traffic: [{pattern: poisson}], fleet: []}", "fleet: must have from 1"),
    ("world: {traffic: [{pattern: poisson}], loads: [-1]}", "loads: must be greater than 0"),
    ("world: {traffic: [{pattern: poisson}], designs: [best]}", "designs: no design is called `best`"),
    ("classes: {a: {ttft: 1s, itl: 1s, demote_to: a}}", "classes.a.demote_to: `a` is not another class"),
    ("{warmup: 2, world: {traffic: [{pattern: poisson}]}}", "warmup: must be from 0 to 0.9"),
    ("cases: {a: {traffic: [{pattern: poisson}], capacity: 0}}", "cases.a: capacity: must be"),
    ("world: {traffic: [{pattern: poisson}], scale: {}}", "scale.policies: needs one, such as n"),
    ("world: {scale: {policies: [best]}}", "scale.policies: no policy is called `best`; there are: n"),
    ("world: {fleet: [{count: 2}], scale: {policies: [n]}}", "fleet: with scale it is one row without"),
    ("world: {gateways: 2, scale: {policies: [n]}}", "gateways: with scale there is one"),
    ("world: {scale: {policies: [n], max: 0}}", "scale.max: must be from 1 to 2000"),
    ("world: {scale: {policies: [n], min: 3, initial: 2}}", "scale.min: min, initial and max must be"),
    ("world: {scale: {policies: [n], spread: 2}}", "scale.spread: must be from 0 to 1"),
    ("world: {scale: {policies: [n], poll: 1ms}}", "scale.poll: must be at least 1 s"),
    (
        "world: {scale: {policies: [n], behavior: {up: {tolerance: -1}}}}",
        "scale.behavior.up.tolerance: must be",
    ),
    (
        "world: {traffic: [{pattern: poisson}], designs: [random], scale: {policies: [n]}}",
        "scale.policies: `random` has no n: only penstock says it",
    ),
    (
        "world: {traffic: [{pattern: poisson}], designs: [random], scale: {policies: [queue=1], min: 0}}",
        "scale.min: must be at least 1: `random` holds no requests",
    ),
];

#[test]
fn mistakes_name_the_field() {
    for (text, expected) in MISTAKES {
        let error = plan(text).unwrap_err();
        assert!(error.contains(expected), "{text}\n{error}\nlacks\n{expected}");
    }
}

/// All designs, plain and with refusals: over several gateways, under a crash,
/// and under a freeze.
#[test]
fn every_design_serves_a_light_load_through_faults() {
    let names = DESIGNS.iter().map(|(name, _, _)| *name);
    let shed = names.clone().filter(|name| *name != "penstock").map(|name| format!("{name} shed"));
    let extra = ["jsq own", "scorers own", "prequal sync"].map(str::to_owned);
    let designs: Vec<String> = names.map(str::to_owned).chain(shed).chain(extra).collect();
    let text = format!(
        "seeds: 1\nwarmup: 0\nclasses: {{c: {{ttft: 1s, itl: 100ms, max_wait: 20s}}}}\n\
         world:\n  designs: {designs:?}\n  traffic: [{{pattern: gamma, rate: 20, count: 120}}]\n\
         cases:\n  healthy: {{gateways: 2, fleet: [{{profile: h100-8b, count: 3}}]}}\n  \
         crashed: {{fleet: [{{profile: h100-8b, count: 2}}, \
         {{profile: h100-8b, fault: {{kind: crashed, at: 1s, lasts: 2s}}}}]}}\n  \
         frozen: {{scrape: 100ms, fleet: [{{profile: h100-8b, count: 2}}, \
         {{profile: h100-8b, fault: {{kind: frozen, at: 1s, lasts: 2s}}}}]}}\n"
    );
    let (plan, runs) = run(&text);
    assert_eq!(runs.len(), 3 * designs.len());
    for (trial, groups) in &runs {
        let (case, figures) = (&plan.cases[trial.case], &groups[0]);
        let told = format!("{} {}: {figures:?}", case.name, case.designs[trial.design]);
        assert_eq!((of(figures, "offered"), of(figures, "lost")), (120.0, 0.0), "{told}");
        assert_eq!((of(figures, "refused"), of(figures, "broken_invariants")), (0.0, 0.0), "{told}");
        assert_eq!(of(figures, "cut") > 0.0, case.name == "crashed" && of(figures, "cut") > 0.0, "{told}");
        if case.name == "healthy" {
            assert!(of(figures, "goodput") > 0.99, "{told}");
        }
    }
}

const CLASSES: &str = "
seeds: 2
warmup: 0.2
by: class
classes: {chat: {ttft: 200ms, itl: 50ms}, jobs: {ttft: 600s, itl: 600s}}
tenants: {a: {weight: 2}, b: {}}
world:
  fleet: [{profile: h100-8b, count: 2}]
  loads: [10, 20]
  traffic:
  - {pattern: poisson, count: 100, shares: {a: 3, b: 1}}
  - {pattern: square, period: 1s, count: 50, rate: 50, class: jobs, tenant: b, start: 1s}
  designs: [least-request]
";

#[test]
fn figures_are_split_and_put_together() {
    let (plan, runs) = run(CLASSES);
    assert_eq!(plan.groups(), ["all", "chat", "jobs"]);
    assert_eq!(runs.len(), 4);
    for (_, groups) in &runs {
        let offered: Vec<f64> = groups.iter().map(|figures| of(figures, "offered")).collect();
        assert_eq!(offered[0], 120.0, "a fifth of 150 is not counted");
        assert_eq!(offered[1] + offered[2], 120.0);
    }
    let report = ScenarioReport::new(&plan, &runs);
    assert_eq!(report.rows.len(), 6);
    assert_eq!(report.table().lines().count(), 7);
    let names: Vec<String> = page::drawings(&report).into_iter().map(|drawing| drawing.name).collect();
    assert!(names.contains(&"ttft-p99-ms-jobs".to_owned()) && names.len() == 12, "{names:?}");
    let page = page::html("a < b", "x", &report);
    assert!(page.contains("a &lt; b") && page.matches("<svg").count() == 12);
}

#[test]
fn the_same_trial_twice_is_the_same_and_seeds_differ() {
    let plan = plan(CLASSES).unwrap();
    let trial = plan.trials()[0];
    assert_eq!(plan.run(trial), plan.run(trial));
    assert_ne!(plan.run(trial), plan.run(Trial { seed: 1, ..trial }));
}

#[test]
fn tenants_of_a_trace_are_tenants_of_the_scheduler() {
    let (plan, runs) = run("
seeds: 1
by: tenant
tenants: {c60: {weight: 3}}
world:
  fleet: [{profile: h100-8b, count: 2}]
  loads: [20]
  traffic: [{trace: ../traces/servegen_mmid_1h.csv.gz, trace_tenants: true, count: 300}]
  designs: [penstock]
");
    let groups = plan.groups();
    assert!(groups.len() > 20 && groups[1] == "c60", "{groups:?}");
    let figures = &runs[0].1;
    let parts: f64 = figures[1..].iter().map(|figures| of(figures, "offered")).sum();
    assert_eq!(parts, of(&figures[0], "offered"));
    assert!(of(&figures[1], "offered") > 50.0, "the largest one");
    assert!((0.5..=1.0).contains(&of(&figures[0], "jain")), "{figures:?}");
}

/// Two loads for each of four policies, in a small world.
#[test]
fn policies_are_rows_beside_designs() {
    let (plan, runs) = run("
seeds: 1
warmup: 0
world:
  fleet: [{profile: h100-8b, max_seqs: 8}]
  loads: [2, 20]
  traffic: [{pattern: poisson, count: 400}]
  designs: [least-request, penstock]
  scale: {policies: [queue=4, fixed=3], start: 5s, max: 10}
");
    assert_eq!(runs.len(), 8);
    let report = ScenarioReport::new(&plan, &runs);
    let policies: Vec<&str> = report.rows.iter().map(|row| row.policy.as_str()).collect();
    assert_eq!(policies[..4], ["queue=4", "fixed=3", "queue=4", "fixed=3"]);
    let table = report.table();
    let heading: Vec<&str> = table.split_whitespace().take(3).collect();
    assert_eq!(heading, ["load", "design", "policy"]);
    assert_eq!(report.json()[1]["policy"], "fixed=3");
    for (trial, groups) in &runs {
        let figures = &groups[0];
        assert_eq!(of(figures, "lost"), 0.0);
        let (peak, hours) = (of(figures, "peak_replicas"), of(figures, "replica_hours"));
        assert!((1.0..=10.0).contains(&peak) && hours > 0.0, "{figures:?}");
        if trial.policy == 1 {
            assert_eq!((peak, of(figures, "turns_per_hour")), (3.0, 0.0));
        }
    }
}

/// Talks at two engines with or without prefix caches, which tell their hits in answers or nowhere.
fn talks(cached: bool, rate: u32) -> [Figures; 2] {
    let run = |told: &str| {
        let text = format!(
            "seeds: 1\ngraded: true\nclasses: {{interactive: {{ttft: 1s, itl: 50ms, max_wait: 15s}}}}\nworld:\n  \
             fleet: [{{profile: a100-8b, count: 2, prefix_cache: {cached}, told_hits: {told}}}]\n  scrape: 2s\n  \
             loads: [{rate}]\n  designs: [penstock]\n  traffic:\n    - talks: {{system_prompts: 8, \
             system_tokens: 2000, turns: 6, turn_tokens: 300, pause: 5s, output: {{median: 60, sigma: 0.5}}}}\n      \
             span: 60s\n"
        );
        run(&text).1[0].1[0]
    };
    ["answers", "nowhere"].map(run)
}

#[test]
fn engines_without_prefix_caches_are_found_out_by_their_answers() {
    let [told, silent] = talks(false, 7);
    assert!(of(&told, "within_500_ms") > of(&silent, "within_500_ms") + 0.1, "{told:?} {silent:?}");
}

#[test]
fn answers_that_tell_what_is_believed_cost_nothing() {
    let [told, silent] = talks(true, 12);
    assert!(of(&told, "hit_rate") > 0.85 && of(&told, "within_500_ms") > 0.99, "{told:?} {silent:?}");
    assert!((of(&told, "hit_rate") - of(&silent, "hit_rate")).abs() < 0.01, "{told:?} {silent:?}");
}
