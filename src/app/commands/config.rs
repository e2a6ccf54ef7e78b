//! `penstock config explain` and `penstock diff`: the configuration for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{anyhow, bail};
use serde_json::{Value, json};

use crate::cli::config::{ConfigCommand, DiffArgs};
use crate::config::file::ConfigFile;
use crate::config::load::{Loaded, load_file_with};
use crate::config::report::diff::{ConfigChange, diff};
use crate::config::schema::explain::{KeyChoice, KeyMeaning, explain};
use crate::config::secret::OfflineSecrets;
use crate::config::settings::identity::Auth;

/// Least change of a share that is told, in parts of the whole.
const TOLD: f64 = 0.000_5;

/// `penstock config`; the text to print.
pub(super) fn run(command: &ConfigCommand) -> anyhow::Result<String> {
    let ConfigCommand::Explain(args) = command;
    let meaning = explain(&args.path).map_err(|message| anyhow!("{message}"))?;
    let here = match &args.config {
        Some(path) => Some(value_of(&load(path)?.file, &args.path)),
        None => None,
    };
    Ok(told(&meaning, here))
}

fn told(key: &KeyMeaning, here: Option<Option<Value>>) -> String {
    let mut text = format!("{}\n  {}\n\n", key.pattern, key.text);
    let mut fact = |name: &str, value: String| {
        let _infallible = writeln!(text, "  {name:<9} {value}");
    };
    fact("value", key.kind.clone());
    for KeyChoice { value, meaning } in &key.choices {
        fact("", format!("{value}: {meaning}").trim_end_matches(": ").to_owned());
    }
    if key.keys.is_empty() {
        let default = key.default.as_ref().map(plain);
        let none = if key.is_required { "none: it must be there" } else { "none: it may be absent" };
        fact("default", default.unwrap_or_else(|| none.to_owned()));
    } else {
        fact("keys", key.keys.join(", "));
    }
    match &key.range {
        [None, None] => {}
        [Some(least), None] => fact("range", format!("{} or more", plain(least))),
        [None, Some(most)] => fact("range", format!("at most {}", plain(most))),
        [Some(least), Some(most)] => fact("range", format!("{} to {}", plain(least), plain(most))),
    }
    fact(
        "change",
        if key.needs_restart { "takes effect at the next start" } else { "takes effect at once" }.to_owned(),
    );
    if let Some(here) = here {
        fact("here", here.as_ref().map_or("not there".to_owned(), plain));
    }
    fact("see", key.link.clone());
    text
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number)
            if number.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() < 1e15) =>
        {
            format!("{:.0}", number.as_f64().unwrap_or_default())
        }
        other => other.to_string(),
    }
}

/// What a file has at a path, defaults included.
fn value_of(file: &ConfigFile, path: &str) -> Option<Value> {
    let pointer =
        path.replace("[\"", ".").replace("\"]", "").replace('[', ".").replace(']', "").replace('.', "/");
    serde_json::to_value(file).ok()?.pointer(&format!("/{pointer}")).cloned()
}

fn load(path: &Path) -> anyhow::Result<Loaded> {
    let outcome = load_file_with(path, None, &OfflineSecrets);
    outcome.into_result().map_err(|report| anyhow!("{} has errors:\n{report}", path.display()))
}

/// `penstock diff`; the text to print.
pub(super) fn compare(args: &DiffArgs) -> anyhow::Result<String> {
    if args.old == args.new {
        bail!("name two files: the one in force and the new one");
    }
    let (old, new) = (load(&args.old)?, load(&args.new)?);
    let changes = diff(&old, &new);
    let tenants = tenants(&old, &new);
    let models = models(&old, &new);
    if args.form.is_json() {
        return Ok(format!("{:#}\n", json!({ "changes": changes, "tenants": tenants, "models": models })));
    }
    if changes.is_empty() {
        return Ok("nothing changes\n".to_owned());
    }
    let mut text = String::new();
    for (title, wants_restart) in [("at once", false), ("at the next start", true)] {
        let rows: Vec<&ConfigChange> =
            changes.iter().filter(|change| change.needs_restart == wants_restart).collect();
        if !rows.is_empty() {
            let _infallible = writeln!(text, "{title}");
        }
        for row in rows {
            let shown = ConfigChange { needs_restart: false, ..row.clone() };
            let _infallible = writeln!(text, "  {shown}");
        }
    }
    for (title, rows) in [("tenants", &tenants), ("models", &models)] {
        if !rows.is_empty() {
            let _infallible = writeln!(text, "{title}");
        }
        for (name, changes) in rows {
            let _infallible = writeln!(text, "  {name}: {}", changes.join(", "));
        }
    }
    Ok(text)
}

/// What each tenant gains and loses.
fn tenants(old: &Loaded, new: &Loaded) -> BTreeMap<String, Vec<String>> {
    let (before, after) = (shares(&old.file), shares(&new.file));
    let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in before.keys().chain(after.keys()) {
        let (was, is) = (before.get(name).copied(), after.get(name).copied());
        let mut said = Vec::new();
        match (was, is) {
            (Some(_), None) => said.push("goes: its requests get 401".to_owned()),
            (None, Some(is)) => said.push(format!("comes, with {:.1} % of the work", 100.0 * is)),
            (Some(was), Some(is)) if (was - is).abs() > TOLD => {
                let verb = if is > was { "gains" } else { "loses" };
                said.push(format!("{verb}: {:.1} % -> {:.1} % of the work", 100.0 * was, 100.0 * is));
            }
            _ => {}
        }
        if was.is_some() && is.is_some() {
            said.extend(rights(name, old, new));
        }
        if !said.is_empty() {
            rows.insert(name.clone(), said);
        }
    }
    rows
}

/// Each tenant's part of the work while all want more than there is: its weight's part among its
/// siblings, of what their parent has. A parent's own requests count as one more child of weight 1.
fn shares(file: &ConfigFile) -> BTreeMap<String, f64> {
    let parent = |name: &str| file.tenants.get(name).and_then(|tenant| tenant.parent.clone());
    let children = |of: Option<&str>| -> f64 {
        let all = file.tenants.iter().filter(|(_, tenant)| tenant.parent.as_deref() == of);
        all.map(|(_, tenant)| tenant.weight).sum()
    };
    let mut rows = BTreeMap::new();
    for (name, tenant) in file.tenants.iter() {
        // The check refuses circles and more than four levels.
        let (mut share, mut at, mut weight) = (1.0, name.to_owned(), tenant.weight);
        loop {
            let above = parent(&at);
            let own = if above.is_some() { 1.0 } else { 0.0 };
            share *= weight / (children(above.as_deref()) + own);
            let Some(above) = above else { break };
            weight = file.tenants.get(&above).map_or(1.0, |tenant| tenant.weight);
            at = above;
        }
        let below = children(Some(name));
        rows.insert(name.to_owned(), if below > 0.0 { share / (below + 1.0) } else { share });
    }
    rows
}

/// Models, classes and keys that a tenant gains and loses.
fn rights(name: &str, old: &Loaded, new: &Loaded) -> Vec<String> {
    let mut said = Vec::new();
    for (what, of) in
        [("model", models_of as fn(&Loaded, &str) -> Vec<String>), ("class", classes_of), ("key", keys_of)]
    {
        let (was, is) = (of(old, name), of(new, name));
        let gained: Vec<&str> = is.iter().filter(|one| !was.contains(one)).map(String::as_str).collect();
        let lost: Vec<&str> = was.iter().filter(|one| !is.contains(one)).map(String::as_str).collect();
        for (verb, list) in [("gains", gained), ("loses", lost)] {
            if !list.is_empty() {
                said.push(format!("{verb} the {what} {}", list.join(", ")));
            }
        }
    }
    said
}

fn models_of(loaded: &Loaded, name: &str) -> Vec<String> {
    let policy = &loaded.settings.policy;
    let tenant = policy.tenants.id(name).and_then(|id| policy.tenants.get(id));
    let all = policy.models.iter();
    let may =
        |id| tenant.is_some_and(|tenant| tenant.models.as_ref().is_none_or(|models| models.contains(&id)));
    all.filter(|(id, ..)| may(*id)).map(|(_, model, _)| model.to_owned()).collect()
}

fn classes_of(loaded: &Loaded, name: &str) -> Vec<String> {
    let policy = &loaded.settings.policy;
    let tenant = policy.tenants.id(name).and_then(|id| policy.tenants.get(id));
    let classes = tenant.into_iter().flat_map(|tenant| &tenant.classes);
    classes.map(|class| policy.classes.name(*class).to_owned()).collect()
}

fn keys_of(loaded: &Loaded, name: &str) -> Vec<String> {
    let Auth::Known(known) = &loaded.settings.edge.auth else { return Vec::new() };
    let policy = &loaded.settings.policy;
    let own = known.keys.iter().filter(|(_, key)| policy.tenants.name(key.grant.tenant) == name);
    let mut ids: Vec<String> = own.map(|(id, _)| id.to_owned()).collect();
    ids.sort_unstable();
    ids
}

/// Models whose number of listed replicas changes.
fn models(old: &Loaded, new: &Loaded) -> BTreeMap<String, Vec<String>> {
    let count = |loaded: &Loaded| -> BTreeMap<String, usize> {
        let policy = &loaded.settings.policy;
        let replicas = |pool| policy.pools.get(pool).map_or(0, |row| row.replicas.len());
        let row =
            |model: &crate::core::model::policy::Model| model.pools.iter().map(|pool| replicas(*pool)).sum();
        policy.models.iter().map(|(_, name, model)| (name.to_owned(), row(model))).collect()
    };
    let (before, after) = (count(old), count(new));
    let mut rows = BTreeMap::new();
    for name in before.keys().chain(after.keys()) {
        let said = match (before.get(name), after.get(name)) {
            (Some(was), Some(is)) if was != is => format!("{was} -> {is} replicas"),
            (Some(_), None) => "goes: requests for it get 404".to_owned(),
            (None, Some(is)) => format!("comes, with {is} replicas"),
            _ => continue,
        };
        rows.insert(name.clone(), vec![said]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load_str;

    const OLD: &str = "
version: 1
tenants:
  acme: {weight: 3}
  search: {parent: acme, weight: 1, keys: [{id: aaaaaaaa, digest: 'blake3:1111111111111111111111111111111111111111111111111111111111111111'}]}
  other: {weight: 1}
auth: {mode: off, tenant: other}
pools:
  a: {engine: openai, models: [m, n], replicas: [http://a:1]}
";

    fn load(text: &str) -> Loaded {
        load_str(text, "p", Path::new("/"), None).into_result().unwrap_or_else(|report| panic!("{report}"))
    }

    #[test]
    fn shares_follow_the_tree() {
        let shares = shares(&load(OLD).file);
        let near =
            |name: &str, share: f64| assert!((shares[name] - share).abs() < 1e-9, "{name}: {}", shares[name]);
        near("other", 0.25);
        near("search", 0.375);
        near("acme", 0.375);
    }

    #[test]
    fn gains_and_losses_are_said() {
        let new = OLD
            .replace("other: {weight: 1}", "other: {weight: 3, models: [n]}")
            .replace("[http://a:1]", "[http://a:1, http://a:2]");
        let (old, new) = (load(OLD), load(&new));
        let rows = tenants(&old, &new);
        assert_eq!(rows["other"], ["gains: 25.0 % -> 50.0 % of the work", "loses the model m"]);
        assert_eq!(rows["search"], ["loses: 37.5 % -> 25.0 % of the work"]);
        assert_eq!(models(&old, &new)["m"], ["1 -> 2 replicas"]);
    }
}
