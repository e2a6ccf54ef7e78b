//! Configuration: one YAML file, from text to validated settings.
//!
//! text → `yaml` (a tree that knows its lines) → `decode` (the file as
//! written) → `validate` (settings that hold) → `merge` (with the replicas
//! that were found) → `watch` (swap on change).

pub mod discover;
pub mod file;
pub mod keys;
pub mod load;
pub mod report;
pub mod schema;
pub mod secret;
pub mod settings;
pub mod syntax;
mod validate;
pub mod watch;
