//! Configuration problems, for people and for machines.

use std::fmt;

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but hardly does what was meant.
    Warning,
    /// Worth knowing.
    Info,
}

impl Severity {
    /// Short stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// One finding about a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigProblem {
    /// How bad it is.
    pub severity: Severity,
    /// Line in the file, from 1.
    pub line: Option<u32>,
    /// Column in that line, from 1, in characters.
    pub column: Option<u32>,
    /// The field, such as `pools.llama.replicas[0]`; empty for the file itself.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ConfigProblem {
    /// An error of the file as a whole.
    pub fn of_file(message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            line: None,
            column: None,
            path: String::new(),
            message: message.into(),
            hint: None,
        }
    }

    /// Whether the file cannot be used because of it.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.severity.name())?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, " at {line}:{column}")?;
        }
        write!(f, ": ")?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

/// The candidate that `name` most likely stands for, if one is near enough.
///
/// Case, `-` and `_` do not count; otherwise up to a third of the letters may
/// be wrong, missing or swapped.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = folded(name);
    let scored = candidates.into_iter().filter_map(|candidate| {
        let other = folded(candidate);
        let limit = (name.chars().count().max(other.chars().count()) / 3).min(4);
        let distance = strsim::damerau_levenshtein(&name, &other);
        (distance <= limit).then_some((distance, candidate))
    });
    scored.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

fn folded(name: &str) -> String {
    let letters = name.chars().take(128).filter(|c| !matches!(c, '-' | '_'));
    letters.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_forgives_spelling_but_does_not_guess() {
        let known = ["max_seqs", "kv_tokens", "replicas"];
        assert_eq!(nearest("maxSeqs", known), Some("max_seqs"));
        assert_eq!(nearest("max_seq", known), Some("max_seqs"));
        assert_eq!(nearest("kv_tokesn", known), Some("kv_tokens"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest(&"x".repeat(100_000), known), None);
    }

    #[test]
    fn display_names_place_and_fix() {
        let problem = ConfigProblem {
            line: Some(3),
            column: Some(5),
            path: "queue".into(),
            hint: Some("write 1 or more".into()),
            ..ConfigProblem::of_file("must not be zero")
        };
        assert_eq!(problem.to_string(), "error at 3:5: queue: must not be zero (write 1 or more)");
        assert_eq!(ConfigProblem::of_file("is empty").to_string(), "error: is empty");
    }
}
