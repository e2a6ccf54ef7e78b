//! Completion route: `/v1/completions`.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::Value;

use crate::server::feed::{FeedEnd, Progress};
use crate::server::http::body::{Render, SimBody};
use crate::server::http::call::ServerCall;
use crate::server::http::job::ClientJob;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::text::{SimPrompt, VOCABULARY, word};
use crate::server::vllm::error::{self, VllmError};
use crate::server::vllm::fields::{self, JsonFields};
use crate::server::vllm::generate::params::Params;
use crate::server::vllm::generate::session::{self, DONE, FINGERPRINT, GenerationSession, SSE, SequencePlan};

pub(in crate::server::vllm) async fn answer(mut call: ServerCall) -> HandlerAnswer {
    let (session, mut job, echoes) = match start(&mut call) {
        Ok(started) => started,
        Err(error) => return Ok(error.respond(&call.path)),
    };
    if session.params.stream {
        let keep_alive = call.sim.options.vllm.sse_keep_alive;
        let render = Box::new(CompletionStream::new(session, echoes));
        return Ok(reply::events(SSE, SimBody::stream(job, render, keep_alive)));
    }
    let (progress, act) = job.complete().await;
    if let Some(FeedEnd::Failed(failure)) = &progress.end {
        return Ok(VllmError::from(failure.clone()).respond(&call.path));
    }
    let body = whole(&session, &echoes, &progress).to_string();
    let mut response = reply::json(200, "");
    crate::server::vllm::meta::add_load_header(&call, &mut response);
    Ok(reply::deliver(job, act, response, body.into()))
}

fn start(call: &mut ServerCall) -> Result<(GenerationSession, ClientJob, Vec<String>), VllmError> {
    let fields = fields::parse(call)?;
    let prompts = prompts(&fields, "prompt")?;
    let params = Params::read(&fields, &call.sim.options, &["max_tokens"])?;
    let id = session::answer_id(call, "cmpl-", fields.string("request_id")?);
    let n = usize::try_from(params.n).unwrap_or(1);
    let mut echoes = Vec::new();
    if params.echo {
        for (_, text) in &prompts {
            echoes.extend(std::iter::repeat_n(text.clone(), n.min(16_384)));
        }
    }
    let prompts = prompts.into_iter().map(|(prompt, _)| prompt).collect();
    let (session, job) = session::start(call, id, params, prompts)?;
    Ok((session, job, echoes))
}

/// The prompts with their texts. The field is a text, a list of texts, a list
/// of ids or a list of lists of ids.
pub(in crate::server::vllm) fn prompts(
    fields: &JsonFields,
    name: &str,
) -> Result<Vec<(SimPrompt, String)>, VllmError> {
    match fields.required(name)? {
        Value::String(text) => Ok(vec![(SimPrompt::text(text), text.clone())]),
        Value::Array(items) if items.first().is_some_and(Value::is_number) => Ok(vec![token_ids(items)?]),
        Value::Array(items) if !items.is_empty() => items.iter().map(one_prompt).collect(),
        _ => Err(VllmError::bad(format!("Either {name} or {name}_embeds must be provided and non-empty."))),
    }
}

fn one_prompt(item: &Value) -> Result<(SimPrompt, String), VllmError> {
    match item {
        Value::String(text) => Ok((SimPrompt::text(text), text.clone())),
        Value::Array(ids) => token_ids(ids),
        _ => Err(VllmError::either("body.prompt", &item.to_string())),
    }
}

fn token_ids(items: &[Value]) -> Result<(SimPrompt, String), VllmError> {
    let mut ids = Vec::with_capacity(items.len());
    for item in items {
        match item.as_u64() {
            Some(id) if id < u64::from(VOCABULARY) => ids.push(id as u32),
            _ => return Err(VllmError::bad(format!("Token id {item} is out of vocabulary"))),
        }
    }
    let text = ids.iter().map(|id| word(*id)).collect();
    Ok((SimPrompt::ids(&ids), text))
}

fn logprobs(session: &GenerationSession, plan: &SequencePlan, from: u32, to: u32) -> Option<Json> {
    let top = session.params.logprobs?;
    let rows: Vec<_> = (from..to).map(|index| plan.scored(index)).collect();
    let offsets = rows.iter().scan(0, |at, (token, _)| {
        *at += token.len();
        Some(*at - token.len())
    });
    let best = |(token, logprob): &(&str, f64)| match top {
        0 => Json::object(),
        _ => Json::object().and(token, logprob),
    };
    Some(ordered!({
        "text_offset": offsets.collect::<Vec<_>>(),
        "token_logprobs": rows.iter().map(|(_, logprob)| logprob).collect::<Vec<_>>(),
        "tokens": rows.iter().map(|(token, _)| token).collect::<Vec<_>>(),
        "top_logprobs": rows.iter().map(best).collect::<Vec<_>>()
    }))
}

fn whole(session: &GenerationSession, echoes: &[String], progress: &Progress) -> Json {
    let choice = |index: usize| {
        let (plan, tokens) = (&session.plans[index], progress.choices[index].tokens);
        let mut text = echoes.get(index).cloned().unwrap_or_default();
        plan.write(0, tokens, &mut text);
        ordered!({
            "index": index, "text": text,
            "logprobs": logprobs(session, plan, 0, tokens),
            "finish_reason": session.reason(progress, index),
            "stop_reason": (), "token_ids": (), "prompt_logprobs": (), "prompt_token_ids": (),
            "routed_experts": ()
        })
    };
    ordered!({
        "id": &*session.id, "object": "text_completion", "created": session.created,
        "model": session.params.model,
        "choices": (0..session.plans.len()).map(choice).collect::<Vec<_>>(),
        "service_tier": (), "system_fingerprint": FINGERPRINT,
        "usage": session.usage(progress, false),
        "kv_transfer_params": (), "ec_transfer_params": (),
        "metrics": session.metrics(progress)
    })
}

struct CompletionStream {
    session: GenerationSession,
    echoes: Vec<String>,
    head: String,
    /// By choice.
    sent: Vec<SentText>,
}

/// What the events so far have of one choice.
#[derive(Debug, Clone, Copy, Default)]
struct SentText {
    tokens: u32,
    finish_reason: bool,
}

impl CompletionStream {
    fn new(session: GenerationSession, echoes: Vec<String>) -> Self {
        let head = format!(
            "data: {{\"id\":{},\"object\":\"text_completion\",\"created\":{},\"model\":{},\"choices\":[",
            Value::from(&*session.id),
            session.created,
            Value::from(session.params.model.as_str())
        );
        let sent = vec![SentText::default(); session.plans.len()];
        Self { session, echoes, head, sent }
    }

    fn push(
        &self,
        index: usize,
        text: &str,
        reason: &str,
        logprobs: Option<&Json>,
        progress: &Progress,
        out: &mut VecDeque<Bytes>,
    ) {
        let logprobs = Json::of(&logprobs);
        let mut event = format!(
            "{}{{\"index\":{index},\"text\":{},\"logprobs\":{logprobs},\"finish_reason\":{reason},\
             \"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}]",
            self.head,
            Value::from(text)
        );
        if self.session.params.continuous_usage {
            self.session.write_running_usage(progress, &mut event);
        }
        if !self.session.params.include_usage && self.sent.iter().all(|sent| sent.finish_reason) {
            event.push_str(",\"system_fingerprint\":\"");
            event.push_str(FINGERPRINT);
            event.push('"');
        }
        event.push_str("}\n\n");
        out.push_back(event.into());
    }

    fn tokens(&mut self, index: usize, progress: &Progress, out: &mut VecDeque<Bytes>) {
        let (choice, from) = (progress.choices[index], self.sent[index].tokens);
        if choice.tokens == from {
            return;
        }
        self.sent[index] = SentText { tokens: choice.tokens, finish_reason: choice.done };
        let plan = &self.session.plans[index];
        let mut text = match (from, self.echoes.get(index)) {
            (0, Some(echo)) => echo.clone(),
            _ => String::new(),
        };
        plan.write(from, choice.tokens, &mut text);
        let reason = Value::from(choice.done.then(|| plan.finish_reason())).to_string();
        let logprobs = logprobs(&self.session, plan, from, choice.tokens);
        self.push(index, &text, &reason, logprobs.as_ref(), progress, out);
    }

    fn close(&mut self, end: &FeedEnd, progress: &Progress, out: &mut VecDeque<Bytes>) {
        if *end == FeedEnd::Aborted {
            for index in 0..self.sent.len() {
                let sent = &mut self.sent[index];
                if sent.tokens > 0 && !std::mem::replace(&mut sent.finish_reason, true) {
                    self.push(index, "", "\"abort\"", None, progress, out);
                }
            }
        }
        if let FeedEnd::Failed(failure) = end {
            out.push_back(error::event(failure).into());
        } else if self.session.params.include_usage {
            let mut event = self.head.clone();
            event.push(']');
            self.session.write_final_usage(progress, false, &mut event);
            event.push_str("}\n\n");
            out.push_back(event.into());
        }
        out.push_back(Bytes::from_static(DONE));
    }
}

impl Render for CompletionStream {
    fn render(&mut self, progress: &Progress, out: &mut VecDeque<Bytes>) {
        for index in 0..self.sent.len() {
            self.tokens(index, progress, out);
        }
        if let Some(end) = &progress.end {
            self.close(end, progress, out);
        }
    }
}
