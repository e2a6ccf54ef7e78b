//! vLLM's routes that need no engine work: models, health, load, tokenizer.

use http::header::HeaderValue;
use http::{HeaderName, Response};
use serde_json::Value;

use super::error::VllmError;
use super::fields;
use super::generate::{params, prompt};
use crate::faults::mix;
use crate::server::http::body::SimBody;
use crate::server::http::call::ServerCall;
use crate::server::http::json::{Json, ordered};
use crate::server::http::reply;
use crate::server::text::{self, BYTES_PER_TOKEN, VOCABULARY};

pub(super) fn models(call: &ServerCall) -> Response<SimBody> {
    let options = &call.sim.options;
    let created = call.sim.unix();
    let card = |name: &String, parent: Option<&str>| {
        let window = parent.is_none().then(|| options.window());
        ordered!({
            "id": name, "object": "model", "created": created, "owned_by": "vllm",
            "root": format!("/models/{name}"), "parent": parent, "max_model_len": window,
            "permission": [ordered!({
                "id": format!("modelperm-{:016x}", text::hash(name)), "object": "model_permission",
                "created": created, "allow_create_engine": false, "allow_sampling": true,
                "allow_logprobs": true, "allow_search_indices": false, "allow_view": true,
                "allow_fine_tuning": false, "organization": "*", "group": (), "is_blocking": false
            })]
        })
    };
    let base = options.models.iter().map(|name| card(name, None));
    let adapters = options.loras.iter().map(|name| card(name, Some(options.model())));
    reply::value(200, &ordered!({"object": "list", "data": base.chain(adapters).collect::<Vec<_>>()}))
}

pub(super) fn load(call: &ServerCall) -> Response<SimBody> {
    let inside = if call.sim.options.vllm.load_tracking { call.sim.work.lock().inside } else { 0 };
    reply::value(200, &ordered!({"server_load": inside}))
}

fn token_id(bytes: &[u8]) -> u32 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    (mix(u64::from_le_bytes(word)) % u64::from(VOCABULARY)) as u32
}

pub(super) fn tokenize(call: &ServerCall) -> Response<SimBody> {
    match try_tokenize(call) {
        Ok(body) => reply::value(200, &body),
        Err(error) => error.respond(&call.path),
    }
}

fn try_tokenize(call: &ServerCall) -> Result<Json, VllmError> {
    let fields = fields::parse(call)?;
    let options = &call.sim.options;
    let model = params::model(&fields, options)?;
    let window = options.window();
    if fields.get("messages").is_some() {
        let messages = fields.list("messages")?;
        let count = prompt::of_messages(messages, &fields, &model, options.vllm.multimodal)?.tokens;
        let seed = text::hash(&model);
        let id = |place: u32| (mix(seed ^ u64::from(place)) % u64::from(VOCABULARY)) as u32;
        let tokens: Vec<_> = (0..count).map(id).collect();
        return Ok(ordered!({
            "count": count, "max_model_len": window, "tokens": tokens, "token_strs": ()
        }));
    }
    let prompt = fields
        .string("prompt")?
        .ok_or_else(|| VllmError::field("missing", "body.prompt", "Field required", "None"))?;
    let pieces: Vec<&[u8]> = prompt.as_bytes().chunks(BYTES_PER_TOKEN).collect();
    if let Some(count) = text::words_in(prompt) {
        let tokens: Vec<_> = prompt.as_bytes().chunks(prompt.len() / count as usize).map(token_id).collect();
        return Ok(ordered!({
            "count": count, "max_model_len": window, "tokens": tokens, "token_strs": ()
        }));
    }
    let strings = fields.bool("return_token_strs")?;
    let strings =
        strings.then(|| pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect::<Vec<_>>());
    Ok(ordered!({
        "count": pieces.len(), "max_model_len": window,
        "tokens": pieces.iter().map(|piece| token_id(piece)).collect::<Vec<_>>(), "token_strs": strings
    }))
}

pub(super) fn detokenize(call: &ServerCall) -> Response<SimBody> {
    let text = fields::parse(call).and_then(|fields| {
        params::model(&fields, &call.sim.options)?;
        let ids = fields.list("tokens")?.iter().filter_map(Value::as_u64);
        Ok(ids.map(|id| text::word((id % u64::from(VOCABULARY)) as u32)).collect::<String>())
    });
    match text {
        Ok(prompt) => reply::value(200, &ordered!({"prompt": prompt})),
        Err(error) => error.respond(&call.path),
    }
}

/// Adds the in-band load report (ORCA) when the request asks for it. vLLM does
/// so only on answers in one piece.
pub(super) fn add_load_header(call: &ServerCall, response: &mut Response<SimBody>) {
    let Some(format) = call.header("endpoint-load-metrics-format") else { return };
    let gauges = call.sim.work.lock().view().gauges;
    let usage = gauges.blocks_used as f64 / gauges.blocks_total.max(1) as f64;
    let waiting = gauges.waiting as f64;
    let value = match format.to_ascii_uppercase().as_str() {
        "JSON" => format!(
            "JSON {{\"named_metrics\": {{\"num_requests_waiting\": {waiting:?}, \
             \"kv_cache_usage_perc\": {usage:?}}}}}"
        ),
        "TEXT" => format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        ),
        _ => return,
    };
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(HeaderName::from_static("endpoint-load-metrics"), value);
    }
}
