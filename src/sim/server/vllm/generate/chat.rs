//! Chat route: `/v1/chat/completions`.

use std::collections::VecDeque;
use std::fmt::Write;

use bytes::Bytes;
use serde_json::Value;

use crate::server::feed::{FeedEnd, Progress};
use crate::server::http::body::{Render, SimBody};
use crate::server::http::call::ServerCall;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::vllm::error::{self, VllmError};
use crate::server::vllm::fields;
use crate::server::vllm::generate::params::{self, ForcedTool, Params};
use crate::server::vllm::generate::prompt;
use crate::server::vllm::generate::session::{self, DONE, FINGERPRINT, GenerationSession, SSE, SequencePlan};

pub(in crate::server::vllm) async fn answer(mut call: ServerCall) -> HandlerAnswer {
    let (session, mut job, tool) = match start(&mut call) {
        Ok(started) => started,
        Err(error) => return Ok(error.respond(&call.path)),
    };
    if session.params.stream {
        let keep_alive = call.sim.options.vllm.sse_keep_alive;
        let render = Box::new(ChatStream::new(session, tool));
        return Ok(reply::events(SSE, SimBody::stream(job, render, keep_alive)));
    }
    let (progress, act) = job.complete().await;
    if let Some(FeedEnd::Failed(failure)) = &progress.end {
        return Ok(VllmError::from(failure.clone()).respond(&call.path));
    }
    let body = whole(&session, tool.as_ref(), &progress).to_string();
    let mut response = reply::json(200, "");
    crate::server::vllm::meta::add_load_header(&call, &mut response);
    Ok(reply::deliver(job, act, response, body.into()))
}

fn start(
    call: &mut ServerCall,
) -> Result<(GenerationSession, crate::server::http::job::ClientJob, Option<ForcedTool>), VllmError> {
    let fields = fields::parse(call)?;
    let messages = fields.list("messages")?;
    let params = Params::read(&fields, &call.sim.options, &["max_completion_tokens", "max_tokens"])?;
    let tool = params::tool(&fields, &call.sim.options.vllm)?;
    let prompt = prompt::of_messages(messages, &fields, &params.model, call.sim.options.vllm.multimodal)?;
    let id = session::answer_id(call, "chatcmpl-", fields.string("request_id")?);
    let (session, job) = session::start(call, id, params, vec![prompt])?;
    Ok((session, job, tool))
}

fn finish_reason(plan: &SequencePlan, tool: Option<&ForcedTool>) -> &'static str {
    if tool.is_some() && plan.stops { "tool_calls" } else { plan.finish_reason() }
}

/// The arguments' text of the tokens `from..to`: `{"parameter": "`, words,
/// `"}`.
fn arguments(plan: &SequencePlan, tool: &ForcedTool, from: u32, to: u32) -> String {
    let Some(parameter) = tool.parameter.as_ref().filter(|_| plan.tokens > 1) else {
        return if from == 0 && to > 0 { "{}".to_owned() } else { String::new() };
    };
    let mut out = String::new();
    if from == 0 && to > 0 {
        let _ = write!(out, "{{{}: \"", Value::from(parameter.as_str()));
    }
    plan.write(from.max(1), to, &mut out);
    if plan.stops && to == plan.tokens && from < to {
        out.push_str("\"}");
    }
    out
}

fn tool_id(session: &GenerationSession, choice: usize) -> String {
    format!("chatcmpl-tool-{:016x}", crate::server::text::hash(&session.id) ^ choice as u64)
}

fn whole(session: &GenerationSession, tool: Option<&ForcedTool>, progress: &Progress) -> Json {
    let choice = |index: usize| {
        let (plan, tokens) = (&session.plans[index], progress.choices[index].tokens);
        let done = progress.choices[index].done;
        let content = if tool.is_some() { None } else { Some(plan.text(0, tokens)) };
        let mut message = ordered!({
            "role": "assistant", "content": content, "refusal": (), "annotations": (), "audio": (),
            "function_call": (), "reasoning": ()
        });
        if let Some(tool) = tool {
            let function = ordered!({"name": tool.name, "arguments": arguments(plan, tool, 0, tokens)});
            let call = ordered!({"id": tool_id(session, index), "type": "function", "function": function});
            message = message.and("tool_calls", &[call]);
        }
        ordered!({
            "index": index,
            "message": message,
            "logprobs": logprobs(session, plan, 0, tokens),
            "finish_reason": if done { finish_reason(plan, tool) } else { "abort" },
            "stop_reason": (), "token_ids": (), "routed_experts": ()
        })
    };
    ordered!({
        "id": &*session.id, "object": "chat.completion", "created": session.created,
        "model": session.params.model,
        "choices": (0..session.plans.len()).map(choice).collect::<Vec<_>>(),
        "service_tier": (), "system_fingerprint": FINGERPRINT,
        "usage": session.usage(progress, true),
        "prompt_logprobs": (), "prompt_token_ids": (), "prompt_text": (),
        "kv_transfer_params": (), "ec_transfer_params": (),
        "metrics": session.metrics(progress)
    })
}

fn logprobs(session: &GenerationSession, plan: &SequencePlan, from: u32, to: u32) -> Option<Json> {
    let top = session.params.logprobs?;
    let one = |index| {
        let (token, logprob) = plan.scored(index);
        let row = |logprob: f64| ordered!({"token": token, "logprob": logprob, "bytes": token.as_bytes()});
        let others: Vec<Json> = (0..top).map(|rank| row(logprob - f64::from(rank))).collect();
        row(logprob).and("top_logprobs", &others)
    };
    Some(ordered!({"content": (from..to).map(one).collect::<Vec<_>>()}))
}

/// The events of a streamed chat.
struct ChatStream {
    session: GenerationSession,
    tool: Option<ForcedTool>,
    /// Start of every event, up to its choices.
    head: String,
    /// By choice.
    sent: Vec<SentDeltas>,
}

/// What the events so far have of one choice.
#[derive(Debug, Clone, Copy, Default)]
struct SentDeltas {
    role: bool,
    tokens: u32,
    finish_reason: bool,
}

impl ChatStream {
    fn new(session: GenerationSession, tool: Option<ForcedTool>) -> Self {
        let head = format!(
            "data: {{\"id\":{},\"object\":\"chat.completion.chunk\",\"created\":{},\"model\":{},\"choices\":[",
            Value::from(&*session.id),
            session.created,
            Value::from(session.params.model.as_str())
        );
        let sent = vec![SentDeltas::default(); session.plans.len()];
        Self { session, tool, head, sent }
    }

    /// One event. `choice` is its choice object; `tail` follows the usage.
    fn event(&self, choice: &str, progress: &Progress, tail: &str) -> Bytes {
        let mut out = String::with_capacity(self.head.len() + choice.len() + tail.len() + 128);
        out.push_str(&self.head);
        out.push_str(choice);
        out.push(']');
        if self.session.params.continuous_usage {
            self.session.write_running_usage(progress, &mut out);
        }
        out.push_str(tail);
        out.push_str("}\n\n");
        out.into()
    }

    fn role(&mut self, index: usize, progress: &Progress, out: &mut VecDeque<Bytes>) {
        if std::mem::replace(&mut self.sent[index].role, true) {
            return;
        }
        let choice = format!(
            "{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
             \"finish_reason\":null}}"
        );
        let mut at_start = progress.clone();
        at_start.choices.iter_mut().for_each(|choice| choice.tokens = 0);
        out.push_back(self.event(&choice, &at_start, ",\"prompt_token_ids\":null,\"prompt_text\":null"));
    }

    fn delta(&self, index: usize, from: u32, to: u32) -> String {
        let plan = &self.session.plans[index];
        let Some(tool) = &self.tool else {
            return format!("{{\"content\":\"{}\"}}", plan.text(from, to));
        };
        let arguments = Value::from(arguments(plan, tool, from, to));
        if from > 0 {
            return format!(
                "{{\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":{arguments}}}}}]}}"
            );
        }
        let (id, name) = (tool_id(&self.session, index), Value::from(tool.name.as_str()));
        format!(
            "{{\"tool_calls\":[{{\"id\":\"{id}\",\"type\":\"function\",\"index\":0,\
             \"function\":{{\"name\":{name},\"arguments\":{arguments}}}}}]}}"
        )
    }

    fn tokens(&mut self, index: usize, progress: &Progress, out: &mut VecDeque<Bytes>) {
        let (choice, from) = (progress.choices[index], self.sent[index].tokens);
        if choice.tokens == from {
            return;
        }
        self.sent[index].tokens = choice.tokens;
        let delta = self.delta(index, from, choice.tokens);
        let plan = &self.session.plans[index];
        let logprobs = Json::of(&logprobs(&self.session, plan, from, choice.tokens));
        let reason = if choice.done {
            format!("\"{}\",\"stop_reason\":null", finish_reason(plan, self.tool.as_ref()))
        } else {
            "null".to_owned()
        };
        let event = format!(
            "{{\"index\":{index},\"delta\":{delta},\"logprobs\":{logprobs},\"finish_reason\":{reason},\
             \"token_ids\":null}}"
        );
        self.sent[index].finish_reason |= choice.done;
        out.push_back(self.event(&event, progress, &self.fingerprint()));
    }

    /// The fingerprint, which is part of the last finish reason's event when no
    /// usage follows.
    fn fingerprint(&self) -> String {
        let last = self.sent.iter().all(|sent| sent.finish_reason);
        match last && !self.session.params.include_usage {
            true => format!(",\"system_fingerprint\":\"{FINGERPRINT}\""),
            false => String::new(),
        }
    }

    fn abort(&mut self, index: usize, progress: &Progress, out: &mut VecDeque<Bytes>) {
        self.role(index, progress, out);
        if progress.choices[index].tokens == 0 || std::mem::replace(&mut self.sent[index].finish_reason, true)
        {
            return;
        }
        let event = format!(
            "{{\"index\":{index},\"delta\":{{\"content\":\"\"}},\"logprobs\":null,\
             \"finish_reason\":\"abort\",\"stop_reason\":null,\"token_ids\":null}}"
        );
        out.push_back(self.event(&event, progress, &self.fingerprint()));
    }

    fn close(&mut self, end: &FeedEnd, progress: &Progress, out: &mut VecDeque<Bytes>) {
        for index in 0..self.sent.len() {
            match end {
                FeedEnd::Aborted => self.abort(index, progress, out),
                FeedEnd::NoFinish => self.role(index, progress, out),
                FeedEnd::Complete | FeedEnd::Failed(_) | FeedEnd::Cut => {}
            }
        }
        if let FeedEnd::Failed(failure) = end {
            out.push_back(error::event(failure).into());
        } else if self.session.params.include_usage {
            let mut event = self.head.clone();
            event.push(']');
            self.session.write_final_usage(progress, true, &mut event);
            event.push_str("}\n\n");
            out.push_back(event.into());
        }
        out.push_back(Bytes::from_static(DONE));
    }
}

impl Render for ChatStream {
    fn render(&mut self, progress: &Progress, out: &mut VecDeque<Bytes>) {
        for index in 0..self.sent.len() {
            if progress.choices[index].tokens > 0 {
                self.role(index, progress, out);
            }
        }
        for index in 0..self.sent.len() {
            self.tokens(index, progress, out);
        }
        if let Some(end) = &progress.end {
            self.close(end, progress, out);
        }
    }
}
