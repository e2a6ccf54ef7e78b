//! Command `loadtest`.

use anyhow::Result;
use clap::{Parser, Subcommand};
use penstock_loadtest::{
    abandon, bench_proxy, chaos, closed, compare, core_bench, count_bench, engine, engines, key_bench,
    no_harm, overload, process, proxy, replay, run, scaler, soak, streams,
};

/// Load generator and measuring tools for an OpenAI-compatible gateway.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version)]
struct Cli {
    /// Worker threads; 1 costs the least CPU per request.
    #[arg(long, global = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve an instant fake OpenAI engine.
    Engine(engine::EngineArgs),
    /// Send load, closed loop or at a fixed rate, and report latencies.
    Run(run::RunArgs),
    /// Closed loop of patient clients: streams, plain answers or both.
    Closed(closed::ClosedArgs),
    /// Replay a trace, or made-up calls, in real time and report latencies.
    ///
    /// Open loop: every call is sent at its planned instant, and its times count
    /// from that instant. Reports the first token, the mean time between tokens
    /// and the whole answer, by tenant and class, and the share of all calls
    /// inside the goals. Exit code 0 when a call was served.
    Replay(replay::ReplayArgs),
    /// Compare gateways and configurations under the same load.
    Compare(compare::CompareArgs),
    /// Break engines in every way while a gateway serves, and compare every answer.
    Chaos(chaos::ChaosArgs),
    /// Break everything around two gateways while they serve, and compare every answer.
    Soak(soak::SoakArgs),
    /// Five times as much load as the engines can take, hostile clients among it.
    Overload(overload::OverloadArgs),
    /// Whether a gateway costs throughput: a matrix of engines, requests and classes.
    NoHarm(no_harm::NoHarmArgs),
    /// What proxies cost: CPU, throughput, latency, memory and aborts, next to nginx.
    BenchProxy(bench_proxy::BenchProxyArgs),
    /// Run simulated engines in real time, several in one process.
    Engines(engines::EnginesArgs),
    /// Run a small reference proxy with the usual ways of balancing.
    Proxy(proxy::ProxyArgs),
    /// Open many streams, hold them, and measure memory per stream.
    Streams(streams::StreamsArgs),
    /// Connect, send and drop the connection at a random moment.
    Drop(abandon::DropArgs),
    /// Time the scheduler alone: no sockets, no tasks.
    CoreBench(core_bench::CoreBenchArgs),
    /// What a check of an API key costs, and whether its time tells how much is right.
    KeyBench(key_bench::KeyBenchArgs),
    /// What it costs to count a long prompt with a model's tokenizer.
    CountBench(count_bench::CountBenchArgs),
    /// Poll a gateway's scaler as KEDA does, and report how long each call took.
    Scaler(scaler::ScalerArgs),
    /// Print the CPU time and memory of processes.
    Cpu(process::CpuArgs),
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    runtime(cli.threads)?.block_on(async {
        match cli.command {
            Command::Engine(args) => engine::command(&args).await,
            Command::Run(args) => run::command(&args).await,
            Command::Closed(args) => closed::command(&args).await,
            Command::Replay(args) => replay::command(&args).await,
            Command::Compare(args) => compare::command(&args).await,
            Command::Chaos(args) => chaos::command(&args).await,
            Command::Soak(args) => soak::command(&args).await,
            Command::Overload(args) => overload::command(&args).await,
            Command::NoHarm(args) => no_harm::command(&args).await,
            Command::BenchProxy(args) => bench_proxy::command(&args).await,
            Command::Engines(args) => engines::command(&args).await,
            Command::Proxy(args) => proxy::command(&args).await,
            Command::Streams(args) => streams::command(&args).await,
            Command::Drop(args) => abandon::command(&args).await,
            Command::CoreBench(args) => core_bench::command(&args),
            Command::KeyBench(args) => key_bench::command(&args),
            Command::CountBench(args) => count_bench::command(&args),
            Command::Scaler(args) => scaler::command(&args).await,
            Command::Cpu(args) => process::command(&args).await,
        }
    })
}

fn runtime(threads: u16) -> std::io::Result<tokio::runtime::Runtime> {
    if threads == 1 {
        return tokio::runtime::Builder::new_current_thread().enable_all().build();
    }
    tokio::runtime::Builder::new_multi_thread().worker_threads(usize::from(threads)).enable_all().build()
}
