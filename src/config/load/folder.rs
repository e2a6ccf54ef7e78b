//! Folder of a configuration file: where its relative paths start.

use std::path::Path;

/// The folder that a file is in.
pub(in crate::config) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
