//! Superseding: client retries that arrive while the request that they repeat still runs.
//!
//! An SDK that times out sends its request again. If the first request's connection is not closed
//! at once (a proxy keeps it, or the close is on its way), engines would work for both requests.
//! Requests that carry a retry count (see [`headers::retry_count`]) are therefore registered here
//! while they live. A retry ends the oldest equal request with fewer retries and takes its place
//! in the queue. Equal means: the same tenant, key, call and body.
//!
//! A request without a retry count never supersedes another: two equal requests are two requests.
//! Equal requests of several clients are told apart as far as possible:
//!
//! * A client that was refused will retry, and its original is over. Such a retry ends no request.
//! * A request whose client has seen nothing is ended before a request that streams. A streaming
//!   request is ended only when the retry can mean no other request.
//! * The client of an ended request is told to retry. Such a retry ends no request with as many
//!   retries. A mistake therefore costs the client one more retry.
//!
//! [`headers::retry_count`]: crate::protocol::headers::retry_count

use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use http::HeaderValue;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::core::model::ids::{JobId, TenantId};
use crate::core::model::time::Tick;
use crate::protocol::api::Api;

/// Live requests that carry a retry count, grouped by content.
#[derive(Debug, Default)]
pub struct LiveRequests {
    /// Hash keys of this process, so that a client cannot aim at a collision.
    keys: RandomState,
    live: Mutex<HashMap<RequestFingerprint, EqualRequests>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RequestFingerprint {
    tenant: TenantId,
    api: Api,
    /// Hash of the API key's id and the body.
    hash: u64,
}

/// Equal live requests, the oldest first.
#[derive(Debug, Default)]
struct EqualRequests {
    entries: SmallVec<[LiveEntry; 1]>,
    /// Number of expected retries of requests that were refused.
    expected: u32,
}

impl EqualRequests {
    /// Removes and returns the request that a retry with this `count` repeats.
    fn take_original(&mut self, count: u32) -> Option<LiveEntry> {
        if count > 0 && self.expected > 0 {
            self.expected -= 1;
            return None;
        }
        let fewer = |entry: &&LiveEntry| entry.count < count;
        let unseen = self.entries.iter().position(|entry| fewer(&entry) && !entry.notice.is_streaming());
        let only = || match self.entries.iter().filter(fewer).count() {
            1 => self.entries.iter().position(|entry| fewer(&entry)),
            _ => None,
        };
        unseen.or_else(only).map(|at| self.entries.remove(at))
    }
}

#[derive(Debug)]
struct LiveEntry {
    job: JobId,
    count: u32,
    arrived: Tick,
    request_id: HeaderValue,
    notice: Arc<SupersededNotice>,
}

/// A request that carries a retry count.
#[derive(Debug, Clone, Copy)]
pub(in crate::proxy) struct RetriableRequest<'a> {
    pub(in crate::proxy) tenant: TenantId,
    pub(in crate::proxy) key_id: Option<&'a str>,
    pub(in crate::proxy) api: Api,
    pub(in crate::proxy) body: &'a [u8],
    /// Retry count of the client, 0 for the first request.
    pub(in crate::proxy) count: u32,
    pub(in crate::proxy) job: JobId,
    pub(in crate::proxy) arrived: Tick,
    pub(in crate::proxy) request_id: &'a HeaderValue,
}

/// The request that a retry superseded.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::proxy) struct SupersededRequest {
    pub(in crate::proxy) job: JobId,
    /// Arrival of the first request in the series of retries.
    pub(in crate::proxy) arrived: Tick,
    pub(in crate::proxy) request_id: HeaderValue,
}

/// Guard of a live request's entry. Dropping the guard removes the entry.
#[derive(Debug)]
pub(in crate::proxy) struct LiveRequestGuard {
    live_requests: Arc<LiveRequests>,
    key: RequestFingerprint,
    job: JobId,
    notice: Arc<SupersededNotice>,
    refused: bool,
}

/// Notice to a request that a retry has superseded it.
#[derive(Debug, Default)]
pub(in crate::proxy) struct SupersededNotice {
    by: OnceLock<HeaderValue>,
    streaming: AtomicBool,
    waker: AtomicWaker,
}

impl LiveRequests {
    /// Registers a request. If the request repeats a live one, the live one gets its notice and is
    /// returned.
    pub(in crate::proxy) fn enter(
        self: &Arc<Self>,
        this: RetriableRequest<'_>,
    ) -> (LiveRequestGuard, Option<SupersededRequest>) {
        let key = RequestFingerprint { tenant: this.tenant, api: this.api, hash: self.hash(this) };
        let notice = Arc::<SupersededNotice>::default();
        let replaced = {
            let mut live = self.live.lock();
            let equals = live.entry(key).or_default();
            let replaced = equals.take_original(this.count);
            equals.entries.push(LiveEntry {
                job: this.job,
                count: this.count,
                arrived: replaced.as_ref().map_or(this.arrived, |entry| entry.arrived),
                request_id: this.request_id.clone(),
                notice: Arc::clone(&notice),
            });
            replaced
        };
        let original = replaced.map(|LiveEntry { job, arrived, request_id, notice, .. }| {
            notice.notify(this.request_id.clone());
            SupersededRequest { job, arrived, request_id }
        });
        (
            LiveRequestGuard { live_requests: Arc::clone(self), key, job: this.job, notice, refused: false },
            original,
        )
    }

    /// Whether the request is a retry of a live one.
    pub(in crate::proxy) fn repeats(&self, this: RetriableRequest<'_>) -> bool {
        if this.count == 0 {
            return false;
        }
        let key = RequestFingerprint { tenant: this.tenant, api: this.api, hash: self.hash(this) };
        let live = self.live.lock();
        live.get(&key).is_some_and(|equals| equals.entries.iter().any(|entry| entry.count < this.count))
    }

    fn hash(&self, this: RetriableRequest<'_>) -> u64 {
        let mut hasher = self.keys.build_hasher();
        let id = this.key_id.unwrap_or_default().as_bytes();
        hasher.write_usize(id.len());
        hasher.write(id);
        hasher.write(this.body);
        hasher.finish()
    }

    /// Number of live requests.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.live.lock().values().map(|equals| equals.entries.len()).sum()
    }
}

impl LiveRequestGuard {
    /// The notice on which this request learns that a retry has superseded it.
    pub(in crate::proxy) fn notice(&self) -> &Arc<SupersededNotice> {
        &self.notice
    }

    /// Marks the request as failed: its client may send it again.
    pub(in crate::proxy) fn refused(&mut self) {
        self.refused = true;
    }
}

impl Drop for LiveRequestGuard {
    fn drop(&mut self) {
        let mut live = self.live_requests.live.lock();
        if let Some(equals) = live.get_mut(&self.key) {
            equals.entries.retain(|entry| entry.job != self.job);
            equals.expected = equals.expected.saturating_add(u32::from(self.refused));
            if equals.entries.is_empty() {
                live.remove(&self.key);
            }
        }
    }
}

impl SupersededNotice {
    /// The request id of the retry that has superseded this request.
    pub(in crate::proxy) fn replaced_by(&self) -> Option<&HeaderValue> {
        self.by.get()
    }

    /// Marks the request as streaming: its client sees the answer from now on.
    pub(in crate::proxy) fn mark_streaming(&self) {
        self.streaming.store(true, Ordering::Relaxed);
    }

    fn is_streaming(&self) -> bool {
        self.streaming.load(Ordering::Relaxed)
    }

    /// Ready once a retry has superseded the request. Only the task that polled last is woken.
    pub(in crate::proxy) fn poll_replaced(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.by.get().is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until a retry supersedes the request.
    pub(in crate::proxy) async fn replaced(&self) {
        poll_fn(|cx| self.poll_replaced(cx)).await;
    }

    fn notify(&self, by: HeaderValue) {
        // An entry is removed from the list once, so the notice is set once.
        let _told = self.by.set(by);
        self.waker.wake();
    }
}

/// Waits until a retry supersedes the request.
pub(in crate::proxy) async fn replaced(notice: Option<Arc<SupersededNotice>>) {
    match notice {
        Some(notice) => notice.replaced().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn first(job: u64) -> RetriableRequest<'static> {
        const ID: HeaderValue = HeaderValue::from_static("r");
        static REQUEST_ID: HeaderValue = ID;
        RetriableRequest {
            tenant: TenantId::new(0),
            key_id: Some("key"),
            api: Api::Chat,
            body: b"{}",
            count: 0,
            job: JobId::new(job),
            arrived: Tick::ZERO + Duration::from_secs(job),
            request_id: &REQUEST_ID,
        }
    }

    fn retry(job: u64, count: u32) -> RetriableRequest<'static> {
        RetriableRequest { count, ..first(job) }
    }

    fn job(original: Option<SupersededRequest>) -> Option<u64> {
        original.map(|original| original.job.index() as u64)
    }

    #[test]
    fn a_retry_takes_the_place_of_the_try_it_repeats() {
        let retries = Arc::<LiveRequests>::default();
        let (guard, none) = retries.enter(first(1));
        assert_eq!(none, None);
        assert!(guard.notice.replaced_by().is_none());
        let id = HeaderValue::from_static("again");
        let (again, original) = retries.enter(RetriableRequest { request_id: &id, ..retry(2, 1) });
        assert_eq!(original.unwrap().arrived, first(1).arrived);
        assert_eq!(guard.notice.replaced_by(), Some(&id));
        // The second retry gets the arrival time of the first request, too.
        let (_third, original) = retries.enter(retry(3, 2));
        let original = original.unwrap();
        assert_eq!((original.job, original.arrived), (JobId::new(2), first(1).arrived));
        assert_eq!((original.request_id, retries.len()), (id, 1));
        drop((guard, again));
        assert_eq!(retries.len(), 1);
    }

    #[test]
    fn entries_live_as_long_as_their_requests() {
        let retries = Arc::<LiveRequests>::default();
        let (guard, _) = retries.enter(first(1));
        drop(guard);
        assert_eq!(retries.len(), 0);
        let (guard, original) = retries.enter(retry(2, 1));
        assert_eq!((original, retries.len()), (None, 1));
        drop(guard);
        assert!(retries.live.lock().is_empty());
    }

    #[test]
    fn two_retries_at_once_take_one_place_each() {
        let retries = Arc::<LiveRequests>::default();
        let (_a, _) = retries.enter(first(1));
        let (b, original) = retries.enter(retry(2, 1));
        assert_eq!(job(original), Some(1));
        // An equal retry count: this is the retry of another client's request, which has ended.
        let (_c, original) = retries.enter(retry(3, 1));
        assert_eq!(original, None);
        assert!(b.notice.replaced_by().is_none());
        let (_d, original) = retries.enter(retry(4, 2));
        assert_eq!((job(original), retries.len()), (Some(2), 2));
    }

    #[test]
    fn the_retry_of_a_refused_request_ends_nobody() {
        let retries = Arc::<LiveRequests>::default();
        let (lives, _) = retries.enter(first(1));
        let (mut refused, _) = retries.enter(first(2));
        refused.refused();
        drop(refused);
        let (_its, original) = retries.enter(retry(3, 1));
        assert_eq!(original, None);
        // The next retry belongs to the other client.
        let (_its, original) = retries.enter(retry(4, 1));
        assert_eq!(job(original), Some(1));
        assert!(lives.notice.replaced_by().is_some());
    }

    #[test]
    fn a_stream_is_ended_only_when_no_other_can_be_meant() {
        let retries = Arc::<LiveRequests>::default();
        let (a, _) = retries.enter(first(1));
        let (b, _) = retries.enter(first(2));
        a.notice.mark_streaming();
        let (c, original) = retries.enter(retry(3, 1));
        assert_eq!(job(original), Some(2));
        let (d, _) = retries.enter(first(4));
        d.notice.mark_streaming();
        let (e, original) = retries.enter(retry(5, 1));
        assert_eq!(original, None);
        drop((b, c, d, e));
        let (_f, original) = retries.enter(retry(6, 1));
        assert_eq!(job(original), Some(1));
    }

    #[test]
    fn what_is_not_equal_is_not_touched() {
        let retries = Arc::<LiveRequests>::default();
        let (_guard, _) = retries.enter(first(1));
        let others = [
            RetriableRequest { tenant: TenantId::new(1), ..retry(2, 1) },
            RetriableRequest { key_id: Some("other"), ..retry(3, 1) },
            RetriableRequest { key_id: None, ..retry(4, 1) },
            RetriableRequest { api: Api::Completions, ..retry(5, 1) },
            RetriableRequest { body: b"{ }", ..retry(6, 1) },
            first(7),
        ];
        let guards: Vec<_> = others.into_iter().map(|other| retries.enter(other)).collect();
        assert!(guards.iter().all(|(_, original)| original.is_none()));
        assert_eq!(retries.len(), 7);
    }

    #[tokio::test]
    async fn a_request_that_waits_for_the_notice_is_woken() {
        let retries = Arc::<LiveRequests>::default();
        let (guard, _) = retries.enter(first(1));
        let notice = Arc::clone(guard.notice());
        let waiting = tokio::spawn(async move { notice.replaced().await });
        tokio::task::yield_now().await;
        let _again = retries.enter(retry(2, 1));
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    }
}
