//! Requests and the context windows of the engines.

use memchr::memmem;

use crate::config::settings::Settings;
use crate::core::model::ids::{ClassId, ModelId, PoolId};
use crate::core::model::policy::Tenant;
use crate::core::placement::rules::largest_window;
use crate::engines::Ability;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::request::parse::ParsedRequest;
use crate::tokens::estimate::exact;

/// Tokens of context that a request asks for: its longest prompt by the estimate
/// of all of them, and its limit on output where it sets one.
pub(in crate::proxy) fn asked(peek: &ParsedRequest, estimated: u64) -> u64 {
    let prompts = u64::from(peek.prompts.max(1));
    let output = if peek.api.generates() { peek.max_output_tokens.unwrap_or(0) } else { 0 };
    (estimated / prompts).saturating_add(output)
}

/// Whether all engines of the model refuse a limit on output that alone is more
/// than their window: vLLM does, others lower it.
pub(in crate::proxy) fn counts_output(settings: &Settings, model: ModelId) -> bool {
    let refuses = |pool: &PoolId| {
        settings.edge.pools.get(*pool).is_some_and(|edge| edge.engine.can(Ability::CheckMaxTokens))
    };
    settings.policy.models.get(model).is_some_and(|row| row.pools.iter().all(refuses))
}

/// Refuses what no engine can take for sure. An estimate is not sure: what may
/// fit goes to the largest window, and its engine decides.
///
/// # Errors
/// The prompt's token ids are more than the largest window among the pools that
/// may serve the request, or the limit on output is where all of these run vLLM.
/// The two together may be more: vLLM then lowers the limit.
pub(in crate::proxy) fn check(
    settings: &Settings,
    tenant: &Tenant,
    class: ClassId,
    model: ModelId,
    peek: &ParsedRequest,
    body: &[u8],
) -> Result<(), ApiError> {
    if !matches!(peek.api, Api::Chat | Api::Completions) {
        return Ok(());
    }
    let policy = &*settings.policy;
    let (Some(row), Some(class)) = (policy.models.get(model), policy.classes.get(class)) else {
        return Ok(());
    };
    let Some(window) = largest_window(policy, row, &[&class.placement, &tenant.placement]) else {
        return Ok(());
    };
    let counts_output = counts_output(settings, model);
    let too_much = |tokens: &u64| *tokens > u64::from(window);
    let output = peek.max_output_tokens.filter(|_| counts_output).filter(too_much);
    // vLLM cuts a prompt short when asked to.
    let is_cut = || memmem::find(body, b"\"truncate_prompt_tokens\"").is_some();
    let prompt = exact(peek.prompt_pieces(body)).filter(too_much).filter(|_| !is_cut());
    let (tokens, field) = match (prompt, output) {
        (Some(prompt), _) => (prompt, peek.api.prompt_field()),
        (None, Some(output)) => (output, "max_tokens"),
        (None, None) => return Ok(()),
    };
    let text = format!("`{field}` asks for {tokens} tokens; the context of this model has {window} here.");
    Err(ApiError::new(ErrorKind::ContextLength, text).with_param(field))
}
