//! One YAML file, from text to validated rules.

mod decode;
mod field;
pub mod file;
pub mod named;
pub mod problem;
pub mod schema;
pub mod secret;
pub mod settings;
mod tree;
pub mod units;
mod yaml;
