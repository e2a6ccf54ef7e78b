//! Tree to typed values, with every error reported and not only the first.
//!
//! Serde stops at the first error. So the field at fault is reported, left
//! out (or, for a misspelt key, renamed to what was meant) and the tree is
//! read again. Each round settles one field, so the rounds end.

mod decode_error;
mod reader;

use serde::de::DeserializeOwned;

use crate::config::report::problem::{ConfigProblem, Severity};
use crate::config::syntax::decode::decode_error::DecodeError;
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::tree::TreeNode;

/// More than anybody reads at once.
const MAX_PROBLEMS: usize = 50;

/// What could be read of a tree.
#[derive(Debug)]
pub(in crate::config) struct Decoded<T> {
    /// The value; `None` when nothing useful is left.
    pub(in crate::config) value: Option<T>,
    /// Fields that were left out.
    pub(in crate::config) dropped: Vec<FieldPath>,
    /// What was wrong.
    pub(in crate::config) problems: Vec<ConfigProblem>,
}

/// Reads a `T` out of the tree; afterwards the tree holds what was read.
pub(in crate::config) fn decode<T: DeserializeOwned>(tree: &mut TreeNode) -> Decoded<T> {
    let mut dropped = Vec::new();
    let mut problems = Vec::new();
    loop {
        let error = match T::deserialize(reader::TreeReader(tree)) {
            Ok(value) => return Decoded { value: Some(value), dropped, problems },
            Err(error) => error,
        };
        let field = error.field();
        problems.push(problem(&error, &field, tree));
        if problems.len() >= MAX_PROBLEMS {
            return Decoded { value: None, dropped, problems };
        }
        if error.meant().is_some_and(|name| tree.rename(&field, name)) {
            continue;
        }
        if field.steps().is_empty() || !tree.drop_field(&field) {
            return Decoded { value: None, dropped, problems };
        }
        dropped.push(field);
    }
}

fn problem(error: &DecodeError, field: &FieldPath, tree: &TreeNode) -> ConfigProblem {
    let mark = error.at().unwrap_or_else(|| tree.locate(field));
    ConfigProblem {
        severity: Severity::Error,
        line: Some(mark.line),
        column: Some(mark.column),
        path: field.to_string(),
        message: error.message(),
        hint: error.hint(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::config::syntax::yaml;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Outer {
        count: u32,
        share: f64,
        name: String,
        kind: Option<Kind>,
        inner: Vec<Inner>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Keys,
        Off,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        flag: bool,
        offset: i8,
    }

    fn read(text: &str) -> (Option<Outer>, Vec<String>) {
        let decoded = decode(&mut yaml::parse(text).unwrap());
        (decoded.value, decoded.problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn types_are_what_the_target_wants() {
        let (outer, problems) =
            read("count: 3\nshare: 1\nname: 007\nkind: off\ninner:\n- {flag: true, offset: -4}\n- {}\n-\n");
        assert_eq!(problems, [""; 0]);
        let inner = vec![Inner { flag: true, offset: -4 }, Inner::default(), Inner::default()];
        let expected = Outer { count: 3, share: 1.0, name: "007".into(), kind: Some(Kind::Off), inner };
        assert_eq!(outer, Some(expected));
        assert_eq!(read("").0, Some(Outer::default()));
        assert_eq!(read("inner:\nname: 'true'\n").0.unwrap().name, "true");
    }

    #[test]
    fn every_misfit_is_reported_at_its_place() {
        let (outer, problems) = read(concat!(
            "cuont: 3\n",
            "share: much\n",
            "colour: red\n",
            "kind: on\n",
            "inner:\n",
            "  - flag: 1\n",
            "    offset: 200\n",
            "  - [a]\n",
        ));
        assert_eq!(
            problems,
            [
                "error at 1:1: cuont: unknown key (did you mean `count`?)",
                "error at 2:8: share: expected a number, found \"much\"",
                "error at 3:1: colour: unknown key (known here: count, inner, kind, name, share)",
                "error at 4:7: kind: unknown value `on` (known here: keys, off)",
                "error at 6:11: inner[0].flag: expected true or false, found 1",
                "error at 7:13: inner[0].offset: expected a whole number from -128 to 127, found 200",
                "error at 8:5: inner[1]: expected a map of keys and values, found a list",
            ]
        );
        let outer = outer.unwrap();
        assert_eq!((outer.count, outer.inner.len()), (3, 1));
    }

    #[test]
    fn a_file_of_the_wrong_shape_is_one_problem() {
        let (outer, problems) = read("- a\n- b\n");
        assert_eq!(outer, None);
        assert_eq!(problems, ["error at 1:1: expected a map of keys and values, found a list"]);
    }

    #[test]
    fn a_hopeless_file_ends() {
        let text = (0..1000).fold(String::new(), |text, n| text + &format!("zzzzzz{n}: 1\n"));
        let (outer, problems) = read(&text);
        assert_eq!(outer, None);
        assert_eq!(problems.len(), MAX_PROBLEMS);
    }
}
