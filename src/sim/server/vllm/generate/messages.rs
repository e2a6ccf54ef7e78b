//! Anthropic routes: `/v1/messages` and `/v1/messages/count_tokens`.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::Value;

use crate::server::feed::{FeedEnd, Progress};
use crate::server::http::body::{Render, SimBody};
use crate::server::http::call::ServerCall;
use crate::server::http::job::ClientJob;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::text::SimPrompt;
use crate::server::vllm::error::VllmError;
use crate::server::vllm::fields::{self, JsonFields};
use crate::server::vllm::generate::params::{self, Params};
use crate::server::vllm::generate::prompt;
use crate::server::vllm::generate::session::{self, GenerationSession, SSE};

pub(in crate::server::vllm) async fn answer(mut call: ServerCall) -> HandlerAnswer {
    let (session, mut job) = match start(&mut call) {
        Ok(started) => started,
        Err(error) => return Ok(error.respond(&call.path)),
    };
    if session.params.stream {
        let render = Box::new(MessageStream { session, started: false, sent: 0 });
        return Ok(reply::events(SSE, SimBody::stream(job, render, None)));
    }
    let (progress, act) = job.complete().await;
    if let Some(FeedEnd::Failed(failure)) = &progress.end {
        return Ok(VllmError::from(failure.clone()).respond(&call.path));
    }
    let text = session.plans[0].text(0, progress.choices[0].tokens);
    let body = ordered!({
        "id": &*session.id, "type": "message", "role": "assistant",
        "content": [ordered!({"type": "text", "text": text})], "model": session.params.model,
        "stop_reason": stop_reason(&session, &progress), "usage": usage(&session, &progress)
    });
    Ok(reply::deliver(job, act, reply::json(200, ""), body.to_string().into()))
}

/// Answers with the number of prompt tokens, without running the prompt.
pub(in crate::server::vllm) fn count(call: &ServerCall) -> HandlerAnswer {
    let counted = fields::parse(call).and_then(|fields| {
        let model = params::model(&fields, &call.sim.options)?;
        prompt(&fields, &model, call)
    });
    Ok(match counted {
        Ok(prompt) => reply::value(
            200,
            &ordered!({
                "input_tokens": prompt.tokens,
                "context_management": ordered!({"original_input_tokens": prompt.tokens})
            }),
        ),
        Err(error) => error.respond(&call.path),
    })
}

fn prompt(fields: &JsonFields, model: &str, call: &ServerCall) -> Result<SimPrompt, VllmError> {
    let messages = fields.list("messages")?;
    let mut prompt = prompt::of_messages(messages, fields, model, call.sim.options.vllm.multimodal)?;
    match fields.get("system") {
        Some(Value::String(text)) => prompt.push(text, 3),
        Some(Value::Array(blocks)) => {
            for block in blocks {
                prompt.push(block.get("text").and_then(Value::as_str).unwrap_or_default(), 3);
            }
        }
        _ => {}
    }
    Ok(prompt)
}

fn start(call: &mut ServerCall) -> Result<(GenerationSession, ClientJob), VllmError> {
    let fields = fields::parse(call)?;
    fields.required("max_tokens")?;
    let params = Params::read(&fields, &call.sim.options, &["max_tokens"])?;
    let params = Params { n: 1, ..params };
    let prompt = prompt(&fields, &params.model, call)?;
    let id = session::answer_id(call, "chatcmpl-", None);
    session::start(call, id, params, vec![prompt])
}

fn stop_reason(session: &GenerationSession, progress: &Progress) -> Option<&'static str> {
    match session.reason(progress, 0) {
        "stop" => Some("end_turn"),
        "length" => Some("max_tokens"),
        _ => None,
    }
}

fn usage(session: &GenerationSession, progress: &Progress) -> Json {
    ordered!({
        "input_tokens": session.prompt_tokens - progress.cached_tokens.min(session.prompt_tokens),
        "output_tokens": progress.tokens(), "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": progress.cached_tokens
    })
}

struct MessageStream {
    session: GenerationSession,
    started: bool,
    sent: u32,
}

/// An event with `event:` and `data:` lines.
pub(super) fn named_event(name: &str, data: &Json) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

impl MessageStream {
    fn start(&mut self, out: &mut VecDeque<Bytes>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let session = &self.session;
        out.push_back(named_event(
            "message_start",
            &ordered!({"type": "message_start",
                "message": ordered!({
                    "id": &*session.id, "type": "message", "role": "assistant", "content": [(); 0],
                    "model": session.params.model, "stop_reason": (), "stop_sequence": (),
                    "usage": ordered!({"input_tokens": session.prompt_tokens, "output_tokens": 0})
                })
            }),
        ));
        out.push_back(named_event("content_block_start", &ordered!({"type": "content_block_start", "content_block": ordered!({"type": "text", "text": ""}), "index": 0
        })));
    }

    fn close(&mut self, end: &FeedEnd, progress: &Progress, out: &mut VecDeque<Bytes>) {
        if let FeedEnd::Failed(failure) = end {
            let error = ordered!({"type": failure.kind, "message": failure.message});
            out.push_back(named_event("error", &ordered!({"type": "error", "error": error})));
            return;
        }
        self.start(out);
        out.push_back(named_event(
            "content_block_stop",
            &ordered!({"type": "content_block_stop", "index": 0}),
        ));
        if *end != FeedEnd::NoFinish {
            out.push_back(named_event("message_delta", &ordered!({"type": "message_delta",
                "delta": ordered!({"stop_reason": stop_reason(&self.session, progress), "stop_sequence": ()}),
                "usage": usage(&self.session, progress)
            })));
        }
        out.push_back(named_event("message_stop", &ordered!({"type": "message_stop"})));
    }
}

impl Render for MessageStream {
    fn render(&mut self, progress: &Progress, out: &mut VecDeque<Bytes>) {
        let tokens = progress.choices[0].tokens;
        if tokens > self.sent {
            self.start(out);
            let text = self.session.plans[0].text(self.sent, tokens);
            self.sent = tokens;
            if !text.is_empty() {
                out.push_back(named_event("content_block_delta", &ordered!({"type": "content_block_delta", "delta": ordered!({"type": "text_delta", "text": text}), "index": 0
                })));
            }
        }
        if let Some(end) = &progress.end {
            self.close(end, progress, out);
        }
    }
}
