//! Responses route: `/v1/responses`.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::Value;

use crate::server::feed::{FeedEnd, Progress};
use crate::server::http::body::{Render, SimBody};
use crate::server::http::call::ServerCall;
use crate::server::http::job::ClientJob;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::text::{SimPrompt, hash};
use crate::server::vllm::error::VllmError;
use crate::server::vllm::fields::{self, JsonFields};
use crate::server::vllm::generate::messages::named_event;
use crate::server::vllm::generate::params::Params;
use crate::server::vllm::generate::prompt;
use crate::server::vllm::generate::session::{self, GenerationSession, SSE};

pub(in crate::server::vllm) async fn answer(mut call: ServerCall) -> HandlerAnswer {
    let (session, mut job) = match start(&mut call) {
        Ok(started) => started,
        Err(error) => return Ok(error.respond(&call.path)),
    };
    if session.params.stream {
        let render = Box::new(ResponseStream { session, started: false, sent: 0, sequence: 0 });
        return Ok(reply::events(SSE, SimBody::stream(job, render, None)));
    }
    let (progress, act) = job.complete().await;
    if let Some(FeedEnd::Failed(failure)) = &progress.end {
        return Ok(VllmError::from(failure.clone()).respond(&call.path));
    }
    let body = object(&session, Some(&progress)).to_string();
    Ok(reply::deliver(job, act, reply::json(200, ""), body.into()))
}

/// Answers 404: no response is stored.
pub(in crate::server::vllm) fn stored(call: &ServerCall) -> HandlerAnswer {
    let id = call.path.trim_start_matches("/v1/responses/");
    Ok(VllmError::not_found(format!("Response with id '{id}' not found."), "response_id").respond(&call.path))
}

fn start(call: &mut ServerCall) -> Result<(GenerationSession, ClientJob), VllmError> {
    let fields = fields::parse(call)?;
    let params = Params::read(&fields, &call.sim.options, &["max_output_tokens"])?;
    let params = Params { n: 1, ..params };
    let prompt = prompt(&fields, &params.model, call)?;
    let id = session::answer_id(call, "resp_", fields.string("request_id")?);
    session::start(call, id, params, vec![prompt])
}

fn prompt(fields: &JsonFields, model: &str, call: &ServerCall) -> Result<SimPrompt, VllmError> {
    let mut prompt = match fields.required("input")? {
        Value::String(text) => {
            let mut prompt = SimPrompt::counted(1);
            prompt.push(text, 3);
            prompt
        }
        Value::Array(items) => prompt::of_messages(items, fields, model, call.sim.options.vllm.multimodal)?,
        other => return Err(VllmError::either("body.input", &other.to_string())),
    };
    if let Some(text) = fields.string("instructions")? {
        prompt.push(text, 3);
    }
    Ok(prompt)
}

fn message_id(session: &GenerationSession) -> String {
    format!("msg_{:016x}", hash(&session.id))
}

fn item(session: &GenerationSession, text: Option<&str>) -> Json {
    let content = text
        .map(|text| ordered!({"annotations": [(); 0], "text": text, "type": "output_text", "logprobs": ()}));
    ordered!({
        "id": message_id(session), "content": content.iter().collect::<Vec<_>>(), "role": "assistant",
        "status": if text.is_some() { "completed" } else { "in_progress" }, "type": "message", "phase": ()
    })
}

fn text_so_far(session: &GenerationSession, progress: &Progress) -> String {
    session.plans[0].text(0, progress.choices[0].tokens)
}

/// The response object, at its start or its end.
fn object(session: &GenerationSession, progress: Option<&Progress>) -> Json {
    let reason = progress.map(|progress| session.reason(progress, 0));
    let status = match reason {
        None => "in_progress",
        Some("stop") => "completed",
        Some("length") => "incomplete",
        Some(_) => "cancelled",
    };
    let incomplete = (reason == Some("length")).then(|| ordered!({"reason": "max_output_tokens"}));
    let output = progress.map(|progress| item(session, Some(&text_so_far(session, progress))));
    let usage = progress.map(|progress| {
        ordered!({
            "input_tokens": session.prompt_tokens,
            "input_tokens_details": ordered!({
                "cached_tokens": progress.cached_tokens, "cache_write_tokens": 0,
                "input_tokens_per_turn": [(); 0], "cached_tokens_per_turn": [(); 0]
            }),
            "output_tokens": progress.tokens(),
            "output_tokens_details": ordered!({
                "reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [(); 0],
                "tool_output_tokens_per_turn": [(); 0]
            }),
            "total_tokens": u64::from(session.prompt_tokens) + progress.tokens()
        })
    });
    ordered!({
        "id": &*session.id, "created_at": session.created, "incomplete_details": incomplete,
        "instructions": (), "metadata": (), "model": session.params.model, "object": "response",
        "output": output.iter().collect::<Vec<_>>(), "parallel_tool_calls": true, "temperature": 1.0,
        "tool_choice": "none", "tools": [(); 0], "top_p": 1.0, "background": false,
        "max_output_tokens": session.params.max_tokens, "max_tool_calls": (), "previous_response_id": (),
        "prompt": (), "reasoning": (), "service_tier": "auto", "status": status, "text": (),
        "top_logprobs": (), "truncation": "disabled", "usage": usage, "user": (),
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "kv_transfer_params": (),
        "ec_transfer_params": (), "input_messages": (), "output_messages": ()
    })
}

struct ResponseStream {
    session: GenerationSession,
    started: bool,
    sent: u32,
    sequence: u64,
}

impl ResponseStream {
    fn push(&mut self, kind: &str, data: Json, out: &mut VecDeque<Bytes>) {
        let data = data.and("sequence_number", &self.sequence).and("type", &kind);
        self.sequence += 1;
        out.push_back(named_event(kind, &data));
    }

    fn start(&mut self, out: &mut VecDeque<Bytes>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let response = object(&self.session, None);
        self.push("response.created", ordered!({"response": response}), out);
        self.push("response.in_progress", ordered!({"response": response}), out);
        let added = ordered!({"item": item(&self.session, None), "output_index": 0});
        self.push("response.output_item.added", added, out);
        let part = ordered!({"annotations": [(); 0], "text": "", "type": "output_text", "logprobs": [(); 0]});
        let part = ordered!({
            "content_index": 0, "item_id": message_id(&self.session), "output_index": 0, "part": part
        });
        self.push("response.content_part.added", part, out);
    }

    fn close(&mut self, end: &FeedEnd, progress: &Progress, out: &mut VecDeque<Bytes>) {
        if let FeedEnd::Failed(failure) = end {
            let data = ordered!({"code": failure.status, "message": failure.message, "param": ()});
            self.push("error", data, out);
            return;
        }
        self.start(out);
        if *end == FeedEnd::NoFinish {
            return;
        }
        let (id, text) = (message_id(&self.session), text_so_far(&self.session, progress));
        let at = ordered!({"content_index": 0, "item_id": id, "output_index": 0});
        let done = at.clone().and("logprobs", &[(); 0]).and("text", &text);
        self.push("response.output_text.done", done, out);
        let part = ordered!({"annotations": [(); 0], "text": text, "type": "output_text", "logprobs": ()});
        self.push("response.content_part.done", at.and("part", &part), out);
        let done = ordered!({"item": item(&self.session, Some(&text)), "output_index": 0});
        self.push("response.output_item.done", done, out);
        let response = object(&self.session, Some(progress));
        self.push("response.completed", ordered!({"response": response}), out);
    }
}

impl Render for ResponseStream {
    fn render(&mut self, progress: &Progress, out: &mut VecDeque<Bytes>) {
        let tokens = progress.choices[0].tokens;
        if tokens > self.sent {
            self.start(out);
            let text = self.session.plans[0].text(self.sent, tokens);
            self.sent = tokens;
            if !text.is_empty() {
                let data = ordered!({
                    "content_index": 0, "delta": text, "item_id": message_id(&self.session), "logprobs": [(); 0],
                    "output_index": 0
                });
                self.push("response.output_text.delta", data, out);
            }
        }
        if let Some(end) = &progress.end {
            self.close(end, progress, out);
        }
    }
}
