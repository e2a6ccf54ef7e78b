//! A LiteLLM proxy's configuration: engines, aliases, fallbacks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::app::commands::import::draft::{ConfigDraft, label};
use crate::config::secret::{MachineSecrets, SecretSource as _};

/// Beginning of a value that stands in the environment.
const ENVIRONMENT: &str = "os.environ/";
/// API keys that stand for none.
const NO_KEYS: [&str; 7] = ["", "none", "empty", "fake-key", "not-needed", "dummy", "na"];
/// Providers that are engines of one's own, with the engine, and what is to be
/// looked at.
const ENGINES: [(&str, &str, Option<&str>); 13] = [
    ("hosted_vllm", "vllm", None),
    ("vllm", "vllm", None),
    ("huggingface", "tgi", Some("taken for Text Generation Inference; write another `engine` if it is not")),
    ("llamafile", "llamacpp", Some("a llamafile is a llama.cpp server")),
    ("triton", "triton", Some("the gateway speaks to Triton's OpenAI front end")),
    ("openai", "openai", Some(WHICH_ENGINE)),
    ("text-completion-openai", "openai", Some(WHICH_ENGINE)),
    ("custom_openai", "openai", Some(WHICH_ENGINE)),
    ("openai_like", "openai", Some(WHICH_ENGINE)),
    ("lm_studio", "openai", Some(WHICH_ENGINE)),
    ("nvidia_nim", "openai", Some(WHICH_ENGINE)),
    ("ollama", "openai", Some("the gateway speaks to Ollama's OpenAI API")),
    ("ollama_chat", "openai", Some("the gateway speaks to Ollama's OpenAI API")),
];
const WHICH_ENGINE: &str =
    "LiteLLM does not say which engine it is; write `vllm`, `sglang` or another one for its metrics";

/// What becomes of keys of `litellm_params`, where it is nothing.
const PARAMS: [(&str, &str); 6] = [
    ("rpm", LEARNED),
    ("tpm", LEARNED),
    ("weight", "the soonest predicted first token decides"),
    ("order", "the soonest predicted first token decides; `placement` orders pools"),
    ("timeout", CLIENT_TIMEOUT),
    ("stream_timeout", CLIENT_TIMEOUT),
];
const LEARNED: &str = "the limit of a replica is learned from its inter-token latency; `max_seqs` bounds it";
const CLIENT_TIMEOUT: &str =
    "the client's own timeout becomes the deadline; `upstream` bounds an engine's answers";

/// What becomes of other keys, where it is nothing.
const OTHERS: [(&str, &str); 12] = [
    ("router_settings.routing_strategy", "always the soonest predicted first token"),
    ("router_settings.allowed_fails", "replicas are ejected by evidence and come back by probes: `health`"),
    ("router_settings.cooldown_time", "replicas are ejected by evidence and come back by probes: `health`"),
    ("router_settings.timeout", CLIENT_TIMEOUT),
    ("router_settings.redis_host", NO_REDIS),
    ("router_settings.redis_port", NO_REDIS),
    ("router_settings.redis_password", NO_REDIS),
    ("litellm_settings.request_timeout", CLIENT_TIMEOUT),
    ("litellm_settings.callbacks", "`telemetry.otlp.endpoint` and the JSON log, without prompts"),
    ("litellm_settings.success_callback", "`telemetry.otlp.endpoint` and the JSON log, without prompts"),
    (
        "general_settings.database_url",
        "no request waits for a database; `usage.database` holds usage rows. Models that LiteLLM keeps in its database are not in this file",
    ),
    ("general_settings.store_model_in_db", "models that LiteLLM keeps in its database are not in this file"),
];
const NO_REDIS: &str = "several gateways need none: docs/guides/several-gateways.md";

/// An engine, and what it serves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Deployment {
    engine: &'static str,
    api_key: Option<String>,
    /// Public names with the engine's own.
    models: BTreeMap<String, String>,
    max_seqs: Option<u64>,
}

/// Reads the configuration into the draft. Returns the public models, and the master key when it
/// stands in the file.
pub(super) fn read(file: &Value, draft: &mut ConfigDraft) -> (BTreeSet<String>, Option<String>) {
    let engines = engines(file, draft);
    let models = pools(engines, draft);
    aliases(file, &models, draft);
    let mut master = None;
    for (section, value) in file.as_object().into_iter().flatten() {
        match (&**section, value) {
            ("model_list", _) => {}
            ("router_settings" | "litellm_settings" | "general_settings", Value::Object(settings)) => {
                for (key, value) in settings {
                    setting(section, key, value, draft);
                }
                if let Some(key) = settings.get("master_key").and_then(Value::as_str) {
                    master = resolved(key);
                }
            }
            (section, _) => draft.left_out(section, "no counterpart"),
        }
    }
    (models, master)
}

fn setting(section: &str, key: &str, value: &Value, draft: &mut ConfigDraft) {
    let path = format!("{section}.{key}");
    match key {
        "fallbacks" | "default_fallbacks" | "model_group_alias" | "master_key" => {}
        "num_retries" => {
            if let Some(retries) = value.as_u64() {
                draft.section("retry").insert("max_attempts".to_owned(), (retries + 1).clamp(1, 16).into());
                draft.near(&path, "retry.max_attempts", "the retries of all clients share `retry.budget`");
            }
        }
        _ => {
            let why =
                OTHERS.iter().find(|(known, _)| *known == path).map_or("no counterpart", |(_, why)| why);
            draft.left_out(&path, why);
        }
    }
}

/// The engines by their base URL.
fn engines(file: &Value, draft: &mut ConfigDraft) -> Vec<(String, Deployment)> {
    let mut found: Vec<(String, Deployment)> = Vec::new();
    for entry in file["model_list"].as_array().into_iter().flatten() {
        let Some(params) = entry["litellm_params"].as_object() else {
            draft.left_out("model_list[]", "an entry without `litellm_params`");
            continue;
        };
        let public = entry["model_name"].as_str().unwrap_or_default();
        let Some((url, one)) = deployment(public, params, draft) else { continue };
        match found.iter_mut().find(|(known, _)| *known == url) {
            None => found.push((url, one)),
            Some((_, known)) => {
                if (known.engine, &known.api_key) != (one.engine, &one.api_key) {
                    let why = "one engine with two providers or keys: the first ones count";
                    draft.near("model_list[]", "pools.*", why);
                }
                known.models.extend(one.models);
            }
        }
    }
    found
}

fn deployment(
    public: &str,
    params: &Map<String, Value>,
    draft: &mut ConfigDraft,
) -> Option<(String, Deployment)> {
    let text = |key: &str| params.get(key).and_then(Value::as_str);
    let model = text("model").unwrap_or_default();
    let (provider, own) = match text("custom_llm_provider") {
        Some(provider) => {
            (provider, model.strip_prefix(provider).map_or(model, |rest| rest.trim_start_matches('/')))
        }
        None => model.split_once('/').unwrap_or(("openai", model)),
    };
    let known = ENGINES.iter().find(|(name, ..)| *name == provider);
    let from = format!("model_list[] {public}");
    let (Some((_, engine, look)), Some(base)) = (known, text("api_base")) else {
        let why = "a model of a hosted provider, or without `api_base`; keep LiteLLM for it, or write a pool with `engine: openai`";
        draft.left_out(&from, why);
        return None;
    };
    if public.contains('*') || own.contains('*') || own.is_empty() || public.is_empty() {
        draft.left_out(&from, "a pattern of names; a pool lists its models");
        return None;
    }
    let Some(base) = resolved(base) else {
        draft.left_out(&from, "its `api_base` stands in the environment; set the variable for the import");
        return None;
    };
    let base = base.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base).to_owned();
    match look {
        None => draft.exact("model_list[].litellm_params.model", "pools.*.engine, pools.*.models"),
        Some(look) => draft.near("model_list[].litellm_params.model", "pools.*.engine, pools.*.models", look),
    }
    draft.exact("model_list[].litellm_params.api_base", "pools.*.replicas");
    let max_seqs = params.get("max_parallel_requests").and_then(Value::as_u64);
    if max_seqs.is_some() {
        let why = "a bound; how full a replica is follows from its inter-token latency";
        draft.near("model_list[].litellm_params.max_parallel_requests", "pools.*.max_seqs", why);
    }
    for key in params.keys().map(String::as_str) {
        let is_read =
            ["model", "api_base", "api_key", "custom_llm_provider", "max_parallel_requests"].contains(&key);
        if !is_read {
            let why = PARAMS.iter().find(|(known, _)| *known == key);
            let why = why.map_or("sent by clients themselves, or without counterpart", |(_, why)| why);
            draft.left_out(&format!("model_list[].litellm_params.{key}"), why);
        }
    }
    let own = if *engine == "tgi" { public } else { own };
    let models = BTreeMap::from([(public.to_owned(), own.to_owned())]);
    let api_key = api_key(public, text("api_key"), draft);
    Some((base, Deployment { engine, api_key, models, max_seqs }))
}

/// The environment variable with the key of an engine.
fn api_key(public: &str, written: Option<&str>, draft: &mut ConfigDraft) -> Option<String> {
    const FROM: &str = "model_list[].litellm_params.api_key";
    let written = written?;
    if let Some(variable) = written.strip_prefix(ENVIRONMENT) {
        draft.exact(FROM, "pools.*.api_key");
        return Some(variable.to_owned());
    }
    if NO_KEYS.contains(&written.to_ascii_lowercase().as_str()) {
        return None;
    }
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let variable = format!("ENGINE_KEY_{}", public.chars().map(upper).collect::<String>());
    let why =
        "the secret stands in LiteLLM's file; the gateway reads it from the variable that the pool names";
    draft.near(FROM, "pools.*.api_key", why);
    Some(variable)
}

/// Engines that are alike are the replicas of one pool.
fn pools(engines: Vec<(String, Deployment)>, draft: &mut ConfigDraft) -> BTreeSet<String> {
    let mut alike: BTreeMap<Deployment, Vec<String>> = BTreeMap::new();
    for (url, engine) in engines {
        alike.entry(engine).or_default().push(url);
    }
    let mut models = BTreeSet::new();
    for (kind, urls) in alike {
        let first = kind.models.keys().next().map_or("", String::as_str);
        let name = label(first, |name| draft.has("pools", name));
        let same = kind.models.iter().all(|(public, own)| public == own);
        let served = if same { json!(kind.models.keys().collect::<Vec<_>>()) } else { json!(kind.models) };
        let pool = draft.entry("pools", &name);
        pool.insert("engine".to_owned(), kind.engine.into());
        pool.insert("models".to_owned(), served);
        pool.insert("replicas".to_owned(), json!(urls));
        if let Some(variable) = &kind.api_key {
            pool.insert("api_key".to_owned(), json!({ "env": variable }));
        }
        if let Some(seqs) = kind.max_seqs.filter(|seqs| *seqs > 0) {
            pool.insert("max_seqs".to_owned(), seqs.into());
        }
        models.extend(kind.models.into_keys());
    }
    models
}

/// Aliases and fallbacks, which may use each other's names.
fn aliases(file: &Value, models: &BTreeSet<String>, draft: &mut ConfigDraft) {
    let settings = [&file["router_settings"], &file["litellm_settings"]];
    let mut meant: BTreeMap<&str, &str> = models.iter().map(|name| (name.as_str(), name.as_str())).collect();
    for (alias, target) in settings.iter().filter_map(|from| from["model_group_alias"].as_object()).flatten()
    {
        let target = target.as_str().or_else(|| target["model"].as_str()).unwrap_or_default();
        let Some(model) = models.get(target).filter(|_| !models.contains(alias)) else {
            draft.left_out(
                &format!("model_group_alias {alias}"),
                "its model is not here, or a model has this name",
            );
            continue;
        };
        meant.insert(alias, model);
        push(draft.entry("models", model), "aliases", alias);
        draft.exact("router_settings.model_group_alias", "models.*.aliases");
    }
    let everybody: Vec<&Value> =
        settings.iter().filter_map(|from| from["default_fallbacks"].as_array()).flatten().collect();
    let mut wanted: Vec<(&str, Vec<&Value>)> = Vec::new();
    let lists = settings.iter().filter_map(|from| from["fallbacks"].as_array()).flatten();
    for (model, others) in lists.filter_map(Value::as_object).flatten() {
        wanted.push((model, others.as_array().into_iter().flatten().collect()));
    }
    if !everybody.is_empty() {
        let without = models.iter().filter(|model| !wanted.iter().any(|(known, _)| known == model));
        let more: Vec<_> = without.map(|model| (model.as_str(), everybody.clone())).collect();
        wanted.extend(more);
    }
    for (model, others) in wanted {
        for other in others.into_iter().map(|other| other.as_str().unwrap_or_default()) {
            match (meant.get(model), meant.get(other)) {
                (Some(model), Some(other)) if model != other => {
                    push(draft.entry("models", model), "fallbacks", other);
                    draft.near(
                        "fallbacks",
                        "models.*.fallbacks",
                        "before the first token only, for tenants with `allow_fallback`",
                    );
                }
                (Some(_), Some(_)) => {}
                _ => {
                    draft.left_out(&format!("fallbacks {model} -> {other}"), "one of the models is not here");
                }
            }
        }
    }
}

/// Whether some model has fallbacks.
pub(super) fn has_fallbacks(draft: &mut ConfigDraft) -> bool {
    draft.section("models").values().any(|model| model.get("fallbacks").is_some())
}

/// Adds a text to a list, once.
fn push(entry: &mut Map<String, Value>, key: &str, text: &str) {
    let list = entry.entry(key).or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut().filter(|list| !list.contains(&json!(text))) {
        list.push(text.into());
    }
}

/// A value, or that of the environment variable which it names.
fn resolved(value: &str) -> Option<String> {
    match value.strip_prefix(ENVIRONMENT) {
        Some(variable) => MachineSecrets.env(variable).filter(|value| !value.is_empty()),
        None => Some(value.to_owned()),
    }
}
