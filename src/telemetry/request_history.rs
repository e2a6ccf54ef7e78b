//! Request history: the trails of recent requests, for `explain`. Names and numbers only: no
//! prompts, no answers, no keys.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::core::model::event::{DispatchReason, EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::{ClassId, JobId, ModelId, PoolId, ReplicaId, TenantId};
use crate::telemetry::event::RequestOutcome;
use crate::tokens::CountSource;

/// Requests that are remembered; the oldest is forgotten first.
pub const MAX_STORIES: usize = 10_000;
/// Tries of one request that are remembered: the first ones and the last ones.
const MAX_TRIES: usize = 8;

/// One request.
#[derive(Debug, Clone)]
pub struct RequestTrail {
    /// The id that the client gave or got.
    pub request_id: HeaderValue,
    /// The scheduler's name for it.
    pub job: JobId,
    /// When it came.
    pub came: SystemTime,
    /// Who it is for.
    pub tenant: TenantId,
    /// The class that it asked for.
    pub class: ClassId,
    /// The model.
    pub model: ModelId,
    /// The model that it goes on as, and why its own could not serve it.
    pub fallback: Option<(ModelId, RejectReason)>,
    /// Which call it is.
    pub api: &'static str,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// Tokens of its prompt, before any engine counted them.
    pub prompt_tokens: u64,
    /// How those are known.
    pub prompt_source: CountSource,
    /// Where it was sent, in order.
    pub tries: SmallVec<[AttemptTrail; 1]>,
    /// Tries between the first and the last ones that are not remembered.
    pub forgotten_tries: u32,
    /// How it ended; absent while it waits or runs.
    pub end: Option<RequestEnd>,
}

/// One try of a request. Times count from when the request came.
#[derive(Debug, Clone, Copy)]
pub struct AttemptTrail {
    /// When it was sent.
    pub at: Duration,
    /// The pool; absent when a reload had just removed it.
    pub pool: Option<PoolId>,
    /// The replica.
    pub replica: ReplicaId,
    /// Why there and why then, with the ledger of that moment.
    pub why: DispatchReason,
    /// When the first token came.
    pub first_token: Option<Duration>,
    /// When and why the request went back to the queue, if it did.
    pub back: Option<(Duration, AttemptEnd)>,
}

/// Why a try came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The engine failed it.
    Failed(EngineFault),
    /// The scheduler took it away.
    Recalled(PreemptReason),
}

impl AttemptEnd {
    /// A short stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed(fault) => fault.name(),
            Self::Recalled(why) => why.name(),
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub struct RequestEnd {
    /// Whether it succeeded.
    pub outcome: RequestOutcome,
    /// Why it did not.
    pub reason: Option<&'static str>,
    /// The status that the client got.
    pub status: u16,
    /// From when it came to its end.
    pub total: Duration,
}

/// A trail that goes on; clones tell the same one.
#[derive(Debug, Clone)]
pub struct TrailRecorder(Arc<Mutex<RequestTrail>>);

impl TrailRecorder {
    /// It is sent to a replica.
    pub fn sent(&self, attempt: AttemptTrail) {
        let mut trail = self.0.lock();
        if trail.tries.len() == MAX_TRIES {
            trail.tries.remove(MAX_TRIES / 2);
            trail.forgotten_tries += 1;
        }
        trail.tries.push(attempt);
    }

    /// Its prompt was counted.
    pub fn counted(&self, tokens: u64, source: CountSource) {
        let mut trail = self.0.lock();
        (trail.prompt_tokens, trail.prompt_source) = (tokens, source);
    }

    /// Its first token is there.
    pub fn first_token(&self, at: Duration) {
        if let Some(last) = self.0.lock().tries.last_mut() {
            last.first_token = Some(at);
        }
    }

    /// It goes on as another model.
    pub fn fell_back(&self, to: ModelId, why: RejectReason) {
        self.0.lock().fallback = Some((to, why));
    }

    /// It is back in the queue.
    pub fn back(&self, at: Duration, why: AttemptEnd) {
        if let Some(last) = self.0.lock().tries.last_mut() {
            last.back = Some((at, why));
        }
    }

    /// It is over.
    pub fn ended(&self, end: RequestEnd) {
        self.0.lock().end = Some(end);
    }
}

/// The history of the last [`MAX_STORIES`] requests that got past the door.
#[derive(Debug, Default)]
pub struct RequestHistory {
    ring: Mutex<VecDeque<(HeaderValue, TrailRecorder)>>,
}

impl RequestHistory {
    /// A request has come.
    pub fn begin(&self, trail: RequestTrail) -> TrailRecorder {
        let id = trail.request_id.clone();
        let trail = TrailRecorder(Arc::new(Mutex::new(trail)));
        let mut ring = self.ring.lock();
        if ring.len() == MAX_STORIES {
            ring.pop_front();
        }
        ring.push_back((id, trail.clone()));
        trail
    }

    /// The latest request of that id.
    pub fn find(&self, request_id: &str) -> Option<RequestTrail> {
        let ring = self.ring.lock();
        let (_, trail) = ring.iter().rev().find(|(id, _)| id.as_bytes() == request_id.as_bytes())?;
        let trail = trail.clone();
        drop(ring);
        let trail = trail.0.lock();
        Some(trail.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::fixtures;

    fn trail(id: &str, job: u64) -> RequestTrail {
        RequestTrail {
            request_id: HeaderValue::try_from(id).unwrap(),
            job: JobId::new(job),
            came: SystemTime::UNIX_EPOCH,
            tenant: TenantId::new(0),
            class: ClassId::new(0),
            model: ModelId::new(0),
            fallback: None,
            api: "openai",
            stream: true,
            prompt_tokens: 7,
            prompt_source: CountSource::Estimate,
            tries: SmallVec::new(),
            forgotten_tries: 0,
            end: None,
        }
    }

    fn attempt(replica: u32) -> AttemptTrail {
        let why = fixtures::success().placed.unwrap();
        let replica = ReplicaId::new(replica);
        AttemptTrail { at: Duration::ZERO, pool: None, replica, why, first_token: None, back: None }
    }

    #[test]
    fn the_latest_of_an_id_is_found_and_the_oldest_are_forgotten() {
        let history = RequestHistory::default();
        history.begin(trail("same", 1));
        history.begin(trail("same", 2));
        assert_eq!(history.find("same").unwrap().job, JobId::new(2));
        assert!(history.find("sam").is_none());
        for number in 0..MAX_STORIES {
            history.begin(trail(&format!("r-{number}"), 10));
        }
        assert!(history.find("same").is_none() && history.find("r-0").is_some());
        assert_eq!(history.ring.lock().len(), MAX_STORIES);
    }

    #[test]
    fn a_story_goes_on_after_it_was_found() {
        let history = RequestHistory::default();
        let trail = history.begin(trail("r", 1));
        trail.sent(attempt(3));
        trail.back(Duration::from_secs(1), AttemptEnd::Failed(EngineFault::Reset));
        trail.sent(attempt(4));
        trail.first_token(Duration::from_secs(2));
        let found = history.find("r").unwrap();
        assert_eq!(found.tries[0].back.map(|(_, why)| why.name()), Some("reset"));
        assert_eq!((found.tries[1].first_token, found.end.is_none()), (Some(Duration::from_secs(2)), true));
    }

    #[test]
    fn many_tries_keep_the_first_and_the_last() {
        let history = RequestHistory::default();
        let trail = history.begin(trail("r", 1));
        (0..100).for_each(|replica| trail.sent(attempt(replica)));
        let found = history.find("r").unwrap();
        let replicas: Vec<usize> = found.tries.iter().map(|attempt| attempt.replica.index()).collect();
        assert_eq!(replicas, [0, 1, 2, 3, 96, 97, 98, 99]);
        assert_eq!(found.forgotten_tries, 92);
    }

    #[test]
    fn the_memory_is_bounded() {
        let most = size_of::<RequestTrail>() + MAX_TRIES * size_of::<AttemptTrail>();
        assert!(most * MAX_STORIES < 32 << 20, "{most} bytes a story");
    }
}
