//! Session: the session name of a request.

use http::HeaderMap;

use crate::config::settings::{SessionField, Settings};
use crate::protocol::request::prefix::PrefixHasher;
use crate::proxy::request::InferenceRequest;

/// Hash of the request's session. `None` if sessions are not configured or the request names none.
/// An empty name counts as none.
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
            SessionField::PromptCacheKey => order.parsed.prompt_cache_key.as_deref(),
            SessionField::User => order.parsed.user.as_deref(),
        });
        text.map(str::as_bytes)
    };
    let key = header.map(http::HeaderValue::as_bytes).or_else(fields).filter(|key| !key.is_empty())?;
    Some(prefixes.session(order.spec.tenant, order.spec.model, key))
}
