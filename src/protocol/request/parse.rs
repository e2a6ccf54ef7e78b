//! Parser of request bodies: one borrowed pass that finds what the gateway must know, and where in
//! the bytes it stands. Everything else passes untouched and unread.

use std::ops::Range;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::protocol::api::{Api, Dialect};
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::json::span_in;
use crate::protocol::request::fields::{
    Parameters, RequestField, RequestFields, StreamOptions, at_least_one, batch_length, count,
};
use crate::protocol::request::multipart;
use crate::protocol::request::resumable;

/// What was found in a request body. All ranges are byte ranges of that body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedRequest {
    /// The call.
    pub api: Api,
    /// The model asked for; absent when the field is absent, null or empty.
    pub model: Option<String>,
    /// Whether the answer is to be a stream.
    pub stream: bool,
    /// The largest output limit given, in tokens per choice.
    pub max_output_tokens: Option<u64>,
    /// What that is lowered to, so that prompt and output fit the window.
    pub lowered: Option<u64>,
    /// The tokens that the client wants its prompt cut to; negative = what fits.
    pub truncate: Option<i64>,
    /// Choices in the answer for each prompt (`n`), at least 1.
    pub n: u32,
    /// Sequences that the engine runs for each prompt (`best_of`), at least `n`.
    pub best_of: u32,
    /// Prompts in the body (a batch of completions, of texts to embed, ...),
    /// at least 1.
    pub prompts: u32,
    /// `service_tier` as asked for.
    pub service_tier: Option<String>,
    /// Whether the client asked for the usage event of a stream.
    pub include_usage: bool,
    /// Whether it asked for usage in every event.
    pub continuous_usage: bool,
    /// `user`, the client's own name for its end user.
    pub user: Option<String>,
    /// `prompt_cache_key`, which names requests that share a prefix.
    pub prompt_cache_key: Option<String>,
    /// The values that make up the prompt: JSON, or the text field of a form.
    /// Images inside them count as bytes; a form's file is not among them.
    pub prompt: SmallVec<[Range<usize>; 4]>,
    /// Whether another engine could go on with the answer after a part of it.
    pub can_go_on: bool,
    pub(crate) spans: EditSpans,
}

/// Where edits go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EditSpans {
    pub(crate) form: BodyForm,
    pub(crate) model: Option<Range<usize>>,
    pub(crate) stream_options: Option<Range<usize>>,
    pub(crate) include_usage: Option<Range<usize>>,
    pub(crate) priority: Option<Range<usize>>,
    /// What an answer is to follow: the array of messages, or the prompt's text.
    pub(crate) context: Option<Range<usize>>,
    pub(crate) continue_final: Option<Range<usize>>,
    pub(crate) generation_prompt: Option<Range<usize>>,
    /// Limits on the output of a choice.
    pub(crate) limits: SmallVec<[OutputLimit; 1]>,
    /// Where a new field goes: just after the opening brace, or before the
    /// first part.
    pub(crate) insert_at: usize,
    /// Whether the object has any field yet.
    pub(crate) is_empty: bool,
    /// Bytes of tools and documents, which templates may write with more space.
    pub(crate) tools: usize,
    /// The same, of the `stream_options` object.
    pub(crate) options_insert_at: Option<usize>,
    pub(crate) options_empty: bool,
}

/// A limit on the output of a choice, in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputLimit {
    pub(crate) span: Range<usize>,
    pub(crate) tokens: u64,
    /// The least that engines accept.
    pub(crate) least: u64,
}

/// What the body is made of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum BodyForm {
    #[default]
    Json,
    /// `multipart/form-data` with this boundary.
    Multipart { boundary: String },
}

impl ParsedRequest {
    /// Sequences the request occupies in an engine.
    #[must_use]
    pub fn sequences(&self) -> u32 {
        self.prompts.saturating_mul(self.best_of)
    }

    /// The error of a request for more sequences than `most`, which is what its
    /// model runs at once. Names the field that asks for them.
    #[must_use]
    pub fn too_many_sequences(&self, most: u32) -> ApiError {
        let Self { prompts, best_of, n, api, .. } = self;
        let (field, asked, left) = if *best_of == 1 || *prompts > most {
            (api.prompt_field(), prompts, most / (*best_of).max(1))
        } else if best_of > n && api.dialect() == Dialect::Tgi {
            ("parameters.best_of", best_of, most / (*prompts).max(1))
        } else if best_of > n {
            ("best_of", best_of, most / (*prompts).max(1))
        } else {
            ("n", n, most / (*prompts).max(1))
        };
        let all = if *prompts > 1 && *best_of > 1 {
            format!(", for {prompts} prompts with {best_of} each")
        } else {
            String::new()
        };
        let text = format!(
            "`{field}` asks for {asked} answers at once{all}; the largest replica of this model takes {most}. \
             Ask for at most {} here.",
            left.max(1)
        );
        ApiError::new(ErrorKind::InvalidRequest, text).with_param(field)
    }

    /// Choices that the answer will have, over all prompts.
    #[must_use]
    pub fn choices(&self) -> u32 {
        self.prompts.saturating_mul(self.n)
    }

    /// Bytes of messages, prompt, input, tools and the like.
    #[must_use]
    pub fn prompt_bytes(&self) -> u64 {
        self.prompt.iter().map(|span| span.len() as u64).sum()
    }

    /// The pieces of `body` (the one that was peeked at) that make up the
    /// prompt, as they stand there.
    pub fn prompt_pieces<'a>(&'a self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.prompt.iter().filter_map(|span| body.get(span.clone()))
    }

    /// The most tokens of output after which the request leaves something to
    /// say.
    #[must_use]
    pub fn last_token(&self) -> u64 {
        let limits = self.spans.limits.iter().filter(|limit| limit.least > 0);
        limits
            .map(|limit| limit.tokens)
            .chain(self.lowered)
            .min()
            .map_or(u64::MAX, |last| last.saturating_sub(1))
    }

    /// Bytes of tools and documents.
    #[must_use]
    pub const fn tool_bytes(&self) -> u64 {
        self.spans.tools as u64
    }

    /// The field that limits the output, as the client wrote it.
    #[must_use]
    pub fn output_field(&self, body: &[u8]) -> &'static str {
        let limits = self.spans.limits.iter().filter(|limit| limit.least > 0);
        let longest = limits.max_by_key(|limit| limit.tokens);
        let before = longest.and_then(|limit| body.get(..limit.span.start)).unwrap_or_default();
        let name = before.trim_ascii_end().strip_suffix(b":").unwrap_or_default().trim_ascii_end();
        if name.ends_with(b"\"max_completion_tokens\"") { "max_completion_tokens" } else { "max_tokens" }
    }

    pub(crate) fn empty(api: Api) -> Self {
        Self {
            api,
            model: None,
            stream: false,
            max_output_tokens: None,
            lowered: None,
            truncate: None,
            n: 1,
            best_of: 1,
            prompts: 1,
            service_tier: None,
            include_usage: false,
            continuous_usage: false,
            user: None,
            prompt_cache_key: None,
            prompt: SmallVec::new(),
            can_go_on: false,
            spans: EditSpans::default(),
        }
    }
}

/// Reads what the gateway needs from a request.
///
/// # Errors
/// An [`ApiError`] that names the field (or the header) and the fix: wrong
/// content type, a body that is not one JSON object (or not a form), a known
/// field given twice or of the wrong type.
pub fn peek(api: Api, headers: &HeaderMap, body: &[u8]) -> Result<ParsedRequest, ApiError> {
    let encoding = headers.get(CONTENT_ENCODING).map(|value| value.as_bytes().trim_ascii());
    if !encoding.is_none_or(|name| name.is_empty() || name.eq_ignore_ascii_case(b"identity")) {
        let fix = "Send the body without compression; Content-Encoding is not supported.";
        return Err(ApiError::new(ErrorKind::UnsupportedMediaType, fix));
    }
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    if api.is_multipart() {
        return multipart::peek(api, content_type, body);
    }
    if !is_json(content_type) {
        let fix = "Send the header `Content-Type: application/json` and a JSON body.";
        return Err(ApiError::new(ErrorKind::UnsupportedMediaType, fix));
    }
    peek_json(api, body)
}

/// Whether a media type is JSON.
pub(crate) fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    essence.eq_ignore_ascii_case(b"application/json")
        || essence.len() > 5 && essence[essence.len() - 5..].eq_ignore_ascii_case(b"+json")
}

fn peek_json(api: Api, body: &[u8]) -> Result<ParsedRequest, ApiError> {
    let bad = |message: String| ApiError::new(ErrorKind::BadBody, message);
    if body.is_empty() {
        return Err(bad("The body is empty. Send one JSON object.".to_owned()));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        bad(format!("The body is not UTF-8 (first wrong byte at {}). Send UTF-8 JSON.", error.valid_up_to()))
    })?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err(bad("The body must be one JSON object, starting with `{`.".to_owned()));
    }
    let fields: RequestFields<'_> =
        serde_json::from_str(text).map_err(|error| bad(format!("The body is not valid JSON: {error}.")))?;
    if let Some(twice) = fields.twice {
        return Err(ApiError::invalid_field(twice.name(), "is given twice. Send it once."));
    }
    FieldReader { body: text, fields }.read(api)
}

/// Turns raw fields into a [`ParsedRequest`].
struct FieldReader<'a> {
    body: &'a str,
    fields: RequestFields<'a>,
}

impl<'a> FieldReader<'a> {
    fn read(&self, api: Api) -> Result<ParsedRequest, ApiError> {
        let mut peek = ParsedRequest::empty(api);
        self.read_sizes(&mut peek)?;
        peek.truncate = self.raw(RequestField::TruncatePromptTokens).and_then(|raw| raw.get().parse().ok());
        peek.model = self.text(RequestField::Model)?.filter(|name| !name.is_empty());
        peek.stream = api.can_stream() && (self.flag(RequestField::Stream)? || api == Api::TgiGenerateStream);
        peek.service_tier = self.text(RequestField::ServiceTier)?;
        peek.user = self.text(RequestField::User)?;
        peek.prompt_cache_key = self.text(RequestField::PromptCacheKey)?;
        self.read_prompt(&mut peek);
        let open = self.body.find('{').unwrap_or_default();
        peek.spans = EditSpans {
            model: self.span(RequestField::Model),
            priority: self.span(RequestField::Priority),
            stream_options: self.span(RequestField::StreamOptions),
            context: self.span(if api == Api::Chat { RequestField::Messages } else { RequestField::Prompt }),
            continue_final: self.span(RequestField::ContinueFinalMessage),
            generation_prompt: self.span(RequestField::AddGenerationPrompt),
            limits: self.limits()?,
            tools: [RequestField::Tools, RequestField::Functions, RequestField::Documents]
                .into_iter()
                .filter_map(|field| self.span(field))
                .map(|span| span.len())
                .sum(),
            insert_at: open + 1,
            is_empty: self.fields.is_empty,
            ..EditSpans::default()
        };
        self.read_stream_options(&mut peek)?;
        peek.can_go_on = self.can_go_on(&peek);
        Ok(peek)
    }

    fn read_sizes(&self, peek: &mut ParsedRequest) -> Result<(), ApiError> {
        let mut best_of = None;
        for field in
            [RequestField::MaxTokens, RequestField::MaxCompletionTokens, RequestField::MaxOutputTokens]
        {
            peek.max_output_tokens = peek.max_output_tokens.max(self.count(field)?);
        }
        if let Some(raw) = self.raw(RequestField::Parameters).filter(|_| peek.api.dialect() == Dialect::Tgi) {
            let fix = "must be an object with the generation parameters.";
            let parameters: Parameters<'_> = serde_json::from_str(raw.get())
                .map_err(|_| ApiError::invalid_field(RequestField::Parameters.name(), fix))?;
            peek.max_output_tokens =
                peek.max_output_tokens.max(count(parameters.max_new_tokens, "max_new_tokens")?);
            best_of = count(parameters.best_of, "best_of")?;
        }
        peek.n = at_least_one(self.count(RequestField::N)?);
        peek.best_of = at_least_one(self.count(RequestField::BestOf)?.max(best_of)).max(peek.n);
        Ok(())
    }

    fn limits(&self) -> Result<SmallVec<[OutputLimit; 1]>, ApiError> {
        let mut limits = SmallVec::new();
        for (field, least) in [
            (RequestField::MaxTokens, 1),
            (RequestField::MaxCompletionTokens, 1),
            (RequestField::MinTokens, 0),
        ] {
            let limit = self.span(field).zip(self.count(field)?);
            limits.extend(limit.map(|(span, tokens)| OutputLimit { span, tokens, least }));
        }
        Ok(limits)
    }

    fn can_go_on(&self, peek: &ParsedRequest) -> bool {
        let says = |field| self.raw(field).map(RawValue::get);
        let is_off = |field| says(field).is_none_or(resumable::is_off);
        let context = match peek.api {
            Api::Chat => says(RequestField::Messages).is_some_and(|list| list.starts_with('[')),
            Api::Completions => says(RequestField::Prompt).is_some_and(|text| text.starts_with('"')),
            _ => false,
        };
        context
            && peek.stream
            && peek.best_of == 1
            && !self.fields.is_closed
            && [
                RequestField::Tools,
                RequestField::Functions,
                RequestField::ContinueFinalMessage,
                RequestField::TruncatePromptTokens,
            ]
            .into_iter()
            .all(is_off)
            && says(RequestField::AddGenerationPrompt).is_none_or(|asked| asked == "true")
    }

    fn read_prompt(&self, peek: &mut ParsedRequest) {
        for (field, _) in &RequestField::ALL[RequestField::FIRST_OF_PROMPT..] {
            peek.prompt.extend(self.span(*field));
        }
        if matches!(peek.api, Api::Chat | Api::Messages | Api::Responses | Api::CountTokens) {
            return;
        }
        let lengths = RequestField::BATCHES.iter().filter_map(|field| self.raw(*field)).map(batch_length);
        peek.prompts = lengths.max().unwrap_or(1);
    }

    fn read_stream_options(&self, peek: &mut ParsedRequest) -> Result<(), ApiError> {
        let field = RequestField::StreamOptions;
        let Some(raw) = self.raw(field) else {
            return Ok(());
        };
        let fix = "must be an object such as {\"include_usage\": true}, with true or false for each option.";
        let wrong = || ApiError::invalid_field(field.name(), fix);
        let options: StreamOptions<'_> = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
        let flag = |raw: Option<&RawValue>| match raw {
            Some(raw) => serde_json::from_str::<Option<bool>>(raw.get()).map_err(|_| wrong()),
            None => Ok(None),
        };
        peek.include_usage = flag(options.include_usage)?.unwrap_or(false);
        peek.continuous_usage = flag(options.continuous_usage_stats)?.unwrap_or(false);
        let start = peek.spans.stream_options.as_ref().map(|span| span.start);
        peek.spans.options_insert_at = start.map(|start| start + 1);
        peek.spans.options_empty = raw.get()[1..].trim_ascii_start().starts_with('}');
        peek.spans.include_usage =
            options.include_usage.and_then(|raw| span_in(self.body.as_bytes(), raw.get().as_bytes()));
        Ok(())
    }

    /// The field's value; absent when it is null.
    fn raw(&self, field: RequestField) -> Option<&'a RawValue> {
        self.fields.values[field as usize].filter(|raw| raw.get() != "null")
    }

    /// Where the field's value stands, null or not.
    fn span(&self, field: RequestField) -> Option<Range<usize>> {
        span_in(self.body.as_bytes(), self.fields.values[field as usize]?.get().as_bytes())
    }

    fn text(&self, field: RequestField) -> Result<Option<String>, ApiError> {
        let Some(raw) = self.raw(field) else {
            return Ok(None);
        };
        serde_json::from_str(raw.get())
            .map_err(|_| ApiError::invalid_field(field.name(), "must be a string."))
    }

    fn flag(&self, field: RequestField) -> Result<bool, ApiError> {
        let Some(raw) = self.raw(field) else {
            return Ok(false);
        };
        serde_json::from_str(raw.get())
            .map_err(|_| ApiError::invalid_field(field.name(), "must be true or false."))
    }

    fn count(&self, field: RequestField) -> Result<Option<u64>, ApiError> {
        count(self.raw(field), field.name())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn json(api: Api, body: &str) -> Result<ParsedRequest, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("Application/JSON; charset=utf-8"));
        peek(api, &headers, body.as_bytes())
    }

    fn chat(body: &str) -> ParsedRequest {
        json(Api::Chat, body).unwrap()
    }

    #[test]
    fn fields_in_any_order_with_their_places() {
        let body = r#" { "messages":[{"role":"user","content":"{\"model\":\"no\"}"}], "x":{"model":1},
            "stream_options" : {"include_usage":false , "other":[1]}, "mod\u0065l":"a\u002fb", "stream":true,
            "max_tokens":7,"max_completion_tokens":9.0,"n":2,"service_tier":"flex","user":"u","prompt_cache_key":"k",
            "tools":[{}],"priority":null,"best_of":null } "#;
        let peek = chat(body);
        assert_eq!(peek.model.as_deref(), Some("a/b"));
        assert!(peek.stream && !peek.include_usage && !peek.continuous_usage);
        assert_eq!((peek.max_output_tokens, peek.n, peek.best_of, peek.prompts), (Some(9), 2, 2, 1));
        assert_eq!((peek.sequences(), peek.choices()), (2, 2));
        let texts =
            [&peek.service_tier, &peek.user, &peek.prompt_cache_key].map(|text| text.as_deref().unwrap());
        assert_eq!(texts, ["flex", "u", "k"]);
        let at = |span: &Option<Range<usize>>| &body[span.clone().unwrap()];
        assert_eq!(at(&peek.spans.model), r#""a\u002fb""#);
        assert_eq!(at(&peek.spans.include_usage), "false");
        assert_eq!(at(&peek.spans.priority), "null");
        assert_eq!(at(&peek.spans.stream_options), r#"{"include_usage":false , "other":[1]}"#);
        let pieces: Vec<&[u8]> = peek.prompt_pieces(body.as_bytes()).collect();
        assert_eq!(pieces, [&br#"[{"role":"user","content":"{\"model\":\"no\"}"}]"#[..], b"[{}]"]);
        assert_eq!(peek.prompt_bytes(), pieces.concat().len() as u64);
    }

    #[test]
    fn absent_and_null_are_the_same() {
        let nothing = chat("{}");
        let nulls = chat(
            r#"{"model":null,"stream":null,"max_tokens":null,"n":null,"stream_options":null,"user":null,"messages":null}"#,
        );
        assert_eq!((nothing.model, nothing.stream, nothing.n), (None, false, 1));
        assert_eq!((nulls.model, nulls.stream, nulls.n, nulls.max_output_tokens), (None, false, 1, None));
        assert!(nothing.spans.is_empty && !nulls.spans.is_empty);
        assert_eq!(chat(r#"{"model":""}"#).model, None);
    }

    #[test]
    fn batches_are_counted() {
        let cases = [
            (Api::Completions, r#"{"prompt":"a"}"#, 1),
            (Api::Completions, r#"{"prompt":["a","b","c"],"n":2}"#, 3),
            (Api::Completions, r#"{"prompt":[1,2,3]}"#, 1),
            (Api::Completions, r#"{"prompt":[[1,2],[3]]}"#, 2),
            (Api::Completions, r#"{"prompt":[]}"#, 1),
            (Api::Embeddings, r#"{"input":["a","b"]}"#, 2),
            (Api::Rerank(crate::protocol::api::RerankPath::V1), r#"{"query":"q","documents":["a","b"]}"#, 2),
            (Api::Responses, r#"{"input":[{},{},{}]}"#, 1),
        ];
        for (api, body, prompts) in cases {
            let peek = json(api, body).unwrap();
            assert_eq!(peek.prompts, prompts, "{body}");
            assert_eq!(peek.sequences(), prompts * peek.n);
        }
        let huge = json(Api::Completions, r#"{"prompt":["a","b"],"n":4294967295,"best_of":1e30}"#).unwrap();
        assert_eq!((huge.sequences(), huge.choices()), (u32::MAX, u32::MAX));
    }

    #[test]
    fn tgi_and_other_limits() {
        let body =
            r#"{"inputs":"hi","parameters":{"max_new_tokens":20,"best_of":3,"top_p":0.5},"stream":false}"#;
        let peek = json(Api::TgiGenerateStream, body).unwrap();
        assert_eq!((peek.max_output_tokens, peek.best_of, peek.n, peek.stream), (Some(20), 3, 1, true));
        assert!(!json(Api::TgiGenerate, r#"{"stream":true}"#).unwrap().stream);
        assert!(!json(Api::Embeddings, r#"{"stream":true}"#).unwrap().stream);
        assert_eq!(chat(r#"{"max_tokens":-1}"#).max_output_tokens, None);
        assert_eq!(chat(r#"{"max_tokens":0}"#).max_output_tokens, Some(0));
        assert_eq!(chat(r#"{"max_tokens":99999999999999999999}"#).max_output_tokens, Some(u64::MAX));
        assert_eq!(json(Api::Responses, r#"{"max_output_tokens":5}"#).unwrap().max_output_tokens, Some(5));
    }

    #[test]
    fn only_plain_text_can_go_on() {
        let with = |fields: &str| format!(r#"{{"stream":true,{fields}}}"#);
        let cases = [
            (Api::Chat, r#""messages":[{}]"#, true),
            (
                Api::Chat,
                r#""messages":[{}],"temperature":0,"seed":1,"stop":["x"],"n":1,"tools":[],"logprobs":false"#,
                true,
            ),
            (Api::Chat, r#""messages":[{}],"nobody_knows":null,"presence_penalty":0"#, true),
            (Api::Chat, r#""messages":[{}],"nobody_knows":false"#, false),
            (Api::Chat, r#""messages":[{}],"presence_penalty":0.5"#, false),
            (Api::Chat, r#""messages":[{}],"n":2"#, false),
            (Api::Chat, r#""messages":[{}],"tools":[{}]"#, false),
            (Api::Chat, r#""messages":[{}],"functions":[{}]"#, false),
            (Api::Chat, r#""messages":[{}],"skip_special_tokens":false"#, false),
            (Api::Chat, r#""messages":[{}],"add_generation_prompt":false"#, false),
            (Api::Chat, r#""messages":[{}],"continue_final_message":true"#, false),
            (Api::Chat, r#""messages":"hi""#, false),
            (Api::Completions, r#""prompt":"a""#, true),
            (Api::Completions, r#""prompt":"a","best_of":2"#, false),
            (Api::Completions, r#""prompt":"a","echo":true"#, false),
            (Api::Completions, r#""prompt":["a"]"#, false),
            (Api::Completions, r#""prompt":[1,2]"#, false),
            (Api::Messages, r#""messages":[{}]"#, false),
        ];
        for (api, fields, can_go_on) in cases {
            assert_eq!(json(api, &with(fields)).unwrap().can_go_on, can_go_on, "{fields}");
        }
        assert!(!chat(r#"{"messages":[{}]}"#).can_go_on, "no stream");
        let limited = chat(r#"{"max_tokens":7,"max_completion_tokens":9,"min_tokens":3}"#);
        assert_eq!((limited.last_token(), chat("{}").last_token()), (6, u64::MAX));
    }

    #[test]
    fn wrong_bodies_are_named() {
        let cases = [
            ("", "The body is empty"),
            ("[1]", "must be one JSON object"),
            ("{\"model\":\"a\"", "not valid JSON: EOF"),
            ("{} x", "not valid JSON: trailing"),
            ("{\"a\":}", "not valid JSON"),
        ];
        for (body, message) in cases {
            let error = json(Api::Chat, body).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadBody, "{body}");
            assert!(error.message().contains(message), "{error}");
        }
        let fields = [
            (r#"{"model":1}"#, "model"),
            (r#"{"model":"a","mode\u006c":"b"}"#, "model"),
            (r#"{"model":"\ud800"}"#, "model"),
            (r#"{"stream":"yes"}"#, "stream"),
            (r#"{"n":1.5}"#, "n"),
            (r#"{"n":1e999}"#, "n"),
            (r#"{"max_tokens":"9"}"#, "max_tokens"),
            (r#"{"stream_options":true}"#, "stream_options"),
            (r#"{"stream_options":{"include_usage":1}}"#, "stream_options"),
            (r#"{"stream_options":{"include_usage":true,"include_usage":true}}"#, "stream_options"),
            (r#"{"user":{}}"#, "user"),
        ];
        for (body, field) in fields {
            let error = json(Api::Chat, body).unwrap_err();
            assert_eq!((error.kind(), error.param()), (ErrorKind::InvalidRequest, Some(field)), "{body}");
            assert!(error.message().starts_with(&format!("`{field}` ")));
        }
        let error = json(Api::TgiGenerate, r#"{"parameters":[]}"#).unwrap_err();
        assert_eq!(error.param(), Some("parameters"));
    }

    #[test]
    fn wrong_headers_are_named() {
        let mut headers = HeaderMap::new();
        assert_eq!(peek(Api::Chat, &headers, b"{}").unwrap_err().kind(), ErrorKind::UnsupportedMediaType);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        assert!(peek(Api::Chat, &headers, b"{}").unwrap_err().message().contains("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.api+json"));
        assert!(peek(Api::Chat, &headers, b"{}").is_ok());
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(peek(Api::Chat, &headers, b"{}").unwrap_err().message().contains("compression"));
        assert!(peek(Api::Chat, &HeaderMap::new(), b"\xff").is_err());
    }

    #[test]
    fn deep_nesting_is_no_danger() {
        let deep = format!("{{\"messages\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(chat(&deep).prompt.len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_peeked(bytes in prop::collection::vec(any::<u8>(), 0..200), start in "[{ \"modelstream:,1}\\[\\]]{0,60}") {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            for api in Api::ALL {
                let _ = peek(api, &headers, &bytes);
                let _ = peek(api, &headers, start.as_bytes());
            }
        }
    }
}
