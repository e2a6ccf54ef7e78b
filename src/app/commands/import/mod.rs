//! `penstock import`: configurations of other gateways.

mod draft;
mod litellm;
mod litellm_keys;
mod llm_d;
mod nginx;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use self::draft::{ConfigDraft, GivenModels};
use crate::cli::import::{ImportCommand, ImportForm, LiteLlmArgs, PlainImportArgs};
use crate::config::keys;
use crate::config::load::{load_offline, read_as};
use crate::config::secret::{MachineSecrets, SecretSource as _};

/// `penstock import`: the text to print. The configuration goes to `--output` or is the text; the
/// report is the text, or goes to standard error.
pub(super) fn run(command: &ImportCommand) -> anyhow::Result<String> {
    match command {
        ImportCommand::Litellm(args) => finish(&litellm(args)?, &args.file, &args.form),
        ImportCommand::LlmD(args) => finish(&llm_d(args)?, &args.file, &args.form),
        ImportCommand::Nginx(args) => {
            let mut draft = ConfigDraft::default();
            let read = nginx::read(&text(&args.file)?, &names(args), &mut draft);
            read.with_context(|| args.file.display().to_string())?;
            draft.open_without_keys("hash the clients' keys with `penstock keys hash`");
            finish(&draft, &args.file, &args.form)
        }
    }
}

fn names(args: &PlainImportArgs) -> GivenModels {
    GivenModels { given: args.model.clone() }
}

fn litellm(args: &LiteLlmArgs) -> anyhow::Result<ConfigDraft> {
    let file: Value = parsed(&args.file)?;
    if !file["model_list"].is_array() {
        bail!("{}: has no `model_list`, so it is no configuration of the LiteLLM proxy", args.file.display());
    }
    let mut draft = ConfigDraft::default();
    let (models, master) = litellm::read(&file, &mut draft);
    if models.is_empty() {
        bail!(
            "{}: no model of it runs on an engine of your own; keep LiteLLM for hosted providers",
            args.file.display()
        );
    }
    let mut teams = Vec::new();
    for path in &args.teams {
        teams.extend(litellm_keys::parse_teams(&text(path)?).with_context(|| path.display().to_string())?);
    }
    let mut all = Vec::new();
    for path in &args.keys {
        all.extend(litellm_keys::parse_keys(&text(path)?).with_context(|| path.display().to_string())?);
    }
    litellm_keys::read(&teams, &all, &models, &mut draft);
    master_key(master.as_deref(), all.is_empty(), &models, &mut draft);
    draft.open_without_keys("--keys brings LiteLLM's");
    if litellm::has_fallbacks(&mut draft) {
        for tenant in draft.section("tenants").values_mut() {
            tenant["allow_fallback"] = true.into();
        }
    }
    Ok(draft)
}

/// The master key: an operator's token beside clients' keys, else the one key of clients.
fn master_key(
    master: Option<&str>,
    is_only_key: bool,
    models: &std::collections::BTreeSet<String>,
    draft: &mut ConfigDraft,
) {
    const FROM: &str = "general_settings.master_key";
    let Some(master) = master else { return };
    match keys::hash(master) {
        Err(why) => draft.left_out(FROM, &format!("it {why}; `penstock keys new` makes an operator's token")),
        Ok(_) if is_only_key => {
            litellm_keys::read(&[], &[Value::from(master)], models, draft);
            draft.near(
                FROM,
                "tenants.default.keys[]",
                "there is no other key; operators get tokens of their own: `admin.auth.tokens`",
            );
        }
        Ok(hashed) => {
            let token = json!({ "id": hashed.id, "digest": hashed.digest, "role": "operate", "note": "LiteLLM's master key" });
            draft.entry("admin", "auth").insert("tokens".to_owned(), json!([token]));
            draft.near(FROM, "admin.auth.tokens[]", "on the admin port only; it opens no model");
        }
    }
}

fn llm_d(args: &PlainImportArgs) -> anyhow::Result<ConfigDraft> {
    let text = text(&args.file)?;
    let name = args.file.display().to_string();
    let mut documents = Vec::new();
    for part in text.split("\n---") {
        let part = part.strip_prefix("---").unwrap_or(part);
        if part.lines().all(|line| line.trim().is_empty() || line.starts_with('#')) {
            continue;
        }
        let mut document = read_as::<Value>(part, &name).map_err(|report| anyhow::anyhow!("{report}"))?;
        // What `kubectl get -o yaml` prints is one list.
        match document.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => documents.extend(items),
            _ => documents.push(document),
        }
    }
    let mut draft = ConfigDraft::default();
    llm_d::read(&documents, &names(args), &mut draft).with_context(|| name)?;
    draft.open_without_keys("make a tenant and a key for each fairness id: `penstock keys new`");
    Ok(draft)
}

/// Checks what was made, writes it, and reports.
fn finish(draft: &ConfigDraft, file: &Path, form: &ImportForm) -> anyhow::Result<String> {
    let source = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let config = draft.text(&source);
    let checked = load_offline(&config, "the imported file");
    let report = if form.is_json() { format!("{:#}\n", draft.report_json()) } else { draft.report() };
    let Some(output) = &form.output else {
        eprint!("{report}");
        return match checked.loaded {
            Some(_) => Ok(config),
            None => bail!("what was made has errors:\n{}", checked.report),
        };
    };
    let write = || OpenOptions::new().write(true).create_new(true).open(output)?.write_all(config.as_bytes());
    write().with_context(|| format!("write {}", output.display()))?;
    match checked.loaded {
        Some(_) if form.is_json() => Ok(report),
        Some(_) => Ok(format!("{report}\nwrote {0}; next: penstock check {0}\n", output.display())),
        None => bail!("{report}\n{} has errors:\n{}", output.display(), checked.report),
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let bytes = MachineSecrets.file(path).with_context(|| format!("cannot read {}", path.display()))?;
    String::from_utf8(bytes).ok().with_context(|| format!("{} is not text", path.display()))
}

fn parsed(path: &Path) -> anyhow::Result<Value> {
    read_as(&text(path)?, &path.display().to_string()).map_err(|report| anyhow::anyhow!("{report}"))
}

#[cfg(test)]
mod tests;
