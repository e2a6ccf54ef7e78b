//! Rules of the source tree that the compiler does not check: which module may
//! use which, what the core may touch, and how large a file may grow.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of one layer may use those of the layers after it, and
/// themselves.
const LAYERS: [&[&str]; 6] = [
    &["main", "cli", "app"],
    &["proxy", "fleet", "scale", "admin", "sim"],
    &["usage"],
    &["config", "wire", "tls", "telemetry"],
    &["tokens"],
    &["core"],
];

/// The one arrow between two parts of a layer: what the operator chose for
/// logs and traces is a section of the validated settings, so telemetry takes
/// those types instead of a copy of them.
const ALLOWED: (&str, &str) = ("telemetry", "crate::config::settings::");

/// What would make the core depend on anything but its inputs.
const IMPURE: [&str; 17] = [
    "tokio",
    "hyper",
    "reqwest",
    "axum",
    "tracing",
    "metrics",
    "rand",
    "getrandom",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::env",
    "std::thread",
    "std::net",
    "std::fs",
    "std::io",
    "std::process",
    "dashmap",
];

/// Code lines of a file, tests not counted.
const MAX_LINES: usize = 400;

/// One source file.
struct Source {
    /// Its path below `src`, with slashes.
    path: String,
    text: String,
}

impl Source {
    /// The module at the top of its path: `fleet` for `fleet/probe.rs`.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// Its code lines: no blank lines, no comments, no tests. Tests are the
    /// module at the end of the file, or a single line elsewhere.
    fn code(&self) -> Vec<&str> {
        let mut code = Vec::new();
        let mut of_test = false;
        for line in self.text.lines() {
            if line == "#[cfg(test)]" || (of_test && line.starts_with("#[")) {
                of_test = true;
                continue;
            }
            if of_test && line.contains("mod ") && line.contains('{') {
                break;
            }
            let line = line.trim();
            if !of_test && !line.is_empty() && !line.starts_with("//") {
                code.push(line);
            }
            of_test = false;
        }
        code
    }

    /// Its code on one line, followed by every path that its `use` lists
    /// stand for.
    fn flat(&self) -> String {
        let lines = self.code().into_iter().map(|line| line.split(" //").next().unwrap_or(line));
        let mut flat = lines.collect::<Vec<_>>().join(" ");
        let imports: Vec<String> = flat.split(';').filter_map(use_tree).flat_map(expand).collect();
        for path in imports {
            flat.push_str("; ");
            flat.push_str(&path);
        }
        flat
    }

    fn offence(&self, what: &str) -> String {
        format!("src/{}: {what}", self.path)
    }
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// What the last `use` of a statement imports.
fn use_tree(statement: &str) -> Option<&str> {
    let starts = statement.match_indices("use ").map(|(start, _)| start);
    let start = starts.filter(|start| !statement[..*start].ends_with(is_of_name)).last()?;
    Some(statement[start + "use ".len()..].trim())
}

/// The paths that a `use` tree stands for.
fn expand(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![tree.trim().to_owned()] };
    let (prefix, list) = (tree[..open].trim(), &tree[open + 1..]);
    let mut depth = 0;
    let mut items = vec![String::new()];
    for char in list.chars() {
        match char {
            '}' if depth == 0 => break,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        items.last_mut().expect("never empty").push(char);
    }
    let items = items.iter().map(|item| item.trim()).filter(|item| !item.is_empty());
    items.flat_map(|item| expand(&format!("{prefix}{item}"))).collect()
}

fn is_of_name(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Modules that `source` names as `crate::module`, or as `penstock::module`
/// in the binary.
fn used_modules(source: &Source) -> Vec<String> {
    let flat = source.flat();
    let root = if source.module() == "main" { "penstock::" } else { "crate::" };
    let names = flat.match_indices(root).filter(|(start, _)| !flat[..*start].ends_with(is_of_name));
    let allowed = |path: &str| source.module() == ALLOWED.0 && path.starts_with(ALLOWED.1);
    let wanted = names.map(|(start, _)| &flat[start..]).filter(|path| !allowed(path));
    wanted.map(|path| path[root.len()..].chars().take_while(|char| is_of_name(*char)).collect()).collect()
}

/// Arrows that do not point downwards.
fn wrong_arrows(source: &Source) -> Vec<String> {
    let from = source.module();
    if from == "lib" {
        return Vec::new();
    }
    let Some(own) = layer(from) else {
        return vec![source.offence(&format!("`{from}` is in no layer; add it to LAYERS in tests/tidy.rs"))];
    };
    let used = used_modules(source).into_iter();
    let upwards = used.filter(|to| {
        let same = to == from || (own == 0 && layer(to) == Some(0));
        layer(to).is_some_and(|layer| layer <= own) && !same
    });
    upwards.map(|to| source.offence(&format!("`{from}` must not use `{to}`"))).collect()
}

/// What the core must not touch.
fn impurities(source: &Source) -> Vec<String> {
    if source.module() != "core" {
        return Vec::new();
    }
    let flat = source.flat();
    let named = |name: &&&str| {
        let is_crate = !name.contains("::");
        flat.match_indices(**name).any(|(start, _)| {
            let (before, after) = (&flat[..start], &flat[start + name.len()..]);
            let whole =
                !before.ends_with(|char| is_of_name(char) || char == ':') && !after.starts_with(is_of_name);
            whole && (!is_crate || after.starts_with("::"))
        })
    };
    let found = IMPURE.iter().filter(named);
    found.map(|name| source.offence(&format!("the core must not use `{name}`"))).collect()
}

/// `use something::*`.
fn globs(source: &Source) -> Vec<String> {
    let flat = source.flat();
    let paths = flat.split(';').filter_map(use_tree).flat_map(expand);
    let stars = paths.filter(|path| path.ends_with('*'));
    stars.map(|path| source.offence(&format!("`use {path}` hides where names come from"))).collect()
}

/// A file that has grown too large.
fn oversize(source: &Source) -> Vec<String> {
    let lines = source.code().len();
    let too_many = lines > MAX_LINES;
    too_many
        .then(|| source.offence(&format!("{lines} code lines; at most {MAX_LINES}, split it")))
        .into_iter()
        .collect()
}

/// A file that does not say what it is.
fn undocumented(source: &Source) -> Vec<String> {
    let starts = source.text.starts_with("//! ");
    (!starts)
        .then(|| source.offence("starts without a `//!` line that says what it is"))
        .into_iter()
        .collect()
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
                found.push(Source { path: below, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Fails with every offence that `check` finds.
fn hold(check: fn(&Source) -> Vec<String>) {
    let sources = sources();
    assert!(sources.len() > 10, "the sources were not found");
    let offences: Vec<String> = sources.iter().flat_map(check).collect();
    assert!(offences.is_empty(), "\n{}", offences.join("\n"));
}

#[test]
fn arrows_point_downwards() {
    hold(wrong_arrows);
}

#[test]
fn the_core_is_pure() {
    hold(impurities);
}

#[test]
fn nothing_is_imported_by_a_star() {
    hold(globs);
}

#[test]
fn files_are_small() {
    let mut sizes: Vec<usize> = sources().iter().map(|source| source.code().len()).collect();
    sizes.sort_unstable();
    println!("{} files, median {} code lines", sizes.len(), sizes[sizes.len() / 2]);
    hold(oversize);
}

#[test]
fn files_say_what_they_are() {
    hold(undocumented);
}

mod can_fail {
    use super::{MAX_LINES, Source, globs, impurities, oversize, undocumented, wrong_arrows};

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    fn offends(check: fn(&Source) -> Vec<String>, path: &str, text: &str) -> bool {
        !check(&source(path, text)).is_empty()
    }

    #[test]
    fn on_an_arrow_upwards_or_sideways() {
        let wrong = [
            ("core/job.rs", "use crate::config::settings::Settings;"),
            ("fleet/probe.rs", "use crate::proxy::gate::Gate;"),
            ("wire/sse.rs", "fn f() { crate::telemetry::wall::now(); }"),
            ("telemetry/log.rs", "use crate::app::App;"),
            ("telemetry/log.rs", "use crate::config::load::Outcome;"),
            ("wire/sse.rs", "use crate::config::settings::Settings;"),
            ("proxy/a.rs", "use crate::{core::ids::JobId, fleet::handle::Fleet};"),
            ("proxy/a.rs", "use crate::{\n    core::{ids::JobId, job},\n    sim::world,\n};"),
            ("usage/a.rs", "use crate::proxy::gate::Gate;"),
            ("telemetry/a.rs", "use crate::usage::Journal;"),
            ("unknown/a.rs", ""),
        ];
        for (path, text) in wrong {
            assert!(offends(wrong_arrows, path, text), "{path}: {text}");
        }
        let right = [
            ("proxy/a.rs", "use crate::{core::ids::JobId, wire::error::Wire, proxy::gate};"),
            ("app.rs", "use crate::fleet::handle::Fleet;\nuse crate::cli::Args;"),
            ("proxy/a.rs", "use crate::usage::row::Row;"),
            ("usage/a.rs", "use crate::config::settings::usage::UsageSettings;"),
            ("main.rs", "fn main() { penstock::app::run(); }"),
            ("core/a.rs", "use crate::core::ids::JobId;\n// use crate::proxy::x;\n"),
            ("core/a.rs", "fn f() {}\n#[cfg(test)]\nmod tests { use crate::sim::world; }"),
            ("lib.rs", "pub mod proxy;"),
            ("telemetry/log.rs", "use crate::config::settings::{LogFormat, TelemetrySettings};"),
            ("config/a.rs", "fn f() { hint(\"penstock::proxy=debug\"); }"),
        ];
        for (path, text) in right {
            assert!(!offends(wrong_arrows, path, text), "{path}: {text}");
        }
    }

    #[test]
    fn on_an_impure_core() {
        let wrong = [
            "use tokio::time::sleep;",
            "use std::time::{Duration, Instant};",
            "use std::time::Instant;",
            "use std::{fmt, time::{Duration, Instant}};",
            "#[cfg(test)]\nmod helper;\nuse std::fs;",
            "fn f() { std::env::var(\"X\"); }",
            "use std::thread;",
            "fn f() { tracing::info!(\"x\"); }",
            "fn f() { std::time::SystemTime::now(); }",
            "use std::net::SocketAddr;",
            "use rand::Rng;",
        ];
        for text in wrong {
            assert!(offends(impurities, "core/a.rs", text), "{text}");
        }
        assert!(!offends(impurities, "proxy/a.rs", wrong[0]));
        let right = [
            "use std::time::Duration;",
            "use std::sync::Arc;",
            "let metrics = operand::x();",
            "// tokio::time\nfn f() {}",
            "use crate::core::metrics::Metrics;",
            "fn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }",
        ];
        for text in right {
            assert!(!offends(impurities, "core/a.rs", text), "{text}");
        }
    }

    #[test]
    fn on_a_star() {
        for text in ["use super::*;", "pub use a::b::*;", "use a::{b, c::*};", "use a::{\n    b,\n    *,\n};"]
        {
            assert!(offends(globs, "core/a.rs", text), "{text}");
        }
        for text in ["let a = b * c;", "use a::b;", "fn f() {}\n#[cfg(test)]\nmod tests { use super::*; }"] {
            assert!(!offends(globs, "core/a.rs", text), "{text}");
        }
    }

    #[test]
    fn on_a_large_file() {
        let just = "let a = 1;\n".repeat(MAX_LINES);
        assert!(!offends(oversize, "core/a.rs", &just));
        assert!(offends(oversize, "core/a.rs", &format!("{just}let b = 2;\n")));
        let padded = format!("{just}\n// more\n    /// more\n#[cfg(test)]\nmod tests {{\n{just}}}\n");
        assert!(!offends(oversize, "core/a.rs", &padded));
    }

    #[test]
    fn on_a_file_without_a_first_word() {
        assert!(offends(undocumented, "core/a.rs", "use std::fmt;\n"));
        assert!(offends(undocumented, "core/a.rs", ""));
        assert!(!offends(undocumented, "core/a.rs", "//! A thing.\n"));
    }
}
