//! The committed schema and examples agree with the types.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::config::file::ConfigFile;
use crate::config::load::load_str_with;
use crate::config::schema::schema;
use crate::config::schema::transforms::{HOT_FIELDS, RESTART, RESTART_SECTIONS, RESTART_SENTENCE};
use crate::config::secret::SecretSource;
use crate::config::syntax::named::NamedEntries;
use crate::config::syntax::tree::{TreeNode, TreeValue as Yaml};
use crate::config::syntax::yaml;
use crate::tokens::counter::{ModelFileError, TokenCounter};

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

    fn tokenizer(
        &self,
        _: &Path,
        _: Option<&Arc<TokenCounter>>,
    ) -> Result<Arc<TokenCounter>, ModelFileError> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
        TokenCounter::open(&fixtures.join("byte-level")).map(Arc::new)
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        static PEM: OnceLock<[String; 2]> = OnceLock::new();
        let [cert, key] = PEM.get_or_init(|| {
            let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
            [made.cert.pem(), made.signing_key.serialize_pem()]
        });
        let text = match path.extension().and_then(OsStr::to_str) {
            Some("yaml") => "[]",
            Some("crt") => cert,
            Some("key") => key,
            _ => "secret",
        };
        Ok(text.into())
    }

    fn names(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
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
fn the_two_gateways_of_the_example_differ_only_where_they_must() {
    let [first, second] = [1, 2].map(|number| text(&format!("examples/two-gateways-{number}.yaml")));
    assert_eq!(first.lines().count(), second.lines().count());
    let lines =
        first.lines().zip(second.lines()).filter(|(one, other)| one != other && !one.starts_with('#'));
    let keys: Vec<&str> = lines.map(|(line, _)| line.trim().split(':').next().unwrap()).collect();
    assert_eq!(keys, ["listen", "admin", "usage", "listen"]);
}

#[test]
fn the_annotated_file_stays_valid_with_everything_in_force() {
    let text = uncommented(&text("penstock.yaml"));
    // Only one way to the store may be there.
    let ways = ["    url: rediss", "    nodes:", "    sentinel:"];
    for way in ways {
        let others = ways.iter().filter(|other| **other != way);
        let text = others.fold(text.clone(), |text, other| without(&text, other));
        let outcome = load_str_with(&text, "penstock.yaml", Path::new("/"), None, &EverySecret);
        assert!(outcome.loaded.is_some(), "{way}: {}", outcome.report);
    }
}

/// The text without the key whose line begins like this, and without what belongs to it.
fn without(text: &str, beginning: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut inside = false;
    let keeps = |line: &&str| {
        inside = line.starts_with(beginning) || inside && indent(line) > indent(beginning);
        !inside
    };
    text.lines().filter(keeps).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_annotated_file_names_every_key() {
    let tree = yaml::parse(&uncommented(&text("penstock.yaml"))).unwrap();
    let root = schema();
    let mut found = Found::default();
    found.walk(&root, &root, &[&tree], "");
    let missing: BTreeSet<_> = found.paths.iter().filter(|(key, _)| !found.named.contains(*key)).collect();
    assert_eq!(missing, BTreeSet::new());
}

/// What the schema describes, and what of it a file has. A type that several
/// sections share is the same everywhere, so each of its keys counts once.
#[derive(Debug, Default)]
struct Found {
    /// By the schema's own place of a key, the first path that leads there.
    paths: BTreeMap<String, String>,
    named: BTreeSet<String>,
}

impl Found {
    /// Goes through the schema beside all nodes that it describes.
    fn walk(&mut self, root: &Value, schema: &Value, nodes: &[&TreeNode], path: &str) {
        self.enter(root, schema, nodes, (path, path));
    }

    fn enter(&mut self, root: &Value, schema: &Value, nodes: &[&TreeNode], (path, place): (&str, &str)) {
        let reference = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
        if let Some((pointer, target)) = reference.and_then(|at| Some((at, root.pointer(at)?))) {
            self.enter(root, target, nodes, (path, pointer));
        }
        for list in ["anyOf", "allOf"] {
            for part in schema.get(list).and_then(Value::as_array).into_iter().flatten() {
                self.enter(root, part, nodes, (path, place));
            }
        }
        for (key, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let (path, place) = (format!("{path}.{key}"), format!("{place}.{key}"));
            let found = children(nodes, Some(key));
            if !found.is_empty() {
                self.named.insert(place.clone());
            }
            self.paths.entry(place.clone()).or_insert_with(|| path.clone());
            self.enter(root, property, &found, (&path, &place));
        }
        if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
            let below = (&*format!("{path}.*"), &*format!("{place}.*"));
            self.enter(root, values, &children(nodes, None), below);
        }
        if let Some(items) = schema.get("items") {
            let elements = nodes.iter().flat_map(|node| match &node.value {
                Yaml::List(nodes) => nodes.as_slice(),
                _ => &[],
            });
            let below = (&*format!("{path}[]"), &*format!("{place}[]"));
            self.enter(root, items, &elements.collect::<Vec<_>>(), below);
        }
    }
}

/// The nodes under a key of these, or under any.
fn children<'a>(nodes: &[&'a TreeNode], key: Option<&str>) -> Vec<&'a TreeNode> {
    let entries = nodes.iter().flat_map(|node| match &node.value {
        Yaml::Map(entries) => entries.as_slice(),
        _ => &[],
    });
    entries.filter(|entry| key.is_none_or(|key| entry.key == key)).map(|entry| &entry.node).collect()
}

#[test]
fn the_walk_notices_what_is_missing() {
    let tree = yaml::parse("server: {listen: x}\npools: {a: {replicas: [{url: x}]}}\n").unwrap();
    let root = schema();
    let mut found = Found::default();
    found.walk(&root, &root, &[&tree], "");
    let missing: BTreeSet<&str> =
        found.paths.iter().filter(|(key, _)| !found.named.contains(*key)).map(|(_, path)| &**path).collect();
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
            let expected = expected && !HOT_FIELDS.contains(&[name, &field.0]);
            assert_eq!((field.1, field.2), (expected, expected), "{name}.{}", field.0);
        }
    }
    assert_eq!(marked(&root["properties"]["server"]).len(), 15);
    assert_eq!(marked(&root["definitions"]["LogSection"]).len(), 3);
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
    let examples = ConfigFile {
        version: None,
        tenants: NamedEntries::default(),
        models: NamedEntries::default(),
        ..file.clone()
    };
    assert_eq!(examples, ConfigFile { pools: file.pools, ..ConfigFile::default() });
}
