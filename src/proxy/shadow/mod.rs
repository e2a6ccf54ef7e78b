//! Shadow requests: copies of requests, sent to another model to compare the two answers.
//!
//! The gateway makes a copy when the answer of the original has begun, so a copy cannot delay its
//! original. A copy is a job of its own, with a tenant and a class that take only spare capacity
//! (`core::scheduler::admit::check`). A copy starts at once or not at all, and gives way to
//! any other job. The gateway reads and discards the copy's answer. Only the operator sees the
//! outcome of a copy.

pub mod copies;
mod copy;
pub(super) mod pair;

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

use crate::config::settings::shadows::{ShadowRule, ShadowSettings};
use crate::core::model::ids::{ModelId, PoolId};
use crate::core::model::policy::Policy;
use crate::protocol::ids::request_id::AssignedIds;
use crate::proxy::Proxy;
use crate::proxy::body::RequestBody;
use crate::proxy::request::candidates::ModelCandidates;
use crate::proxy::request::{EntryState, InferenceRequest};
use crate::proxy::summary::RequestRecord;
use crate::telemetry::event::ShadowSkipped;

pub use self::copies::ShadowCopies;
use copy::ShadowCopy;
use pair::ShadowPair;

/// Suffix of a copy's request id.
const SUFFIX: &str = "-shadow";
/// Deadline of a copy after its arrival. The copy never waits in the queue.
const PATIENCE: Duration = Duration::from_secs(1);
/// Trace headers of the original, which a copy must not carry.
const TRACE: [HeaderName; 3] = [
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("baggage"),
];

/// Whether the request with this id is in the sampled share. All gateways decide alike, for each
/// request that carries the id.
fn is_sampled(request_id: &HeaderValue, share: f64) -> bool {
    let hash = blake3::hash(request_id.as_bytes());
    let [a, b, c, d, ..] = *hash.as_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) < share * f64::from(u32::MAX)
}

/// Whether the tenant and the class of the request allow all pools that may get a copy of it. A
/// copy runs under a tenant of its own, which allows every pool.
fn may_go_to(policy: &Policy, request: &InferenceRequest, to: ModelId) -> bool {
    let rules = || {
        let class = &policy.classes.get(request.class)?.placement;
        let tenant = &policy.tenants.get(request.tenant)?.placement;
        Some([class, tenant])
    };
    let Some((rules, model)) = rules().zip(policy.models.get(to)) else { return false };
    let allows = |id: PoolId| {
        policy.pools.get(id).is_some_and(|pool| rules.iter().all(|rule| rule.allows(id, &pool.traits)))
    };
    model.pools.iter().all(|pool| allows(*pool))
}

impl Proxy {
    /// Starts a copy of a request whose answer has begun, if a rule selects the request.
    pub(super) fn start_shadow_copy(
        self: &Arc<Self>,
        request: &InferenceRequest,
        record: &mut RequestRecord,
    ) {
        let settings = self.settings.load();
        let Some(shadows) = &settings.edge.shadows else { return };
        let model = request.model();
        let Some(rule) = shadows.rules.get(&model).filter(|_| model == request.candidates.asked) else {
            return;
        };
        if !is_sampled(&record.request_id, rule.share) {
            return;
        }
        let limit = settings.edge.requests.max_total_body_bytes;
        let allowed = may_go_to(&settings.policy, request, rule.to).then_some(()).ok_or("placement");
        let flight =
            allowed.and_then(|()| self.shadow_copies.take(model, rule.max_in_flight).ok_or("in_flight"));
        let all = flight.and_then(|flight| Ok((flight, request.body.try_duplicate(limit).ok_or("memory")?)));
        let (flight, body) = match all {
            _ if self.dispatcher.shutdown().is_draining() => return,
            Ok(all) => all,
            Err(reason) => return ShadowSkipped { model, to: rule.to, reason }.emit(&self.telemetry),
        };
        let ids =
            AssignedIds { request: record.request_id.clone(), gateway: record.caller.gateway_id.clone() };
        let (original, copied) = ShadowPair::halves(&self.telemetry, ids, model, rule.to);
        record.shadow_half = Some(original);
        let copy = ShadowCopy {
            proxy: Arc::clone(self),
            request: self.copy_of(request, body, shadows, rule),
            request_id: id_for(&record.request_id),
            half: copied,
            skipped: ShadowSkipped { model, to: rule.to, reason: "" },
        };
        tokio::spawn(async move {
            copy.run().await;
            drop(flight);
        });
    }

    /// The request of a copy.
    fn copy_of(
        &self,
        original: &InferenceRequest,
        body: RequestBody,
        shadows: &ShadowSettings,
        rule: &ShadowRule,
    ) -> InferenceRequest {
        let now = self.dispatcher.clock().now();
        InferenceRequest {
            id: self.dispatcher.next_job_id(),
            tenant: shadows.tenant,
            key: None,
            class: shadows.class,
            candidates: ModelCandidates::only(rule.to),
            headers: headers_for(&original.headers),
            body,
            parsed: original.parsed.clone(),
            tokens: original.tokens,
            arrived: now,
            deadline: now + PATIENCE,
            client_deadline: now + PATIENCE,
            fingerprint: None,
            session: None,
            cache_salt: original.cache_salt.clone(),
            entry: EntryState::default(),
        }
    }
}

fn headers_for(original: &HeaderMap) -> HeaderMap {
    let mut headers = original.clone();
    for name in TRACE {
        headers.remove(name);
    }
    headers
}

fn id_for(original: &HeaderValue) -> HeaderValue {
    let text = [original.as_bytes(), SUFFIX.as_bytes()].concat();
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(SUFFIX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::ids::ModelId;

    #[test]
    fn the_share_is_kept_and_depends_on_the_id_alone() {
        let id = |number: u32| HeaderValue::try_from(format!("req_{number}")).unwrap();
        for share in [0.0, 0.05, 0.5, 1.0] {
            let count = (0..10_000).filter(|number| is_sampled(&id(*number), share)).count() as f64;
            let off = (count - 10_000.0 * share).abs();
            assert!(off <= 3.0 * (10_000.0 * share * (1.0 - share)).sqrt(), "{count} of 10000 at {share}");
        }
        let chosen: Vec<u32> = (0..1000).filter(|number| is_sampled(&id(*number), 0.05)).collect();
        assert!(chosen.iter().all(|number| is_sampled(&id(*number), 0.06)), "a larger share adds to it");
    }

    #[test]
    fn flights_are_bounded_by_model() {
        let flights = Arc::<ShadowCopies>::default();
        let [a, b] = [ModelId::new(1), ModelId::new(2)];
        let first = flights.take(a, 2);
        let second = flights.take(a, 2);
        assert!(first.is_some() && second.is_some() && flights.take(a, 2).is_none());
        assert!(flights.take(b, 1).is_some(), "it ends at once");
        drop(first);
        assert!(flights.take(a, 2).is_some());
        drop(second);
        assert_eq!(flights.count(), 0);
    }

    #[test]
    fn a_copy_is_not_part_of_the_clients_trace() {
        let mut client = HeaderMap::new();
        client.insert("traceparent", HeaderValue::from_static("00-1-2-01"));
        client.insert("x-session-id", HeaderValue::from_static("s"));
        let headers = headers_for(&client);
        assert_eq!((headers.len(), headers.contains_key("x-session-id")), (1, true));
        assert_eq!(id_for(&HeaderValue::from_static("r1")), "r1-shadow");
    }
}
