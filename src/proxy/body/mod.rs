//! Request body: read under limits. The gateway counts the bytes that have arrived, not the bytes
//! that the client announced.

pub mod progress;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use dashmap::DashMap;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::config::settings::RequestLimits;
use crate::core::model::ids::TenantId;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;
use crate::proxy::body::progress::BodyProgress;

/// Largest buffer that is reserved because of an announced length, in bytes.
const MAX_PREALLOCATED_BYTES: usize = 1 << 20;
/// Largest body that is copied out of the buffer that it was read into, in bytes. The buffer has at
/// least twice as many, which a longer body may well keep.
const MAX_COPIED_BYTES: usize = 4096;
/// `Retry-After` for a client whose body exceeds the free memory.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Bytes of request bodies that are held now, of all tenants together and of each tenant.
#[derive(Debug, Default)]
pub struct BodyMemory {
    all: AtomicU64,
    tenants: DashMap<TenantId, Arc<AtomicU64>>,
}

/// A client's body, with the reservation of its bytes. Dropping the value returns the reservation.
#[derive(Debug)]
pub struct RequestBody {
    /// The body. Empty until it is read.
    pub bytes: Bytes,
    memory: Arc<BodyMemory>,
    tenant: Arc<AtomicU64>,
    reserved: u64,
}

impl BodyMemory {
    /// An empty body for a request of the tenant.
    pub(super) fn hold(self: &Arc<Self>, tenant: TenantId) -> RequestBody {
        let tenant = Arc::clone(&self.tenants.entry(tenant).or_default());
        RequestBody { bytes: Bytes::new(), memory: Arc::clone(self), tenant, reserved: 0 }
    }

    /// Bytes of all bodies that are held now.
    pub fn held(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    /// Reserves the same number of bytes again, for an optional and longer use of the same body.
    /// `None` if more than half of `limit` would be in use.
    pub fn try_duplicate(&self, limit: u64) -> Option<Self> {
        let (memory, tenant) = (Arc::clone(&self.memory), Arc::clone(&self.tenant));
        let mut twin = Self { bytes: self.bytes.clone(), memory, tenant, reserved: 0 };
        let (all, _) = twin.take(self.reserved);
        (all <= limit / 2).then_some(twin)
    }

    /// Whether the body may be held for as long as its answer runs. Bodies of running streams use
    /// at most half of `limit`, the limit of all bodies.
    pub fn can_hold_for_stream(&self, limit: u64) -> bool {
        self.memory.held() <= limit / 2
    }

    /// A body whose bytes nothing counts.
    #[cfg(test)]
    pub(super) fn for_test(tenant: TenantId, bytes: Bytes) -> Self {
        let mut body = Arc::<BodyMemory>::default().hold(tenant);
        body.bytes = bytes;
        body
    }

    /// Reserves `bytes` more bytes that arrived, or refuses the request when a limit is exceeded.
    fn add(&mut self, bytes: u64, limits: &RequestLimits) -> Result<(), ApiError> {
        let (all, own) = self.take(bytes);
        let text = if all > limits.max_total_body_bytes {
            "The gateway holds as many request bytes as it may. Try again in a moment."
        } else if own > limits.most_of_tenant(all.saturating_sub(own)) {
            "Your requests hold as many bytes as one tenant may at once. Try again in a moment."
        } else {
            return Ok(());
        };
        Err(ApiError::new(ErrorKind::QueueFull, text).with_retry_after(RETRY_AFTER))
    }

    /// Counts bytes. Returns the new totals of all tenants and of the tenant.
    fn take(&mut self, bytes: u64) -> (u64, u64) {
        self.reserved = self.reserved.saturating_add(bytes);
        let plus = |counter: &AtomicU64| counter.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        (plus(&self.memory.all), plus(&self.tenant))
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.memory.all.fetch_sub(self.reserved, Ordering::Relaxed);
        self.tenant.fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

/// Reason why a body could not be read.
#[derive(Debug)]
pub enum BodyError {
    /// The gateway refused the body: too large, too slow, or more than the gateway can hold.
    Refused(ApiError),
    /// The body broke off: the client left or violated the protocol.
    BrokeOff,
}

impl From<ApiError> for BodyError {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

/// Deadline of the next piece of a body.
#[derive(Debug, Clone, Copy)]
struct BodyDeadline {
    begun: Instant,
    last: Instant,
    /// Longest time between two pieces, and the grace on top of the least rate.
    idle_timeout: Duration,
    /// Least rate over the whole body, in bytes per second. 0 = no limit.
    least: u64,
}

impl BodyDeadline {
    fn deadline(&self, received: u64) -> Instant {
        let next = self.last + self.idle_timeout;
        match self.least {
            0 => next,
            least => next.min(self.begun + self.idle_timeout + Duration::from_secs(received / least)),
        }
    }

    /// The error for a client that missed the deadline.
    fn too_slow(&self) -> ApiError {
        let silent = self.last.elapsed() >= self.idle_timeout;
        let text = if silent {
            format!("No byte of the request body came for {} s.", self.idle_timeout.as_secs_f64())
        } else {
            format!("The request body came at less than {} bytes a second.", self.least)
        };
        ApiError::new(ErrorKind::BodyTimeout, text)
    }
}

/// The error for a client whose connection ends for a newcomer.
fn given_up() -> ApiError {
    let text = "The gateway has as many connections as it may, and the body of this request came more slowly than \
                others. Send it again.";
    ApiError::new(ErrorKind::BodyTimeout, text)
}

/// A body so far: the first piece without a copy, or a buffer from the second piece on.
#[derive(Debug, Default)]
pub(in crate::proxy) struct GatheredBody {
    /// Announced length of the body, in bytes. 0 if the sender announced none.
    expected: usize,
    whole: Bytes,
    parts: BytesMut,
}

impl GatheredBody {
    pub(in crate::proxy) fn new(expected: Option<usize>) -> Self {
        Self { expected: expected.unwrap_or(0), ..Self::default() }
    }

    pub(in crate::proxy) fn len(&self) -> usize {
        self.whole.len() + self.parts.len()
    }

    pub(in crate::proxy) fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if self.len() == 0 {
            self.whole = data;
            return;
        }
        if self.parts.is_empty() {
            let believed = self.expected.min(MAX_PREALLOCATED_BYTES);
            self.parts.reserve(believed.max(self.whole.len() + data.len()));
            self.parts.extend_from_slice(&std::mem::take(&mut self.whole));
        }
        self.parts.extend_from_slice(&data);
    }

    pub(in crate::proxy) fn finish(self) -> Bytes {
        if self.parts.is_empty() { self.whole } else { self.parts.freeze() }
    }
}

/// Reads the whole body into `held` and reserves its bytes. The body must keep the least rate, with at
/// most `idle_timeout` between two pieces, and ends when `progress` says so. A long body that arrives in one
/// piece is not copied.
///
/// # Errors
/// See [`BodyError`].
pub async fn read(
    mut body: Incoming,
    limits: &RequestLimits,
    idle_timeout: Duration,
    mut held: RequestBody,
    progress: &BodyProgress,
) -> Result<RequestBody, BodyError> {
    let declared = body.size_hint().exact();
    if declared.is_some_and(|declared| declared > limits.max_body_bytes) {
        return Err(ApiError::body_too_large(limits.max_body_bytes).into());
    }
    let mut gathered = GatheredBody::new(declared.and_then(|bytes| usize::try_from(bytes).ok()));
    let begun = Instant::now();
    let mut deadline = BodyDeadline { begun, last: begun, idle_timeout, least: limits.min_body_rate };
    let arriving = progress.begin(begun);
    // The listener times the bytes of an HTTP/1 connection, but an HTTP/2 stream may stall on a
    // connection that is active.
    loop {
        let next = timeout_at(deadline.deadline(gathered.len() as u64), body.frame());
        let next = tokio::select! {
            biased;
            next = next => next.map_err(|_| deadline.too_slow())?,
            () = arriving.given_up() => return Err(given_up().into()),
        };
        let Some(frame) = next else { break };
        let Ok(data) = frame.map_err(|_| BodyError::BrokeOff)?.into_data() else {
            continue;
        };
        deadline.last = Instant::now();
        arriving.received(data.len() as u64);
        if (gathered.len() + data.len()) as u64 > limits.max_body_bytes {
            return Err(ApiError::body_too_large(limits.max_body_bytes).into());
        }
        held.add(data.len() as u64, limits)?;
        gathered.push(data);
    }
    arriving.complete();
    let bytes = gathered.finish();
    held.bytes = if bytes.len() <= MAX_COPIED_BYTES { Bytes::copy_from_slice(&bytes) } else { bytes };
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::fixtures::usual;

    const MIB: u64 = 1 << 20;

    fn limits() -> RequestLimits {
        usual().edge.requests.clone()
    }

    /// Fills the memory with bodies of the tenant, beside the bodies that are held already.
    fn fill(budget: &Arc<BodyMemory>, tenant: u32) -> Vec<RequestBody> {
        let mut all = Vec::new();
        loop {
            let mut held = budget.hold(TenantId::new(tenant));
            match held.add(32 * MIB, &limits()) {
                Ok(()) => all.push(held),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::QueueFull);
                    return all;
                }
            }
        }
    }

    #[test]
    fn no_tenant_takes_what_another_needs() {
        let budget = Arc::new(BodyMemory::default());
        let first = fill(&budget, 1);
        assert_eq!(first.len(), 16, "half of all");
        let second = fill(&budget, 2);
        assert_eq!(second.len(), 8, "half of what the first leaves");
        let third = fill(&budget, 3);
        assert_eq!(third.len(), 4);
        drop((first, second));
        assert_eq!(budget.held(), 4 * 32 * MIB);
        assert_eq!(fill(&budget, 3).len(), 12, "what it holds counts");
        drop(third);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn one_body_always_fits_a_tenant_s_share() {
        let limits = RequestLimits { max_total_body_bytes: 32 * MIB, ..limits() };
        let budget = Arc::new(BodyMemory::default());
        assert!(budget.hold(TenantId::new(1)).add(32 * MIB, &limits).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_rate_is_one_of_the_whole_body() {
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        let mut deadline = BodyDeadline { begun, last: begun, idle_timeout: seconds(30), least: 1024 };
        assert_eq!(deadline.deadline(0), begun + seconds(30));
        deadline.last = begun + seconds(25);
        assert_eq!(deadline.deadline(10), begun + seconds(30), "a drip does not move it");
        assert_eq!(deadline.deadline(10 * 1024), begun + seconds(40), "what came buys time");
        assert_eq!(deadline.deadline(MIB), begun + seconds(55), "but not to be silent");
        assert_eq!(BodyDeadline { least: 0, ..deadline }.deadline(0), begun + seconds(55));
        tokio::time::advance(seconds(30)).await;
        assert!(deadline.too_slow().message().contains("1024 bytes a second"));
        tokio::time::advance(seconds(25)).await;
        assert!(deadline.too_slow().message().contains("No byte"));
    }

    fn gather(pieces: &[Bytes]) -> Bytes {
        let mut gathered = GatheredBody::new(None);
        for piece in pieces {
            gathered.push(piece.clone());
        }
        gathered.finish()
    }

    #[test]
    fn one_piece_is_not_copied() {
        let piece = Bytes::from(vec![7; 100]);
        let whole = gather(&[Bytes::new(), piece.clone(), Bytes::new()]);
        assert_eq!((whole.as_ptr(), whole.len()), (piece.as_ptr(), piece.len()));
    }

    #[test]
    fn pieces_stand_in_order() {
        let pieces = [&b""[..], b"one ", b"", b"two ", b"three"].map(Bytes::from_static);
        assert_eq!(gather(&pieces), "one two three");
        assert_eq!(gather(&[]), "");
    }
}
