//! Request: a client's call, checked against the rights of its tenant.

pub(super) mod candidates;
pub(super) mod guardrail;
mod media;
pub(super) mod superseding;
#[cfg(test)]
mod tests;

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use crate::auth::Identity;
use crate::config::settings::{SessionField, Settings};
use crate::core::model::event::RejectReason;
use crate::core::model::ids::{ClassId, JobId, KeyId, ModelId, TenantId};
use crate::core::model::job::{JobSpec, PromptPrefix};
use crate::core::model::policy::Tenant;
use crate::core::model::time::Tick;
use crate::dispatcher::ticket::Ticket;
use crate::engines::Ability;
use crate::protocol::api::Api;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::protocol::headers;
use crate::protocol::request::parse::{ParsedRequest, parse_request};
use crate::protocol::request::prefix::PrefixHasher;
use crate::proxy::body::RequestBody;
use crate::proxy::context::prompt_counter::TokenizeGuard;
use crate::proxy::request::candidates::ModelCandidates;
use crate::tokens::CountSource;
use crate::tokens::estimate::estimate;

/// Output tokens counted against the queue's bounds for a request without an output limit.
const UNLIMITED_OUTPUT_TOKENS: u64 = 1024;

/// Part of a client's stated timeout that is reserved for the answer's way back: a fraction, and an
/// upper limit.
const RESPONSE_MARGIN: (f64, Duration) = (0.05, Duration::from_millis(500));

/// Longest wait for a fallback model after the request's deadline has passed. Such a request starts
/// almost at once or not at all.
const FALLBACK_GRACE: Duration = Duration::from_millis(100);

/// A client's request that may be queued: what it asks for, who asks, and until when.
#[derive(Debug)]
pub(super) struct InferenceRequest {
    /// Id of the request's job in the scheduler.
    pub(super) id: JobId,
    pub(super) tenant: TenantId,
    /// The caller's key, if the key has limits of its own.
    pub(super) key: Option<KeyId>,
    pub(super) class: ClassId,
    /// The models that may serve the request.
    pub(super) candidates: ModelCandidates,
    /// The client's headers that go upstream.
    pub(super) headers: HeaderMap,
    /// The client's body, unchanged.
    pub(super) body: RequestBody,
    /// The fields that were read from the body.
    pub(super) parsed: ParsedRequest,
    pub(super) tokens: RequestTokens,
    /// Arrival. A retry takes over the arrival of the request that it repeats.
    pub(super) arrived: Tick,
    /// Latest end of the wait for a replica.
    pub(super) deadline: Tick,
    /// The client's own deadline; [`Tick::NEVER`] if the client stated none. At least `deadline`.
    pub(super) client_deadline: Tick,
    /// Hash by which the scheduler recognises the request when it is sent again.
    pub(super) fingerprint: Option<u64>,
    /// Hash of the request's session. `None` if sessions are not configured or the request names
    /// none.
    pub(super) session: Option<u64>,
    /// Salt of the engine's prefix cache. `None` if the request shares the cache with others.
    pub(super) cache_salt: Option<String>,
    pub(super) entry: EntryState,
}

/// What a request has passed on its way to the queue.
#[derive(Debug, Default)]
pub(super) struct EntryState {
    /// Whether the guardrail service has let the prompt pass, or need not be asked.
    pub(super) is_checked: bool,
    /// Ticket of a request that the scheduler refused before its prompt was checked.
    pub(super) refused: Option<Ticket>,
    /// Guard held from the tokenize call to an engine until the request is admitted.
    pub(super) asking: Option<TokenizeGuard>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTokens {
    /// Tokens of all prompts, estimated from their bytes.
    pub(super) estimated: u64,
    /// Tokens of all prompts, counted as exactly as the context window requires.
    pub(super) prompt: u64,
    /// Tokens of the longest prompt, counted alike.
    pub(super) longest: u64,
    /// Source of the two counts.
    pub(super) source: CountSource,
    /// Output tokens that the request allows, over all its sequences.
    pub(super) max_output: u64,
}

impl InferenceRequest {
    /// The model that the request goes to now.
    pub(super) const fn model(&self) -> ModelId {
        self.candidates.current
    }

    /// Tokens of context that one sequence needs: its prompt, and its output limit if there is one.
    pub(super) fn context(&self) -> u64 {
        let lowered = self.parsed.lowered.unwrap_or(u64::MAX);
        let output = self.parsed.max_output_tokens.map_or(0, |asked| asked.min(lowered));
        self.tokens.longest.saturating_add(output)
    }

    /// The request's job, as the scheduler sees it. `resumable` tells whether another replica could
    /// continue the stream.
    pub(super) fn job(&self, resumable: bool) -> JobSpec {
        JobSpec {
            id: self.id,
            tenant: self.tenant,
            key: self.key,
            class: self.class,
            model: self.model(),
            prompt_tokens: self.tokens.prompt,
            max_output_tokens: self.tokens.max_output,
            sequences: if self.parsed.api.generates() { self.parsed.sequences() } else { 1 },
            bytes: self.body.bytes.len() as u64,
            streams: self.parsed.stream,
            arrived: self.arrived,
            deadline: self.deadline,
            client_deadline: self.client_deadline,
            has_fallback: !self.candidates.others.is_empty(),
            resumable,
            context: self.context(),
            context_group: 0,
            fingerprint: self.fingerprint,
            session: self.session,
        }
    }

    pub(super) fn prefix(&self, prefixes: &PrefixHasher) -> PromptPrefix {
        let salt = self.cache_salt.as_deref();
        prefixes.prefix(self.model(), &self.parsed, &self.body.bytes, self.tokens.prompt, salt)
    }

    /// Sets the hashes of session and content.
    pub(super) fn recognise(&mut self, settings: &Settings, prefixes: &PrefixHasher, headers: &HeaderMap) {
        let (tenant, model, api) = (self.tenant, self.model(), self.parsed.api);
        let key = session_key(settings, headers, &self.parsed);
        self.session = key.map(|key| prefixes.session(tenant, model, key));
        self.fingerprint = prefixes.fingerprint(tenant, model, api, &self.body.bytes);
    }

    /// After the refusal `why`, moves the request to its next fallback model. The request keeps its
    /// arrival time. Returns false if no fallback model may help.
    pub(super) fn take_next_model(&mut self, why: RejectReason, now: Tick) -> bool {
        let others = &mut self.candidates.others;
        let Some(next) = others.pop_front().filter(|_| why.may_fall_back()) else { return false };
        self.candidates.current = next;
        self.deadline = self.deadline.max((now + FALLBACK_GRACE).min(self.client_deadline));
        true
    }

    /// Whether a stream of this request could continue at another replica. The request's parameters
    /// must allow it, every engine that serves the model must support it, and there must be memory
    /// to hold the body until the stream's end.
    pub(super) fn can_continue(&self, settings: &Settings) -> bool {
        let model = settings.policy.models.get(self.model());
        let can_continue =
            |pool| settings.edge.pools.get(pool).is_some_and(|pool| pool.engine.can(Ability::Continue));
        settings.edge.continue_streams
            && self.parsed.is_resumable
            && self.body.can_hold_for_stream(settings.edge.requests.max_total_body_bytes)
            && model.is_some_and(|model| model.pools.iter().copied().all(can_continue))
    }
}

/// Parses the request and checks its model, class and context. `id` is that of the request's job, and
/// `now` the time of its arrival.
///
/// # Errors
/// The body is malformed, the model is unknown or not allowed for this caller, the class is not
/// allowed, or the prompt certainly fits no engine.
pub(super) fn read(
    settings: &Settings,
    identity: &Identity,
    api: Api,
    headers: &HeaderMap,
    body: RequestBody,
    id: JobId,
    now: Tick,
) -> Result<Box<InferenceRequest>, ApiError> {
    let parsed = parse_request(api, headers, &body.bytes)?;
    media::check(&settings.edge.requests.media, &parsed, &body.bytes)?;
    let policy = &*settings.policy;
    let Some(tenant) = policy.tenants.get(identity.tenant) else {
        let text = "The tenant of this API key is no longer configured.";
        return Err(ApiError::new(ErrorKind::InvalidKey, text));
    };
    let mut candidates = candidates::of(settings, &identity.grant, &parsed, id)?;
    let class = class(settings, tenant, identity, headers, parsed.service_tier.as_deref())?;
    candidates.keep_fitting(settings, tenant, class, &parsed, &body.bytes)?;
    let estimated = estimate(parsed.prompt_pieces(&body.bytes));
    let max_wait = policy.classes.get(class).map_or(Duration::ZERO, |class| class.max_wait);
    let client_timeout = headers::client_timeout(headers).map(|announced| {
        announced.saturating_sub(announced.mul_f64(RESPONSE_MARGIN.0).min(RESPONSE_MARGIN.1))
    });
    let tokens = RequestTokens {
        estimated,
        prompt: estimated,
        longest: estimated / u64::from(parsed.prompts.max(1)),
        source: CountSource::Estimate,
        max_output: max_output_tokens(&parsed),
    };
    let cache_salt = cache_salt(settings, identity.tenant, &parsed);
    Ok(Box::new(InferenceRequest {
        id,
        tenant: identity.tenant,
        key: identity.grant.limited,
        class,
        candidates,
        headers: headers::upstream_headers(headers, |name| {
            settings.edge.upstream.request_headers.contains(name.as_str())
        }),
        body,
        parsed,
        tokens,
        arrived: now,
        deadline: now + client_timeout.map_or(max_wait, |timeout| timeout.min(max_wait)),
        client_deadline: client_timeout.map_or(Tick::NEVER, |timeout| now + timeout),
        fingerprint: None,
        session: None,
        cache_salt,
        entry: EntryState::default(),
    }))
}

/// The salt that the engine gets: one that no other tenant's requests can have. `None` if the
/// request shares the prefix cache with those of other tenants.
fn cache_salt(settings: &Settings, tenant: TenantId, parsed: &ParsedRequest) -> Option<String> {
    let own = parsed.cache.salt.as_deref();
    let is_salted = own.is_some() || settings.edge.isolated_tenants.contains(&tenant);
    (is_salted && parsed.api.generates() && !parsed.api.is_multipart()).then(|| {
        let name = settings.policy.tenants.name(tenant);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        own.map(|own| hasher.update(own.as_bytes()));
        hasher.finalize().to_hex()[..32].to_owned()
    })
}

/// The text that names the request's session. `None` if sessions are not configured or the request
/// names none. An empty name counts as none.
fn session_key<'a>(
    settings: &Settings,
    headers: &'a HeaderMap,
    parsed: &'a ParsedRequest,
) -> Option<&'a [u8]> {
    let named = settings.edge.session.as_ref()?;
    let header = named.header.as_ref().and_then(|name| headers.get(name));
    let fields = || {
        let text = named.body.iter().find_map(|field| match field {
            SessionField::PromptCacheKey => parsed.cache.key.as_deref(),
            SessionField::User => parsed.user.as_deref(),
        });
        text.map(str::as_bytes)
    };
    header.map(HeaderValue::as_bytes).or_else(fields).filter(|key| !key.is_empty())
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
