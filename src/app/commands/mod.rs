//! Commands of the program.

pub(super) mod complete;
pub(super) mod config;
pub(super) mod count;
pub(super) mod demo;
pub(super) mod doctor;
pub(super) mod import;
pub(super) mod keda;
pub(super) mod keys;
pub(super) mod operate;
pub(super) mod plan;
pub(super) mod replay;
pub(super) mod simulate;

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::CommandFactory as _;

use crate::app::gateway::signals;
use crate::app::gateway::start_error;
use crate::app::gateway::{self, Gateway};
use crate::app::terminal::has_colour;
use crate::app::usage;
use crate::cli::operate::AccessArgs;
use crate::cli::output::CheckOutput;
use crate::cli::watch::{DoctorArgs, QueuesCommand, RequestsCommand};
use crate::cli::{CheckArgs, Cli, Command, DemoArgs, DialectArg, KedaArgs, ServeArgs, SimEngineArgs};
use crate::config::load::LoadOutcome;
use crate::config::report::expiring;
use crate::config::report::measured::check_against;
use crate::config::report::problem::{ConfigProblem, Severity};
use crate::config::report::{ConfigReport, UNREADABLE};
use crate::config::secret::{MachineSecrets, OfflineSecrets, SecretSource};
use crate::config::{load, schema};
use crate::sim::engine::profile::StepProfile;
use crate::sim::server::{ServerDialect, SimOptions, SimServer};
use crate::telemetry::event::EXPIRES_SOON;
use crate::telemetry::{Telemetry, log, wall};
use crate::usage::bill::text::quoted;

/// Threads of `penstock serve` for the work that belongs to no request, such as scrapes, discovery
/// and reloads. Requests have threads of their own ([`crate::proxy::listener::Workers`]).
const CONTROL_THREADS: usize = 2;

/// What stands for standard input in place of a file.
const STDIN: &str = "-";
/// Bytes of standard input that are read: as many as of a file.
const MAX_STDIN: u64 = 16 << 20;

/// Smallest configuration: one engine, no keys.
const FIRST_CONFIG: &str = include_str!("../../../config/examples/one-model.yaml");

/// Runs the command and returns the exit code of the process.
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.command {
        Command::Serve(args) => serve(args),
        Command::Demo(args) => demo(args),
        Command::Check(args) => check(&args),
        Command::Config(command) => config::run(&command).and_then(|text| print(&text)),
        Command::Diff(args) => config::compare(&args).and_then(|text| print(&text)),
        Command::Schema => print(&schema::schema_text()),
        Command::Status(args) => in_runtime(operate::status(args, |text| print(text).map(drop))),
        Command::Ready(args) => print_from(operate::ready(args)),
        Command::Explain(args) => print_from(operate::explain(args)),
        Command::Why(args) => print_from(operate::why(args)),
        Command::Requests(RequestsCommand::List(args)) => print_from(operate::requests(args)),
        Command::Queues(QueuesCommand::List(args)) => print_from(operate::queues(args)),
        Command::Tail(args) => in_runtime(operate::tail::run(args)),
        Command::Top(args) => in_runtime(operate::top::run(args, |text| print(text).map(drop))),
        Command::Pools(command) => print_from(operate::pools(command)),
        Command::Replicas(command) => print_from(operate::replicas(command)),
        Command::Tenants(command) => print_from(operate::tenants(command)),
        Command::Usage(args) => match usage::of_gateway(&args) {
            Some(path) => print_from(operate::usage(path, args.admin_args())),
            None => usage::run(&args).and_then(|text| print(&text)),
        },
        Command::Count(args) => count::run(&args, |text| print(text).map(drop)),
        Command::Keda(args) => keda(&args),
        Command::Keys(command) => keys::run(&command).and_then(|text| print(&text)),
        Command::Import(command) => import::run(&command).and_then(|text| print(&text)),
        Command::SimEngine(args) => in_runtime(sim_engine(args)),
        Command::Simulate(args) => simulate::run(&args).and_then(|(text, code)| print(&text).map(|_| code)),
        Command::Plan(args) => plan::run(&args).and_then(|text| print(&text)),
        Command::Replay(args) => replay::run(&args).and_then(|(text, code)| print(&text).map(|_| code)),
        Command::Doctor(args) => doctor(&args),
        Command::Man { command } => man(&command).and_then(|text| print(&text)),
        Command::Completion { shell } => complete::script(shell).and_then(|text| print(&text)),
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

/// Prints the result of a command that asks a gateway.
fn print_from(command: impl Future<Output = anyhow::Result<String>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    print(&runtime.block_on(command)?)
}

/// The manual page of a command.
fn man(words: &[String]) -> anyhow::Result<String> {
    let mut command = Cli::command();
    command.build();
    for word in words {
        let found = command.find_subcommand(word).cloned();
        command = found.with_context(|| {
            format!("there is no command `{}`; `penstock help` lists them", words.join(" "))
        })?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Prints a result. A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("write to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let record = replay::record_options(&args.record)?;
    let is_missing = !args.config.exists();
    let reloader = match gateway::load(args.config) {
        Ok(reloader) => reloader,
        Err(report) => {
            eprint!("{report}");
            if is_missing {
                eprint!("{}", first_steps(&report.name));
            }
            return Ok(ExitCode::from(report.exit_code()));
        }
    };
    let settings = reloader.current().load_full();
    let _log = log::init(&settings.startup.telemetry, has_colour())?;
    let control = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .enable_all()
        .build()?;
    control.block_on(async move {
        let mut shutdown = signals::OsSignals::listen()?;
        let telemetry = Telemetry::new(&settings.startup.telemetry)?;
        let gateway = Gateway::start_recorded(reloader, telemetry, record).await?;
        shutdown.next().await;
        gateway.drain_or_abort(shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// First steps for a user without a configuration file.
fn first_steps(path: &str) -> String {
    let example = FIRST_CONFIG.lines().filter(|line| !line.starts_with('#'));
    let example: Vec<String> = example.map(|line| format!("  {line}")).collect();
    format!(
        "\nTo start, write this to {path} and put your engine and its model in:\n\n{}\n\n\
         `penstock check {path}` says what is wrong with a file, `penstock schema` has every key,\n\
         and `penstock demo` needs no file.\n",
        example.join("\n")
    )
}

fn demo(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let _log = demo::quiet_log()?;
    in_runtime(demo::run(args))
}

fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let secrets: &dyn SecretSource = if args.offline { &OfflineSecrets } else { &MachineSecrets };
    let load = || -> anyhow::Result<LoadOutcome> {
        let mut outcome = if args.config.as_os_str() == STDIN {
            let text = io::read_to_string(io::stdin().take(MAX_STDIN)).context("read standard input")?;
            load::load_str_with(&text, "standard input", Path::new("."), None, secrets)
        } else {
            load::load_file_with(&args.config, None, secrets)
        };
        expiring::warn(&mut outcome, wall::now(), EXPIRES_SOON);
        Ok(outcome)
    };
    let report = match &args.against {
        None if args.access != AccessArgs::default() => {
            bail!("--token-file, --ca, --cert and --key are for a gateway: --against says which")
        }
        None => load()?.report,
        Some(gateway) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let bests = runtime.block_on(operate::best_latencies(gateway, &args.access))?;
            check_against(load()?, &|pool| bests.get(pool).copied())
        }
    };
    print(&match args.output {
        CheckOutput::Table => format!("{report}{}", summary(&report)),
        CheckOutput::Json => format!("{:#}\n", report.to_json()),
        CheckOutput::Csv => problems_csv(&report),
        CheckOutput::Github => report.to_github(),
    })?;
    Ok(ExitCode::from(report.exit_code()))
}

/// The problems of a file as CSV.
fn problems_csv(report: &ConfigReport) -> String {
    let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
    let line = |problem: &ConfigProblem| {
        let cells = [
            problem.severity.name().to_owned(),
            number(problem.line),
            number(problem.column),
            problem.path.clone(),
            problem.message.clone(),
            problem.hint.clone().unwrap_or_default(),
        ];
        cells.map(|cell| quoted(&cell)).join(",") + "\r\n"
    };
    let lines: String = report.problems.iter().map(line).collect();
    format!("severity,line,column,path,message,hint\r\n{lines}")
}

/// Last line of `penstock check`.
fn summary(report: &ConfigReport) -> String {
    let count = |severity| report.problems.iter().filter(|problem| problem.severity == severity).count();
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let gap = if report.problems.is_empty() { "" } else { "\n" };
    let name = &report.name;
    match (errors, warnings) {
        (0, 0) => format!("{gap}{name} is valid\n"),
        (0, _) => format!("{gap}{name} is valid, with {}\n", counted(warnings, "warning")),
        _ if report.exit_code() == UNREADABLE => String::new(),
        (_, 0) => format!("{gap}{name} has {}\n", counted(errors, "error")),
        _ => format!("{gap}{name} has {} and {}\n", counted(errors, "error"), counted(warnings, "warning")),
    }
}

fn doctor(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let loaded = load::load_file(&args.config, None);
    let settings = match loaded.into_result() {
        Ok(loaded) => loaded.settings,
        Err(report) => {
            eprint!("{report}");
            return Ok(ExitCode::from(report.exit_code()));
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let findings = runtime.block_on(doctor::run_checks(&settings))?;
    print(&doctor::text(&findings, args.output))?;
    Ok(ExitCode::from(u8::from(doctor::has_failed(&findings))))
}

/// `penstock keda`.
fn keda(args: &KedaArgs) -> anyhow::Result<ExitCode> {
    let measured = match &args.against {
        Some(gateway) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(operate::cold_start(gateway, &args.pool))?
        }
        None => None,
    };
    print(&keda::manifests(args, measured)?)
}

fn profile(name: &str) -> anyhow::Result<StepProfile> {
    let names = || StepProfile::names().collect::<Vec<_>>().join(", ");
    StepProfile::named(name).with_context(|| format!("no profile is called {name}; there are: {}", names()))
}

async fn sim_engine(args: SimEngineArgs) -> anyhow::Result<()> {
    let api_key = args.api_key_env.as_deref().map(|name| {
        MachineSecrets.env(name).with_context(|| format!("the environment variable {name} is not set"))
    });
    let mut options = SimOptions {
        listen: args.listen,
        dialect: match args.dialect {
            DialectArg::Vllm => ServerDialect::Vllm,
            DialectArg::Tgi => ServerDialect::Tgi,
        },
        models: args.model,
        profile: profile(&args.profile)?,
        max_model_len: args.max_model_len,
        speed: args.speed,
        api_key: api_key.transpose()?,
        ..SimOptions::default()
    };
    options.engine.max_seqs = args.max_seqs.or(options.engine.max_seqs);
    let mut shutdown = signals::OsSignals::listen()?;
    let listen = args.listen;
    let engine = SimServer::start(options).await.map_err(|error| {
        anyhow::anyhow!("cannot listen on {listen}: {error}{}", start_error::next_step(&error))
    })?;
    print(&format!("simulated engine on http://{}\n", engine.addr))?;
    shutdown.next().await;
    engine.stop().await;
    Ok(())
}
