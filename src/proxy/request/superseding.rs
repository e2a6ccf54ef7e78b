//! Retries that come while the try they repeat is still here.
//!
//! An SDK whose patience ends sends its request again. Where the connection of
//! the first try is not closed at once (a proxy keeps it, the close is on its
//! way), both would be worked for. So requests that say which try they are
//! (see [`headers::retry_count`]) are known here while they live, and a retry
//! ends the oldest equal one of fewer retries and takes its place in the
//! queue. Equal means: the same tenant, key, call and body.
//!
//! Requests that do not say it are never touched: two equal requests are two
//! requests. Equal requests of several clients are told apart as far as it can
//! be done:
//!
//! * a client that was refused will try again, and its original is over: that
//!   retry ends nobody's request;
//! * a request whose client has seen nothing is ended before one that streams,
//!   and one that streams only when no other can be meant;
//! * whoever is ended is told to try again, and that retry ends nobody who has
//!   tried as often. So a mistake costs its client one more try.
//!
//! [`headers::retry_count`]: crate::protocol::headers::retry_count

use std::collections::HashMap;
use std::future::poll_fn;
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

/// The requests that live now, by what they ask for.
#[derive(Debug, Default)]
pub struct LiveRequests {
    /// Hashes with keys of this process: nobody can aim at a collision.
    keys: RandomState,
    live: Mutex<HashMap<RequestFingerprint, EqualRequests>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RequestFingerprint {
    tenant: TenantId,
    api: Api,
    /// Of the API key's id and the body.
    hash: u64,
}

/// Equal requests that live now, the oldest first.
#[derive(Debug, Default)]
struct EqualRequests {
    entries: SmallVec<[LiveEntry; 1]>,
    /// Retries to come of requests that were refused meanwhile.
    expected: u32,
}

impl EqualRequests {
    /// Takes out the request that a retry of this `count` repeats.
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

/// A request that says which try it is.
#[derive(Debug, Clone, Copy)]
pub(in crate::proxy) struct NumberedTry<'a> {
    pub(in crate::proxy) tenant: TenantId,
    pub(in crate::proxy) key_id: Option<&'a str>,
    pub(in crate::proxy) api: Api,
    pub(in crate::proxy) body: &'a [u8],
    /// 0 for the first try.
    pub(in crate::proxy) count: u32,
    pub(in crate::proxy) job: JobId,
    pub(in crate::proxy) arrived: Tick,
    pub(in crate::proxy) request_id: &'a HeaderValue,
}

/// The try whose place was taken.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::proxy) struct SupersededTry {
    pub(in crate::proxy) job: JobId,
    /// When the request first came.
    pub(in crate::proxy) arrived: Tick,
    pub(in crate::proxy) request_id: HeaderValue,
}

/// A request's entry, which lives as long as this value.
#[derive(Debug)]
pub(in crate::proxy) struct LiveRequestGuard {
    retries: Arc<LiveRequests>,
    key: RequestFingerprint,
    job: JobId,
    notice: Arc<SupersededNotice>,
    refused: bool,
}

/// Tells a request that a retry has taken its place.
#[derive(Debug, Default)]
pub(in crate::proxy) struct SupersededNotice {
    by: OnceLock<HeaderValue>,
    streaming: AtomicBool,
    waker: AtomicWaker,
}

impl LiveRequests {
    /// Enters a request. If it repeats one that is still here, that one is
    /// told that its place was taken.
    pub(in crate::proxy) fn enter(
        self: &Arc<Self>,
        this: NumberedTry<'_>,
    ) -> (LiveRequestGuard, Option<SupersededTry>) {
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
            notice.tell(this.request_id.clone());
            SupersededTry { job, arrived, request_id }
        });
        (LiveRequestGuard { retries: Arc::clone(self), key, job: this.job, notice, refused: false }, original)
    }

    fn hash(&self, this: NumberedTry<'_>) -> u64 {
        let mut hasher = self.keys.build_hasher();
        let id = this.key_id.unwrap_or_default().as_bytes();
        hasher.write_usize(id.len());
        hasher.write(id);
        hasher.write(this.body);
        hasher.finish()
    }

    /// Requests that are known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.live.lock().values().map(|equals| equals.entries.len()).sum()
    }
}

impl LiveRequestGuard {
    /// Where this request is told that its place was taken.
    pub(in crate::proxy) fn notice(&self) -> &Arc<SupersededNotice> {
        &self.notice
    }

    /// The client was told that its request failed, and may send it again.
    pub(in crate::proxy) fn refused(&mut self) {
        self.refused = true;
    }
}

impl Drop for LiveRequestGuard {
    fn drop(&mut self) {
        let mut live = self.retries.live.lock();
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
    /// The id of the retry that has taken the request's place.
    pub(in crate::proxy) fn replaced_by(&self) -> Option<&HeaderValue> {
        self.by.get()
    }

    /// The client sees the answer from now on.
    pub(in crate::proxy) fn streams(&self) {
        self.streaming.store(true, Ordering::Relaxed);
    }

    fn is_streaming(&self) -> bool {
        self.streaming.load(Ordering::Relaxed)
    }

    /// Ready once a retry has taken the request's place. Only the task that
    /// asked last is woken.
    pub(in crate::proxy) fn poll_replaced(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.by.get().is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until a retry takes the request's place.
    pub(in crate::proxy) async fn replaced(&self) {
        poll_fn(|cx| self.poll_replaced(cx)).await;
    }

    fn tell(&self, by: HeaderValue) {
        // Whoever is taken out of the list is told, and that happens once.
        let _told = self.by.set(by);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn first(job: u64) -> NumberedTry<'static> {
        const ID: HeaderValue = HeaderValue::from_static("r");
        static REQUEST_ID: HeaderValue = ID;
        NumberedTry {
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

    fn retry(job: u64, count: u32) -> NumberedTry<'static> {
        NumberedTry { count, ..first(job) }
    }

    fn job(original: Option<SupersededTry>) -> Option<u64> {
        original.map(|original| original.job.index() as u64)
    }

    #[test]
    fn a_retry_takes_the_place_of_the_try_it_repeats() {
        let retries = Arc::<LiveRequests>::default();
        let (seat, none) = retries.enter(first(1));
        assert_eq!(none, None);
        assert!(seat.notice.replaced_by().is_none());
        let id = HeaderValue::from_static("again");
        let (again, original) = retries.enter(NumberedTry { request_id: &id, ..retry(2, 1) });
        assert_eq!(original.unwrap().arrived, first(1).arrived);
        assert_eq!(seat.notice.replaced_by(), Some(&id));
        // The second retry gets the age of the first try, too.
        let (_third, original) = retries.enter(retry(3, 2));
        let original = original.unwrap();
        assert_eq!((original.job, original.arrived), (JobId::new(2), first(1).arrived));
        assert_eq!((original.request_id, retries.len()), (id, 1));
        drop((seat, again));
        assert_eq!(retries.len(), 1);
    }

    #[test]
    fn entries_live_as_long_as_their_requests() {
        let retries = Arc::<LiveRequests>::default();
        let (seat, _) = retries.enter(first(1));
        drop(seat);
        assert_eq!(retries.len(), 0);
        let (seat, original) = retries.enter(retry(2, 1));
        assert_eq!((original, retries.len()), (None, 1));
        drop(seat);
        assert!(retries.live.lock().is_empty());
    }

    #[test]
    fn two_retries_at_once_take_one_place_each() {
        let retries = Arc::<LiveRequests>::default();
        let (_a, _) = retries.enter(first(1));
        let (b, original) = retries.enter(retry(2, 1));
        assert_eq!(job(original), Some(1));
        // As many retries: of another client's request, which has ended.
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
        // The next one is the other client's.
        let (_its, original) = retries.enter(retry(4, 1));
        assert_eq!(job(original), Some(1));
        assert!(lives.notice.replaced_by().is_some());
    }

    #[test]
    fn a_stream_is_ended_only_when_no_other_can_be_meant() {
        let retries = Arc::<LiveRequests>::default();
        let (a, _) = retries.enter(first(1));
        let (b, _) = retries.enter(first(2));
        a.notice.streams();
        let (c, original) = retries.enter(retry(3, 1));
        assert_eq!(job(original), Some(2));
        let (d, _) = retries.enter(first(4));
        d.notice.streams();
        let (e, original) = retries.enter(retry(5, 1));
        assert_eq!(original, None);
        drop((b, c, d, e));
        let (_f, original) = retries.enter(retry(6, 1));
        assert_eq!(job(original), Some(1));
    }

    #[test]
    fn what_is_not_equal_is_not_touched() {
        let retries = Arc::<LiveRequests>::default();
        let (_seat, _) = retries.enter(first(1));
        let others = [
            NumberedTry { tenant: TenantId::new(1), ..retry(2, 1) },
            NumberedTry { key_id: Some("other"), ..retry(3, 1) },
            NumberedTry { key_id: None, ..retry(4, 1) },
            NumberedTry { api: Api::Completions, ..retry(5, 1) },
            NumberedTry { body: b"{ }", ..retry(6, 1) },
            first(7),
        ];
        let seats: Vec<_> = others.into_iter().map(|other| retries.enter(other)).collect();
        assert!(seats.iter().all(|(_, original)| original.is_none()));
        assert_eq!(retries.len(), 7);
    }

    #[tokio::test]
    async fn a_request_that_waits_for_the_notice_is_woken() {
        let retries = Arc::<LiveRequests>::default();
        let (seat, _) = retries.enter(first(1));
        let notice = Arc::clone(seat.notice());
        let waiting = tokio::spawn(async move { notice.replaced().await });
        tokio::task::yield_now().await;
        let _again = retries.enter(retry(2, 1));
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    }
}
