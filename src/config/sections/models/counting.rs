//! Check of `models`: tokenizers, media costs, and prompts that do not fit the window.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::models::checked::CheckedModels;
use crate::config::sections::models::{MediaTokensSection, ModelSection as ModelFile, Overflow, Truncation};
use crate::config::settings::{ModelSettings, Settings};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::numbers;
use crate::core::model::ids::ModelId;
use crate::tokens::counter::{MediaCosts, TokenCounter};

/// The models that are counted or refused otherwise than usual.
pub(in crate::config) fn validate(
    file: &ConfigFile,
    models: &CheckedModels,
    previous: Option<&Settings>,
    files: &SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> BTreeMap<ModelId, ModelSettings> {
    let mut edges = BTreeMap::new();
    // Those of the last configuration, and what was read for this one.
    let mut known: Vec<Arc<TokenCounter>> = previous
        .into_iter()
        .flat_map(|old| old.edge.models.values())
        .filter_map(|edge| edge.counter.clone())
        .collect();
    for (name, model) in file.models.iter() {
        let field = FieldPath::top("models").key(name);
        let media = media(&model.media_tokens, &field.key("media_tokens"), findings);
        let counter = counter(model, &field.key("tokenizer"), &mut known, files, findings);
        let rejects = model.context.policy == Overflow::Reject;
        let truncates = model.context.truncate == Truncation::Allow;
        let is_usual = counter.is_none() && media == MediaCosts::default() && !rejects && !truncates;
        if let Some(id) = models.table.id(name).filter(|_| !is_usual) {
            edges.insert(id, ModelSettings { counter, media, rejects, truncates });
        } else if !is_usual && !model.split.is_empty() {
            let hint = "write it at the models that share the requests";
            findings.error(&field, "a split counts and refuses nothing itself", hint);
        }
    }
    edges
}

fn media(tokens: &MediaTokensSection, field: &FieldPath, findings: &mut Findings<'_>) -> MediaCosts {
    let mut cost = |key: &str, tokens: Option<u32>| {
        tokens.map(|tokens| numbers::at_least_one(u64::from(tokens), &field.key(key), findings))
    };
    MediaCosts { image: cost("image", tokens.image), audio: cost("audio", tokens.audio) }
}

fn counter(
    model: &ModelFile,
    field: &FieldPath,
    known: &mut Vec<Arc<TokenCounter>>,
    files: &SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<Arc<TokenCounter>> {
    let folder = files.path(model.tokenizer.as_ref()?);
    match files.tokenizer(&folder, known) {
        Ok(counter) => {
            known.push(Arc::clone(&counter));
            Some(counter)
        }
        Err(broken) => {
            let file = broken.file.display().to_string();
            let message = format!("{file}: {}", broken.why);
            let (message, hint) = if Path::new(&file).exists() {
                (message, "copy the file again from the model that the engine serves, or leave the key out")
            } else {
                (
                    files.absent(message),
                    "name the folder that has the model's tokenizer.json, or leave the key out",
                )
            };
            findings.error(field, message, hint);
            None
        }
    }
}
