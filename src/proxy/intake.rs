//! Reading a request body: every limit is counted while it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::config::settings::RequestLimits;
use crate::proxy::gather::Gathered;
use crate::wire::catalogue::Kind;
use crate::wire::error::ApiError;

/// When a client may come back that found no room for its body.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Bytes of all request bodies that are held at once.
#[derive(Debug, Default)]
pub struct BodyBudget {
    held: AtomicU64,
}

/// Part of the budget; given back when dropped.
#[derive(Debug)]
pub struct Held {
    budget: Arc<BodyBudget>,
    bytes: u64,
}

impl BodyBudget {
    pub(super) fn hold(self: &Arc<Self>) -> Held {
        Held { budget: Arc::clone(self), bytes: 0 }
    }

    /// Bytes held now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl Held {
    /// As many bytes again, for somebody who holds the same body for longer and
    /// can do without: at most half of the budget is in use with them.
    #[must_use]
    pub fn once_more(&self, limit: u64) -> Option<Self> {
        let mut held = self.budget.hold();
        held.add(self.bytes, limit / 2).is_ok().then_some(held)
    }

    /// Whether it may be held for as long as an answer takes: bodies of running
    /// streams take no more than half of what all bodies may.
    #[must_use]
    pub fn may_stay(&self, limit: u64) -> bool {
        self.budget.held() <= limit / 2
    }

    fn add(&mut self, bytes: u64, limit: u64) -> Result<(), ApiError> {
        let before = self.budget.held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        if before.saturating_add(bytes) > limit {
            let text = "the gateway holds as many request bytes as it may; try again in a moment";
            return Err(ApiError::new(Kind::QueueFull, text).with_retry_after(RETRY_AFTER));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Why a body is not there.
#[derive(Debug)]
pub enum Unread {
    /// It is refused: too large, too slow, or more than the gateway can hold.
    Refused(ApiError),
    /// It broke off: the client is gone, or does not keep to the protocol.
    BrokeOff,
}

impl From<ApiError> for Unread {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

/// Reads the whole body, with at most `patience` between two pieces of it.
/// One that comes in one piece is not copied.
///
/// # Errors
/// See [`Unread`].
pub async fn read(
    mut body: Incoming,
    limits: &RequestLimits,
    patience: Duration,
    budget: &Arc<BodyBudget>,
) -> Result<(Bytes, Held), Unread> {
    let mut held = budget.hold();
    let declared = body.size_hint().exact();
    if let Some(declared) = declared {
        if declared > limits.max_body_bytes {
            return Err(ApiError::body_too_large(limits.max_body_bytes).into());
        }
        held.add(declared, limits.max_total_body_bytes)?;
    }
    let mut gathered = Gathered::new(declared.and_then(|bytes| usize::try_from(bytes).ok()));
    // The door times the bytes of an HTTP/1 connection, but an HTTP/2 stream
    // may be silent on a lively one.
    while let Some(frame) = timeout(patience, body.frame()).await.map_err(|_| too_slow(patience))? {
        let Ok(data) = frame.map_err(|_| Unread::BrokeOff)?.into_data() else {
            continue;
        };
        if declared.is_none() {
            held.add(data.len() as u64, limits.max_total_body_bytes)?;
        }
        if (gathered.len() + data.len()) as u64 > limits.max_body_bytes {
            return Err(ApiError::body_too_large(limits.max_body_bytes).into());
        }
        gathered.push(data);
    }
    Ok((gathered.finish(), held))
}

fn too_slow(patience: Duration) -> ApiError {
    let text = format!("No byte of the request body came for {} s.", patience.as_secs_f64());
    ApiError::new(Kind::BodyTimeout, text)
}
