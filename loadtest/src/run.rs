//! `loadtest run`: a closed loop of N connections, or an open loop at a fixed rate. Latencies of an
//! open loop count from the intended send time.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::client::{AnswerKind, Connection, Exchange};
use crate::meter::{Meter, Progress, Sample, Totals, Verdict};
use crate::pace;
use crate::process::{self, seconds};
use crate::report::{Reading, Report};
use crate::target::{Target, TargetArgs};

/// Pause of a worker that could not connect, so that it does not spin.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Arguments of `loadtest run`.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("load").required(true).args(["concurrency", "rate"])))]
pub struct RunArgs {
    /// What to send and where.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Closed loop: connections that each send as soon as they have an answer.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrency: Option<u32>,
    /// Open loop: requests a second, whatever the answers do.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Seconds to measure after the warm-up.
    #[arg(long, default_value_t = 10.0)]
    pub duration: f64,
    /// Seconds of load before measuring.
    #[arg(long, default_value_t = 2.0)]
    pub warmup: f64,
    /// Stop measuring after this many requests, if that comes first.
    #[arg(long)]
    pub requests: Option<u64>,
    /// Ask for event streams and check them.
    #[arg(long)]
    pub stream: bool,
    /// With --stream: count the events and look into none of them, which costs less; there are
    /// no times of tokens then.
    #[arg(long, requires = "stream")]
    pub count_only: bool,
    /// Seconds until a request is given up.
    #[arg(long, default_value_t = 300.0)]
    pub timeout: f64,
    /// Open loop: most requests open at once; more are counted as not sent.
    #[arg(long, default_value_t = 10_000)]
    pub max_open: usize,
    /// Process whose CPU time is measured; may be given several times.
    #[arg(long = "pid")]
    pub pids: Vec<u32>,
    /// Print JSON on one line instead of a table.
    #[arg(long)]
    pub json: bool,
    /// No progress lines.
    #[arg(long)]
    pub quiet: bool,
}

impl RunArgs {
    fn answer(&self) -> AnswerKind {
        match (self.stream, self.count_only) {
            (false, _) => AnswerKind::Plain,
            (true, false) => AnswerKind::Stream,
            (true, true) => AnswerKind::Counted,
        }
    }
}

/// Runs `loadtest run`.
///
/// # Errors
/// When the arguments are wrong, a watched process is gone, or not one
/// request succeeded.
pub async fn command(args: &RunArgs) -> Result<()> {
    let report = run(args).await?;
    println!("{}", if args.json { report.json()? } else { report.table() });
    if report.ok() == 0 {
        bail!("no request succeeded");
    }
    Ok(())
}

#[derive(Debug)]
struct Shared {
    target: Target,
    answer: AnswerKind,
    timeout: Duration,
    progress: Progress,
    meter: Mutex<Meter>,
    measured_from: Instant,
    /// End of the measured window, once it is over.
    stop: OnceLock<Instant>,
}

impl Shared {
    fn exchange(&self, intended: Instant) -> Exchange<'_> {
        let deadline = intended + self.timeout;
        Exchange { target: &self.target, answer: self.answer, intended, deadline, progress: &self.progress }
    }

    fn record(&self, sample: &Sample) {
        if sample.intended >= self.measured_from {
            self.meter.lock().unwrap_or_else(PoisonError::into_inner).record(sample);
        }
    }

    fn overflow(&self, intended: Instant) {
        if intended >= self.measured_from {
            self.meter.lock().unwrap_or_else(PoisonError::into_inner).count(Verdict::Overflow);
        }
    }

    /// Whether a request meant for `intended` comes after the window. One
    /// that was only taken up late still belongs to it.
    fn over(&self, intended: Instant) -> bool {
        self.stop.get().is_some_and(|&end| intended >= end)
    }

    fn read(&self, pids: &[u32]) -> Result<Reading> {
        let cpu_micros = process::cpu_micros(pids)?;
        Ok(Reading { at: Instant::now(), totals: self.progress.totals(), cpu_micros })
    }
}

/// Sends the load and reports.
///
/// # Errors
/// When the arguments are wrong or a watched process is gone.
pub async fn run(args: &RunArgs) -> Result<Report> {
    let target = Target::new(&args.target).await?;
    let warmup = seconds(args.warmup, "--warmup")?;
    let duration = seconds(args.duration, "--duration")?;
    check_open_files(args)?;
    let start = Instant::now();
    let shared = Arc::new(Shared {
        target,
        answer: args.answer(),
        timeout: seconds(args.timeout, "--timeout")?,
        progress: Progress::default(),
        meter: Mutex::default(),
        measured_from: start + warmup,
        stop: OnceLock::new(),
    });
    let mut load = JoinSet::new();
    match (args.concurrency, args.rate) {
        (Some(workers), _) => closed_loop(&shared, workers, start, warmup, &mut load),
        (None, Some(rate)) => {
            let times = pace::ticks(rate, start, start + warmup + duration)?;
            load.spawn(open_loop(Arc::clone(&shared), times, args.max_open));
        }
        (None, None) => bail!("one of --concurrency and --rate is needed"),
    }
    let mut extras = JoinSet::new();
    if !args.quiet {
        extras.spawn(print_progress(Arc::clone(&shared), start));
    }
    sleep_until(shared.measured_from).await;
    let before = shared.read(&args.pids)?;
    measured_window(&shared, duration, args.requests, before.totals.completed).await;
    let after = shared.read(&args.pids)?;
    shared.stop.get_or_init(|| after.at);
    while let Some(ended) = load.join_next().await {
        ended.context("a load task failed")?;
    }
    let meter = std::mem::take(&mut *shared.meter.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Report::new(&meter, &before, &after, !args.pids.is_empty()))
}

/// A closed loop opens all its connections at once. An open loop opens what
/// it comes to need, so there a low limit is only worth a warning.
fn check_open_files(args: &RunArgs) -> Result<()> {
    if let Some(workers) = args.concurrency {
        return process::require_open_files(workers as usize + 32);
    }
    if let Err(error) = process::require_open_files(args.max_open + 32) {
        eprintln!("warning: if many requests are open at once: {error}");
    }
    Ok(())
}

async fn measured_window(shared: &Shared, duration: Duration, requests: Option<u64>, already: u64) {
    let Some(requests) = requests else {
        return sleep(duration).await;
    };
    let end = Instant::now() + duration;
    while Instant::now() < end && shared.progress.totals().completed - already < requests {
        sleep(Duration::from_millis(5)).await;
    }
}

/// Starts the workers spread over the first half of the warm-up, so that
/// paced streams do not all tick together.
fn closed_loop(shared: &Arc<Shared>, workers: u32, start: Instant, warmup: Duration, load: &mut JoinSet<()>) {
    for n in 0..workers {
        let shared = Arc::clone(shared);
        let begin = start + (warmup / 2).mul_f64(f64::from(n) / f64::from(workers));
        load.spawn(async move {
            sleep_until(begin).await;
            let mut connection = None;
            loop {
                let now = Instant::now();
                if shared.over(now) {
                    return;
                }
                let (sample, kept) = shared.exchange(now).run(connection.take()).await;
                shared.record(&sample);
                connection = kept;
                if matches!(sample.ended, Some((_, Verdict::Connect))) {
                    sleep(CONNECT_PAUSE).await;
                }
            }
        });
    }
}

/// Sends at each time as it comes due, over idle connections or new ones.
async fn open_loop(shared: Arc<Shared>, mut times: tokio::sync::mpsc::Receiver<Instant>, max_open: usize) {
    let idle: Arc<Mutex<Vec<Connection>>> = Arc::default();
    let mut open = JoinSet::new();
    while let Some(intended) = times.recv().await {
        if shared.over(intended) {
            break;
        }
        while open.try_join_next().is_some() {}
        if open.len() >= max_open {
            shared.overflow(intended);
            continue;
        }
        let (shared, idle) = (Arc::clone(&shared), Arc::clone(&idle));
        open.spawn(async move {
            let connection = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let (sample, kept) = shared.exchange(intended).run(connection).await;
            shared.record(&sample);
            if let Some(connection) = kept {
                idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            }
        });
    }
    while open.join_next().await.is_some() {}
}

async fn print_progress(shared: Arc<Shared>, start: Instant) {
    let mut every = interval(Duration::from_secs(1));
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    every.tick().await;
    let mut last = Totals::default();
    loop {
        let now = every.tick().await;
        let totals = shared.progress.totals();
        let phase = if now < shared.measured_from {
            "warm-up"
        } else if shared.over(now) {
            "draining"
        } else {
            "measure"
        };
        eprintln!(
            "{:>5.0} s  {phase:<8}  {:>7}/s  open {:>6}  done {:>9}  failed {:>6}",
            now.duration_since(start).as_secs_f64(),
            totals.completed - last.completed,
            totals.sent - totals.completed,
            totals.completed,
            totals.failed,
        );
        last = totals;
    }
}
