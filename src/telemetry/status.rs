//! Configuration status: which configuration is in force, since when.

use std::time::SystemTime;

/// Most changes of one load that are kept.
pub(super) const MAX_CHANGES: usize = 200;

/// Status of the configuration: the one in force, and the result of the last load.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigStatus {
    /// Number of configurations loaded so far; 0 before the first.
    pub generation: u64,
    /// Hash of the file in force; empty before the first load.
    pub digest: String,
    /// Time at which the configuration came into force.
    pub loaded_at: Option<SystemTime>,
    /// Time at which the last load ended, successful or not.
    pub tried_at: Option<SystemTime>,
    /// Problems of the last load; empty when it succeeded.
    pub problems: Vec<String>,
    /// What the last applied file changed, a line for each key; at most `MAX_CHANGES`.
    pub changed: Vec<String>,
    /// Keys that take effect only at the next start.
    pub restart_needed: Vec<String>,
}
