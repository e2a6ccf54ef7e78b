//! Whole bodies of engine answers, and the engine's credential.

use bytes::Bytes;
use http::HeaderValue;

use crate::config::settings::PoolSettings;
use crate::protocol::error::ApiError;
use crate::proxy::body::gather::GatheredBody;
use crate::proxy::upstream::UpstreamExchange;

/// `Authorization` header for the pool's engines. `None` if the pool has no API key.
pub(in crate::proxy) fn bearer(pool: &PoolSettings) -> Option<HeaderValue> {
    let text = format!("Bearer {}", pool.api_key.as_ref()?.expose());
    let mut bearer = HeaderValue::try_from(text).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}

/// Reads a whole answer of at most `limit` bytes. An answer that arrives in one piece is not
/// copied.
pub(in crate::proxy) async fn whole_body(
    mut exchange: UpstreamExchange,
    limit: u64,
) -> Result<Bytes, CutReason> {
    let mut gathered = GatheredBody::default();
    while let Some(data) = exchange.data().await {
        let data = data.map_err(|_| CutReason::BrokenOff)?;
        if (gathered.len() + data.len()) as u64 > limit {
            return Err(CutReason::TooLarge);
        }
        gathered.push(data);
    }
    Ok(gathered.finish())
}

/// Reason why an answer was not read to its end.
#[derive(Debug)]
pub(in crate::proxy) enum CutReason {
    /// The engine's connection broke.
    BrokenOff,
    /// The answer is longer than the limit.
    TooLarge,
    /// The memory for answers is full.
    NoMemory(ApiError),
}
