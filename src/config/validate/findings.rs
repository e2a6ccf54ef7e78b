//! Findings: configuration errors and warnings.

use crate::config::report::problem::{ConfigProblem, Severity};
use crate::config::secret::NOT_HERE;
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::tree::TreeNode;

/// What was found so far.
#[derive(Debug)]
pub(in crate::config) struct Findings<'a> {
    tree: &'a TreeNode,
    /// Fields that could not be read and were reported then.
    dropped: &'a [FieldPath],
    problems: Vec<ConfigProblem>,
}

impl<'a> Findings<'a> {
    /// No findings yet about the file that `tree` is.
    pub(in crate::config) fn new(tree: &'a TreeNode, dropped: &'a [FieldPath]) -> Self {
        Self { tree, dropped, problems: Vec::new() }
    }

    /// All findings.
    pub(in crate::config) fn into_problems(self) -> Vec<ConfigProblem> {
        self.problems
    }

    /// The file cannot be used; `hint` says what to do.
    pub(in crate::config) fn error(
        &mut self,
        field: &FieldPath,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.push(Severity::Error, field, message.into(), hint.into());
    }

    /// The file hardly does what was meant.
    pub(in crate::config) fn warn(
        &mut self,
        field: &FieldPath,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.push(Severity::Warning, field, message.into(), hint.into());
    }

    /// Worth knowing.
    pub(in crate::config) fn info(
        &mut self,
        field: &FieldPath,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.push(Severity::Info, field, message.into(), hint.into());
    }

    /// Whether everything in the top-level section `name` could be read. If
    /// not, a name that seems to be missing from it may well be there.
    pub(in crate::config) fn whole(&self, name: &str) -> bool {
        let section = FieldPath::top(name);
        !self.dropped.iter().any(|dropped| dropped.is_within(&section) || section.is_within(dropped))
    }

    /// Whether anything was wrong, here or when the file was read.
    pub(in crate::config) fn any_error(&self) -> bool {
        !self.dropped.is_empty() || self.problems.iter().any(ConfigProblem::is_error)
    }

    /// How many errors there are so far, of those that this list holds.
    pub(in crate::config) fn errors(&self) -> usize {
        self.problems.iter().filter(|problem| problem.is_error()).count()
    }

    /// Checks a part of which the rest of the file does not depend: its errors are warnings. Returns
    /// whether there was none.
    pub(in crate::config) fn apart(&mut self, check: impl FnOnce(&mut Self)) -> bool {
        let from = self.problems.len();
        check(self);
        let mut is_good = true;
        for problem in self.problems[from..].iter_mut().filter(|problem| problem.is_error()) {
            problem.severity = Severity::Warning;
            is_good = false;
        }
        is_good
    }

    fn push(&mut self, severity: Severity, field: &FieldPath, message: String, hint: String) {
        if self.dropped.iter().any(|dropped| field.is_within(dropped)) {
            return;
        }
        let severity = if message.starts_with(NOT_HERE) { Severity::Info } else { severity };
        let mark = self.tree.locate(field);
        self.problems.push(ConfigProblem {
            severity,
            line: Some(mark.line),
            column: Some(mark.column),
            path: field.to_string(),
            message,
            hint: (!hint.is_empty()).then_some(hint),
        });
    }
}
