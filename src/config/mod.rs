//! Configuration: one YAML file, from text to validated settings.
//!
//! text → `syntax::yaml` (a tree that knows its lines) → `syntax::decode` (the file as written) →
//! `validate` (settings that hold) → `load::merge` (with the replicas that were found) → `watch` (swap
//! on change).
//!
//! The folders of `sections` each hold one or more sections of the file: their keys as
//! written, and their checks. `file` says where each section is, `settings` what they become.

pub mod discover;
pub mod file;
pub mod keys;
pub mod load;
pub mod report;
pub mod schema;
pub mod secret;
pub mod sections;
pub mod settings;
pub mod syntax;
mod validate;
pub mod watch;
