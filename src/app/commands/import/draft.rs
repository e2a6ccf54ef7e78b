//! Draft: the configuration that an import makes, and the report of how true it is to its source.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Sections in the order in which a file has them.
const ORDER: [&str; 9] =
    ["version", "server", "admin", "auth", "classes", "tenants", "models", "pools", "retry"];
/// Longest name of a tenant, class or pool.
const MAX_LABEL: usize = 64;

/// How true a part of the configuration is to its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fidelity {
    /// It means the same.
    Exact,
    /// It means nearly the same.
    Near,
    /// It has no counterpart.
    LeftOut,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct ReportRow {
    fidelity: Fidelity,
    from: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The configuration so far.
#[derive(Debug, Default)]
pub(super) struct ConfigDraft {
    sections: BTreeMap<&'static str, Map<String, Value>>,
    /// Rows with how often each was met.
    rows: BTreeMap<ReportRow, usize>,
}

impl ConfigDraft {
    /// A section, made when it is not there yet.
    pub(super) fn section(&mut self, name: &'static str) -> &mut Map<String, Value> {
        self.sections.entry(name).or_default()
    }

    /// Whether a section has the entry `name`.
    pub(super) fn has(&self, section: &str, name: &str) -> bool {
        self.sections.get(section).is_some_and(|section| section.contains_key(name))
    }

    /// The entry `name` of a section, made when it is not there yet.
    pub(super) fn entry(&mut self, section: &'static str, name: &str) -> &mut Map<String, Value> {
        let entry = self.section(section).entry(name).or_insert_with(|| json!({}));
        if !entry.is_object() {
            *entry = json!({});
        }
        // The value was made an object just now.
        entry.as_object_mut().unwrap_or_else(|| unreachable!("an object"))
    }

    /// `from` means the same as `to`.
    pub(super) fn exact(&mut self, from: &str, to: &str) {
        self.row(Fidelity::Exact, from, Some(to), None);
    }

    /// `from` means nearly the same as `to`.
    pub(super) fn near(&mut self, from: &str, to: &str, note: &str) {
        self.row(Fidelity::Near, from, Some(to), Some(note));
    }

    /// `from` has no counterpart.
    pub(super) fn left_out(&mut self, from: &str, note: &str) {
        self.row(Fidelity::LeftOut, from, None, Some(note));
    }

    fn row(&mut self, fidelity: Fidelity, from: &str, to: Option<&str>, note: Option<&str>) {
        let (from, to, note) = (from.to_owned(), to.map(str::to_owned), note.map(str::to_owned));
        *self.rows.entry(ReportRow { fidelity, from, to, note }).or_default() += 1;
    }

    /// Lets everybody in on loopback, when the source brought no key.
    pub(super) fn open_without_keys(&mut self, how: &str) {
        let is_key = |tenant: &Value| tenant["keys"].as_array().is_some_and(|keys| !keys.is_empty());
        if self.section("tenants").values().any(is_key) {
            return;
        }
        self.entry("tenants", "default");
        let tenants: Vec<String> = self.section("tenants").keys().cloned().collect();
        let auth = self.section("auth");
        auth.insert("mode".to_owned(), "off".into());
        if tenants.len() > 1 {
            auth.insert("tenant".to_owned(), "default".into());
        }
        self.near(
            "clients' keys",
            "auth.mode: off",
            &format!("no key was found, so the file lets everybody in, on loopback only; {how}"),
        );
    }

    /// The text of the configuration file.
    pub(super) fn text(&self, source: &str) -> String {
        let mut text = format!(
            "# Made by `penstock import` from {source}; its report says what is near or left out.\nversion: 1\n"
        );
        for name in ORDER {
            if let Some(section) = self.sections.get(name).filter(|section| !section.is_empty()) {
                let _infallible = writeln!(text, "{name}:");
                block(section, 1, &mut text);
            }
        }
        text
    }

    /// The report for people.
    pub(super) fn report(&self) -> String {
        let mut text = String::new();
        let titles = [
            (Fidelity::Exact, "exact"),
            (Fidelity::Near, "near: look at each of them"),
            (Fidelity::LeftOut, "left out"),
        ];
        for (fidelity, title) in titles {
            let rows: Vec<_> = self.rows.iter().filter(|(row, _)| row.fidelity == fidelity).collect();
            if rows.is_empty() {
                continue;
            }
            let _infallible = writeln!(text, "{title}");
            for (row, count) in rows {
                let to = row.to.as_ref().map_or(String::new(), |to| format!(" -> {to}"));
                let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
                let note = row.note.as_ref().map_or(String::new(), |note| format!("\n      {note}"));
                let _infallible = writeln!(text, "  {}{to}{times}{note}", row.from);
            }
        }
        text
    }

    /// The report for programs.
    pub(super) fn report_json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|(row, count)| {
                let mut value = json!(row);
                value["count"] = (*count).into();
                value
            })
            .collect();
        json!({ "rows": rows })
    }
}

/// Names that a source does not have, and that its pools need.
#[derive(Debug)]
pub(super) struct GivenModels {
    pub(super) given: Vec<String>,
}

impl GivenModels {
    /// Gives a pool its engine and models: those of the command line, or its own name.
    pub(super) fn put(&self, pool: &str, draft: &mut ConfigDraft) {
        let entry = draft.entry("pools", pool);
        entry.entry("engine").or_insert_with(|| "vllm".into());
        if self.given.is_empty() {
            entry.insert("models".to_owned(), json!([pool]));
            let why = "nothing says which models there are: the pool's name stands in their place; --model names them";
            draft.near("the engines' models", "pools.*.models", why);
        } else {
            entry.insert("models".to_owned(), json!(self.given));
        }
    }
}

/// A name for a tenant, class or pool, near to what it was, that is not `taken`.
pub(super) fn label(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let plain: String = name.chars().map(|c| if fits(c) { c } else { '-' }).take(MAX_LABEL - 4).collect();
    let plain = plain.trim_matches('-');
    let plain = if plain.is_empty() { "unnamed" } else { plain };
    let numbered = (2_u32..).map(|number| format!("{plain}-{number}"));
    let mut names = std::iter::once(plain.to_owned()).chain(numbered);
    names.find(|name| !taken(name)).unwrap_or_default()
}

fn block(map: &Map<String, Value>, depth: usize, text: &mut String) {
    for (key, value) in map {
        let _infallible = write!(text, "{}{}:", "  ".repeat(depth), scalar(key));
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push('\n');
                block(inner, depth + 1, text);
            }
            Value::Array(list) if list.iter().any(Value::is_object) => {
                text.push('\n');
                for item in list {
                    let _infallible = writeln!(text, "{}- {}", "  ".repeat(depth + 1), flow(item));
                }
            }
            value => {
                let _infallible = writeln!(text, " {}", flow(value));
            }
        }
    }
}

fn flow(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{}: {}", scalar(key), flow(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(string) => scalar(string),
        other => other.to_string(),
    }
}

/// A string as YAML: plain where that cannot be taken for anything else, else
/// quoted as in JSON.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(is_word)
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::read_as;

    #[test]
    fn what_is_written_is_read_back() {
        let mut draft = ConfigDraft::default();
        let odd = ["true", "007", "1e3", "a: b", "- x", "é", "\"", "{", "", "#", "2027-01-31", ".inf", "a,b"];
        for word in odd {
            draft
                .section("pools")
                .insert(word.to_owned(), json!({ "list": [word], "map": [{ "k": word }], "one": word }));
        }
        let read: Value = read_as(&draft.text("x"), "x").unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(read["pools"], Value::Object(draft.section("pools").clone()));
    }

    #[test]
    fn labels_stay_apart_and_fit() {
        assert_eq!(label("Team A/b", |_| false), "Team-A-b");
        assert_eq!(label("x", |name| name == "x" || name == "x-2"), "x-3");
        assert_eq!(label("///", |_| false), "unnamed");
        assert!(label(&"é".repeat(500), |_| false).len() <= MAX_LABEL);
        assert!(label(&"a".repeat(500), |name| name.len() < 61).len() <= MAX_LABEL);
    }

    #[test]
    fn the_report_counts_what_is_alike() {
        let mut draft = ConfigDraft::default();
        draft.exact("a", "b");
        draft.exact("a", "b");
        draft.left_out("c", "why");
        assert_eq!(draft.report(), "exact\n  a -> b (2 times)\nleft out\n  c\n      why\n");
        assert_eq!(draft.report_json()["rows"][0]["count"], 2);
    }
}
