//! What a request asks for, checked against what its tenant may have.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use crate::config::settings::{Edge, Settings};
use crate::core::ids::{ClassId, JobId, ModelId};
use crate::core::job::JobSpec;
use crate::core::policy::{Policy, Tenant};
use crate::core::time::Tick;
use crate::proxy::auth::Identity;
use crate::proxy::models;
use crate::tokens::estimate::estimate_prompt_tokens;
use crate::wire::api::Api;
use crate::wire::error::{ApiError, ErrorKind};
use crate::wire::headers;
use crate::wire::peek::{Peek, peek};

/// Output tokens counted against the queue's bounds for a request that sets
/// no limit of its own.
const UNLIMITED_OUTPUT_TOKENS: u64 = 1024;

/// The part of an announced client timeout that is left for the answer's way
/// back.
const DEADLINE_MARGIN: f64 = 0.95;

/// A request that may be queued.
#[derive(Debug)]
pub struct Order {
    /// Which call it is.
    pub api: Api,
    /// The body as it came.
    pub body: Bytes,
    /// What was read of it.
    pub peek: Peek,
    /// The model by its own name.
    pub model: ModelId,
    /// What the scheduler needs to know.
    pub spec: JobSpec,
}

/// Reads the request and checks what it asks for.
///
/// # Errors
/// The body is malformed, the model is unknown or not for this tenant, or the
/// class is not.
pub fn read(
    settings: &Settings,
    identity: &Identity,
    api: Api,
    headers: &HeaderMap,
    body: Bytes,
    (id, now): (JobId, Tick),
) -> Result<Order, ApiError> {
    let content_type = headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let peek = peek(api, content_type, &body)?;
    let policy = &*settings.policy;
    let tenant = policy.tenants.get(identity.tenant).ok_or_else(|| {
        ApiError::new(ErrorKind::InvalidKey, "the tenant of this API key is no longer configured")
    })?;
    let model = model(settings, identity, peek.model_name())?;
    let class = class(&settings.edge, policy, tenant, identity, headers, peek.service_tier.as_deref())?;
    let promise = policy.classes.get(class);
    let max_wait = promise.map_or(Duration::ZERO, |class| class.max_wait);
    let patience = headers::client_timeout(headers).map(|announced| announced.mul_f64(DEADLINE_MARGIN));
    let spec = JobSpec {
        id,
        tenant: identity.tenant,
        class,
        model,
        prompt_tokens: estimate_prompt_tokens(&peek),
        max_output_tokens: max_output_tokens(api, &peek),
        sequences: peek.sequences(),
        bytes: body.len() as u64,
        deadline: now + patience.map_or(max_wait, |patience| patience.min(max_wait)),
    };
    Ok(Order { api, body, peek, model, spec })
}

fn max_output_tokens(api: Api, peek: &Peek) -> u64 {
    if !api.generates() {
        return 0;
    }
    let each = peek.max_tokens.unwrap_or(UNLIMITED_OUTPUT_TOKENS);
    each.saturating_mul(u64::from(peek.sequences()))
}

/// A request without a model name gets the only model that its tenant may
/// use, as the engines themselves do it.
fn model(settings: &Settings, identity: &Identity, name: Option<&str>) -> Result<ModelId, ApiError> {
    let policy = &settings.policy;
    let Some(name) = name else {
        let mut usable = policy
            .models
            .iter()
            .map(|(id, _, _)| id)
            .filter(|id| models::may_use(policy, identity.tenant, *id));
        return match (usable.next(), usable.next()) {
            (Some(only), None) => Ok(only),
            _ => Err(ApiError::new(
                ErrorKind::BadRequest,
                "the field `model` is missing; GET /v1/models lists what you may use",
            )
            .with_param("model")),
        };
    };
    let known = settings.edge.model_names.get(name).copied();
    known.filter(|id| models::may_use(policy, identity.tenant, *id)).ok_or_else(|| {
        let text =
            format!("the model `{name}` does not exist here or is not for you; GET /v1/models lists yours");
        ApiError::new(ErrorKind::ModelNotFound, text).with_param("model")
    })
}

/// The class header decides, then `service_tier`, then the key, then the
/// tenant. A header that asks for a class the tenant has no right to is
/// refused; a tier is a wish that falls back.
fn class(
    edge: &Edge,
    policy: &Policy,
    tenant: &Tenant,
    identity: &Identity,
    headers: &HeaderMap,
    service_tier: Option<&str>,
) -> Result<ClassId, ApiError> {
    if let Some(asked) = headers.get(&edge.requests.class_header) {
        let asked = asked.to_str().unwrap_or_default();
        let known = policy.classes.id(asked).filter(|class| tenant.classes.contains(class));
        return known.ok_or_else(|| {
            let names: Vec<_> = tenant.classes.iter().map(|class| policy.classes.name(*class)).collect();
            let header = &edge.requests.class_header;
            let text = format!("the header `{header}` may name one of: {}", names.join(", "));
            ApiError::new(ErrorKind::PermissionDenied, text)
        });
    }
    let tier = match service_tier {
        Some("flex") => policy.classes.id("batch"),
        Some("priority" | "fast") => policy.classes.id("interactive"),
        _ => None,
    };
    let tier = tier.filter(|class| tenant.classes.contains(class));
    Ok(tier.or(identity.class).unwrap_or(tenant.default_class))
}
