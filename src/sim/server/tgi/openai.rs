//! TGI's OpenAI routes: `/v1/chat/completions`, `/v1/completions` and their
//! aliases `/vertex` and `/invocations`.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::Value;

use super::error::{TgiError, with_headers};
use super::generate::{self, Generation, event};
use crate::server::feed::Progress;
use crate::server::http::body::{Render, SimBody};
use crate::server::http::call::ServerCall;
use crate::server::http::job::ClientJob;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::text::SimPrompt;

const FINGERPRINT: &str = "3.3.7-simulated";

struct Openai {
    generation: Generation,
    chat: bool,
    stream: bool,
    include_usage: bool,
    created: u64,
    model: String,
}

pub(super) async fn answer(mut call: ServerCall) -> HandlerAnswer {
    let (openai, mut job) = match read(&mut call) {
        Ok(started) => started,
        Err(error) => return Ok(error.respond()),
    };
    if openai.stream {
        let headers = generate::stream_headers(&openai.generation);
        let render = Box::new(OpenaiStream { openai, sent: 0 });
        let response = reply::events("text/event-stream", SimBody::stream(job, render, None));
        return Ok(with_headers(response, &headers));
    }
    let (progress, act) = job.complete().await;
    if let Some(error) = generate::failed(&progress, false) {
        return Ok(error.respond());
    }
    let headers = generate::timing_headers(&openai.generation, &progress, call.sim.now());
    let response = with_headers(reply::json(200, ""), &headers);
    Ok(reply::deliver(job, act, response, openai.whole(&progress).to_string().into()))
}

fn read(call: &mut ServerCall) -> Result<(Openai, ClientJob), TgiError> {
    let body: Value = serde_json::from_slice(&call.body).map_err(|error| {
        TgiError::validation(format!("Failed to parse the request body as JSON: {error}"))
    })?;
    let messages = body.get("messages").and_then(Value::as_array);
    let (prompt, chat) = match (messages, body.get("prompt").and_then(Value::as_str)) {
        (Some(messages), _) if !messages.is_empty() => (chat_prompt(messages), true),
        (Some(_), _) => {
            let message = "Template error: Conversation roles must alternate".to_owned();
            return Err(TgiError { status: 422, message, kind: "template_error" });
        }
        (None, Some(text)) => (SimPrompt::text(text), false),
        (None, None) => {
            let message =
                "Failed to deserialize the JSON body into the target type: missing field `messages`";
            return Err(TgiError::validation(message));
        }
    };
    let limit = body.get("max_tokens").and_then(Value::as_u64);
    let seed = body.get("seed").and_then(Value::as_u64).unwrap_or(0);
    let (generation, job) = generate::start(call, &prompt, limit, seed)?;
    let flag = |pointer: &str| body.pointer(pointer).and_then(Value::as_bool).unwrap_or(false);
    let openai = Openai {
        generation,
        chat,
        stream: flag("/stream"),
        include_usage: flag("/stream_options/include_usage"),
        created: call.sim.unix(),
        model: call.sim.options.model().to_owned(),
    };
    Ok((openai, job))
}

fn chat_prompt(messages: &[Value]) -> SimPrompt {
    let mut prompt = SimPrompt::counted(1);
    for message in messages {
        prompt.push("", 3);
        match message.get("content") {
            Some(Value::String(text)) => prompt.push(text, 0),
            Some(Value::Array(parts)) => {
                for part in parts {
                    prompt.push(part.get("text").and_then(Value::as_str).unwrap_or_default(), 0);
                }
            }
            _ => {}
        }
    }
    prompt
}

impl Openai {
    fn reason(&self) -> &'static str {
        if self.generation.stops { "stop" } else { "length" }
    }

    fn usage(&self, tokens: u32) -> Json {
        let prompt = self.generation.prompt_tokens;
        ordered!({"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens})
    }

    fn envelope(&self, object: &str, choices: &[Json]) -> Json {
        ordered!({
            "object": object, "id": "", "created": self.created, "model": self.model,
            "system_fingerprint": FINGERPRINT, "choices": choices
        })
    }

    /// One choice; `message` names the field that holds a chat's text.
    fn choice(&self, message: &str, text: &str, reason: Option<&str>) -> Json {
        let choice = match self.chat {
            true => ordered!({"index": 0}).and(message, &ordered!({"role": "assistant", "content": text})),
            false => ordered!({"index": 0, "text": text}),
        };
        choice.and("logprobs", &()).and("finish_reason", &reason)
    }

    fn whole(&self, progress: &Progress) -> Json {
        let tokens = progress.choices[0].tokens;
        let choice = self.choice("message", &self.generation.text(0, tokens), Some(self.reason()));
        let object = if self.chat { "chat.completion" } else { "text_completion" };
        self.envelope(object, &[choice]).and("usage", &self.usage(tokens))
    }

    fn chunk_object(&self) -> &'static str {
        if self.chat { "chat.completion.chunk" } else { "text_completion" }
    }

    fn chunk(&self, from: u32, to: u32, done: bool) -> Json {
        let choice = self.choice("delta", &self.generation.text(from, to), done.then(|| self.reason()));
        let body = self.envelope(self.chunk_object(), &[choice]);
        if self.chat { body.and("usage", &()) } else { body }
    }
}

struct OpenaiStream {
    openai: Openai,
    sent: u32,
}

impl Render for OpenaiStream {
    fn render(&mut self, progress: &Progress, out: &mut VecDeque<Bytes>) {
        let choice = progress.choices[0];
        while self.sent < choice.tokens {
            let next = self.sent + 1;
            let done = choice.done && next == choice.tokens;
            out.push_back(event(&self.openai.chunk(self.sent, next, done)));
            self.sent = next;
        }
        if progress.end.is_none() {
            return;
        }
        if let Some(error) = generate::failed(progress, true) {
            out.push_back(event(&error.openai()));
        } else if self.openai.include_usage {
            let body = self.openai.envelope(self.openai.chunk_object(), &[]);
            let body = body.and("usage", &self.openai.usage(choice.tokens));
            out.push_back(event(&body));
        }
        out.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}
