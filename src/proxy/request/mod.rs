//! Request: a client's call, checked against the rights of its tenant.

pub(super) mod candidates;
pub(crate) mod checked;
pub(super) mod session;
pub(super) mod superseding;

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use crate::auth::Identity;
use crate::config::settings::Settings;
use crate::core::model::event::RejectReason;
use crate::core::model::ids::{ClassId, JobId};
use crate::core::model::job::JobSpec;
use crate::core::model::policy::Tenant;
use crate::core::model::time::Tick;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::headers;
use crate::protocol::request::parse::{ParsedRequest, parse_request};
use crate::proxy::context::tokenize_requests::TokenizeGuard;
use crate::proxy::context::window;
use crate::proxy::request::candidates::ModelCandidates;
use crate::tokens::estimate::estimate;

/// Output tokens counted against the queue's bounds for a request without an output limit.
const UNLIMITED_OUTPUT_TOKENS: u64 = 1024;

/// Part of a client's stated timeout that is reserved for the answer's way back: a fraction, and an
/// upper limit.
const RESPONSE_MARGIN: (f64, Duration) = (0.05, Duration::from_millis(500));

/// Longest wait for a fallback model after the request's deadline has passed. Such a request starts
/// almost at once or not at all.
const FALLBACK_GRACE: Duration = Duration::from_millis(100);

/// A request that may be queued.
#[derive(Debug)]
pub(super) struct InferenceRequest {
    pub(super) api: Api,
    /// The client's body, unchanged.
    pub(super) body: Bytes,
    /// What was read of it.
    pub(super) parsed: ParsedRequest,
    /// The models that may serve it.
    pub(super) candidates: ModelCandidates,
    /// Tokens of all prompts, estimated from their bytes.
    pub(super) estimated: u64,
    /// The request's job, as the scheduler sees it.
    pub(super) spec: JobSpec,
    /// Guard held from the tokenize call to an engine until the request is admitted.
    pub(super) asking: Option<TokenizeGuard>,
}

impl InferenceRequest {
    /// After the refusal `why`, moves the request to its next fallback model. The request keeps its
    /// arrival time. Returns false if no fallback model may help.
    pub(super) fn try_fallback(&mut self, why: RejectReason, now: Tick) -> bool {
        let others = &mut self.candidates.others;
        let Some(next) = others.pop_front().filter(|_| why.may_fall_back()) else { return false };
        let spec = &mut self.spec;
        spec.model = next;
        spec.has_fallback = !others.is_empty();
        spec.deadline = spec.deadline.max((now + FALLBACK_GRACE).min(spec.patience));
        true
    }
}

/// Parses the request and checks its model, class and context.
///
/// # Errors
/// The body is malformed, the model is unknown or not allowed for this caller, the class is not
/// allowed, or the prompt certainly fits no engine.
pub(super) fn read(
    settings: &Settings,
    identity: &Identity,
    api: Api,
    headers: &HeaderMap,
    body: Bytes,
    (id, now): (JobId, Tick),
) -> Result<InferenceRequest, ApiError> {
    let parsed = parse_request(api, headers, &body)?;
    let policy = &*settings.policy;
    let Some(tenant) = policy.tenants.get(identity.tenant) else {
        let text = "The tenant of this API key is no longer configured.";
        return Err(ApiError::new(ErrorKind::InvalidKey, text));
    };
    let mut candidates = candidates::of(settings, &identity.grant, &parsed, id)?;
    let class = class(settings, tenant, identity, headers, parsed.service_tier.as_deref())?;
    let estimated = estimate(parsed.prompt_pieces(&body));
    let fits = |model| window::check(settings, tenant, class, model, &parsed, &body);
    fits(candidates.first)?;
    candidates.others.retain(|model| fits(*model).is_ok());
    let max_wait = policy.classes.get(class).map_or(Duration::ZERO, |class| class.max_wait);
    let patience = headers::client_timeout(headers).map(|announced| {
        announced.saturating_sub(announced.mul_f64(RESPONSE_MARGIN.0).min(RESPONSE_MARGIN.1))
    });
    let spec = JobSpec {
        id,
        tenant: identity.tenant,
        key: identity.grant.limited,
        class,
        model: candidates.first,
        prompt_tokens: estimated,
        max_output_tokens: max_output_tokens(&parsed),
        sequences: if api.generates() { parsed.sequences() } else { 1 },
        bytes: body.len() as u64,
        streams: parsed.stream,
        arrived: now,
        deadline: now + patience.map_or(max_wait, |patience| patience.min(max_wait)),
        patience: patience.map_or(Tick::NEVER, |patience| now + patience),
        has_fallback: !candidates.others.is_empty(),
        resumable: false,
        context: window::asked(&parsed, estimated),
        context_group: 0,
        fingerprint: None,
        session: None,
    };
    Ok(InferenceRequest { api, body, parsed, candidates, estimated, spec, asking: None })
}

fn max_output_tokens(parsed: &ParsedRequest) -> u64 {
    if !parsed.api.generates() {
        return 0;
    }
    let each = parsed.max_output_tokens.unwrap_or(UNLIMITED_OUTPUT_TOKENS);
    each.saturating_mul(u64::from(parsed.sequences()))
}

/// The request's class: from the class header, then `service_tier`, then the key, then the tenant.
/// A header with a class that the tenant may not use is refused. A tier with such a class is
/// ignored.
fn class(
    settings: &Settings,
    tenant: &Tenant,
    identity: &Identity,
    headers: &HeaderMap,
    service_tier: Option<&str>,
) -> Result<ClassId, ApiError> {
    let classes = &settings.policy.classes;
    let allowed = |class: &ClassId| tenant.classes.contains(class) && identity.grant.allows_class(*class);
    let header = &settings.edge.requests.class_header;
    if let Some(asked) = headers.get(header) {
        let asked = asked.to_str().unwrap_or_default();
        return classes.id(asked).filter(allowed).ok_or_else(|| {
            let usable = tenant.classes.iter().filter(|class| allowed(class));
            let names: Vec<_> = usable.map(|class| classes.name(*class)).collect();
            let text = format!("The header `{header}` may name one of: {}.", names.join(", "));
            ApiError::new(ErrorKind::ClassForbidden, text)
        });
    }
    let tier = match service_tier {
        Some("flex") => classes.id("batch"),
        Some("priority" | "fast") => classes.id("interactive"),
        _ => None,
    };
    let usual = Some(tenant.default_class).filter(allowed);
    let first = || tenant.classes.iter().copied().find(|class| allowed(class));
    tier.filter(allowed).or(identity.grant.class).or(usual).or_else(first).ok_or_else(|| {
        let text = "Your credential gives no right to any of your tenant's classes.";
        ApiError::new(ErrorKind::ClassForbidden, text)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::MachineSecrets;
    use crate::config::settings::identity::Grant;
    use crate::core::model::ids::TenantId;

    const FILE: &str = "
version: 1
auth: {mode: off, tenant: every}
tenants:
  every: {}
  quick: {classes: [interactive, standard], default_class: interactive}
pools:
  p: {engine: vllm, models: [m], max_seqs: 1, replicas: ['http://127.0.0.1:9']}
";

    struct World {
        settings: Settings,
    }

    impl World {
        fn new() -> Self {
            let outcome = load_str_with(FILE, "test", Path::new("."), None, &MachineSecrets);
            Self { settings: outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings }
        }

        fn read(
            &self,
            tenant: &str,
            key: Option<&str>,
            tier: &str,
            header: Option<&str>,
        ) -> Result<InferenceRequest, ApiError> {
            let policy = &self.settings.policy;
            let tenant: TenantId = policy.tenants.id(tenant).unwrap();
            let class = key.and_then(|name| policy.classes.id(name));
            let grant = Grant { class, ..Grant::whole(tenant) };
            let identity = Identity { tenant, key_id: None, grant };
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            if let Some(name) = header {
                headers.insert("x-penstock-class", HeaderValue::try_from(name).unwrap());
            }
            let body = Bytes::from(format!(r#"{{"model":"m","messages":[],"service_tier":{tier}}}"#));
            read(&self.settings, &identity, Api::Chat, &headers, body, (JobId::new(1), Tick::ZERO))
        }

        fn class(&self, tenant: &str, key: Option<&str>, tier: &str) -> &str {
            let order = self.read(tenant, key, tier, None).unwrap();
            self.settings.policy.classes.name(order.spec.class)
        }
    }

    #[test]
    fn tiers_are_wishes_for_a_class() {
        let world = World::new();
        for (tier, class) in [
            ("null", "standard"),
            (r#""auto""#, "standard"),
            (r#""default""#, "standard"),
            (r#""scale""#, "standard"),
            (r#""flex""#, "batch"),
            (r#""priority""#, "interactive"),
            (r#""fast""#, "interactive"),
            (r#""""#, "standard"),
            (r#""Flex""#, "standard"),
            (r#""platinum""#, "standard"),
        ] {
            assert_eq!(world.class("every", None, tier), class, "{tier}");
        }
    }

    #[test]
    fn a_tier_that_the_tenant_may_not_have_falls_back_to_the_key_and_then_the_tenant() {
        let world = World::new();
        assert_eq!(world.class("quick", None, r#""flex""#), "interactive");
        assert_eq!(world.class("quick", Some("standard"), r#""flex""#), "standard");
        assert_eq!(world.class("every", Some("interactive"), r#""auto""#), "interactive");
        assert_eq!(world.class("every", Some("interactive"), r#""flex""#), "batch");
    }

    fn completion(file: &str, body: String) -> Result<InferenceRequest, ApiError> {
        let outcome = load_str_with(file, "test", Path::new("."), None, &MachineSecrets);
        let settings = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings;
        let tenant = settings.policy.tenants.id("every").unwrap();
        let identity = Identity { tenant, key_id: None, grant: Grant::whole(tenant) };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        read(&settings, &identity, Api::Completions, &headers, Bytes::from(body), (JobId::new(1), Tick::ZERO))
    }

    #[test]
    fn only_what_surely_fits_no_window_is_refused() {
        let small = FILE.replace("max_seqs: 1", "max_seqs: 1, max_model_len: 8");
        let large = "  q: {engine: vllm, models: [m], max_model_len: 16, replicas: ['http://127.0.0.1:8']}";
        let ids = |count| format!("[{}]", vec!["1"; count].join(","));
        let asks = |file: &str, prompt: &str, limit: u32, more: &str| {
            let body = format!(r#"{{"model":"m","prompt":{prompt},"max_tokens":{limit}{more}}}"#);
            completion(file, body).map(|order| order.spec.context)
        };
        let text = format!(r#""{}""#, "word ".repeat(100));
        assert_eq!(asks(&small, &ids(8), 8, ""), Ok(16), "vLLM lowers the limit");
        assert!(asks(&small, &text, 8, "").is_ok(), "an estimate is not sure");
        for (prompt, limit, field) in [(ids(9), 1, "prompt"), (ids(1), 9, "max_tokens")] {
            let error = asks(&small, &prompt, limit, "").unwrap_err();
            assert_eq!((error.kind(), error.param()), (ErrorKind::ContextLength, Some(field)));
            assert!(asks(&format!("{small}{large}"), &prompt, limit, "").is_ok(), "the other pool has room");
            assert!(asks(FILE, &prompt, limit, "").is_ok(), "nothing is known");
        }
        assert!(asks(&small, &ids(9), 1, r#","truncate_prompt_tokens":4"#).is_ok());
        assert!(asks(&small.replace("vllm", "llamacpp"), &ids(1), 9, "").is_ok(), "it stops at its end");
        let own = small.replace("every: {}", "every: {placement: {pools: [p]}}");
        assert!(asks(&format!("{own}{large}"), &ids(9), 1, "").is_err(), "the tenant may not use the other");
    }

    #[test]
    fn a_tier_that_is_no_text_is_refused_and_the_header_decides_before_it() {
        let world = World::new();
        let error = world.read("every", None, "7", None).unwrap_err();
        assert_eq!((error.kind(), error.param()), (ErrorKind::InvalidRequest, Some("service_tier")));
        let order = world.read("every", None, r#""flex""#, Some("interactive")).unwrap();
        assert_eq!(world.settings.policy.classes.name(order.spec.class), "interactive");
        let error = world.read("quick", None, r#""priority""#, Some("batch")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ClassForbidden);
    }
}
