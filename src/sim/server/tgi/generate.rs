//! TGI's own generation routes: `/generate`, `/generate_stream` and `/`.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::error::{TgiError, with_headers};
use crate::engine::EngineRequest;
use crate::faults::mix;
use crate::server::core::PlannedSequence;
use crate::server::feed::{FeedEnd, Progress};
use crate::server::http::body::{Render, SimBody};
use crate::server::http::call::ServerCall;
use crate::server::http::job::ClientJob;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::text::{AnswerTokens, SimPrompt, word};
use penstock_core::model::time::Tick;

/// A request inside the engine.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) prompt_tokens: u32,
    pub(super) prompt_chars: usize,
    voice: AnswerTokens,
    /// Tokens, the stop token included.
    pub(super) tokens: u32,
    pub(super) stops: bool,
    arrived: Tick,
    details: bool,
    full_text: Option<String>,
}

impl Generation {
    pub(super) fn text(&self, from: u32, to: u32) -> String {
        let mut out = String::new();
        let end = if self.stops { to.min(self.tokens - 1) } else { to };
        self.voice.write(0, from, end, &mut out);
        out
    }

    fn reason(&self) -> &'static str {
        if self.stops { "eos_token" } else { "length" }
    }

    fn token(&self, index: u32) -> Json {
        if self.stops && index + 1 == self.tokens {
            return ordered!({"id": 2, "text": "</s>", "logprob": -0.1, "special": true});
        }
        let id = self.voice.token(0, index);
        ordered!({"id": id, "text": word(id), "logprob": self.voice.logprob(0, index), "special": false})
    }
}

/// Queues a prompt under TGI's rules.
pub(super) fn start(
    call: &mut ServerCall,
    prompt: &SimPrompt,
    max_new_tokens: Option<u64>,
    seed: u64,
) -> Result<(Generation, ClientJob), TgiError> {
    let sim = Arc::clone(&call.sim);
    let options = &sim.options;
    let (most_input, total) = (options.window() - 1, options.window());
    if sim.work.lock().inside >= u64::from(options.max_concurrent_requests) {
        sim.work.lock().stats.rejected += 1;
        let message = "Model is overloaded".to_owned();
        return Err(TgiError { status: 429, message, kind: "overloaded" });
    }
    if max_new_tokens == Some(0) {
        return Err(TgiError::validation("`max_new_tokens` must be strictly positive"));
    }
    if prompt.tokens > most_input {
        let given = prompt.tokens;
        let message = format!("`inputs` must have less than {most_input} tokens. Given: {given}");
        return Err(TgiError::validation(message));
    }
    let room = u64::from(total - prompt.tokens);
    let limit = max_new_tokens.unwrap_or(room);
    if limit > room {
        let message = format!(
            "`inputs` tokens + `max_new_tokens` must be <= {total}. Given: {} `inputs` tokens and {limit} \
             `max_new_tokens`",
            prompt.tokens
        );
        return Err(TgiError::validation(message));
    }
    let voice = AnswerTokens(mix(options.seed ^ prompt.digest() ^ mix(seed)));
    let (limit, own) = (limit as u32, voice.length(options.mean_output_tokens));
    let (tokens, stops) = if own <= limit { (own, true) } else { (limit, false) };
    let id = sim.fresh_id();
    let request = EngineRequest {
        id,
        prompt_tokens: prompt.tokens,
        prefix: prompt.blocks(0),
        output_tokens: tokens,
        n: 1,
        priority: 0,
        adapter: None,
    };
    let ticket = sim.submit(&id.to_string().into(), vec![PlannedSequence { request, stops }])?;
    let job = ClientJob::new(ticket, call.late.take(), Arc::clone(&call.conn));
    let generation = Generation {
        prompt_tokens: prompt.tokens,
        prompt_chars: prompt.chars,
        voice,
        tokens,
        stops,
        arrived: job.arrived(),
        details: false,
        full_text: None,
    };
    Ok((generation, job))
}

pub(super) async fn answer(mut call: ServerCall) -> HandlerAnswer {
    let (generation, mut job, stream) = match read(&mut call) {
        Ok(started) => started,
        Err(error) => return Ok(error.respond()),
    };
    let headers = stream_headers(&generation);
    if stream {
        let render = Box::new(GenerateStream { generation, sent: 0 });
        let response = reply::events("text/event-stream", SimBody::stream(job, render, None));
        return Ok(with_headers(response, &headers));
    }
    let (progress, act) = job.complete().await;
    if let Some(error) = failed(&progress, false) {
        return Ok(error.respond());
    }
    let mut body = whole(&generation, &progress);
    // The compatibility route `/` answers with a list.
    if call.path == "/" {
        body = Json::of(&[body]);
    }
    let headers = timing_headers(&generation, &progress, call.sim.now());
    let response = with_headers(reply::json(200, ""), &headers);
    Ok(reply::deliver(job, act, response, body.to_string().into()))
}

/// The error for an early end; `None` when the end is no error.
pub(super) fn failed(progress: &Progress, stream: bool) -> Option<TgiError> {
    match progress.end.as_ref()? {
        FeedEnd::Failed(failure) => Some(failure.into()),
        FeedEnd::Aborted | FeedEnd::NoFinish => Some(TgiError::incomplete(stream)),
        FeedEnd::Complete | FeedEnd::Cut => None,
    }
}

fn read(call: &mut ServerCall) -> Result<(Generation, ClientJob, bool), TgiError> {
    let body: Value = serde_json::from_slice(&call.body).map_err(|error| {
        TgiError::validation(format!("Failed to parse the request body as JSON: {error}"))
    })?;
    let inputs = body.get("inputs").and_then(Value::as_str).ok_or_else(|| {
        TgiError::validation(
            "Failed to deserialize the JSON body into the target type: missing field `inputs`",
        )
    })?;
    if inputs.is_empty() {
        return Err(TgiError::validation("`inputs` cannot be empty"));
    }
    let parameter = |name: &str| body.get("parameters").and_then(|parameters| parameters.get(name));
    let on = |name: &str| parameter(name).and_then(Value::as_bool).unwrap_or(false);
    let stream = call.path == "/generate_stream"
        || (call.path == "/" && body.get("stream").and_then(Value::as_bool).unwrap_or(false));
    let max_new_tokens = match parameter("max_new_tokens") {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_u64().ok_or_else(|| {
            TgiError::validation(format!("parameters.max_new_tokens: invalid value {value}, expected u32"))
        })?),
    };
    let mut prompt = SimPrompt::text(inputs);
    if let Some(limit) = parameter("truncate").and_then(Value::as_u64) {
        prompt.truncate(u32::try_from(limit.max(1)).unwrap_or(u32::MAX));
    }
    let seed = parameter("seed").and_then(Value::as_u64).unwrap_or(0);
    let (mut generation, job) = start(call, &prompt, max_new_tokens, seed)?;
    generation.details = on("details");
    generation.full_text = on("return_full_text").then(|| inputs.to_owned());
    Ok((generation, job, stream))
}

fn details(generation: &Generation, tokens: u32) -> Json {
    ordered!({
        "finish_reason": generation.reason(), "generated_tokens": tokens, "seed": (),
        "input_length": generation.prompt_tokens
    })
}

fn whole(generation: &Generation, progress: &Progress) -> Json {
    let tokens = progress.choices[0].tokens;
    let mut text = generation.full_text.clone().unwrap_or_default();
    text.push_str(&generation.text(0, tokens));
    let body = ordered!({"generated_text": text});
    if !generation.details {
        return body;
    }
    let list: Vec<Json> = (0..tokens).map(|index| generation.token(index)).collect();
    let details = details(generation, tokens).and("prefill", &[(); 0]).and("tokens", &list);
    body.and("details", &details)
}

pub(super) fn stream_headers(generation: &Generation) -> Vec<(&'static str, String)> {
    vec![
        ("x-compute-type", "1-simulated".to_owned()),
        ("x-compute-characters", generation.prompt_chars.to_string()),
        ("x-accel-buffering", "no".to_owned()),
    ]
}

/// Timing headers in milliseconds, as TGI sends them on answers in one piece.
pub(super) fn timing_headers(
    generation: &Generation,
    progress: &Progress,
    now: Tick,
) -> Vec<(&'static str, String)> {
    let choice = progress.choices[0];
    let total = now.since(generation.arrived);
    let queue = choice.scheduled.unwrap_or(generation.arrived).since(generation.arrived);
    let inference = total.saturating_sub(queue);
    let per_token = inference / choice.tokens.max(1);
    vec![
        ("x-compute-type", "1-simulated".to_owned()),
        ("x-compute-time", total.as_secs_f64().to_string()),
        ("x-compute-characters", generation.prompt_chars.to_string()),
        ("x-total-time", total.as_millis().to_string()),
        ("x-validation-time", "0".to_owned()),
        ("x-queue-time", queue.as_millis().to_string()),
        ("x-inference-time", inference.as_millis().to_string()),
        ("x-time-per-token", per_token.as_millis().to_string()),
        ("x-prompt-tokens", generation.prompt_tokens.to_string()),
        ("x-generated-tokens", choice.tokens.to_string()),
    ]
}

struct GenerateStream {
    generation: Generation,
    sent: u32,
}

/// An event; TGI writes no space after the colon.
pub(super) fn event(data: &Json) -> Bytes {
    format!("data:{data}\n\n").into()
}

impl Render for GenerateStream {
    /// One event for each token: TGI does not merge them.
    fn render(&mut self, progress: &Progress, out: &mut VecDeque<Bytes>) {
        let choice = progress.choices[0];
        let generation = &self.generation;
        while self.sent < choice.tokens {
            let last = choice.done && self.sent + 1 == choice.tokens;
            let text = last.then(|| generation.text(0, choice.tokens));
            let details = last.then(|| details(generation, choice.tokens));
            let token = generation.token(self.sent);
            self.sent += 1;
            out.push_back(event(&ordered!({
                "index": self.sent, "token": token, "generated_text": text, "details": details
            })));
        }
        if let Some(error) = failed(progress, true) {
            out.push_back(event(&error.body()));
        }
    }
}
