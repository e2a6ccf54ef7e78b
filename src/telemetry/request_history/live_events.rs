//! Live events: what happens to requests and to the fleet at this moment, for operators who watch.
//! An event holds names and numbers only: no prompts, no answers, no keys. Nothing is built while
//! nobody watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use crate::core::model::event::{DispatchGrant, RejectReason};
use crate::core::model::ids::{ClassId, ModelId, TenantId};
use crate::telemetry::request_history::trail::{AttemptEnd, RequestEnd};

/// Events that are kept for a reader that is behind. A reader that is farther behind is cut off.
const MAX_BEHIND: usize = 2048;

/// Most readers at once.
pub const MAX_READERS: usize = 8;

/// One event.
#[derive(Debug, Clone)]
pub struct LiveEvent {
    pub at: SystemTime,
    pub what: LiveEventKind,
}

/// Subject of an event.
#[derive(Debug, Clone)]
pub enum LiveEventKind {
    /// A step of a request.
    Request(RequestFacts, Box<RequestStep>),
    /// A change of the fleet, the overrides or the configuration.
    Change {
        /// Short stable name.
        change: &'static str,
        /// Name of the pool, replica or tenant.
        subject: Arc<str>,
        /// Details for people.
        detail: Arc<str>,
    },
}

/// The request of an event.
#[derive(Debug, Clone)]
pub struct RequestFacts {
    pub request_id: HeaderValue,
    pub tenant: TenantId,
    /// Class that the request asked for.
    pub class: ClassId,
    /// Model that serves the request.
    pub model: ModelId,
}

/// Step of a request. Times count from the arrival of the request.
#[derive(Debug, Clone, Copy)]
pub enum RequestStep {
    /// The request passed authentication and parsing.
    Arrived,
    /// The scheduler sent the request to a replica.
    Dispatched(DispatchGrant),
    /// The first token of a stream.
    FirstToken(Duration),
    /// The request is back in the queue.
    Returned(Duration, AttemptEnd),
    /// Another model is to serve the request.
    FellBack(RejectReason),
    /// The request has ended, at the replica of this grant.
    Ended(RequestEnd, Option<DispatchGrant>),
}

/// The feed of all events. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LiveEvents(Arc<EventFeed>);

#[derive(Debug)]
struct EventFeed {
    sender: broadcast::Sender<LiveEvent>,
    readers: AtomicUsize,
}

impl Default for EventFeed {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(MAX_BEHIND), readers: AtomicUsize::new(0) }
    }
}

impl LiveEvents {
    /// Publishes an event, if anybody reads. Never waits for a reader.
    pub(in crate::telemetry) fn publish(&self, event: impl FnOnce() -> LiveEvent) {
        if self.0.readers.load(Ordering::Relaxed) > 0 {
            let _nobody = self.0.sender.send(event());
        }
    }

    /// A reader of all events from now on; `None` when [`MAX_READERS`] read already.
    pub fn read(&self) -> Option<EventReader> {
        let one_more = |readers: usize| (readers < MAX_READERS).then_some(readers + 1);
        self.0.readers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(EventReader { receiver: self.0.sender.subscribe(), feed: Arc::clone(&self.0) })
    }
}

/// Reader of events.
#[derive(Debug)]
pub struct EventReader {
    receiver: broadcast::Receiver<LiveEvent>,
    feed: Arc<EventFeed>,
}

/// A reader was too slow: this number of events is lost to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventsMissed(pub u64);

impl EventReader {
    /// Waits for events and takes up to `most` of them. Dropping the future loses no event.
    ///
    /// # Errors
    /// The reader was too slow.
    pub async fn next(&mut self, most: usize) -> Result<Vec<LiveEvent>, EventsMissed> {
        let first = match self.receiver.recv().await {
            Ok(first) => first,
            Err(RecvError::Lagged(missed)) => return Err(EventsMissed(missed)),
            // The reader itself keeps the feed alive.
            Err(RecvError::Closed) => std::future::pending().await,
        };
        let mut events = vec![first];
        while events.len() < most {
            match self.receiver.try_recv() {
                Ok(event) => events.push(event),
                // The next call returns the number of lost events.
                Err(TryRecvError::Lagged(missed)) => return Err(EventsMissed(missed)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        Ok(events)
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        self.feed.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: usize) -> LiveEvent {
        let subject = number.to_string().into();
        LiveEvent {
            at: SystemTime::UNIX_EPOCH,
            what: LiveEventKind::Change { change: "test", subject, detail: "".into() },
        }
    }

    #[tokio::test]
    async fn a_reader_gets_what_comes_after_it_in_order() {
        let feed = LiveEvents::default();
        feed.publish(|| panic!("nobody reads, so nothing is built"));
        let mut reader = feed.read().unwrap();
        (0..5).for_each(|number| feed.publish(|| change(number)));
        let subjects = |events: Vec<LiveEvent>| -> Vec<String> {
            let subject = |event: LiveEvent| match event.what {
                LiveEventKind::Change { subject, .. } => subject.to_string(),
                LiveEventKind::Request(..) => panic!("not of a request"),
            };
            events.into_iter().map(subject).collect()
        };
        assert_eq!(subjects(reader.next(3).await.unwrap()), ["0", "1", "2"]);
        assert_eq!(subjects(reader.next(3).await.unwrap()), ["3", "4"]);
    }

    #[tokio::test]
    async fn a_slow_reader_learns_what_it_lost_and_readers_are_few() {
        let feed = LiveEvents::default();
        let mut slow = feed.read().unwrap();
        (0..MAX_BEHIND + 7).for_each(|number| feed.publish(|| change(number)));
        assert_eq!(slow.next(1).await.unwrap_err(), EventsMissed(7));
        let others: Vec<_> = (1..MAX_READERS).map(|_| feed.read().unwrap()).collect();
        assert!(feed.read().is_none());
        drop(others);
        assert!(feed.read().is_some());
    }
}
