//! Command line of `penstock`: its commands, arguments and help texts.

pub mod config;
pub mod import;
pub mod operate;
pub mod output;
pub mod plan;
pub mod replay;
pub mod usage;
pub mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::cli::config::{ConfigCommand, DiffArgs};
use crate::cli::import::ImportCommand;
use crate::cli::operate::{
    AccessArgs, ExplainArgs, PoolsCommand, ReadyArgs, ReplicasCommand, StatusArgs, TenantsCommand,
};
use crate::cli::output::{CheckOutput, ListForm, ResultForm};
use crate::cli::plan::PlanArgs;
use crate::cli::replay::{RecordArgs, ReplayArgs};
use crate::cli::usage::UsageArgs;
use crate::cli::watch::{DoctorArgs, QueuesCommand, RequestsCommand, TailArgs, TopArgs};
use crate::config::syntax::units::Span;

/// Inference gateway and queue-aware request router.
///
/// Penstock stands in front of vLLM, TGI, SGLang, TensorRT-LLM, Triton and
/// llama.cpp servers, speaks the OpenAI and Anthropic APIs to clients, and holds
/// each request in a fair queue until a replica can start it at once.
#[derive(Debug, Parser)]
#[command(
    name = "penstock",
    version,
    propagate_version = true,
    after_help = "Start here:\n  penstock demo                      a gateway and simulated engines, nothing to set up\n  penstock check penstock.yaml       is this configuration right?\n  penstock serve -c penstock.yaml    run it"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The things Penstock can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway.
    ///
    /// The configuration file is watched: a valid change takes effect at once;
    /// a broken one is reported, and the last good one stays in force. SIGHUP
    /// reads it again. SIGTERM and Ctrl-C drain: no new requests, those in
    /// flight may finish within server.drain_grace, then exit code 0. A second
    /// signal cuts them.
    ///
    /// Exit code 1: it could not start, or the configuration has errors. 2:
    /// the configuration could not be read.
    #[command(
        after_help = "Examples:\n  penstock serve --config /etc/penstock/penstock.yaml\n  penstock serve --record record     what happened, for penstock replay"
    )]
    Serve(ServeArgs),
    /// Run a gateway and simulated engines in one process, to look around.
    ///
    /// One model on three engines in two pools, three tenants, three latency
    /// classes. Prints the addresses, the keys, and lines to paste into a
    /// shell. Needs no GPU, no file and no network.
    #[command(
        after_help = "Examples:\n  penstock demo\n  penstock demo --load     with traffic of every tenant in every class\n  penstock demo --load --record record"
    )]
    Demo(DemoArgs),
    /// Check a configuration file without running it.
    ///
    /// Finds every mistake at once, with its line and what to do about it. `-` is
    /// standard input, whose paths start at the current folder. A file of LiteLLM,
    /// llm-d or nginx is recognised: `penstock import` is for those.
    /// Exit code 0: valid, perhaps with warnings. 1: it has errors. 2: it
    /// could not be read.
    #[command(
        after_help = "Examples:\n  penstock check penstock.yaml\n  penstock check penstock.yaml -o json\n  penstock check penstock.yaml --against http://127.0.0.1:8081\n  penstock check --offline - < penstock.yaml"
    )]
    Check(CheckArgs),
    /// Explain the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Say what a new configuration changes.
    ///
    /// Every key that differs, and whether its change takes effect at once or at the
    /// next start; what each tenant gains and loses: its part of the work while all want
    /// more than there is, models, classes, keys; models that come and go. Secrets need
    /// not be here. Exit code 1: one of the files has errors.
    #[command(after_help = "Example:\n  penstock diff penstock.yaml new.yaml")]
    Diff(DiffArgs),
    /// Print the JSON Schema of the configuration file.
    #[command(
        after_help = "Example:\n  penstock schema > schema.json\n\nEditors check and complete the YAML file when its first line is:\n  # yaml-language-server: $schema=./schema.json"
    )]
    Schema,
    /// Show a running gateway on one screen.
    ///
    /// Pools, replicas with their ledgers and predictions, what waits by class
    /// and tenant, and what operators have set apart from the file. SPEED is
    /// relative to a usual H100, and `-` until the replica has answered. TTFT OF 1000
    /// is the predicted first token of a prompt of 1000 tokens sent now. ROOM and LESS URGENT say whether the
    /// replica takes one more request of the most urgent class that uses it, and
    /// of a less urgent one: yes, or what keeps it from that. pace: one more
    /// sequence would cost the objective between tokens; slots: its places are
    /// taken; kv: its cache is full; reading: it reads enough prompts at once;
    /// guest_share, reserve: the rest is kept for the urgent class; released: it
    /// serves less urgent classes, and others serve the urgent one.
    ///
    /// Exit code 1, here and for the other commands that ask a gateway: it
    /// cannot be reached, or it refuses.
    #[command(after_help = "Examples:\n  penstock status\n  penstock status --json")]
    Status(StatusArgs),
    /// Say whether a gateway takes new requests: the health check of containers.
    ///
    /// Asks the admin port's /readyz, which needs no token. Exit code 0: it does.
    /// 1: it starts, drains, or cannot be reached.
    #[command(
        after_help = "Examples:\n  penstock ready\n  penstock ready http://127.0.0.1:8080/health     any URL: this one is of the clients' port"
    )]
    Ready(ReadyArgs),
    /// Say why a request went where it went, or why it waits.
    ///
    /// The gateway remembers all requests that wait or run, and the last 10000 that
    /// ended: each decision with its rule, its prediction and the ledger of that
    /// moment; no prompts, no keys. With `cluster`, it asks the other gateways for a
    /// request that it does not know.
    #[command(after_help = "Examples:\n  penstock explain hello-1\n  penstock explain hello-1 --json")]
    Explain(ExplainArgs),
    /// Say in one paragraph why a request waits, or why it went where it went.
    #[command(after_help = "Example:\n  penstock why hello-1")]
    Why(ExplainArgs),
    /// List requests: those that wait, that run, and that ended last.
    #[command(subcommand)]
    Requests(RequestsCommand),
    /// List what waits.
    #[command(subcommand)]
    Queues(QueuesCommand),
    /// Watch decisions as the gateway makes them.
    ///
    /// One line for each: a request came, went to a replica and why, had its first
    /// token, came back, fell back to another model, or ended; and changes of the
    /// fleet, of overrides and of the configuration. Reads on when a connection
    /// ends. A reader that is too slow is told how many events it missed.
    #[command(
        after_help = "Examples:\n  penstock tail --for 1s\n  penstock tail --for 1s --tenant research --event dispatched\n  penstock tail --for 1s -o json"
    )]
    Tail(TailArgs),
    /// Watch queues, pools, replicas, tenants and requests on a terminal.
    ///
    /// Keys: 1 to 5, Tab and arrows choose a table and a line; s sorts by the next
    /// column and r turns the order round; / filters; p pauses; q ends. Colours obey
    /// NO_COLOR.
    #[command(
        after_help = "Examples:\n  penstock top --once\n  penstock top --once --view requests --sort -since\n  penstock top --once --csv --view requests"
    )]
    Top(TopArgs),
    /// List pools; close them to new work, and open them again.
    #[command(subcommand)]
    Pools(PoolsCommand),
    /// List replicas; close them to new work, and open them again.
    #[command(subcommand)]
    Replicas(ReplicasCommand),
    /// List tenants; pause them, or give them a larger share for a time.
    #[command(subcommand)]
    Tenants(TenantsCommand),
    /// Say who used what, and what it cost.
    ///
    /// Reads what a gateway with `usage.folder` has written down: a line for each
    /// value of --by, and all of them together. GPU hours are replicas' time; a
    /// request's part of a busy replica is shared out by --share. Time in which
    /// replicas ran nothing is `unallocated`, so that the bill adds up to the
    /// replicas' hours times their prices. Costs are in the currency of the pools'
    /// prices, and 0 where there are none. CSV and JSON are exact.
    ///
    /// Exit code 1: the database or journal cannot be read.
    #[command(
        after_help = "Examples:\n  penstock usage\n  penstock usage --by tenant,model --since 7d\n  penstock usage --by day,pool --since 2026-11-01 --format csv > november.csv\n  penstock usage --journal usage --by key --share tokens\n  penstock usage --format json\n  penstock usage --admin http://127.0.0.1:8081 --by model -o csv"
    )]
    Usage(UsageArgs),
    /// Count the prompt tokens of requests with a model's own tokenizer.
    ///
    /// Reads bodies of /v1/chat/completions or /v1/completions, one JSON object
    /// a line, and prints a number for each, as the gateway counts it with
    /// `models.NAME.tokenizer`; or why it cannot be sure of one. A comparison
    /// with an engine's /tokenize shows whether the files are the engine's.
    #[command(after_help = "Example:\n  penstock count --tokenizer /models/llama requests.jsonl")]
    Count(CountArgs),
    /// Print the manifests that let KEDA scale a pool.
    ///
    /// A ScaledObject that asks this gateway's external scaler (`scale.listen`)
    /// for the number of replicas, with the reasons for each value as comments,
    /// and a TriggerAuthentication where the scaler asks for a certificate.
    /// Numbers come from the configuration, and with --against from what a
    /// running gateway has measured.
    #[command(
        after_help = "Examples:\n  penstock keda qwen --max 8\n  penstock keda qwen --target qwen-vllm --service penstock.models.svc"
    )]
    Keda(KedaArgs),
    /// Make API keys, and the digests that the configuration stores.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Convert the configuration of another gateway, and report what could not be
    /// carried over.
    ///
    /// Each part of the report is exact (means the same), near (nearly the same) or
    /// left out (no counterpart). Exit code 1: the file cannot be read, or nothing in
    /// it can be converted.
    #[command(subcommand)]
    Import(ImportCommand),
    /// Run a simulated engine that speaks vLLM's or TGI's API.
    ///
    /// It takes the time that a real one would take on the accelerator of its
    /// profile, and fails when POST /sim/faults asks it to. For tests and
    /// demos.
    #[command(
        after_help = "Example:\n  penstock sim-engine --listen 127.0.0.1:8001 --model llama --profile h100-8b"
    )]
    SimEngine(SimEngineArgs),
    /// Compare the scheduler with other designs in a simulated world.
    ///
    /// The scheduler of this program, and the designs it is compared with, in
    /// virtual time in front of simulated engines. A scenario file says which
    /// engines, which traffic and which designs; without one, flags do, and
    /// what neither says is eight H100 engines under Poisson arrivals.
    ///
    /// Every row is run with several seeds: a trace begins at another place, a
    /// made-up stream is drawn anew. The table shows medians, and the range
    /// over the seeds in brackets. Loads are parts of `capacity`, or requests
    /// per second when none is given. The same command gives the same figures
    /// on every machine.
    ///
    /// Exit code 1: the scenario has errors, or an invariant of the scheduler
    /// broke in a run.
    #[command(
        after_help = "Examples:\n  penstock simulate loadtest/scenarios/azure-load.yaml --html out\n  penstock simulate loadtest/scenarios/faults.yaml --case frozen --seeds 1\n  penstock simulate --trace loadtest/traces/azure2023_conv.csv.gz --load 15\n  penstock simulate --list-designs"
    )]
    Simulate(SimulateArgs),
    /// Replay what a gateway recorded, as it was or under another configuration.
    ///
    /// `penstock serve --record` writes the record. Without --config, a new scheduler gets the recorded
    /// events, and the report says whether it decides the same: which request went to which replica,
    /// in which order, and what was refused. With --config, the recorded requests also go to simulated
    /// engines that take the time that the recorded ones took: under the recorded configuration,
    /// which shows how far the simulation is from what happened, and under the other one. The table
    /// has three lines for each tenant and class: happened, model (the recorded configuration,
    /// simulated) and predicted (the other one, simulated). Trust a difference between happened and
    /// predicted as far as it is larger than that between happened and model.
    ///
    /// Requests come when they came: clients that would send more or less at other waits are not
    /// known. A pool whose replicas the new file does not name has the recorded ones.
    ///
    /// Exit code 1: the decisions differ although the record is whole, or the record or the
    /// configuration cannot be used.
    #[command(after_help = replay::EXAMPLES)]
    Replay(ReplayArgs),
    /// Say how many replicas a demand needs, and what they cost.
    ///
    /// Reads a trace, any table with times and tokens, or a usage log. Measures
    /// concurrency, queues, bursts, patience, residency, durations and tokens, and
    /// puts fleets through the simulated world with the scheduler of this program
    /// until the smallest is found that keeps the classes' objectives: as a fixed
    /// fleet, and window by window. The one that is recommended is simulated
    /// again from other places of the source, and the report says what it kept.
    ///
    /// Four questions are answered by name: the real concurrency floor; burst or
    /// noise; how long work stays resident; what can wait, and how long. What-ifs
    /// (--add-replica, --class, --traffic) stand beside the fleet as it is.
    ///
    /// Very long sources are measured in full and simulated where they are busiest;
    /// the report says so. The same command gives the same figures on every
    /// machine. Speeds are models: see --profile and --rates.
    ///
    /// Exit code 1: the source or the setting cannot be used.
    #[command(after_help = plan::EXAMPLES)]
    Plan(Box<PlanArgs>),
    /// Look for what would keep a gateway from working here.
    ///
    /// Checks the configuration; the file descriptors that this user may open,
    /// against server.max_connections; whether the ports of server.listen,
    /// server.admin and scale.listen are free, or have a gateway behind them; and of each engine
    /// that the file names whether it answers, serves the models of its pool, and
    /// has the same time. Engines are asked with the key and the TLS of their pool.
    /// Changes nothing.
    ///
    /// Exit code 1: a check failed. Warnings change no exit code.
    #[command(after_help = "Examples:\n  penstock doctor penstock.yaml\n  penstock doctor -o json")]
    Doctor(DoctorArgs),
    /// Print the manual page of a command, for man.
    #[command(
        after_help = "Examples:\n  penstock man > penstock.1\n  penstock man pools drain > penstock-pools-drain.1"
    )]
    Man {
        /// The command, such as `pools drain`; absent = penstock itself.
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Print a completion script for a shell.
    ///
    /// Completes commands, flags, and names: of tenants, classes, models, pools, replicas
    /// and requests. The running gateway has the names (`PENSTOCK_ADMIN`, or --admin
    /// earlier in the line), or else the file penstock.yaml, if one of the two answers
    /// within 300 ms. zsh finds the script as `_penstock` in a folder of its fpath, fish in
    /// ~/.config/fish/completions. Print it anew after an upgrade.
    #[command(
        after_help = "Examples:\n  penstock completion bash > /etc/bash_completion.d/penstock\n  penstock completion zsh > _penstock\n  penstock completion fish > penstock.fish"
    )]
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// `penstock serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = "penstock.yaml")]
    pub config: PathBuf,
    /// What happens is recorded.
    #[command(flatten)]
    pub record: RecordArgs,
}

/// `penstock demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Where clients connect; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where operators and Prometheus connect; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    pub admin: SocketAddr,
    /// Where KEDA connects; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8082")]
    pub scale: SocketAddr,
    /// Send traffic of every tenant in every class it may use.
    #[arg(long)]
    pub load: bool,
    /// What happens is recorded.
    #[command(flatten)]
    pub record: RecordArgs,
}

/// `penstock check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration file; `-` = standard input.
    #[arg(value_name = "FILE", default_value = "penstock.yaml")]
    pub config: PathBuf,
    /// Check a file that is meant for another machine: secrets, certificates and
    /// folders that are not here are remarks and no errors.
    #[arg(long)]
    pub offline: bool,
    /// How to print what was found.
    #[arg(short, long, alias = "format", value_enum, value_name = "FORMAT", default_value_t = CheckOutput::Table)]
    pub output: CheckOutput,
    /// The admin address of a running gateway: warn about objectives that none of
    /// its pools has ever kept.
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// How to get in there.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// `penstock count`
#[derive(Debug, Args)]
pub struct CountArgs {
    /// Folder with the model's `tokenizer.json` and chat template.
    #[arg(long, value_name = "FOLDER")]
    pub tokenizer: PathBuf,
    /// The requests; standard input when absent.
    #[arg(value_name = "FILE")]
    pub requests: Option<PathBuf>,
}

/// `penstock keda`
#[derive(Debug, Args)]
pub struct KedaArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: String,
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = "penstock.yaml")]
    pub config: PathBuf,
    /// The Deployment that runs the pool's replicas; absent = the pool's name.
    #[arg(long, value_name = "NAME")]
    pub target: Option<String>,
    /// What the target is, such as StatefulSet.
    #[arg(long, value_name = "KIND", default_value = "Deployment")]
    pub kind: String,
    /// The target's namespace; absent = none is written.
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Host of the gateway's Service, as KEDA reaches it.
    #[arg(long, value_name = "HOST", default_value = "penstock.default.svc")]
    pub service: String,
    /// Replicas that stay in any case; 0 = the pool may go to zero.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min: u32,
    /// The most replicas that there may be.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub max: u32,
    /// How long the last replica stays after the last work.
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub keep_last: Span,
    /// The Secret with ca.crt, tls.crt and tls.key for KEDA, where the scaler
    /// asks for a certificate.
    #[arg(long, value_name = "NAME", default_value = "penstock-keda-client")]
    pub secret: String,
    /// The admin address of a running gateway: say how long starts took there.
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
}

/// `penstock keys`
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a new key: prints it once, with the lines for the configuration.
    #[command(after_help = "Examples:\n  penstock keys new\n  penstock keys new -o json")]
    New(ResultForm),
    /// Print the configuration lines for keys read from standard input.
    ///
    /// Any secret can be a key: Penstock's own, another gateway's (`sk-...`), an
    /// identity provider's client secret. One secret a line; each gives one line for
    /// the configuration, with the BLAKE3 digest of the secret. A plain digest keeps
    /// only a random secret: anybody who reads the file can try passwords against it.
    /// So a secret of fewer than 20 characters, or with fewer than 8 different ones, is
    /// refused; whether a longer one is random cannot be seen. JSON is one object a line.
    #[command(
        after_help = "Examples:\n  printf '%s' \"$KEY\" | penstock keys hash\n  penstock keys hash < keys.txt"
    )]
    Hash(ListForm),
}

/// `penstock sim-engine`
#[derive(Debug, Args)]
pub struct SimEngineArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// A model name that it serves; may be given more than once.
    #[arg(long, value_name = "NAME", default_value = "sim")]
    pub model: Vec<String>,
    /// Whose API and habits it has.
    #[arg(long, value_enum, default_value_t = DialectArg::Vllm)]
    pub dialect: DialectArg,
    /// The accelerator and model whose speed it has; a name that is not there
    /// lists those that are.
    #[arg(long, value_name = "PROFILE", default_value = "h100-8b")]
    pub profile: String,
    /// Sequences that it runs at once; absent = the profile's.
    #[arg(long, value_name = "N")]
    pub max_seqs: Option<u32>,
    /// Context window in tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    pub max_model_len: u32,
    /// The environment variable with the key that it asks for; absent = none.
    #[arg(long, value_name = "VARIABLE")]
    pub api_key_env: Option<String>,
    /// How many times faster than the profile it runs.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub speed: f64,
}

/// `penstock simulate`
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The scenario file; flags go before what it says.
    #[arg(value_name = "SCENARIO")]
    pub scenario: Option<PathBuf>,
    /// Only this case of the scenario; may be given more than once.
    #[arg(long, value_name = "NAME")]
    pub case: Vec<String>,
    /// Engines, as profile:count with commas, such as h100-8b:8 or
    /// h100-8b:2,a10-8b:3.
    #[arg(long, value_name = "ENGINES")]
    pub fleet: Option<String>,
    /// Traffic from a trace: .csv or .jsonl, also with .gz.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The first so many requests of the trace.
    #[arg(long, value_name = "N", requires = "trace")]
    pub count: Option<usize>,
    /// Loads to compare, with commas.
    #[arg(long, value_name = "LOADS", value_delimiter = ',')]
    pub load: Vec<f64>,
    /// Requests per second at load 1.
    #[arg(long, value_name = "RATE")]
    pub capacity: Option<f64>,
    /// A design to compare, such as penstock or 'jsq scrape=50ms own'; may be
    /// given more than once.
    #[arg(long, value_name = "DESIGN")]
    pub design: Vec<String>,
    /// Show the designs and their options.
    #[arg(long)]
    pub list_designs: bool,
    /// Routers that share the arrivals and know nothing of each other.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub gateways: Option<u8>,
    /// Time between two scrapes of an engine, such as 5s; 0 = none.
    #[arg(long, value_name = "TIME")]
    pub scrape: Option<Span>,
    /// Runs of each row, each with another seed; absent = the scenario's, or 5.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: Option<u64>,
    /// Runs at once; absent = one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Write every figure here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with charts here, and each chart as SVG.
    #[arg(long, value_name = "FOLDER")]
    pub html: Option<PathBuf>,
    /// No progress on standard error.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Whose API a simulated engine speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DialectArg {
    /// vLLM's OpenAI server.
    Vllm,
    /// Text Generation Inference.
    Tgi,
}
