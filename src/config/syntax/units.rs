//! Durations and sizes as people write them: `250ms`, `1h30m`, `32MiB`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

/// A length of time, such as `30s`, `250ms` or `1h30m`; at most 366 days, so
/// that no sum with a clock can overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

/// A number of bytes, such as `64KiB`, `32MiB` or `1GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteSize(pub u64);

const MAX_SPAN: Duration = Duration::from_secs(366 * 86_400);

/// Units of time in milliseconds, the longest first.
const SPAN_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of size, the first of each value being the one that is written. The
/// short forms are those of Kubernetes.
const SIZE_UNITS: [(&str, u64); 13] = [
    ("TiB", 1 << 40),
    ("Ti", 1 << 40),
    ("GiB", 1 << 30),
    ("Gi", 1 << 30),
    ("MiB", 1 << 20),
    ("Mi", 1 << 20),
    ("KiB", 1 << 10),
    ("Ki", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl Span {
    /// That many milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// That many seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }
}

impl FromStr for Span {
    type Err = String;

    /// Reads one or more pairs of a whole number and a unit. The error's
    /// first line says what is wrong, the second what to do.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{}` is not a duration\nwrite it like 250ms, 30s, 5m or 1h30m", short(text));
        let mut rest = text.trim();
        if rest == "0" {
            return Ok(Self::default());
        }
        let mut millis: u64 = 0;
        let mut largest = u64::MAX;
        loop {
            let (number, after) = leading_number(rest).ok_or_else(wrong)?;
            let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let unit = unit.trim();
            let (_, factor) = SPAN_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
            if *factor >= largest {
                return Err(wrong());
            }
            largest = *factor;
            millis =
                number.checked_mul(*factor).and_then(|more| millis.checked_add(more)).unwrap_or(u64::MAX);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let span = Duration::from_millis(millis);
        if span > MAX_SPAN {
            return Err(format!("`{}` is longer than 366 days", short(text)));
        }
        Ok(Self(span))
    }
}

impl FromStr for ByteSize {
    type Err = String;

    /// Reads a whole number and a unit. The error's first line says what is
    /// wrong, the second what to do.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{}` is not a size\nwrite it like 64KiB, 32MiB or 1GiB", short(text));
        let (number, unit) = leading_number(text.trim()).ok_or_else(wrong)?;
        let unit = unit.trim();
        let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let bytes = number.checked_mul(*factor);
        bytes.map(Self).ok_or_else(|| format!("`{}` is larger than 16 EiB", short(text)))
    }
}

/// The whole number at the front, and what follows it.
fn leading_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

fn short(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in SPAN_UNITS {
            let whole = rest / factor;
            rest %= factor;
            if whole > 0 {
                write!(f, "{whole}{unit}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| self.0 > 0 && self.0.is_multiple_of(factor);
        let (unit, factor) = SIZE_UNITS.into_iter().find(|(_, factor)| fits(*factor)).unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpanVisitor;
        impl Visitor<'_> for SpanVisitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 250ms, 30s or 1h")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Span, E> {
                if number == 0 {
                    return Ok(Span::default());
                }
                Err(E::custom(format!("`{number}` has no unit\nwrite {number}s or {number}ms")))
            }
        }
        deserializer.deserialize_any(SpanVisitor)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 64KiB or 32MiB")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Whole numbers with units, the largest first: d, h, m, s, ms.",
            "pattern": "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$",
            "minLength": 2,
            "examples": ["250ms", "30s", "1h30m"],
        })
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "description": "A whole number with a unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), or a number of bytes.",
            "pattern": "^[0-9]+ *(B|KiB|MiB|GiB|TiB|Ki|Mi|Gi|Ti|kB|MB|GB|TB)$",
            "minimum": 0,
            "examples": ["64KiB", "32MiB", "1GiB"],
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn spans() {
        let parsed = |text: &str| text.parse::<Span>();
        assert_eq!(parsed("250ms"), Ok(Span::millis(250)));
        assert_eq!(parsed("1h30m"), Ok(Span::secs(5400)));
        assert_eq!(parsed("1d2h3m4s5ms"), Ok(Span::millis(93_784_005)));
        assert_eq!(parsed("0"), Ok(Span::default()));
        assert_eq!(parsed("0s"), Ok(Span::default()));
        for wrong in ["", "s", "5", "1.5s", "-1s", "3 weeks", "1m1h", "1s1s", "5S", "é1s", "1sé", "1h "] {
            let error = parsed(wrong).map(|span| span.to_string());
            if wrong == "1h " {
                assert_eq!(error.unwrap(), "1h");
            } else {
                assert!(error.unwrap_err().contains("write it like"), "{wrong:?}");
            }
        }
        assert!(parsed("400d").unwrap_err().contains("366 days"));
        assert!(parsed("18446744073709551615d").unwrap_err().contains("366 days"));
        assert!(parsed("99999999999999999999s").is_err());
        assert!(parsed(&"é".repeat(90)).is_err());
    }

    #[test]
    fn sizes() {
        let parsed = |text: &str| text.parse::<ByteSize>();
        assert_eq!(parsed("64KiB"), Ok(ByteSize(65_536)));
        assert_eq!(parsed("32 MiB"), Ok(ByteSize(32 << 20)));
        assert_eq!(parsed("2Gi"), Ok(ByteSize(2 << 30)));
        assert_eq!(parsed("5MB"), Ok(ByteSize(5_000_000)));
        assert_eq!(ByteSize(1536).to_string(), "1536B");
        assert_eq!(ByteSize(3 << 20).to_string(), "3MiB");
        assert_eq!(ByteSize(0).to_string(), "0B");
        for wrong in ["", "12", "1.5MiB", "-1B", "1mb", "1Mb", "MiB", "20000000TiB"] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(millis in 0..MAX_SPAN.as_millis() as u64, bytes: u64) {
            prop_assert_eq!(Span::millis(millis).to_string().parse(), Ok(Span::millis(millis)));
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = text.parse::<Span>();
            let _ = text.parse::<ByteSize>();
        }
    }
}
