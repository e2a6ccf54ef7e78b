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
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::client::Connection;
use crate::process;
use crate::target::{Target, TargetArgs};

/// Connections being opened at once.
const OPENING: usize = 128;
/// Time for the watched process to give memory back.
const SETTLE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Time between two looks at the memory while the streams are held.
const LOOK: Duration = Duration::from_secs(10);

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
    /// Seconds after which every second stream is closed and opened anew, on average; absent = all stay.
    #[arg(long, value_name = "SECONDS")]
    pub churn: Option<f64>,
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
    /// Streams that were closed on purpose and opened anew.
    pub reopened: u64,
    /// Events received by all streams.
    pub events: u64,
    /// Resident memory of the watched processes before, in KiB.
    pub rss_before_kib: Option<u64>,
    /// With all streams open, at the end of the hold.
    pub rss_open_kib: Option<u64>,
    /// The most in any look, one each ten seconds of the hold.
    pub rss_most_kib: Option<u64>,
    /// After all were dropped.
    pub rss_after_kib: Option<u64>,
    /// Growth by the open streams, for each of them.
    pub kib_per_stream: Option<f64>,
}

#[derive(Debug, Default)]
struct Counts {
    opened: AtomicU64,
    lost: AtomicU64,
    reopened: AtomicU64,
    events: AtomicU64,
}

impl Counts {
    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
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
        let Held { opened, alive, lost, reopened, events, .. } = held;
        println!("opened {opened}  alive {alive}  lost {lost}  reopened {reopened}  events {events}");
        if let (Some(before), Some(open), Some(most), Some(after), Some(each)) = (
            held.rss_before_kib,
            held.rss_open_kib,
            held.rss_most_kib,
            held.rss_after_kib,
            held.kib_per_stream,
        ) {
            println!(
                "memory KiB: before {before}  open {open}  most {most}  after {after}  per stream {each:.1}"
            );
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
    let rss = || if args.pids.is_empty() { Ok(None) } else { process::rss_kib(&args.pids).map(Some) };
    let before = rss()?;
    let churn = args.churn.map(Duration::try_from_secs_f64).transpose()?;
    let mut streams = OpenStreams::start(&args.target, args.open, churn).await?;
    streams.opened(Duration::from_secs(args.within)).await;
    let (opened, lost) = (streams.counts.opened(), streams.counts.lost());
    eprintln!("opened {opened} of {}, lost {lost}; holding {} s", args.open, args.hold);
    let end = Instant::now() + Duration::from_secs(args.hold);
    let mut most = rss()?;
    while Instant::now() < end {
        sleep_until(end.min(Instant::now() + LOOK)).await;
        most = most.max(rss()?);
    }
    let open = rss()?;
    let (opened, alive) = (streams.counts.opened(), streams.alive());
    streams.drop_all().await;
    sleep(SETTLE).await;
    Ok(Held {
        opened,
        alive,
        lost: args.open as u64 - alive,
        reopened: streams.counts.reopened.load(Ordering::Relaxed),
        events: streams.counts.events.load(Ordering::Relaxed),
        rss_before_kib: before,
        rss_open_kib: open,
        rss_most_kib: most,
        rss_after_kib: rss()?,
        kib_per_stream: before
            .zip(open)
            .filter(|_| alive > 0)
            .map(|(before, open)| (open as f64 - before as f64) / alive as f64),
    })
}

/// Streams that are being read; dropping the value drops them.
#[derive(Debug)]
pub(crate) struct OpenStreams {
    wanted: u64,
    counts: Arc<Counts>,
    tasks: JoinSet<()>,
}

impl OpenStreams {
    /// Begins to open them. With `churn`, every second one is closed and opened anew after about that
    /// time.
    ///
    /// # Errors
    /// When the target cannot be resolved, or too few files may be opened.
    pub(crate) async fn start(target: &TargetArgs, wanted: usize, churn: Option<Duration>) -> Result<Self> {
        process::require_open_files(wanted + 32)?;
        let target = Arc::new(Target::new(target).await?);
        let counts = Arc::new(Counts::default());
        let gate = Arc::new(Semaphore::new(OPENING));
        let mut tasks = JoinSet::new();
        for number in 0..wanted {
            let life = churn.filter(|_| number % 2 == 1).map(|churn| Life { churn, number: number as f64 });
            tasks.spawn(one_stream(Arc::clone(&target), Arc::clone(&counts), Arc::clone(&gate), life));
        }
        Ok(OpenStreams { wanted: wanted as u64, counts, tasks })
    }

    /// Waits until every stream is open or lost, but not longer than `within`.
    pub(crate) async fn opened(&self, within: Duration) {
        let give_up = Instant::now() + within;
        while self.counts.opened() + self.counts.lost() < self.wanted && Instant::now() < give_up {
            sleep(POLL).await;
        }
    }

    /// Streams that opened and have not ended.
    pub(crate) fn alive(&self) -> u64 {
        self.wanted.saturating_sub(self.counts.lost()).min(self.counts.opened())
    }

    /// Drops them, each with its connection.
    pub(crate) async fn drop_all(&mut self) {
        self.tasks.shutdown().await;
    }
}

/// How long a stream lives that is opened again and again.
#[derive(Debug, Clone, Copy)]
struct Life {
    churn: Duration,
    number: f64,
}

impl Life {
    /// The next life: half to one and a half times `churn`, spread evenly over streams and lives.
    fn next(&mut self) -> Duration {
        self.number += 0.618_033_988_75;
        self.churn.mul_f64(0.5 + (self.number * 0.618_033_988_75).fract())
    }
}

/// Reads one stream until it ends, which counts as lost, or its successors.
async fn one_stream(target: Arc<Target>, counts: Arc<Counts>, gate: Arc<Semaphore>, mut life: Option<Life>) {
    let mut is_first = true;
    loop {
        let until = life.as_mut().map(|life| Instant::now() + life.next());
        if read_stream(&target, &counts, Arc::clone(&gate), until, is_first).await.is_none() {
            counts.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        counts.reopened.fetch_add(1, Ordering::Relaxed);
        is_first = false;
    }
}

/// `Some` when the stream was dropped at `until`, `None` when it ended earlier.
async fn read_stream(
    target: &Target,
    counts: &Counts,
    gate: Arc<Semaphore>,
    until: Option<Instant>,
    is_first: bool,
) -> Option<()> {
    let opening = gate.acquire_owned().await.ok()?;
    let mut connection = Connection::open(&target.endpoint).await.ok()?;
    let response = connection.send(target.request(true)).await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    let mut body = response.into_body();
    body.frame().await?.ok()?;
    counts.opened.fetch_add(u64::from(is_first), Ordering::Relaxed);
    drop(opening);
    loop {
        counts.events.fetch_add(1, Ordering::Relaxed);
        match until {
            None => body.frame().await?.ok()?,
            Some(until) => match timeout_at(until, body.frame()).await {
                Ok(frame) => frame?.ok()?,
                Err(_) => return Some(()),
            },
        };
    }
}
