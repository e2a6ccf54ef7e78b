//! LiteLLM's keys and teams, as its API lists them: digests of keys become keys of tenants.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use crate::app::commands::import::draft::{ConfigDraft, label};
use crate::config::keys::{self, KeyDigest};

/// Names in a list of models that stand for all of them.
const ALL_MODELS: [&str; 3] = ["all-team-models", "all-proxy-models", "*"];
/// The tenant of keys without a team.
const NO_TEAM: &str = "default";
const BUDGET: &str = "money is replicas' time x `price` here and not a price for each token: give pools a `price`, then set `limits.per_month.money`";

/// The keys of a file: what `GET /key/list?return_full_object=true` answers, a list of such
/// objects, or one key a line.
pub(super) fn parse_keys(text: &str) -> anyhow::Result<Vec<Value>> {
    if !text.trim_start().starts_with(['{', '[']) {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        return Ok(lines.map(Value::from).collect());
    }
    rows(text, "keys", "the answer of GET /key/list?return_full_object=true, or one key a line")
}

/// The teams of a file: what `GET /team/list` answers.
pub(super) fn parse_teams(text: &str) -> anyhow::Result<Vec<Value>> {
    rows(text, "teams", "the answer of GET /team/list")
}

fn rows(text: &str, name: &str, wanted: &str) -> anyhow::Result<Vec<Value>> {
    match serde_json::from_str(text).with_context(|| format!("not JSON; it must be {wanted}"))? {
        Value::Array(rows) => Ok(rows),
        Value::Object(mut map) => match map.remove(name) {
            Some(Value::Array(rows)) => Ok(rows),
            _ => bail!("has no list `{name}`; it must be {wanted}"),
        },
        _ => bail!("is no list; it must be {wanted}"),
    }
}

/// Puts teams and keys into the draft.
pub(super) fn read(teams: &[Value], all: &[Value], models: &BTreeSet<String>, draft: &mut ConfigDraft) {
    let mut tenants: BTreeMap<String, String> = BTreeMap::new();
    let mut closed = BTreeSet::new();
    for team in teams {
        let id = text(team, "team_id").unwrap_or_default();
        let name = tenant_of(&mut tenants, id, text(team, "team_alias"), draft);
        draft.exact("team", "tenants.*");
        let mut entry = Map::new();
        if !narrow(team, "team", models, &mut entry, draft) {
            draft.left_out("team", "none of its models is here, so its keys are not carried over");
            closed.insert(id.to_owned());
        }
        limits(team, "team", &mut entry, draft);
        if team["blocked"] == true {
            draft.left_out("team", "a blocked team's keys are not carried over");
            closed.insert(id.to_owned());
        }
        if text(team, "organization_id").is_some() {
            draft.left_out(
                "team.organization_id",
                "write a tenant for the organisation, and its name as `parent` of its teams",
            );
        }
        draft.entry("tenants", &name).extend(entry);
    }
    let mut seen = BTreeSet::new();
    for key in all {
        let Some((id, digest)) = digest(key, draft) else { continue };
        if !seen.insert(digest) {
            draft.left_out("key", "the same key twice");
            continue;
        }
        if !text(key, "team_id").is_some_and(|team| closed.contains(team)) {
            self::key(key, id, digest, &mut tenants, models, draft);
        }
    }
}

fn key(
    key: &Value,
    id: String,
    digest: KeyDigest,
    tenants: &mut BTreeMap<String, String>,
    models: &BTreeSet<String>,
    draft: &mut ConfigDraft,
) {
    if key["blocked"] == true {
        draft.left_out("key.blocked", "a blocked key is not carried over");
        return;
    }
    let mut entry = Map::from_iter([
        ("id".to_owned(), Value::from(id)),
        ("digest".to_owned(), digest.to_string().into()),
    ]);
    if let Some(alias) = text(key, "key_alias").or_else(|| text(key, "key_name")) {
        entry.insert("note".to_owned(), alias.into());
    }
    if let Some(expires) = text(key, "expires") {
        let Some(moment) = moment(expires) else {
            draft.left_out("key", "its `expires` is no time, so the key is not carried over");
            return;
        };
        entry.insert("expires".to_owned(), moment.to_string().into());
        draft.exact("key.expires", "tenants.*.keys[].expires");
    }
    if !narrow(key, "key", models, &mut entry, draft) {
        draft.left_out("key", "none of its models is here, so the key is not carried over");
        return;
    }
    limits(key, "key", &mut entry, draft);
    let team = text(key, "team_id").unwrap_or_default();
    let tenant = tenant_of(tenants, team, text(key, "team_alias"), draft);
    let tenant = draft.entry("tenants", &tenant);
    if let Some(list) = tenant.entry("keys").or_insert_with(|| json!([])).as_array_mut() {
        list.push(Value::Object(entry));
    }
    draft.exact("key", "tenants.*.keys[]: clients go on with the secrets that they have");
}

/// The public id and digest of a key: of its secret, or of the SHA-256 that LiteLLM keeps of it.
fn digest(key: &Value, draft: &mut ConfigDraft) -> Option<(String, KeyDigest)> {
    let token = key.as_str().or_else(|| text(key, "token")).or_else(|| text(key, "key")).unwrap_or_default();
    let is_hash = token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash && let Some(digest) = KeyDigest::parse(&format!("sha256:{}", token.to_ascii_lowercase())) {
        return Some((keys::derived_id(&keys::digest(token)), digest));
    }
    match keys::hash(token) {
        Ok(hashed) => KeyDigest::parse(&hashed.digest).map(|digest| (hashed.id, digest)),
        Err(why) => {
            draft.left_out("key", &format!("it {why}; give its holder another one"));
            None
        }
    }
}

/// The tenant of a team, made when it is not there yet.
fn tenant_of(
    tenants: &mut BTreeMap<String, String>,
    id: &str,
    alias: Option<&str>,
    draft: &mut ConfigDraft,
) -> String {
    if let Some(name) = tenants.get(id) {
        return name.clone();
    }
    let wanted = if id.is_empty() { NO_TEAM } else { alias.unwrap_or(id) };
    let name = label(wanted, |name| draft.has("tenants", name));
    draft.entry("tenants", &name);
    tenants.insert(id.to_owned(), name.clone());
    name
}

/// The models that may be used, of those that are here. False when there were some, and none is.
fn narrow(
    row: &Value,
    what: &str,
    models: &BTreeSet<String>,
    entry: &mut Map<String, Value>,
    draft: &mut ConfigDraft,
) -> bool {
    let listed: Vec<&str> =
        row["models"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if listed.is_empty() || listed.iter().any(|name| ALL_MODELS.contains(name)) {
        return true;
    }
    let here: BTreeSet<&str> = listed.iter().copied().filter(|name| models.contains(*name)).collect();
    for _ in here.len()..listed.len() {
        draft.left_out(&format!("{what}.models[]"), "a model that is not here, an alias or an access group");
    }
    if here.is_empty() {
        return false;
    }
    draft.exact(&format!("{what}.models"), &format!("{}.models", place(what)));
    entry.insert("models".to_owned(), json!(here));
    true
}

fn limits(row: &Value, what: &str, entry: &mut Map<String, Value>, draft: &mut ConfigDraft) {
    let mut limits = Map::new();
    for (from, period, unit) in [
        ("max_parallel_requests", "concurrent", "requests"),
        ("rpm_limit", "per_minute", "requests"),
        ("tpm_limit", "per_minute", "tokens"),
    ] {
        let Some(amount) = row[from].as_u64().filter(|amount| *amount > 0) else { continue };
        let period_map = limits.entry(period).or_insert_with(|| json!({}));
        period_map[unit] = amount.into();
        let to = format!("{}.limits.{period}.{unit}", place(what));
        match period {
            "concurrent" => draft.exact(&format!("{what}.{from}"), &to),
            _ => draft.near(&format!("{what}.{from}"), &to, "any 60 seconds; reserved before the queue"),
        }
    }
    if !row["max_budget"].is_null() {
        draft.left_out(&format!("{what}.max_budget"), BUDGET);
    }
    if row["aliases"].as_object().is_some_and(|aliases| !aliases.is_empty()) {
        draft.left_out(&format!("{what}.aliases"), "`tenants.*.model_map` has names of a tenant's own");
    }
    if !limits.is_empty() {
        entry.insert("limits".to_owned(), Value::Object(limits));
    }
}

fn place(what: &str) -> &'static str {
    if what == "key" { "tenants.*.keys[]" } else { "tenants.*" }
}

/// A text that is not empty.
fn text<'a>(row: &'a Value, key: &str) -> Option<&'a str> {
    row[key].as_str().filter(|text| !text.is_empty())
}

/// A time as LiteLLM writes it, in UTC where it has no zone.
fn moment(text: &str) -> Option<jiff::Timestamp> {
    text.parse().ok().or_else(|| format!("{text}Z").parse().ok())
}
