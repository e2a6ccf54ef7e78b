//! Candidates: the models that may serve a request, by the model name that the client sent and by
//! their context windows.

use std::collections::VecDeque;

use memchr::memmem;

use crate::config::settings::Settings;
use crate::config::settings::identity::Grant;
use crate::config::settings::names::NamedModel;
use crate::core::model::ids::{ClassId, JobId, ModelId, PoolId};
use crate::core::model::policy::Tenant;
use crate::core::placement::rules::largest_window;
use crate::engines::Ability;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::request::parse::ParsedRequest;
use crate::proxy::response::models_api::list;
use crate::tokens::estimate::token_id_count;

/// The models that may serve a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::proxy) struct ModelCandidates {
    /// The model that the client asked for.
    pub(in crate::proxy) asked: ModelId,
    /// The model that the request goes to now.
    pub(in crate::proxy) current: ModelId,
    /// Fallback models that have not been tried yet, best first.
    pub(in crate::proxy) others: VecDeque<ModelId>,
}

impl ModelCandidates {
    /// A candidate without fallback models.
    pub(in crate::proxy) const fn only(model: ModelId) -> Self {
        Self { asked: model, current: model, others: VecDeque::new() }
    }

    /// Leaves out the fallback models whose engines the request certainly does not fit.
    ///
    /// # Errors
    /// The request certainly fits no engine of the model that the client asked for.
    pub(super) fn keep_fitting(
        &mut self,
        settings: &Settings,
        tenant: &Tenant,
        class: ClassId,
        parsed: &ParsedRequest,
        body: &[u8],
    ) -> Result<(), ApiError> {
        let fits = |model| check_window(settings, tenant, class, model, parsed, body);
        fits(self.asked)?;
        self.others.retain(|model| fits(*model).is_ok());
        Ok(())
    }
}

/// The models that may serve the request.
///
/// # Errors
/// The model is unknown, or the caller may not use it.
pub(in crate::proxy) fn of(
    settings: &Settings,
    grant: &Grant,
    parsed: &ParsedRequest,
    job: JobId,
) -> Result<ModelCandidates, ApiError> {
    let tenant = grant.tenant;
    let called = called(settings, grant, parsed.model.as_deref())?;
    let first = match called {
        NamedModel::Model(model) => model,
        NamedModel::Split(split) => split.at(point(settings.policy.tenants.name(tenant), parsed, job)),
    };
    let others = settings.edge.names.fallbacks(tenant, called, first);
    let others = others.filter(|model| list::may_use(&settings.policy, grant, *model)).collect();
    Ok(ModelCandidates { asked: first, current: first, others })
}

/// The model or split that the name denotes. A request without a model name gets the only model
/// that its caller may use, as engines do.
fn called<'a>(settings: &'a Settings, grant: &Grant, name: Option<&str>) -> Result<NamedModel<'a>, ApiError> {
    if let Some(name) = name {
        return list::called(settings, grant, name).ok_or_else(|| ApiError::model_not_found(name));
    }
    let mut usable = list::usable(&settings.policy, grant);
    match (usable.next(), usable.next()) {
        (Some(only), None) => Ok(NamedModel::Model(only)),
        _ => {
            Err(ApiError::invalid_field("model", "is missing. GET /v1/models lists the models you can use."))
        }
    }
}

/// Position of the request in a split, from 0 to 1. Requests that name a conversation or an end
/// user get the position of that name's hash, so that they stay with one model. All other requests
/// follow the multiples of the golden ratio, which fill every part of the interval in proportion to
/// its length, almost exactly.
fn point(tenant: &str, parsed: &ParsedRequest, job: JobId) -> f64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let bits = match parsed.cache.key.as_deref().or(parsed.user.as_deref()) {
        Some(key) => hash(tenant, key),
        None => (job.index() as u64).wrapping_mul(GOLDEN),
    };
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Hash of a pair, equal in every process. Tenant names contain no white space, so that two
/// different pairs never give the same text.
fn hash(tenant: &str, key: &str) -> u64 {
    let digest = blake3::hash(format!("{tenant} {key}").as_bytes());
    digest.as_bytes()[..8].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
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
fn check_window(
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
    let Some(window) = largest_window(policy, row, &[&class.placement, &tenant.placement], |_| None) else {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::MachineSecrets;
    use crate::fleet::view::FleetView;
    use crate::protocol::request::parse::CacheFields;

    const FILE: &str = "
version: 1
auth: {mode: off, tenant: all}
tenants:
  all: {allow_fallback: true, model_map: {mine: v2}}
  few: {allow_fallback: true, models: [v1, v2]}
models:
  chat: {split: {v1: 95, v2: 5}}
  v1: {fallbacks: [v3, v2]}
pools:
  p: {engine: openai, models: [v1, v2, v3], replicas: ['http://127.0.0.1:9']}
";

    fn settings() -> Settings {
        let outcome = load_str_with(FILE, "test", Path::new("."), None, &MachineSecrets);
        outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings
    }

    fn ask(
        settings: &Settings,
        tenant: &str,
        parsed: &ParsedRequest,
        job: u64,
    ) -> Result<Vec<String>, ApiError> {
        let tenant = settings.policy.tenants.id(tenant).unwrap();
        let ModelCandidates { asked, others, .. } =
            of(settings, &Grant::whole(tenant), parsed, JobId::new(job))?;
        let name = |model| settings.policy.models.name(model).to_owned();
        Ok(std::iter::once(asked).chain(others).map(name).collect())
    }

    fn for_model(name: &str) -> ParsedRequest {
        ParsedRequest { model: Some(name.to_owned()), ..ParsedRequest::empty(Api::Chat) }
    }

    /// Number of requests for each model.
    fn shares<'a>(peeks: impl Iterator<Item = &'a ParsedRequest>, step: u64) -> BTreeMap<String, usize> {
        let settings = settings();
        let mut shares = BTreeMap::new();
        for (job, parsed) in (1..).zip(peeks) {
            let first = ask(&settings, "all", parsed, job * step).unwrap().swap_remove(0);
            *shares.entry(first).or_default() += 1;
        }
        shares
    }

    #[test]
    fn a_tenant_gets_what_it_may_use_in_the_order_of_the_file() {
        let settings = settings();
        let asks = |tenant, name| ask(&settings, tenant, &for_model(name), 1).ok();
        let names = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
        assert_eq!(asks("all", "v1"), names(&["v1", "v3", "v2"]));
        assert_eq!(asks("few", "v1"), names(&["v1", "v2"]));
        assert_eq!(asks("all", "mine"), names(&["v2"]));
        assert_eq!((asks("few", "mine"), asks("few", "v3"), asks("all", "none")), (None, None, None));
        let engines = FleetView::default();
        let listed = |tenant: &str| {
            let tenant = settings.policy.tenants.id(tenant).unwrap();
            let rows = list::list(&settings, &Grant::whole(tenant), &engines);
            rows["data"].as_array().unwrap().iter().map(|row| row["id"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(json!(listed("all")), json!(["chat", "mine", "v1", "v2", "v3"]));
        assert_eq!(json!(listed("few")), json!(["chat", "v1", "v2"]));
    }

    #[test]
    fn a_split_is_exact_over_time_whatever_comes_between() {
        let parsed = for_model("chat");
        for (count, step) in [(20, 1), (100, 1), (1_000, 2), (10_000, 1), (10_000, 3), (10_000, 7)] {
            let shares = shares(std::iter::repeat_n(&parsed, count), step);
            let off = shares.get("v2").copied().unwrap_or(0) as f64 - count as f64 * 0.05;
            assert!(off.abs() <= 3.0, "{off} of {count}, one in {step}");
        }
    }

    #[test]
    fn a_conversation_or_a_user_keeps_to_one_model() {
        let keyed = |key: usize| ParsedRequest {
            cache: CacheFields { key: Some(key.to_string()), salt: None },
            ..for_model("chat")
        };
        let user = |user: usize| ParsedRequest { user: Some(user.to_string()), ..for_model("chat") };
        for parsed in [keyed(1), user(1), keyed(77)] {
            assert_eq!(shares(std::iter::repeat_n(&parsed, 100), 1).len(), 1);
        }
        let many: Vec<ParsedRequest> = (0..10_000).map(keyed).collect();
        let share = shares(many.iter(), 1)["v2"];
        assert!((435..=565).contains(&share), "three standard deviations: {share}");
        let both = ParsedRequest { user: Some("another".to_owned()), ..keyed(1) };
        assert_eq!(shares([keyed(1), both].iter(), 1).len(), 1, "the conversation decides");
    }
}
