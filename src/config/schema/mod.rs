//! The file's JSON Schema, for editors and for checks before a roll-out.

pub mod explain;

use schemars::Schema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::config::file::ConfigFile;

/// Sections that take effect only at a start.
pub(super) const RESTART_SECTIONS: [&str; 6] = ["audit", "cluster", "scale", "server", "telemetry", "usage"];
/// What takes effect at once in one of those.
pub(super) const HOT_FIELDS: [[&str; 2]; 4] =
    [["server", "tls"], ["scale", "tls"], ["scale", "client_certs"], ["scale", "stale_after"]];

/// Marks a field that takes effect only at a start.
const RESTART: &str = "x-penstock-restart";
const RESTART_SENTENCE: &str = "A change needs a restart.";

/// The schema, in the draft that editors know best (draft 7).
#[must_use]
pub fn schema() -> Value {
    let schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<ConfigFile>();
    schema.to_value()
}

/// The schema as it is committed: `config/schema.json`.
#[must_use]
pub fn schema_text() -> String {
    format!("{:#}\n", schema())
}

/// Marks every field of a section that takes effect only at a start.
pub(super) fn restart(schema: &mut Schema) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    let is_hot = |name: &str| HOT_FIELDS.iter().any(|[_, hot]| *hot == name);
    let fields = properties.into_iter().flatten().filter(|(name, _)| !is_hot(name));
    for field in fields.filter_map(|(_, field)| field.as_object_mut()) {
        let text = field.get("description").and_then(Value::as_str).unwrap_or_default();
        let text = format!("{text} {RESTART_SENTENCE}");
        field.insert("description".to_owned(), text.trim().into());
        field.insert(RESTART.to_owned(), true.into());
    }
}

pub(super) fn top(schema: &mut Schema) {
    require(schema, &["version", "pools"]);
    schema.insert("patternProperties".to_owned(), json!({ "^x-": {} }));
}

pub(super) fn key(schema: &mut Schema) {
    require(schema, &["id", "digest"]);
}

pub(super) fn tls(schema: &mut Schema) {
    require(schema, &["cert", "key"]);
}

pub(super) fn oidc(schema: &mut Schema) {
    require(schema, &["issuer", "audience"]);
}

pub(super) fn admin_oidc(schema: &mut Schema) {
    require(schema, &["issuer", "roles"]);
    schema.insert("anyOf".to_owned(), json!([{"required": ["client_id"]}, {"required": ["audience"]}]));
}

pub(super) fn pool(schema: &mut Schema) {
    require(schema, &["engine", "models"]);
    let enough = ["replicas", "discover", "cold_start"].map(|key| json!({"required": [key]}));
    schema.insert("anyOf".to_owned(), json!(enough));
}

pub(super) fn client_tls(schema: &mut Schema) {
    require(schema, &["ca"]);
}

pub(super) fn cluster(schema: &mut Schema) {
    require(schema, &["valkey"]);
}

pub(super) fn valkey(schema: &mut Schema) {
    require(schema, &["url"]);
}

pub(super) fn guardrails(schema: &mut Schema) {
    require(schema, &["url"]);
}

pub(super) fn replica(schema: &mut Schema) {
    require(schema, &["url"]);
}

pub(super) fn shadow(schema: &mut Schema) {
    require(schema, &["to"]);
}

pub(super) fn postgres(schema: &mut Schema) {
    require(schema, &["url"]);
}

pub(super) fn dns(schema: &mut Schema) {
    require(schema, &["name"]);
}

/// Exactly one of the keys must be there.
pub(super) fn one_key(schema: &mut Schema) {
    schema.insert("minProperties".to_owned(), 1.into());
    schema.insert("maxProperties".to_owned(), 1.into());
}

/// Says which keys must be there. The types have defaults for them, so that
/// validation can report every missing one at once.
fn require(schema: &mut Schema, keys: &[&str]) {
    schema.insert("required".to_owned(), json!(keys));
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (_, field) in properties.into_iter().flatten().filter(|(name, _)| keys.contains(&name.as_str())) {
        if let Some(field) = field.as_object_mut() {
            field.remove("default");
        }
    }
}

#[cfg(test)]
mod tests;
