//! Checks of single values: the version, spans, shares, counts, sizes, header names.

use std::time::Duration;

use http::HeaderName;

use crate::config::settings::HeaderNames;
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::{ByteSize, Span};
use crate::config::validate::findings::Findings;

/// The file format that this program reads.
const VERSION: u32 = 1;

/// Headers that mean something else already.
const TAKEN_HEADERS: [&str; 9] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "te",
    "transfer-encoding",
    "x-api-key",
];

pub(in crate::config) fn version(version: Option<u32>, findings: &mut Findings<'_>) {
    let field = FieldPath::top("version");
    match version {
        Some(VERSION) => {}
        Some(other) => {
            findings.error(&field, format!("{other} is not a known version"), "write `version: 1`");
        }
        None => findings.error(&field, "is missing", "begin the file with `version: 1`"),
    }
}

/// A time limit that must not be zero.
pub(in crate::config) fn positive(span: Span, field: &FieldPath, findings: &mut Findings<'_>) -> Duration {
    if span.0.is_zero() {
        findings.error(field, "must not be zero", "write a time such as 30s");
    }
    span.0
}

/// A share from 0 to 1; not-a-number is none.
pub(in crate::config) fn share(share: f64, field: &FieldPath, findings: &mut Findings<'_>) -> f64 {
    if (0.0..=1.0).contains(&share) {
        return share;
    }
    findings.error(field, format!("{share} is not a share"), "write a number from 0 to 1");
    0.0
}

/// A number that must not be zero.
pub(in crate::config) fn at_least_one(number: u64, field: &FieldPath, findings: &mut Findings<'_>) -> u64 {
    if number == 0 {
        findings.error(field, "must not be zero", "write 1 or more, or leave the key out");
    }
    number
}

/// A size that must not be zero.
pub(in crate::config) fn some_bytes(size: ByteSize, field: &FieldPath, findings: &mut Findings<'_>) -> u64 {
    if size.0 == 0 {
        findings.error(field, "must not be zero", "write a size such as 32MiB");
    }
    size.0
}

/// Names of headers, and beginnings of names that end with `*`.
pub(in crate::config) fn headers(
    names: &[String],
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> HeaderNames {
    let mut all = HeaderNames::default();
    for (at, name) in names.iter().enumerate() {
        let lower = name.to_ascii_lowercase();
        let whole = lower.strip_suffix('*').unwrap_or(&lower);
        if HeaderName::from_bytes(whole.as_bytes()).is_err() {
            let message = format!("{name:?} is not a header name");
            findings.error(
                &field.index(at),
                message,
                "write one such as x-team, or x-team-* for all that begin so",
            );
        }
        let list = if whole == lower { &mut all.names } else { &mut all.prefixes };
        list.push(whole.to_owned());
    }
    all
}

/// The name of a header that means nothing else, in lower case.
pub(in crate::config) fn header(name: &str, field: &FieldPath, findings: &mut Findings<'_>) -> String {
    let lower = name.to_ascii_lowercase();
    if HeaderName::from_bytes(name.as_bytes()).is_err() {
        findings.error(field, format!("{name:?} is not a header name"), "write one such as x-penstock-class");
    } else if TAKEN_HEADERS.contains(&lower.as_str()) {
        findings.error(field, format!("`{name}` means something else"), "write one such as x-penstock-class");
    }
    lower
}
