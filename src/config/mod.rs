//! One YAML file, from text to validated rules.

pub mod secret;
pub mod settings;
