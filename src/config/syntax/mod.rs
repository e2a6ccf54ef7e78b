//! Syntax of the configuration file: YAML to typed sections, with the place of each value.

pub(super) mod decode;
pub(super) mod field;
pub mod named;
pub(super) mod tree;
pub mod units;
pub(super) mod yaml;
