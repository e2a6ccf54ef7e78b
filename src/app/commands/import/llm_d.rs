//! Manifests of llm-d or the Gateway API Inference Extension: pools, models, objectives.

use std::collections::BTreeMap;

use anyhow::bail;
use serde_json::{Value, json};

use crate::app::commands::import::draft::{ConfigDraft, GivenModels, label};

/// Headers of an `HTTPRoute` that name a model.
const MODEL_HEADERS: [&str; 2] = ["x-gateway-model-name", "x-gateway-base-model-name"];

/// Reads the manifests into the draft.
///
/// # Errors
/// When there is no `InferencePool` among them.
pub(super) fn read(documents: &[Value], names: &GivenModels, draft: &mut ConfigDraft) -> anyhow::Result<()> {
    let of =
        |kind: &str| documents.iter().filter(move |document| document["kind"] == *kind).collect::<Vec<_>>();
    if of("InferencePool").is_empty() {
        bail!("has no document of the kind InferencePool");
    }
    let mut pools = BTreeMap::new();
    for document in of("InferencePool") {
        pool(document, documents, &mut pools, draft);
    }
    for model in of("InferenceModel") {
        inference_model(model, &pools, draft);
    }
    for route in of("HTTPRoute") {
        http_route(route, &pools, draft);
    }
    for name in pools.values() {
        if draft.entry("pools", name).get("models").is_none() {
            names.put(name, draft);
        }
    }
    for rewrite in of("InferenceModelRewrite") {
        let name = rewrite["metadata"]["name"].as_str().unwrap_or_default();
        draft.left_out(&format!("InferenceModelRewrite {name}"), "`models.*.split` and `models.*.aliases`");
    }
    objectives(&of("InferenceObjective"), draft);
    const READ: [&str; 6] = [
        "InferencePool",
        "InferenceModel",
        "HTTPRoute",
        "InferenceModelRewrite",
        "InferenceObjective",
        "Deployment",
    ];
    for kind in documents.iter().filter_map(|document| document["kind"].as_str()) {
        if !READ.contains(&kind) {
            draft.left_out(kind, "no counterpart in the gateway's configuration");
        }
    }
    Ok(())
}

fn pool(
    document: &Value,
    documents: &[Value],
    pools: &mut BTreeMap<String, String>,
    draft: &mut ConfigDraft,
) {
    let (metadata, spec) = (&document["metadata"], &document["spec"]);
    let own = metadata["name"].as_str().unwrap_or("pool");
    let name = label(own, |name| draft.has("pools", name));
    pools.insert(own.to_owned(), name.clone());
    let labels = match &spec["selector"]["matchLabels"] {
        Value::Null => &spec["selector"],
        labels => labels,
    };
    let labels: BTreeMap<&str, &str> = labels
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((&**key, value.as_str()?)))
        .collect();
    let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    draft.near(
        "InferencePool.spec.selector",
        "pools.*.discover.kubernetes.service",
        &format!(
            "Penstock watches a Service, not pods: make a headless Service `{own}` with the selector {{{}}}",
            selector.join(", ")
        ),
    );
    for key in ["endpointPickerRef", "extensionRef"].into_iter().filter(|key| !spec[*key].is_null()) {
        draft.left_out(&format!("InferencePool.spec.{key}"), "the gateway itself chooses the replica");
    }
    let kubernetes = endpoints(own, metadata, spec, draft);
    let entry = draft.entry("pools", &name);
    entry.insert("engine".to_owned(), "vllm".into());
    entry.insert("discover".to_owned(), json!({ "kubernetes": kubernetes }));
    draft.near(
        "InferencePool",
        "pools.*.engine",
        "taken for vLLM; write `sglang` or another engine if it is not",
    );
    for deployment in documents.iter().filter(|document| document["kind"] == "Deployment") {
        let template = &deployment["spec"]["template"];
        let has = |(key, value): (&&str, &&str)| template["metadata"]["labels"][*key] == **value;
        if !labels.is_empty() && labels.iter().all(has) {
            arguments(&template["spec"]["containers"], &name, draft);
        }
    }
}

/// Where the endpoints of a pool are.
fn endpoints(own: &str, metadata: &Value, spec: &Value, draft: &mut ConfigDraft) -> Value {
    let mut kubernetes = json!({ "service": own });
    if let Some(namespace) = metadata["namespace"].as_str() {
        kubernetes["namespace"] = namespace.into();
    }
    let ports = spec["targetPorts"].as_array().map_or(0, Vec::len);
    let port = spec["targetPorts"][0]["number"].as_u64().or_else(|| spec["targetPortNumber"].as_u64());
    if let Some(port) = port {
        kubernetes["port"] = port.into();
        draft.exact("InferencePool.spec.targetPorts", "pools.*.discover.kubernetes.port");
    }
    if ports > 1 {
        draft.left_out(
            "InferencePool.spec.targetPorts[1..]",
            "a replica has one port; data-parallel ranks are not replicas",
        );
    }
    kubernetes
}

/// What the arguments of an engine's container say.
fn arguments(containers: &Value, pool: &str, draft: &mut ConfigDraft) {
    let words: Vec<&str> = containers
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|container| [&container["command"], &container["args"]])
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(Value::as_str)
        .flat_map(str::split_whitespace)
        .collect();
    let value = |flag: &str| {
        let with = words.iter().find_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
        with.or_else(|| {
            words.iter().zip(words.iter().skip(1)).find(|(word, _)| **word == flag).map(|(_, next)| *next)
        })
    };
    if let Some(model) = value("--served-model-name").or_else(|| value("serve")).or_else(|| value("--model"))
    {
        add_model(pool, model, model, draft);
        draft.exact("Deployment: the engine's model", "pools.*.models");
    }
    for (flag, key) in [("--max-num-seqs", "max_seqs"), ("--max-model-len", "max_model_len")] {
        if let Some(number) =
            value(flag).and_then(|text| text.parse::<u32>().ok()).filter(|number| *number > 0)
        {
            draft.entry("pools", pool).insert(key.to_owned(), number.into());
            draft.exact(&format!("Deployment: {flag}"), &format!("pools.*.{key}"));
        }
    }
}

fn inference_model(document: &Value, pools: &BTreeMap<String, String>, draft: &mut ConfigDraft) {
    let spec = &document["spec"];
    let model = spec["modelName"].as_str().unwrap_or_default();
    let Some(pool) = spec["poolRef"]["name"].as_str().and_then(|name| pools.get(name)).cloned() else {
        draft.left_out(&format!("InferenceModel {model}"), "its pool is not among the documents");
        return;
    };
    let targets: Vec<(&str, u64)> = spec["targetModels"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|target| Some((target["name"].as_str()?, target["weight"].as_u64().unwrap_or(1))))
        .collect();
    match &targets[..] {
        [] => add_model(&pool, model, model, draft),
        [(one, _)] => add_model(&pool, model, one, draft),
        many => {
            let split: BTreeMap<&str, u64> = many.iter().copied().collect();
            for name in split.keys() {
                add_model(&pool, name, name, draft);
            }
            draft.entry("models", model).insert("split".to_owned(), json!(split));
        }
    }
    draft.exact("InferenceModel", "pools.*.models, models.*.split");
    if !spec["criticality"].is_null() {
        draft.left_out(
            "InferenceModel.spec.criticality",
            "a class of the request or its tenant: `tenants.*.default_class`",
        );
    }
}

/// Models that a route recognises by a header.
fn http_route(document: &Value, pools: &BTreeMap<String, String>, draft: &mut ConfigDraft) {
    for rule in document["spec"]["rules"].as_array().into_iter().flatten() {
        let backends = rule["backendRefs"].as_array().into_iter().flatten();
        let Some(pool) = backends.filter_map(|backend| pools.get(backend["name"].as_str()?)).next().cloned()
        else {
            continue;
        };
        let matches = rule["matches"].as_array().into_iter().flatten();
        for header in matches.filter_map(|one| one["headers"].as_array()).flatten() {
            let name = header["name"].as_str().unwrap_or_default().to_ascii_lowercase();
            if let Some(model) = header["value"].as_str().filter(|_| MODEL_HEADERS.contains(&name.as_str())) {
                add_model(&pool, model, model, draft);
                draft.exact("HTTPRoute: header with the model", "pools.*.models");
            }
        }
    }
    draft.left_out(
        "HTTPRoute",
        "other rules, timeouts and filters stay in the Gateway; put Penstock behind it, or in its place",
    );
}

fn add_model(pool: &str, public: &str, own: &str, draft: &mut ConfigDraft) {
    let models = draft.entry("pools", pool).entry("models").or_insert_with(|| json!({}));
    if models.get(public).is_none() {
        models[public] = own.into();
    }
}

/// A class for each objective, the highest priority first.
fn objectives(documents: &[&Value], draft: &mut ConfigDraft) {
    let mut sorted: Vec<(i64, &str)> = documents
        .iter()
        .filter_map(|one| {
            Some((one["spec"]["priority"].as_i64().unwrap_or(0), one["metadata"]["name"].as_str()?))
        })
        .collect();
    sorted.sort_by_key(|(priority, name)| (-priority, *name));
    for (rank, (_, name)) in sorted.iter().enumerate() {
        let class = label(name, |name| draft.has("classes", name));
        draft.entry("classes", &class).insert("rank".to_owned(), rank.into());
        let why = "a class also has objectives and a longest wait; clients name it in x-penstock-class, within their tenant's `classes`";
        draft.near("InferenceObjective", "classes.*.rank", why);
    }
}
