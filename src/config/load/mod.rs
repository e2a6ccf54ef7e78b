//! Loading: one configuration file becomes settings and a report of every problem.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::config::file::ConfigFile;
pub(super) use crate::config::load::folder::folder;
use crate::config::report::ConfigReport;
use crate::config::report::problem::ConfigProblem;
use crate::config::secret::{
    HashedPath, MachineSecrets, OfflineSecrets, SecretReader, SecretSource, hash_of, read_bounded,
};
use crate::config::settings::Settings;
use crate::config::syntax::decode::{Decoded, decode};
use crate::config::syntax::yaml;
use crate::config::validate::findings::Findings;
use crate::config::validate::validate;

/// Bytes of the largest file: room for some ten thousand tenants.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// How a key at the top begins that is no section: a place for YAML anchors.
const ANCHORS: &str = "x-";

/// A configuration that holds.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What the program uses.
    pub settings: Settings,
    /// What it was made from, defaults filled in.
    pub file: ConfigFile,
}

/// What came of a file.
#[derive(Debug)]
pub struct LoadOutcome {
    /// The configuration, unless an error was found.
    pub loaded: Option<Loaded>,
    /// What was found.
    pub report: ConfigReport,
    /// The files that were read.
    pub(super) inputs: InputFiles,
}

impl LoadOutcome {
    /// The configuration.
    ///
    /// # Errors
    /// The report, when the file cannot be used.
    pub fn into_result(self) -> Result<Loaded, ConfigReport> {
        self.loaded.ok_or(self.report)
    }
}

/// The files that a configuration was read from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct InputFiles {
    config: Option<HashedPath>,
    secrets: Vec<HashedPath>,
    folders: Vec<HashedPath>,
}

impl InputFiles {
    /// The paths of the files, the configuration file first.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.config.iter().chain(&self.secrets).map(|file| file.path.as_path())
    }

    /// The folders of which every file counts.
    pub(super) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(|folder| folder.path.as_path())
    }

    /// Whether some file is no longer what it was, read as it was then.
    pub(super) fn changed(&self, source: &dyn SecretSource) -> bool {
        let differs = |file: &HashedPath, now: io::Result<Vec<u8>>| {
            now.ok().map(|bytes| blake3::hash(&bytes)) != file.hash
        };
        let renamed =
            |folder: &HashedPath| source.names(&folder.path).ok().map(|names| hash_of(&names)) != folder.hash;
        self.config.iter().any(|file| differs(file, read_bounded(&file.path, MAX_FILE_BYTES)))
            || self.secrets.iter().any(|file| differs(file, source.file(&file.path)))
            || self.folders.iter().any(renamed)
    }
}

/// Loads a file. Ids stay those of `previous`.
pub fn load_file(path: &Path, previous: Option<&Settings>) -> LoadOutcome {
    load_file_with(path, previous, &MachineSecrets)
}

/// Loads a file with secrets from `source`.
pub fn load_file_with(path: &Path, previous: Option<&Settings>, source: &dyn SecretSource) -> LoadOutcome {
    let name = path.display().to_string();
    let read = read_bounded(path, MAX_FILE_BYTES);
    let hash = read.as_ref().ok().map(|bytes| blake3::hash(bytes));
    let utf8 = |bytes| String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8 text"));
    let mut outcome = match read.and_then(utf8) {
        Ok(text) => load_str_with(&text, &name, folder(path), previous, source),
        Err(error) => {
            let report =
                ConfigReport::unreadable(&name, ConfigProblem::of_file(format!("cannot be read: {error}")));
            LoadOutcome { loaded: None, report, inputs: InputFiles::default() }
        }
    };
    outcome.inputs.config = Some(HashedPath { path: path.to_owned(), hash });
    outcome
}

/// Loads the text of a file that reports call `name`. Relative paths in it
/// start at `base`.
pub fn load_str(text: &str, name: &str, base: &Path, previous: Option<&Settings>) -> LoadOutcome {
    load_str_with(text, name, base, previous, &MachineSecrets)
}

/// Loads the text of a file with secrets from `source`.
pub fn load_str_with(
    text: &str,
    name: &str,
    base: &Path,
    previous: Option<&Settings>,
    source: &dyn SecretSource,
) -> LoadOutcome {
    let mut secrets = SecretReader::new(source, base);
    let (loaded, mut problems) = settle(text, previous, &mut secrets);
    if problems.iter().any(ConfigProblem::is_error)
        && let Some(problem) = other_gateways::recognised(text, name)
    {
        problems = vec![problem];
    }
    problems.sort_by_key(|problem| (problem.line, problem.column));
    let loaded = loaded.filter(|_| !problems.iter().any(ConfigProblem::is_error));
    let [read, folders] = secrets.into_read();
    let inputs = InputFiles { config: None, secrets: read, folders };
    LoadOutcome { loaded, report: ConfigReport::new(name, text, problems), inputs }
}

fn settle(
    text: &str,
    previous: Option<&Settings>,
    secrets: &mut SecretReader<'_>,
) -> (Option<Loaded>, Vec<ConfigProblem>) {
    let mut tree = match yaml::parse(text) {
        Ok(tree) => tree,
        Err(problem) => return (None, vec![problem]),
    };
    tree.drop_entries(|key| key.starts_with(ANCHORS));
    let Decoded { value, dropped, mut problems } = decode::<ConfigFile>(&mut tree);
    let loaded = value.map(|file| {
        let mut findings = Findings::new(&tree, &dropped);
        let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
        let settings = validate(&file, digest, previous, secrets, &mut findings);
        problems.extend(findings.into_problems());
        Loaded { settings, file }
    });
    variables::explain(&tree, &mut problems);
    (loaded, problems)
}

/// Reads a YAML document of another shape than a configuration (a scenario),
/// with the same care for mistakes.
///
/// # Errors
/// Everything that is wrong with it, with lines.
pub fn read_as<T: DeserializeOwned>(text: &str, name: &str) -> Result<T, ConfigReport> {
    let failed = |problems| ConfigReport::new(name, text, problems);
    let mut tree = yaml::parse(text).map_err(|problem| failed(vec![problem]))?;
    let Decoded { value, problems, .. } = decode::<T>(&mut tree);
    value.filter(|_| problems.is_empty()).ok_or_else(|| failed(problems))
}

/// Loads a file only to report on it: what `penstock check` does.
pub fn check_file(path: &Path) -> ConfigReport {
    load_file(path, None).report
}

/// Loads a text that is meant for another machine: secrets and files that are not here are not
/// checked.
pub fn load_offline(text: &str, name: &str) -> LoadOutcome {
    load_str_with(text, name, Path::new("."), None, &OfflineSecrets)
}

#[cfg(test)]
pub(crate) mod fixtures;
pub(super) mod folder;
pub mod merge;
mod other_gateways;
#[cfg(test)]
mod tests;
mod variables;
