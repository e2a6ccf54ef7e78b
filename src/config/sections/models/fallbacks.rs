//! Check of `fallbacks` and `split`.

use crate::config::file::ConfigFile;
use crate::config::sections::models::ModelSection as Written;
use crate::config::sections::models::checked::CheckedModels;
use crate::config::settings::names::{Split, SplitTarget};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::core::model::ids::ModelId;

/// Checks the two and enters them among the names.
pub(in crate::config) fn validate(
    file: &ConfigFile,
    models: &mut CheckedModels,
    findings: &mut Findings<'_>,
) {
    for (name, model) in file.models.iter() {
        let field = FieldPath::top("models").key(name);
        let fallbacks = fallbacks(name, model, file, models, &field.key("fallbacks"), findings);
        if model.split.is_empty() {
            if let Some(id) = models.table.id(name).filter(|_| !fallbacks.is_empty()) {
                models.names.fallbacks.insert(id, fallbacks);
            }
            continue;
        }
        let targets = targets(model, file, models, &field.key("split"), findings);
        if models.table.id(name).is_none() && model.max_model_len.is_some() {
            let hint = "give it to the models that share its requests";
            findings.error(&field.key("max_model_len"), "belongs to a model that a pool serves", hint);
        }
        let split = Split { targets, fallbacks };
        for known in std::iter::once(name).chain(model.aliases.iter().map(String::as_str)) {
            models.names.splits.insert(known.to_owned(), split.clone());
        }
    }
}

fn fallbacks(
    name: &str,
    model: &Written,
    file: &ConfigFile,
    models: &CheckedModels,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Vec<ModelId> {
    let mut list = Vec::new();
    for (at, other) in model.fallbacks.iter().enumerate() {
        let field = field.index(at);
        if other == name {
            findings.error(&field, "is the model itself", "name another one");
            continue;
        }
        let Some(id) = models.served(other, file, &field, findings) else { continue };
        if list.contains(&id) {
            findings.error(&field, format!("`{other}` is listed twice"), "each model serves once");
        }
        list.push(id);
    }
    list
}

fn targets(
    model: &Written,
    file: &ConfigFile,
    models: &CheckedModels,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Vec<SplitTarget> {
    if model.split.iter().all(|(_, weight)| *weight == 0) {
        findings.error(field, "gives no model any requests", "write a weight greater than 0");
    }
    let known = model.split.iter().filter_map(|(target, weight)| {
        let model = models.served(target, file, &field.key(target), findings)?;
        Some(SplitTarget { model, weight: *weight })
    });
    known.collect()
}
