//! Key store: the folder of key files, in which each key that this API made has a file of its own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use axum::http::StatusCode;

use crate::admin::operate::VerbError;
use crate::config::sections::identity::key_files::{KeyFile, MAX_FILES, parse};
use crate::config::sections::tenants::KeySection;

/// Rights of a key file: its owner's alone.
const MODE: u32 = 0o600;

/// The folder. Every call blocks for as long as the file system does.
#[derive(Debug, Clone)]
pub(super) struct KeyStore(pub(super) PathBuf);

impl KeyStore {
    /// Name of a key's file.
    pub(super) fn name(id: &str) -> String {
        format!("{id}.json")
    }

    /// The file that this API made for a key.
    ///
    /// # Errors
    /// There is none: the key stands in a file that people write.
    pub(super) fn read(&self, id: &str) -> Result<KeyFile, VerbError> {
        let foreign = || {
            let message = format!(
                "the key {id} was not made here: it stands in a file that people write; change it there (GET /admin/v1/keys says where)"
            );
            VerbError(StatusCode::CONFLICT, message)
        };
        let text = fs::read_to_string(self.path(id)).map_err(|_| foreign())?;
        parse(&text).ok().filter(|file| file.keys.len() == 1 && file.keys[0].id == id).ok_or_else(foreign)
    }

    /// Writes a key's file: at any moment the old one or the new one is there, whole.
    ///
    /// # Errors
    /// The folder is full, or cannot be written to.
    pub(super) fn write(&self, file: &KeyFile, salt: &str) -> Result<(), VerbError> {
        let [KeySection { id, .. }] = &file.keys[..] else {
            return Err(VerbError(StatusCode::INTERNAL_SERVER_ERROR, "a file has one key".to_owned()));
        };
        let path = self.path(id);
        let count = fs::read_dir(&self.0).map_err(|error| self.failed(&error))?.take(MAX_FILES + 1).count();
        if !path.exists() && count >= MAX_FILES {
            let message = format!("the folder of key files has {MAX_FILES} files; take old keys away first");
            return Err(VerbError(StatusCode::INSUFFICIENT_STORAGE, message));
        }
        let whole = serde_json::to_vec_pretty(file).map_err(io::Error::from);
        let temporary = self.0.join(format!(".{id}.{salt}.tmp"));
        let written = whole.and_then(|text| replace(&temporary, &path, &text)).and_then(|()| self.sync());
        if written.is_err() {
            // Perhaps it was never made.
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(|error| self.failed(&error))
    }

    /// Takes a key's file away.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub(super) fn remove(&self, id: &str) -> Result<(), VerbError> {
        fs::remove_file(self.path(id)).and_then(|()| self.sync()).map_err(|error| self.failed(&error))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.0.join(Self::name(id))
    }

    /// Makes a change of the folder outlast a loss of power.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    fn failed(&self, error: &io::Error) -> VerbError {
        let folder = self.0.display();
        match error.kind() {
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
                let message = format!(
                    "the folder {folder} is read-only for the gateway (a mounted Secret?): put the key's file into what is mounted there, \
                     or name a folder in `auth.keys_dir` that the gateway may write to"
                );
                VerbError(StatusCode::CONFLICT, message)
            }
            _ => VerbError(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the folder {folder} cannot be written to: {error}"),
            ),
        }
    }
}

fn replace(temporary: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(id: &str) -> KeyFile {
        let key = KeySection { id: id.to_owned(), digest: "blake3:00".to_owned(), ..KeySection::default() };
        KeyFile { tenant: "red".to_owned(), keys: vec![key] }
    }

    #[test]
    fn files_are_whole_private_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = KeyStore(folder.path().to_owned());
        store.write(&file("aaaaaaaa"), "1").unwrap();
        store.write(&file("aaaaaaaa"), "2").unwrap();
        assert_eq!(store.read("aaaaaaaa").unwrap(), file("aaaaaaaa"));
        let path = folder.path().join("aaaaaaaa.json");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing temporary is left");
        store.remove("aaaaaaaa").unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_people_wrote_is_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let store = KeyStore(folder.path().to_owned());
        let mut two = file("aaaaaaaa");
        two.keys.extend(file("bbbbbbbb").keys);
        fs::write(folder.path().join("aaaaaaaa.json"), serde_json::to_string(&two).unwrap()).unwrap();
        for id in ["aaaaaaaa", "bbbbbbbb"] {
            assert_eq!(store.read(id).unwrap_err().0, StatusCode::CONFLICT);
        }
        let gone = KeyStore(folder.path().join("none"));
        assert!(gone.write(&file("aaaaaaaa"), "1").unwrap_err().1.contains("cannot be written to"));
    }
}
