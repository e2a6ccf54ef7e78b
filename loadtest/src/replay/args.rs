//! Command line of `loadtest replay`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;

use super::drive::Drive;
use super::plan::Plan;
use super::prompt::{Api, Length, Writer};
use super::results::Objective;
use super::source::{Arrivals, Source};
use crate::process::seconds;
use crate::target::Endpoint;

/// Arguments of `loadtest replay`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  loadtest replay --url http://127.0.0.1:8080 --model llama --key $KEY \\
      --trace loadtest/traces/azure2023_conv.csv.gz --rate 20 --for 120
  loadtest replay --url http://127.0.0.1:8000 --model llama \\
      --input 512 --output 128 --rate 10 --for 60 --arrivals gamma:3
  loadtest replay --url http://127.0.0.1:8080 --model llama --rate 12 --for 300 \\
      --trace loadtest/traces/servegen_mmid_1h.csv.gz --key $KEY --tenant c12=$KEY_OF_C12

Rate: the gaps of a trace are scaled by one factor, so bursts keep their shape.
Tenants: `--tenant NAME=KEY` gives the trace's tenant of that name a key of its
own; the others use --key. With `--tenant NAME:SHARE=KEY` the calls are dealt
out at random by these shares instead, as for a trace without tenants.
Prompts: made up, four bytes a token, as the simulated engines count; calls
that share a prefix in the trace begin with the same text.
Lengths: by default `max_tokens` is the trace's output length and `ignore_eos`
makes vLLM and the simulated engines go on to it. With --max-tokens the limit
is that constant, as most clients send it, and `min_tokens` tells the engines
of `loadtest engines` where to stop; a real engine stops where it likes.
Refused: 429, 503, 529 and errors with a Retry-After. Everything else that is
not a whole answer is a failure.")]
pub struct ReplayArgs {
    /// Base URL of the gateway or engine, such as http://127.0.0.1:8080.
    #[arg(long)]
    pub url: String,
    /// Model to ask for.
    #[arg(long)]
    pub model: String,
    /// Which call to make, always as a stream.
    #[arg(long, value_enum, default_value_t = Api::Chat)]
    pub api: Api,
    /// Trace to replay: .csv or .jsonl (Mooncake), also with .gz.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "output"])]
    pub trace: Option<PathBuf>,
    /// Prompt tokens of every call, without a trace.
    #[arg(long, value_name = "TOKENS")]
    pub input: Option<u32>,
    /// Output tokens of every call, without a trace.
    #[arg(long, value_name = "TOKENS")]
    pub output: Option<u32>,
    /// Calls a second in the mean; absent = the trace's own rate.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Seconds that the load lasts; absent = to the end of the trace.
    #[arg(long = "for", value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Made-up gaps: even, poisson, gamma:CV or square:PERIOD_S:DUTY:LOW.
    /// Sizes are drawn from the trace then.
    #[arg(long, value_parser = arrivals)]
    pub arrivals: Option<Arrivals>,
    /// API key of every tenant without its own.
    #[arg(long)]
    pub key: Option<String>,
    /// A tenant: NAME=KEY or NAME:SHARE=KEY; may be given several times.
    #[arg(long = "tenant", value_name = "NAME[:SHARE]=KEY", value_parser = tenant)]
    pub tenants: Vec<Tenant>,
    /// Latency class to ask for.
    #[arg(long)]
    pub class: Option<String>,
    /// The header that asks for it.
    #[arg(long, value_name = "NAME", default_value = "x-penstock-class")]
    pub class_header: String,
    /// Send this constant as `max_tokens`, and the true length as `min_tokens`.
    #[arg(long, value_name = "TOKENS", conflicts_with = "plain")]
    pub max_tokens: Option<u32>,
    /// Send no field that is not OpenAI's; answers may be shorter then.
    #[arg(long)]
    pub plain: bool,
    /// Fixes which part of the trace comes first, and every draw.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Share of the time before measuring.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = warmup_share)]
    pub warmup: f64,
    /// What a good answer is: TTFT/ITL in milliseconds; may be given several
    /// times.
    #[arg(long = "goal", value_name = "TTFT/ITL", value_parser = goal, default_values = ["150/50", "500/50", "1000/50"])]
    pub goals: Vec<Objective>,
    /// Seconds until a call is given up, from its planned instant.
    #[arg(long, default_value_t = 300.0)]
    pub timeout: f64,
    /// Seconds after the last planned call until the run ends.
    #[arg(long, default_value_t = 120.0)]
    pub drain: f64,
    /// Times a refused or failed call is sent again, as the OpenAI SDKs do it:
    /// after Retry-After, or 0.5 s doubling to 8 s.
    #[arg(long, default_value_t = 0)]
    pub retries: u32,
    /// Threads that make calls.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: u16,
    /// Write the results as JSON, with the curves.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// No progress line.
    #[arg(long)]
    pub quiet: bool,
}

/// A tenant on the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    name: String,
    share: Option<f64>,
    key: String,
}

impl ReplayArgs {
    /// The plan that the arguments describe.
    ///
    /// # Errors
    /// When they do not fit together, or the trace cannot be read.
    pub fn plan(&self) -> Result<Plan> {
        let shared = self.tenants.iter().filter_map(|tenant| Some((tenant.name.clone(), tenant.share?)));
        let tenants: BTreeMap<String, f64> = shared.collect();
        let dealt = tenants.is_empty() || tenants.len() == self.tenants.len();
        ensure!(dealt, "--tenant: give every tenant a share, or none");
        let source = Source {
            trace: self.trace.clone(),
            input: self.input,
            output: self.output,
            rate: self.rate,
            arrivals: self.arrivals,
            for_s: self.seconds,
            tenants,
            class: self.class.clone(),
            ..Source::default()
        };
        Plan::of(&[source], Path::new(""), self.seed)
    }

    /// How it is to be run.
    ///
    /// # Errors
    /// When the URL does not resolve, or a tenant is not in the plan.
    pub async fn drive(&self, plan: &Plan) -> Result<Drive> {
        if let Some(stranger) = self.tenants.iter().find(|tenant| !plan.tenants.contains(&tenant.name)) {
            bail!("--tenant {}: the trace has no tenant of that name", stranger.name);
        }
        let key =
            |name: &String| self.tenants.iter().find(|tenant| tenant.name == *name).map(|t| t.key.clone());
        Ok(Drive {
            endpoint: Endpoint::new(&self.url, self.api.path()).await?,
            writer: Writer {
                api: self.api,
                model: self.model.clone(),
                length: match (self.max_tokens, self.plain) {
                    (Some(limit), _) => Length::Limit(limit),
                    (None, true) => Length::Plain,
                    (None, false) => Length::Exact,
                },
                prefix_block: plan.prefix_block,
                seed: self.seed,
            },
            keys: plan.tenants.iter().map(|name| key(name).or_else(|| self.key.clone())).collect(),
            class_header: self.class_header.clone(),
            timeout: seconds(self.timeout, "--timeout")?,
            retries: self.retries,
            drain: seconds(self.drain, "--drain")?,
            clients: usize::from(self.clients),
            label: (!self.quiet).then(|| "replay".to_owned()),
        })
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|n: &f64| n.is_finite()).ok_or_else(|| format!("`{text}` is not a number"))
}

fn warmup_share(text: &str) -> Result<f64, String> {
    let share = number(text)?;
    if (0.0..1.0).contains(&share) { Ok(share) } else { Err("it must be from 0 to below 1".to_owned()) }
}

fn arrivals(text: &str) -> Result<Arrivals, String> {
    match text.split(':').collect::<Vec<_>>()[..] {
        ["even"] => Ok(Arrivals::Even),
        ["poisson"] => Ok(Arrivals::Poisson),
        ["gamma", cv] => Ok(Arrivals::Gamma { cv: number(cv)? }),
        ["square", period, duty, low] => {
            Ok(Arrivals::Square { period_s: number(period)?, duty: number(duty)?, low: number(low)? })
        }
        _ => Err("it must be even, poisson, gamma:CV or square:PERIOD_S:DUTY:LOW".to_owned()),
    }
}

fn tenant(text: &str) -> Result<Tenant, String> {
    let (name, key) = text.split_once('=').ok_or("it must be NAME=KEY or NAME:SHARE=KEY")?;
    let (name, share) = match name.split_once(':') {
        Some((name, share)) => (name, Some(number(share)?)),
        None => (name, None),
    };
    Ok(Tenant { name: name.to_owned(), share, key: key.to_owned() })
}

fn goal(text: &str) -> Result<Objective, String> {
    let (ttft, itl) = text.split_once('/').ok_or("it must be TTFT/ITL in milliseconds, such as 150/50")?;
    Ok(Objective { ttft_ms: number(ttft)?, itl_ms: number(itl)? })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: ReplayArgs,
    }

    fn parse(more: &[&str]) -> Result<ReplayArgs> {
        let base = ["replay", "--url", "http://127.0.0.1:1", "--model", "m"];
        Ok(Cli::try_parse_from(base.iter().chain(more))?.args)
    }

    const UNIFORM: [&str; 8] = ["--input", "9", "--output", "5", "--rate", "10", "--for", "2"];

    #[tokio::test]
    async fn tenants_get_their_keys() {
        let more = ["--tenant", "a:1=ka", "--tenant", "b:2=kb", "--key", "k"];
        let args = parse(&[&UNIFORM[..], &more].concat()).expect("arguments");
        let plan = args.plan().expect("a plan");
        assert_eq!(plan.tenants, ["a", "b"]);
        let drive = args.drive(&plan).await.expect("a drive");
        assert_eq!(drive.keys, [Some("ka".to_owned()), Some("kb".to_owned())]);
        let args = parse(&[&UNIFORM[..], &["--key", "k"]].concat()).expect("arguments");
        let drive = args.drive(&args.plan().expect("a plan")).await.expect("a drive");
        assert_eq!(drive.keys, [Some("k".to_owned())]);
    }

    #[tokio::test]
    async fn strangers_and_half_shares_are_refused() {
        let args = parse(&[&UNIFORM[..], &["--tenant", "nobody=k"]].concat()).expect("arguments");
        let error = args.drive(&args.plan().expect("a plan")).await.expect_err("a stranger");
        assert!(error.to_string().contains("nobody"), "{error}");
        let args =
            parse(&[&UNIFORM[..], &["--tenant", "a:1=k", "--tenant", "b=k"]].concat()).expect("arguments");
        assert!(args.plan().is_err());
    }

    #[test]
    fn patterns_and_goals_are_read() {
        let args = parse(&["--arrivals", "square:10:0.2:0.1", "--goal", "200/40"]).expect("arguments");
        assert_eq!(args.arrivals, Some(Arrivals::Square { period_s: 10.0, duty: 0.2, low: 0.1 }));
        assert_eq!(args.goals, [Objective { ttft_ms: 200.0, itl_ms: 40.0 }]);
        assert_eq!(parse(&[]).expect("arguments").goals.len(), 3);
        for wrong in [["--arrivals", "gamma"], ["--goal", "5"], ["--tenant", "x"], ["--warmup", "1"]] {
            assert!(parse(&wrong).is_err(), "{wrong:?}");
        }
    }
}
