//! Request history: the trails of recent requests, for `explain`. A trail holds names and numbers
//! only: no prompts, no answers, no keys.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::core::model::event::{DispatchGrant, EngineFault, PreemptReason, RejectReason};
use crate::core::model::ids::{ClassId, JobId, ModelId, TenantId};
use crate::telemetry::summary::{GuardrailCheck, RequestOutcome};
use crate::tokens::CountSource;

/// Number of requests in the history; the oldest is dropped first.
pub const MAX_STORIES: usize = 10_000;
/// Most other requests with the same request id that are named.
const MAX_NAMESAKES: usize = 10;
/// Attempts of one request that are kept: the first half and the last half.
const MAX_TRIES: usize = 8;

/// Trail of one request: its facts, its attempts and its end.
#[derive(Debug, Clone)]
pub struct RequestTrail {
    /// Request id, from the client or given by the gateway.
    pub request_id: HeaderValue,
    /// The gateway's own id; absent = `request_id` is that one.
    pub gateway_id: Option<HeaderValue>,
    /// Id of the request in the scheduler.
    pub job: JobId,
    /// Arrival of the request.
    pub came: SystemTime,
    pub tenant: TenantId,
    /// Class that the request asked for.
    pub class: ClassId,
    pub model: ModelId,
    /// Fallback model, and why the requested model could not serve the request.
    pub fallback: Option<(ModelId, RejectReason)>,
    /// API of the call, as its path at the engine.
    pub api: &'static str,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// Prompt tokens, before any engine counted them.
    pub prompt_tokens: u64,
    /// Source of `prompt_tokens`.
    pub prompt_source: CountSource,
    /// Attempts in order: the first four and the last four of more than eight.
    pub tries: SmallVec<[AttemptTrail; 1]>,
    /// Number of attempts between the first and the last ones that are not kept.
    pub forgotten_tries: u32,
    /// Checks of the prompt and the answer by the operator's guardrails.
    pub guardrails: Vec<GuardrailCheck>,
    /// End of the request; absent while it waits or runs.
    pub end: Option<RequestEnd>,
}

/// One attempt of a request. Times count from the arrival of the request.
#[derive(Debug, Clone, Copy)]
pub struct AttemptTrail {
    /// Dispatch of the attempt.
    pub at: Duration,
    /// The replica, and the reason for it with the state of the ledger at that moment.
    pub grant: DispatchGrant,
    /// Arrival of the first token.
    pub first_token: Option<Duration>,
    /// Time and cause of the request's return to the queue; absent without a return.
    pub back: Option<(Duration, AttemptEnd)>,
}

/// Cause of an attempt's end without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The engine failed the attempt.
    Failed(EngineFault),
    /// The scheduler preempted the job.
    Recalled(PreemptReason),
}

impl AttemptEnd {
    /// Short stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed(fault) => fault.name(),
            Self::Recalled(why) => why.name(),
        }
    }
}

/// End of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestEnd {
    pub outcome: RequestOutcome,
    /// Code of the error or refusal; absent for a success.
    pub reason: Option<&'static str>,
    /// HTTP status that the client got.
    pub status: u16,
    /// Time from the arrival of the request to its end.
    pub total: Duration,
}

/// Recorder of a trail in progress. Clones record into the same trail.
#[derive(Debug, Clone)]
pub struct TrailRecorder(Arc<Mutex<RequestTrail>>);

impl TrailRecorder {
    /// Adds an attempt. Beyond eight attempts, one from the middle is dropped.
    pub fn sent(&self, attempt: AttemptTrail) {
        let mut trail = self.0.lock();
        if trail.tries.len() == MAX_TRIES {
            trail.tries.remove(MAX_TRIES / 2);
            trail.forgotten_tries += 1;
        }
        trail.tries.push(attempt);
    }

    /// Adds a check by the guardrails.
    pub fn guarded(&self, check: GuardrailCheck) {
        self.0.lock().guardrails.push(check);
    }

    /// Replaces the number of prompt tokens.
    pub fn counted(&self, tokens: u64, source: CountSource) {
        let mut trail = self.0.lock();
        (trail.prompt_tokens, trail.prompt_source) = (tokens, source);
    }

    /// Records the first token of the last attempt.
    pub fn first_token(&self, at: Duration) {
        if let Some(last) = self.0.lock().tries.last_mut() {
            last.first_token = Some(at);
        }
    }

    /// Records that the request goes on as another model.
    pub fn fell_back(&self, to: ModelId, why: RejectReason) {
        self.0.lock().fallback = Some((to, why));
    }

    /// Records that the last attempt ended and the request is back in the queue.
    pub fn back(&self, at: Duration, why: AttemptEnd) {
        if let Some(last) = self.0.lock().tries.last_mut() {
            last.back = Some((at, why));
        }
    }

    /// Records the end of the request.
    pub fn ended(&self, end: RequestEnd) {
        self.0.lock().end = Some(end);
    }
}

impl RequestTrail {
    /// The gateway's own id of the request, which no client can choose.
    #[must_use]
    pub fn own_id(&self) -> &HeaderValue {
        self.gateway_id.as_ref().unwrap_or(&self.request_id)
    }
}

/// History of the last [`MAX_STORIES`] requests that passed authentication and parsing. One tenant
/// cannot take more than half of it from others.
#[derive(Debug, Default)]
pub struct RequestHistory(Mutex<Stories>);

#[derive(Debug, Default)]
struct Stories {
    next: u64,
    by_number: BTreeMap<u64, Story>,
    /// Numbers of each tenant's stories, in order.
    of_tenant: HashMap<TenantId, VecDeque<u64>>,
}

#[derive(Debug)]
struct Story {
    request_id: HeaderValue,
    own_id: HeaderValue,
    tenant: TenantId,
    trail: TrailRecorder,
}

impl Stories {
    /// Makes room for a story of the tenant: by its own oldest one if it has half of all, else by the
    /// oldest of all.
    fn make_room(&mut self, tenant: TenantId) {
        if self.by_number.len() < MAX_STORIES {
            return;
        }
        let own = self.of_tenant.get(&tenant).filter(|own| own.len() >= MAX_STORIES / 2);
        let oldest = own.and_then(|own| own.front()).or(self.by_number.keys().next());
        let Some(story) = oldest.copied().and_then(|number| self.by_number.remove(&number)) else { return };
        if let Some(others) = self.of_tenant.get_mut(&story.tenant) {
            others.pop_front();
            if others.is_empty() {
                self.of_tenant.remove(&story.tenant);
            }
        }
    }
}

impl RequestHistory {
    /// Adds a request and returns the recorder of its trail.
    pub fn begin(&self, trail: RequestTrail) -> TrailRecorder {
        let (request_id, own_id, tenant) = (trail.request_id.clone(), trail.own_id().clone(), trail.tenant);
        let trail = TrailRecorder(Arc::new(Mutex::new(trail)));
        let story = Story { request_id, own_id, tenant, trail: trail.clone() };
        let mut stories = self.0.lock();
        stories.make_room(tenant);
        let number = stories.next;
        stories.next += 1;
        stories.by_number.insert(number, story);
        stories.of_tenant.entry(tenant).or_default().push_back(number);
        trail
    }

    /// Finds the request with this id of the gateway's own, else the latest one whose client gave it
    /// this id.
    pub fn find(&self, id: &str) -> Option<RequestTrail> {
        let stories = self.0.lock();
        let latest = || stories.by_number.values().rev();
        let own = latest().find(|story| story.own_id.as_bytes() == id.as_bytes());
        let story = own.or_else(|| latest().find(|story| story.request_id.as_bytes() == id.as_bytes()))?;
        let trail = story.trail.clone();
        drop(stories);
        let trail = trail.0.lock();
        Some(trail.clone())
    }

    /// The gateway's own ids of other requests with the same request id, the latest first, at most
    /// [`MAX_NAMESAKES`].
    pub fn namesakes(&self, trail: &RequestTrail) -> Vec<HeaderValue> {
        let stories = self.0.lock();
        let others = stories
            .by_number
            .values()
            .rev()
            .filter(|story| story.request_id == trail.request_id && story.own_id != *trail.own_id());
        others.take(MAX_NAMESAKES).map(|story| story.own_id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::ids::ReplicaId;
    use crate::telemetry::fixtures;

    fn trail(id: &str, job: u64) -> RequestTrail {
        RequestTrail {
            request_id: HeaderValue::try_from(id).unwrap(),
            gateway_id: None,
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
            guardrails: Vec::new(),
            end: None,
        }
    }

    fn attempt(replica: u32) -> AttemptTrail {
        let grant = fixtures::success().dispatch.grant.unwrap();
        let grant = DispatchGrant { replica: ReplicaId::new(replica), ..grant };
        AttemptTrail { at: Duration::ZERO, grant, first_token: None, back: None }
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
        assert_eq!(history.0.lock().by_number.len(), MAX_STORIES);
    }

    #[test]
    fn nobody_hides_a_request_behind_its_id() {
        let history = RequestHistory::default();
        let own = |id: &'static str| Some(HeaderValue::from_static(id));
        history.begin(trail("req_mine", 1));
        history.begin(RequestTrail { gateway_id: own("req_other"), ..trail("req_mine", 2) });
        assert_eq!(history.find("req_mine").unwrap().job, JobId::new(1), "the gateway's own id goes first");
        assert_eq!(history.find("req_other").unwrap().job, JobId::new(2));
        history.begin(RequestTrail { gateway_id: own("req_a"), ..trail("both", 3) });
        history.begin(RequestTrail { gateway_id: own("req_b"), ..trail("both", 4) });
        let latest = history.find("both").unwrap();
        assert_eq!(latest.job, JobId::new(4));
        assert_eq!(history.namesakes(&latest), ["req_a"]);
    }

    #[test]
    fn one_tenant_takes_at_most_half_from_others() {
        let history = RequestHistory::default();
        let evil = TenantId::new(1);
        for number in 0..MAX_STORIES / 2 {
            history.begin(trail(&format!("good-{number}"), 1));
        }
        for number in 0..3 * MAX_STORIES {
            history.begin(RequestTrail { tenant: evil, ..trail(&format!("evil-{number}"), 2) });
        }
        assert!(history.find("good-0").is_some());
        assert_eq!(history.0.lock().by_number.len(), MAX_STORIES);
        for number in 0..MAX_STORIES {
            history.begin(trail(&format!("more-{number}"), 3));
        }
        let stories = history.0.lock();
        let counts: usize = stories.of_tenant.values().map(VecDeque::len).sum();
        assert_eq!((stories.by_number.len(), counts), (MAX_STORIES, MAX_STORIES));
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
        let replicas: Vec<usize> = found.tries.iter().map(|attempt| attempt.grant.replica.index()).collect();
        assert_eq!(replicas, [0, 1, 2, 3, 96, 97, 98, 99]);
        assert_eq!(found.forgotten_tries, 92);
    }

    #[test]
    fn the_memory_is_bounded() {
        let most = size_of::<RequestTrail>() + MAX_TRIES * size_of::<AttemptTrail>();
        assert!(most * MAX_STORIES < 32 << 20, "{most} bytes a story");
    }
}
