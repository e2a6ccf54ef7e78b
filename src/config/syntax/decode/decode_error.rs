//! The error of one read: which field, why, and what was probably meant.

use std::fmt;

use serde::de::{Error, Expected, Unexpected};

use crate::config::report::problem::nearest;
use crate::config::syntax::field::{FieldPath, FieldStep};
use crate::config::syntax::tree::TextPosition;

/// Why a tree does not fit a type.
#[derive(Debug)]
pub(super) struct DecodeError(Box<DecodeErrorParts>);

#[derive(Debug)]
struct DecodeErrorParts {
    /// Innermost first: the reader adds steps on the way out.
    steps: Vec<FieldStep>,
    at: Option<TextPosition>,
    why: DecodeErrorKind,
}

#[derive(Debug)]
enum DecodeErrorKind {
    UnknownKey { name: String, known: &'static [&'static str] },
    UnknownValue { name: String, known: &'static [&'static str] },
    Other { message: String, hint: Option<String> },
}

impl DecodeError {
    fn new(why: DecodeErrorKind) -> Self {
        Self(Box::new(DecodeErrorParts { steps: Vec::new(), at: None, why }))
    }

    /// The error, seen from one level further up.
    pub(super) fn inside(mut self, step: FieldStep) -> Self {
        self.0.steps.push(step);
        self
    }

    /// The error at a place in the text, unless a nearer one is known.
    pub(super) fn near(mut self, mark: TextPosition) -> Self {
        self.0.at.get_or_insert(mark);
        self
    }

    /// Where it is in the text, if only the error knows.
    pub(super) fn at(&self) -> Option<TextPosition> {
        self.0.at
    }

    /// The field at fault.
    pub(super) fn field(&self) -> FieldPath {
        FieldPath::from_steps(self.0.steps.iter().rev().cloned())
    }

    /// The key that an unknown key probably stands for.
    pub(super) fn meant(&self) -> Option<&'static str> {
        match &self.0.why {
            DecodeErrorKind::UnknownKey { name, known } => nearest(name, known.iter().copied()),
            DecodeErrorKind::UnknownValue { .. } | DecodeErrorKind::Other { .. } => None,
        }
    }

    /// What is wrong.
    pub(super) fn message(&self) -> String {
        match &self.0.why {
            DecodeErrorKind::UnknownKey { .. } => "unknown key".to_owned(),
            DecodeErrorKind::UnknownValue { name, .. } => format!("unknown value `{name}`"),
            DecodeErrorKind::Other { message, .. } => message.clone(),
        }
    }

    /// What to do about it.
    pub(super) fn hint(&self) -> Option<String> {
        match &self.0.why {
            DecodeErrorKind::UnknownKey { name, known } | DecodeErrorKind::UnknownValue { name, known } => {
                Some(nearest(name, known.iter().copied()).map_or_else(
                    || format!("known here: {}", sorted(known).join(", ")),
                    |near| format!("did you mean `{near}`?"),
                ))
            }
            DecodeErrorKind::Other { hint, .. } => hint.clone(),
        }
    }
}

fn sorted(names: &[&'static str]) -> Vec<&'static str> {
    let mut names = names.to_vec();
    names.sort_unstable();
    names
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl std::error::Error for DecodeError {}

impl Error for DecodeError {
    /// The first line of the text is what is wrong, the second what to do.
    fn custom<T: fmt::Display>(text: T) -> Self {
        let text = text.to_string();
        let (message, hint) = match text.split_once('\n') {
            Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
            None => (text, None),
        };
        Self::new(DecodeErrorKind::Other { message, hint })
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let message = format!("expected {}, found {}", wanted(expected), shown(found));
        Self::new(DecodeErrorKind::Other { message, hint: None })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        Self::new(DecodeErrorKind::UnknownValue { name: name.to_owned(), known })
    }

    fn unknown_field(name: &str, known: &'static [&'static str]) -> Self {
        Self::new(DecodeErrorKind::UnknownKey { name: name.to_owned(), known })
    }

    fn missing_field(name: &'static str) -> Self {
        Self::new(DecodeErrorKind::Other { message: format!("`{name}` is missing"), hint: None })
    }
}

/// Serde names Rust types; operators want to read of values.
fn wanted(expected: &dyn Expected) -> String {
    let name = expected.to_string();
    let words = match name.as_str() {
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 up",
        "i8" => "a whole number from -128 to 127",
        "f64" => "a number",
        "a boolean" => "true or false",
        _ if name.starts_with("struct ") || name == "a map" => "a map of keys and values",
        _ if name.starts_with("enum ") => "a name",
        _ if name == "a sequence" => "a list",
        _ => return name,
    };
    words.to_owned()
}

fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Float(value) => value.to_string(),
        Unexpected::Str(text) => {
            let short: String = text.chars().take(60).collect();
            format!("{short:?}{}", if short.len() < text.len() { "..." } else { "" })
        }
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a map".to_owned(),
        other => other.to_string(),
    }
}
