//! Chat template: a model's template, rendered as Python's transformers renders it.

mod python;
mod shape;

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

/// The most steps of one rendering.
const FUEL: u64 = 2_000_000;
/// The stack that a rendering may need, in bytes. A template can nest values as deeply as it has
/// steps, and a value is dropped by recursion.
pub(super) const STACK_BYTES: usize = 256 << 20;
/// The bytes that a rendering may write, beyond four times the bytes of its request.
const MAX_ADDED_BYTES: usize = 16 << 20;
const NAME: &str = "chat";

/// A parsed template, ready to render.
pub(super) struct ChatTemplate {
    env: Environment<'static>,
    /// Whether the template takes content as a list of parts.
    pub(super) takes_parts: bool,
    /// Whether the template knows the role `developer`.
    pub(super) knows_developers: bool,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("takes_parts", &self.takes_parts).finish_non_exhaustive()
    }
}

/// The reason why a rendering failed.
#[derive(Debug)]
pub(super) enum RenderError {
    /// The caller no longer waits for the text.
    Stopped,
    /// The template refuses the request or takes too many steps, in this line of its source. The
    /// template's own message is left out, as it may quote the prompt.
    Failed { line: Option<usize> },
}

impl ChatTemplate {
    /// Parses a template's source.
    ///
    /// # Errors
    /// The error in the source.
    pub(super) fn new(source: &str) -> Result<Self, String> {
        let source = without_generation(source);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let syntax = syntax.map_err(|error| error.to_string())?;
        let parsed = parse(&source, NAME, syntax.clone()).map_err(|error| error_text(&error))?;
        let takes_parts = shape::takes_parts(&parsed);
        let knows_developers = source.contains("\"developer\"") || source.contains("'developer'");
        let mut env = Environment::new();
        env.set_syntax(syntax);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_fuel(Some(FUEL));
        env.set_formatter(|out, _, value| Ok(out.write_str(&python::display(value))?));
        env.set_unknown_method_callback(python::method);
        env.add_filter("tojson", python::to_json);
        env.add_filter("string", |value: Value| python::display(&value));
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        env.add_template_owned(NAME, source).map_err(|error| error_text(&error))?;
        Ok(Self { env, takes_parts, knows_developers })
    }

    /// The text that the template renders from the variables. `now` is the time that the template
    /// may print, in seconds since 1970. `bytes` is the size of the request, which bounds the size
    /// of the text.
    pub(super) fn render(
        &self,
        mut variables: Vec<(String, Value)>,
        now: i64,
        bytes: usize,
        stop: &AtomicBool,
    ) -> Result<String, RenderError> {
        let clock = Value::from_function(move |format: String| python::strftime(&format, now));
        variables.push(("strftime_now".to_owned(), clock));
        let mut out = BoundedText { text: Vec::new(), room: bytes.saturating_mul(4) + MAX_ADDED_BYTES, stop };
        let failed = |error: Error| RenderError::Failed { line: error.line() };
        let template = self.env.get_template(NAME).map_err(failed)?;
        let context = Value::from_pairs(variables);
        let rendered = template.render_captured_to(context, &mut out).map(drop);
        if stop.load(Ordering::Relaxed) {
            return Err(RenderError::Stopped);
        }
        rendered.map_err(failed)?;
        String::from_utf8(out.text).map_err(|_| RenderError::Failed { line: None })
    }
}

/// The error's message and line, without the template's source.
fn error_text(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error.line().map_or_else(|| detail.clone(), |line| format!("{detail} (line {line})"))
}

/// Writer of a text that fails when the text is too long or `stop` is set.
struct BoundedText<'a> {
    text: Vec<u8>,
    room: usize,
    stop: &'a AtomicBool,
}

impl Write for BoundedText<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("nobody waits for it"));
        }
        if self.text.len() + bytes.len() > self.room {
            return Err(io::Error::other("the text of the template is too long"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces `generation` tags, which mark the model's text for training, by tags without effect.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end) else { break };
        let inner = &rest[start + 2..end];
        let word = inner.trim_matches(['-', '+']).trim();
        let as_what = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        };
        out.push_str(&rest[..start + 2]);
        out.push_str(&inner.replacen(word, as_what, usize::from(word != as_what)));
        out.push_str("%}");
        rest = &rest[end + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, variables: &[(&str, serde_json::Value)]) -> Result<String, String> {
        let template = ChatTemplate::new(source)?;
        let value = |json: &serde_json::Value| serde_json::from_value::<Value>(json.clone()).unwrap();
        let variables = variables.iter().map(|(name, json)| ((*name).to_owned(), value(json))).collect();
        template.render(variables, 86_400, 0, &AtomicBool::new(false)).map_err(|error| match error {
            RenderError::Stopped => "stopped".to_owned(),
            RenderError::Failed { line } => format!("line {line:?}"),
        })
    }

    #[test]
    fn values_are_written_as_in_python() {
        let x = serde_json::json!({"a": [1, 2.0, null, true, "it's", "q\"'"], "b": {}, "é": 1e-7});
        for (source, text) in [
            ("{{ x }}", r#"{'a': [1, 2.0, None, True, "it's", 'q"\''], 'b': {}, 'é': 1e-07}"#),
            ("{{ x | tojson }}", r#"{"a": [1, 2.0, null, true, "it's", "q\"'"], "b": {}, "é": 1e-07}"#),
            ("{{ x['é'] | string ~ '|' }}", "1e-07|"),
            ("{{ x.b | tojson(indent=2) }}", "{}"),
            ("{{ [1, {'k': 2}] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"k\": 2\n  }\n]"),
            (
                "{{ {'b': 1, 'a': '<é\u{1}😀'} | tojson(ensure_ascii=true, sort_keys=true) }}",
                r#"{"a": "<\u00e9\u0001\ud83d\ude00", "b": 1}"#,
            ),
            ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
            ("{{ 'a.b.c'.rsplit('.', 1)[0] }}{{ 'xa'.removeprefix('x') }}", "a.ba"),
            ("{{ ' a '.strip() + 'b'.upper() }}{{ none }}{{ nothing }}", "aBNone"),
            ("{{ strftime_now('%d %b %Y') }}", "02 Jan 1970"),
            ("a\n  {% generation %}\nb\n  {%- endgeneration -%}\n c", "a\nbc"),
            (
                "{% set ns = namespace(n=0) %}{% for i in [1,2,3] %}{% if i == 3 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
                "3",
            ),
        ] {
            assert_eq!(render(source, &[("x", x.clone())]).as_deref(), Ok(text), "{source}");
        }
    }

    #[test]
    fn a_template_may_refuse_and_may_not_run_for_ever() {
        let refused = render("{{ raise_exception('no ' ~ 'roles') }}", &[]).unwrap_err();
        assert_eq!(refused, "line Some(1)");
        let endless = "{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}";
        assert!(render(endless, &[]).is_err());
        let long = "{% for a in range(9000) %}{{ 'xxxxxxxxxx' * 9000 }}{% endfor %}";
        assert!(render(long, &[]).is_err());
        assert!(render("{% for %}", &[]).unwrap_err().contains("line 1"));
    }

    #[test]
    fn values_that_are_nested_deeply_fit_the_stack() {
        let nested = "{% set ns = namespace(x=[]) %}{% for a in range(9000) %}{% for b in range(9000) %}\
                      {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let rendered = thread.spawn(move || render(nested, &[])).unwrap().join().unwrap();
        assert!(rendered.is_err(), "it takes too many steps");
    }

    #[test]
    fn a_rendering_stops_when_nobody_waits() {
        let template = ChatTemplate::new("{% for a in range(9000) %}{{ a }}{% endfor %}").unwrap();
        let stopped = template.render(Vec::new(), 0, 0, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(RenderError::Stopped)));
    }
}
