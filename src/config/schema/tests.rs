//! The committed schema and examples agree with the types.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::config::file::File;
use crate::config::load::load_str_with;
use crate::config::named::Named;
use crate::config::schema::{RESTART, RESTART_SECTIONS, RESTART_SENTENCE, schema};
use crate::config::secret::SecretSource;
use crate::config::tree::{Node, Value as Yaml};
use crate::config::yaml;
use crate::tokens::counter::{Broken, TokenCounter};

fn config_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(config_folder().join(name)).unwrap()
}

struct EverySecret;

impl SecretSource for EverySecret {
    fn env(&self, _name: &str) -> Option<String> {
        Some("secret".to_owned())
    }

    fn tokenizer(&self, _: &Path, _: Option<&Arc<TokenCounter>>) -> Result<Arc<TokenCounter>, Broken> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
        TokenCounter::open(&fixtures.join("byte-level")).map(Arc::new)
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let is_list = path.extension().is_some_and(|extension| extension == "yaml");
        Ok(if is_list { b"[]".to_vec() } else { b"secret".to_vec() })
    }
}

/// The text with every `#key:` and `#- item` line in force.
fn uncommented(text: &str) -> String {
    let line = |line: &str| {
        let Some((indent, rest)) = line.split_once('#') else { return line.to_owned() };
        let is_setting =
            indent.trim().is_empty() && rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '-');
        if is_setting { format!("{indent}{rest}") } else { line.to_owned() }
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn the_committed_schema_is_fresh() {
    let committed: Value = serde_json::from_str(&text("schema.json")).unwrap();
    assert!(
        committed == schema(),
        "config/schema.json is stale; refresh it with: cargo run -- schema > config/schema.json"
    );
}

#[test]
fn every_example_loads_without_a_remark() {
    let mut examples = vec![config_folder().join("penstock.yaml")];
    for entry in std::fs::read_dir(config_folder().join("examples")).unwrap() {
        examples.push(entry.unwrap().path());
    }
    assert!(examples.len() >= 4);
    for path in examples {
        let written = std::fs::read_to_string(&path).unwrap();
        let schema_line = if path.ends_with("penstock.yaml") { "./schema.json" } else { "../schema.json" };
        assert!(written.starts_with(&format!("# yaml-language-server: $schema={schema_line}\n")), "{path:?}");
        let report = crate::config::load::check_file(&path);
        assert_eq!(report.problems, [], "{report}");
    }
}

#[test]
fn the_annotated_file_stays_valid_with_everything_in_force() {
    let text = uncommented(&text("penstock.yaml"));
    let outcome = load_str_with(&text, "penstock.yaml", Path::new("/"), None, &EverySecret);
    assert!(outcome.loaded.is_some(), "{}", outcome.report);
}

#[test]
fn the_annotated_file_names_every_key() {
    let tree = yaml::parse(&uncommented(&text("penstock.yaml"))).unwrap();
    let root = schema();
    let mut missing = BTreeSet::new();
    walk(&root, &root, &[&tree], "", &mut missing);
    assert_eq!(missing, BTreeSet::new());
}

/// Goes through the schema beside all nodes that it describes, and notes the
/// properties that none of them has.
fn walk(root: &Value, schema: &Value, nodes: &[&Node], path: &str, missing: &mut BTreeSet<String>) {
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
    if let Some(target) = reference.and_then(|pointer| root.pointer(pointer)) {
        walk(root, target, nodes, path, missing);
    }
    for list in ["anyOf", "allOf"] {
        for part in schema.get(list).and_then(Value::as_array).into_iter().flatten() {
            walk(root, part, nodes, path, missing);
        }
    }
    let children = |key: Option<&str>| -> Vec<&Node> {
        let entries = nodes.iter().flat_map(|node| match &node.value {
            Yaml::Map(entries) => entries.as_slice(),
            _ => &[],
        });
        entries.filter(|entry| key.is_none_or(|key| entry.key == key)).map(|entry| &entry.node).collect()
    };
    for (key, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{path}.{key}");
        let found = children(Some(key));
        if found.is_empty() {
            missing.insert(path.clone());
        }
        walk(root, property, &found, &path, missing);
    }
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        walk(root, values, &children(None), &format!("{path}.*"), missing);
    }
    if let Some(items) = schema.get("items") {
        let elements = nodes.iter().flat_map(|node| match &node.value {
            Yaml::List(nodes) => nodes.as_slice(),
            _ => &[],
        });
        walk(root, items, &elements.collect::<Vec<_>>(), &format!("{path}[]"), missing);
    }
}

#[test]
fn the_walk_notices_what_is_missing() {
    let tree = yaml::parse("server: {listen: x}\npools: {a: {replicas: [{url: x}]}}\n").unwrap();
    let root = schema();
    let mut missing = BTreeSet::new();
    walk(&root, &root, &[&tree], "", &mut missing);
    for path in [".server.admin", ".telemetry", ".pools.*.engine", ".pools.*.replicas[].metrics_url"] {
        assert!(missing.contains(path), "{path} {missing:#?}");
    }
    assert!(!missing.contains(".server.listen") && !missing.contains(".pools.*.replicas[].url"));
}

#[test]
fn fields_that_need_a_restart_are_marked_and_no_others() {
    let root = schema();
    let marked = |section: &Value| -> Vec<(String, bool, bool)> {
        let target =
            |value: &Value| value["allOf"][0]["$ref"].as_str().and_then(|r| root.pointer(&r[1..])).cloned();
        let section = target(section).unwrap_or_else(|| section.clone());
        let fields = section["properties"].as_object().into_iter().flatten();
        let said =
            |field: &Value| field["description"].as_str().is_some_and(|text| text.contains(RESTART_SENTENCE));
        fields.map(|(name, field)| (name.clone(), field[RESTART] == true, said(field))).collect()
    };
    for (name, section) in root["properties"].as_object().unwrap() {
        let expected = RESTART_SECTIONS.contains(&name.as_str());
        for field in marked(section) {
            assert_eq!((field.1, field.2), (expected, expected), "{name}.{}", field.0);
        }
    }
    assert_eq!(marked(&root["properties"]["server"]).len(), 8);
    assert_eq!(marked(&root["definitions"]["Log"]).len(), 2);
}

#[test]
fn every_key_is_described() {
    fn check(path: &str, schema: &Value) {
        for (key, field) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            assert!(field["description"].is_string(), "{path}.{key} has no description");
        }
    }
    let root = schema();
    check("", &root);
    for (name, definition) in root["definitions"].as_object().unwrap() {
        check(name, definition);
        if definition.get("properties").is_some() {
            assert_eq!(definition["additionalProperties"], false, "{name} takes unknown keys");
        }
    }
}

#[test]
fn the_annotated_file_shows_the_defaults() {
    let outcome = load_str_with(&text("penstock.yaml"), "p", Path::new("/"), None, &EverySecret);
    let file = outcome.loaded.unwrap().file;
    let examples =
        File { version: None, tenants: Named::default(), models: Named::default(), ..file.clone() };
    assert_eq!(examples, File { pools: file.pools, ..File::default() });
}
