//! JSON log line: formats a log event as one line of JSON.
//!
//! Every request writes such a line. The fields are therefore written straight into the line's
//! buffer.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Initial capacity of the line's buffer, in bytes: enough for the line of a request.
const LINE_BYTES: usize = 1024;

/// Writes `timestamp` and `level`, the event's own fields, then `target`.
pub(in crate::telemetry) struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let mut line = LineWriter(String::with_capacity(LINE_BYTES));
        line.0.push_str("{\"timestamp\":\"");
        SystemTime.format_time(&mut Writer::new(&mut line.0))?;
        line.0.push_str("\",\"level\":\"");
        line.0.push_str(metadata.level().as_str());
        line.0.push('"');
        event.record(&mut line);
        line.member("target");
        line.string(metadata.target());
        line.0.push_str("}\n");
        out.write_str(&line.0)
    }
}

struct LineWriter(String);

impl LineWriter {
    /// Begins a member. Names are Rust identifiers and need no escapes.
    fn member(&mut self, name: &str) {
        self.0.push_str(",\"");
        self.0.push_str(name);
        self.0.push_str("\":");
    }

    fn string(&mut self, text: &str) {
        self.0.push('"');
        self.escaped(text);
        self.0.push('"');
    }

    /// Appends the text with the escapes of a JSON string.
    fn escaped(&mut self, text: &str) {
        let mut rest = text;
        // Looks at all bytes, so that the compiler can use vector instructions.
        let has_escapes = text.bytes().fold(false, |found, byte| found | is_escaped(byte));
        while has_escapes && let Some(at) = rest.bytes().position(is_escaped) {
            let (plain, special) = rest.split_at(at);
            self.0.push_str(plain);
            match special.as_bytes()[0] {
                b'"' => self.0.push_str("\\\""),
                b'\\' => self.0.push_str("\\\\"),
                b'\n' => self.0.push_str("\\n"),
                control => self.display(format_args!("\\u{control:04x}")),
            }
            rest = &special[1..];
        }
        self.0.push_str(rest);
    }

    fn display(&mut self, value: impl fmt::Display) {
        // Writing to a String cannot fail.
        let _infallible = write!(self.0, "{value}");
    }
}

/// Whether a JSON string writes the byte with an escape.
const fn is_escaped(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

impl Visit for LineWriter {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.member(field.name());
        if value.is_finite() {
            self.0.push_str(ryu::Buffer::new().format_finite(value));
        } else {
            self.0.push_str("null");
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.member(field.name());
        self.0.push_str(itoa::Buffer::new().format(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.member(field.name());
        self.0.push_str(itoa::Buffer::new().format(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.member(field.name());
        self.0.push_str(if value { "true" } else { "false" });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.member(field.name());
        self.string(value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.member(field.name());
        self.0.push('"');
        let _infallible = write!(Escaping(self), "{value:?}");
        self.0.push('"');
    }
}

/// Writer that escapes its input for a JSON string.
struct Escaping<'a>(&'a mut LineWriter);

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.escaped(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use serde_json::{Value, json};

    use crate::telemetry::log::LogCapture;

    fn line(write: impl FnOnce()) -> Value {
        let capture = LogCapture::default();
        tracing::dispatcher::with_default(capture.dispatch(), write);
        let text = capture.text();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn every_kind_of_field_has_its_json_form() {
        let absent: Option<u64> = None;
        let line = line(|| {
            tracing::warn!(
                target: "a::b",
                count = 7_u64,
                below = -3_i64,
                share = 0.25,
                whole = 2.0,
                odd = f64::NAN,
                yes = true,
                absent,
                shown = %"say \"so\"",
                debug = ?Some("x\u{1}"),
                "what happened"
            );
        });
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
        let members = json!({
            "timestamp": line["timestamp"], "level": "WARN", "message": "what happened", "target": "a::b",
            "count": 7, "below": -3, "share": 0.25, "whole": 2.0, "odd": null, "yes": true,
            "shown": "say \"so\"", "debug": "Some(\"x\\u{1}\")",
        });
        assert_eq!(line, members);
    }

    proptest! {
        #[test]
        fn what_is_written_comes_back(text in any::<String>(), thousandths in any::<i32>()) {
            let number = f64::from(thousandths) / 1e3;
            let line = line(|| tracing::info!(text = &*text, shown = %text, number));
            prop_assert_eq!(&line["text"], &json!(text));
            prop_assert_eq!(&line["shown"], &json!(text));
            prop_assert_eq!(&line["number"], &json!(number));
        }
    }
}
