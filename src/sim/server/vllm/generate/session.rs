//! Generation session: planned lengths, texts and usage of one request.

use std::fmt::Write;
use std::sync::Arc;

use crate::engine::EngineRequest;
use crate::faults::mix;
use crate::server::core::PlannedSequence;
use crate::server::feed::Progress;
use crate::server::http::call::ServerCall;
use crate::server::http::job::ClientJob;
use crate::server::http::json::{Json, ordered};
use crate::server::options::SimOptions;
use crate::server::text::{self, AnswerTokens, SimPrompt};
use crate::server::vllm::error::{CHARS_PER_TOKEN, VllmError};
use crate::server::vllm::generate::params::Params;
use penstock_core::model::time::Tick;

/// Most sequences of one body; bounds the simulator's memory.
const MAX_SEQUENCES: i64 = 65_536;

/// Content type of an event stream.
pub(super) const SSE: &str = "text/event-stream; charset=utf-8";
/// Last event of a stream.
pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";
pub(super) const FINGERPRINT: &str = "vllm-0.32.0-simulated";

/// Plan of one sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct SequencePlan {
    voice: AnswerTokens,
    choice: usize,
    /// Tokens of the answer that are part of the prompt.
    begun: u32,
    /// Tokens, the stop token included.
    pub(super) tokens: u32,
    /// Whether the last token is a stop token, which has no text.
    pub(super) stops: bool,
}

impl SequencePlan {
    /// Appends the text of the tokens `from..to`.
    pub(super) fn write(&self, from: u32, to: u32, out: &mut String) {
        let end = if self.stops { to.min(self.tokens - 1) } else { to };
        self.voice.write(self.choice, from + self.begun, end + self.begun, out);
    }

    pub(super) fn text(&self, from: u32, to: u32) -> String {
        let mut out = String::new();
        self.write(from, to, &mut out);
        out
    }

    pub(super) fn finish_reason(&self) -> &'static str {
        if self.stops { "stop" } else { "length" }
    }

    /// `(text, log probability)` of a token.
    pub(super) fn scored(&self, index: u32) -> (&'static str, f64) {
        let index = index + self.begun;
        (text::word(self.voice.token(self.choice, index)), self.voice.logprob(self.choice, index))
    }
}

/// State that all answers to one request share.
#[derive(Debug, Clone)]
pub(super) struct GenerationSession {
    pub(super) id: Arc<str>,
    pub(super) created: u64,
    pub(super) prompt_tokens: u32,
    pub(super) plans: Vec<SequencePlan>,
    pub(super) params: Params,
    details: bool,
    metrics: bool,
    pub(super) arrived: Tick,
}

/// The id of the answer: from `x-request-id`, the body's `request_id`, or new.
pub(in crate::server::vllm) fn answer_id(call: &ServerCall, prefix: &str, in_body: Option<&str>) -> Arc<str> {
    match call.header("x-request-id").or(in_body) {
        Some(id) => format!("{prefix}{id}").into(),
        None => {
            let number = call.sim.fresh_id() ^ call.sim.options.seed.rotate_left(32);
            format!("{prefix}{:016x}", mix(number)).into()
        }
    }
}

/// Queues the prompts, each with `n` sequences.
pub(super) fn start(
    call: &mut ServerCall,
    id: Arc<str>,
    params: Params,
    mut prompts: Vec<SimPrompt>,
) -> Result<(GenerationSession, ClientJob), VllmError> {
    if params.n.max(1).saturating_mul(prompts.len() as i64) > MAX_SEQUENCES {
        params.check_sampling()?;
        return Err(VllmError::bad(format!(
            "at most {MAX_SEQUENCES} sequences are simulated in one request"
        )));
    }
    check_rank(call)?;
    let sim = Arc::clone(&call.sim);
    let options = &sim.options;
    for prompt in &mut prompts {
        if let Some(limit) = params.truncate {
            prompt.truncate(limit.max(1));
        }
        check_length(prompt, options.window())?;
    }
    let mut plans = Vec::new();
    let mut parts = Vec::with_capacity(prompts.len());
    for prompt in &mut prompts {
        let voice = |digest| AnswerTokens(mix(options.seed ^ digest ^ mix(params.seed as u64)));
        let (voice, begun) = prompt.continued_answer(voice);
        let limit = output_limit(&params, prompt.tokens, options.window())?;
        params.check_sampling()?;
        let (tokens, stops) = planned(&params, voice, (begun, limit), options);
        let n = params.n as u32;
        plans.extend((0..n as usize).map(|choice| SequencePlan { voice, choice, begun, tokens, stops }));
        let salt = text::hash(&params.salt) ^ text::hash(&params.model);
        let request = EngineRequest {
            id: sim.fresh_id(),
            prompt_tokens: prompt.tokens,
            prefix: prompt.blocks(salt),
            output_tokens: tokens,
            n,
            priority: params.priority,
            adapter: options.lora(&params.model),
        };
        parts.push(PlannedSequence { request, stops });
    }
    let ticket = sim.submit(&id, parts)?;
    let job = ClientJob::new(ticket, call.late.take(), Arc::clone(&call.conn));
    let session = GenerationSession {
        id,
        created: sim.unix(),
        prompt_tokens: prompts.iter().map(|prompt| prompt.tokens).sum(),
        plans,
        params,
        details: options.vllm.prompt_tokens_details,
        metrics: options.vllm.per_request_metrics,
        arrived: job.arrived(),
    };
    Ok((session, job))
}

fn check_rank(call: &ServerCall) -> Result<(), VllmError> {
    match call.header("x-data-parallel-rank") {
        None | Some("0") => Ok(()),
        Some(rank) => Err(VllmError::bad(format!("data_parallel_rank {rank} is out of range [0, 1)."))),
    }
}

/// Checks that the prompt fits the window.
pub(in crate::server::vllm) fn check_length(prompt: &SimPrompt, window: u32) -> Result<(), VllmError> {
    if prompt.chars as u64 > u64::from(window) * CHARS_PER_TOKEN {
        return Err(VllmError::too_long_text(window, prompt.chars));
    }
    if prompt.tokens > window {
        return Err(VllmError::too_long_tokens(window, prompt.tokens));
    }
    Ok(())
}

fn output_limit(params: &Params, prompt_tokens: u32, window: u32) -> Result<u32, VllmError> {
    let room = i64::from(window) - i64::from(prompt_tokens);
    let asked = params.max_tokens.unwrap_or(room);
    if asked > i64::from(window) {
        let message = format!(
            "max_tokens={asked} cannot be greater than max_model_len={window}. \
             Please request fewer output tokens."
        );
        return Err(VllmError::parameter("max_tokens", &message, asked));
    }
    let limit = asked.min(room);
    if limit < 1 {
        let message = format!("max_tokens must be at least 1, got {limit}.");
        return Err(VllmError::parameter("max_tokens", &message, limit));
    }
    Ok(u32::try_from(limit).unwrap_or(u32::MAX))
}

/// Number of tokens that the answer has after the `begun` ones, at most
/// `limit`, and whether it ends with a stop token.
fn planned(
    params: &Params,
    voice: AnswerTokens,
    (begun, limit): (u32, u32),
    options: &SimOptions,
) -> (u32, bool) {
    if params.ignore_eos {
        return (limit, false);
    }
    let own = voice.length(options.mean_output_tokens).saturating_sub(begun);
    let own = own.max(params.min_tokens.saturating_add(1));
    if own <= limit { (own, true) } else { (limit, false) }
}

impl GenerationSession {
    /// Prompt tokens added to the prefix cache, in whole blocks.
    fn created_cache(&self, progress: &Progress) -> u32 {
        if progress.tokens() == 0 {
            return 0;
        }
        (self.prompt_tokens / 16 * 16).saturating_sub(progress.cached_tokens)
    }

    /// `usage` of an answer in one piece.
    pub(super) fn usage(&self, progress: &Progress, chat: bool) -> Json {
        let completion = progress.tokens();
        let created = chat.then(|| self.created_cache(progress));
        let details = ordered!({
            "cached_tokens": progress.cached_tokens,
            "created_cache_tokens": created,
            "multimodal_tokens": ()
        });
        ordered!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": u64::from(self.prompt_tokens) + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": self.details.then_some(details),
            "completion_tokens_details": ()
        })
    }

    /// Appends `,"usage":{...}` for one event of a stream.
    pub(super) fn write_running_usage(&self, progress: &Progress, out: &mut String) {
        let completion = progress.tokens();
        let total = u64::from(self.prompt_tokens) + completion;
        let _ = write!(
            out,
            ",\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{total},\"completion_tokens\":{completion},\
             \"completion_tokens_details\":null}}",
            self.prompt_tokens
        );
    }

    /// Appends what follows `"choices":[]` in the last event of a stream.
    pub(super) fn write_final_usage(&self, progress: &Progress, chat: bool, out: &mut String) {
        let completion = progress.tokens();
        let total = u64::from(self.prompt_tokens) + completion;
        let _ = write!(
            out,
            ",\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{total},\"completion_tokens\":{completion}",
            self.prompt_tokens
        );
        if self.details {
            let _ = write!(out, ",\"prompt_tokens_details\":{{\"cached_tokens\":{}", progress.cached_tokens);
            if chat {
                let _ = write!(out, ",\"created_cache_tokens\":{}", self.created_cache(progress));
            }
            out.push('}');
        }
        let _ = write!(out, "}},\"system_fingerprint\":\"{FINGERPRINT}\"");
        if self.metrics {
            let _ = write!(out, ",\"metrics\":{}", Json::of(&self.metrics(progress)));
        }
    }

    /// The engine's own times, if the options ask for them.
    pub(super) fn metrics(&self, progress: &Progress) -> Option<Json> {
        let choice = progress.choices.first().filter(|choice| self.metrics && choice.tokens > 0)?;
        let ms = |from: Tick, to: Tick| to.since(from).as_secs_f64() * 1e3;
        let generation = ms(choice.first_token, choice.last_token);
        let whole = ms(self.arrived, choice.last_token).max(1e-6);
        Some(ordered!({
            "time_to_first_token_ms": ms(self.arrived, choice.first_token),
            "generation_time_ms": generation,
            "queue_time_ms": ms(self.arrived, choice.scheduled.unwrap_or(self.arrived)),
            "mean_itl_ms": generation / f64::from(choice.tokens.max(2) - 1),
            "tokens_per_second": f64::from(choice.tokens) / whole * 1e3
        }))
    }

    /// The finish reason of a sequence in an answer in one piece.
    pub(super) fn reason(&self, progress: &Progress, choice: usize) -> &'static str {
        if progress.choices[choice].done { self.plans[choice].finish_reason() } else { "abort" }
    }
}
