//! Shell completion: commands and flags, and the names that a running gateway knows, or else its
//! configuration file.
//!
//! A shell's script calls this program with [`VARIABLE`] and the words of the line. A name is offered
//! only if no shell reads more than a word in it: clients choose the ids of their requests.

mod bash;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgMatches, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Elvish, Fish, Powershell, Shells, Zsh};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::app::commands::complete::bash::Bash;
use crate::app::commands::operate::names_at;
use crate::cli::Cli;
use crate::cli::operate::{AccessArgs, AdminArgs};
use crate::config::load;
use crate::config::secret::OfflineSecrets;
use crate::core::model::id_table::IdTable;

/// Environment variable with the shell's name, by which its script asks.
const VARIABLE: &str = "PENSTOCK_COMPLETE";
/// Limit for names: until then, the shell does not react.
const LIMIT: Duration = Duration::from_millis(300);
/// Part of it for the gateway.
const GATEWAY_LIMIT: Duration = Duration::from_millis(250);
/// Most names that are offered.
const MAX_NAMES: usize = 200;

const SHELLS: Shells<'_> = Shells(&[&Bash, &Elvish, &Fish, &Powershell, &Zsh]);

/// What a name is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Tenant,
    Class,
    Model,
    Pool,
    Replica,
    Request,
}

/// Arguments that take a name: the command, the id of the argument, and what the name is of.
const NAMED: &[(&str, &str, NameKind)] = &[
    ("explain", "request_id", NameKind::Request),
    ("why", "request_id", NameKind::Request),
    ("requests list", "tenant", NameKind::Tenant),
    ("requests list", "class", NameKind::Class),
    ("requests list", "model", NameKind::Model),
    ("requests list", "pool", NameKind::Pool),
    ("tail", "tenant", NameKind::Tenant),
    ("tail", "class", NameKind::Class),
    ("tail", "model", NameKind::Model),
    ("tail", "pool", NameKind::Pool),
    ("pools cordon", "name", NameKind::Pool),
    ("pools uncordon", "name", NameKind::Pool),
    ("pools drain", "name", NameKind::Pool),
    ("pools spot-notice", "name", NameKind::Pool),
    ("replicas cordon", "name", NameKind::Replica),
    ("replicas uncordon", "name", NameKind::Replica),
    ("replicas drain", "name", NameKind::Replica),
    ("replicas spot-notice", "name", NameKind::Replica),
    ("tenants pause", "name", NameKind::Tenant),
    ("tenants resume", "name", NameKind::Tenant),
    ("tenants boost", "name", NameKind::Tenant),
    ("keda", "pool", NameKind::Pool),
];

/// Answers a shell's script and ends the process, if one asks.
pub fn answer_shell() {
    CompleteEnv::with_factory(command).var(VARIABLE).shells(SHELLS).complete();
}

/// `penstock completion`: the script that a shell reads once.
pub(super) fn script(shell: Shell) -> anyhow::Result<String> {
    let (shell, mut text) = (shell.to_string(), Vec::new());
    let completer = SHELLS.completer(&shell).with_context(|| format!("no script for {shell}"))?;
    completer.write_registration(VARIABLE, "penstock", "penstock", "penstock", &mut text)?;
    Ok(String::from_utf8_lossy(&text).trim_start().to_owned())
}

/// The command line, with what completes its names.
fn command() -> Command {
    NAMED.iter().fold(Cli::command(), |command, (path, argument, kind)| {
        completed(command, &path.split(' ').collect::<Vec<_>>(), argument, *kind)
    })
}

fn completed(command: Command, path: &[&str], argument: &'static str, kind: NameKind) -> Command {
    match path.split_first() {
        Some((first, rest)) => command.mut_subcommand(first, |inner| completed(inner, rest, argument, kind)),
        None => command.mut_arg(argument, |arg| {
            arg.add(ArgValueCompleter::new(move |begun: &OsStr| candidates(kind, begun)))
        }),
    }
}

fn candidates(kind: NameKind, begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else { return Vec::new() };
    let line = TypedLine::read(env::args_os());
    let fits = |(name, _): &(String, Option<String>)| name.starts_with(begun) && is_plain(name);
    let found = line.names(kind).into_iter().filter(fits).take(MAX_NAMES);
    found.map(|(name, help)| CompletionCandidate::new(name).help(help.map(Into::into))).collect()
}

/// Whether a shell takes the name for one word and nothing else.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/@+,%=".contains(&byte);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(plain)
}

/// What the line says so far about where names are.
struct TypedLine {
    admin: AdminArgs,
    config: PathBuf,
}

impl TypedLine {
    /// Reads the words after `--`.
    fn read(words: impl Iterator<Item = OsString>) -> Self {
        let words = words.skip_while(|word| word != "--").skip(1);
        let read = Cli::command().ignore_errors(true).try_get_matches_from(words).ok();
        let mut of = read.as_ref();
        while let Some((_, inner)) = of.and_then(ArgMatches::subcommand) {
            of = Some(inner);
        }
        let path = |id: &str| of.and_then(|of| of.try_get_one::<PathBuf>(id).ok().flatten().cloned());
        let access = AccessArgs {
            token_file: path("token_file"),
            ca: path("ca"),
            cert: path("cert"),
            key: path("key"),
        };
        let admin = of.and_then(|of| of.try_get_one::<String>("admin").ok().flatten().cloned());
        Self {
            admin: AdminArgs { admin, access, ..AdminArgs::default() },
            config: path("config").unwrap_or_else(|| "penstock.yaml".into()),
        }
    }

    /// Names, each with what helps to choose. The file is read while the gateway is asked.
    fn names(self, kind: NameKind) -> Vec<(String, Option<String>)> {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return Vec::new();
        };
        let found = runtime.block_on(async {
            let begun = Instant::now();
            let file = tokio::task::spawn_blocking(move || of_file(kind, &self.config));
            let gateway = timeout_at(begun + GATEWAY_LIMIT, of_gateway(kind, &self.admin)).await;
            match gateway {
                Ok(Some(names)) => names,
                _ => timeout_at(begun + LIMIT, file).await.ok().and_then(Result::ok).unwrap_or_default(),
            }
        });
        runtime.shutdown_background();
        found
    }
}

async fn of_gateway(kind: NameKind, admin: &AdminArgs) -> Option<Vec<(String, Option<String>)>> {
    let path = match kind {
        NameKind::Replica => "replicas",
        NameKind::Request => "requests?limit=1000",
        _ => "config",
    };
    let answer = names_at(admin, path).await.ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let rows = |key: &str| answer[key].as_array().cloned().unwrap_or_default().into_iter();
    let keys =
        |key: &str| answer[key].as_object().into_iter().flatten().map(|(name, _)| (name.clone(), None));
    Some(match kind {
        NameKind::Tenant => keys("tenants").collect(),
        NameKind::Class => keys("classes").collect(),
        NameKind::Model => keys("models").collect(),
        NameKind::Pool => keys("pools").collect(),
        NameKind::Replica => {
            rows("replicas").filter_map(|row| Some((text(&row["replica"])?, None))).collect()
        }
        NameKind::Request => {
            let state =
                |row: &Value| Some(format!("{}, tenant {}", text(&row["state"])?, text(&row["tenant"])?));
            rows("requests").filter_map(|row| Some((text(&row["request_id"])?, state(&row)))).collect()
        }
    })
}

fn of_file(kind: NameKind, path: &Path) -> Vec<(String, Option<String>)> {
    let Ok(loaded) = load::load_file_with(path, None, &OfflineSecrets).into_result() else {
        return Vec::new();
    };
    let policy = &loaded.settings.policy;
    match kind {
        NameKind::Tenant => listed(&policy.tenants),
        NameKind::Class => listed(&policy.classes),
        NameKind::Model => listed(&policy.models),
        NameKind::Pool => listed(&policy.pools),
        NameKind::Replica => listed(&policy.replicas),
        NameKind::Request => Vec::new(),
    }
}

fn listed<I, T>(table: &IdTable<I, T>) -> Vec<(String, Option<String>)>
where
    I: Copy + From<usize> + Into<usize>,
{
    table.iter().map(|(_, name, _)| (name.to_owned(), None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_argument_exists() {
        command().debug_assert();
    }

    #[test]
    fn what_a_shell_would_run_is_not_offered() {
        for name in ["chat", "qwen/http://10.0.0.1:8000", "req_1-a.b", "Qwen/Qwen3-8B", "a@b"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", "-f", "a b", "$(id)", "`id`", "a;b", "a'b", "a\tb", "é", "a*"] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn the_line_says_where_names_are() {
        let words = |text: &str| TypedLine::read(text.split(' ').map(OsString::from));
        let line = words("p -- penstock pools drain --admin http://10.0.0.1:1 --token-file t --wait qw");
        assert_eq!(line.admin.admin.as_deref(), Some("http://10.0.0.1:1"));
        assert_eq!(line.admin.access.token_file.as_deref(), Some(Path::new("t")));
        assert_eq!(words("p -- penstock keda -c other.yaml qw").config, Path::new("other.yaml"));
        assert_eq!(words("p -- penstock explain ").config, Path::new("penstock.yaml"));
        assert_eq!(words("p --").admin.admin, None);
    }
}
