//! CSV twins of the lists: the same rows for spreadsheets and scripts (RFC 4180).

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::admin::operate::VerbError;
use crate::usage::bill::Bill;
use crate::usage::bill::text::{self, quoted};

/// Columns of the other lists. A dot leads into an object.
pub(in crate::admin) const QUEUES: &[&str] =
    &["tenant", "class", "model", "waiting", "bytes", "tokens", "oldest_seconds"];
pub(in crate::admin) const POOLS: &[&str] = &[
    "pool",
    "state",
    "closed",
    "models",
    "replicas",
    "in_service",
    "asleep",
    "running",
    "limit",
    "waiting",
    "desired",
    "desired_reason",
    "cold_start_seconds",
    "wake_seconds",
    "best.ttft_seconds",
    "best.itl_seconds",
    "best.read_tokens_per_second",
    "source.kind",
    "source.endpoints",
    "source.problem",
];
pub(in crate::admin) const REPLICAS: &[&str] = &[
    "replica",
    "pool",
    "state",
    "running",
    "limit",
    "prefill_tokens",
    "kv_tokens",
    "speed",
    "speed_factor",
    "expected_ttft_seconds",
    "held_back_by",
    "guests_held_back_by",
    "engine.running",
    "engine.waiting",
    "engine.kv_usage",
    "engine.slots",
    "engine.kv_tokens",
    "engine.max_model_len",
    "engine.age_seconds",
    "engine.problem",
];
pub(in crate::admin) const SHARES: &[&str] = &[
    "tenant",
    "class",
    "model",
    "waiting",
    "oldest_seconds",
    "predicted_wait_seconds",
    "running",
    "share",
    "used",
    "borrowed",
    "guaranteed",
    "quota",
    "blocked_by",
    "contends_with",
];
pub(in crate::admin) const TENANTS: &[&str] = &[
    "tenant",
    "parent",
    "weight",
    "default_class",
    "classes",
    "models",
    "waiting",
    "oldest_seconds",
    "bounds.requests",
    "bounds.bytes",
    "bounds.tokens",
    "limits",
    "overrides",
];

/// Answers with `body`, an object that has the rows under `list`: as JSON, or as CSV when the query
/// says `format=csv` or the header `accept` prefers `text/csv`.
///
/// # Errors
/// The format is not known.
pub(in crate::admin) fn answer(
    headers: &HeaderMap,
    query: Option<&str>,
    body: Value,
    list: &str,
    columns: &[&str],
) -> Result<Response, VerbError> {
    let asked = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let asked = asked.filter(|(key, _)| key == "format").last();
    let csv = match asked.as_ref().map(|(_, value)| &**value) {
        Some("csv") => true,
        Some("json") => false,
        Some(other) => return Err(unknown_format(other, "json, csv")),
        None => prefers_csv(headers),
    };
    if !csv {
        return Ok(Json(body).into_response());
    }
    let rows = body[list].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(csv_response(lines(rows, columns)))
}

/// Form of a bill.
#[derive(Debug, Clone, Copy)]
pub(in crate::admin) enum BillForm {
    Json,
    Csv,
    /// As the command line prints it.
    Table,
}

impl BillForm {
    /// The form that a request asks for, and its query without `format`.
    ///
    /// # Errors
    /// The format is not known.
    pub(in crate::admin) fn asked(headers: &HeaderMap, query: &str) -> Result<(Self, String), VerbError> {
        let (own, rest): (Vec<_>, Vec<_>) =
            query.split('&').partition(|pair| pair.split('=').next() == Some("format"));
        let form = match own.last().map(|pair| pair.trim_start_matches("format=")) {
            Some("json") => Self::Json,
            Some("csv") => Self::Csv,
            Some("table") => Self::Table,
            Some(other) => return Err(unknown_format(other, "json, csv, table")),
            None if prefers_csv(headers) => Self::Csv,
            None => Self::Json,
        };
        Ok((form, rest.join("&")))
    }

    pub(in crate::admin) fn answer(self, bill: &Bill) -> Response {
        match self {
            Self::Json => Json(text::json(bill)).into_response(),
            Self::Csv => csv_response(text::csv(bill)),
            Self::Table => text::table(bill).into_response(),
        }
    }
}

fn unknown_format(asked: &str, known: &str) -> VerbError {
    VerbError(StatusCode::BAD_REQUEST, format!("`format`: `{asked}` is none; there are: {known}"))
}

fn prefers_csv(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.unwrap_or_default().trim_start().starts_with("text/csv")
}

fn csv_response(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/csv; charset=utf-8; header=present")], text).into_response()
}

fn lines(rows: &[Value], columns: &[&str]) -> String {
    let head = columns.iter().map(|column| column.replace('.', "_")).collect::<Vec<_>>();
    let line = |row: &Value| {
        let cells = columns.iter().map(|column| {
            cell(column.split('.').try_fold(row, |value, key| value.get(key)).unwrap_or(&Value::Null))
        });
        cells.collect::<Vec<_>>().join(",") + "\r\n"
    };
    rows.iter().map(line).fold(head.join(",") + "\r\n", |text, line| text + &line)
}

/// A list of texts has a space between them; a list of objects stays JSON.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            quoted(&list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
        }
        Value::Array(_) | Value::Object(_) => quoted(&value.to_string()),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_quoted_and_no_formula() {
        let row = json!({
            "a": "x,\"y\"", "b": null, "c": { "d": -1.5 }, "e": "=1+1", "f": ["m", "n"], "g": [{ "h": 1 }],
        });
        assert_eq!(
            lines(&[row], &["a", "b", "c.d", "c.missing", "e", "f", "g"]),
            "a,b,c_d,c_missing,e,f,g\r\n\"x,\"\"y\"\"\",,-1.5,,'=1+1,m n,\"[{\"\"h\"\":1}]\"\r\n"
        );
    }
}
