//! `loadtest streams`: the number of streams that stay open, and the memory of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use http_body_util::BodyExt;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::client::Connection;
use crate::process;
use crate::target::{Target, TargetArgs};

/// Connections being opened at once.
const OPENING: usize = 128;
/// Time for the watched process to give memory back.
const SETTLE: Duration = Duration::from_secs(2);

/// Arguments of `loadtest streams`. The engine must stream for longer than
/// the opening and the hold together.
#[derive(Debug, Clone, Args)]
pub struct StreamsArgs {
    /// What to send and where.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Streams to open.
    #[arg(long, default_value_t = 5_000)]
    pub open: usize,
    /// Seconds to hold them.
    #[arg(long, default_value_t = 10)]
    pub hold: u64,
    /// Seconds until all must be open.
    #[arg(long, default_value_t = 120)]
    pub within: u64,
    /// Process whose memory is measured; may be given several times.
    #[arg(long = "pid")]
    pub pids: Vec<u32>,
    /// Print JSON on one line.
    #[arg(long)]
    pub json: bool,
}

/// What was found.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Held {
    /// Streams that delivered a first event.
    pub opened: u64,
    /// Streams still open at the end of the hold.
    pub alive: u64,
    /// Streams that ended before it, or never opened.
    pub lost: u64,
    /// Events received by all streams.
    pub events: u64,
    /// Resident memory of the watched processes before, in KiB.
    pub rss_before_kib: Option<u64>,
    /// With all streams open, at the end of the hold.
    pub rss_open_kib: Option<u64>,
    /// After all were dropped.
    pub rss_after_kib: Option<u64>,
    /// Growth by the open streams, for each of them.
    pub kib_per_stream: Option<f64>,
}

#[derive(Debug, Default)]
struct Counts {
    opened: AtomicU64,
    lost: AtomicU64,
    events: AtomicU64,
}

/// Runs `loadtest streams`.
///
/// # Errors
/// When the target or a watched process cannot be reached, or a stream was lost.
pub async fn command(args: &StreamsArgs) -> Result<()> {
    let held = hold(args).await?;
    if args.json {
        println!("{}", serde_json::to_string(&held)?);
    } else {
        println!("opened {}  alive {}  lost {}  events {}", held.opened, held.alive, held.lost, held.events);
        if let (Some(before), Some(open), Some(after), Some(each)) =
            (held.rss_before_kib, held.rss_open_kib, held.rss_after_kib, held.kib_per_stream)
        {
            println!("memory KiB: before {before}  open {open}  after {after}  per stream {each:.1}");
        }
    }
    if held.lost > 0 {
        bail!("{} of {} streams did not stay open", held.lost, args.open);
    }
    Ok(())
}

/// Opens the streams, holds them, drops them.
///
/// # Errors
/// When the target cannot be resolved, too few files may be opened, or a
/// watched process cannot be read.
pub async fn hold(args: &StreamsArgs) -> Result<Held> {
    process::require_open_files(args.open + 32)?;
    let target = Arc::new(Target::new(&args.target).await?);
    let counts = Arc::new(Counts::default());
    let rss = || if args.pids.is_empty() { Ok(None) } else { process::rss_kib(&args.pids).map(Some) };
    let before = rss()?;
    let gate = Arc::new(Semaphore::new(OPENING));
    let mut tasks = JoinSet::new();
    for _ in 0..args.open {
        tasks.spawn(one_stream(Arc::clone(&target), Arc::clone(&counts), Arc::clone(&gate)));
    }
    wait(&counts, args).await;
    let open = rss()?;
    let (opened, lost) = (counts.opened.load(Ordering::Relaxed), counts.lost.load(Ordering::Relaxed));
    let alive = (args.open as u64).saturating_sub(lost).min(opened);
    tasks.shutdown().await;
    sleep(SETTLE).await;
    Ok(Held {
        opened,
        alive,
        lost: args.open as u64 - alive,
        events: counts.events.load(Ordering::Relaxed),
        rss_before_kib: before,
        rss_open_kib: open,
        rss_after_kib: rss()?,
        kib_per_stream: before
            .zip(open)
            .filter(|_| alive > 0)
            .map(|(before, open)| (open as f64 - before as f64) / alive as f64),
    })
}

/// Reads one stream until it ends, which counts as lost.
async fn one_stream(target: Arc<Target>, counts: Arc<Counts>, gate: Arc<Semaphore>) {
    if read_stream(&target, &counts, gate).await.is_none() {
        counts.lost.fetch_add(1, Ordering::Relaxed);
    }
}

async fn read_stream(target: &Target, counts: &Counts, gate: Arc<Semaphore>) -> Option<()> {
    let opening = gate.acquire_owned().await.ok()?;
    let mut connection = Connection::open(&target.endpoint).await.ok()?;
    let response = connection.send(target.request(true)).await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    let mut body = response.into_body();
    body.frame().await?.ok()?;
    counts.opened.fetch_add(1, Ordering::Relaxed);
    drop(opening);
    loop {
        counts.events.fetch_add(1, Ordering::Relaxed);
        body.frame().await?.ok()?;
    }
}

/// Waits for all streams to be open or lost, then for the hold to pass.
async fn wait(counts: &Counts, args: &StreamsArgs) {
    let mut every = interval(Duration::from_millis(200));
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let give_up = Instant::now() + Duration::from_secs(args.within);
    let mut end = None;
    loop {
        let now = every.tick().await;
        let (opened, lost) = (counts.opened.load(Ordering::Relaxed), counts.lost.load(Ordering::Relaxed));
        if end.is_none() && (opened + lost >= args.open as u64 || now >= give_up) {
            eprintln!("opened {opened} of {}, lost {lost}; holding {} s", args.open, args.hold);
            end = Some(now + Duration::from_secs(args.hold));
        }
        if end.is_some_and(|end| now >= end) {
            return;
        }
    }
}
