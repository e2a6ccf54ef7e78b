//! Edits of a request body without a copy: unchanged bytes are shared, only inserted text is new.

use std::convert::Infallible;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use smallvec::SmallVec;

use crate::protocol::api::Api;
use crate::protocol::request::parsed::{BodyForm, ParsedRequest};

/// A request body in pieces. A clone shares the bytes, so a retry copies nothing.
#[derive(Debug, Clone, Default)]
pub struct EditedBody {
    pieces: Vec<Bytes>,
    /// Number of the pieces that are sent.
    sent: usize,
    /// Bytes that are not sent yet.
    len: u64,
}

impl EditedBody {
    /// The number of bytes that are not sent yet.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether all bytes are sent.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces that are not sent yet.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces[self.sent..]
    }

    /// The whole body as one slice: a copy, unless the body is one piece.
    pub fn to_bytes(&self) -> Bytes {
        if let [only] = self.pieces() {
            return only.clone();
        }
        let mut whole = BytesMut::new();
        for piece in self.pieces() {
            whole.extend_from_slice(piece);
        }
        whole.freeze()
    }

    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len() as u64;
            self.pieces.push(piece);
        }
    }
}

impl From<Bytes> for EditedBody {
    fn from(whole: Bytes) -> Self {
        let mut spliced = Self::default();
        spliced.push(whole);
        spliced
    }
}

impl FromIterator<Bytes> for EditedBody {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut body = Self::default();
        pieces.into_iter().for_each(|piece| body.push(piece));
        body
    }
}

impl Body for EditedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.sent;
        let Some(piece) = self.pieces.get_mut(next).map(mem::take) else { return Poll::Ready(None) };
        self.sent += 1;
        self.len -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len)
    }
}

/// The changes to make in a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestEdits<'a> {
    /// The engine's own name for the model.
    pub model: Option<&'a str>,
    /// Whether to ask for the usage event of a stream. It applies only to streams of calls that
    /// have `stream_options`.
    pub include_usage: bool,
    /// The engine's scheduling priority, for JSON calls only.
    pub priority: Option<i64>,
    /// The JSON that replaces a priority of the client's own where there is no [`Self::priority`].
    pub usual_priority: Option<&'static str>,
    /// The salt of the engine's prefix cache, for JSON calls only. `None` leaves the client's.
    pub cache_salt: Option<&'a str>,
    /// The partial answer to continue. Allowed only where [`ParsedRequest::is_resumable`].
    pub partial_text: Option<PartialText<'a>>,
}

/// The part of an answer that exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialText<'a> {
    /// The text of the part. When the text is empty, the engine is asked for the whole answer.
    pub text: &'a str,
    /// The tokens of the part. The limits on the rest of the answer are lowered by this number.
    pub tokens: u64,
}

/// Applies `edits` to the body that `parsed` was parsed from.
pub fn edit(body: &Bytes, parsed: &ParsedRequest, edits: &RequestEdits<'_>) -> EditedBody {
    let mut changes = match &parsed.spans.form {
        BodyForm::Json => json_changes(parsed, edits),
        BodyForm::Multipart { boundary } => form_changes(parsed, edits, boundary),
    };
    changes.sort_by_key(|(span, _)| span.start);
    splice(body, changes)
}

/// Replaces `span`, which must lie inside `body`, by `text`.
pub(crate) fn replace(body: &Bytes, span: Range<usize>, text: String) -> EditedBody {
    splice(body, smallvec::smallvec![(span, text)])
}

type BodyEdits = SmallVec<[(Range<usize>, String); 4]>;

fn splice(body: &Bytes, changes: BodyEdits) -> EditedBody {
    let mut spliced = EditedBody::default();
    let mut at = 0;
    for (span, text) in changes {
        // Spans come from the same body. A span of another body is left out.
        if span.start < at || span.end < span.start || span.end > body.len() {
            continue;
        }
        spliced.push(body.slice(at..span.start));
        spliced.push(Bytes::from(text));
        at = span.end;
    }
    spliced.push(body.slice(at..));
    spliced
}

fn json_changes(parsed: &ParsedRequest, edits: &RequestEdits<'_>) -> BodyEdits {
    let spans = &parsed.spans;
    let mut json = JsonEdits::default();
    if let Some(model) = edits.model.filter(|model| parsed.model.as_deref() != Some(*model)) {
        json.set(spans.model.as_ref(), "model", json_string(model));
    }
    if let Some(salt) = edits.cache_salt {
        json.set(spans.cache_salt.as_ref(), "cache_salt", json_string(salt));
    }
    match (edits.priority, &spans.priority) {
        (Some(priority), own) => json.set(own.as_ref(), "priority", priority.to_string()),
        (None, Some(own)) => {
            json.changes.extend(edits.usual_priority.map(|usual| (own.clone(), usual.to_owned())));
        }
        (None, None) => {}
    }
    if edits.include_usage && parsed.stream && parsed.api.has_stream_options() && !parsed.stream_usage.at_end
    {
        match (&spans.include_usage, spans.options_insert_at) {
            (Some(span), _) => json.changes.push((span.clone(), "true".to_owned())),
            (None, Some(at)) => {
                let comma = if spans.options_empty { "" } else { "," };
                json.changes.push((at..at, format!("\"include_usage\":true{comma}")));
            }
            (None, None) => {
                let value = "{\"include_usage\":true}".to_owned();
                json.set(spans.stream_options.as_ref(), "stream_options", value);
            }
        }
    }
    match edits.partial_text.filter(|begun| !begun.text.is_empty()) {
        Some(begun) => continue_answer(parsed, begun, &mut json),
        None => lower_limits(parsed, 0, &mut json),
    }
    if spans.is_empty {
        json.new_fields.pop();
    }
    if !json.new_fields.is_empty() {
        json.changes.push((spans.insert_at..spans.insert_at, json.new_fields));
    }
    json.changes
}

/// Asks for the rest of an answer. A chat gets the partial answer as a last assistant message; a
/// completion gets it at the end of its prompt.
fn continue_answer(parsed: &ParsedRequest, begun: PartialText<'_>, json: &mut JsonEdits) {
    let spans = &parsed.spans;
    let Some(end) = spans.context.as_ref().and_then(|context| context.end.checked_sub(1)) else { return };
    let text = json_string(begun.text);
    if parsed.api == Api::Chat {
        let message = format!(",{{\"role\":\"assistant\",\"content\":{text}}}");
        json.changes.push((end..end, message));
        json.set(spans.continue_final.as_ref(), "continue_final_message", "true".to_owned());
        json.set(spans.generation_prompt.as_ref(), "add_generation_prompt", "false".to_owned());
    } else {
        json.changes.push((end..end, text[1..text.len() - 1].to_owned()));
    }
    lower_limits(parsed, begun.tokens, json);
}

/// Lowers the limits on the output to what fits the context window, less the tokens that exist
/// already.
fn lower_limits(parsed: &ParsedRequest, said: u64, json: &mut JsonEdits) {
    if said == 0 && parsed.lowered.is_none() {
        return;
    }
    for limit in &parsed.spans.limits {
        let most = parsed.lowered.unwrap_or(u64::MAX);
        let left = limit.tokens.min(most).saturating_sub(said).max(limit.min_tokens);
        if left != limit.tokens {
            json.changes.push((limit.span.clone(), left.to_string()));
        }
    }
}

#[derive(Default)]
struct JsonEdits {
    changes: BodyEdits,
    /// The fields to add, each followed by a comma.
    new_fields: String,
}

impl JsonEdits {
    fn set(&mut self, span: Option<&Range<usize>>, name: &str, value: String) {
        match span {
            Some(span) => self.changes.push((span.clone(), value)),
            None => self.new_fields.extend(["\"", name, "\":", &value, ","]),
        }
    }
}

fn form_changes(parsed: &ParsedRequest, edits: &RequestEdits<'_>, boundary: &str) -> BodyEdits {
    let mut changes = BodyEdits::new();
    let Some(model) = edits.model.filter(|model| parsed.model.as_deref() != Some(*model)) else {
        return changes;
    };
    match &parsed.spans.model {
        Some(span) => changes.push((span.clone(), model.to_owned())),
        None => {
            let at = parsed.spans.insert_at;
            let header = "Content-Disposition: form-data; name=\"model\"";
            changes.push((at..at, format!("--{boundary}\r\n{header}\r\n\r\n{model}\r\n")));
        }
    }
    changes
}

pub(crate) fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::BodyExt;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::request::parse::parse_request;

    fn edited(api: Api, content_type: &str, body: &str, edits: &RequestEdits<'_>) -> String {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", content_type.parse().unwrap());
        let body = Bytes::copy_from_slice(body.as_bytes());
        let spliced = edit(&body, &parse_request(api, &headers, &body).unwrap(), edits);
        let whole = spliced.to_bytes();
        assert_eq!(spliced.len(), whole.len() as u64);
        assert_eq!(spliced.size_hint().exact(), Some(spliced.len()));
        String::from_utf8(whole.to_vec()).unwrap()
    }

    #[test]
    fn usage_is_asked_for_in_every_form() {
        let edits = RequestEdits { include_usage: true, ..RequestEdits::default() };
        let cases = [
            (r#"{"stream":true}"#, r#"{"stream_options":{"include_usage":true},"stream":true}"#),
            (
                r#"{"stream":true,"stream_options":null}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream_options":{ },"stream":true}"#,
                r#"{"stream_options":{"include_usage":true },"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage": false,"a":1},"stream":true}"#,
                r#"{"stream_options":{"include_usage": true,"a":1},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"a":{}},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"a":{}},"stream":true}"#,
            ),
            (r#"{"stream_options":{"include_usage":true},"stream":true}"#, ""),
            (r#"{"stream":false}"#, ""),
        ];
        for (body, expected) in cases {
            let expected = if expected.is_empty() { body } else { expected };
            assert_eq!(edited(Api::Chat, "application/json", body, &edits), expected);
        }
        let body = r#"{"stream":true}"#;
        assert_eq!(edited(Api::Messages, "application/json", body, &edits), body);
        assert_eq!(edited(Api::Responses, "application/json", body, &edits), body);
    }

    #[test]
    fn fields_are_added_to_an_empty_object() {
        let edits = RequestEdits {
            model: Some("a\"b"),
            include_usage: true,
            priority: Some(-3),
            ..RequestEdits::default()
        };
        assert_eq!(edited(Api::Chat, "application/json", " { }", &RequestEdits::default()), " { }");
        let body = edited(Api::Chat, "application/json", " { }", &edits);
        assert_eq!(body, r#" {"model":"a\"b","priority":-3 }"#);
    }

    #[test]
    fn the_rest_of_an_answer_is_asked_for() {
        let begun = |text, tokens| RequestEdits {
            partial_text: Some(PartialText { text, tokens }),
            ..RequestEdits::default()
        };
        let chat =
            r#"{"messages":[{"role":"user","content":"a"} ],"stream":true,"max_tokens":9,"min_tokens":2}"#;
        assert_eq!(
            edited(Api::Chat, "application/json", chat, &begun("so \"é\"", 4)),
            r#"{"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"a"} ,{"role":"assistant","content":"so \"é\""}],"stream":true,"max_tokens":5,"min_tokens":0}"#
        );
        let told = r#"{"add_generation_prompt":true,"continue_final_message":null,"messages":[{}]}"#;
        assert_eq!(
            edited(Api::Chat, "application/json", told, &begun("x", 1)),
            r#"{"add_generation_prompt":false,"continue_final_message":true,"messages":[{},{"role":"assistant","content":"x"}]}"#
        );
        let completion = r#"{"prompt":"one\n","stream":true,"max_tokens":2}"#;
        assert_eq!(
            edited(Api::Completions, "application/json", completion, &begun(" two\n\t.", 3)),
            r#"{"prompt":"one\n two\n\t.","stream":true,"max_tokens":1}"#
        );
        assert_eq!(edited(Api::Chat, "application/json", chat, &begun("", 0)), chat);
    }

    #[test]
    fn limits_are_lowered_to_what_fits() {
        let body = Bytes::from(
            r#"{"messages":[{}],"max_tokens":50,"max_completion_tokens" : 9,"min_tokens":20,"stream":true}"#,
        );
        let mut headers = http::HeaderMap::new();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        let mut parsed = crate::protocol::request::parse::parse_request(Api::Chat, &headers, &body).unwrap();
        assert_eq!((parsed.output_field(&body), parsed.max_partial_tokens()), ("max_tokens", 8));
        let edited = |parsed: &ParsedRequest, edits: &RequestEdits<'_>| {
            let bytes = edit(&body, parsed, edits).to_bytes();
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        assert_eq!(edited(&parsed, &RequestEdits::default()), body);
        parsed.lowered = Some(7);
        assert_eq!(parsed.max_partial_tokens(), 6);
        let lowered = edited(&parsed, &RequestEdits::default());
        assert_eq!(
            lowered,
            r#"{"messages":[{}],"max_tokens":7,"max_completion_tokens" : 7,"min_tokens":7,"stream":true}"#
        );
        let begun = RequestEdits {
            partial_text: Some(PartialText { text: "so", tokens: 3 }),
            ..RequestEdits::default()
        };
        let rest: Value = serde_json::from_str(&edited(&parsed, &begun)).unwrap();
        assert_eq!((&rest["max_tokens"], &rest["min_tokens"]), (&4.into(), &4.into()));
    }

    #[test]
    fn forms_are_edited() {
        let edits = RequestEdits { model: Some("large"), priority: Some(1), ..RequestEdits::default() };
        let with = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nsmall\r\n--b--\r\n";
        let form = "multipart/form-data; boundary=b";
        assert_eq!(edited(Api::Transcriptions, form, with, &edits), with.replace("small", "large"));
        let without = "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nRIFF\r\n--b--\r\n";
        let added = edited(Api::Transcriptions, form, without, &edits);
        assert!(added.ends_with(without));
        assert_eq!(edited(Api::Transcriptions, form, &added, &edits), added);
    }

    #[test]
    fn a_body_is_read_piece_by_piece() {
        let mut spliced = replace(&Bytes::from("abcdef"), 2..3, "XYZ".to_owned());
        let again = spliced.clone();
        let mut read = Vec::new();
        while !spliced.is_end_stream() {
            let left = spliced.size_hint().exact().unwrap();
            let frame = futures_util::FutureExt::now_or_never(spliced.frame()).unwrap().unwrap().unwrap();
            let data = frame.into_data().unwrap();
            assert_eq!(spliced.len(), left - data.len() as u64);
            read.extend_from_slice(&data);
        }
        assert_eq!((&read[..], again.to_bytes().as_ref()), (&b"abXYZdef"[..], &b"abXYZdef"[..]));
        assert!(spliced.is_empty() && EditedBody::from(Bytes::new()).is_end_stream());
        // A span of another body is left out.
        assert_eq!(replace(&Bytes::from("ab"), 1..9, "x".to_owned()).to_bytes(), "ab");
    }

    /// A JSON string with some of its characters escaped.
    fn written(text: &str, escape: bool) -> String {
        if !escape {
            return json_string(text);
        }
        let units = text.encode_utf16().map(|unit| format!("\\u{unit:04X}"));
        format!("\"{}\"", units.collect::<String>())
    }

    type Field = (String, Value, bool, String);

    fn options() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            Just(json!({})),
            Just(json!({ "include_usage": false })),
            Just(json!({ "include_usage": null, "x": [1] })),
            Just(json!({ "include_usage": true, "continuous_usage_stats": true })),
            Just(json!({ "other": { "include_usage": false } })),
        ]
    }

    fn field() -> impl Strategy<Value = (String, Value)> {
        let text = "\\PC{0,8}";
        prop_oneof![
            prop_oneof![text.prop_map(Value::from), Just(Value::Null)]
                .prop_map(|value| ("model".to_owned(), value)),
            any::<bool>().prop_map(|value| ("stream".to_owned(), value.into())),
            options().prop_map(|value| ("stream_options".to_owned(), value)),
            any::<i32>().prop_map(|value| ("priority".to_owned(), value.into())),
            text.prop_map(|text| ("messages".to_owned(), json!([{ "role": "user", "content": text }]))),
            (text, text).prop_map(|(name, value)| (
                format!("x{name}"),
                json!({ "model": value, "priority": [value] })
            )),
        ]
    }

    fn object() -> impl Strategy<Value = Vec<Field>> {
        let space = "[ \\n\\r\\t]{0,3}";
        prop::collection::vec((field(), any::<bool>(), space), 0..8).prop_map(|fields| {
            let mut names = std::collections::HashSet::new();
            let fields = fields.into_iter().filter(|((name, _), ..)| names.insert(name.clone()));
            fields.map(|((name, value), escape, space)| (name, value, escape, space)).collect()
        })
    }

    fn text(fields: &[Field], space: &str) -> String {
        let one = |(name, value, escape, space): &Field| {
            let value =
                if let Value::String(text) = value { written(text, *escape) } else { value.to_string() };
            format!("{space}{}{space}:{space}{value}{space}", written(name, *escape))
        };
        let fields: Vec<String> = fields.iter().map(one).collect();
        format!("{space}{{{space}{}}}{space}", fields.join(","))
    }

    proptest! {
        #[test]
        fn exactly_the_edits_and_nothing_else(
            fields in object(),
            space in "[ \\n\\r\\t]{0,3}",
            model in prop::option::of("\\PC{1,8}"),
            include_usage in any::<bool>(),
            priority in prop::option::of(any::<i64>()),
        ) {
            let body = text(&fields, &space);
            let edits = RequestEdits { model: model.as_deref(), include_usage, priority, usual_priority: None, cache_salt: None, partial_text: None };
            let after = edited(Api::Chat, "application/json", &body, &edits);

            let mut expected: Value = serde_json::from_str(&body).unwrap();
            if let Some(model) = &model {
                expected["model"] = model.as_str().into();
            }
            if let Some(priority) = priority {
                expected["priority"] = priority.into();
            }
            if include_usage && expected["stream"] == true {
                if expected["stream_options"].is_null() {
                    expected["stream_options"] = json!({});
                }
                expected["stream_options"]["include_usage"] = true.into();
            }
            // Reading `expected["x"]` does not add fields, writing does.
            prop_assert_eq!(serde_json::from_str::<Value>(&after).unwrap(), expected);

            // Bytes that were not edited are unchanged: each is found whole and in its order.
            let mut rest = &after[..];
            for field in fields.iter().filter(|(name, ..)| name.starts_with('x') || name == "messages") {
                let one = text(std::slice::from_ref(field), "");
                let one = &one[1..one.len() - 1];
                let at = rest.find(one);
                prop_assert!(at.is_some(), "{} is not in {}", one, rest);
                rest = &rest[at.unwrap() + one.len()..];
            }
        }
    }
}
