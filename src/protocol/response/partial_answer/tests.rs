//! Tests of continuations: a stream that is cut anywhere and continued by another engine looks like
//! an uncut stream.

use bytes::Bytes;
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};

use crate::core::model::job::{JobUsage, TokenCounts};
use crate::protocol::api::Api;
use crate::protocol::captures::captures;
use crate::protocol::response::partial_answer::{MAX_TEXT, PartialAnswer};
use crate::protocol::response::stream::{
    ConnectionEnd, Forward, StreamClassifier, StreamVerdict, UsageVisibility,
};
use crate::protocol::sse::{SseFrame, SseScanner};

fn frames(text: &str) -> Vec<SseFrame> {
    let mut scanner = SseScanner::new(1 << 20);
    scanner.push(Bytes::copy_from_slice(text.as_bytes()));
    std::iter::from_fn(|| scanner.next_frame().unwrap()).collect()
}

/// The bytes of these events that go to the client.
fn relayed(judge: &mut StreamClassifier, frames: &[SseFrame]) -> String {
    let mut sent = String::new();
    for frame in frames {
        let bytes = match judge.classify(frame).forward {
            Forward::AsIs => frame.bytes().clone(),
            Forward::Replace(bytes) => bytes,
            Forward::Drop => continue,
        };
        sent.push_str(std::str::from_utf8(&bytes).unwrap());
    }
    sent
}

fn judge(api: Api, so_far: PartialAnswer) -> StreamClassifier {
    StreamClassifier::new(api, 1, None, UsageVisibility::Always).with_partial_answer(so_far)
}

/// A stream as a client reads it.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    text: String,
    roles: usize,
    heads: Vec<(Value, Value, Value)>,
    ends: Vec<Value>,
    usages: Vec<Value>,
    dones: usize,
}

fn seen(stream: &str) -> Seen {
    let mut seen = Seen::default();
    for frame in frames(stream) {
        let Some(data) = frame.data() else { continue };
        if data == b"[DONE]" {
            seen.dones += 1;
            continue;
        }
        let event: Value = serde_json::from_slice(data).unwrap();
        let head = (event["id"].clone(), event["created"].clone(), event["model"].clone());
        if seen.heads.last() != Some(&head) {
            seen.heads.push(head);
        }
        if event["choices"] == json!([]) {
            seen.usages.push(event["usage"].clone());
        }
        for choice in event["choices"].as_array().unwrap() {
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            seen.text += text.unwrap_or_default();
            seen.roles += usize::from(choice["delta"]["role"].is_string());
            seen.ends.extend(Some(choice["finish_reason"].clone()).filter(|reason| !reason.is_null()));
        }
    }
    seen
}

/// One engine's answer with these pieces of text: a first event, an end, usage and `[DONE]`.
fn answer(id: &str, created: u64, pieces: &[String], (prompt, output): (u64, u64)) -> String {
    let event = |choices: Value, more: Value| {
        let mut event = json!({"id": id, "object": "chat.completion.chunk", "created": created,
            "model": "tiny", "choices": choices});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format!("data: {event}\n\n")
    };
    let choice = |delta: Value, reason: Value| json!([{"index": 0, "delta": delta, "finish_reason": reason}]);
    let mut stream = event(choice(json!({"role": "assistant", "content": ""}), Value::Null), json!({}));
    for piece in pieces {
        stream += &event(choice(json!({ "content": piece }), Value::Null), json!({}));
    }
    stream += &event(choice(json!({"content": ""}), json!("length")), json!({}));
    let usage =
        json!({"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output});
    stream + &event(json!([]), json!({ "usage": usage })) + "data: [DONE]\n\n"
}

/// `text` in pieces that end at those of `cuts` that are character boundaries, and at every seventh
/// character.
fn pieces(text: &str, cuts: &[prop::sample::Index]) -> Vec<String> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
    ends.extend(text.char_indices().map(|(at, _)| at).step_by(7));
    ends.push(text.len());
    ends.retain(|at| text.is_char_boundary(*at));
    ends.sort_unstable();
    let starts = [0].into_iter().chain(ends.clone());
    starts
        .zip(ends.clone())
        .map(|(from, to)| text[from..to].to_owned())
        .filter(|piece| !piece.is_empty())
        .collect()
}

proptest! {
    #[test]
    fn wherever_it_breaks_the_client_sees_one_answer(
        text in "([a-z\"\\\\\u{7}é字🦀]{1,4}|[ \n\t]{1,3}){1,40}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        other_cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        breaks in prop::collection::vec(any::<prop::sample::Index>(), 1..3),
    ) {
        let tokens = 3 * text.len() as u64;
        let whole = answer("one", 1, &pieces(&text, &cuts), (7, tokens));
        let mut parts = whole.clone();
        let mut so_far = PartialAnswer::default();
        let mut sent = String::new();
        for (number, at) in breaks.iter().enumerate() {
            let all = frames(&parts);
            let read = 2 + at.index(all.len() - 4);
            let mut first = judge(Api::Chat, so_far);
            sent += &relayed(&mut first, &all[..read]);
            let broken = first.final_verdict(ConnectionEnd::Cut);
            let is_partial = matches!(broken, StreamVerdict::Failed { usage: JobUsage::Partial(_), .. });
            prop_assert!(is_partial);
            so_far = first.to_partial_answer().unwrap();
            prop_assert!(text.starts_with(so_far.prompt_text()));
            // The count of an engine that counts one token for each byte.
            so_far.set_tokens(so_far.prompt_text().len() as u64);
            let rest = pieces(&text[so_far.prompt_text().len()..], &other_cuts);
            if rest.is_empty() {
                return Ok(());
            }
            let usage = (7 + so_far.tokens(), tokens - so_far.tokens());
            parts = answer(&format!("part-{number}"), 10 + number as u64, &rest, usage);
            if frames(&parts).len() < 5 {
                break;
            }
        }
        let mut last = judge(Api::Chat, so_far);
        sent += &relayed(&mut last, &frames(&parts));
        let usage = JobUsage::Exact(TokenCounts { input: 7, cached: None, output: tokens });
        prop_assert_eq!(last.final_verdict(ConnectionEnd::Clean), StreamVerdict::Success { usage });
        prop_assert_eq!(seen(&sent), seen(&whole));
    }
}

/// The recorded text streams of a real engine.
#[test]
fn recorded_streams_stay_the_same_to_the_byte() {
    let mut continued = 0;
    for capture in captures("ok").into_iter().filter(|capture| capture.is_stream()) {
        let Some(parsed) = capture.peek().filter(|parsed| parsed.is_resumable) else { continue };
        let all = capture.frames();
        let whole = String::from_utf8(capture.body.to_vec()).unwrap();
        let is_end = |frame: &SseFrame| String::from_utf8_lossy(frame.bytes()).contains("finish_reason\":\"");
        let end = all.iter().position(is_end).unwrap();
        for at in 1..end {
            let mut first = judge(parsed.api, PartialAnswer::default());
            let mut sent = relayed(&mut first, &all[..at]);
            let Some(mut so_far) = first.to_partial_answer() else { continue };
            so_far.set_tokens(1);
            let rest: String = all[at..].iter().map(|frame| as_another(frame, 1)).collect();
            let role = frames(&whole).first().map(|frame| as_another(frame, 1)).unwrap();
            let rest = if parsed.api == Api::Chat { role + &rest } else { rest };
            let mut second = judge(parsed.api, so_far);
            sent += &relayed(&mut second, &frames(&rest));
            assert_eq!(sent, whole, "{} cut at {at}", capture.name);
            assert!(matches!(second.final_verdict(ConnectionEnd::Clean), StreamVerdict::Success { .. }));
            continued += 1;
        }
    }
    assert!(continued > 8, "{continued}");
}

/// The event as an engine sends it that got `tokens` tokens of the answer in its prompt.
fn as_another(frame: &SseFrame, tokens: u64) -> String {
    let text = std::str::from_utf8(frame.bytes()).unwrap();
    let Ok(event) = serde_json::from_slice::<Value>(frame.data().unwrap()) else { return text.to_owned() };
    let mut text = text.replace(event["id"].as_str().unwrap(), "chatcmpl-of-another");
    text = text.replace(&format!("\"created\":{}", event["created"]), "\"created\":1");
    if let Some(input) = event["usage"]["prompt_tokens"].as_u64() {
        let output = event["usage"]["completion_tokens"].as_u64().unwrap();
        let of = |name: &str, count: u64| format!("\"{name}\":{count}");
        text = text.replace(&of("prompt_tokens", input), &of("prompt_tokens", input + tokens));
        let after = output.saturating_sub(tokens);
        text = text.replace(&of("completion_tokens", output), &of("completion_tokens", after));
    }
    text
}

#[test]
fn what_is_more_than_text_cannot_be_continued() {
    let opened = |choice: Value| {
        let event = json!({"id": "a", "created": 1, "model": "m", "choices": [choice]});
        let text = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}]}}\n\ndata: {event}\n\n"
        );
        let mut judge = judge(Api::Chat, PartialAnswer::default());
        relayed(&mut judge, &frames(&text));
        judge.to_partial_answer().is_some()
    };
    assert!(opened(json!({"index": 0, "delta": {"content": "b", "tool_calls": [], "reasoning": null}})));
    for choice in [
        json!({"index": 0, "delta": {"reasoning_content": "hm"}}),
        json!({"index": 0, "delta": {"tool_calls": [{"index": 0}]}}),
        json!({"index": 0, "delta": {"content": [{"text": "b"}]}}),
        json!({"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [{}]}}),
        json!({"index": 0, "delta": {"content": "x".repeat(MAX_TEXT)}}),
        json!({"index": 1, "delta": {"content": "b"}}),
        json!({"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}),
    ] {
        assert!(!opened(choice.clone()), "{choice:.80}");
    }
    assert!(judge(Api::Chat, PartialAnswer::default()).to_partial_answer().is_none(), "without any text");
    assert!(StreamClassifier::new(Api::Chat, 1, None, UsageVisibility::Always).to_partial_answer().is_none());
}

#[test]
fn an_answer_that_lacks_only_its_end_gets_no_further_text() {
    let mut so_far =
        PartialAnswer { text: "the whole text".into(), is_resumed: true, ..PartialAnswer::default() };
    so_far.set_tokens(41);
    so_far.cap_tokens(u64::MAX);
    assert_eq!((so_far.tokens(), so_far.is_counted()), (41, true));
    so_far.cap_tokens(39);
    assert_eq!(so_far.tokens(), 39, "the next engine generates one");

    let one = [" more".to_owned()];
    let sent = seen(&relayed(&mut judge(Api::Chat, so_far), &frames(&answer("b", 2, &one, (60, 1)))));
    assert_eq!((sent.text.as_str(), sent.ends.len(), sent.dones), ("", 1, 1), "{sent:?}");
    let counts = ["prompt_tokens", "completion_tokens", "total_tokens"];
    assert_eq!(counts.map(|count| sent.usages.last().unwrap()[count].clone()), [19, 40, 59].map(Value::from));
}
