//! `GET /admin/v1/events`: live events as a stream of server-sent events. Each message is a JSON
//! object with `event` and `at_unix`.
//!
//! The stream ends with a last message when its reader is too slow, and after a while so that
//! connections come anew. Readers connect again by themselves, as browsers do.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::admin::operate::VerbError;
use crate::admin::requests::explain::decision;
use crate::admin::requests::filter::RequestFilter;
use crate::admin::requests::secs;
use crate::admin::state::AdminState;
use crate::config::settings::Settings;
use crate::core::model::policy::Policy;
use crate::telemetry::request_history::live_events::{
    EventReader, EventsMissed, LiveEvent, LiveEventKind, MAX_READERS, RequestFacts, RequestStep,
};
use crate::telemetry::wall;

/// Names of the events.
const NAMES: [&str; 7] = ["arrived", "dispatched", "first_token", "returned", "fell_back", "ended", "change"];

/// Longest life of a stream, below that of an admin connection.
const MAX_LIFE: Duration = Duration::from_secs(240);
/// Pause after which a comment shows that the stream lives.
const BEAT: Duration = Duration::from_secs(10);
/// Most events of one write.
const BATCH: usize = 64;
/// First message: how long a browser waits before it connects again, in milliseconds.
const HELLO: &str = "retry: 2000\n\n";

/// The stream of the events that a query asks for.
///
/// # Errors
/// The query is not valid, or too many read already.
pub(in crate::admin) fn stream(state: &AdminState, query: &str) -> Result<Response, VerbError> {
    let filter = RequestFilter::parse(query, &NAMES, &state.settings().policy)?;
    let reader = state.telemetry.history().events().read().ok_or_else(|| {
        let message = format!("{MAX_READERS} read the events already; close one of them, or try again later");
        VerbError(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    let settings = Arc::clone(&state.settings);
    let until = Instant::now() + MAX_LIFE;
    let feed = EventStream { reader, filter, settings, until, text: HELLO.to_owned(), over: false };
    let body = Body::from_stream(stream::unfold(feed, EventStream::next));
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((head, body).into_response())
}

/// A stream on its way to its reader.
struct EventStream {
    reader: EventReader,
    filter: RequestFilter,
    settings: Arc<ArcSwap<Settings>>,
    until: Instant,
    /// Text that is to be sent next.
    text: String,
    over: bool,
}

impl EventStream {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let beat = (Instant::now() + BEAT).min(self.until);
        while self.text.is_empty() && !self.over {
            tokio::select! {
                biased;
                () = sleep_until(beat) => self.beat(),
                events = self.reader.next(BATCH) => self.take(events),
            }
        }
        let text = std::mem::take(&mut self.text);
        (!text.is_empty()).then(|| (Ok(Bytes::from(text)), self))
    }

    fn beat(&mut self) {
        self.over = Instant::now() >= self.until;
        self.text = if self.over {
            message(&json!({ "event": "end", "why": "connect again for more" }))
        } else {
            ": alive\n\n".to_owned()
        };
    }

    fn take(&mut self, events: Result<Vec<LiveEvent>, EventsMissed>) {
        match events {
            Ok(events) => {
                let policy = Arc::clone(&self.settings.load().policy);
                let rows = events.iter().filter_map(|event| shown(event, &self.filter, &policy));
                self.text = rows.map(|row| message(&row)).collect();
            }
            Err(EventsMissed(missed)) => {
                self.over = true;
                let why = "this reader is too slow; connect again, perhaps with a filter";
                self.text = message(&json!({ "event": "end", "why": why, "missed": missed }));
            }
        }
    }
}

fn message(row: &Value) -> String {
    format!("data: {row}\n\n")
}

/// The event as JSON, if the filter wants it.
fn shown(event: &LiveEvent, filter: &RequestFilter, policy: &Policy) -> Option<Value> {
    let mut row = match &event.what {
        LiveEventKind::Change { change, subject, detail } => {
            let wanted = filter.wants_changes() && filter.wants_event("change");
            wanted.then(
                || json!({ "event": "change", "change": change, "subject": &**subject, "detail": &**detail }),
            )?
        }
        LiveEventKind::Request(facts, step) => {
            let (name, pool) = match &**step {
                RequestStep::Arrived => ("arrived", None),
                RequestStep::Dispatched(grant) => ("dispatched", Some(grant.pool)),
                RequestStep::FirstToken(_) => ("first_token", None),
                RequestStep::Returned(..) => ("returned", None),
                RequestStep::FellBack(_) => ("fell_back", None),
                RequestStep::Ended(_, grant) => ("ended", grant.map(|grant| grant.pool)),
            };
            let RequestFacts { tenant, class, model, .. } = *facts;
            let wanted = filter.wants_event(name) && filter.wants_of(tenant, class, model, pool, policy);
            wanted.then(|| step_json(name, facts, step, policy))?
        }
    };
    row["at_unix"] = wall::unix_seconds(event.at).into();
    Some(row)
}

fn step_json(name: &str, facts: &RequestFacts, step: &RequestStep, policy: &Policy) -> Value {
    let mut row = json!({
        "event": name,
        "request_id": facts.request_id.to_str().unwrap_or_default(),
        "tenant": policy.tenants.name(facts.tenant),
        "class": policy.classes.name(facts.class),
        "model": policy.models.name(facts.model),
    });
    match step {
        RequestStep::Arrived => {}
        RequestStep::Dispatched(grant) => {
            row["pool"] = policy.pools.name(grant.pool).into();
            row["replica"] = policy.replicas.name(grant.replica).into();
            row["why"] = decision(&grant.why, policy);
        }
        RequestStep::FirstToken(after) => row["after_seconds"] = secs(*after).into(),
        RequestStep::Returned(after, why) => {
            row["after_seconds"] = secs(*after).into();
            row["reason"] = why.name().into();
        }
        RequestStep::FellBack(why) => row["reason"] = why.name().into(),
        RequestStep::Ended(end, grant) => {
            row["pool"] = json!(grant.map(|grant| policy.pools.name(grant.pool)));
            row["replica"] = json!(grant.map(|grant| policy.replicas.name(grant.replica)));
            row["outcome"] = end.outcome.name().into();
            row["reason"] = json!(end.reason);
            row["status"] = end.status.into();
            row["total_seconds"] = secs(end.total).into();
            row["output_tokens"] = json!(end.output_tokens);
        }
    }
    row
}
