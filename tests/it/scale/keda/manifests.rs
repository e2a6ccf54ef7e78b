//! Manifests that `penstock keda` prints, checked against KEDA's API.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::setup::file;
use crate::support::certificates::{Authority, put};

/// The fields that the API knows (KEDA 2.18 and later), with their types.
const FIELDS: &str = include_str!("../../../fixtures/keda/fields.txt");

fn fields(kind: &str) -> BTreeMap<&'static str, Vec<&'static str>> {
    let lines = FIELDS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let of_kind = lines.filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    of_kind
        .map(|line| {
            let (path, kinds) = line.split_once(": ").unwrap();
            (path, kinds.split(' ').collect())
        })
        .collect()
}

/// Checks every value against what its path may hold.
fn check(path: &str, value: &Value, fields: &BTreeMap<&str, Vec<&str>>) {
    let rule = fields.get(path).unwrap_or_else(|| panic!("`{path}` is not a field of the API"));
    let is = |kind: &str| match kind.split_once('=') {
        Some(("enum", names)) => names.split(',').any(|name| value == name),
        Some(("least", number)) => value.as_i64() >= number.parse().ok() && value.is_i64(),
        _ => match kind {
            "string" => value.is_string(),
            "integer" => value.is_u64() || value.is_i64(),
            "boolean" => value.is_boolean(),
            "object" | "map" => value.is_object(),
            "list" => value.is_array(),
            other => panic!("{path}: {other}"),
        },
    };
    assert!(
        rule.iter().filter(|kind| !kind.starts_with("needs=")).any(|kind| is(kind)),
        "{path} is {value}, not {rule:?}"
    );
    let needs = rule.iter().filter_map(|kind| kind.strip_prefix("needs=")).flat_map(|names| names.split(','));
    for name in needs {
        assert!(value.get(name).is_some(), "{path} has no `{name}`");
    }
    match value {
        Value::Object(_) if rule.contains(&"map") => {
            assert!(value.as_object().unwrap().values().all(Value::is_string), "{path}: {value}");
        }
        Value::Object(map) => {
            for (key, value) in map {
                check(&format!("{path}.{key}"), value, fields);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| check(&format!("{path}[]"), value, fields)),
        _ => {}
    }
}

fn keda(folder: &Path, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
    let done = command.current_dir(folder).arg("keda").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if done.status.success() { Ok(text(done.stdout)) } else { Err(text(done.stderr)) }
}

/// The documents, each checked.
fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("---\n").map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let checked = documents.inspect(|document| {
        let kind = document["kind"].as_str().unwrap();
        assert_eq!(document["apiVersion"], "keda.sh/v1alpha1");
        let name = document["metadata"]["name"].as_str().unwrap();
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{name}");
        check("spec", &document["spec"], &fields(kind));
    });
    checked.collect()
}

#[test]
fn a_plain_scaler_needs_one_object() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("penstock.yaml"),
        file(&[], "").replace("127.0.0.1:0\"}\nt", "127.0.0.1:8082\"}\nt"),
    )
    .unwrap();
    let text =
        keda(folder.path(), &["main", "--max", "8", "--namespace", "ml", "--service", "penstock.ml.svc"])
            .unwrap();
    let [object] = &*documents(&text) else { panic!("{text}") };
    let spec = &object["spec"];
    assert_eq!(object["metadata"]["namespace"], "ml");
    assert_eq!((&spec["minReplicaCount"], &spec["maxReplicaCount"]), (&0.into(), &8.into()));
    assert_eq!((&spec["cooldownPeriod"], &spec["initialCooldownPeriod"]), (&300.into(), &300.into()));
    assert_eq!(spec["fallback"]["replicas"], 1, "0 would let an error scale to zero");
    assert_eq!(spec["fallback"]["behavior"], "currentReplicasIfHigher");
    let behavior = &spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"];
    assert_eq!(
        (&behavior["scaleUp"]["tolerance"], &behavior["scaleDown"]["tolerance"]),
        (&0.into(), &0.into())
    );
    let [trigger] = &**spec["triggers"].as_array().unwrap() else { panic!("one trigger") };
    assert_eq!(trigger["type"], "external-push");
    assert_eq!(trigger["metadata"]["scalerAddress"], "penstock.ml.svc:8082");
    assert_eq!(trigger["metadata"]["maxReplicas"], "8");
    assert!(trigger.get("useCachedMetrics").is_none() && trigger.get("authenticationRef").is_none());
    assert!(text.contains("A start is expected to take 180 s"), "{text}");
    assert!(text.lines().filter(|line| line.trim_start().starts_with('#')).count() > 10, "it says why");
}

#[test]
fn a_scaler_with_certificates_needs_a_second_object() {
    let (ca, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    ca.server().put(folder.path(), "scale");
    put(&folder.path().join("ca.crt"), &ca.pem());
    let tls = ", tls: {cert: scale.crt, key: scale.key, client_ca: ca.crt, require_client_cert: true}";
    std::fs::write(folder.path().join("penstock.yaml"), file(&[], tls)).unwrap();
    let text = keda(folder.path(), &["main"]).unwrap();
    let [object, authentication] = &*documents(&text) else { panic!("{text}") };
    let trigger = &object["spec"]["triggers"][0];
    assert_eq!(trigger["authenticationRef"]["name"], authentication["metadata"]["name"]);
    assert_eq!(trigger["metadata"]["enableTLS"], "true");
    let parameters: Vec<_> = authentication["spec"]["secretTargetRef"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["parameter"])
        .collect();
    assert_eq!(parameters, ["caCert", "tlsClientCert", "tlsClientKey"]);
}

#[test]
fn what_cannot_be_written_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("penstock.yaml");
    std::fs::write(&path, file(&[], "")).unwrap();
    assert!(keda(folder.path(), &["gone"]).unwrap_err().contains("it has: main, other"));
    assert!(keda(folder.path(), &["main", "--min", "5", "--max", "3"]).unwrap_err().contains("--max"));
    std::fs::write(&path, file(&[], "").replace("scale: {listen: \"127.0.0.1:0\"}\n", "")).unwrap();
    let text = keda(folder.path(), &["main"]).unwrap();
    assert!(text.contains("no scaler yet") && text.contains(":8082"), "{text}");
}
