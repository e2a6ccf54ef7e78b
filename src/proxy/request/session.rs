//! Session name of a request.

use http::HeaderMap;

use crate::config::settings::{SessionField, Settings};
use crate::protocol::request::prefix::PrefixHasher;
use crate::proxy::request::InferenceRequest;

/// What stands for the request's session, where sessions keep to a replica and
/// the request names one. An empty name is none.
pub(in crate::proxy) fn of(
    settings: &Settings,
    prefixes: &PrefixHasher,
    headers: &HeaderMap,
    order: &InferenceRequest,
) -> Option<u64> {
    let named = settings.edge.session.as_ref()?;
    let header = named.header.as_ref().and_then(|name| headers.get(name));
    let fields = || {
        let text = named.body.iter().find_map(|field| match field {
            SessionField::PromptCacheKey => order.peek.prompt_cache_key.as_deref(),
            SessionField::User => order.peek.user.as_deref(),
        });
        text.map(str::as_bytes)
    };
    let key = header.map(http::HeaderValue::as_bytes).or_else(fields).filter(|key| !key.is_empty())?;
    Some(prefixes.session(order.spec.tenant, order.spec.model, key))
}
