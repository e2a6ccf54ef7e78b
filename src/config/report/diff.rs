//! Differences between two configurations, field by field.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::config::file::ConfigFile;
use crate::config::load::Loaded;
use crate::config::schema::transforms::{HOT_FIELDS, RESTART_SECTIONS};
use crate::config::settings::identity::{Auth, ListenerTls};
use crate::config::syntax::field::{FieldPath, FieldStep};

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigChange {
    /// The field, such as `tenants.red.weight`.
    pub path: String,
    /// What it was; absent = it was not there, or it is a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What it is; absent = it is no longer there, or it is a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// Whether it takes effect only at the next start.
    pub needs_restart: bool,
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "~ {}: {before} -> {after}", self.path)?,
            (Some(_), None) => write!(f, "- {}", self.path)?,
            (None, Some(after)) => write!(f, "+ {}: {after}", self.path)?,
            (None, None) => write!(f, "~ {}: the secret has a new value", self.path)?,
        }
        if self.needs_restart { f.write_str(" (at the next start)") } else { Ok(()) }
    }
}

/// Every field that differs, in alphabetical order, defaults included. A list
/// is one field. Secrets differ by their value, which is not shown.
pub fn diff(before: &Loaded, after: &Loaded) -> Vec<ConfigChange> {
    let mut changes = diff_files(&before.file, &after.file);
    changes.extend(rotated(before, after));
    changes.extend(certificates(before, after));
    changes.extend(listed(before, after));
    changes.extend(key_files(before, after));
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    changes
}

/// Every field of the files that differs, without a look at secrets' values.
pub(in crate::config) fn diff_files(before: &ConfigFile, after: &ConfigFile) -> Vec<ConfigChange> {
    let mut changes = Vec::new();
    maps(&FieldPath::default(), &written(before), &written(after), &mut changes);
    changes
}

fn written(file: &ConfigFile) -> Map<String, Value> {
    match serde_json::to_value(file) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

fn maps(
    field: &FieldPath,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    changes: &mut Vec<ConfigChange>,
) {
    for (key, old) in before {
        let field = field.key(key);
        match (old, after.get(key)) {
            (old, Some(new)) if old == new => {}
            (Value::Object(old), Some(Value::Object(new))) => maps(&field, old, new, changes),
            (old, new) => changes.push(change(&field, Some(old), new)),
        }
    }
    for (key, new) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
        changes.push(change(&field.key(key), None, Some(new)));
    }
}

fn change(field: &FieldPath, before: Option<&Value>, after: Option<&Value>) -> ConfigChange {
    let step = |at: usize| match field.steps().get(at) {
        Some(FieldStep::Key(key)) => &**key,
        _ => "",
    };
    let is_hot = HOT_FIELDS.contains(&[step(0), step(1)]);
    ConfigChange {
        path: field.to_string(),
        before: before.cloned(),
        after: after.cloned(),
        needs_restart: RESTART_SECTIONS.contains(&step(0)) && !is_hot,
    }
}

/// Pools whose secret or certificates are named by the same place and have another value.
fn rotated(before: &Loaded, after: &Loaded) -> Vec<ConfigChange> {
    let pool_of = |loaded: &Loaded, pool: &str| {
        let pools = &loaded.settings.edge.pools;
        pools.id(pool).and_then(|id| pools.get(id)).cloned()
    };
    let key_of = |loaded: &Loaded, pool: &str| pool_of(loaded, pool).and_then(|pool| pool.api_key);
    let tls_of = |loaded: &Loaded, pool: &str| pool_of(loaded, pool).and_then(|pool| pool.tls);
    let written = |loaded: &Loaded, pool: &str| loaded.file.pools.get(pool).and_then(|pool| pool.tls.clone());
    let same_place = |name: &&str| {
        let place = |loaded: &Loaded| loaded.file.pools.get(name).and_then(|pool| pool.api_key.clone());
        place(before).is_some() && place(before) == place(after)
    };
    let names = after.file.pools.names().filter(same_place);
    let names = names.filter(|name| key_of(before, name) != key_of(after, name));
    let keys = names.map(|name| change(&FieldPath::top("pools").key(name).key("api_key"), None, None));
    let names = after.file.pools.names().filter(|name| written(before, name) == written(after, name));
    let names = names.filter(|name| tls_of(before, name) != tls_of(after, name));
    let tls = names.map(|name| change(&FieldPath::top("pools").key(name).key("tls"), None, None));
    keys.chain(tls).collect()
}

/// Listeners whose certificates stand in the same files as before, and are
/// others now.
fn certificates(before: &Loaded, after: &Loaded) -> Vec<ConfigChange> {
    let clients =
        |loaded: &Loaded| (loaded.file.server.tls.clone(), loaded.settings.listeners.clients.clone());
    let admin = |loaded: &Loaded| (loaded.file.admin.tls.clone(), loaded.settings.listeners.admin.clone());
    let scale = |loaded: &Loaded| (loaded.file.scale.tls.clone(), loaded.settings.listeners.scale.clone());
    let listeners = [
        ("server", clients(before), clients(after)),
        ("admin", admin(before), admin(after)),
        ("scale", scale(before), scale(after)),
    ];
    let digest = |tls: &Option<ListenerTls>| tls.as_ref().map(|tls| tls.digest);
    let others =
        listeners.into_iter().filter(|(_, (was, old), (is, new))| was == is && digest(old) != digest(new));
    let mut changes: Vec<ConfigChange> =
        others.map(|(section, ..)| change(&FieldPath::top(section).key("tls"), None, None)).collect();
    let written = |loaded: &Loaded| loaded.file.scale.peers.clone();
    let made = |loaded: &Loaded| loaded.settings.scale.peers.as_ref().and_then(|peers| peers.tls.clone());
    if written(before) == written(after) && made(before) != made(after) {
        // Only where they are takes a restart.
        let change = change(&FieldPath::top("scale").key("peers"), None, None);
        changes.push(ConfigChange { needs_restart: false, ..change });
    }
    let asked = |loaded: &Loaded| {
        let made = loaded.settings.edge.guardrails.as_ref();
        made.map(|made| (made.tls.clone(), made.bearer.clone()))
    };
    if before.file.guardrails == after.file.guardrails && asked(before) != asked(after) {
        changes.push(change(&FieldPath::top("guardrails"), None, None));
    }
    changes
}

/// Pools whose replicas stand in the same file as before, which has others
/// now. The values are how many there are.
fn listed(before: &Loaded, after: &Loaded) -> Vec<ConfigChange> {
    let names = |loaded: &Loaded, pool: &str| -> Vec<String> {
        let policy = &loaded.settings.policy;
        let row = policy.pools.id(pool).and_then(|id| policy.pools.get(id));
        let ids = row.map_or(&[][..], |row| &row.replicas);
        ids.iter().map(|id| policy.replicas.name(*id).to_owned()).collect()
    };
    let file = |loaded: &Loaded, pool: &str| loaded.file.pools.get(pool)?.discover.as_ref()?.file.clone();
    let pools = after.file.pools.names().filter(|pool| file(after, pool).is_some());
    let pools = pools.filter(|pool| file(before, pool) == file(after, pool));
    let changes = pools.filter_map(|pool| {
        let (old, new) = (names(before, pool), names(after, pool));
        let field = FieldPath::top("pools").key(pool).key("discover").key("file");
        (old != new).then(|| change(&field, Some(&old.len().into()), Some(&new.len().into())))
    });
    changes.collect()
}

/// Key files with other keys than before, in the same folder. The values are how many there are.
fn key_files(before: &Loaded, after: &Loaded) -> Vec<ConfigChange> {
    if before.file.auth.keys_dir != after.file.auth.keys_dir {
        return Vec::new();
    }
    let ids = |loaded: &Loaded| {
        let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        if let Auth::Known(known) = &loaded.settings.edge.auth {
            for (id, key) in known.keys.iter() {
                if let Some(file) = &key.origin.file {
                    ids.entry(file.to_string())
                        .or_default()
                        .insert(format!("{id} {:?} {:?}", key.expires, key.grant));
                }
            }
        }
        ids
    };
    let (old, new) = (ids(before), ids(after));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differs = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    let count = |keys: Option<&BTreeSet<String>>| keys.map(|keys| Value::from(keys.len()));
    let row = |name: &String| {
        let field = FieldPath::top("auth").key("keys_dir").key(name);
        change(&field, count(old.get(name)).as_ref(), count(new.get(name)).as_ref())
    };
    differs.map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load::load_str;

    fn load(text: &str) -> Loaded {
        load_str(text, "p", Path::new("/"), None).into_result().unwrap_or_else(|report| panic!("{report}"))
    }

    const ONE: &str = "
version: 1
auth: {mode: off}
tenants: {red: {weight: 2}}
pools:
  a: {engine: vllm, models: [m], replicas: [http://a:1], max_seqs: 4}
  b: {engine: vllm, models: [m], replicas: [http://b:1], max_seqs: 4}
";

    #[test]
    fn spelling_and_defaults_are_no_change() {
        let same = ONE.replace("weight: 2", "weight: 2.0") + "server: {listen: 127.0.0.1:8080}\nretry:\n";
        assert_eq!(diff(&load(ONE), &load(&same)), []);
    }

    #[test]
    fn fields_are_told_apart() {
        let two = "
version: 1
auth: {mode: off}
server: {drain_grace: 5s}
tenants: {red: {weight: 3, default_class: batch}}
pools:
  a: {engine: vllm, models: [m], replicas: [http://a:1, http://a:2], max_seqs: 4}
";
        let changes: Vec<String> = diff(&load(ONE), &load(two)).iter().map(ToString::to_string).collect();
        assert_eq!(
            changes,
            [
                r#"~ pools.a.replicas: ["http://a:1"] -> ["http://a:1","http://a:2"]"#,
                "- pools.b",
                r#"~ server.drain_grace: "1m" -> "5s" (at the next start)"#,
                r#"+ tenants.red.default_class: "batch""#,
                "~ tenants.red.weight: 2.0 -> 3.0",
            ]
        );
    }
}
