//! YAML text to a tree. The only file that knows the YAML library.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned, UserMessageFormatter};

use crate::config::report::problem::ConfigProblem;
use crate::config::syntax::tree::{PlainScalar, TextPosition, TreeEntry, TreeNode, TreeValue};

/// Deeper than any configuration and shallow enough for every stack.
const MAX_DEPTH: usize = 32;
/// Values in one file.
const MAX_NODES: usize = 1_000_000;
/// Values that aliases may repeat.
const MAX_REPEATED: usize = 50_000;

/// Parses one document.
pub(in crate::config) fn parse(text: &str) -> Result<TreeNode, ConfigProblem> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_nodes: MAX_NODES },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPEATED },
        strict_booleans: true,
        with_snippet: false,
    };
    let parsed: Result<Spanned<RawYaml>, _> = serde_saphyr::from_str_with_options(text, options);
    match parsed {
        Ok(raw) => Ok(node(raw, text)),
        Err(error) => Err(problem(&error)),
    }
}

fn problem(error: &serde_saphyr::Error) -> ConfigProblem {
    let error = error.without_snippet();
    let mark = error.location().filter(|at| at.line() > 0).map(mark);
    let message = error.render_with_formatter(&UserMessageFormatter);
    let message = message.split_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    ConfigProblem {
        line: mark.map(|mark| mark.line),
        column: mark.map(|mark| mark.column),
        hint: Some("look at the indentation and the quotes, here and on the line before".to_owned()),
        ..ConfigProblem::of_file(format!("not valid YAML: {message}"))
    }
}

fn mark(at: Location) -> TextPosition {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
    TextPosition { line: number(at.line()), column: number(at.column()) }
}

/// A value as the library hands it over, without the text it was read from.
enum RawYaml {
    Null,
    Plain(PlainScalar),
    Text(String),
    List(Vec<Spanned<RawYaml>>),
    Map(Vec<(Spanned<String>, Spanned<RawYaml>)>),
}

fn node(raw: Spanned<RawYaml>, text: &str) -> TreeNode {
    let value = match raw.value {
        RawYaml::Null => TreeValue::Null,
        RawYaml::Plain(scalar) => TreeValue::Plain(scalar, written(scalar, raw.defined, text)),
        RawYaml::Text(string) => TreeValue::Text(string),
        RawYaml::List(list) => TreeValue::List(list.into_iter().map(|raw| node(raw, text)).collect()),
        RawYaml::Map(map) => {
            let entry = |(key, raw): (Spanned<String>, _)| TreeEntry {
                at: mark(key.referenced),
                key: key.value,
                node: node(raw, text),
            };
            TreeValue::Map(map.into_iter().map(entry).collect())
        }
    };
    TreeNode { at: mark(raw.referenced), value, dropped: false }
}

/// A number or boolean as it stands in the file, so that `007` can be a name.
fn written(scalar: PlainScalar, at: Location, text: &str) -> String {
    let span = at.span();
    let range = span.byte_offset().zip(span.byte_len()).and_then(|(start, len)| {
        let start = usize::try_from(start).ok()?;
        text.get(start..start.checked_add(usize::try_from(len).ok()?)?)
    });
    match (range, scalar) {
        (Some(range), _) => range.trim().to_owned(),
        (None, PlainScalar::Bool(value)) => value.to_string(),
        (None, PlainScalar::Unsigned(value)) => value.to_string(),
        (None, PlainScalar::Signed(value)) => value.to_string(),
        (None, PlainScalar::Float(value)) => value.to_string(),
    }
}

impl<'de> Deserialize<'de> for RawYaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawYamlVisitor)
    }
}

struct RawYamlVisitor;

impl<'de> Visitor<'de> for RawYamlVisitor {
    type Value = RawYaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<RawYaml, E> {
        Ok(RawYaml::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawYaml, E> {
        Ok(RawYaml::Plain(PlainScalar::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawYaml, E> {
        Ok(RawYaml::Plain(PlainScalar::Unsigned(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawYaml, E> {
        let unsigned = u64::try_from(value).map(PlainScalar::Unsigned);
        Ok(RawYaml::Plain(unsigned.unwrap_or(PlainScalar::Signed(value))))
    }

    #[expect(clippy::cast_precision_loss, reason = "far beyond every range of the file")]
    fn visit_u128<E>(self, value: u128) -> Result<RawYaml, E> {
        Ok(RawYaml::Plain(PlainScalar::Float(value as f64)))
    }

    #[expect(clippy::cast_precision_loss, reason = "far beyond every range of the file")]
    fn visit_i128<E>(self, value: i128) -> Result<RawYaml, E> {
        Ok(RawYaml::Plain(PlainScalar::Float(value as f64)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawYaml, E> {
        Ok(RawYaml::Plain(PlainScalar::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<RawYaml, E> {
        Ok(RawYaml::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<RawYaml, E> {
        Ok(RawYaml::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawYaml, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = seq.next_element()? {
            list.push(element);
        }
        Ok(RawYaml::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawYaml, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(RawYaml::Map(entries))
    }
}
