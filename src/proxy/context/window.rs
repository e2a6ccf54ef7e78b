//! Context windows: the token limits of the engines, compared with a request's prompt and output.

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
use crate::tokens::estimate::token_id_count;

/// Tokens of context that a request needs: the mean of its estimated prompts, plus its output limit
/// if it sets one.
pub(in crate::proxy) fn asked(parsed: &ParsedRequest, estimated: u64) -> u64 {
    let prompts = u64::from(parsed.prompts.max(1));
    let output = if parsed.api.generates() { parsed.max_output_tokens.unwrap_or(0) } else { 0 };
    (estimated / prompts).saturating_add(output)
}

/// Whether all engines of the model refuse an output limit that alone exceeds their window. vLLM
/// refuses such a limit; other engines lower the limit.
pub(in crate::proxy) fn counts_output(settings: &Settings, model: ModelId) -> bool {
    let refuses = |pool: &PoolId| {
        settings.edge.pools.get(*pool).is_some_and(|edge| edge.engine.can(Ability::CheckMaxTokens))
    };
    settings.policy.models.get(model).is_some_and(|row| row.pools.iter().all(refuses))
}

/// Refuses a request that certainly fits no engine. An estimate is not certain: a request that may
/// fit goes to the largest window, and the engine decides.
///
/// # Errors
/// The prompt has more token ids than the largest window among the pools that may serve the
/// request. Or the output limit exceeds that window and all pools run vLLM. The sum of prompt and
/// output limit may exceed the window: vLLM then lowers the limit.
pub(in crate::proxy) fn check(
    settings: &Settings,
    tenant: &Tenant,
    class: ClassId,
    model: ModelId,
    parsed: &ParsedRequest,
    body: &[u8],
) -> Result<(), ApiError> {
    if !matches!(parsed.api, Api::Chat | Api::Completions) {
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
    let output = parsed.max_output_tokens.filter(|_| counts_output).filter(too_much);
    // vLLM truncates a prompt if the request asks for it.
    let is_cut = || memmem::find(body, b"\"truncate_prompt_tokens\"").is_some();
    let prompt = token_id_count(parsed.prompt_pieces(body)).filter(too_much).filter(|_| !is_cut());
    let (tokens, field) = match (prompt, output) {
        (Some(prompt), _) => (prompt, parsed.api.prompt_field()),
        (None, Some(output)) => (output, "max_tokens"),
        (None, None) => return Ok(()),
    };
    let text = format!("`{field}` asks for {tokens} tokens; the context of this model has {window} here.");
    Err(ApiError::new(ErrorKind::ContextLength, text).with_param(field))
}
