//! Section `audit`: the file of audit lines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::secret::SecretReader;
use crate::config::settings::identity::AuditFile;
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::ByteSize;
use crate::config::validate::files::writable;
use crate::config::validate::findings::Findings;

/// Room for some lines.
const MIN_AUDIT_BYTES: u64 = 4 << 10;
const MAX_AUDIT_FILES: u32 = 1000;

/// The audit log: what operators did and how the configuration changed, one
/// JSON object a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::restart)]
pub struct AuditSection {
    /// Path of the file to which the gateway appends audit lines. Absent = only the log has the
    /// audit lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Size at which the audit file becomes `<file>.1` and a new file is begun, at least 4 KiB.
    pub max_size: ByteSize,
    /// Number of old audit files that are kept, at most 1,000. The oldest one makes room for the
    /// next.
    pub keep: u32,
}

impl Default for AuditSection {
    fn default() -> Self {
        Self { file: None, max_size: ByteSize(64 << 20), keep: 5 }
    }
}

/// A file that takes no lines is found when the first one comes, and counted:
/// what runs does not stop for it.
pub(in crate::config) fn validate(
    audit: &AuditSection,
    secrets: &SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<AuditFile> {
    let section = FieldPath::top("audit");
    if audit.max_size.0 < MIN_AUDIT_BYTES {
        let message = format!("{} is too small", audit.max_size);
        findings.error(&section.key("max_size"), message, "write 4KiB or more");
    }
    if audit.keep > MAX_AUDIT_FILES {
        findings.error(&section.key("keep"), format!("{} is too many", audit.keep), "write 0 to 1000");
    }
    let path = writable(audit.file.as_deref()?, secrets, &section.key("file"), findings)?;
    Some(AuditFile { path, max_bytes: audit.max_size.0, keep: audit.keep })
}
