//! Captures: recorded answers of a real engine, with the classifier's verdict on each. The tables
//! hold the expected verdicts, one line a file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use memchr::memmem;

use crate::core::model::job::JobUsage;
use crate::protocol::api::{Api, Dialect};
use crate::protocol::request::parse::{ParsedRequest, parse_request};
use crate::protocol::response::answer::{AnswerVerdict, classify_answer};
use crate::protocol::response::engine_error::EngineError;
use crate::protocol::response::stream::{
    ConnectionEnd, Forward, StreamClassifier, StreamEventKind, StreamVerdict, UsageVisibility,
};
use crate::protocol::sse::{SseFrame, SseScanner};

const TRIMMED: &[u8] = b"\n...[trimmed";

pub(crate) struct RecordedExchange {
    pub(crate) name: String,
    pub(crate) api: Api,
    pub(crate) request: Bytes,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The body without chunked framing.
    pub(crate) body: Bytes,
}

/// Every capture of a directory below `tests/fixtures/vllm`, in the order of names. Captures of
/// requests that are not API calls are left out.
pub(crate) fn captures(directory: &str) -> Vec<RecordedExchange> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vllm").join(directory);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| read(path)).collect()
}

fn read(path: &Path) -> Option<RecordedExchange> {
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let file = std::fs::read(path).unwrap();
    let (request, answer) = match memmem::find(&file, b"\n>>>>\n") {
        Some(at) => (&file[..at], &file[at + 6..]),
        None => (&b""[..], &file[..]),
    };
    let answer = &answer[..memmem::find(answer, b"\n<<<< end").unwrap_or(answer.len())];
    let mut words = request.split(|byte| *byte == b' ').map(|word| std::str::from_utf8(word).unwrap());
    let api = match (words.next(), words.next()) {
        (Some("POST"), Some(path)) => Api::from_path(path.trim_end_matches('/'))?,
        // A capture without its request is a chat.
        (_, None) => Api::Chat,
        _ => return None,
    };
    let (status, headers, body) = head_and_body(answer);
    let is_stream = headers.get("transfer-encoding").is_some() || memmem::find(body, b"\r\ndata: ").is_some();
    let length = headers.get("content-length").and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let body = match length {
        _ if is_stream => dechunked(body),
        Some(length) if length <= body.len() => body[..length].to_vec(),
        _ => completed(body),
    };
    let request_body = memmem::find(request, b"\r\n\r\n").map_or(&b""[..], |at| &request[at + 4..]);
    Some(RecordedExchange {
        name,
        api,
        request: Bytes::copy_from_slice(request_body),
        status,
        headers,
        body: body.into(),
    })
}

/// Completes the end of a JSON answer with a beginning that makes the JSON valid again.
fn completed(body: &[u8]) -> Vec<u8> {
    let tail = memmem::rfind(body, b"...\n").map_or(body, |at| &body[at + 4..]);
    let start: &[u8] = if tail.starts_with(b"ject\"") {
        b"{\"id\":\"x\",\"ob"
    } else if memmem::find(tail, b"\"choices\":[").is_some() {
        b"{\"id\":\""
    } else {
        b"{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\""
    };
    [start, tail].concat()
}

fn head_and_body(answer: &[u8]) -> (StatusCode, HeaderMap, &[u8]) {
    let mut headers = HeaderMap::new();
    if !answer.starts_with(b"HTTP/1.1 ") {
        return (StatusCode::OK, headers, answer);
    }
    // A cut may take the end of the head with it.
    let end = memmem::find(answer, b"\r\n\r\n").or_else(|| memmem::find(answer, TRIMMED)).unwrap();
    for line in std::str::from_utf8(&answer[..end]).unwrap().lines().skip(1) {
        // A cut inside the head leaves lines without a colon.
        if let Some((name, value)) = line.split_once(": ") {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
    }
    (StatusCode::from_bytes(&answer[9..12]).unwrap(), headers, answer.get(end + 4..).unwrap_or_default())
}

/// The content of all whole chunks. After a cut, reading goes on at the next chunk that can be
/// recognised.
fn dechunked(body: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    let mut rest = body;
    loop {
        while let Some((chunk, after)) = chunk(rest) {
            content.extend_from_slice(chunk);
            rest = after;
        }
        let starts = memmem::find_iter(rest, b"\r\n").map(|at| &rest[at + 2..]);
        let Some(next) =
            { starts }.find(|next| chunk(next).is_some_and(|(data, _)| data.starts_with(b"data")))
        else {
            return content;
        };
        rest = next;
    }
}

fn chunk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = memmem::find(bytes, b"\r\n")?;
    let length = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).ok()?, 16).ok()?;
    let data = bytes.get(line + 2..line + 2 + length).filter(|data| memmem::find(data, TRIMMED).is_none())?;
    Some((data, bytes.get(line + 4 + length..).filter(|_| length > 0)?))
}

impl RecordedExchange {
    pub(crate) fn is_stream(&self) -> bool {
        self.headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
            || self.body.starts_with(b"data: ")
    }

    pub(crate) fn peek(&self) -> Option<ParsedRequest> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        parse_request(self.api, &headers, &self.request).ok()
    }

    pub(crate) fn frames(&self) -> Vec<SseFrame> {
        let mut scanner = SseScanner::new(1 << 20);
        scanner.push(self.body.clone());
        std::iter::from_fn(|| scanner.next_frame().unwrap()).collect()
    }

    /// The kinds of events as letters, then the verdict.
    pub(crate) fn verdict_text(&self) -> String {
        if self.is_stream() { self.judged_stream() } else { self.judged_answer() }
    }

    fn judged_stream(&self) -> String {
        let choices = self.peek().map_or(1, |parsed| parsed.choices());
        let mut judge = StreamClassifier::new(self.api, choices, None, UsageVisibility::Always);
        let kinds: String = self.frames().iter().map(|frame| letter(&judge.classify(frame).kind)).collect();
        let kinds =
            if kinds.len() > 30 { format!("{}..{}", &kinds[..8], &kinds[kinds.len() - 8..]) } else { kinds };
        let end = match judge.final_verdict(ConnectionEnd::Clean) {
            StreamVerdict::Success { usage } => format!("success {}", counted(usage)),
            StreamVerdict::Failed { fault, usage } => format!("{} {}", fault.name(), counted(usage)),
            StreamVerdict::Refused { error, .. } => format!("refused {error}"),
        };
        format!("{kinds} {end}")
    }

    fn judged_answer(&self) -> String {
        match classify_answer(self.api, self.status, &self.headers, &self.body, None) {
            AnswerVerdict::Success { usage, body, .. } => {
                assert_eq!(body.to_bytes(), self.body);
                format!("success {}", counted(usage))
            }
            AnswerVerdict::Fault { fault, usage } => format!("{} {}", fault.name(), counted(usage)),
            AnswerVerdict::ClientError(error) => {
                let text = error.to_string();
                let text: String = text.chars().take(120).map(|c| if c == '\n' { ' ' } else { c }).collect();
                let status = error.kind().status(Dialect::OpenAi).as_u16();
                format!("{status} {} {text}", error.param().unwrap_or("-"))
            }
        }
    }
}

fn letter(kind: &StreamEventKind) -> char {
    match kind {
        StreamEventKind::Comment => ':',
        StreamEventKind::Role => 'r',
        StreamEventKind::Token => 't',
        StreamEventKind::Finish => 'F',
        StreamEventKind::Usage => 'u',
        StreamEventKind::Done => 'D',
        StreamEventKind::Error(EngineError::Fault(_)) => 'E',
        StreamEventKind::Error(EngineError::Client(_)) => 'C',
        StreamEventKind::Other => '-',
    }
}

fn counted(usage: JobUsage) -> String {
    match usage {
        JobUsage::Exact(tokens) => format!("{}({}) {}", tokens.input, tokens.from_cache(), tokens.output),
        JobUsage::Partial(tokens) => format!(">={}({}) {}", tokens.input, tokens.from_cache(), tokens.output),
        JobUsage::Unknown => "?".to_owned(),
    }
}

fn table(directory: &str) -> String {
    let mut table = String::new();
    for capture in captures(directory) {
        writeln!(table, "{}: {}", capture.name, capture.verdict_text()).unwrap();
    }
    table
}

#[test]
fn successful_calls() {
    insta::assert_snapshot!(table("ok"), @r#"
        chat: success 8(0) 8
        chat_alias: success 8(0) 2
        chat_force_include_usage_stream_without_options: rttFuD success 245(0) 3
        chat_http10: rttFD success >=0(0) 3
        chat_logprobs: success 8(0) 2
        chat_no_max_tokens_stop: success 8(0) 6
        chat_no_model: success 8(0) 2
        chat_orca_json: success 8(0) 2
        chat_orca_text: success 8(0) 2
        chat_per_request_metrics: success 245(0) 20
        chat_priority: success 8(0) 2
        chat_request_id: success 8(0) 2
        chat_request_id_body: success 8(0) 2
        chat_stream: rttttFD success >=0(0) 4
        chat_stream_continuous_usage: rttFuD success 8(0) 3
        chat_stream_n2: rrttttFFuD success 8(0) 6
        chat_stream_orca_json: rtFD success >=0(0) 2
        chat_stream_per_request_metrics: rtttFuD success 245(0) 4
        chat_stream_sse_keepalive: :rttttFuD success 325(0) 5
        chat_stream_usage: rtFuD success 8(0) 5
        chat_structured: success 8(0) 25
        completion: success 3(0) 8
        completion_batch: success 5(0) 6
        completion_stream_usage: tttFuD success 3(0) 4
        completion_token_ids: success 3(0) 3
        messages: success 8(0) 4
        messages_count_tokens: success 0(0) 0
        messages_stream: r-ttt-FD success 8(0) 4
        responses: success 6(0) 4
        responses_stream: rr--tt---D success 6(0) 3
        "#);
}

#[test]
fn refused_and_odd_calls() {
    insta::assert_snapshot!(table("err"), @r#"
        admission_prefill_backlog: E- busy ?
        admission_queue_full: busy ?
        admission_queue_full_messages: busy ?
        admission_queue_full_nonstream: busy ?
        admission_race_200_then_error_event: E- busy ?
        bad_json: 400 - invalid_value: 1 validation error:   {'type': 'json_invalid', 'loc': 'body.28', 'msg': 'JSON decode error', 'input': '<d
        bad_role: 400 messages.0.ChatCompletionDeveloperMessageParam.role invalid_value: 11 validation errors:   {'type': 'literal_error', 'loc': 'body.messages.0.ChatCompletionDeveloperMessageP
        bad_stop: 400 stop invalid_value: 2 validation errors:   {'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a valid string
        bad_token_ids: 400 - invalid_value: Token id 999999 is out of vocabulary
        bad_utf8: 400 - invalid_value: There was an error parsing the body
        best_of: success 2(0) 2
        cache_salt: success 8(0) 1
        completion_max_tokens_too_big: 400 max_tokens context_length_exceeded: max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output tokens. 
        dp_rank_bad: 400 - invalid_value: data_parallel_rank 7 is out of range [0, 1).
        dup_request_id_1: success 8(0) 1
        embeddings_unsupported: 404 model unsupported_operation: The model does not support `embeddings` requests.
        empty_body: 400 - invalid_value: 1 validation error:   {'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}
        empty_messages: 400 - invalid_value: Cannot apply chat template to an empty conversation. Provide at least one message.
        huge_body_20MB: 400 messages context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 20000028 char
        image_input: 400 - invalid_value: tiny is not a multimodal model
        json_array: 400 - invalid_value: 1 validation error:   {'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid di
        max_tokens_0: 400 max_tokens invalid_value: max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)
        max_tokens_neg: 400 max_tokens invalid_value: max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)
        max_tokens_too_big: 400 max_tokens context_length_exceeded: max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output tokens. 
        max_tokens_too_big_stream: 400 max_tokens context_length_exceeded: max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer output tokens. 
        messages_too_long: 400 messages context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 37528 charact
        messages_unknown_model: 404 model model_not_found: The engine does not serve the model.
        missing_messages: 400 messages invalid_value: 1 validation error:   {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dic
        n_0: 400 - invalid_value: n must be at least 1, got 0.
        n_big: 400 - invalid_value: n must be at most 16384, got 100000. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment var
        no_content_type: 400 - invalid_value: 1 validation error:   Unsupported Media Type: Only 'application/json' is allowed
        priority_huge: success 8(0) 1
        priority_string: 400 priority invalid_value: 1 validation error:   {'type': 'int_parsing', 'loc': 'body.priority', 'msg': 'Input should be a valid int
        priority_without_policy: success 245(128) 2
        priority_without_policy_stream: rtFuD success 245(128) 2
        priority_without_policy_zero: success 245(128) 2
        prompt_ctx_minus1_tokens: success 2047(0) 1
        prompt_exactly_ctx_tokens: 400 max_tokens invalid_value: max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)
        prompt_plus_max_over: success 605(0) 1443
        responses_too_long: 400 input context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 37528 charact
        seed_bad: 400 seed invalid_value: 1 validation error:   {'type': 'int_parsing', 'loc': 'body.seed', 'msg': 'Input should be a valid integer
        stream_options_without_stream: 400 stream_options invalid_value: Stream options can only be defined when `stream=True`. (parameter=stream_options)
        temperature_negative: 400 temperature invalid_value: temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)
        text_content_type: 400 - invalid_value: 1 validation error:   Unsupported Media Type: Only 'application/json' is allowed
        tokenize_unknown_model: 404 model model_not_found: The engine does not serve the model.
        too_long_chat: 400 messages context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 37528 charact
        too_long_chat_stream: 400 messages context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 37528 charact
        too_long_completion: 400 prompt context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 37500 charact
        too_long_completion_stream: 400 prompt context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 37500 charact
        too_long_no_max_tokens: 400 messages context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 37528 charact
        tool_choice_auto_disabled: 400 - invalid_value: "auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set
        top_p_2: 400 top_p invalid_value: top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)
        trailing_slash: malformed ?
        truncate_prompt_tokens: success 100(0) 4
        unknown_field: success 8(0) 1
        unknown_model: 404 model model_not_found: The engine does not serve the model.
        unknown_model_stream: 404 model model_not_found: The engine does not serve the model.
        very_long_prompt_1MB: 400 messages context_length_exceeded: This model's maximum context length is 2048 tokens. However, your prompt contains 1000028 chara
        "#);
}

#[test]
fn stopped_and_killed_engines() {
    insta::assert_snapshot!(table("crash"), @r#"
        SIGKILL_core_new_request: server_error ?
        SIGKILL_core_nonstream: server_error ?
        SIGKILL_core_running_stream_tail: rttE- error_event >=0(0) 2
        SIGKILL_core_waiting_stream: E- error_event ?
        SIGKILL_worker_new_request: server_error ?
        SIGKILL_worker_nonstream: server_error ?
        SIGKILL_worker_running_stream_tail: rttE- error_event >=0(0) 2
        SIGKILL_worker_waiting_stream: E- error_event ?
        SIGTERM_api_drain20_new_request: draining ?
        SIGTERM_api_drain20_nonstream: success 245(128) 150
        SIGTERM_api_drain20_running_stream_tail: FuD success 245(0) 150
        SIGTERM_api_drain20_waiting_stream: -tFuD success 245(0) 150
        SIGTERM_api_nonstream: aborted 245(0) 0
        SIGTERM_api_running_stream_tail: rE-- aborted 245(0) 461
        SIGTERM_api_waiting_stream: ruE aborted 245(0) 0
        two_api_servers_parent_killed_nonstream: success 245(0) 1803
        two_api_servers_parent_killed_running_stream_tail: rFuD success 245(0) 1803
        two_api_servers_parent_killed_waiting_stream: tt-tFuD success 245(0) 1803
        "#);
}

#[test]
fn aborted_by_an_operator() {
    let aborted = captures("admin").into_iter().filter(|capture| capture.name.starts_with("aborted"));
    let table: String =
        aborted.map(|capture| format!("{}: {}\n", capture.name, capture.verdict_text())).collect();
    insta::assert_snapshot!(table, @r#"
        aborted_nonstream_response: aborted 245(128) 585
        aborted_stream_running: ruE aborted 325(0) 0
        aborted_stream_tail: rFuD success 325(0) 1500
        aborted_stream_waiting: ruE aborted 325(0) 0
        "#);
}

#[test]
fn wrong_keys_are_the_engines_fault() {
    let refused = captures("auth").into_iter().filter(|capture| capture.status == StatusCode::UNAUTHORIZED);
    let judged: Vec<String> = refused.map(|capture| capture.verdict_text()).collect();
    assert!(judged.len() >= 2 && judged.iter().all(|line| line == "server_error ?"), "{judged:?}");
}

#[test]
fn real_requests_are_peeked() {
    for capture in captures("ok").into_iter().filter(|capture| !capture.request.is_empty()) {
        let json: serde_json::Value = serde_json::from_slice(&capture.request).unwrap();
        if json.get("request_id").is_some() {
            assert!(capture.peek().is_none(), "{}: engines get the gateway's ids", capture.name);
            continue;
        }
        let parsed = capture.peek().unwrap();
        assert_eq!(parsed.model.as_deref(), json["model"].as_str(), "{}", capture.name);
        assert_eq!(parsed.stream, json["stream"] == true);
        let limits = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
        assert_eq!(parsed.max_output_tokens, limits.iter().filter_map(|name| json[name].as_u64()).max());
        assert_eq!(
            u64::from(parsed.choices()),
            json["n"].as_u64().unwrap_or(1).max(
                json["prompt"]
                    .as_array()
                    .map_or(1, |a| { if a[0].is_string() { a.len() as u64 } else { 1 } })
            )
        );
    }
}

/// The client gets the captured answer unchanged, except for the model's name.
#[test]
fn the_model_is_renamed_and_nothing_else() {
    let shown = "public \"name\" é";
    for capture in captures("ok") {
        let renamed = if capture.is_stream() {
            renamed_stream(&capture, shown)
        } else {
            renamed_answer(&capture, shown)
        };
        let expected = String::from_utf8(capture.body.to_vec()).unwrap();
        let expected =
            expected.replace(r#""model":"tiny""#, &format!(r#""model":{}"#, serde_json::json!(shown)));
        assert_eq!(renamed, expected, "{}", capture.name);
    }
}

fn renamed_answer(capture: &RecordedExchange, shown: &str) -> String {
    let answer = classify_answer(capture.api, capture.status, &capture.headers, &capture.body, Some(shown));
    let AnswerVerdict::Success { body, .. } = answer else { panic!("{}", capture.name) };
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

fn renamed_stream(capture: &RecordedExchange, shown: &str) -> String {
    let choices = capture.peek().map_or(1, |parsed| parsed.choices());
    let mut judge =
        StreamClassifier::new(capture.api, choices, Some(shown.to_owned()), UsageVisibility::Always);
    let mut sent = Vec::new();
    for frame in capture.frames() {
        match judge.classify(&frame).forward {
            Forward::AsIs => sent.extend_from_slice(frame.bytes()),
            Forward::Replace(bytes) => sent.extend_from_slice(&bytes),
            Forward::Drop => panic!("{} drops {frame:?}", capture.name),
        }
    }
    String::from_utf8(sent).unwrap()
}
