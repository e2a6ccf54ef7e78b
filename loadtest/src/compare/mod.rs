//! `loadtest compare`: several gateways or configurations under the same load, interleaved, on one
//! machine. The command starts every process itself and leaves none running.

mod page;
mod scenario;
mod stage;
mod summary;
mod text;

pub use self::scenario::{Contestant, EngineGroup, Kind, PlannedFault, Scenario};
pub use self::stage::Run;
pub use self::summary::{Row, rows};

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use self::stage::Stage;
use crate::child::Work;
use crate::process;
use crate::signal::until_stopped;

/// Arguments of `loadtest compare`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  cargo build --release --workspace
  target/release/loadtest compare loadtest/scenarios/realtime/load.yaml

A scenario names simulated engines, contestants and the load; see
loadtest/scenarios/realtime/README.md. Every contestant runs once in each round, with the
same calls and fresh engines; the order turns with the rounds (A B C, C A B).
Writes one HTML page with plots and a JSON file, and prints the table. Ctrl-C
stops everything.")]
pub struct CompareArgs {
    /// The scenario file.
    #[arg(value_name = "FILE")]
    pub scenario: PathBuf,
    /// Where the page goes; the JSON goes beside it.
    #[arg(long, value_name = "FILE", default_value = "compare.html")]
    pub out: PathBuf,
    /// The gateway's program; absent = `penstock` beside this one.
    #[arg(long, value_name = "FILE")]
    pub penstock: Option<PathBuf>,
    /// The load generator's program, for engines and proxies; absent = this one.
    #[arg(long, value_name = "FILE")]
    pub loadtest: Option<PathBuf>,
    /// Rounds, instead of the scenario's.
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Only these contestants; may be given several times.
    #[arg(long = "only", value_name = "NAME")]
    pub only: Vec<String>,
    /// Keep configurations and logs of all runs in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
    /// No progress line.
    #[arg(long)]
    pub quiet: bool,
}

/// The whole comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// What the scenario shows.
    pub about: String,
    /// The medians.
    pub rows: Vec<Row>,
    /// Every run.
    pub runs: Vec<Run>,
}

/// Runs `loadtest compare`.
///
/// # Errors
/// When the scenario is wrong, something does not start, or it is stopped.
pub async fn command(args: &CompareArgs) -> Result<()> {
    let text = until_stopped(compare(args)).await?;
    print!("{text}");
    println!("\npage: {}  data: {}", args.out.display(), json_path(args).display());
    Ok(())
}

/// Compares, writes the page and the data, and gives the table. Dropping the
/// future stops everything.
///
/// # Errors
/// When the scenario is wrong, something does not start, or a file cannot be
/// written.
pub async fn compare(args: &CompareArgs) -> Result<String> {
    let mut scenario = Scenario::read(&args.scenario)?;
    if let Some(rounds) = args.rounds {
        ensure!((1..=100).contains(&rounds), "--rounds must be 1 to 100");
        scenario.rounds = rounds;
    }
    if let Some(stranger) =
        args.only.iter().find(|name| scenario.contestants.iter().all(|c| c.name != **name))
    {
        bail!("--only {stranger}: the scenario has no such contestant");
    }
    scenario.contestants.retain(|contestant| args.only.is_empty() || args.only.contains(&contestant.name));
    let work = Work::make("compare", args.keep.as_deref())?;
    let stage = stage(args, scenario, work.path.clone())?;
    let runs = all_runs(&stage).await?;
    let scenario = &stage.scenario;
    let rows = rows(scenario, &runs);
    let source = std::fs::read_to_string(&args.scenario).unwrap_or_default();
    write(&args.out, &page::page(scenario, &source, &rows, &runs))?;
    let table = text::table(scenario, &rows, &runs);
    let comparison = Comparison { about: scenario.about.clone(), rows, runs };
    write(&json_path(args), &serde_json::to_string(&comparison)?)?;
    Ok(table)
}

async fn all_runs(stage: &Stage) -> Result<Vec<Run>> {
    let contestants = &stage.scenario.contestants;
    let total = stage.scenario.rounds as usize * contestants.len();
    let mut runs = Vec::with_capacity(total);
    for round in 1..=stage.scenario.rounds {
        for place in order(contestants.len(), round) {
            let contestant = &contestants[place];
            let label = format!("{}/{total} {}", runs.len() + 1, contestant.name);
            let run = stage.run(contestant, round, &label).await;
            runs.push(run.with_context(|| format!("round {round}, {}", contestant.name))?);
        }
    }
    Ok(runs)
}

/// Who runs when in a round: the last one of a round begins the next.
fn order(contestants: usize, round: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contestants).collect();
    order.rotate_right((round as usize - 1) % contestants.max(1));
    order
}

fn stage(args: &CompareArgs, scenario: Scenario, work: PathBuf) -> Result<Stage> {
    let own = std::env::current_exe().context("find this program")?;
    let needed = scenario.contestants.iter().any(|contestant| contestant.penstock.is_some());
    let penstock = match needed {
        true => process::built_gateway_program(args.penstock.as_deref())?,
        false => process::gateway_program(args.penstock.as_deref())?,
    };
    Ok(Stage {
        folder: args.scenario.parent().unwrap_or(Path::new("")).to_owned(),
        scenario,
        work,
        loadtest: args.loadtest.clone().unwrap_or(own),
        penstock,
        quiet: args.quiet,
    })
}

fn json_path(args: &CompareArgs) -> PathBuf {
    args.out.with_extension("json")
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use penstock::config::load::check_file;
    use penstock::config::report::problem::Severity;

    use super::*;
    use crate::replay::Plan;
    use crate::template::{Values, fill, keys_for};

    #[test]
    fn committed_scenarios_and_their_configurations_are_sound() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/realtime");
        let work = tempfile::tempdir().expect("a folder");
        let rivals = ["conversations", "mixed", "slow", "talks", "flood", "batch"];
        let rivals = rivals.map(|name| format!("rivals-{name}"));
        let names = ["load", "flood", "batch", "pools"].map(str::to_owned);
        for name in names.iter().chain(&rivals) {
            let scenario = Scenario::read(&folder.join(format!("{name}.yaml"))).expect(name);
            let plan = Plan::of(&scenario.load, &folder, 0).expect(name);
            let mut ports = 9000_u16..;
            let mut url = |_| format!("http://127.0.0.1:{}", ports.next().expect("a port"));
            let mut urls = |group: &EngineGroup| (0..group.count).map(&mut url).collect();
            let engines: BTreeMap<_, _> =
                scenario.engines.iter().map(|(name, group)| (name.clone(), urls(group))).collect();
            for contestant in &scenario.contestants {
                let Some(template) = &contestant.penstock else { continue };
                let text = std::fs::read_to_string(folder.join(template)).expect("a template");
                let (listen, admin) = ("127.0.0.1:8080", "127.0.0.1:8081");
                let values =
                    Values { listen, admin, folder: "", engines: &engines, keys: &keys_for(&plan.tenants) };
                let config = work.path().join("penstock.yaml");
                write(&config, &fill(&text, &values).expect(name)).expect("a file");
                let report = check_file(&config);
                assert!(
                    report.problems.iter().all(|problem| problem.severity != Severity::Error),
                    "{report}"
                );
            }
        }
    }

    #[test]
    fn the_order_turns_with_the_rounds() {
        let orders: Vec<_> = (1..=4).map(|round| order(3, round)).collect();
        assert_eq!(orders, [[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 1, 2]]);
    }
}
