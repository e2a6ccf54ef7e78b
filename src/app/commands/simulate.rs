//! `penstock simulate`: runs scenarios on all cores and prints their results.

use std::fs;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::cli::SimulateArgs;
use crate::config::load;
use crate::config::report::ConfigReport;
use crate::config::syntax::named::NamedEntries;
use crate::studies::scenario::design::DESIGNS;
use crate::studies::scenario::figures::{Figures, column_index};
use crate::studies::scenario::file::{PatternName, Scenario, ScenarioFleet, StreamRow, WorldSection};
use crate::studies::scenario::page;
use crate::studies::scenario::plan::{ScenarioPlan, Trial};
use crate::studies::scenario::report;

/// Most bytes of a scenario file.
const MAX_FILE: u64 = 1 << 20;

/// Runs the command and returns the text for standard output, with the exit code.
pub(in crate::app) fn run(args: &SimulateArgs) -> anyhow::Result<(String, ExitCode)> {
    if args.list_designs {
        return Ok((designs(), ExitCode::SUCCESS));
    }
    let (scenario, folder) = match &args.scenario {
        Some(path) => match read(path)? {
            Ok(scenario) => (scenario, path.parent().unwrap_or(Path::new("")).to_owned()),
            Err(report) => {
                eprint!("{report}");
                return Ok((String::new(), ExitCode::FAILURE));
            }
        },
        None => (Scenario::default(), PathBuf::new()),
    };
    let scenario = with_arguments(scenario, args)?;
    let plan = ScenarioPlan::new(&scenario, &folder).map_err(anyhow::Error::msg)?;
    // Checked before the work, so that a wrong path does not cost the work.
    if let Some(folder) = args.json.as_deref().and_then(Path::parent) {
        create(folder)?;
    }
    args.html.as_deref().map_or(Ok(()), create)?;
    let runs = run_all(&plan, args);
    let report = report::ScenarioReport::new(&plan, &runs);
    let title = args.scenario.as_deref().and_then(Path::file_stem).unwrap_or_default().to_string_lossy();
    let title = if title.is_empty() { "simulation".into() } else { title };
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", document(&title, &scenario.about, &plan, &report));
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(folder) = &args.html {
        write_page(folder, &title, &scenario.about, &report)?;
    }
    let broken = runs.iter().flat_map(|(_, groups)| groups).any(is_broken);
    if broken {
        eprintln!(
            "penstock: an invariant of the scheduler broke in at least one run: see the column `broken`"
        );
    }
    let about =
        if scenario.about.is_empty() { String::new() } else { format!("{}\n\n", scenario.about.trim()) };
    Ok((format!("{about}{}", report.table()), ExitCode::from(u8::from(broken))))
}

fn is_broken(figures: &Figures) -> bool {
    column_index("broken_invariants").is_some_and(|place| figures[place] > 0.0)
}

/// Text of the designs and their options.
fn designs() -> String {
    let width = DESIGNS.iter().map(|(name, _, _)| name.len()).max().unwrap_or(0);
    let line = |(name, _, what): &(&str, &[&str], &str)| format!("  {name:<width$}  {what}\n");
    let lines: String = DESIGNS.iter().map(line).collect();
    format!(
        "{lines}\nOptions follow the name: `jsq scrape=50ms own`. Every design but penstock also takes\n\
         `shed`: it refuses what it predicts to come after its deadline.\n"
    )
}

fn read(path: &Path) -> anyhow::Result<Result<Scenario, ConfigReport>> {
    let named = || format!("read the scenario {}", path.display());
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
        .with_context(named)?;
    if text.len() as u64 > MAX_FILE {
        bail!("{} is larger than {MAX_FILE} bytes", path.display());
    }
    Ok(load::read_as(&text, &path.to_string_lossy()))
}

/// The scenario with the command line's values, which always take precedence over the file's.
fn with_arguments(mut scenario: Scenario, args: &SimulateArgs) -> anyhow::Result<Scenario> {
    scenario.seeds = args.seeds.or(scenario.seeds);
    let flags = WorldSection {
        fleet: args.fleet.as_deref().map(fleet).transpose()?,
        capacity: args.capacity,
        loads: (!args.load.is_empty()).then(|| args.load.clone()),
        traffic: traffic(args),
        designs: (!args.design.is_empty()).then(|| args.design.clone()),
        gateways: args.gateways,
        scrape: args.scrape,
        ..WorldSection::default()
    };
    if !args.case.is_empty() {
        let unknown = args.case.iter().find(|name| scenario.cases.get(name).is_none());
        if let Some(name) = unknown {
            let names = scenario.cases.names().collect::<Vec<_>>().join(", ");
            bail!("--case: there is no case `{name}`; there are: {names}");
        }
    }
    let wanted = |name: &str| args.case.is_empty() || args.case.iter().any(|case| case == name);
    let kept = scenario.cases.iter().filter(|(name, _)| wanted(name));
    scenario.cases =
        kept.map(|(name, case)| (name.to_owned(), flags.over(case))).collect::<NamedEntries<WorldSection>>();
    scenario.world = flags.over(&scenario.world);
    if scenario.world.traffic.is_none() && scenario.cases.is_empty() {
        scenario.world.traffic =
            Some(vec![StreamRow { pattern: Some(PatternName::Poisson), ..StreamRow::default() }]);
    }
    Ok(scenario)
}

fn traffic(args: &SimulateArgs) -> Option<Vec<StreamRow>> {
    let stream = StreamRow { trace: args.trace.clone(), count: args.count, ..StreamRow::default() };
    args.trace.is_some().then(|| vec![stream])
}

/// Reads a fleet written as `profile:count,...`.
fn fleet(text: &str) -> anyhow::Result<Vec<ScenarioFleet>> {
    let row = |part: &str| {
        let (profile, count) = part.split_once(':').unwrap_or((part, "1"));
        let count = count.parse().with_context(|| format!("--fleet: write `{part}` like h100-8b:8"))?;
        Ok(ScenarioFleet {
            profile: profile.trim().to_owned(),
            count: Some(count),
            ..ScenarioFleet::default()
        })
    };
    text.split(',').map(row).collect()
}

/// Runs every trial, as many at the same time as there are cores.
fn run_all(plan: &ScenarioPlan, args: &SimulateArgs) -> Vec<(Trial, Vec<Figures>)> {
    let trials = plan.trials();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let workers = args.threads.map_or(cores, usize::from).clamp(1, trials.len().max(1));
    let next = AtomicUsize::new(0);
    let (done, results) = mpsc::channel();
    let mut runs = Vec::with_capacity(trials.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            let (done, next, trials) = (done.clone(), &next, &trials);
            scope.spawn(move || {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if done.send((*trial, plan.run(*trial))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for (trial, figures) in results {
            runs.push((trial, figures));
            progress(plan, trial, runs.len(), trials.len(), args.quiet);
        }
    });
    // Threads end in any order; the result must not depend on that order.
    runs.sort_unstable_by_key(|(trial, _)| *trial);
    runs
}

fn progress(plan: &ScenarioPlan, trial: Trial, done: usize, of: usize, quiet: bool) {
    if quiet {
        return;
    }
    let case = &plan.cases[trial.case];
    let (load, design) = (case.loads[trial.load], &case.designs[trial.design]);
    let policy = case.policies().get(trial.policy).map(|policy| format!(" {policy}")).unwrap_or_default();
    let line = format!("[{done}/{of}] {} load {load} {design}{policy} seed {}", case.name, trial.seed);
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}{}", if done == of { "\r\x1b[K" } else { "" });
    } else if done == of || done.is_multiple_of(25) {
        eprintln!("{line}");
    }
}

fn document(title: &str, about: &str, plan: &ScenarioPlan, report: &report::ScenarioReport) -> Value {
    json!({ "scenario": title, "about": about, "seeds": plan.seeds, "rows": report.json() })
}

fn create(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))
}

fn write_page(
    folder: &Path,
    title: &str,
    about: &str,
    report: &report::ScenarioReport,
) -> anyhow::Result<()> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    for drawing in page::drawings(report) {
        write(&format!("{}.svg", drawing.name), &drawing.chart.svg())?;
    }
    write("index.html", &page::html(title, about, report))
}
