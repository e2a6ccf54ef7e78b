//! Key explanation: the meaning of a key, from the schema, and its place in the reference.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::config::report::problem::nearest;
use crate::config::schema::schema;
use crate::config::schema::transforms::{RESTART, RESTART_SENTENCE};

/// The page of the reference.
const PAGE: &str = "docs/reference/configuration.md";
/// Keys that an error lists.
const MAX_LISTED: usize = 40;

/// A key of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyMeaning {
    /// The key with `*` for names and `[]` for entries of lists.
    pub pattern: String,
    /// What it means.
    pub text: String,
    /// What its values are.
    pub kind: String,
    /// The default; absent = none.
    pub default: Option<Value>,
    /// The least and the greatest value.
    pub range: [Option<Value>; 2],
    /// The values that it may have.
    pub choices: Vec<KeyChoice>,
    /// Whether it must be there.
    pub is_required: bool,
    /// Whether a change needs a restart.
    pub needs_restart: bool,
    /// Keys inside it.
    pub keys: Vec<String>,
    /// Where the reference has it.
    pub link: String,
}

/// A value that a key may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChoice {
    pub value: String,
    /// What it means; empty = the schema does not say.
    pub meaning: String,
}

/// A step of a path as people write it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Name(String),
    Index,
}

/// What a key means; its path is like `pools.llama.max_seqs`, `pools.*.replicas[0].url` or
/// `models["gpt-4.1"].aliases`.
///
/// # Errors
/// There is no such key: a sentence with what there is.
pub fn explain(path: &str) -> Result<KeyMeaning, String> {
    let steps =
        steps(path).ok_or_else(|| format!("`{path}` is no path of a key; write it like pools.*.max_seqs"))?;
    let (found, field) = follow(&steps, path)?;
    Ok(found.meaning(field))
}

/// Where the reference has the key of a problem, or what is around it.
pub fn link(path: &str) -> Option<String> {
    let mut steps = steps(path)?;
    while !steps.is_empty() {
        if let Ok((found, _)) = follow(&steps, path) {
            return Some(found.link());
        }
        steps.pop();
    }
    None
}

fn whole() -> &'static Value {
    static WHOLE: OnceLock<Value> = OnceLock::new();
    WHOLE.get_or_init(schema)
}

/// Where a walk through the schema is.
#[derive(Debug, Default)]
struct SchemaWalk {
    pattern: String,
    /// The last heading of the reference on the way.
    heading: String,
    /// The section that several places share, in which the walk is.
    is_shared: bool,
    is_required: bool,
}

fn follow(steps: &[PathStep], path: &str) -> Result<(SchemaWalk, &'static Value), String> {
    let mut at = SchemaWalk::default();
    let mut field = whole();
    for step in steps {
        let section = target(field);
        let next = match step {
            PathStep::Index => section.get("items").inspect(|_| at.pattern.push_str("[]")),
            PathStep::Name(name) => at.named(section, name),
        };
        let Some(next) = next else { return Err(unknown(step, section, &at, path)) };
        field = next;
    }
    Ok((at, field))
}

impl SchemaWalk {
    fn named(&mut self, section: &'static Value, name: &str) -> Option<&'static Value> {
        if let Some(field) = section["properties"].get(name) {
            let required = section["required"].as_array();
            self.is_required = required.is_some_and(|keys| keys.contains(&json!(name)));
            if !self.pattern.is_empty() {
                self.pattern.push('.');
            }
            self.pattern.push_str(name);
            if !self.is_shared {
                self.heading.clone_from(&self.pattern);
            }
            self.is_shared |= is_shared(field);
            return Some(field);
        }
        let more = section.get("additionalProperties").filter(|more| more.is_object())?;
        self.pattern.push_str(".*");
        self.is_shared |= is_shared(more);
        Some(more)
    }

    fn link(&self) -> String {
        // As GitHub and mdBook make them of a heading.
        let fits = |c: &char| c.is_alphanumeric() || matches!(c, '_' | '-');
        format!("{PAGE}#{}", self.heading.to_lowercase().chars().filter(fits).collect::<String>())
    }

    fn meaning(&self, field: &'static Value) -> KeyMeaning {
        let found = target(field);
        let text = [field, found].into_iter().find_map(|one| one["description"].as_str()).unwrap_or_default();
        let text: Vec<&str> = text.split_whitespace().collect();
        let choice = |one: &Value| {
            let meaning = one["description"].as_str().unwrap_or_default();
            Some(KeyChoice {
                value: one["const"].as_str()?.to_owned(),
                meaning: meaning.split_whitespace().collect::<Vec<_>>().join(" "),
            })
        };
        let bare = |one: &Value| Some(KeyChoice { value: one.as_str()?.to_owned(), meaning: String::new() });
        let listed = found["enum"].as_array().into_iter().flatten();
        let mut choices: Vec<KeyChoice> = listed.filter_map(bare).collect();
        choices.extend(found["oneOf"].as_array().into_iter().flatten().filter_map(choice));
        let bound = |key: &str| field.get(key).or_else(|| found.get(key)).cloned();
        KeyMeaning {
            pattern: self.pattern.clone(),
            text: text.join(" ").replace(RESTART_SENTENCE, "").trim().to_owned(),
            kind: kind(field),
            default: field.get("default").filter(|value| !value.is_null()).cloned(),
            range: [bound("minimum").or_else(|| bound("exclusiveMinimum")), bound("maximum")],
            choices,
            is_required: self.is_required,
            needs_restart: field.get(RESTART).is_some(),
            keys: keys(found),
            link: self.link(),
        }
    }
}

fn keys(section: &Value) -> Vec<String> {
    section["properties"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

/// The definition that a field refers to, or the field itself.
fn target(field: &'static Value) -> &'static Value {
    match definition(field) {
        Some(name) => {
            let found = &whole()["definitions"][name];
            // A short form and a long one: the long one has the keys.
            let long = found["anyOf"].as_array().into_iter().flatten().find(|one| definition(one).is_some());
            long.filter(|_| found.get("properties").is_none()).map_or(found, target)
        }
        None => field,
    }
}

fn definition(field: &Value) -> Option<&str> {
    let lists = ["allOf", "anyOf"].into_iter().filter_map(|list| field[list].as_array()).flatten();
    let reference = std::iter::once(field).chain(lists).find_map(|one| one["$ref"].as_str())?;
    reference.strip_prefix("#/definitions/")
}

/// Whether the reference has the section of this field in one place for several.
fn is_shared(field: &'static Value) -> bool {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| whole().to_string());
    let is_section = |name: &&str| whole()["definitions"][*name].get("properties").is_some();
    definition(field)
        .filter(is_section)
        .is_some_and(|name| text.matches(&format!("\"#/definitions/{name}\"")).count() > 1)
}

/// What the values of a field are, for people.
fn kind(field: &'static Value) -> String {
    let found = target(field);
    if let Some(items) = found.get("items") {
        return format!("list of {}", kind(items));
    }
    if found.get("properties").is_some() {
        return "section".to_owned();
    }
    if found.get("oneOf").is_some() || found.get("enum").is_some() {
        return "one of the values below".to_owned();
    }
    if let Some(values) = found.get("additionalProperties").filter(|values| values.is_object()) {
        return format!("map of names to {}", kind(values));
    }
    if let Some(name) = definition(field).filter(|_| found["type"] == "string") {
        return name.to_lowercase();
    }
    let types = match &found["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        one => vec![one.as_str().unwrap_or("string")],
    };
    types.into_iter().filter(|one| *one != "null").collect::<Vec<_>>().join(" or ")
}

fn unknown(step: &PathStep, section: &Value, at: &SchemaWalk, path: &str) -> String {
    let known = keys(section);
    let place = if at.pattern.is_empty() { "at the top".to_owned() } else { format!("in {}", at.pattern) };
    let PathStep::Name(name) = step else { return format!("{path}: {} is no list", at.pattern) };
    let hint = match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "it has no keys".to_owned(),
        None => {
            format!("there are: {}", known.iter().take(MAX_LISTED).cloned().collect::<Vec<_>>().join(", "))
        }
    };
    format!("there is no key `{name}` {place}; {hint}")
}

/// The steps of a path; `None` when it is none.
fn steps(path: &str) -> Option<Vec<PathStep>> {
    let mut steps = Vec::new();
    let mut rest = path.trim();
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let end = quoted.find("\"]")?;
            steps.push(PathStep::Name(quoted[..end].to_owned()));
            rest = &quoted[end + 2..];
        } else if let Some(index) = rest.strip_prefix('[') {
            let end = index.find(']')?;
            if !index[..end].bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            steps.push(PathStep::Index);
            rest = &index[end + 1..];
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end == 0 {
                return None;
            }
            steps.push(PathStep::Name(rest[..end].to_owned()));
            rest = &rest[end..];
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    (!steps.is_empty()).then_some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_what_it_is() {
        let seqs = explain("pools.llama.max_seqs").unwrap();
        assert_eq!((&*seqs.pattern, &*seqs.kind), ("pools.*.max_seqs", "integer"));
        assert!(seqs.text.contains("--max-num-seqs") && seqs.range[0] == Some(json!(1)), "{seqs:?}");
        assert_eq!(seqs.link, "docs/reference/configuration.md#poolsmax_seqs");
        let grace = explain("server.drain_grace").unwrap();
        assert!(grace.needs_restart && grace.default == Some(json!("1m")) && !grace.text.contains("restart"));
        let engine = explain("pools.*.engine").unwrap();
        assert!(
            engine.is_required && engine.choices.iter().any(|choice| choice.value == "vllm"),
            "{engine:?}"
        );
        assert_eq!(explain("pools.*.replicas[0].url").unwrap().pattern, "pools.*.replicas[].url");
        let limit = explain("tenants.red.limits.per_minute.tokens").unwrap();
        assert_eq!(
            limit.link, "docs/reference/configuration.md#tenantslimits",
            "its section is described once"
        );
        assert!(explain("tenants").unwrap().kind.starts_with("map of names"));
    }

    #[test]
    fn what_is_no_key_is_said_with_what_there_is() {
        for (path, said) in [
            ("pools.a.max_seq", "did you mean `max_seqs`?"),
            ("colour", "at the top"),
            ("version.x", "it has no keys"),
            ("version[0]", "is no list"),
            ("", "no path"),
            ("a..b", "no path"),
            ("a[x]", "no path"),
        ] {
            let error = explain(path).unwrap_err();
            assert!(error.contains(said), "{path}: {error}");
        }
    }

    #[test]
    fn problems_lead_to_the_nearest_heading() {
        let of = |path: &str| link(path).unwrap_or_default().replace(PAGE, "");
        assert_eq!(of("pools.a.no_such_key"), "#pools");
        assert_eq!(of(r#"models["gpt-4.1"].aliases[2]"#), "#modelsaliases");
        assert_eq!(of("no_such_section"), "");
    }
}
