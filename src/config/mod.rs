//! Configuration: one YAML file, from text to validated settings.
//!
//! text → `yaml` (a tree that knows its lines) → `decode` (the file as
//! written) → `validate` (settings that hold) → `merge` (with the replicas
//! that were found) → `watch` (swap on change).

mod decode;
pub mod diff;
pub mod discover;
mod field;
pub mod file;
pub mod keys;
pub mod load;
pub mod measured;
pub mod merge;
pub mod named;
pub mod problem;
pub mod report;
pub mod schema;
pub mod secret;
pub mod settings;
mod tree;
pub mod units;
mod validate;
pub mod watch;
mod yaml;
