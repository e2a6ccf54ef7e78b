//! What each command does.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::app::gateway::{self, Gateway};
use crate::app::{demo, signals};
use crate::cli::{
    CheckArgs, Cli, Command, DemoArgs, DialectArg, Format, KeysCommand, ServeArgs, SimEngineArgs,
};
use crate::config::secret::{Machine, SecretSource as _};
use crate::config::{keys, load, schema};
use crate::sim::profile::Profile;
use crate::sim::server::{Dialect, SimOptions, SimServer};
use crate::telemetry::{Telemetry, log};
use crate::wire::random;

/// Runs the command; the process ends with the result.
#[must_use]
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.command {
        Command::Serve(args) => serve(args),
        Command::Demo(args) => demo(args),
        Command::Check(args) => check(&args),
        Command::Schema => print(&schema::schema_text()),
        Command::Keys(command) => keys(&command),
        Command::SimEngine(args) => in_runtime(sim_engine(args)),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "penstock", &mut io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("penstock: {error:#}");
        ExitCode::FAILURE
    })
}

fn in_runtime(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(command)?;
    Ok(ExitCode::SUCCESS)
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let reloader = match gateway::load(args.config) {
        Ok(reloader) => reloader,
        Err(report) => {
            eprint!("{report}");
            return Ok(ExitCode::from(report.exit_code()));
        }
    };
    let settings = reloader.current().load_full();
    let _log = log::init(&settings.startup.telemetry)?;
    in_runtime(async move {
        let mut shutdown = signals::Shutdown::listen()?;
        let telemetry = Telemetry::new(&settings.startup.telemetry)?;
        let gateway = Gateway::start(reloader, telemetry).await?;
        shutdown.asked().await;
        gateway.drain_or_abort(shutdown).await;
        Ok(())
    })
}

fn demo(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let _log = demo::quiet_log()?;
    in_runtime(demo::run(args))
}

fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let report = load::check_file(&args.config);
    match args.format {
        Format::Text => print!("{report}"),
        Format::Json => println!("{:#}", report.to_json()),
    }
    Ok(ExitCode::from(report.exit_code()))
}

fn keys(command: &KeysCommand) -> anyhow::Result<ExitCode> {
    match command {
        KeysCommand::New => {
            let key = keys::new(&random::bytes());
            println!("key (shown once, give it to its holder):\n  {}\n", key.text);
            println!(
                "in the configuration, under tenants.<name>.keys:\n  - {{id: {}, digest: {}}}",
                key.id, key.digest
            );
        }
        KeysCommand::Hash => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("read the key from standard input")?;
            let text = text.trim();
            let parts =
                keys::parse(text).context("this is not a Penstock key; `penstock keys new` makes one")?;
            println!("- {{id: {}, digest: {}}}", parts.id, keys::digest_text(&keys::digest(text)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn profile(name: &str) -> anyhow::Result<Profile> {
    let names = || Profile::names().collect::<Vec<_>>().join(", ");
    Profile::named(name).with_context(|| format!("no profile is called {name}; there are: {}", names()))
}

async fn sim_engine(args: SimEngineArgs) -> anyhow::Result<()> {
    let api_key = args
        .api_key_env
        .as_deref()
        .map(|name| Machine.env(name).with_context(|| format!("the environment variable {name} is not set")));
    let mut options = SimOptions {
        listen: args.listen,
        dialect: match args.dialect {
            DialectArg::Vllm => Dialect::Vllm,
            DialectArg::Tgi => Dialect::Tgi,
        },
        models: args.model,
        profile: profile(&args.profile)?,
        max_model_len: args.max_model_len,
        speed: args.speed,
        api_key: api_key.transpose()?,
        ..SimOptions::default()
    };
    options.engine.max_seqs = args.max_seqs.or(options.engine.max_seqs);
    let mut shutdown = signals::Shutdown::listen()?;
    let engine = SimServer::start(options).await.with_context(|| format!("listen on {}", args.listen))?;
    println!("simulated engine on http://{}", engine.addr);
    shutdown.asked().await;
    engine.stop().await;
    Ok(())
}
