//! Arguments of `loadtest no-harm`, and the cells that they select.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use penstock::sim::engine::profile::StepTimeFactor;
use penstock::studies::no_harm::matrix::{self, CellClass, MatrixCell, MatrixFleet, RequestKind};

/// Arguments of `loadtest no-harm`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  cargo build --release --workspace
  target/release/loadtest --threads 2 no-harm --fleet a100-8b,l4 --requests plain,half
  target/release/loadtest no-harm --virtual --fleet a100-8b --off-model a=2

Simulated engines in processes of their own, over HTTP in real time. In each cell the
same number of patient clients is in a closed loop, straight at the engines (one after
the other) and through a gateway with its defaults, in turn. The figure is output tokens
a second, through : straight. Exit code 1 when a cell is below its mark, or a request
through the gateway failed that its class would wait for. The whole matrix takes
--rounds x 2 x (warm-up + duration + the longest answer) x 126.")]
pub struct NoHarmArgs {
    /// Fleets: a100-8b, h100-8b, a10, l4, 70b, mixed; absent = all.
    #[arg(long = "fleet", value_name = "NAME", value_delimiter = ',')]
    pub fleets: Vec<String>,
    /// Requests: stream, plain, half, two, shared, long, one-token; absent = all.
    #[arg(long = "requests", value_name = "NAME", value_delimiter = ',')]
    pub kinds: Vec<String>,
    /// Classes: interactive, standard, batch; absent = all.
    #[arg(long = "class", value_name = "NAME", value_delimiter = ',')]
    pub classes: Vec<String>,
    /// Seconds of load before measuring.
    #[arg(long, default_value_t = 15.0)]
    pub warmup: f64,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 12.0)]
    pub duration: f64,
    /// Times that each side of a cell is measured, in turn; the mean of the ratios counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How many times faster than their profiles the engines run. Objectives of the
    /// classes shrink as much; what the gateway believes of engines does not.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub speedup: f64,
    /// Multiplies a constant of the engines' step time (t_ovh, t_w, i0, a, c or d), such
    /// as `a=2`, so that they differ from what the gateway believes of engines.
    #[arg(long = "off-model", value_name = "CONSTANT=FACTOR")]
    pub off_model: Vec<StepTimeFactor>,
    /// Engines have no prefix cache.
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// In virtual time and in this process, with the scheduler alone: seconds instead of
    /// hours, and the same figures on any machine. Straight is the better of in turn and
    /// fewest requests.
    #[arg(long = "virtual", conflicts_with_all = ["rounds", "speedup", "penstock", "loadtest", "keep"])]
    pub virtual_time: bool,
    /// Milliseconds of a round trip to an engine.
    #[arg(long, value_name = "MS", default_value_t = 0, requires = "virtual_time")]
    pub rtt: u32,
    /// The gateway's program; absent = `penstock` beside this one.
    #[arg(long, value_name = "FILE")]
    pub penstock: Option<PathBuf>,
    /// The load generator's program, for engines; absent = this one.
    #[arg(long, value_name = "FILE")]
    pub loadtest: Option<PathBuf>,
    /// Keep configurations and logs in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
    /// Write the cells as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl NoHarmArgs {
    /// The cells that are asked for.
    ///
    /// # Errors
    /// When a name is unknown; it says which there are.
    pub fn cells(&self) -> Result<Vec<MatrixCell>> {
        let fleets: Vec<_> = matrix::FLEETS.iter().map(|fleet| fleet.name).collect();
        let kinds: Vec<_> = matrix::KINDS.into_iter().map(RequestKind::name).collect();
        let classes: Vec<_> = matrix::CLASSES.iter().map(|class| class.name).collect();
        known("--fleet", &self.fleets, &fleets, |name| MatrixFleet::named(name).is_some())?;
        known("--requests", &self.kinds, &kinds, |name| RequestKind::named(name).is_some())?;
        known("--class", &self.classes, &classes, |name| CellClass::named(name).is_some())?;
        let among = |list: &[String], name: &str| list.is_empty() || list.iter().any(|one| one == name);
        let asked = |cell: &MatrixCell| {
            among(&self.fleets, cell.fleet.name)
                && among(&self.kinds, cell.kind.name())
                && among(&self.classes, cell.class.name)
        };
        Ok(matrix::cells().filter(asked).collect())
    }

    /// Warm-up and measured window.
    ///
    /// # Errors
    /// When one of them, or the speedup, is out of range.
    pub fn times(&self) -> Result<(Duration, Duration)> {
        ensure!(
            self.speedup.is_finite() && (0.01..=1000.0).contains(&self.speedup),
            "--speedup must be from 0.01 to 1000"
        );
        let time = |seconds: f64, name: &str| {
            Duration::try_from_secs_f64(seconds)
                .with_context(|| format!("{name} must be a number of seconds, 0 or more"))
        };
        ensure!(self.duration > 0.0, "--duration must be above 0");
        Ok((time(self.warmup, "--warmup")?, time(self.duration, "--duration")?))
    }
}

fn known(option: &str, names: &[String], all: &[&str], is_known: impl Fn(&str) -> bool) -> Result<()> {
    match names.iter().find(|name| !is_known(name)) {
        Some(stranger) => bail!("{option} {stranger}: there are {}", all.join(", ")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: NoHarmArgs,
    }

    fn parse(words: &[&str]) -> NoHarmArgs {
        Cli::try_parse_from(["no-harm"].iter().chain(words)).expect("arguments").args
    }

    #[test]
    fn cells_are_chosen_by_name() {
        assert_eq!(parse(&[]).cells().expect("cells").len(), 126);
        let args = parse(&["--fleet", "l4,70b", "--requests", "plain", "--class", "batch"]);
        let names: Vec<_> = args.cells().expect("cells").iter().map(MatrixCell::name).collect();
        assert_eq!(names, ["l4/plain/batch", "70b/plain/batch"]);
        let error = parse(&["--requests", "streams"]).cells().expect_err("no such kind").to_string();
        assert!(error.starts_with("--requests streams: there are stream, plain"), "{error}");
    }

    #[test]
    fn times_must_be_times() {
        for wrong in ["--warmup=-1", "--duration=0", "--duration=NaN", "--speedup=0", "--speedup=inf"] {
            assert!(parse(&[wrong]).times().is_err(), "{wrong}");
        }
        assert_eq!(parse(&["--warmup", "0"]).times().expect("times").0, Duration::ZERO);
    }
}
