//! Imports of whole files, checked as `penstock check` would.

use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use crate::app::commands::import::draft::{ConfigDraft, GivenModels};
use crate::app::commands::import::{litellm, llm_d, nginx};
use crate::cli::import::{ImportForm, LiteLlmArgs, PlainImportArgs};
use crate::cli::output::ResultOutput;
use crate::config::load::{Loaded, load_str};
use crate::config::settings::identity::Auth;

/// A folder with these files in it.
fn files(contents: &[(&str, &str)]) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let written = contents.iter().map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let written = written.collect();
    (folder, written)
}

fn form() -> ImportForm {
    ImportForm { output: None, report: ResultOutput::Table, json: false }
}

fn good(draft: &ConfigDraft) -> Loaded {
    let text = draft.text("x");
    load_str(&text, "p", Path::new("/"), None)
        .into_result()
        .unwrap_or_else(|report| panic!("{report}\n{text}"))
}

fn litellm_of(config: &str, keys: Option<&str>, teams: Option<&str>) -> ConfigDraft {
    let all = [("c.yaml", Some(config)), ("k.json", keys), ("t.json", teams)];
    let given: Vec<(&str, &str)> = all.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
    let (folder, _) = files(&given);
    let path = |name: &str, text: Option<&str>| text.map(|_| folder.path().join(name)).into_iter().collect();
    let args = LiteLlmArgs {
        file: folder.path().join("c.yaml"),
        keys: path("k.json", keys),
        teams: path("t.json", teams),
        form: form(),
    };
    litellm(&args).unwrap()
}

const LITELLM: &str = "
model_list:
  - {model_name: llama, litellm_params: {model: hosted_vllm/meta/Llama, api_base: 'http://a:8000/v1', rpm: 9}}
  - {model_name: llama, litellm_params: {model: hosted_vllm/meta/Llama, api_base: 'http://b:8000/v1/'}}
  - {model_name: small, litellm_params: {model: hosted_vllm/small, api_base: 'http://a:8000/v1', api_key: none}}
  - {model_name: tgi, litellm_params: {model: huggingface/x, api_base: 'http://t:80'}}
  - {model_name: gpt-4o, litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY}}
  - {model_name: '*', litellm_params: {model: 'hosted_vllm/*', api_base: 'http://w:1'}}
router_settings:
  num_retries: 2
  model_group_alias: {gpt-3.5: llama, nobody: none}
  fallbacks: [{llama: [tgi, gpt-4o]}]
litellm_settings: {drop_params: true}
";

#[test]
fn engines_aliases_and_fallbacks_of_litellm() {
    let draft = litellm_of(LITELLM, None, None);
    let loaded = good(&draft);
    let pools: Vec<&str> = loaded.file.pools.names().collect();
    assert_eq!(pools, ["llama", "llama-2", "tgi"], "a serves two models, b one of them");
    assert_eq!(loaded.settings.policy.replicas.iter().count(), 3);
    let llama = loaded.file.models.get("llama").unwrap();
    assert_eq!((llama.aliases.join(","), llama.fallbacks.join(",")), ("gpt-3.5".into(), "tgi".into()));
    assert!(loaded.file.tenants.get("default").unwrap().allow_fallback);
    assert!(matches!(loaded.settings.edge.auth, Auth::Off(_)));
    let report = draft.report();
    for said in [
        "litellm_params.api_base -> pools.*.replicas (4 times)",
        "model_list[] gpt-4o\n      a model of a hosted provider",
        "model_list[] *\n",
        "fallbacks llama -> gpt-4o",
        "litellm_settings.drop_params",
        "model_list[].litellm_params.rpm",
        "clients' keys -> auth.mode: off",
    ] {
        assert!(report.contains(said), "{said}\n{report}");
    }
}

#[test]
fn keys_and_teams_of_litellm_keep_their_secrets() {
    let clear = "sk-Xq3v9TtM0b7eKcYw2LpZ1A";
    let hash = "a3f0c1d2e4b5968778695a4b3c2d1e0fa3f0c1d2e4b5968778695a4b3c2d1e0f";
    let keys = json!({ "keys": [
        { "token": hash, "team_id": "t1", "key_alias": "search: night", "rpm_limit": 60, "models": ["llama", "gpt-4o"] },
        { "token": clear, "team_id": null, "max_budget": 5.0, "expires": "2999-01-31T12:00:00" },
        { "token": "b".repeat(64), "blocked": true },
        { "token": "sk-1234" },
        { "token": "c".repeat(64), "models": ["gpt-4o"] },
        hash,
    ] });
    let teams =
        json!([{ "team_id": "t1", "team_alias": "Search & ads", "tpm_limit": 1000, "models": ["llama"] }]);
    let draft = litellm_of(LITELLM, Some(&keys.to_string()), Some(&teams.to_string()));
    let loaded = good(&draft);
    let Auth::Known(known) = &loaded.settings.edge.auth else { panic!("no keys") };
    assert_eq!(known.keys.len(), 2, "{}", draft.report());
    let team = loaded.file.tenants.get("Search---ads").unwrap();
    assert_eq!(team.limits.per_minute.unwrap().tokens, Some(1000));
    let key = &team.keys[0];
    assert_eq!(
        (key.digest.strip_prefix("sha256:"), key.note.as_deref()),
        (Some(hash), Some("search: night"))
    );
    assert_eq!(key.models.as_deref(), Some(&["llama".to_owned()][..]));
    let (id, entry) = known.keys.verify(clear, || std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert!(entry.expires.is_some() && loaded.file.tenants.get("default").unwrap().keys[0].id == id);
    let report = draft.report();
    for said in [
        "key.blocked",
        "fewer than 20 characters",
        "none of its models is here",
        "the same key twice",
        "key.max_budget",
    ] {
        assert!(report.contains(said), "{said}\n{report}");
    }
    assert!(!draft.text("x").contains(clear) && !report.contains(clear));
}

#[test]
fn the_master_key_is_an_operators_or_the_only_one() {
    let master = "sk-Zz9v9TtM0b7eKcYw2LpZ1A";
    let config = format!("{LITELLM}general_settings: {{master_key: {master}}}\n");
    let alone = good(&litellm_of(&config, None, None));
    let Auth::Known(known) = &alone.settings.edge.auth else { panic!("no keys") };
    assert!(known.keys.verify(master, || std::time::SystemTime::UNIX_EPOCH).is_ok());
    let beside = good(&litellm_of(&config, Some("sk-Xq3v9TtM0b7eKcYw2LpZ1A\n"), None));
    let tokens = &beside.settings.listeners.operators.tokens;
    assert!(tokens.verify(master, || std::time::SystemTime::UNIX_EPOCH).is_ok());
}

#[test]
fn a_file_of_hosted_providers_is_not_imported() {
    let (folder, paths) =
        files(&[("c.yaml", "model_list: [{model_name: a, litellm_params: {model: azure/a}}]")]);
    let args = LiteLlmArgs { file: paths[0].clone(), keys: vec![], teams: vec![], form: form() };
    assert!(litellm(&args).unwrap_err().to_string().contains("no model of it runs"));
    drop(folder);
}

#[test]
fn pools_of_llm_d_with_what_their_engines_say() {
    let text = "
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama-pool, namespace: models}
spec:
  targetPorts: [{number: 8000}]
  selector: {matchLabels: {app: vllm}}
  endpointPickerRef: {name: epp}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  template:
    metadata: {labels: {app: vllm}}
    spec:
      containers: [{name: vllm, args: [--model, meta/Llama, --max-num-seqs=128]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
spec:
  rules:
  - matches: [{headers: [{name: X-Gateway-Model-Name, value: lora}]}]
    backendRefs: [{kind: InferencePool, name: llama-pool}]
---
kind: InferenceObjective
metadata: {name: chat}
spec: {priority: 10, poolRef: {name: llama-pool}}
---
kind: InferenceObjective
metadata: {name: night}
spec: {priority: -1, poolRef: {name: llama-pool}}
---
kind: Service
metadata: {name: x}
";
    let (_folder, paths) = files(&[("m.yaml", text)]);
    let draft = llm_d(&PlainImportArgs { file: paths[0].clone(), model: vec![], form: form() }).unwrap();
    let loaded = good(&draft);
    let pool = loaded.file.pools.get("llama-pool").unwrap();
    assert_eq!(pool.max_seqs, Some(128));
    let kubernetes = pool.discover.as_ref().unwrap().kubernetes.as_ref().unwrap();
    assert_eq!(
        (kubernetes.service.as_deref(), kubernetes.namespace.as_deref()),
        (Some("llama-pool"), Some("models"))
    );
    let models: Vec<&str> = loaded.settings.policy.models.iter().map(|(_, name, _)| name).collect();
    assert_eq!(models, ["lora", "meta/Llama"]);
    let classes: Vec<_> = loaded.file.classes.names().collect();
    assert_eq!(classes, ["chat", "night"]);
    let report = draft.report();
    assert!(report.contains("selector {app: vllm}") && report.contains("Service\n"), "{report}");
}

#[test]
fn upstreams_and_keys_of_nginx() {
    let text = "
http {
  map $http_authorization $who { default ''; \"Bearer sk-Xq3v9TtM0b7eKcYw2LpZ1A\" search; 'Bearer short' x; }
  upstream llm.test { least_conn; server 10.0.0.1:8000 max_fails=2; server gpu-2; server unix:/x; }
  server { listen 443 ssl; location /v1/ { proxy_pass http://llm.test; proxy_read_timeout 600s; } }
  server { location / { proxy_pass https://10.0.0.9:9443/; } }
}";
    let mut draft = ConfigDraft::default();
    nginx::read(text, &GivenModels { given: vec!["m".to_owned()] }, &mut draft).unwrap();
    let loaded = good(&draft);
    let urls: Vec<String> =
        loaded.settings.edge.replicas.iter().map(|(_, _, row)| row.url.to_string()).collect();
    assert_eq!(urls, ["https://10.0.0.9:9443/", "http://10.0.0.1:8000/", "http://gpu-2:80/"]);
    assert_eq!(loaded.file.tenants.get("search").unwrap().keys.len(), 1);
    let report = draft.report();
    for said in ["least_conn", "server max_fails", "proxy_read_timeout", "fewer than 20", "a Unix socket"] {
        assert!(report.contains(said), "{said}\n{report}");
    }
    assert!(nginx::read("events {}", &GivenModels { given: vec![] }, &mut ConfigDraft::default()).is_err());
}
