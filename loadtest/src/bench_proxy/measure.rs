//! Measurement of one row with one target.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tokio::time::{Instant, sleep};

use super::engines::InstantEngines;
use super::rows::{Arrivals, Figure, Load, PLAIN_TOKENS, Requests, Row, Times};
use super::stage::Contender;
use crate::process;
use crate::report::Report;
use crate::run::{self, RunArgs};
use crate::streams::OpenStreams;

/// Until all held streams are open, and until the engines have seen them go.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the engines' aborts, and so the precision of their time.
const POLL: Duration = Duration::from_millis(1);

/// A figure with its value.
pub(super) type Found = (Figure, f64);

/// Measures the row; figures of no use for the engines themselves are left out.
///
/// # Errors
/// When a request fails or a process is gone.
pub(super) async fn measure(
    row: Row,
    times: Times,
    engines: &InstantEngines,
    contender: &Contender,
) -> Result<Vec<Found>> {
    match row.load() {
        Load::Idle => Ok(Vec::new()),
        Load::Held(streams) => held(streams, times.window, engines, contender).await,
        Load::Requests(requests) => {
            engines.pace(requests.stream.unwrap_or(PLAIN_TOKENS), row.interval());
            let report = run::run(&arguments(requests, times, contender)).await?;
            check(&report)?;
            Ok(figures(row, &report))
        }
    }
}

/// Memory, CPU and wake-ups of all processes, while nobody sends anything.
///
/// # Errors
/// When a process is gone.
pub(super) async fn idle(times: Times, contenders: &[&Contender]) -> Result<Vec<Vec<Found>>> {
    sleep(times.warmup).await;
    let read = |contender: &&Contender| {
        Ok((process::cpu_micros(&contender.pids)?, process::voluntary_switches(&contender.pids)))
    };
    let start = Instant::now();
    let before = contenders.iter().map(read).collect::<Result<Vec<_>>>()?;
    sleep(times.window).await;
    let seconds = start.elapsed().as_secs_f64();
    let after = contenders.iter().map(read).collect::<Result<Vec<_>>>()?;
    let mut found = Vec::new();
    for ((contender, before), after) in contenders.iter().zip(before).zip(after) {
        let cpu = after.0.saturating_sub(before.0) as f64 / 1e3;
        found.push(vec![
            (Figure::IdleMemory, process::pss_kib(&contender.pids)? as f64 / 1024.0),
            (Figure::IdleCpu, cpu / seconds),
            (Figure::IdleWakeups, after.1.saturating_sub(before.1) as f64 / seconds),
        ]);
    }
    Ok(found)
}

/// Opens streams that say little, and drops them at once.
async fn held(
    streams: usize,
    hold: Duration,
    engines: &InstantEngines,
    contender: &Contender,
) -> Result<Vec<Found>> {
    engines.pace(u32::MAX, Row::Held.interval());
    let before = process::pss_kib(&contender.pids)?;
    let open = OpenStreams::start(&contender.target(2048, None), streams, None).await?;
    open.opened(PATIENCE).await;
    sleep(hold).await;
    let alive = open.alive();
    ensure!(alive == streams as u64, "{alive} of {streams} streams are open");
    let memory = process::pss_kib(&contender.pids)?.saturating_sub(before) as f64 / streams as f64;
    let aborted = engines.aborted();
    let dropped = Instant::now();
    drop(open);
    while engines.aborted() < aborted + alive {
        let seen = engines.aborted() - aborted;
        ensure!(dropped.elapsed() < PATIENCE, "the engines saw {seen} of {alive} streams go");
        sleep(POLL).await;
    }
    let last = (Figure::LastAbort, dropped.elapsed().as_secs_f64() * 1e3);
    Ok(if contender.is_direct() { vec![last] } else { vec![(Figure::StreamMemory, memory), last] })
}

fn arguments(requests: Requests, times: Times, contender: &Contender) -> RunArgs {
    let max_tokens = requests.stream.is_none().then_some(PLAIN_TOKENS);
    let (concurrency, rate) = match requests.arrivals {
        Arrivals::Closed(connections) => (Some(connections), None),
        Arrivals::Open(rate) => (None, Some(rate)),
    };
    RunArgs {
        target: contender.target(requests.prompt_kib * 1024, max_tokens),
        concurrency,
        rate,
        duration: times.window.as_secs_f64(),
        warmup: times.warmup.as_secs_f64(),
        requests: None,
        stream: requests.stream.is_some(),
        count_only: requests.stream.is_some(),
        timeout: PATIENCE.as_secs_f64(),
        max_open: 1000,
        pids: contender.pids.clone(),
        json: false,
        quiet: true,
    }
}

fn check(report: &Report) -> Result<()> {
    if report.ok() == 0 || report.outcomes.len() > 1 {
        bail!("requests failed: {:?}", report.outcomes);
    }
    Ok(())
}

fn figures(row: Row, report: &Report) -> Vec<Found> {
    let (requests, events) = (report.requests_per_second, report.events_per_second);
    let latency = |of: fn(&crate::report::Quantiles) -> f64| report.total.as_ref().map(of);
    let (request, event) = (report.cpu_us_per_request, report.cpu_us_per_event);
    let found = match row {
        Row::Idle | Row::Held => Vec::new(),
        Row::Latency => vec![
            (Figure::LatencyP50, latency(|times| times.p50_ms)),
            (Figure::LatencyP99, latency(|times| times.p99_ms)),
        ],
        Row::Steady => vec![(Figure::SteadyCpu, request)],
        Row::Full => vec![(Figure::FullCpu, request), (Figure::FullRate, Some(requests))],
        Row::Prompt64k => vec![(Figure::Prompt64kCpu, request)],
        Row::Prompt220k => vec![(Figure::Prompt220kCpu, request), (Figure::Prompt220kRate, Some(requests))],
        Row::Streams256 => vec![(Figure::Streams256Cpu, event)],
        Row::Streams64 => vec![(Figure::Streams64Cpu, event)],
        Row::Flood => vec![(Figure::FloodCpu, event), (Figure::FloodRate, Some(events))],
    };
    found.into_iter().filter_map(|(figure, value)| Some((figure, value?))).collect()
}
