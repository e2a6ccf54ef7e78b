//! `loadtest closed`: a closed loop of patient clients. Their prompts all differ; the answers are
//! streams, plain answers or both.

mod drive;
mod work;

pub use self::drive::{Closed, Served};
pub use self::work::{Answers, Work};

use anyhow::{Context, Result, bail};
use clap::Args;
use hyper::header::HeaderValue;

use crate::process::{self, seconds};
use crate::target::{Endpoint, bearer};

/// Arguments of `loadtest closed`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  loadtest closed --url http://127.0.0.1:8080 --model llama --clients 32 \\
      --answers half --prompt 600 --output 64 --class standard

Each client sends its next request as soon as it has an answer. Prints one line
of JSON; a request that lies partly in the window counts with that part of its
time. `loadtest run` sends equal requests and measures latencies and CPU.")]
pub struct ClosedArgs {
    /// Base URL; may be given several times, then requests go to one after the other.
    #[arg(long = "url", required = true)]
    pub urls: Vec<String>,
    /// API key, sent as a bearer token.
    #[arg(long)]
    pub key: Option<String>,
    /// Latency class that is asked for.
    #[arg(long)]
    pub class: Option<String>,
    /// Model to ask for.
    #[arg(long)]
    pub model: String,
    /// Clients.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub clients: u32,
    /// How answers are asked for.
    #[arg(long, value_enum, default_value_t = Answers::Streams)]
    pub answers: Answers,
    /// Prompt tokens.
    #[arg(long, default_value_t = 500)]
    pub prompt: u32,
    /// Prompt tokens that all requests have in common, as a system message.
    #[arg(long, default_value_t = 0)]
    pub shared: u32,
    /// Output tokens of each choice.
    #[arg(long, default_value_t = 150)]
    pub output: u32,
    /// Choices.
    #[arg(long, default_value_t = 1)]
    pub n: u32,
    /// Bytes of text that are one token; 4 for simulated engines.
    #[arg(long, default_value_t = 4.0)]
    pub bytes_per_token: f64,
    /// Seconds of load before measuring.
    #[arg(long, default_value_t = 5.0)]
    pub warmup: f64,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 10.0)]
    pub duration: f64,
    /// Seconds until a request is given up.
    #[arg(long, default_value_t = 600.0)]
    pub timeout: f64,
    /// Fixes the prompts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Runs `loadtest closed`.
///
/// # Errors
/// When the arguments are wrong or not one request succeeded.
pub async fn command(args: &ClosedArgs) -> Result<()> {
    process::require_open_files(args.clients as usize * args.urls.len() + 32)?;
    let mut targets = Vec::new();
    for url in &args.urls {
        targets.push(Endpoint::new(url, "chat/completions").await?);
    }
    let class = args.class.as_deref().map(HeaderValue::try_from).transpose();
    let closed = Closed {
        targets,
        key: args.key.as_deref().map(bearer).transpose()?,
        class: class.context("--class cannot stand in a header")?,
        clients: args.clients,
        work: Work {
            model: args.model.clone(),
            answers: args.answers,
            prompt: args.prompt,
            shared: args.shared,
            output: args.output,
            n: args.n,
            bytes_per_token: positive(args.bytes_per_token, "--bytes-per-token")?,
            seed: args.seed,
        },
        warmup: seconds(args.warmup, "--warmup")?,
        window: seconds(positive(args.duration, "--duration")?, "--duration")?,
        timeout: seconds(args.timeout, "--timeout")?,
    };
    let served = closed.run().await?;
    println!("{}", serde_json::to_string(&served)?);
    if served.total.is_none() {
        bail!("no request succeeded");
    }
    Ok(())
}

fn positive(value: f64, name: &str) -> Result<f64> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { bail!("{name} must be a number above 0") }
}
