//! Prometheus text: the samples of a `/metrics` answer (text 0.0.4, `version=1.0.0` and
//! OpenMetrics). A line that is no sample is counted and skipped. Nothing is copied, except a label
//! value with an escape in it.

use std::borrow::Cow;

/// Samples of `text`, in its order.
pub fn samples(text: &str) -> Samples<'_> {
    Samples { rest: text, skipped: 0 }
}

/// Counts of one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParseCount {
    pub samples: u64,
    pub labels: u64,
    /// Lines that are neither a sample nor a comment nor empty.
    pub skipped: u64,
}

/// Reads any bytes as Prometheus text and counts its samples and labels. Bytes that are not UTF-8
/// are replaced first.
pub fn count(bytes: &[u8]) -> ParseCount {
    let text = String::from_utf8_lossy(bytes);
    let mut count = ParseCount::default();
    let mut lines = samples(&text);
    for sample in lines.by_ref() {
        count.samples += 1;
        count.labels += u64::try_from(sample.labels().count()).unwrap_or(u64::MAX);
    }
    count.skipped = lines.skipped();
    count
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromSample<'a> {
    /// Metric name, with its suffix (`_total`, `_bucket`, ...).
    pub name: &'a str,
    /// Value; `NaN` and the infinities are possible.
    pub value: f64,
    /// Timestamp as written: milliseconds in the Prometheus format, seconds in OpenMetrics.
    pub timestamp: Option<f64>,
    labels: &'a str,
}

impl<'a> PromSample<'a> {
    /// Labels, in their order.
    pub fn labels(&self) -> Labels<'a> {
        Labels { rest: self.labels }
    }

    /// Value of the first label with this name.
    pub fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        self.labels().find(|(label, _)| *label == name).map(|(_, value)| value)
    }
}

/// Iterator over the samples of a text.
#[derive(Debug, Clone)]
pub struct Samples<'a> {
    rest: &'a str,
    skipped: u64,
}

impl Samples<'_> {
    /// Number of unreadable lines so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl<'a> Iterator for Samples<'a> {
    type Item = PromSample<'a>;

    fn next(&mut self) -> Option<PromSample<'a>> {
        while !self.rest.is_empty() {
            let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
            self.rest = rest;
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(sample) = read_line(line) {
                return Some(sample);
            }
            self.skipped += 1;
        }
        None
    }
}

/// Iterator over the labels of a sample: name and unescaped value.
#[derive(Debug, Clone)]
pub struct Labels<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a str, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, raw, rest) = split_label(self.rest)?;
        self.rest = rest;
        Some((name, unescape(raw)))
    }
}

/// Reads a line of the form `name{labels} value [timestamp] [# exemplar]`.
fn read_line(line: &str) -> Option<PromSample<'_>> {
    let (name, rest) = split_name(line, true)?;
    let after_name = rest.trim_start_matches(BLANK);
    let (labels, rest) = match after_name.strip_prefix('{') {
        Some(block) => split_labels(block)?,
        None if after_name.len() < rest.len() => ("", after_name),
        None => return None,
    };
    let mut words = rest.split(BLANK).filter(|word| !word.is_empty());
    let value = words.next()?.parse().ok()?;
    let mut tail = words.take_while(|word| !word.starts_with('#'));
    let timestamp = match tail.next() {
        Some(word) => Some(word.parse().ok()?),
        None => None,
    };
    if tail.next().is_some() {
        return None;
    }
    Some(PromSample { name, value, timestamp, labels })
}

const BLANK: [char; 2] = [' ', '\t'];

/// Splits off a metric name (with colons) or a label name. Returns the name and the rest.
fn split_name(text: &str, colons: bool) -> Option<(&str, &str)> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || (colons && byte == b':');
    let end = text.bytes().position(|byte| !allowed(byte)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    (!name.is_empty() && !name.as_bytes()[0].is_ascii_digit()).then_some((name, rest))
}

/// Splits off the labels up to the closing brace. Returns the labels and the text after the brace.
/// `None` unless all labels are well formed.
fn split_labels(block: &str) -> Option<(&str, &str)> {
    let mut rest = block.trim_start_matches(BLANK);
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            let labels = &block[..block.len() - rest.len()];
            return Some((labels, after));
        }
        (_, _, rest) = split_label(rest)?;
    }
}

/// Splits off one label. Returns its name, its raw value, and the text after its comma.
fn split_label(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = split_name(text.trim_start_matches(BLANK), false)?;
    let rest = rest.trim_start_matches(BLANK).strip_prefix('=')?;
    let quoted = rest.trim_start_matches(BLANK).strip_prefix('"')?;
    let mut escaped = false;
    let end = quoted.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })?;
    let rest = quoted[end + 1..].trim_start_matches(BLANK);
    let rest = match rest.strip_prefix(',') {
        Some(next) => next.trim_start_matches(BLANK),
        None if rest.is_empty() || rest.starts_with('}') => rest,
        None => return None,
    };
    Some((name, &quoted[..end], rest))
}

fn unescape(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    let mut text = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            text.push(char);
            continue;
        }
        match chars.next() {
            Some('n') => text.push('\n'),
            Some(known @ ('\\' | '"')) => text.push(known),
            Some(other) => text.extend(['\\', other]),
            None => text.push('\\'),
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Parts = (String, Vec<(String, String)>, f64, Option<f64>);

    fn one(line: &str) -> Option<Parts> {
        let sample = samples(line).next()?;
        let labels = sample.labels().map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
        Some((sample.name.to_owned(), labels, sample.value, sample.timestamp))
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn reads_the_forms_that_engines_write() {
        assert_eq!(one("up 1"), Some(("up".into(), vec![], 1.0, None)));
        assert_eq!(one("a:b_total{} 2.5e3 1700"), Some(("a:b_total".into(), vec![], 2500.0, Some(1700.0))));
        assert_eq!(
            one("x { a = \"1\" , b=\"2\", }\t3\r"),
            Some(("x".into(), vec![pair("a", "1"), pair("b", "2")], 3.0, None))
        );
        assert_eq!(
            one(r#"h_bucket{le="+Inf"} 4 1.5 # {trace_id="a b"} 0.1 1.4"#),
            Some(("h_bucket".into(), vec![pair("le", "+Inf")], 4.0, Some(1.5)))
        );
        assert_eq!(one(r#"h{le="1"}4 # {} 1"#), Some(("h".into(), vec![pair("le", "1")], 4.0, None)));
    }

    #[test]
    fn reads_special_values() {
        assert!(samples("a NaN").next().is_some_and(|sample| sample.value.is_nan()));
        let values: Vec<f64> = samples("a +Inf\na -Inf\na -0").map(|sample| sample.value).collect();
        assert_eq!(values, [f64::INFINITY, f64::NEG_INFINITY, 0.0]);
    }

    #[test]
    fn unescapes_label_values() {
        let (_, labels, _, _) = one(r#"a{x="q\"}\\ \n \t",y="ü,{}"} 1"#).unwrap();
        assert_eq!(labels, [pair("x", "q\"}\\ \n \\t"), pair("y", "ü,{}")]);
        let sample = samples(r#"a{x="1",x="2"} 1"#).next().unwrap();
        assert_eq!(sample.label("x").as_deref(), Some("1"));
        assert_eq!(sample.label("z"), None);
    }

    #[test]
    fn skips_and_counts_what_is_no_sample() {
        let bad = [
            "1a 1",
            "a",
            "a b",
            "a{b} 1",
            "a{b=1} 1",
            "a{b=\"1\" 1",
            "a{b=\"1} 1",
            "a{b=\"1\"c=\"2\"} 1",
            "a 1 2 3",
            "a 1 x",
            "{a=\"b\"} 1",
            "a{b=\"1\\\"} 1",
            "<html>",
            "a-b 1",
        ];
        for line in bad {
            assert_eq!(one(line), None, "{line}");
        }
        let text = format!("# HELP a b\n\n{}\nok 1\n# EOF\n", bad.join("\n"));
        let mut lines = samples(&text);
        assert_eq!(lines.by_ref().map(|sample| sample.name).collect::<Vec<_>>(), ["ok"]);
        assert_eq!(lines.skipped(), u64::try_from(bad.len()).unwrap());
    }

    #[test]
    fn reads_a_real_exposition_whole() {
        let text = include_str!("../../tests/fixtures/vllm/metrics/idle_fresh.http");
        let body = text.split(">>>>").nth(1).and_then(|answer| answer.split_once("\r\n\r\n")).unwrap().1;
        let count = count(body.as_bytes());
        let written = body.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
        assert_eq!((count.samples, count.skipped), (u64::try_from(written).unwrap(), 0));
        assert!(count.labels > count.samples);
    }

    fn escape(value: &str) -> String {
        value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let text = String::from_utf8_lossy(&bytes);
            let lines = u64::try_from(text.split('\n').count()).unwrap();
            let count = count(&bytes);
            prop_assert!(count.samples + count.skipped <= lines);
        }

        #[test]
        fn almost_prometheus_is_harmless(text in r#"([ab_:1]|[{}=", \\\n#\t\r]|NaN|é){0,64}"#) {
            let count = count(text.as_bytes());
            prop_assert!(count.samples + count.skipped <= 65);
        }

        #[test]
        fn what_is_written_is_read(
            name in "[a-zA-Z_:][a-zA-Z0-9_:]{0,8}",
            labels in proptest::collection::vec(("[a-zA-Z_][a-zA-Z0-9_]{0,5}", any::<String>()), 0..4),
            value in any::<f64>().prop_filter("comparable", |value| !value.is_nan()),
        ) {
            let inner: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
            let line = format!("{name}{{{}}} {value:?}\n", inner.join(","));
            prop_assert_eq!(one(&line), Some((name, labels, value, None)));
        }
    }
}
