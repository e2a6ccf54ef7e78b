//! Secrets, and other files, that are named in the file and read from elsewhere.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::tokens::counter::{ModelFileError, TokenCounter};

/// Bytes of the largest file that the file names: room for ten thousand
/// endpoints.
const MAX_NAMED_BYTES: u64 = 4 << 20;
/// Names of a folder that are looked at.
const MAX_NAMES: usize = 65_536;
/// Bytes of the largest secret.
const MAX_SECRET_BYTES: usize = 64 << 10;

/// A secret's value. `Debug` and `Serialize` never show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a value.
    pub fn new(value: &str) -> Self {
        Self(value.into())
    }

    /// The value itself, to be sent and never to be logged.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str("set")
    }
}

/// Where secrets come from: the machine, or a test's own world.
pub trait SecretSource: Send + Sync {
    /// The value of an environment variable; `None` when it is not set.
    fn env(&self, name: &str) -> Option<String>;

    /// The bytes of a file.
    ///
    /// # Errors
    /// As the file system says.
    fn file(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The names in a folder that do not begin with a dot, in order, and at most
    /// `MAX_NAMES` of them.
    ///
    /// # Errors
    /// As the file system says.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)?.take(MAX_NAMES) {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether what is not here is no fault.
    fn is_offline(&self) -> bool {
        false
    }

    /// The tokenizer in a folder; one that was read before, if its files are as
    /// they were.
    ///
    /// # Errors
    /// The file that is missing or broken.
    fn tokenizer(
        &self,
        folder: &Path,
        before: Option<&Arc<TokenCounter>>,
    ) -> Result<Arc<TokenCounter>, ModelFileError> {
        TokenCounter::reopen(folder, before)
    }
}

/// The machine's own environment and files.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineSecrets;

impl SecretSource for MachineSecrets {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        read_bounded(path, MAX_NAMED_BYTES)
    }
}

/// The machine's environment and files, for a file that is meant for another machine:
/// what is not here is not checked.
#[derive(Debug, Clone, Copy, Default)]
pub struct OfflineSecrets;

impl SecretSource for OfflineSecrets {
    fn env(&self, name: &str) -> Option<String> {
        MachineSecrets.env(name)
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        MachineSecrets.file(path)
    }

    fn is_offline(&self) -> bool {
        true
    }
}

/// How a message begins about what is not here and may be absent. Findings take it
/// for a remark and not for an error.
pub(super) const NOT_HERE: &str = "not here, so not checked: ";

/// The bytes of a regular file (no pipe, which could block for ever) that is
/// not larger than `limit`.
pub(super) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("larger than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Reads secrets and remembers which files it read and what was in them.
pub(super) struct SecretReader<'a> {
    source: &'a dyn SecretSource,
    base: &'a Path,
    read: Vec<HashedPath>,
    folders: Vec<HashedPath>,
}

/// A file or folder that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HashedPath {
    pub(super) path: PathBuf,
    /// Hash of the file's content, or of the names in the folder; `None` = it could not be read.
    pub(super) hash: Option<blake3::Hash>,
}

/// The hash of the names in a folder.
pub(super) fn hash_of(names: &[String]) -> blake3::Hash {
    // No name has a slash in it.
    blake3::hash(names.join("/").as_bytes())
}

impl<'a> SecretReader<'a> {
    /// A reader that takes relative paths from `base`.
    pub(super) fn new(source: &'a dyn SecretSource, base: &'a Path) -> Self {
        Self { source, base, read: Vec::new(), folders: Vec::new() }
    }

    /// The files and the folders read so far.
    pub(super) fn into_read(self) -> [Vec<HashedPath>; 2] {
        [self.read, self.folders]
    }

    /// The names in the folder `path`. The error is a sentence for people.
    pub(super) fn names(&mut self, path: &str) -> Result<Vec<String>, String> {
        let full = self.path(path);
        let names = self.source.names(&full);
        let hash = names.as_ref().ok().map(|names| hash_of(names));
        self.folders.push(HashedPath { path: full, hash });
        names.map_err(|error| self.absent(format!("the folder {path:?} cannot be read: {error}")))
    }

    /// The environment variable `name`. The error is a sentence for people
    /// and does not show the value.
    pub(super) fn env(&self, name: &str) -> Result<Secret, String> {
        let value = self.source.env(name);
        let value =
            value.ok_or_else(|| self.absent(format!("the environment variable {name:?} is not set")))?;
        checked(&value).map_err(|why| format!("the environment variable {name:?} {why}"))
    }

    /// The value of an environment variable that need not be set; `None` for a blank one.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        self.source.env(name).filter(|value| !value.trim().is_empty())
    }

    /// The text of a list of endpoints in the file `path`. The error is a
    /// sentence for people.
    pub(super) fn list(&mut self, path: &str) -> Result<String, String> {
        String::from_utf8(self.bytes(path)?).map_err(|_| format!("the file {path:?} is not text"))
    }

    /// The bytes of a file of certificates or keys. The error is a sentence
    /// for people and does not show the content.
    pub(super) fn bytes(&mut self, path: &str) -> Result<Vec<u8>, String> {
        let read = self.read(path);
        read.map_err(|error| self.absent(format!("the file {path:?} cannot be read: {error}")))
    }

    /// A message about what is not here: an error, unless that is no fault.
    pub(super) fn absent(&self, message: String) -> String {
        if self.source.is_offline() { format!("{NOT_HERE}{message}") } else { message }
    }

    /// Where `path` leads to.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }

    /// The tokenizer in a folder, perhaps one of those that were read before.
    pub(super) fn tokenizer(
        &self,
        folder: &Path,
        known: &[Arc<TokenCounter>],
    ) -> Result<Arc<TokenCounter>, ModelFileError> {
        self.source.tokenizer(folder, known.iter().rfind(|counter| counter.folder() == folder))
    }

    fn read(&mut self, path: &str) -> io::Result<Vec<u8>> {
        let full = self.path(path);
        let bytes = self.source.file(&full);
        let hash = bytes.as_ref().ok().map(|bytes| blake3::hash(bytes));
        self.read.push(HashedPath { path: full, hash });
        bytes
    }

    /// The file `path`. The error is a sentence for people and does not show
    /// the content.
    pub(super) fn file(&mut self, path: &str) -> Result<Secret, String> {
        let text = self.list(path)?;
        checked(&text).map_err(|why| format!("the file {path:?} {why}"))
    }
}

/// The value without the white space around it, if it can stand in a header.
fn checked(value: &str) -> Result<Secret, &'static str> {
    let value = value.trim();
    if value.is_empty() {
        return Err("is empty");
    }
    if value.len() > MAX_SECRET_BYTES {
        return Err("is larger than 64 KiB");
    }
    if !value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return Err("holds characters that cannot stand in a header");
    }
    Ok(Secret::new(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World;

    impl SecretSource for World {
        fn env(&self, name: &str) -> Option<String> {
            match name {
                "KEY" => Some("  sk-1\n".into()),
                "TWO_LINES" => Some("a\nb".into()),
                "BLANK" => Some(" \n".into()),
                _ => None,
            }
        }

        fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
            match path.to_str() {
                Some("/etc/penstock/key") => Ok(b"sk-2\r\n".to_vec()),
                Some("/etc/penstock/binary") => Ok(vec![0xff]),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    #[test]
    fn values_are_trimmed_and_faults_named_without_the_value() {
        let mut reader = SecretReader::new(&World, Path::new("/etc/penstock"));
        assert_eq!(reader.env("KEY").unwrap().expose(), "sk-1");
        assert_eq!(reader.file("key").unwrap().expose(), "sk-2");
        assert_eq!(reader.env("NONE").unwrap_err(), "the environment variable \"NONE\" is not set");
        assert_eq!(reader.env("BLANK").unwrap_err(), "the environment variable \"BLANK\" is empty");
        assert!(reader.env("TWO_LINES").unwrap_err().ends_with("cannot stand in a header"));
        assert!(reader.file("binary").unwrap_err().ends_with("is not text"));
        assert!(reader.file("/none").unwrap_err().starts_with("the file \"/none\" cannot be read"));
        let [read, _] = reader.into_read();
        let hashed = |path: &str, hash| HashedPath { path: path.into(), hash };
        assert_eq!(read[0], hashed("/etc/penstock/key", Some(blake3::hash(b"sk-2\r\n"))));
        assert_eq!(read[2], hashed("/none", None));
    }

    #[test]
    fn debug_hides_the_value() {
        assert_eq!(format!("{:?}", Secret::new("sk-3")), "Secret(..)");
    }

    #[test]
    fn large_files_and_folders_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, vec![b'x'; 9]).unwrap();
        assert_eq!(read_bounded(&path, 9).unwrap().len(), 9);
        assert!(read_bounded(&path, 8).unwrap_err().to_string().contains("larger than 8"));
        assert!(read_bounded(dir.path(), 8).is_err());
    }
}
