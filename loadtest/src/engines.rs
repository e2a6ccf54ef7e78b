//! `loadtest engines`: simulated engines, several in one process.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use penstock::sim::engine::profile::{StepProfile, StepTimeFactor};
use penstock::sim::server::{SimHandle, SimOptions, SimServer};
use serde::{Deserialize, Serialize};

use crate::signal;

/// Arguments of `loadtest engines`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  loadtest engines --profile a100-8b --count 4 --model llama

Prints one line of JSON, {\"urls\":[...]}, when all of them listen. Ports are
free ones; every engine answers /sim/faults and /sim/state as `penstock
sim-engine` does. An answer without `ignore_eos` has `min_tokens` + 1 tokens,
as `loadtest replay --max-tokens` asks for it.")]
pub struct EnginesArgs {
    /// The accelerator and model whose speed they have.
    #[arg(long, default_value = "a100-8b")]
    pub profile: String,
    /// How many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub count: u16,
    /// A model name that they serve; may be given several times.
    #[arg(long, value_name = "NAME", default_value = "sim")]
    pub model: Vec<String>,
    /// How many times faster than the profile they run.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub speed: f64,
    /// Sequences that each runs at once; absent = the profile's.
    #[arg(long, value_name = "N")]
    pub max_seqs: Option<u32>,
    /// Context window in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 131_072)]
    pub max_model_len: u32,
    /// No prefix cache.
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Multiplies a constant of the profile's step time: t_ovh, t_w, i0, a, c or d; may be
    /// given several times.
    #[arg(long, value_name = "CONSTANT=FACTOR")]
    pub scale: Vec<StepTimeFactor>,
    /// End when standard input ends, and so with the program that started it.
    #[arg(long)]
    pub with_parent: bool,
    /// Write the line to this file instead.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
}

/// What a server says when it listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Base URLs.
    pub urls: Vec<String>,
}

/// Runs `loadtest engines` until Ctrl-C or SIGTERM.
///
/// # Errors
/// When the profile is unknown or no port is free.
pub async fn command(args: &EnginesArgs) -> Result<()> {
    let engines = start(args).await?;
    let ready = Ready { urls: engines.iter().map(SimHandle::url).collect() };
    announce(&ready, args.ready_file.as_deref())?;
    until_the_end(args.with_parent).await?;
    for engine in engines {
        engine.stop().await;
    }
    Ok(())
}

/// Starts the engines.
///
/// # Errors
/// When the profile is unknown, a value is out of range or no port is free.
pub async fn start(args: &EnginesArgs) -> Result<Vec<SimHandle>> {
    let names = || StepProfile::names().collect::<Vec<_>>().join(", ");
    let mut profile = StepProfile::named(&args.profile)
        .with_context(|| format!("no profile is called {}; there are: {}", args.profile, names()))?;
    ensure!(args.speed.is_finite() && args.speed > 0.0, "--speed must be a number above 0");
    args.scale.iter().for_each(|scale| scale.apply(&mut profile));
    let mut engines = Vec::new();
    for number in 0..args.count {
        let mut options = SimOptions {
            models: args.model.clone(),
            profile,
            speed: args.speed,
            max_model_len: args.max_model_len,
            mean_output_tokens: 1,
            seed: u64::from(number),
            ..SimOptions::default()
        };
        options.engine.max_seqs = args.max_seqs;
        options.engine.prefix_cache = !args.no_prefix_cache;
        engines.push(SimServer::start(options).await.context("no port is free")?);
    }
    Ok(engines)
}

/// Says that a server listens: on standard output, or by a file that appears
/// whole.
///
/// # Errors
/// When the file cannot be written.
pub fn announce(ready: &Ready, file: Option<&std::path::Path>) -> Result<()> {
    let line = serde_json::to_string(ready)?;
    let Some(path) = file else {
        println!("{line}");
        return Ok(());
    };
    let draft = path.with_extension("draft");
    std::fs::write(&draft, line).with_context(|| format!("write {}", draft.display()))?;
    std::fs::rename(&draft, path).with_context(|| format!("write {}", path.display()))
}

/// Waits for a signal, or for the end of standard input.
///
/// # Errors
/// When the process may not listen for signals.
pub async fn until_the_end(with_parent: bool) -> Result<()> {
    tokio::select! {
        signal = signal::stop() => signal.map(|_| ()),
        () = parent_gone(), if with_parent => Ok(()),
    }
}

async fn parent_gone() {
    let (gone, wait) = tokio::sync::oneshot::channel();
    let watch = move || {
        // Nothing is ever written to it: it only ends.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = gone.send(());
    };
    if std::thread::Builder::new().name("parent".to_owned()).spawn(watch).is_ok() {
        let _ = wait.await;
    } else {
        std::future::pending::<()>().await;
    }
}
