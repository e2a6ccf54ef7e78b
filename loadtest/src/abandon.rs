//! `loadtest drop`: clients that leave at a random moment of every phase.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::process;
use crate::target::{Target, TargetArgs};
use penstock::sim::rng::Rng;

/// Arguments of `loadtest drop`.
#[derive(Debug, Clone, Args)]
pub struct DropArgs {
    /// What to send and where.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Clients, one connection each; about half ask for a stream.
    #[arg(long, default_value_t = 2_000)]
    pub clients: u32,
    /// Longest stay in the phase that a client leaves in.
    #[arg(long, default_value_t = 500)]
    pub within_ms: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Clients at work at once.
    #[arg(long, default_value_t = 200)]
    pub concurrency: usize,
    /// Print JSON on one line.
    #[arg(long)]
    pub json: bool,
}

/// How far a client had come when it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The target refused the connection.
    Refused,
    /// Connected, nothing sent.
    Connected,
    /// Part of the request head sent.
    Head,
    /// Part of the request body sent.
    Body,
    /// All sent, no byte of an answer.
    Waiting,
    /// Part of the answer received.
    Answer,
    /// The target had ended the exchange or closed first.
    Ended,
}

/// The phases a client can plan to leave in.
const PLANS: [Phase; 5] = [Phase::Connected, Phase::Head, Phase::Body, Phase::Waiting, Phase::Answer];

/// What one client will do.
#[derive(Debug, Clone, Copy)]
struct Plan {
    leave_in: Phase,
    stay: Duration,
    stream: bool,
    /// Ends with a reset instead of a proper close.
    reset: bool,
    /// Where to cut the part that is sent half, in `0..=u32::MAX`.
    cut: u32,
}

impl Plan {
    fn random(rng: &mut Rng, within: Duration) -> Self {
        let micros = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        Plan {
            leave_in: PLANS[rng.below(PLANS.len() as u64) as usize],
            stay: Duration::from_micros(rng.below(micros.saturating_add(1))),
            stream: rng.below(2) == 0,
            reset: rng.below(2) == 0,
            cut: rng.bits() as u32,
        }
    }
}

/// Runs `loadtest drop`.
///
/// # Errors
/// When the target cannot be resolved or refused every client.
pub async fn command(args: &DropArgs) -> Result<()> {
    let counts = drop_clients(args).await?;
    if args.json {
        println!("{}", serde_json::to_string(&counts)?);
    } else {
        for (phase, count) in &counts {
            println!("{:<12}{count:>8}", format!("{phase:?}").to_lowercase());
        }
    }
    if counts.get(&Phase::Refused) == Some(&args.clients) {
        bail!("every connection was refused");
    }
    Ok(())
}

/// Runs all clients; returns how many left in which phase.
///
/// # Errors
/// When the target cannot be resolved or too few files may be opened.
pub async fn drop_clients(args: &DropArgs) -> Result<BTreeMap<Phase, u32>> {
    process::require_open_files(args.concurrency + 32)?;
    let target = Arc::new(Target::new(&args.target).await?);
    let gate = Arc::new(Semaphore::new(args.concurrency.max(1)));
    let mut rng = Rng::new(args.seed);
    let mut clients = JoinSet::new();
    let mut counts = BTreeMap::new();
    for _ in 0..args.clients {
        let plan = Plan::random(&mut rng, Duration::from_millis(args.within_ms));
        let place = Arc::clone(&gate).acquire_owned().await?;
        let target = Arc::clone(&target);
        clients.spawn(async move {
            let phase = one_client(&target, plan).await;
            drop(place);
            phase
        });
        while let Some(ended) = clients.try_join_next() {
            *counts.entry(ended?).or_default() += 1;
        }
    }
    while let Some(ended) = clients.join_next().await {
        *counts.entry(ended?).or_default() += 1;
    }
    Ok(counts)
}

async fn one_client(target: &Target, plan: Plan) -> Phase {
    let Ok(mut stream) = TcpStream::connect(target.endpoint.address).await else {
        return Phase::Refused;
    };
    let phase = play(&mut stream, target, plan).await;
    if plan.reset {
        // A connection that is gone already cannot be reset, and need not be.
        let _ = stream.set_zero_linger();
    }
    phase
}

/// Goes as far as planned, stays there, and returns where it ended up.
async fn play(stream: &mut TcpStream, target: &Target, plan: Plan) -> Phase {
    let (head, body) = target.wire(plan.stream);
    let cut = |len: usize| ((len as u64 * u64::from(plan.cut)) >> 32) as usize;
    let part = match plan.leave_in {
        Phase::Connected => Vec::new(),
        Phase::Head => head[..cut(head.len()).max(1)].to_vec(),
        Phase::Body => [&head, &body[..cut(body.len())]].concat(),
        _ => [&head, &body[..]].concat(),
    };
    if stream.write_all(&part).await.is_err() {
        return Phase::Ended;
    }
    match plan.leave_in {
        Phase::Answer => leave_in_answer(stream, plan.stay).await,
        phase => stay(stream, phase, Instant::now() + plan.stay).await,
    }
}

/// Stays in `phase` until `end` unless the target answers or closes.
async fn stay(stream: &mut TcpStream, mut phase: Phase, end: Instant) -> Phase {
    let mut buffer = [0; 4096];
    loop {
        match timeout_at(end, stream.read(&mut buffer)).await {
            Err(_) => return phase,
            Ok(Ok(0) | Err(_)) => return Phase::Ended,
            Ok(Ok(_)) => phase = Phase::Answer,
        }
    }
}

/// Waits for the first byte of the answer, then stays.
async fn leave_in_answer(stream: &mut TcpStream, time: Duration) -> Phase {
    let patience = Instant::now() + time + Duration::from_secs(30);
    let mut first = [0; 64];
    match timeout_at(patience, stream.read(&mut first)).await {
        Err(_) => Phase::Waiting,
        Ok(Ok(0) | Err(_)) => Phase::Ended,
        Ok(Ok(_)) => stay(stream, Phase::Answer, Instant::now() + time).await,
    }
}
