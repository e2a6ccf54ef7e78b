//! Text output: tables and times for people.

use serde_json::Value;

/// Columns under headings, two spaces apart.
pub(in crate::app::commands) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = headings.iter().map(|text| (*text).to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&heading).chain(rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    all.iter().map(line).collect()
}

/// Rows of a table, one for each value of a list.
pub(super) fn rows(list: &Value, cells: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    list.as_array().into_iter().flatten().map(cells).collect()
}

/// A text or number as written; `-` for a missing one.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// A tenant's name, with that of the tenant that it belongs to: `search (acme)`.
pub(super) fn tenant_name(name: &Value, parent: &Value) -> String {
    match parent {
        Value::String(parent) => format!("{} ({parent})", plain(name)),
        _ => plain(name),
    }
}

/// A number of seconds for people; `-` for a missing one.
pub(super) fn time(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), span)
}

/// Seconds as text: `42 ms`, `3.2 s`, `3m12s`, `1h30m`, `2d04h`.
pub(in crate::app::commands) fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match whole {
        0 if seconds < 0.000_95 => format!("{:.0} us", seconds.max(0.0) * 1e6),
        0 if seconds < 0.01 => format!("{:.1} ms", seconds * 1e3),
        0 if seconds < 0.999_5 => format!("{:.0} ms", seconds * 1e3),
        0..60 => format!("{seconds:.1} s"),
        60..3_600 => pair(minutes, "m", whole % 60, "s"),
        3_600..86_400 => pair(hours, "h", minutes, "m"),
        _ => pair(days, "d", hours, "h"),
    }
}

/// Time of day in UTC, from seconds since 1970: `08:00:00.250`.
pub(super) fn clock_time(unix_seconds: f64) -> String {
    let millis = (unix_seconds.max(0.0) * 1e3).round() as u64 % 86_400_000;
    let (hours, minutes, seconds) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1000 % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{:03}", millis % 1000)
}

/// A number and its unit, followed by the smaller unit when that is not 0.
fn pair(large: u64, unit: &str, small: u64, smaller: &str) -> String {
    if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small:02}{smaller}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_shown_with_its_parent() {
        let name = Value::from("search");
        assert_eq!(tenant_name(&name, &Value::from("acme")), "search (acme)");
        assert_eq!(tenant_name(&name, &Value::Null), "search");
    }

    #[test]
    fn times_are_short() {
        for (seconds, text) in [
            (0.0, "0 us"),
            (0.000_06, "60 us"),
            (0.001_23, "1.2 ms"),
            (0.042, "42 ms"),
            (0.999_9, "1.0 s"),
            (3.21, "3.2 s"),
            (60.9, "1m"),
            (192.0, "3m12s"),
            (3_905.0, "1h05m"),
            (5_400.0, "1h30m"),
            (187_200.0, "2d04h"),
            (-1.0, "0 us"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(table(&["POOL", "N"], &rows), "POOL  N\na     1\nlong\n");
    }
}
