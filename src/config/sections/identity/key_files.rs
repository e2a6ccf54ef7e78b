//! Key files: keys of tenants in a folder beside the configuration file.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::file::ConfigFile;
use crate::config::report::problem::ConfigProblem;
use crate::config::secret::SecretReader;
use crate::config::sections::tenants::KeySection;
use crate::config::settings::Settings;
use crate::config::settings::identity::{Auth, KeyFolder};
use crate::config::syntax::decode::{Decoded, decode};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::yaml;
use crate::config::validate::findings::Findings;

/// Files of a folder that are read.
pub const MAX_FILES: usize = 4096;
/// Bytes of all of them together.
const MAX_BYTES: usize = 16 << 20;
/// Problems that are kept for the log.
const MAX_PROBLEMS: usize = 20;

/// A key file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyFile {
    /// Whose keys they are.
    pub tenant: String,
    /// The keys.
    pub keys: Vec<KeySection>,
}

/// The files of a folder, as far as they can be read.
#[derive(Debug, Default)]
pub(in crate::config) struct KeyFiles {
    /// Each file with its name.
    pub(in crate::config) files: Vec<(Arc<str>, KeyFile)>,
    pub(in crate::config) folder: KeyFolder,
}

impl KeyFiles {
    /// Notes what is wrong with a file.
    pub(in crate::config) fn problem(&mut self, message: String) {
        if self.folder.problems.len() < MAX_PROBLEMS {
            self.folder.problems.push(message);
        }
    }
}

/// The place of a key file in messages.
pub(in crate::config) fn field_of(name: &str) -> FieldPath {
    FieldPath::top("auth").key("keys_dir").key(name)
}

/// Reads the files of the folder. What is wrong with one is a warning.
pub(in crate::config) fn read(
    file: &ConfigFile,
    previous: Option<&Settings>,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<KeyFiles> {
    let path = file.auth.keys_dir.as_deref()?;
    let full = secrets.path(path);
    let names = names(path, secrets, findings)?;
    let before = previous.and_then(|old| match &old.edge.auth {
        Auth::Known(known) => known.key_folder.as_ref().filter(|folder| folder.path == full),
        Auth::Off(_) => None,
    });
    let mut all =
        KeyFiles { folder: KeyFolder { path: full.clone(), ..KeyFolder::default() }, ..KeyFiles::default() };
    let mut left = MAX_BYTES;
    for name in names.into_iter().filter(|name| !full.join(name).is_dir()) {
        let path = Path::new(path).join(&name);
        let read =
            secrets.list(&path.to_string_lossy()).and_then(|text| match left.checked_sub(text.len()) {
                Some(rest) => {
                    left = rest;
                    parse(&text).map(|file| (Arc::from(text), file))
                }
                None => Err(format!(
                    "is left out: the files of the folder have more than {} MiB",
                    MAX_BYTES >> 20
                )),
            });
        let read = read.or_else(|message| {
            all.problem(format!("{name}: {message}"));
            let old = before.and_then(|folder| folder.good.get(&name));
            let old = old.and_then(|text| Some((Arc::clone(text), parse(text).ok()?)));
            let hint = match old {
                Some(_) => "what it said before stays in force",
                None => "its keys open nothing; the other files do",
            };
            findings.warn(&field_of(&name), message, hint);
            old.ok_or(())
        });
        if let Ok((text, file)) = read {
            all.files.push((name.as_str().into(), file));
            all.folder.good.insert(name, text);
        }
    }
    Some(all)
}

fn names(path: &str, secrets: &mut SecretReader<'_>, findings: &mut Findings<'_>) -> Option<Vec<String>> {
    let field = FieldPath::top("auth").key("keys_dir");
    let read = secrets.names(path);
    let hint = "make the folder, or name another one";
    let mut names = read.map_err(|message| findings.error(&field, message, hint)).ok()?;
    if names.len() > MAX_FILES {
        let message = format!("has more than {MAX_FILES} files: the last ones are left out");
        findings.warn(&field, message, "put many keys into one file");
        names.truncate(MAX_FILES);
    }
    Some(names)
}

/// Reads a key file. The error is a sentence for people.
///
/// # Errors
/// It is no YAML, or not of this form.
pub fn parse(text: &str) -> Result<KeyFile, String> {
    let first = |problems: Vec<ConfigProblem>| problems.first().map(ToString::to_string).unwrap_or_default();
    let mut tree = yaml::parse(text).map_err(|problem| problem.to_string())?;
    let Decoded { value, problems, .. } = decode::<KeyFile>(&mut tree);
    value.filter(|_| problems.is_empty()).ok_or_else(|| first(problems))
}
