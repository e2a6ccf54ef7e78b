//! Request history: the trails of all requests that wait or run and of the last ones that ended,
//! for `explain` and `requests list`. A trail holds names and numbers only: no prompts, no answers,
//! no keys.

mod ended;
pub mod live_events;
mod trail;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;

pub use self::ended::MAX_STORIES;
pub use self::trail::{
    AttemptEnd, AttemptReturn, AttemptTrail, RequestEnd, RequestState, RequestTrail, TrailFallback,
};
use crate::core::model::event::RejectReason;
use crate::core::model::ids::{JobId, ModelId};
use crate::telemetry::request_history::ended::EndedRequests;
use crate::telemetry::request_history::live_events::{
    LiveEvent, LiveEventKind, LiveEvents, RequestFacts, RequestStep,
};
use crate::telemetry::summary::GuardrailCheck;
use crate::telemetry::wall;
use crate::tokens::CountSource;

/// Most other requests with the same request id that are named.
const MAX_NAMESAKES: usize = 10;
/// Requests that a walk through the history takes in one hold of its lock.
const PAGE: usize = 256;
/// Attempts of one request that are kept: the first half and the last half.
const MAX_TRIES: usize = 8;

fn event(trail: &RequestTrail, step: RequestStep) -> LiveEvent {
    let facts = RequestFacts {
        request_id: trail.request_id.clone(),
        tenant: trail.tenant,
        class: trail.class,
        model: trail.serving_model(),
    };
    LiveEvent { at: wall::now(), what: LiveEventKind::Request(facts, Box::new(step)) }
}

/// Recorder of a trail in progress. Clones record into the same trail.
#[derive(Debug, Clone)]
pub struct TrailRecorder(Arc<TrailCell>);

#[derive(Debug)]
struct TrailCell {
    request_id: HeaderValue,
    own_id: HeaderValue,
    trail: Mutex<RequestTrail>,
    /// Events with output that the client's stream has had so far.
    outputs: AtomicU64,
    events: LiveEvents,
}

impl TrailRecorder {
    /// Adds an attempt. Beyond eight attempts, one from the middle is dropped.
    pub fn sent(&self, attempt: AttemptTrail) {
        self.change(RequestStep::Dispatched(attempt.grant), |trail| {
            if trail.tries.len() == MAX_TRIES {
                trail.tries.remove(MAX_TRIES / 2);
                trail.forgotten_tries += 1;
            }
            trail.tries.push(attempt);
        });
    }

    /// Adds a check by the guardrails.
    pub fn guarded(&self, check: GuardrailCheck) {
        self.0.trail.lock().guardrails.push(check);
    }

    /// Replaces the number of prompt tokens.
    pub fn counted(&self, tokens: u64, source: CountSource) {
        let mut trail = self.0.trail.lock();
        (trail.prompt_tokens, trail.prompt_source) = (tokens, source);
    }

    /// Records the first token of the last attempt.
    pub fn first_token(&self, at: Duration) {
        self.change(RequestStep::FirstToken(at), |trail| {
            if let Some(last) = trail.tries.last_mut() {
                last.first_token = Some(at);
            }
        });
    }

    /// Records the number of output events so far.
    pub fn wrote(&self, outputs: u64) {
        self.0.outputs.fetch_max(outputs, Ordering::Relaxed);
    }

    /// Records that the request goes on as another model.
    pub fn fell_back(&self, to: ModelId, why: RejectReason) {
        self.change(RequestStep::FellBack(why), |trail| trail.fallback = Some(TrailFallback { to, why }));
    }

    /// Records that the last attempt ended and the request is back in the queue.
    pub fn back(&self, at: Duration, why: AttemptEnd) {
        self.change(RequestStep::Returned(at, why), |trail| {
            if let Some(last) = trail.tries.last_mut() {
                last.back = Some(AttemptReturn { at, why });
            }
        });
    }

    /// Looks at the trail. No other part of the process gets at the trail meanwhile.
    pub fn look<T>(&self, look: impl FnOnce(&RequestTrail) -> T) -> T {
        look(&self.0.trail.lock())
    }

    /// Number of output events that the client's stream has had: a lower bound of its tokens.
    pub fn outputs(&self) -> u64 {
        self.0.outputs.load(Ordering::Relaxed)
    }

    fn change(&self, step: RequestStep, change: impl FnOnce(&mut RequestTrail)) {
        let mut trail = self.0.trail.lock();
        change(&mut trail);
        self.0.events.publish(|| event(&trail, step));
    }
}

/// History of requests that passed authentication and parsing: all that wait or run, and the last
/// [`MAX_STORIES`] that ended. One tenant has at most half of these.
#[derive(Debug, Default)]
pub struct RequestHistory {
    requests: Mutex<RememberedRequests>,
    events: LiveEvents,
}

#[derive(Debug, Default)]
struct RememberedRequests {
    /// Requests that wait or run, in the order of their arrival.
    unended: BTreeMap<JobId, TrailRecorder>,
    ended: EndedRequests<TrailRecorder>,
}

impl RequestHistory {
    /// Adds a request and returns the recorder of its trail.
    pub fn begin(&self, trail: RequestTrail) -> TrailRecorder {
        self.events.publish(|| event(&trail, RequestStep::Arrived));
        let job = trail.job;
        let trail = TrailRecorder(Arc::new(TrailCell {
            request_id: trail.request_id.clone(),
            own_id: trail.own_id().clone(),
            trail: Mutex::new(trail),
            outputs: AtomicU64::new(0),
            events: self.events.clone(),
        }));
        self.requests.lock().unended.insert(job, trail.clone());
        trail
    }

    /// Records the end of a request.
    pub fn ended(&self, request: &TrailRecorder, end: RequestEnd) {
        let (job, tenant) = {
            let mut trail = request.0.trail.lock();
            trail.end = Some(end);
            let grant = trail.tries.last().map(|attempt| attempt.grant);
            self.events.publish(|| event(&trail, RequestStep::Ended(end, grant)));
            (trail.job, trail.tenant)
        };
        let mut requests = self.requests.lock();
        let Some(request) = requests.unended.remove(&job) else { return };
        requests.ended.push(tenant, request);
    }

    /// Requests that wait or run, in the order of their arrival.
    pub fn unended(&self) -> impl Iterator<Item = TrailRecorder> {
        let mut after = Bound::Unbounded;
        let page = move || {
            let requests = self.requests.lock();
            let page = requests.unended.range((after, Bound::Unbounded)).take(PAGE);
            let page: Vec<_> = page.map(|(job, request)| (*job, request.clone())).collect();
            after = Bound::Excluded(page.last()?.0);
            Some(page.into_iter().map(|(_, request)| request))
        };
        std::iter::from_fn(page).flatten()
    }

    /// Ended requests, the last one first.
    pub fn ended_requests(&self) -> impl Iterator<Item = TrailRecorder> {
        let mut before = u64::MAX;
        let page = move || {
            let page = self.requests.lock().ended.before(before, PAGE);
            before = page.last()?.0;
            Some(page.into_iter().map(|(_, request)| request))
        };
        std::iter::from_fn(page).flatten()
    }

    /// Finds the request with this id of the gateway's own, else the latest one whose client gave it
    /// this id, among those that have not ended first.
    pub fn find(&self, id: &str) -> Option<TrailRecorder> {
        let is_own = |request: &TrailRecorder| request.0.own_id.as_bytes() == id.as_bytes();
        let is_it = |request: &TrailRecorder| request.0.request_id.as_bytes() == id.as_bytes();
        let own = self.unended().chain(self.ended_requests()).find(is_own);
        own.or_else(|| self.unended().filter(is_it).last()).or_else(|| self.ended_requests().find(is_it))
    }

    /// The gateway's own ids of other requests with the same request id, at most
    /// `MAX_NAMESAKES`.
    pub fn same_request_id(&self, trail: &RequestTrail) -> Vec<HeaderValue> {
        let others = self.unended().chain(self.ended_requests()).filter(|request| {
            request.0.request_id == trail.request_id && request.0.own_id != *trail.own_id()
        });
        others.take(MAX_NAMESAKES).map(|request| request.0.own_id.clone()).collect()
    }

    /// Events of requests as they happen, and of the fleet.
    pub const fn events(&self) -> &LiveEvents {
        &self.events
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use smallvec::SmallVec;

    use super::*;
    use crate::core::model::event::{DispatchGrant, EngineFault};
    use crate::core::model::ids::{ClassId, ReplicaId, TenantId};
    use crate::telemetry::fixtures;
    use crate::telemetry::summary::RequestOutcome;

    fn trail(id: &str, job: u64) -> RequestTrail {
        RequestTrail {
            request_id: HeaderValue::try_from(id).unwrap(),
            gateway_id: Some(HeaderValue::try_from(format!("req_{job}")).unwrap()),
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

    fn end() -> RequestEnd {
        RequestEnd {
            outcome: RequestOutcome::Success,
            reason: None,
            status: 200,
            total: Duration::from_secs(3),
            output_tokens: Some(5),
        }
    }

    fn jobs(requests: impl Iterator<Item = TrailRecorder>) -> Vec<usize> {
        requests.map(|request| request.look(|trail| trail.job.index())).collect()
    }

    #[test]
    fn the_latest_of_an_id_is_found_and_the_oldest_ended_ones_are_forgotten() {
        let history = RequestHistory::default();
        let first = history.begin(trail("same", 1));
        let second = history.begin(trail("same", 2));
        let job = |id: &str| history.find(id).map(|found| found.look(|trail| trail.job));
        assert_eq!(job("same"), Some(JobId::new(2)));
        history.ended(&second, end());
        assert_eq!(job("same"), Some(JobId::new(1)), "it has not ended");
        history.ended(&first, end());
        assert!(job("sam").is_none() && job("same").is_some());
        for number in 0..MAX_STORIES {
            let request = history.begin(trail(&format!("r-{number}"), 10 + number as u64));
            history.ended(&request, end());
        }
        assert!(job("same").is_none() && job("r-0").is_some());
        assert_eq!(history.requests.lock().ended.len(), MAX_STORIES);
    }

    #[test]
    fn nobody_hides_a_request_behind_its_id() {
        let history = RequestHistory::default();
        let own = |id: &'static str| Some(HeaderValue::from_static(id));
        let job = |id: &str| history.find(id).map(|found| found.look(|trail| trail.job));
        history.begin(RequestTrail { gateway_id: None, ..trail("req_mine", 1) });
        history.begin(RequestTrail { gateway_id: own("req_other"), ..trail("req_mine", 2) });
        assert_eq!(job("req_mine"), Some(JobId::new(1)), "the gateway's own id goes first");
        assert_eq!(job("req_other"), Some(JobId::new(2)));
        history.begin(RequestTrail { gateway_id: own("req_a"), ..trail("both", 3) });
        history.begin(RequestTrail { gateway_id: own("req_b"), ..trail("both", 4) });
        let latest = history.find("both").unwrap().look(RequestTrail::clone);
        assert_eq!(latest.job, JobId::new(4));
        assert_eq!(history.same_request_id(&latest), ["req_a"]);
    }

    #[test]
    fn one_tenant_takes_at_most_half_from_others() {
        let history = RequestHistory::default();
        let mut job = 0;
        let mut ends = |id: String, tenant: u32| {
            job += 1;
            let tenant = TenantId::new(tenant);
            history.ended(&history.begin(RequestTrail { tenant, ..trail(&id, job) }), end());
        };
        (0..MAX_STORIES / 2).for_each(|number| ends(format!("good-{number}"), 0));
        (0..3 * MAX_STORIES).for_each(|number| ends(format!("evil-{number}"), 1));
        assert!(history.find("good-0").is_some());
        assert_eq!(history.requests.lock().ended.len(), MAX_STORIES);
        (0..MAX_STORIES).for_each(|number| ends(format!("more-{number}"), 0));
        assert_eq!(history.requests.lock().ended.len(), MAX_STORIES);
    }

    #[test]
    fn walks_see_every_request_once_and_in_order() {
        let history = RequestHistory::default();
        let begun: Vec<_> = (0..1000).map(|job| history.begin(trail("r", job))).collect();
        assert_eq!(jobs(history.unended()), (0..1000).collect::<Vec<_>>());
        let mut walk = history.unended();
        assert_eq!(jobs(walk.by_ref().take(PAGE)).len(), PAGE);
        begun.iter().take(700).for_each(|request| history.ended(request, end()));
        assert_eq!(jobs(walk), (700..1000).collect::<Vec<_>>(), "those that ended are left out");
        assert_eq!(jobs(history.ended_requests()), (0..700).rev().collect::<Vec<_>>());
        let mut walk = history.ended_requests();
        assert_eq!(jobs(walk.by_ref().take(PAGE)).last(), Some(&444));
        begun.iter().skip(700).for_each(|request| history.ended(request, end()));
        assert_eq!(jobs(walk), (0..444).rev().collect::<Vec<_>>(), "later ones move nothing");
    }

    #[test]
    fn a_state_follows_the_attempts() {
        let history = RequestHistory::default();
        let request = history.begin(trail("r", 1));
        let state = || request.look(|trail| (trail.state(), trail.state_since().as_secs()));
        assert_eq!(state(), (RequestState::Waiting, 0));
        request.sent(AttemptTrail { at: Duration::from_secs(1), ..attempt(3) });
        assert_eq!(state(), (RequestState::Running, 1));
        request.back(Duration::from_secs(2), AttemptEnd::Failed(EngineFault::Reset));
        assert_eq!(state(), (RequestState::Waiting, 2));
        request.wrote(8);
        request.wrote(3);
        assert_eq!(request.outputs(), 8);
        history.ended(&request, end());
        assert_eq!(state(), (RequestState::Finished, 3));
    }

    #[test]
    fn a_story_goes_on_after_it_was_found() {
        let history = RequestHistory::default();
        let trail = history.begin(trail("r", 1));
        trail.sent(attempt(3));
        trail.back(Duration::from_secs(1), AttemptEnd::Failed(EngineFault::Reset));
        trail.sent(attempt(4));
        trail.first_token(Duration::from_secs(2));
        let found = history.find("r").unwrap().look(RequestTrail::clone);
        assert_eq!(found.tries[0].back.map(|back| back.why.name()), Some("reset"));
        assert_eq!((found.tries[1].first_token, found.end.is_none()), (Some(Duration::from_secs(2)), true));
    }

    #[test]
    fn many_tries_keep_the_first_and_the_last() {
        let history = RequestHistory::default();
        let trail = history.begin(trail("r", 1));
        (0..100).for_each(|replica| trail.sent(attempt(replica)));
        let found = history.find("r").unwrap().look(RequestTrail::clone);
        let replicas: Vec<usize> = found.tries.iter().map(|attempt| attempt.grant.replica.index()).collect();
        assert_eq!(replicas, [0, 1, 2, 3, 96, 97, 98, 99]);
        assert_eq!(found.forgotten_tries, 92);
    }

    #[test]
    fn the_memory_is_bounded() {
        let most = size_of::<TrailCell>() + MAX_TRIES * size_of::<AttemptTrail>();
        assert!(most * MAX_STORIES < 32 << 20, "{most} bytes a story");
    }
}
