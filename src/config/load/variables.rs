//! Variables in values, which are not expanded: what to do in their place.

use crate::config::report::problem::{ConfigProblem, Severity};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::tree::{TreeNode, TreeValue};

const WHY: &str = "variables are not expanded, so that the file which was reviewed is the one in force, and its digest \
                   names it; write the value, fill the file in before the start (`envsubst`), or for a secret write {env: NAME}";

/// Explains errors about values with a variable in them, and warns about those that were taken as
/// they stand.
pub(super) fn explain(tree: &TreeNode, problems: &mut Vec<ConfigProblem>) {
    walk(tree, &FieldPath::default(), problems);
}

fn walk(node: &TreeNode, field: &FieldPath, problems: &mut Vec<ConfigProblem>) {
    match &node.value {
        TreeValue::Text(text) => {
            if let Some(variable) = variable(text) {
                found(variable, node, field, problems);
            }
        }
        TreeValue::List(nodes) => {
            for (at, node) in nodes.iter().enumerate() {
                walk(node, &field.index(at), problems);
            }
        }
        TreeValue::Map(entries) => {
            for entry in entries {
                walk(&entry.node, &field.key(&entry.key), problems);
            }
        }
        TreeValue::Null | TreeValue::Plain(..) => {}
    }
}

/// The first `${NAME}` of a text.
fn variable(text: &str) -> Option<&str> {
    let start = text.find("${")?;
    let end = start + text[start..].find('}')?;
    let name = &text[start + 2..end];
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
    (!name.is_empty() && name.chars().all(fits)).then(|| &text[start..=end])
}

fn found(variable: &str, node: &TreeNode, field: &FieldPath, problems: &mut Vec<ConfigProblem>) {
    let path = field.to_string();
    let mut known =
        problems.iter_mut().filter(|problem| problem.is_error() && problem.path == path).peekable();
    if known.peek().is_some() {
        known.for_each(|problem| problem.hint = Some(WHY.to_owned()));
        return;
    }
    problems.push(ConfigProblem {
        severity: Severity::Warning,
        line: Some(node.at.line),
        column: Some(node.at.column),
        path,
        message: format!("`{variable}` is taken as it stands"),
        hint: Some(WHY.to_owned()),
    });
}
