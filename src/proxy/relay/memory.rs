//! Relay memory: the bytes of answers that wait for their clients, limited for all answers together
//! and for the answers of one tenant.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::timeout;

use crate::config::settings::RequestLimits;
use crate::core::model::ids::TenantId;
use crate::protocol::error::ApiError;
use crate::protocol::error::catalogue::ErrorKind;

/// Unit of the counts, in bytes. Counts are rounded down to multiples of this unit, which is about
/// the memory of the request itself. A client that keeps up therefore costs no count at all.
const PAGE: u64 = 4096;
/// Longest time that a whole answer waits for free memory.
const PATIENCE: Duration = Duration::from_secs(5);
/// `Retry-After` for a client whose answer found no free memory.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Memory of answers that are held for clients.
#[derive(Debug, Default)]
pub struct AnswerMemory {
    held: AtomicU64,
    /// Bytes held by tenant. Tenants come from the configuration, so the map stays small.
    tenants: DashMap<TenantId, Arc<AtomicU64>>,
    freed: Arc<Notify>,
}

impl AnswerMemory {
    /// Bytes of all bodies that are held now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// An empty share for one answer of the tenant.
    pub(in crate::proxy) fn share(self: &Arc<Self>, tenant: TenantId, limits: &RequestLimits) -> AnswerShare {
        let of_tenant = self.tenants.get(&tenant).map(|count| Arc::clone(&count));
        let of_tenant = of_tenant.unwrap_or_else(|| Arc::clone(&self.tenants.entry(tenant).or_default()));
        let limit = limits.max_total_answer_bytes;
        let tenant_limit = (limit / 2).max(limits.max_answer_bytes);
        AnswerShare { memory: Arc::clone(self), of_tenant, limit, tenant_limit, bytes: 0 }
    }
}

/// One answer's share of the memory. Dropping the share returns its bytes.
pub(in crate::proxy) struct AnswerShare {
    memory: Arc<AnswerMemory>,
    of_tenant: Arc<AtomicU64>,
    limit: u64,
    tenant_limit: u64,
    bytes: u64,
}

impl AnswerShare {
    /// Whether there is room for more.
    pub(in crate::proxy) fn has_room(&self) -> bool {
        self.fits(1)
    }

    /// Sets the share to `bytes`, even above the limits, because the bytes are already in memory.
    pub(in crate::proxy) fn set(&mut self, bytes: usize) {
        self.count(bytes as u64 / PAGE * PAGE);
    }

    /// A future that is ready when another share returns memory after this call.
    pub(in crate::proxy) fn freed(&self) -> Pin<Box<OwnedNotified>> {
        let mut freed = Box::pin(Arc::clone(&self.memory.freed).notified_owned());
        freed.as_mut().enable();
        freed
    }

    /// Waits up to `PATIENCE` for room to grow the share to `bytes`, and takes the room.
    ///
    /// # Errors
    /// There was no room in time. The error is the refusal for the client.
    pub(in crate::proxy) async fn grow(&mut self, bytes: u64) -> Result<(), ApiError> {
        let bytes = bytes / PAGE * PAGE;
        if bytes <= self.bytes {
            return Ok(());
        }
        let more = bytes - self.bytes;
        let room = async {
            loop {
                let freed = self.freed();
                if self.fits(more) {
                    return;
                }
                freed.await;
            }
        };
        if timeout(PATIENCE, room).await.is_err() {
            let text = "The gateway holds as many answer bytes as it may; try again in a moment, or ask for a stream.";
            return Err(ApiError::new(ErrorKind::QueueFull, text).with_retry_after(RETRY_AFTER));
        }
        self.count(bytes);
        Ok(())
    }

    /// Binds the share to `bytes`: the share is returned when the last slice of the bytes is
    /// dropped.
    pub(in crate::proxy) fn bind(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 { bytes } else { Bytes::from_owner(SharedBytes { bytes, _share: self }) }
    }

    fn fits(&self, more: u64) -> bool {
        let fits =
            |count: &AtomicU64, limit: u64| count.load(Ordering::Relaxed).saturating_add(more) <= limit;
        fits(&self.memory.held, self.limit) && fits(&self.of_tenant, self.tenant_limit)
    }

    fn count(&mut self, bytes: u64) {
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            self.memory.held.fetch_add(more, Ordering::Relaxed);
            self.of_tenant.fetch_add(more, Ordering::Relaxed);
        } else if bytes < self.bytes {
            let less = self.bytes - bytes;
            self.memory.held.fetch_sub(less, Ordering::Relaxed);
            self.of_tenant.fetch_sub(less, Ordering::Relaxed);
            self.memory.freed.notify_waiters();
        }
        self.bytes = bytes;
    }
}

impl Drop for AnswerShare {
    fn drop(&mut self) {
        self.count(0);
    }
}

impl fmt::Debug for AnswerShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerShare").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Bytes and their share.
struct SharedBytes {
    bytes: Bytes,
    _share: AnswerShare,
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::config::load::fixtures::usual;

    const ONE: TenantId = TenantId::new(1);
    const OTHER: TenantId = TenantId::new(2);

    fn limits(total: u64, one: u64) -> RequestLimits {
        RequestLimits {
            max_answer_bytes: one,
            max_total_answer_bytes: total,
            ..usual().edge.requests.clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_waited_for_and_then_refused() {
        let memory = Arc::<AnswerMemory>::default();
        let limits = limits(8 * PAGE, 8 * PAGE);
        let mut first = memory.share(ONE, &limits);
        first.grow(6 * PAGE + 5).await.unwrap();
        assert_eq!(memory.held(), 6 * PAGE, "what is less than a page is free");
        let mut second = memory.share(OTHER, &limits);
        let error = second.grow(3 * PAGE).await.unwrap_err();
        assert_eq!((error.kind(), error.retry_after()), (ErrorKind::QueueFull, Some(RETRY_AFTER)));
        let waiting = async { second.grow(3 * PAGE).await };
        let freeing = async {
            sleep(PATIENCE / 2).await;
            first.set(0);
        };
        let (grown, ()) = tokio::join!(waiting, freeing);
        grown.unwrap();
        assert_eq!(memory.held(), 3 * PAGE);
        drop((first, second));
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_gets_half_and_always_one_answer() {
        let memory = Arc::<AnswerMemory>::default();
        let small = limits(8 * PAGE, PAGE);
        let mut greedy = memory.share(ONE, &small);
        assert!(greedy.grow(5 * PAGE).await.is_err());
        greedy.set(4 * 4096 + 1);
        assert!(!memory.share(ONE, &small).has_room() && memory.share(OTHER, &small).has_room());
        drop(greedy);
        let mut large = memory.share(ONE, &limits(8 * PAGE, 8 * PAGE));
        large.grow(8 * PAGE).await.unwrap();
    }

    #[test]
    fn the_last_slice_gives_the_share_back() {
        let memory = Arc::<AnswerMemory>::default();
        let mut share = memory.share(ONE, &limits(64 * PAGE, PAGE));
        share.set(10_000);
        let mut bytes = share.bind(Bytes::from(vec![7; 10_000]));
        let end = bytes.split_off(9_999);
        drop(bytes);
        assert_eq!((memory.held(), &end[..]), (2 * PAGE, &[7][..]));
        drop(end);
        assert_eq!(memory.held(), 0);
    }
}
