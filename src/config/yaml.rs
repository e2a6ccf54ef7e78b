//! YAML text to a tree. The only file that knows the YAML library.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned, UserMessageFormatter};

use crate::config::problem::Problem;
use crate::config::tree::{Entry, Mark, Node, Scalar, Value};

/// Deeper than any configuration and shallow enough for every stack.
const MAX_DEPTH: usize = 32;
/// Values in one file.
const MAX_NODES: usize = 1_000_000;
/// Values that aliases may repeat.
const MAX_REPEATED: usize = 50_000;

/// Parses one document.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_nodes: MAX_NODES },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPEATED },
        strict_booleans: true,
        with_snippet: false,
    };
    let parsed: Result<Spanned<Raw>, _> = serde_saphyr::from_str_with_options(text, options);
    match parsed {
        Ok(raw) => Ok(node(raw, text)),
        Err(error) => Err(problem(&error)),
    }
}

fn problem(error: &serde_saphyr::Error) -> Problem {
    let error = error.without_snippet();
    let mark = error.location().filter(|at| at.line() > 0).map(mark);
    let message = error.render_with_formatter(&UserMessageFormatter);
    let message = message.split_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    Problem {
        line: mark.map(|mark| mark.line),
        column: mark.map(|mark| mark.column),
        hint: Some("look at the indentation and the quotes, here and on the line before".to_owned()),
        ..Problem::of_file(format!("not valid YAML: {message}"))
    }
}

fn mark(at: Location) -> Mark {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
    Mark { line: number(at.line()), column: number(at.column()) }
}

/// A value as the library hands it over, without the text it was read from.
enum Raw {
    Null,
    Plain(Scalar),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn node(raw: Spanned<Raw>, text: &str) -> Node {
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Plain(scalar) => Value::Plain(scalar, written(scalar, raw.defined, text)),
        Raw::Text(string) => Value::Text(string),
        Raw::List(list) => Value::List(list.into_iter().map(|raw| node(raw, text)).collect()),
        Raw::Map(map) => {
            let entry = |(key, raw): (Spanned<String>, _)| Entry {
                at: mark(key.referenced),
                key: key.value,
                node: node(raw, text),
            };
            Value::Map(map.into_iter().map(entry).collect())
        }
    };
    Node { at: mark(raw.referenced), value, dropped: false }
}

/// A number or boolean as it stands in the file, so that `007` can be a name.
fn written(scalar: Scalar, at: Location, text: &str) -> String {
    let span = at.span();
    let range = span.byte_offset().zip(span.byte_len()).and_then(|(start, len)| {
        let start = usize::try_from(start).ok()?;
        text.get(start..start.checked_add(usize::try_from(len).ok()?)?)
    });
    match (range, scalar) {
        (Some(range), _) => range.trim().to_owned(),
        (None, Scalar::Bool(value)) => value.to_string(),
        (None, Scalar::Unsigned(value)) => value.to_string(),
        (None, Scalar::Signed(value)) => value.to_string(),
        (None, Scalar::Float(value)) => value.to_string(),
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Plain(Scalar::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Plain(Scalar::Unsigned(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        let unsigned = u64::try_from(value).map(Scalar::Unsigned);
        Ok(Raw::Plain(unsigned.unwrap_or(Scalar::Signed(value))))
    }

    #[expect(clippy::cast_precision_loss, reason = "far beyond every range of the file")]
    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Plain(Scalar::Float(value as f64)))
    }

    #[expect(clippy::cast_precision_loss, reason = "far beyond every range of the file")]
    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Plain(Scalar::Float(value as f64)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Plain(Scalar::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = seq.next_element()? {
            list.push(element);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}
