//! `loadtest bench-proxy`: what proxies cost in front of the same instant engines. CPU of requests
//! and chunks, throughput, latency, memory, and the time until clients' aborts reach the engines.

mod args;
mod engines;
mod measure;
mod page;
mod programs;
mod results;
mod rows;
mod stage;
mod text;

pub use self::args::{BenchProxyArgs, OtherProxy, TargetKind};
pub use self::programs::{Program, Programs};
pub use self::results::{BenchCell, BenchResults, BenchSample, Others};
pub use self::rows::{Figure, Row};

use std::path::Path;

use anyhow::{Context, Result, ensure};
use tokio::time::Instant;

use self::args::Cores;
use self::engines::InstantEngines;
use self::measure::{Found, idle, measure};
use self::stage::{Contender, ProxyStage};
use crate::child::Work;
use crate::signal::until_stopped;
use crate::{cores, process};

/// Sockets of this process: two for each stream that is open, some for the rest.
const OPEN_FILES: usize = 2500;

/// Runs `loadtest bench-proxy`.
///
/// # Errors
/// When the arguments are wrong, something does not start, it is stopped, or a request
/// failed.
pub async fn command(args: &BenchProxyArgs) -> Result<()> {
    let results = until_stopped(bench(args)).await?;
    println!("{}", text::text(&results));
    let write = |path: Option<&Path>, text: String| match path {
        Some(path) => std::fs::write(path, text).with_context(|| format!("write {}", path.display())),
        None => Ok(()),
    };
    write(args.json.as_deref(), serde_json::to_string_pretty(&results)?)?;
    write(args.svg.as_deref(), page::svg(&results))?;
    write(args.html.as_deref(), page::page(&results))
}

/// Measures all rows of all rounds. The threads of this process move to the load's cores.
///
/// # Errors
/// When the arguments are wrong, something does not start, or a request failed.
pub async fn bench(args: &BenchProxyArgs) -> Result<BenchResults> {
    let targets = args.names()?;
    ensure!(!targets.is_empty(), "no target is named");
    let programs = Programs::find(args)?;
    process::raise_open_files(OPEN_FILES)?;
    let allowed = cores::allowed()?;
    let cores = args.cores(&allowed)?;
    let machine = machine(&cores, allowed.len());
    cores::move_process(std::process::id(), &cores.load)?;
    let folder = Work::make("bench-proxy", args.keep.as_deref())?;
    let engines = InstantEngines::start(args.engine_port, &cores.load).await?;
    let stage = ProxyStage {
        work: folder.path.clone(),
        cores,
        engines: engines.urls.clone(),
        programs: programs.clone(),
    };
    let mut samples = Vec::new();
    let mut others = Vec::new();
    for round in 1..=args.rounds() {
        let round = Round { number: round, args, stage: &stage, engines: &engines };
        let (found, beside) = round.run().await?;
        samples.extend(found);
        others.push(beside);
    }
    let mean = |of: fn(&Others) -> f64| others.iter().map(of).sum::<f64>() / others.len().max(1) as f64;
    let others =
        Others { proxy_core: mean(|others| others.proxy_core), load_cores: mean(|others| others.load_cores) };
    samples.extend(results::added(&samples));
    let base = results::base(&targets);
    Ok(BenchResults {
        programs,
        machine,
        others,
        rounds: args.rounds(),
        cells: results::cells(&samples, &targets, base.as_deref()),
        targets,
        base,
        samples,
    })
}

/// One round with proxies of its own.
struct Round<'a> {
    number: u32,
    args: &'a BenchProxyArgs,
    stage: &'a ProxyStage,
    engines: &'a InstantEngines,
}

impl Round<'_> {
    async fn run(&self) -> Result<(Vec<BenchSample>, Others)> {
        self.progress("start");
        let contenders = self.stage.start(self.args).await?;
        let clock = CoreClock::read(&self.stage.cores, &contenders)?;
        let samples = self.rows(&contenders).await?;
        let others = CoreClock::read(&self.stage.cores, &contenders)?.since(&clock);
        Ok((samples, others))
    }

    async fn rows(&self, contenders: &[Contender]) -> Result<Vec<BenchSample>> {
        let direct = self.stage.direct();
        let mut samples = Vec::new();
        for (place, row) in self.args.rows().into_iter().enumerate() {
            let times = row.times(self.args.quick);
            // Latency is compared with that of the engines.
            let extra = row == Row::Latency && !contenders.iter().any(Contender::is_direct);
            let measured = |contender: &&Contender| row.has_direct() || !contender.is_direct();
            let mut turn: Vec<&Contender> =
                contenders.iter().chain(extra.then_some(&direct)).filter(measured).collect();
            if turn.is_empty() {
                continue;
            }
            if row == Row::Idle {
                self.progress(&row.name());
                for (contender, found) in turn.iter().zip(idle(times, &turn).await?) {
                    samples.extend(self.samples(contender, found));
                }
                continue;
            }
            let first = (place + self.number as usize) % turn.len();
            turn.rotate_left(first);
            for contender in turn {
                self.progress(&format!("{}, {}", row.name(), contender.name));
                let found = measure(row, times, self.engines, contender).await;
                let found = found.with_context(|| format!("{}, {}", contender.name, row.name()))?;
                samples.extend(self.samples(contender, found));
            }
        }
        Ok(samples)
    }

    fn samples(&self, contender: &Contender, found: Vec<Found>) -> impl Iterator<Item = BenchSample> {
        let (round, target) = (self.number, contender.name.clone());
        found.into_iter().map(move |(figure, value)| BenchSample {
            round,
            target: target.clone(),
            figure,
            value,
        })
    }

    fn progress(&self, what: &str) {
        eprintln!("round {} of {}: {what}", self.number, self.args.rounds());
    }
}

/// Time of the cores, and what proxies and load used of it.
struct CoreClock {
    at: Instant,
    load_cores: usize,
    /// Of the proxies' core and of the load's: all, and their own.
    micros: [(u64, u64); 2],
}

impl CoreClock {
    fn read(cores: &Cores, contenders: &[Contender]) -> Result<Self> {
        let pids: Vec<u32> = contenders.iter().flat_map(|contender| contender.pids.iter().copied()).collect();
        let load = cores.load.iter().map(|core| process::core_micros(*core)).sum::<Result<u64>>()?;
        let micros = [
            (process::core_micros(cores.proxy)?, process::cpu_micros(&pids)?),
            (load, process::cpu_micros(&[std::process::id()])?),
        ];
        Ok(CoreClock { at: Instant::now(), load_cores: cores.load.len(), micros })
    }

    fn since(&self, earlier: &CoreClock) -> Others {
        let micros = self.at.duration_since(earlier.at).as_micros() as f64;
        let part = |side: usize, cores: usize| {
            let (now, before) = (self.micros[side], earlier.micros[side]);
            let others = now.0.saturating_sub(before.0).saturating_sub(now.1.saturating_sub(before.1));
            others as f64 / (micros * cores as f64)
        };
        Others { proxy_core: part(0, 1), load_cores: part(1, self.load_cores) }
    }
}

/// The machine, the cores of both sides, and how busy it was before.
fn machine(cores: &Cores, count: usize) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (info, kernel, load) =
        (read("/proc/cpuinfo"), read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"));
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let own = if cfg!(debug_assertions) { " The load generator is built without optimisation." } else { "" };
    let loads: Vec<String> = cores.load.iter().map(ToString::to_string).collect();
    format!(
        "{model}, {count} cores, Linux {}; proxies on core {}, engines and load on {}; load average {} before.{own}",
        kernel.trim(),
        cores.proxy,
        loads.join(", "),
        load.split_ascii_whitespace().next().unwrap_or("unknown")
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_others_used_is_the_rest_of_the_busy_time() {
        let at = Instant::now();
        let before =
            CoreClock { at, load_cores: 2, micros: [(5_000_000, 1_000_000), (7_000_000, 2_000_000)] };
        let after = CoreClock {
            at: at + Duration::from_secs(10),
            load_cores: 2,
            micros: [(14_000_000, 8_000_000), (15_000_000, 10_500_000)],
        };
        let others = after.since(&before);
        assert!((others.proxy_core - 0.2).abs() < 1e-9, "{others:?}");
        assert_eq!(others.load_cores, 0.0, "less than nothing is nothing");
    }
}
