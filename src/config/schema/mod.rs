//! The file's JSON Schema, for editors and for checks before a roll-out.

pub mod explain;
pub(in crate::config) mod transforms;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::config::file::ConfigFile;

/// The schema, in the draft that editors know best (draft 7).
pub fn schema() -> Value {
    let schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<ConfigFile>();
    schema.to_value()
}

/// The schema as it is committed: `config/schema.json`.
pub fn schema_text() -> String {
    format!("{:#}\n", schema())
}

#[cfg(test)]
mod tests;
