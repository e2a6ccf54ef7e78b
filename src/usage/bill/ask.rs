//! Bill query parser: dimensions, moments and URL queries as people write them.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::config::syntax::units::Span;
use crate::usage::bill::lines::Dimension;
use crate::usage::bill::{BillQuery, TimeShare};

/// Finds a dimension by its name.
///
/// # Errors
/// A sentence with the names of all dimensions.
pub fn dimension(text: &str) -> Result<Dimension, String> {
    let text = text.trim();
    let found = Dimension::ALL.into_iter().find(|dimension| dimension.name() == text);
    found.ok_or_else(|| {
        let names = Dimension::ALL.map(Dimension::name).join(", ");
        format!("`{text}` is nothing to sum by; there are: {names}")
    })
}

/// Parses a moment and returns milliseconds since 1970. A moment is a day (its start in UTC), a
/// time with a zone, or a time span before `now_ms`.
///
/// # Errors
/// A sentence that explains the formats.
pub fn moment(text: &str, now_ms: i64) -> Result<i64, String> {
    let text = text.trim();
    if let Ok(span) = text.parse::<Span>() {
        return Ok(now_ms.saturating_sub(i64::try_from(span.0.as_millis()).unwrap_or(i64::MAX)));
    }
    let day = |date: Date| Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp());
    let time = if text.contains(['T', 't']) {
        text.parse::<Timestamp>().ok()
    } else {
        text.parse::<Date>().ok().and_then(day)
    };
    time.map(Timestamp::as_millisecond).ok_or_else(|| {
        format!("`{text}` is no time: write a day such as 2027-01-31, a time such as 2027-01-31T12:00:00Z, or 7d for seven days ago")
    })
}

/// Parses the query string of a URL: `by=tenant,model&since=7d&share=tokens`.
///
/// # Errors
/// A sentence that names the problem.
pub fn from_url(query: &str, now_ms: i64) -> Result<BillQuery, String> {
    let mut asked = BillQuery::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = unescape(value);
        match name {
            "by" => {
                let names = value.split(',').filter(|name| !name.is_empty());
                for dimension in names.map(dimension).collect::<Result<Vec<_>, _>>()? {
                    if !asked.by.contains(&dimension) {
                        asked.by.push(dimension);
                    }
                }
            }
            "since" => asked.since_ms = Some(moment(&value, now_ms)?),
            "until" => asked.until_ms = Some(moment(&value, now_ms)?),
            "share" => {
                asked.share = match &*value {
                    "steps" => TimeShare::Steps,
                    "tokens" => TimeShare::Tokens,
                    _ => return Err(format!("`{value}` is no share; there are: steps, tokens")),
                }
            }
            _ => return Err(format!("`{name}` is not known; there are: by, since, until, share")),
        }
    }
    Ok(asked)
}

/// Decodes `%41` and `+`. A malformed escape stays as it is.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = hex.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = if byte.is_some() { &after[2..] } else { after };
        bytes.push(byte.unwrap_or(if *first == b'+' { b' ' } else { *first }));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    #[test]
    fn moments_are_days_times_or_ages() {
        assert_eq!(moment("2027-01-31", NOW).unwrap(), 1_801_353_600_000);
        assert_eq!(moment("2027-01-31T00:00:00+01:00", NOW).unwrap(), 1_801_350_000_000);
        assert_eq!(moment("1d12h", NOW).unwrap(), NOW - 129_600_000);
        for text in ["", "soon", "2027-02-30", "2027-01-31T12:00:00", "7"] {
            assert!(moment(text, NOW).unwrap_err().contains("is no time"), "{text}");
        }
    }

    #[test]
    fn a_url_asks_what_the_command_asks() {
        let asked =
            from_url("by=tenant%2Cday,tenant&since=7d&until=2027-01-31T00:00:00%2B01:00&share=tokens", NOW);
        let expected = BillQuery {
            by: vec![Dimension::Tenant, Dimension::Day],
            since_ms: Some(NOW - 7 * 86_400_000),
            until_ms: Some(1_801_350_000_000),
            share: TimeShare::Tokens,
        };
        assert_eq!(asked.unwrap(), expected);
        assert_eq!(from_url("", NOW).unwrap(), BillQuery::default());
        for (text, part) in [
            ("by=colour", "there are: tenant"),
            ("share=fair", "steps, tokens"),
            ("x=1", "`x`"),
            ("since=%zz", "no time"),
        ] {
            assert!(from_url(text, NOW).unwrap_err().contains(part), "{text}");
        }
    }
}
