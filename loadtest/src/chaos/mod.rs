//! `loadtest chaos`: engines fail in every way while the gateway serves. Every answer is compared
//! with the answer of an undisturbed engine.

pub mod book;
pub mod call;
pub(crate) mod fleet;
pub mod load;
pub mod report;
pub mod schedule;
pub mod storm;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use penstock::config::keys::NewKey;
use penstock::sim::engine::profile::StepProfile;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use self::book::Book;
use self::fleet::Fleet;
use self::load::{Clients, Planned, TENANTS, plan};
use self::report::{GatewaySays, Report, Setting, read_log};
use self::schedule::{SHORTEST_RUN, Schedule};
use self::storm::Storm;
use crate::child::{Child, Work, free_port};
use crate::client::fetch;
use crate::process;
use crate::report::write_json;
use crate::signal::until_stopped;
use crate::target::{Endpoint, bearer};
use crate::template::{Values, fill, keys_for};

const CONFIG: &str = include_str!("../../scenarios/realtime/penstock-chaos.yaml");
/// Sequences that each engine runs, and the configuration says so.
pub(crate) const MAX_SEQS: u32 = 16;
/// Until the gateway is ready, and until everything is empty at the end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `loadtest chaos`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  cargo build --release --workspace
  target/release/loadtest --threads 2 chaos --seed 1
  target/release/loadtest --threads 2 chaos --duration 60 --json chaos.json
  target/release/loadtest --threads 2 chaos --storm

Starts simulated vLLM engines and a gateway of its own, sends streams and plain
requests (chat and completions, three tenants with a class each, greedy) at
--load of what all engines can do, and breaks engines meanwhile: one kind of
fault after the other, then all at once for twice as long. Each fault is
repaired after 6 to 16 % of a phase; at most --most engines are hit at a time.

  kill     the process is gone: connections end, the port refuses
  sigterm  vLLM's default end: every request is aborted
  freeze   the engine hangs, its health says 200
  cut      half of its streams end early: cut, reset, aborted, malformed
  slow     every step takes 4 times as long
  drain    an operator's verb
  spot     a spot notice by an operator's verb, then the machine is gone
  busy     503 to everything

The seed fixes requests, faults and their times. Every answer is compared with
the one that an engine gives to which nothing happens. One question of twenty
is such that no engine can go on with another's answer; its streams may break.

Promises: no request fails before its first token; 99 % of the broken streams
go on; no text and no usage differs; at the end the gateway's ledgers and the
engines are empty. With --storm all engines answer 503 for a third of the time
instead (60 s: 10 before, 20 in it, 30 after), and engines see at most 1.2
attempts for each request that comes meanwhile; all work again within 2 s. In a
storm requests may be refused that could be too late.
Exit code 1 when a promise is broken.")]
pub struct ChaosArgs {
    /// Fixes what is asked, and what breaks when.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Seconds of load: 10 or more. Absent = 600; 60 for a storm.
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// Simulated engines.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub engines: u16,
    /// Engines that are hit at a time at most; fewer than there are.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub most: u16,
    /// Share of what the whole fleet can do.
    #[arg(long, default_value_t = 0.7)]
    pub load: f64,
    /// The accelerator and model whose speed the engines have.
    #[arg(long, default_value = "a100-8b")]
    pub profile: String,
    /// All engines answer 503 for a third of the time; nothing else happens.
    #[arg(long)]
    pub storm: bool,
    /// The gateway's configuration, instead of the usual one; what is filled in
    /// is said in loadtest/scenarios/realtime/README.md.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The gateway's program; absent = `penstock` beside this one.
    #[arg(long, value_name = "FILE")]
    pub penstock: Option<PathBuf>,
    /// Keep the gateway's configuration and log in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub keep: Option<PathBuf>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl ChaosArgs {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.duration.unwrap_or(if self.storm { 60 } else { 600 }))
    }
}

/// Runs `loadtest chaos`.
///
/// # Errors
/// When something does not start, or a promise is broken.
pub async fn command(args: &ChaosArgs) -> Result<()> {
    let report = until_stopped(with_a_gateway(args)).await?;
    print!("{}", report.text());
    write_json(args.json.as_deref(), &report)?;
    ensure!(report.broken_promises.is_empty(), "broken: {}", report.broken_promises.join("; "));
    Ok(())
}

async fn with_a_gateway(args: &ChaosArgs) -> Result<Report> {
    let work = Work::make("chaos", args.keep.as_deref())?;
    let folder = &work.path;
    let stage = Stage::new(args).await?;
    let [listen, admin] = [free_port()?, free_port()?];
    let config = folder.join("penstock.yaml");
    let template = args
        .config
        .as_ref()
        .map(|path| std::fs::read_to_string(path).with_context(|| format!("read {}", path.display())));
    let text = stage.config(&listen, &admin, template.transpose()?.as_deref())?;
    std::fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
    let program = process::gateway_program(args.penstock.as_deref())?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(&config);
    let mut child = Child::start("penstock", &mut command, folder)?;
    let log = folder.join("penstock.log");
    let read = || std::fs::read_to_string(&log).with_context(|| format!("read {}", log.display()));
    let report = stage.run(&listen, &admin, read).await;
    child.alive()?;
    report
}

/// Engines, questions and a plan; the gateway comes from outside.
#[derive(Debug)]
pub struct Stage {
    setting: Setting,
    schedule: Schedule,
    planned: Vec<Planned>,
    fleet: Arc<Fleet>,
    book: Book,
    keys: BTreeMap<String, NewKey>,
    storm: bool,
}

impl Stage {
    /// Starts the engines and finds out what they would say undisturbed.
    ///
    /// # Errors
    /// When an argument is out of range or no port is free.
    pub async fn new(args: &ChaosArgs) -> Result<Self> {
        let duration = args.duration();
        ensure!(duration >= SHORTEST_RUN, "--duration must be {} or more", SHORTEST_RUN.as_secs());
        ensure!(args.load.is_finite() && args.load > 0.0, "--load must be a number above 0");
        ensure!(
            args.storm || (1..args.engines).contains(&args.most),
            "--most must be 1 to {}, so that an engine is left",
            args.engines - 1
        );
        let names = || StepProfile::names().collect::<Vec<_>>().join(", ");
        let profile = StepProfile::named(&args.profile)
            .with_context(|| format!("no profile is called {}; there are: {}", args.profile, names()))?;
        let (engines, most) = (usize::from(args.engines), usize::from(args.most));
        let book = Book::write(args.seed, QUESTIONS).await?;
        let rate = args.load * engines as f64 * book.capacity(&profile, MAX_SEQS);
        let schedule = if args.storm {
            Schedule::storm(duration, engines)
        } else {
            Schedule::new(args.seed, duration, engines, most)
        };
        let most = if args.storm { engines } else { most };
        Ok(Self {
            setting: Setting {
                seed: args.seed,
                engines,
                most,
                seconds: duration.as_secs_f64(),
                rate,
                load: args.load,
            },
            schedule,
            planned: plan(args.seed, rate, duration, book.questions.len()),
            fleet: Arc::new(Fleet::start(profile, MAX_SEQS, engines).await?),
            book,
            keys: keys_for(&TENANTS.map(|(name, _)| name.to_owned())),
            storm: args.storm,
        })
    }

    /// The gateway's configuration; the usual one where there is no `template`.
    ///
    /// # Errors
    /// When the template has a place that cannot be filled in.
    pub fn config(&self, listen: &str, admin: &str, template: Option<&str>) -> Result<String> {
        let engines = [("main".to_owned(), self.fleet.urls())].into();
        fill(
            template.unwrap_or(CONFIG),
            &Values { listen, admin, folder: "", engines: &engines, keys: &self.keys },
        )
    }

    /// Runs everything against the gateway at these addresses, and looks at
    /// what is left. `log` gives the gateway's log.
    ///
    /// # Errors
    /// When the gateway does not become ready, refuses an operator's verb or
    /// its log cannot be read.
    pub async fn run(self, listen: &str, admin: &str, log: impl Fn() -> Result<String>) -> Result<Report> {
        let admin = Endpoint::new(&format!("http://{admin}"), "").await?;
        ready(&admin).await?;
        let keys = TENANTS.iter().map(|(name, _)| bearer(&self.keys[*name].text));
        let clients = Arc::new(Clients {
            endpoint: Endpoint::new(&format!("http://{listen}"), "").await?,
            keys: keys.collect::<Result<_>>()?,
            book: self.book,
            patience: Duration::from_secs(1800),
        });
        let start = Instant::now() + Duration::from_millis(200);
        let mut clocks = JoinSet::new();
        for episode in self.schedule.episodes.clone() {
            let (fleet, admin) = (Arc::clone(&self.fleet), admin.clone());
            clocks.spawn(async move { fleet.suffer(episode, start, &admin).await });
        }
        let storm = async {
            if !self.storm {
                return None;
            }
            Some(Storm::watch(&self.schedule, &self.planned, &self.fleet, start).await)
        };
        let load = Arc::clone(&clients).run(self.planned.clone(), start);
        let (seen, storm) = tokio::join!(load, storm);
        let seen = seen?;
        while let Some(done) = clocks.join_next().await {
            done.context("a fault failed inside the harness")??;
        }
        let leftovers = leftovers(&admin, &self.fleet).await?;
        let storm = storm.map(|storm| storm.over(&self.fleet));
        let says = gateway_says(&admin).await?;
        let log = read_log(&log()?);
        let left = (says, storm, leftovers);
        Ok(Report::new((self.setting, self.schedule), &clients.book, &seen, &log, left))
    }
}

/// Questions of a run; they come again.
pub(crate) const QUESTIONS: usize = 400;

pub(crate) async fn ready(admin: &Endpoint) -> Result<()> {
    let endpoint = admin.clone().with_path("/readyz")?;
    let end = Instant::now() + PATIENCE;
    loop {
        match fetch(&endpoint, endpoint.get()).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= end => return Err(error.context("the gateway is not ready")),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// What is in the gateway's ledgers and in the engines, once there was time
/// for it to go.
pub(crate) async fn leftovers(admin: &Endpoint, fleet: &Fleet) -> Result<Vec<String>> {
    let endpoint = admin.clone().with_path("/admin/v1/status")?;
    let end = Instant::now() + PATIENCE;
    loop {
        let status = serde_json::from_str::<Value>(&fetch(&endpoint, endpoint.get()).await?)?;
        let mut left = fleet.leftovers();
        for name in ["jobs", "broken_invariants"] {
            match status[name].as_u64() {
                Some(0) => {}
                other => left.push(format!("the gateway says {name} = {other:?}")),
            }
        }
        for replica in status["replicas"].as_array().context("the status has no replicas")? {
            for name in ["running", "prefill_tokens", "kv_tokens"] {
                if replica[name] != 0 {
                    left.push(format!("{} has {name} = {}", replica["replica"], replica[name]));
                }
            }
        }
        if left.is_empty() || Instant::now() >= end {
            return Ok(left);
        }
        sleep(Duration::from_millis(200)).await;
    }
}

async fn gateway_says(admin: &Endpoint) -> Result<GatewaySays> {
    let endpoint = admin.clone().with_path("/metrics")?;
    let text = fetch(&endpoint, endpoint.get()).await?;
    let sum = |name: &str| -> f64 {
        let series = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    Ok(GatewaySays {
        continuations: sum("penstock_continuations_total"),
        streams_broken: sum("penstock_streams_broken_total"),
        requeues: sum("penstock_requeues_total"),
        recalls: sum("penstock_recalls_total"),
        ejections: sum("penstock_ejections_total"),
        unlogged: 0,
    })
}
