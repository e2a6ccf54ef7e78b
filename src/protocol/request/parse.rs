//! Parser of request bodies: one pass over the borrowed body, which finds the values that the
//! gateway needs and their byte ranges. All other bytes pass unread and unchanged.

use std::collections::BTreeMap;
use std::ops::Range;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::protocol::api::{Api, Dialect};
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::json::span_in;
use crate::protocol::json_scan::InvalidJson;
use crate::protocol::request::fields::{
    Parameters, RequestField, RequestFields, StreamOptions, at_least_one, batch_length, count,
};
use crate::protocol::request::multipart;
pub use crate::protocol::request::parsed::{CacheFields, ParsedRequest};
pub(crate) use crate::protocol::request::parsed::{EditSpans, OutputLimit};
use crate::protocol::request::{resumable, steering};

/// Parses the values that the gateway needs from a request.
///
/// # Errors
/// An [`ApiError`] that names the field (or the header) and the fix. The causes are a wrong content
/// type, a body that is not one JSON object (or not a form), and a known field that is given twice
/// or has the wrong type.
pub fn parse_request(api: Api, headers: &HeaderMap, body: &[u8]) -> Result<ParsedRequest, ApiError> {
    let encoding = headers.get(CONTENT_ENCODING).map(|value| value.as_bytes().trim_ascii());
    if !encoding.is_none_or(|name| name.is_empty() || name.eq_ignore_ascii_case(b"identity")) {
        let fix = "Send the body without compression; Content-Encoding is not supported.";
        return Err(ApiError::new(ErrorKind::UnsupportedMediaType, fix));
    }
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    if api.is_multipart() {
        return multipart::parse_form(api, content_type, body);
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
    let text = simdutf8::compat::from_utf8(body).map_err(|error| {
        bad(format!("The body is not UTF-8 (first wrong byte at {}). Send UTF-8 JSON.", error.valid_up_to()))
    })?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err(bad("The body must be one JSON object, starting with `{`.".to_owned()));
    }
    let fields = RequestFields::scan(api, text).map_err(|InvalidJson| bad(json_fault(text)))?;
    if let Some(twice) = fields.twice {
        return Err(ApiError::invalid_field(twice.name(), "is given twice. Send it once."));
    }
    if let Some(field) = fields.steering {
        return Err(ApiError::invalid_field(field.name, field.advice));
    }
    FieldReader { body: text, fields }.read(api)
}

/// Says where the body is not valid JSON.
fn json_fault(text: &str) -> String {
    match serde_json::from_str::<BTreeMap<String, IgnoredAny>>(text) {
        Err(error) => format!("The body is not valid JSON: {error}."),
        Ok(_) => "The body is not valid JSON.".to_owned(),
    }
}

/// Reader that turns raw fields into a [`ParsedRequest`].
struct FieldReader<'a> {
    body: &'a str,
    fields: RequestFields<'a>,
}

impl<'a> FieldReader<'a> {
    fn read(&self, api: Api) -> Result<ParsedRequest, ApiError> {
        let mut parsed = ParsedRequest::empty(api);
        self.read_sizes(&mut parsed)?;
        parsed.truncate = self.raw(RequestField::TruncatePromptTokens).and_then(|raw| raw.parse().ok());
        parsed.model = self.text(RequestField::Model)?.filter(|name| !name.is_empty());
        parsed.stream =
            api.can_stream() && (self.flag(RequestField::Stream)? || api == Api::TgiGenerateStream);
        parsed.service_tier = self.text(RequestField::ServiceTier)?;
        parsed.user = self.text(RequestField::User)?;
        parsed.cache.key = self.text(RequestField::PromptCacheKey)?;
        parsed.cache.salt = self.text(RequestField::CacheSalt)?;
        self.read_prompt(&mut parsed);
        let open = self.body.find('{').unwrap_or_default();
        parsed.spans = EditSpans {
            model: self.span(RequestField::Model),
            priority: self.span(RequestField::Priority),
            cache_salt: self.span(RequestField::CacheSalt),
            stream_options: self.span(RequestField::StreamOptions),
            context: self.span(if api == Api::Chat { RequestField::Messages } else { RequestField::Prompt }),
            continue_final: self.span(RequestField::ContinueFinalMessage),
            generation_prompt: self.span(RequestField::AddGenerationPrompt),
            limits: self.limits()?,
            tool_bytes: [RequestField::Tools, RequestField::Functions, RequestField::Documents]
                .into_iter()
                .filter_map(|field| self.span(field))
                .map(|span| span.len())
                .sum(),
            insert_at: open + 1,
            is_empty: self.fields.is_empty,
            ..EditSpans::default()
        };
        self.read_stream_options(&mut parsed)?;
        parsed.is_resumable = self.is_resumable(&parsed);
        Ok(parsed)
    }

    fn read_sizes(&self, parsed: &mut ParsedRequest) -> Result<(), ApiError> {
        let mut best_of = None;
        for field in
            [RequestField::MaxTokens, RequestField::MaxCompletionTokens, RequestField::MaxOutputTokens]
        {
            parsed.max_output_tokens = parsed.max_output_tokens.max(self.count(field)?);
        }
        if let Some(raw) = self.raw(RequestField::Parameters).filter(|_| parsed.api.dialect() == Dialect::Tgi)
        {
            let fix = "must be an object with the generation parameters.";
            let name = RequestField::Parameters.name();
            let parameters: Parameters<'_> =
                serde_json::from_str(raw).map_err(|_| ApiError::invalid_field(name, fix))?;
            if let Some(field) = steering::refusal(parsed.api, name, raw) {
                return Err(ApiError::invalid_field(field.name, field.advice));
            }
            parsed.max_output_tokens = parsed
                .max_output_tokens
                .max(count(parameters.max_new_tokens.map(RawValue::get), "max_new_tokens")?);
            best_of = count(parameters.best_of.map(RawValue::get), "best_of")?;
        }
        parsed.n = at_least_one(self.count(RequestField::N)?);
        parsed.best_of = at_least_one(self.count(RequestField::BestOf)?.max(best_of)).max(parsed.n);
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
            limits.extend(limit.map(|(span, tokens)| OutputLimit { span, tokens, min_tokens: least }));
        }
        Ok(limits)
    }

    fn is_resumable(&self, parsed: &ParsedRequest) -> bool {
        let says = |field| self.raw(field);
        let is_off = |field| says(field).is_none_or(resumable::is_off);
        let context = match parsed.api {
            Api::Chat => says(RequestField::Messages).is_some_and(|list| list.starts_with('[')),
            Api::Completions => says(RequestField::Prompt).is_some_and(|text| text.starts_with('"')),
            _ => false,
        };
        context
            && parsed.stream
            && parsed.best_of == 1
            && !self.fields.forbids_continuation
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

    fn read_prompt(&self, parsed: &mut ParsedRequest) {
        for (field, _) in &RequestField::ALL[RequestField::FIRST_OF_PROMPT..] {
            parsed.prompt.values.extend(self.span(*field));
        }
        parsed.prompt.may_have_media = self.fields.may_have_media;
        if matches!(parsed.api, Api::Chat | Api::Messages | Api::Responses | Api::CountTokens) {
            return;
        }
        let lengths = RequestField::BATCHES.iter().filter_map(|field| self.raw(*field)).map(batch_length);
        parsed.prompts = lengths.max().unwrap_or(1);
    }

    fn read_stream_options(&self, parsed: &mut ParsedRequest) -> Result<(), ApiError> {
        let field = RequestField::StreamOptions;
        let Some(raw) = self.raw(field) else {
            return Ok(());
        };
        let fix = "must be an object such as {\"include_usage\": true}, with true or false for each option.";
        let wrong = || ApiError::invalid_field(field.name(), fix);
        let options: StreamOptions<'_> = serde_json::from_str(raw).map_err(|_| wrong())?;
        let flag = |raw: Option<&RawValue>| match raw {
            Some(raw) => serde_json::from_str::<Option<bool>>(raw.get()).map_err(|_| wrong()),
            None => Ok(None),
        };
        parsed.stream_usage.at_end = flag(options.include_usage)?.unwrap_or(false);
        parsed.stream_usage.in_each_event = flag(options.continuous_usage_stats)?.unwrap_or(false);
        let start = parsed.spans.stream_options.as_ref().map(|span| span.start);
        parsed.spans.options_insert_at = start.map(|start| start + 1);
        parsed.spans.options_empty = raw[1..].trim_ascii_start().starts_with('}');
        parsed.spans.include_usage =
            options.include_usage.and_then(|raw| span_in(self.body.as_bytes(), raw.get().as_bytes()));
        Ok(())
    }

    /// The field's value; absent when the field is absent or null.
    fn raw(&self, field: RequestField) -> Option<&'a str> {
        self.fields.values[field as usize].filter(|raw| *raw != "null")
    }

    /// The byte range of the field's value, also of a null.
    fn span(&self, field: RequestField) -> Option<Range<usize>> {
        span_in(self.body.as_bytes(), self.fields.values[field as usize]?.as_bytes())
    }

    fn text(&self, field: RequestField) -> Result<Option<String>, ApiError> {
        let Some(raw) = self.raw(field) else {
            return Ok(None);
        };
        serde_json::from_str(raw).map_err(|_| ApiError::invalid_field(field.name(), "must be a string."))
    }

    fn flag(&self, field: RequestField) -> Result<bool, ApiError> {
        let Some(raw) = self.raw(field) else {
            return Ok(false);
        };
        serde_json::from_str(raw).map_err(|_| ApiError::invalid_field(field.name(), "must be true or false."))
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
    use crate::protocol::request::parsed::StreamUsage;

    fn json(api: Api, body: &str) -> Result<ParsedRequest, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("Application/JSON; charset=utf-8"));
        parse_request(api, &headers, body.as_bytes())
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
        let parsed = chat(body);
        assert_eq!(parsed.model.as_deref(), Some("a/b"));
        assert!(parsed.stream && parsed.stream_usage == StreamUsage::default());
        assert_eq!((parsed.max_output_tokens, parsed.n, parsed.best_of, parsed.prompts), (Some(9), 2, 2, 1));
        assert_eq!((parsed.sequences(), parsed.choices()), (2, 2));
        let texts =
            [&parsed.service_tier, &parsed.user, &parsed.cache.key].map(|text| text.as_deref().unwrap());
        assert_eq!(texts, ["flex", "u", "k"]);
        let at = |span: &Option<Range<usize>>| &body[span.clone().unwrap()];
        assert_eq!(at(&parsed.spans.model), r#""a\u002fb""#);
        assert_eq!(at(&parsed.spans.include_usage), "false");
        assert_eq!(at(&parsed.spans.priority), "null");
        assert_eq!(at(&parsed.spans.stream_options), r#"{"include_usage":false , "other":[1]}"#);
        let pieces: Vec<&[u8]> = parsed.prompt_pieces(body.as_bytes()).collect();
        assert_eq!(pieces, [&br#"[{"role":"user","content":"{\"model\":\"no\"}"}]"#[..], b"[{}]"]);
        assert_eq!(parsed.prompt_bytes(), pieces.concat().len() as u64);
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
    fn fields_that_steer_the_engine_are_refused() {
        for (body, field) in [
            (r#"{"kv_transfer_params":{"remote_host":"10.0.0.1"}}"#, "kv_transfer_params"),
            (r#"{"messages":[],"bootstrap_host":"10.0.0.1","bootstrap_room":7}"#, "bootstrap_host"),
            (r#"{"data_p\u0061rallel_rank":1}"#, "data_parallel_rank"),
            (r#"{"background":true}"#, "background"),
            (r#"{"previous_response_id":"resp_1"}"#, "previous_response_id"),
            (r#"{"request_id":"x"}"#, "request_id"),
            (r#"{"rid":["x"]}"#, "rid"),
            (r#"{"routed_dp_rank":0}"#, "routed_dp_rank"),
            (r#"{"messages":[],"input_ids":[1,2]}"#, "input_ids"),
            (r#"{"vllm_xargs":{"kv_transfer_params":"x"}}"#, "kv_transfer_params"),
        ] {
            let refused = json(Api::Responses, body).unwrap_err();
            assert!(refused.message().starts_with(&format!("`{field}` ")), "{body}: {}", refused.message());
        }
        json(Api::Responses, r#"{"background":false,"previous_response_id":null,"request_id":null}"#)
            .unwrap();
        chat(r#"{"messages":[{"role":"user","kv_transfer_params":{}}],"vllm_xargs":{"ngram_size":3}}"#);
        for (body, field) in [
            (r#"{"inputs":"x","parameters":{"adapter_id":"other"}}"#, "adapter_id"),
            (r#"{"text":"x","sampling_params":{"max_new_tokens":9}}"#, "text"),
        ] {
            assert_eq!(json(Api::TgiGenerate, body).unwrap_err().param(), Some(field), "{body}");
        }
        json(Api::Responses, r#"{"input":"x","text":{"format":{"type":"text"}}}"#).unwrap();
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
            let parsed = json(api, body).unwrap();
            assert_eq!(parsed.prompts, prompts, "{body}");
            assert_eq!(parsed.sequences(), prompts * parsed.n);
        }
        let huge = json(Api::Completions, r#"{"prompt":["a","b"],"n":4294967295,"best_of":1e30}"#).unwrap();
        assert_eq!((huge.sequences(), huge.choices()), (u32::MAX, u32::MAX));
    }

    #[test]
    fn tgi_and_other_limits() {
        let body =
            r#"{"inputs":"hi","parameters":{"max_new_tokens":20,"best_of":3,"top_p":0.5},"stream":false}"#;
        let parsed = json(Api::TgiGenerateStream, body).unwrap();
        assert_eq!(
            (parsed.max_output_tokens, parsed.best_of, parsed.n, parsed.stream),
            (Some(20), 3, 1, true)
        );
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
            assert_eq!(json(api, &with(fields)).unwrap().is_resumable, can_go_on, "{fields}");
        }
        assert!(!chat(r#"{"messages":[{}]}"#).is_resumable, "no stream");
        let limited = chat(r#"{"max_tokens":7,"max_completion_tokens":9,"min_tokens":3}"#);
        assert_eq!((limited.max_partial_tokens(), chat("{}").max_partial_tokens()), (6, u64::MAX));
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
        assert_eq!(
            parse_request(Api::Chat, &headers, b"{}").unwrap_err().kind(),
            ErrorKind::UnsupportedMediaType
        );
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        assert!(
            parse_request(Api::Chat, &headers, b"{}").unwrap_err().message().contains("application/json")
        );
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.api+json"));
        assert!(parse_request(Api::Chat, &headers, b"{}").is_ok());
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(parse_request(Api::Chat, &headers, b"{}").unwrap_err().message().contains("compression"));
        assert!(parse_request(Api::Chat, &HeaderMap::new(), b"\xff").is_err());
    }

    #[test]
    fn deep_nesting_is_no_danger() {
        let deep = format!("{{\"messages\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(chat(&deep).prompt.values.len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_peeked(bytes in prop::collection::vec(any::<u8>(), 0..200), start in "[{ \"modelstream:,1}\\[\\]]{0,60}") {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            for api in Api::ALL {
                let _ = parse_request(api, &headers, &bytes);
                let _ = parse_request(api, &headers, start.as_bytes());
            }
        }
    }
}
