//! Names and references to them.

use crate::config::report::problem::nearest;
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;

/// Letters of the longest tenant, class or pool name: they become metric
/// labels.
const MAX_LABEL: usize = 64;
/// Letters of the longest model name.
const MAX_MODEL: usize = 256;

/// Checks the name of a tenant, class or pool.
pub(in crate::config) fn label(name: &str, field: &FieldPath, findings: &mut Findings<'_>) {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > MAX_LABEL || !name.bytes().all(fits) {
        let hint = format!("use 1 to {MAX_LABEL} of the letters a-z, A-Z, 0-9, `.`, `_` and `-`");
        findings.error(field, "is not a usable name", hint);
    }
}

/// Checks the name of a model, which may hold slashes and colons.
pub(in crate::config) fn model(name: &str, field: &FieldPath, findings: &mut Findings<'_>) {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > MAX_MODEL || name.contains(odd) {
        let hint = format!("use 1 to {MAX_MODEL} bytes without white space");
        findings.error(field, format!("{name:?} is not a usable model name"), hint);
    }
}

/// Reports a name that stands for nothing.
pub(in crate::config) fn unknown<'a>(
    what: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) {
    let known: Vec<&str> = known.into_iter().collect();
    let hint = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => format!("there is no {what} in this file"),
        None => format!("known: {}", shortened(&known)),
    };
    findings.error(field, format!("there is no {what} `{name}`"), hint);
}

/// The first names of a list that may be long.
fn shortened(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}
