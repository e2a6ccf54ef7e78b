//! From a file to settings, with everything that is wrong with it.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::config::decode::{Decoded, decode};
use crate::config::file::File;
use crate::config::problem::Problem;
use crate::config::report::Report;
use crate::config::secret::{Machine, Reader, SecretSource, read_bounded};
use crate::config::settings::Settings;
use crate::config::validate::{Findings, validate};
use crate::config::yaml;

/// Bytes of the largest file: room for some ten thousand tenants.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// A configuration that holds.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What the program uses.
    pub settings: Settings,
    /// What it was made from, defaults filled in.
    pub file: File,
}

/// What came of a file.
#[derive(Debug)]
pub struct Outcome {
    /// The configuration, unless an error was found.
    pub loaded: Option<Loaded>,
    /// What was found.
    pub report: Report,
    /// The files that were read.
    pub(super) inputs: Inputs,
}

impl Outcome {
    /// The configuration.
    ///
    /// # Errors
    /// The report, when the file cannot be used.
    pub fn into_result(self) -> Result<Loaded, Report> {
        self.loaded.ok_or(self.report)
    }
}

/// The files that a configuration was read from, with the hash of each (none
/// when it could not be read).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inputs {
    config: Option<(PathBuf, Option<blake3::Hash>)>,
    secrets: Vec<(PathBuf, Option<blake3::Hash>)>,
}

impl Inputs {
    /// The paths, the configuration file first.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.config.iter().chain(&self.secrets).map(|(path, _)| path.as_path())
    }

    /// Whether some file is no longer what it was, read as it was then.
    pub(super) fn changed(&self, source: &dyn SecretSource) -> bool {
        let differs = |hash: &Option<blake3::Hash>, now: io::Result<Vec<u8>>| {
            now.ok().map(|bytes| blake3::hash(&bytes)) != *hash
        };
        self.config.iter().any(|(path, hash)| differs(hash, read_bounded(path, MAX_FILE_BYTES)))
            || self.secrets.iter().any(|(path, hash)| differs(hash, source.file(path)))
    }
}

/// Loads a file. Ids stay those of `previous`.
#[must_use]
pub fn load_file(path: &Path, previous: Option<&Settings>) -> Outcome {
    load_file_with(path, previous, &Machine)
}

/// Loads a file with secrets from `source`.
#[must_use]
pub fn load_file_with(path: &Path, previous: Option<&Settings>, source: &dyn SecretSource) -> Outcome {
    let name = path.display().to_string();
    let read = read_bounded(path, MAX_FILE_BYTES);
    let hash = read.as_ref().ok().map(|bytes| blake3::hash(bytes));
    let utf8 = |bytes| String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8 text"));
    let mut outcome = match read.and_then(utf8) {
        Ok(text) => load_str_with(&text, &name, folder(path), previous, source),
        Err(error) => {
            let report = Report::unreadable(&name, Problem::of_file(format!("cannot be read: {error}")));
            Outcome { loaded: None, report, inputs: Inputs::default() }
        }
    };
    outcome.inputs.config = Some((path.to_owned(), hash));
    outcome
}

/// Loads the text of a file that reports call `name`. Relative paths in it
/// start at `base`.
#[must_use]
pub fn load_str(text: &str, name: &str, base: &Path, previous: Option<&Settings>) -> Outcome {
    load_str_with(text, name, base, previous, &Machine)
}

/// Loads the text of a file with secrets from `source`.
#[must_use]
pub fn load_str_with(
    text: &str,
    name: &str,
    base: &Path,
    previous: Option<&Settings>,
    source: &dyn SecretSource,
) -> Outcome {
    let mut secrets = Reader::new(source, base);
    let (loaded, mut problems) = settle(text, previous, &mut secrets);
    problems.sort_by_key(|problem| (problem.line, problem.column));
    let loaded = loaded.filter(|_| !problems.iter().any(Problem::is_error));
    let inputs = Inputs { config: None, secrets: secrets.into_read() };
    Outcome { loaded, report: Report::new(name, text, problems), inputs }
}

fn settle(
    text: &str,
    previous: Option<&Settings>,
    secrets: &mut Reader<'_>,
) -> (Option<Loaded>, Vec<Problem>) {
    let mut tree = match yaml::parse(text) {
        Ok(tree) => tree,
        Err(problem) => return (None, vec![problem]),
    };
    let Decoded { value, dropped, mut problems } = decode::<File>(&mut tree);
    let Some(file) = value else { return (None, problems) };
    let mut findings = Findings::new(&tree, &dropped);
    let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
    let settings = validate(&file, digest, previous, secrets, &mut findings);
    problems.extend(findings.into_problems());
    (Some(Loaded { settings, file }), problems)
}

/// Reads a YAML document of another shape than a configuration (a scenario),
/// with the same care for mistakes.
///
/// # Errors
/// Everything that is wrong with it, with lines.
pub fn read_as<T: DeserializeOwned>(text: &str, name: &str) -> Result<T, Report> {
    let failed = |problems| Report::new(name, text, problems);
    let mut tree = yaml::parse(text).map_err(|problem| failed(vec![problem]))?;
    let Decoded { value, problems, .. } = decode::<T>(&mut tree);
    value.filter(|_| problems.is_empty()).ok_or_else(|| failed(problems))
}

/// The folder that a file is in.
pub(super) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Loads a file only to report on it: what `penstock check` does.
#[must_use]
pub fn check_file(path: &Path) -> Report {
    load_file(path, None).report
}

#[cfg(test)]
mod tests;
