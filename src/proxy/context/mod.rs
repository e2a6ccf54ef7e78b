//! Context check: the length of a prompt, compared with the windows of the pools that the request
//! could go to, before the queue.

pub(super) mod tokenize;
pub(super) mod window;

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use http::HeaderMap;
use smallvec::SmallVec;

use crate::config::settings::{ModelSettings, Settings};
use crate::core::model::event::RejectReason;
use crate::core::model::ids::{ModelId, PoolId};
use crate::core::model::time::Tick;
use crate::core::placement::rules;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::proxy::context::tokenize::TokenizeRequests;
use crate::proxy::handler::Proxy;
use crate::proxy::request::InferenceRequest;
use crate::proxy::summary::RequestRecord;
use crate::telemetry::wall;
use crate::tokens::CountSource;
use crate::tokens::counter::{CountError, CountedTokens, PromptForm};
use crate::tokens::estimate::exact;
use crate::tokens::ratio::TokenRatios;
use crate::tokens::threads::{self, CountingThreads};

/// How long the engines' word on their windows is good for.
const WINDOWS_AGE: Duration = Duration::from_secs(1);
/// How far estimates are trusted: those that fit with this much to spare are
/// not worth a question.
const DOUBT: f64 = 1.5;
/// Tokens that a chat template may add, where it is not known.
const FRAME: u64 = 512;

/// What counts prompts, and what is remembered of it.
#[derive(Debug, Default)]
pub struct PromptCounter {
    /// The threads that count.
    pub desk: CountingThreads,
    /// What estimates are off by.
    pub ratios: Arc<TokenRatios>,
    /// Engines that are asked to count just now, and for whom.
    pub(super) asked: Arc<TokenizeRequests>,
    windows: DashMap<ModelId, (Tick, PoolWindows)>,
}

/// The windows that engines report, by pool.
type PoolWindows = Arc<SmallVec<[(PoolId, Option<u32>); 4]>>;

/// The tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PromptTokens {
    /// Of the longest of its prompts.
    longest: u64,
    /// Of all of them.
    all: u64,
    source: CountSource,
}

impl PromptCounter {
    /// The key of what is learned for a model and tenant.
    pub(super) fn pair(order: &InferenceRequest) -> (u32, u32) {
        let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        (number(order.spec.model.index()), number(order.spec.tenant.index()))
    }
}

impl Proxy {
    /// Counts the prompt as exactly as its context window asks for, and lowers
    /// the asked output to what is left of the window, or refuses the request.
    ///
    /// # Errors
    /// The prompt is too long, alone or with the asked output; or the request
    /// wants its prompt cut, which its model does not allow.
    pub(super) async fn measure(
        &self,
        settings: &Settings,
        order: &mut InferenceRequest,
        client: &HeaderMap,
        record: &mut RequestRecord,
    ) -> Result<(), ApiError> {
        let model = order.spec.model;
        let usual = ModelSettings::default();
        let edge = settings.edge.models.get(&model).unwrap_or(&usual);
        if order.peek.truncate.is_some() && !edge.truncates && order.api.generates() {
            let fix = "is not allowed for this model: shorten the prompt yourself.";
            return Err(ApiError::invalid_field("truncate_prompt_tokens", fix));
        }
        let window = self.window(settings, order);
        let measured = self.measured(settings, order, edge, window, client).await;
        let spec = &mut order.spec;
        spec.prompt_tokens = measured.all;
        record.counted(measured.all, measured.source);
        if measured.source == CountSource::Estimate || measured.source == CountSource::Bound {
            record.learn_from =
                Some((Arc::clone(&self.token_counters.ratios), PromptCounter::pair(order), order.estimated));
        }
        order.peek.lowered = None;
        let lowered = match window.filter(|_| measured.source.is_sure()) {
            Some(window) => {
                let alone = window::counts_output(settings, model);
                fit(order, edge.rejects, alone, (window, measured))?
            }
            None => None,
        };
        order.peek.lowered = lowered;
        record.lowered = lowered;
        let asked = order.peek.max_output_tokens.map_or(0, |asked| asked.min(lowered.unwrap_or(u64::MAX)));
        order.spec.context = measured.longest.saturating_add(asked);
        if let Some(lowered) = lowered {
            let most = lowered.saturating_mul(u64::from(order.peek.sequences()));
            order.spec.max_output_tokens = order.spec.max_output_tokens.min(most);
        }
        Ok(())
    }

    /// Makes the request one for the next model that may serve it and whose
    /// window it fits, if that may help after such a refusal.
    pub(super) async fn falls_back(
        &self,
        settings: &Settings,
        order: &mut InferenceRequest,
        why: RejectReason,
        client: &HeaderMap,
        record: &mut RequestRecord,
    ) -> bool {
        while order.falls_back(why, record.clock.now()) {
            if self.measure(settings, order, client, record).await.is_ok() {
                record.fell_back(order.spec.model, why);
                return true;
            }
        }
        false
    }

    async fn measured(
        &self,
        settings: &Settings,
        order: &mut InferenceRequest,
        edge: &ModelSettings,
        window: Option<u32>,
        client: &HeaderMap,
    ) -> PromptTokens {
        let InferenceRequest { api, body, peek, .. } = &*order;
        if let Some(ids) = exact(peek.prompt_pieces(body)) {
            return PromptTokens { longest: ids, all: ids, source: CountSource::Ids };
        }
        let all = self.token_counters.ratios.apply(PromptCounter::pair(order), order.estimated);
        let longest = all / u64::from(peek.prompts.max(1));
        let estimated = |source| PromptTokens { longest, all, source };
        let form = match api {
            Api::Chat => PromptForm::Chat,
            Api::Completions => PromptForm::Text,
            _ => return estimated(CountSource::Estimate),
        };
        let Some(window) = window.map(u64::from) else { return estimated(CountSource::Estimate) };
        let asked = peek.max_output_tokens.unwrap_or(1).max(1);
        let bytes = body.len() as u64;
        let most = edge.counter.as_ref().map_or(bytes + FRAME + 3 * peek.tool_bytes(), |counter| {
            counter.at_most(bytes, peek.tool_bytes())
        });
        if most.saturating_add(asked) <= window {
            return estimated(CountSource::Bound);
        }
        if let Some(counter) = &edge.counter {
            let task = threads::CountRequest {
                counter: Arc::clone(counter),
                form,
                body: body.clone(),
                media: edge.media,
                now: wall::unix_seconds(wall::now()) as i64,
            };
            match self.token_counters.desk.count(task).await {
                Ok(CountedTokens { longest, all }) => {
                    return PromptTokens { longest, all, source: CountSource::Exact };
                }
                Err(CountError::Unsure(why)) => tracing::debug!(%why, "prompt not counted here"),
                Err(CountError::Stopped) => {}
            }
        }
        let doubted = ((longest as f64 * DOUBT) as u64).saturating_add(asked).saturating_add(FRAME);
        let is_near = doubted > window;
        let counted =
            if is_near { self.count_at_engine(settings, order, window, client).await } else { None };
        counted.map_or(estimated(CountSource::Estimate), |count| PromptTokens {
            longest: count,
            all: count,
            source: CountSource::Engine,
        })
    }

    /// The largest window among the pools that the request could go to; `None`
    /// where some window is not known.
    fn window(&self, settings: &Settings, order: &InferenceRequest) -> Option<u32> {
        let policy = &settings.policy;
        let spec = &order.spec;
        let model = policy.models.get(spec.model)?;
        let (class, tenant) = (policy.classes.get(spec.class)?, policy.tenants.get(spec.tenant)?);
        let reported = self.reported(settings, spec.model);
        let said = |pool| reported.iter().find(|(id, _)| *id == pool).and_then(|(_, window)| *window);
        let pools = model.pools.iter().filter_map(|id| Some((*id, policy.pools.get(*id)?.supply)));
        let mut allowed = pools
            .filter(|(id, supply)| class.placement.allow(*id, supply) && tenant.placement.allow(*id, supply));
        let most = allowed.try_fold(0, |most: u32, (id, supply)| {
            let smaller = rules::window(model, &supply).into_iter().chain(said(id)).min()?;
            Some(most.max(smaller))
        });
        most.filter(|most| *most > 0)
    }

    fn reported(&self, settings: &Settings, model: ModelId) -> PoolWindows {
        let now = self.dispatcher.clock().now();
        let windows = &self.token_counters.windows;
        if let Some(known) = windows.get(&model)
            && now.since(known.0) < WINDOWS_AGE
        {
            return Arc::clone(&known.1);
        }
        let pools = settings.policy.models.get(model).map(|row| row.pools.as_slice()).unwrap_or_default();
        let said =
            pools.iter().map(|pool| (*pool, self.engines.context_window(settings, model, *pool))).collect();
        let said: PoolWindows = Arc::new(said);
        windows.insert(model, (now, Arc::clone(&said)));
        said
    }
}

/// The output that a sure count leaves, where that is less than was asked for.
/// `rejects`: then it is refused; `alone`: also where what was asked for is more
/// than the window by itself.
fn fit(
    order: &InferenceRequest,
    rejects: bool,
    alone: bool,
    (window, measured): (u32, PromptTokens),
) -> Result<Option<u64>, ApiError> {
    let InferenceRequest { api, peek, body, .. } = order;
    if !matches!(api, Api::Chat | Api::Completions) {
        return Ok(None);
    }
    let all = u64::from(window);
    let prompt = match peek.truncate {
        None => measured.longest,
        Some(cut) => {
            let asked = peek.max_output_tokens.unwrap_or(1).max(1);
            measured.longest.min(u64::try_from(cut).unwrap_or_else(|_| all.saturating_sub(asked)))
        }
    };
    if prompt >= all {
        return Err(ApiError::context_too_long(window, prompt, None, api.prompt_field()));
    }
    let left = all - prompt;
    match peek.max_output_tokens.filter(|asked| *asked > left) {
        Some(asked) if rejects || (alone && asked > all) => {
            Err(ApiError::context_too_long(window, prompt, Some(asked), peek.output_field(body)))
        }
        over => Ok(over.map(|_| left)),
    }
}
