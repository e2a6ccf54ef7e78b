//! Answers of the instant engine, written once at its start where that is possible.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::engine::peek::Wish;
use crate::engine::{Counts, Shape};

const ID: &str = "chatcmpl-0123456789abcdef";
const CREATED: u64 = 1_700_000_000;
/// Rough prompt tokens from body bytes, for the usage figures.
const BYTES_PER_TOKEN: usize = 4;

/// One answer, described.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script {
    pub(crate) shape: Shape,
    pub(crate) tokens: u32,
    prompt_tokens: usize,
    cut: bool,
    include_usage: bool,
}

/// Events and bodies that do not depend on the request.
#[derive(Debug)]
pub(crate) struct Answers {
    model: String,
    pub(crate) models: Bytes,
    role: Bytes,
    token: Bytes,
    stop: Bytes,
    length: Bytes,
    done: Bytes,
    message_token: Bytes,
}

impl Answers {
    /// `chunk_bytes` is the size of a token event; it is met by a longer
    /// word, so it cannot be less than the event's frame.
    pub(crate) fn new(model: &str, chunk_bytes: usize) -> Self {
        // Quoted and escaped as JSON, once.
        let model = serde_json::Value::from(model).to_string();
        Answers {
            models: Bytes::from(format!(
                r#"{{"object":"list","data":[{{"id":{model},"object":"model","created":{CREATED},"owned_by":"loadtest","root":{model},"parent":null,"max_model_len":131072}}]}}"#
            )),
            role: chunk(&model, r#"{"role":"assistant","content":""}"#, "null"),
            token: padded(chunk_bytes, |word| chunk(&model, &format!(r#"{{"content":"{word}"}}"#), "null")),
            stop: chunk(&model, "{}", r#""stop""#),
            length: chunk(&model, "{}", r#""length""#),
            done: Bytes::from_static(b"data: [DONE]\n\n"),
            message_token: padded(chunk_bytes, message_delta),
            model,
        }
    }

    /// Settles what one answer will be: never more tokens than asked for.
    pub(crate) fn script(&self, shape: Shape, wish: &Wish, natural: u32) -> Script {
        let tokens = wish.max_tokens.map_or(natural, |most| most.min(natural));
        Script {
            shape,
            tokens,
            prompt_tokens: wish.body_bytes / BYTES_PER_TOKEN,
            cut: tokens < natural,
            include_usage: wish.include_usage,
        }
    }

    /// The events before the first token.
    pub(crate) fn opening(&self, script: &Script) -> Bytes {
        if script.shape == Shape::Openai {
            return self.role.clone();
        }
        let (model, prompt) = (&self.model, script.prompt_tokens);
        Bytes::from(format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"{ID}\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":{model},\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{{\"input_tokens\":{prompt},\"output_tokens\":0}}}}}}\n\nevent: content_block_start\ndata: {{\"type\":\"content_block_start\",\"content_block\":{{\"type\":\"text\",\"text\":\"\"}},\"index\":0}}\n\n"
        ))
    }

    /// One token event.
    pub(crate) fn token(&self, script: &Script) -> Bytes {
        match script.shape {
            Shape::Openai => self.token.clone(),
            Shape::Anthropic => self.message_token.clone(),
        }
    }

    /// The `step`th event after the last token; `None` after the last one.
    pub(crate) fn closing(&self, script: &Script, step: u8) -> Option<Bytes> {
        match (script.shape, step) {
            (Shape::Openai, 0) => Some(if script.cut { self.length.clone() } else { self.stop.clone() }),
            (Shape::Openai, 1) if script.include_usage => Some(self.usage_event(script)),
            (Shape::Openai, 1 | 2) if step == 1 + u8::from(script.include_usage) => Some(self.done.clone()),
            (Shape::Anthropic, 0) => Some(message_end(script)),
            _ => None,
        }
    }

    /// The whole answer of a request that does not stream.
    pub(crate) fn plain(&self, script: &Script) -> Bytes {
        let (model, words) = (&self.model, " word".repeat(script.tokens as usize));
        let (prompt, tokens) = (script.prompt_tokens, script.tokens);
        Bytes::from(match script.shape {
            Shape::Openai => {
                let (usage, finish) = (usage(script), if script.cut { "length" } else { "stop" });
                format!(
                    r#"{{"id":"{ID}","object":"chat.completion","created":{CREATED},"model":{model},"choices":[{{"index":0,"message":{{"role":"assistant","content":"{words}","refusal":null}},"logprobs":null,"finish_reason":"{finish}"}}],"usage":{usage}}}"#
                )
            }
            Shape::Anthropic => {
                let stop = stop_reason(script);
                format!(
                    r#"{{"id":"{ID}","type":"message","role":"assistant","content":[{{"type":"text","text":"{words}"}}],"model":{model},"stop_reason":"{stop}","stop_sequence":null,"usage":{{"input_tokens":{prompt},"output_tokens":{tokens}}}}}"#
                )
            }
        })
    }

    /// Prometheus text with vLLM's gauges and the engine's own counters.
    pub(crate) fn metrics(&self, counts: &Counts) -> Bytes {
        let labels = format!(r#"{{engine="0",model_name={}}}"#, self.model);
        let running = counts.running.load(Ordering::Relaxed);
        let requests = counts.requests.load(Ordering::Relaxed);
        let aborted = counts.aborted.load(Ordering::Relaxed);
        Bytes::from(format!(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{labels} {running}.0\n\
             # TYPE vllm:num_requests_waiting gauge\n\
             vllm:num_requests_waiting{labels} 0.0\n\
             # TYPE vllm:kv_cache_usage_perc gauge\n\
             vllm:kv_cache_usage_perc{labels} 0.0\n\
             # TYPE loadtest_engine_requests_total counter\n\
             loadtest_engine_requests_total {requests}\n\
             # TYPE loadtest_engine_aborted_total counter\n\
             loadtest_engine_aborted_total {aborted}\n"
        ))
    }

    fn usage_event(&self, script: &Script) -> Bytes {
        let (model, usage) = (&self.model, usage(script));
        Bytes::from(format!(
            "data: {{\"id\":\"{ID}\",\"object\":\"chat.completion.chunk\",\"created\":{CREATED},\"model\":{model},\"choices\":[],\"usage\":{usage}}}\n\n"
        ))
    }
}

fn chunk(model: &str, delta: &str, finish: &str) -> Bytes {
    Bytes::from(format!(
        "data: {{\"id\":\"{ID}\",\"object\":\"chat.completion.chunk\",\"created\":{CREATED},\"model\":{model},\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
    ))
}

fn message_delta(word: &str) -> Bytes {
    Bytes::from(format!(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"delta\":{{\"type\":\"text_delta\",\"text\":\"{word}\"}},\"index\":0}}\n\n"
    ))
}

fn message_end(script: &Script) -> Bytes {
    let (stop, prompt, tokens) = (stop_reason(script), script.prompt_tokens, script.tokens);
    Bytes::from(format!(
        "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":0}}\n\nevent: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"{stop}\",\"stop_sequence\":null}},\"usage\":{{\"input_tokens\":{prompt},\"output_tokens\":{tokens}}}}}\n\nevent: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
    ))
}

fn stop_reason(script: &Script) -> &'static str {
    if script.cut { "max_tokens" } else { "end_turn" }
}

fn usage(script: &Script) -> String {
    let (prompt, tokens) = (script.prompt_tokens, script.tokens as usize);
    let total = prompt + tokens;
    format!(r#"{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{tokens}}}"#)
}

/// Makes an event of `bytes` bytes by the length of its word.
fn padded(bytes: usize, make: impl Fn(&str) -> Bytes) -> Bytes {
    let least = make(" w");
    let missing = bytes.saturating_sub(least.len());
    if missing == 0 { least } else { make(&format!(" w{}", "o".repeat(missing))) }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn wish(max_tokens: Option<u32>, include_usage: bool) -> Wish {
        Wish { stream: true, include_usage, max_tokens, body_bytes: 400 }
    }

    fn data(event: &Bytes) -> Value {
        let text = std::str::from_utf8(event).expect("text");
        serde_json::from_str(text.strip_prefix("data: ").expect("one event")).expect("JSON")
    }

    #[test]
    fn token_events_have_the_size_asked_for() {
        assert_eq!(Answers::new("m", 220).token.len(), 220);
        assert_eq!(Answers::new("m", 1000).message_token.len(), 1000);
        let least = Answers::new("m", 0);
        assert_eq!(data(&least.token)["choices"][0]["delta"]["content"], " w");
    }

    #[test]
    fn limit_cuts_the_answer() {
        let answers = Answers::new("a \"quoted\" name", 220);
        let script = answers.script(Shape::Openai, &wish(Some(3), true), 20);
        assert_eq!(script.tokens, 3);
        let finish = answers.closing(&script, 0).expect("finish event");
        assert_eq!(data(&finish)["choices"][0]["finish_reason"], "length");
        let usage = answers.closing(&script, 1).expect("usage event");
        assert_eq!(data(&usage)["usage"]["total_tokens"], 103);
        assert_eq!(data(&usage)["model"], "a \"quoted\" name");
        assert_eq!(answers.closing(&script, 2).as_deref(), Some(&b"data: [DONE]\n\n"[..]));
        assert_eq!(answers.closing(&script, 3), None);
    }

    #[test]
    fn usage_only_when_asked() {
        let answers = Answers::new("m", 220);
        let script = answers.script(Shape::Openai, &wish(None, false), 20);
        assert_eq!(answers.closing(&script, 1).as_deref(), Some(&b"data: [DONE]\n\n"[..]));
        assert_eq!(answers.closing(&script, 2), None);
    }

    #[test]
    fn plain_answers_are_json_with_usage() {
        let answers = Answers::new("m", 220);
        let chat = answers.plain(&answers.script(Shape::Openai, &wish(None, false), 20));
        let chat: Value = serde_json::from_slice(&chat).expect("JSON");
        assert_eq!(chat["usage"]["completion_tokens"], 20);
        assert_eq!(chat["choices"][0]["finish_reason"], "stop");
        let message = answers.plain(&answers.script(Shape::Anthropic, &wish(Some(2), false), 20));
        let message: Value = serde_json::from_slice(&message).expect("JSON");
        assert_eq!(message["content"][0]["text"], " word word");
        assert_eq!(message["stop_reason"], "max_tokens");
        let models: Value = serde_json::from_slice(&answers.models).expect("JSON");
        assert_eq!(models["data"][0]["id"], "m");
    }
}
