//! JSON scanner: finds the fields of one JSON object, and checks the whole text on the way.
//!
//! Strings are most of a request's bytes. The scanner finds their ends with vector instructions and
//! reads the rest byte by byte. It accepts what `serde_json` accepts.

use std::borrow::Cow;

use memchr::memchr2;
use smallvec::SmallVec;

/// The text is not one JSON object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidJson;

/// Calls `each` with the name and the value of every field of the object, in their order, and
/// `inner` with the name of every field inside these values, as it is written between its quotes.
///
/// # Errors
/// The text is not one valid JSON object. What stands before the fault has been passed on.
pub(crate) fn scan_object<'a>(
    text: &'a str,
    mut each: impl FnMut(Cow<'a, str>, &'a str),
    inner: impl FnMut(&'a str),
) -> Result<(), InvalidJson> {
    let mut scan = JsonScanner { text, at: 0, inner };
    scan.skip_space();
    scan.expect(b'{')?;
    scan.skip_space();
    if !scan.take(b'}') {
        loop {
            let name = scan.name()?;
            let start = scan.at;
            scan.skip_value()?;
            each(name, &text[start..scan.at]);
            scan.skip_space();
            if !scan.take(b',') {
                break;
            }
            scan.skip_space();
        }
        scan.expect(b'}')?;
    }
    scan.skip_space();
    if scan.at == text.len() { Ok(()) } else { Err(InvalidJson) }
}

/// A position in a text. After a fault the position has no meaning.
struct JsonScanner<'a, F> {
    text: &'a str,
    at: usize,
    inner: F,
}

impl<'a, F: FnMut(&'a str)> JsonScanner<'a, F> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Passes the byte if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), InvalidJson> {
        if self.take(byte) { Ok(()) } else { Err(InvalidJson) }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Reads the name of a field, and passes the colon and the space after it.
    fn name(&mut self) -> Result<Cow<'a, str>, InvalidJson> {
        let start = self.at;
        let has_escapes = self.skip_string()?;
        let quoted = &self.text[start..self.at];
        self.skip_colon()?;
        if has_escapes {
            return serde_json::from_str(quoted).map(Cow::Owned).map_err(|_| InvalidJson);
        }
        Ok(Cow::Borrowed(&quoted[1..quoted.len() - 1]))
    }

    fn skip_colon(&mut self) -> Result<(), InvalidJson> {
        self.skip_space();
        self.expect(b':')?;
        self.skip_space();
        Ok(())
    }

    fn skip_value(&mut self) -> Result<(), InvalidJson> {
        // The closing bytes of the arrays and objects around the value.
        let mut open: SmallVec<[u8; 32]> = SmallVec::new();
        loop {
            if let Some(close) = self.skip_start_of_value()? {
                open.push(close);
                continue;
            }
            loop {
                let Some(close) = open.last().copied() else { return Ok(()) };
                self.skip_space();
                if self.take(b',') {
                    self.skip_space();
                    if close == b'}' {
                        self.skip_name()?;
                    }
                    break;
                }
                self.expect(close)?;
                open.pop();
            }
        }
    }

    /// Passes a value. Of an array or object that is not empty, passes only what stands before the
    /// first value inside, and returns the closing byte.
    fn skip_start_of_value(&mut self) -> Result<Option<u8>, InvalidJson> {
        match self.peek().ok_or(InvalidJson)? {
            b'"' => _ = self.skip_string()?,
            b'{' => {
                self.at += 1;
                self.skip_space();
                if !self.take(b'}') {
                    self.skip_name()?;
                    return Ok(Some(b'}'));
                }
            }
            b'[' => {
                self.at += 1;
                self.skip_space();
                return Ok((!self.take(b']')).then_some(b']'));
            }
            b't' => self.skip_literal("true")?,
            b'f' => self.skip_literal("false")?,
            b'n' => self.skip_literal("null")?,
            _ => self.skip_number()?,
        }
        Ok(None)
    }

    fn skip_name(&mut self) -> Result<(), InvalidJson> {
        let start = self.at;
        self.skip_string()?;
        (self.inner)(&self.text[start + 1..self.at - 1]);
        self.skip_colon()
    }

    fn skip_literal(&mut self, literal: &str) -> Result<(), InvalidJson> {
        let found = self.text.as_bytes()[self.at..].starts_with(literal.as_bytes());
        self.at += literal.len();
        if found { Ok(()) } else { Err(InvalidJson) }
    }

    fn skip_number(&mut self) -> Result<(), InvalidJson> {
        self.take(b'-');
        if !self.take(b'0') {
            self.skip_digits()?;
        }
        if self.take(b'.') {
            self.skip_digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.skip_digits()?;
        }
        Ok(())
    }

    fn skip_digits(&mut self) -> Result<(), InvalidJson> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(InvalidJson) }
    }

    /// Passes a string. Returns whether it has escapes.
    fn skip_string(&mut self) -> Result<bool, InvalidJson> {
        self.expect(b'"')?;
        let mut has_escapes = false;
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let end = memchr2(b'"', b'\\', rest).ok_or(InvalidJson)?;
            if has_control(&rest[..end]) {
                return Err(InvalidJson);
            }
            self.at += end + 1;
            if rest[end] == b'"' {
                return Ok(has_escapes);
            }
            has_escapes = true;
            let is_hex = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
            self.at += match rest.get(end + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 1,
                Some(b'u') if rest.get(end + 2..end + 6).is_some_and(is_hex) => 5,
                _ => return Err(InvalidJson),
            };
        }
    }
}

/// Whether a control character is among the bytes. Reads all of them, so that the compiler can use
/// vector instructions.
fn has_control(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |found, byte| found | (*byte < b' '))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    fn fields(text: &str) -> Result<Vec<(String, String)>, InvalidJson> {
        let mut found = Vec::new();
        scan_object(text, |name, value| found.push((name.into_owned(), value.to_owned())), |_| ())?;
        Ok(found)
    }

    /// What `serde_json` finds in the text; `None` when it is not an object. Of fields that are
    /// given twice the last one counts.
    fn by_serde(text: &str) -> Option<BTreeMap<String, String>> {
        let found: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
        Some(found.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect())
    }

    fn assert_like_serde(text: &str) {
        let ours = fields(text).ok().map(|fields| fields.into_iter().collect::<BTreeMap<_, _>>());
        assert_eq!(ours, by_serde(text), "{text:?}");
    }

    #[test]
    fn values_and_their_places() {
        let text = r#" { "a" : [1, {"b": "}]\"\\"}] ,"c":{}, "mod\u0065l":"x\n" , "d":-1.5e+3,"e":[ ] }  "#;
        let expected = [
            ("a", r#"[1, {"b": "}]\"\\"}]"#),
            ("c", "{}"),
            ("model", r#""x\n""#),
            ("d", "-1.5e+3"),
            ("e", "[ ]"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(fields(text).unwrap(), expected);
        assert_eq!(fields("{}"), Ok(Vec::new()));
        let twice = fields(r#"{"a":1,"a":2}"#).unwrap();
        assert_eq!(twice.len(), 2, "both are passed on");
    }

    #[test]
    fn names_inside_the_values() {
        let mut names = Vec::new();
        let text = r#"{"a":[{"b":{"\u0063":"d"}},"e"],"f":{"":0}}"#;
        scan_object(text, |_, _| (), |name| names.push(name)).unwrap();
        assert_eq!(names, ["b", r"\u0063", ""]);
    }

    #[test]
    fn faults_are_those_of_serde() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
        for text in [
            "",
            " ",
            "{",
            "}",
            "[]",
            "1",
            "null",
            "{]",
            "{}x",
            "{} {}",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{\"a\" 1}",
            "{a:1}",
            "{\"a\":1 \"b\":2}",
            "{\"a\":[1,]}",
            "{\"a\":[1 2]}",
            "{\"a\":[}",
            "{\"a\":{]}",
            "{\"a\":{\"b\"}}",
            "{\"a\":{\"b\":1,}}",
            "{\"a\":{1:2}}",
            "{\"a\":tru}",
            "{\"a\":nulll}",
            "{\"a\":NaN}",
            "{\"a\":01}",
            "{\"a\":-}",
            "{\"a\":1.}",
            "{\"a\":.5}",
            "{\"a\":1e}",
            "{\"a\":1e+}",
            "{\"a\":+1}",
            "{\"a\":--1}",
            "{\"a\":0}",
            "{\"a\":-0.0E-7}",
            "{\"a\":\"x}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12g4\"}",
            "{\"a\":\"\\u12\"}",
            "{\"a\":\"\\",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\u{1f}\"}",
            "{\"a\":\"\u{7f}é😀\"}",
            "{\"\n\":1}",
            "{\"\\ud800\":1}",
            "{\"a\":\"\\ud800\"}",
            "\u{feff}{}",
            "{\"a\":1}\u{a0}",
            "{'a':1}",
            &deep,
        ] {
            assert_like_serde(text);
        }
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".{0,40}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::btree_map(".{0,6}", inner, 0..5)
                    .prop_map(|map| { serde_json::Value::Object(map.into_iter().collect()) }),
            ]
        })
    }

    proptest! {
        #[test]
        fn good_objects_are_read_like_serde(
            object in prop::collection::btree_map(".{0,8}", value(), 0..6),
            is_pretty in any::<bool>(),
        ) {
            let text = if is_pretty {
                serde_json::to_string_pretty(&object).unwrap()
            } else {
                serde_json::to_string(&object).unwrap()
            };
            assert_like_serde(&text);
        }

        #[test]
        fn broken_objects_are_judged_like_serde(
            object in prop::collection::btree_map("[a-c\\\\\"]{0,3}", value(), 0..4),
            changes in prop::collection::vec(
                (any::<prop::sample::Index>(), prop::sample::select(b"{}[]\",:\\ue019-+. tfn\n\x01".to_vec())),
                1..4,
            ),
        ) {
            let mut bytes = serde_json::to_vec(&object).unwrap();
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if let Ok(text) = std::str::from_utf8(&bytes) {
                assert_like_serde(text);
            }
        }
    }
}
