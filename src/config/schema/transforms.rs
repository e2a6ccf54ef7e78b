//! Schema transforms: what the sections' types cannot say by themselves, such as which keys must be
//! there.

use schemars::Schema;
use serde_json::{Value, json};

/// Sections that take effect only at a start.
pub(in crate::config) const RESTART_SECTIONS: [&str; 6] =
    ["audit", "cluster", "scale", "server", "telemetry", "usage"];
/// What takes effect at once in one of those.
pub(in crate::config) const HOT_FIELDS: [[&str; 2]; 4] =
    [["server", "tls"], ["scale", "tls"], ["scale", "client_certs"], ["scale", "stale_after"]];

/// Marks a field that takes effect only at a start.
pub(in crate::config) const RESTART: &str = "x-penstock-restart";
pub(in crate::config) const RESTART_SENTENCE: &str = "A change needs a restart.";

/// Marks every field of a section that takes effect only at a start.
pub(in crate::config) fn restart(schema: &mut Schema) {
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

pub(in crate::config) fn top(schema: &mut Schema) {
    require(schema, &["version", "pools"]);
    schema.insert("patternProperties".to_owned(), json!({ "^x-": {} }));
}

pub(in crate::config) fn key(schema: &mut Schema) {
    require(schema, &["id", "digest"]);
}

pub(in crate::config) fn tls(schema: &mut Schema) {
    require(schema, &["cert", "key"]);
}

pub(in crate::config) fn oidc(schema: &mut Schema) {
    require(schema, &["issuer", "audience"]);
}

pub(in crate::config) fn admin_oidc(schema: &mut Schema) {
    require(schema, &["issuer", "roles"]);
    schema.insert("anyOf".to_owned(), json!([{"required": ["client_id"]}, {"required": ["audience"]}]));
}

pub(in crate::config) fn pool(schema: &mut Schema) {
    require(schema, &["engine", "models"]);
    let enough = ["replicas", "discover", "cold_start"].map(|key| json!({"required": [key]}));
    schema.insert("anyOf".to_owned(), json!(enough));
}

pub(in crate::config) fn client_tls(schema: &mut Schema) {
    require(schema, &["ca"]);
}

pub(in crate::config) fn cluster(schema: &mut Schema) {
    require(schema, &["valkey"]);
}

/// The one way to the store that must be there.
pub(in crate::config) fn valkey(schema: &mut Schema) {
    let ways = ["url", "nodes", "sentinel"].map(|key| json!({ "required": [key] }));
    schema.insert("oneOf".to_owned(), json!(ways));
}

pub(in crate::config) fn sentinel(schema: &mut Schema) {
    require(schema, &["urls", "primary"]);
}

/// For sections of something that is reached at a URL.
pub(in crate::config) fn reached(schema: &mut Schema) {
    require(schema, &["url"]);
}

pub(in crate::config) fn shadow(schema: &mut Schema) {
    require(schema, &["to"]);
}

pub(in crate::config) fn dns(schema: &mut Schema) {
    require(schema, &["name"]);
}

/// Exactly one of the keys must be there.
pub(in crate::config) fn one_key(schema: &mut Schema) {
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
