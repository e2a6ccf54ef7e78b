//! Context check: compares the length of a prompt with the context windows of the pools that the
//! request could use, before the request is queued.

pub mod prompt_counter;
pub(super) mod tokenize;

use std::sync::Arc;
use std::time::Duration;

pub use self::prompt_counter::PromptCounter;
use self::prompt_counter::{PoolWindows, ReportedWindows};
use crate::config::settings::{ModelSettings, Settings};
use crate::core::model::ids::ModelId;
use crate::core::placement::rules;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::proxy::Proxy;
use crate::proxy::request::candidates::counts_output;
use crate::proxy::request::{InferenceRequest, RequestTokens};
use crate::proxy::summary::RequestRecord;
use crate::proxy::summary::parts::EstimatedPrompt;
use crate::telemetry::wall;
use crate::tokens::CountSource;
use crate::tokens::counter::{CountError, CountedTokens, PromptForm};
use crate::tokens::estimate::token_id_count;
use crate::tokens::ratio::TokenRatioKey;
use crate::tokens::threads::{self};

/// Longest age of the cached context windows that engines report.
const WINDOWS_AGE: Duration = Duration::from_secs(1);
/// Safety factor on estimates. If an estimate times this factor fits the window, no engine is asked
/// to count.
const ESTIMATE_SAFETY_FACTOR: f64 = 1.5;
/// Tokens that an unknown chat template may add to a prompt.
const MAX_TEMPLATE_TOKENS: u64 = 512;

impl Proxy {
    /// Counts the prompt as exactly as the context window requires. Lowers the requested output to
    /// the space left in the window, or refuses the request.
    ///
    /// # Errors
    /// The prompt is too long, alone or together with the requested output. Or the request asks to
    /// truncate its prompt, which its model does not allow.
    pub(super) async fn check_context(
        &self,
        settings: &Settings,
        request: &mut InferenceRequest,
        record: &mut RequestRecord,
    ) -> Result<(), ApiError> {
        let model = request.model();
        let usual = ModelSettings::default();
        let edge = settings.edge.models.get(&model).unwrap_or(&usual);
        if request.parsed.truncate.is_some() && !edge.truncates && request.parsed.api.generates() {
            let fix = "is not allowed for this model: shorten the prompt yourself.";
            return Err(ApiError::invalid_field("truncate_prompt_tokens", fix));
        }
        let window = self.window(settings, request);
        request.tokens = self.count_prompt(settings, request, edge, window).await;
        let tokens = request.tokens;
        record.record_prompt_tokens(tokens.prompt, tokens.source);
        if tokens.source == CountSource::Estimate || tokens.source == CountSource::Bound {
            record.prompt.learn_from = Some(EstimatedPrompt {
                ratios: Arc::clone(&self.token_counters.ratios),
                key: ratio_key(request),
                tokens: tokens.estimated,
            });
        }
        request.parsed.lowered = None;
        let lowered = match window.filter(|_| tokens.source.is_reliable()) {
            Some(window) => fit(request, edge.rejects, counts_output(settings, model), window)?,
            None => None,
        };
        request.parsed.lowered = lowered;
        record.prompt.lowered = lowered;
        if let Some(lowered) = lowered {
            let most = lowered.saturating_mul(u64::from(request.parsed.sequences()));
            request.tokens.max_output = tokens.max_output.min(most);
        }
        Ok(())
    }

    async fn count_prompt(
        &self,
        settings: &Settings,
        request: &mut InferenceRequest,
        edge: &ModelSettings,
        window: Option<u32>,
    ) -> RequestTokens {
        let InferenceRequest { body, parsed, .. } = &*request;
        let (body, tokens) = (&body.bytes, request.tokens);
        if let Some(ids) = token_id_count(parsed.prompt_pieces(body)) {
            return RequestTokens { longest: ids, prompt: ids, source: CountSource::Ids, ..tokens };
        }
        let all = self.token_counters.ratios.apply(ratio_key(request), tokens.estimated);
        let longest = all / u64::from(parsed.prompts.max(1));
        let estimated = |source| RequestTokens { longest, prompt: all, source, ..tokens };
        let form = match parsed.api {
            Api::Chat => PromptForm::Chat,
            Api::Completions => PromptForm::Text,
            _ => return estimated(CountSource::Estimate),
        };
        let Some(window) = window.map(u64::from) else { return estimated(CountSource::Estimate) };
        let asked = parsed.max_output_tokens.unwrap_or(1).max(1);
        let bytes = body.len() as u64;
        let most =
            edge.counter.as_ref().map_or(bytes + MAX_TEMPLATE_TOKENS + 3 * parsed.tool_bytes(), |counter| {
                counter.max_tokens(bytes, parsed.tool_bytes())
            });
        if most.saturating_add(asked) <= window {
            return estimated(CountSource::Bound);
        }
        if let Some(counter) = &edge.counter {
            let task = threads::CountRequest {
                tenant: request.tenant.index() as u32,
                counter: Arc::clone(counter),
                form,
                body: body.clone(),
                media: edge.media,
                now: wall::unix_seconds(wall::now()) as i64,
            };
            match self.token_counters.threads.count(task).await {
                Ok(CountedTokens { longest, total: all }) => {
                    return RequestTokens { longest, prompt: all, source: CountSource::Exact, ..tokens };
                }
                Err(CountError::Unsure(why)) => tracing::debug!(%why, "prompt not counted here"),
                Err(CountError::Stopped) => {}
            }
        }
        let doubted = ((longest as f64 * ESTIMATE_SAFETY_FACTOR) as u64)
            .saturating_add(asked)
            .saturating_add(MAX_TEMPLATE_TOKENS);
        let is_near = doubted > window;
        let counted = if is_near { self.count_at_engine(settings, request, window).await } else { None };
        counted.map_or(estimated(CountSource::Estimate), |count| RequestTokens {
            longest: count,
            prompt: count,
            source: CountSource::Engine,
            ..tokens
        })
    }

    /// The largest window among the pools that the request could use. `None` if one of the windows
    /// is unknown.
    fn window(&self, settings: &Settings, request: &InferenceRequest) -> Option<u32> {
        let policy = &settings.policy;
        let model = policy.models.get(request.model())?;
        let (class, tenant) = (policy.classes.get(request.class)?, policy.tenants.get(request.tenant)?);
        let reported = self.reported(settings, request.model());
        let said = |pool| reported.iter().find(|(id, _)| *id == pool).and_then(|(_, window)| *window);
        rules::largest_window(policy, model, &[&class.placement, &tenant.placement], said)
    }

    fn reported(&self, settings: &Settings, model: ModelId) -> PoolWindows {
        let now = self.dispatcher.clock().now();
        let windows = &self.token_counters.windows;
        if let Some(known) = windows.get(&model)
            && now.since(known.at) < WINDOWS_AGE
        {
            return Arc::clone(&known.pools);
        }
        let pools = settings.policy.models.get(model).map(|row| row.pools.as_slice()).unwrap_or_default();
        let said =
            pools.iter().map(|pool| (*pool, self.engines.context_window(settings, model, *pool))).collect();
        let said: PoolWindows = Arc::new(said);
        windows.insert(model, ReportedWindows { at: now, pools: Arc::clone(&said) });
        said
    }
}

/// Key of the token ratios of the request's model and tenant.
fn ratio_key(request: &InferenceRequest) -> TokenRatioKey {
    let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
    TokenRatioKey { model: number(request.model().index()), tenant: number(request.tenant.index()) }
}

/// The output tokens that the window has left after an exact count, if the request asks for more.
/// With `rejects`, such a request is refused. With `alone`, a request whose output limit alone
/// exceeds the window is refused.
fn fit(request: &InferenceRequest, rejects: bool, alone: bool, window: u32) -> Result<Option<u64>, ApiError> {
    let InferenceRequest { parsed, body, .. } = request;
    let api = parsed.api;
    if !matches!(api, Api::Chat | Api::Completions) {
        return Ok(None);
    }
    let all = u64::from(window);
    let prompt = match parsed.truncate {
        None => request.tokens.longest,
        Some(cut) => {
            let asked = parsed.max_output_tokens.unwrap_or(1).max(1);
            request.tokens.longest.min(u64::try_from(cut).unwrap_or_else(|_| all.saturating_sub(asked)))
        }
    };
    if prompt >= all {
        return Err(ApiError::context_too_long(window, prompt, None, api.prompt_field()));
    }
    let left = all - prompt;
    match parsed.max_output_tokens.filter(|asked| *asked > left) {
        Some(asked) if rejects || (alone && asked > all) => {
            Err(ApiError::context_too_long(window, prompt, Some(asked), parsed.output_field(&body.bytes)))
        }
        over => Ok(over.map(|_| left)),
    }
}
