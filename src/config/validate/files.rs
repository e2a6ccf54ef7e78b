//! Checks of files that the gateway writes to.

use std::path::PathBuf;

use crate::config::load::folder::folder;
use crate::config::secret::SecretReader;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;

/// The whole path of a file to write to; an error when it cannot be one.
pub(in crate::config) fn writable(
    path: &str,
    secrets: &SecretReader<'_>,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Option<PathBuf> {
    let full = secrets.path(path);
    if path.is_empty() || full.is_dir() {
        findings.error(field, format!("{path:?} is no file"), "name a file to write to");
    } else if !folder(&full).is_dir() {
        let message = format!("the folder of {path:?} is not there");
        findings.error(field, secrets.absent(message), "make it, or name a file elsewhere");
    }
    Some(full)
}
