//! `GET /admin/v1/requests`: requests that wait and run, and the last ones that ended. Field names
//! are stable; times are in seconds.
//!
//! The list comes from the request history, which takes its own lock for some hundred requests at a
//! time. The scheduler is asked only why the listed requests wait, a few at a time.

pub(super) mod elsewhere;
pub(super) mod events;
pub(super) mod explain;
mod filter;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::{Value, json};

use crate::admin::operate::VerbError;
use crate::admin::requests::filter::RequestFilter;
use crate::admin::state::AdminState;
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::WaitSummary;
use crate::telemetry::request_history::{RequestHistory, RequestState, RequestTrail, TrailRecorder};
use crate::telemetry::wall;

/// Columns of the list as CSV.
pub(super) const COLUMNS: &[&str] = &[
    "request_id",
    "state",
    "tenant",
    "class",
    "model",
    "came_at_unix",
    "age_seconds",
    "state_seconds",
    "stream",
    "prompt_tokens",
    "output_tokens",
    "attempts",
    "pool",
    "replica",
    "ttft_seconds",
    "waits.obstacle",
    "waits.ahead",
    "waits.queued_seconds",
    "waits.may_wait_seconds",
    "waits.starts_in_seconds",
    "end.outcome",
    "end.reason",
    "end.status",
    "end.total_seconds",
];

/// The requests that a query asks for: those that wait, the oldest first; those that run, the oldest
/// first; those that ended, the last one first.
///
/// # Errors
/// The query is not valid.
pub(super) fn list(state: &AdminState, query: &str) -> Result<Value, VerbError> {
    let settings = state.settings();
    let policy = &*settings.policy;
    let filter = RequestFilter::parse(query, &[], policy)?;
    let found = FoundRequests::collect(state.telemetry.history(), &filter, policy);
    let waiting = found.rows.iter().filter(|row| row.trail.state() == RequestState::Waiting);
    let jobs: Vec<_> = waiting.map(|row| row.trail.job).collect();
    let waits = state.dispatcher.wait_summaries(&jobs).into_iter();
    // Requests that wait come first.
    let waits = waits.chain(std::iter::repeat(None));
    let rows = found.rows.iter().zip(waits).map(|(row, wait)| row.json(wait.as_ref(), policy));
    let [waiting, running, finished] = found.matched;
    Ok(json!({
        "requests": rows.collect::<Vec<_>>(),
        "matched": { "waiting": waiting, "running": running, "finished": finished },
        "limit": filter.limit(),
    }))
}

/// Requests that match a filter.
struct FoundRequests {
    rows: Vec<FoundRequest>,
    /// Number of matches by state, in the order of [`RequestState::ALL`].
    matched: [usize; 3],
}

struct FoundRequest {
    trail: RequestTrail,
    outputs: u64,
}

impl FoundRequests {
    fn collect(history: &RequestHistory, filter: &RequestFilter, policy: &Policy) -> Self {
        let mut found: [Vec<FoundRequest>; 3] = Default::default();
        let mut matched = [0; 3];
        let mut add = |request: TrailRecorder| {
            let copy = request.look(|trail| {
                let place = trail.state() as usize;
                let wanted = filter.wants_state(trail.state()) && filter.wants(trail, policy);
                matched[place] += usize::from(wanted);
                (wanted && found[place].len() < filter.limit()).then(|| (place, trail.clone()))
            });
            if let Some((place, trail)) = copy {
                found[place].push(FoundRequest { trail, outputs: request.outputs() });
            }
        };
        history.unended().for_each(&mut add);
        history.ended_requests().for_each(&mut add);
        // Requests that came at almost the same time may have got their numbers the other way round.
        let unended = [RequestState::Waiting, RequestState::Running];
        unended.iter().for_each(|state| found[*state as usize].sort_by_key(|request| request.trail.came));
        let rows = found.into_iter().flatten().take(filter.limit()).collect();
        Self { rows, matched }
    }
}

impl FoundRequest {
    fn json(&self, wait: Option<&WaitSummary>, policy: &Policy) -> Value {
        let Self { trail, outputs } = self;
        let age = wall::seconds_since(trail.came);
        let last = trail.tries.last();
        let output = match trail.end {
            Some(end) => end.output_tokens,
            None => Some(*outputs).filter(|outputs| trail.stream && *outputs > 0),
        };
        json!({
            "request_id": trail.request_id.to_str().unwrap_or_default(),
            "state": trail.state().name(),
            "tenant": policy.tenants.name(trail.tenant),
            "class": policy.classes.name(trail.class),
            "model": policy.models.name(trail.serving_model()),
            "came_at_unix": wall::unix_seconds(trail.came),
            "age_seconds": age,
            "state_seconds": (age - secs(trail.state_since())).max(0.0),
            "stream": trail.stream,
            "prompt_tokens": trail.prompt_tokens,
            "output_tokens": output,
            "attempts": trail.tries.len() + trail.forgotten_tries as usize,
            "pool": last.map(|attempt| policy.pools.name(attempt.grant.pool)),
            "replica": last.map(|attempt| policy.replicas.name(attempt.grant.replica)),
            "ttft_seconds": last.and_then(|attempt| attempt.first_token).map(secs),
            "waits": wait.map(|wait| json!({
                "obstacle": wait.obstacle.name(),
                "ahead": wait.ahead,
                "queued_seconds": secs(wait.queued),
                "may_wait_seconds": secs(wait.left),
                "starts_in_seconds": wait.starts_in.map(secs),
            })),
            "end": trail.end.map(|end| json!({
                "outcome": end.outcome.name(),
                "reason": end.reason,
                "status": end.status,
                "total_seconds": secs(end.total),
            })),
        })
    }
}

fn secs(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
