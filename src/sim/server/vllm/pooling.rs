//! Pooling routes, whose work ends with the prompt: embeddings, rerank, score,
//! pooling, classify.

use std::sync::Arc;

use serde_json::Value;

use super::error::VllmError;
use super::fields::{self, JsonFields};
use super::generate::{completion, params, session};
use crate::engine::EngineRequest;
use crate::faults::mix;
use crate::server::core::PlannedSequence;
use crate::server::feed::{FeedEnd, Progress};
use crate::server::http::call::ServerCall;
use crate::server::http::job::ClientJob;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply::{self, HandlerAnswer};
use crate::server::text::{self, SimPrompt};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolingRoute {
    Embed,
    Pool,
    Classify,
    Score,
    Rerank,
}

const DIMENSIONS: i64 = 32;
/// Most inputs: as many as vLLM's clients ever send, few enough for memory.
const MAX_INPUTS: usize = 8192;

struct Pooled {
    id: Arc<str>,
    model: String,
    fields: JsonFields,
    prompts: Vec<SimPrompt>,
    documents: Vec<String>,
    cached_tokens: u32,
    created: u64,
}

pub(super) async fn answer(mut call: ServerCall, route: PoolingRoute) -> HandlerAnswer {
    let (mut pooled, mut job) = match start(&mut call, route) {
        Ok(started) => started,
        Err(error) => return Ok(error.respond(&call.path)),
    };
    let (progress, act) = job.complete().await;
    match &progress.end {
        Some(FeedEnd::Failed(failure)) => return Ok(VllmError::from(failure.clone()).respond(&call.path)),
        Some(FeedEnd::Aborted | FeedEnd::NoFinish) => {
            return Ok(VllmError::from_status(500, "Request was aborted.").respond(&call.path));
        }
        Some(FeedEnd::Complete | FeedEnd::Cut) | None => {}
    }
    pooled.take(&progress);
    let body = pooled.body(route).to_string();
    Ok(reply::deliver(job, act, reply::json(200, ""), body.into()))
}

fn start(call: &mut ServerCall, route: PoolingRoute) -> Result<(Pooled, ClientJob), VllmError> {
    let fields = fields::parse(call)?;
    let model = params::model(&fields, &call.sim.options)?;
    let (prompts, documents) = inputs(&fields, route)?;
    if prompts.is_empty() || prompts.len() > MAX_INPUTS {
        return Err(VllmError::bad(format!(
            "between 1 and {MAX_INPUTS} inputs are simulated in one request"
        )));
    }
    let prefix = match route {
        PoolingRoute::Embed => "embd-",
        PoolingRoute::Pool => "pool-",
        PoolingRoute::Classify => "classify-",
        PoolingRoute::Score => "score-",
        PoolingRoute::Rerank => "rerank-",
    };
    let id = session::answer_id(call, prefix, fields.string("request_id")?);
    let sim = Arc::clone(&call.sim);
    let mut parts = Vec::with_capacity(prompts.len());
    for prompt in &prompts {
        session::check_length(prompt, sim.options.window())?;
        let (id, prefix) = (sim.fresh_id(), prompt.blocks(text::hash(&model)));
        let prompt_tokens = prompt.tokens;
        let request = EngineRequest {
            id,
            prompt_tokens,
            prefix,
            n: 1,
            adapter: sim.options.lora(&model),
            ..EngineRequest::default()
        };
        parts.push(PlannedSequence { request, stops: true });
    }
    let ticket = sim.submit(&id, parts)?;
    let job = ClientJob::new(ticket, call.late.take(), Arc::clone(&call.conn));
    let created = sim.unix();
    Ok((Pooled { id, model, fields, prompts, documents, cached_tokens: 0, created }, job))
}

/// The prompts, and for rerank the documents to return.
fn inputs(fields: &JsonFields, route: PoolingRoute) -> Result<(Vec<SimPrompt>, Vec<String>), VllmError> {
    let pair = |query: &str, document: &str| {
        let mut prompt = SimPrompt::text(query);
        prompt.push(document, 1);
        prompt
    };
    match route {
        PoolingRoute::Embed | PoolingRoute::Pool | PoolingRoute::Classify => {
            let prompts = completion::prompts(fields, "input")?;
            Ok((prompts.into_iter().map(|(prompt, _)| prompt).collect(), Vec::new()))
        }
        PoolingRoute::Rerank => {
            let query = texts(fields.required("query")?);
            let query = query.first().ok_or_else(|| VllmError::either("body.query", "None"))?;
            let documents: Vec<_> = fields.list("documents")?.iter().flat_map(texts).collect();
            Ok((documents.iter().map(|document| pair(query, document)).collect(), documents))
        }
        PoolingRoute::Score => {
            let (mut left, right) = (texts(fields.required("text_1")?), texts(fields.required("text_2")?));
            if left.len() == 1 && right.len() > 1 {
                left = vec![left[0].clone(); right.len()];
            }
            if left.len() != right.len() {
                return Err(VllmError::bad("Input lengths must be either 1:1, 1:N or N:N"));
            }
            Ok((left.iter().zip(&right).map(|(left, right)| pair(left, right)).collect(), Vec::new()))
        }
    }
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(map) => map.get("text").map(texts).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

impl Pooled {
    fn take(&mut self, progress: &Progress) {
        self.cached_tokens = progress.cached_tokens;
    }

    fn score(&self, index: usize) -> f64 {
        text::unit(self.prompts[index].digest())
    }

    fn vector(&self, index: usize) -> Vec<f32> {
        let asked = self.fields.int("dimensions").ok().flatten().unwrap_or(DIMENSIONS).clamp(1, 4096);
        let digest = self.prompts[index].digest();
        let raw: Vec<f64> = (0..asked as u64).map(|place| text::unit(digest ^ mix(place)) - 0.5).collect();
        let norm = raw.iter().map(|value| value * value).sum::<f64>().sqrt().max(1e-9);
        raw.iter().map(|value| (value / norm) as f32).collect()
    }

    fn datum(&self, route: PoolingRoute, index: usize) -> Json {
        let score = self.score(index);
        match route {
            PoolingRoute::Embed => {
                let base64 = self.fields.get("encoding_format").and_then(Value::as_str) == Some("base64");
                let vector = self.vector(index);
                let embedding = if base64 { Json::of(&encode(&vector)) } else { Json::of(&vector) };
                ordered!({"index": index, "object": "embedding", "embedding": embedding})
            }
            PoolingRoute::Pool => ordered!({"index": index, "object": "pooling", "data": self.vector(index)}),
            PoolingRoute::Classify => {
                let label = if score > 0.5 { "LABEL_1" } else { "LABEL_0" };
                ordered!({"index": index, "label": label, "probs": [1.0 - score, score], "num_classes": 2})
            }
            PoolingRoute::Score => ordered!({"index": index, "object": "score", "score": score}),
            PoolingRoute::Rerank => {
                ordered!({
                    "index": index, "document": ordered!({"text": self.documents[index], "multi_modal": ()}),
                    "relevance_score": score
                })
            }
        }
    }

    fn body(&self, route: PoolingRoute) -> Json {
        let tokens: u64 = self.prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum();
        let mut order: Vec<usize> = (0..self.prompts.len()).collect();
        if route == PoolingRoute::Rerank {
            order.sort_by(|a, b| self.score(*b).total_cmp(&self.score(*a)));
            let top = self.fields.int("top_n").ok().flatten().filter(|top| *top > 0);
            order.truncate(top.map_or(usize::MAX, |top| top as usize));
        }
        let data: Vec<Json> = order.iter().map(|index| self.datum(route, *index)).collect();
        if route == PoolingRoute::Rerank {
            let usage = ordered!({"prompt_tokens": tokens, "total_tokens": tokens});
            return ordered!({"id": &*self.id, "model": self.model, "usage": usage, "results": data});
        }
        let details = ordered!({"cached_tokens": self.cached_tokens});
        ordered!({
            "id": &*self.id, "object": "list", "created": self.created, "model": self.model, "data": data,
            "usage": ordered!({
                "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0,
                "prompt_tokens_details": details
            })
        })
    }
}

/// Base64 of the little-endian floats.
fn encode(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        assert_eq!(encode(&[1.0]), "AACAPw==");
        assert_eq!(encode(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(encode(&[0.0, 0.0, 1.0]), "AAAAAAAAAAAAAIA/");
    }
}
