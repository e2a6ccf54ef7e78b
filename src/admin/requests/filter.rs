//! Request filter: the query of `GET /admin/v1/requests` and `GET /admin/v1/events`.

use axum::http::StatusCode;

use crate::admin::operate::{VerbError, lookup};
use crate::core::model::ids::{ClassId, ModelId, PoolId, TenantId};
use crate::core::model::policy::Policy;
use crate::telemetry::request_history::{RequestState, RequestTrail};

/// Rows of a list without `limit`.
const DEFAULT_LIMIT: usize = 100;
/// Most rows of a list.
const MAX_LIMIT: usize = 1000;

/// Which requests, or events, are wanted. An empty list stands for all.
#[derive(Debug, Default)]
pub(super) struct RequestFilter {
    states: Vec<RequestState>,
    tenants: Vec<TenantId>,
    classes: Vec<ClassId>,
    models: Vec<ModelId>,
    pools: Vec<PoolId>,
    events: Vec<String>,
    limit: Option<usize>,
}

impl RequestFilter {
    /// Reads a query. `events` are the names of events; without any, the query is that of a list.
    ///
    /// # Errors
    /// A key or a name is not known.
    pub(super) fn parse(query: &str, events: &[&str], policy: &Policy) -> Result<Self, VerbError> {
        let mut filter = Self::default();
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match (&*key, events.is_empty()) {
                ("tenant", _) => filter.tenants.push(lookup("tenant", &value, &policy.tenants)?),
                ("class", _) => filter.classes.push(lookup("class", &value, &policy.classes)?),
                ("model", _) => filter.models.push(lookup("model", &value, &policy.models)?),
                ("pool", _) => filter.pools.push(lookup("pool", &value, &policy.pools)?),
                ("state", true) => filter.states.push(state(&value)?),
                ("limit", true) => filter.limit = Some(limit(&value)?),
                ("format", true) => {}
                ("event", false) if events.contains(&&*value) => filter.events.push(value.into_owned()),
                ("event", false) => {
                    return Err(wrong(format!(
                        "`event`: `{value}` is none; there are: {}",
                        events.join(", ")
                    )));
                }
                (_, is_list) => {
                    let own = if is_list { "state, limit, format" } else { "event" };
                    return Err(wrong(format!(
                        "`{key}` is not known; there are: tenant, class, model, pool, {own}"
                    )));
                }
            }
        }
        Ok(filter)
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }

    pub(super) fn wants_state(&self, state: RequestState) -> bool {
        is_in(&self.states, &state)
    }

    /// Whether a request is wanted. One that waits is of every pool that serves its model.
    pub(super) fn wants(&self, trail: &RequestTrail, policy: &Policy) -> bool {
        let pool = trail.tries.last().map(|attempt| attempt.grant.pool);
        self.wants_of(trail.tenant, trail.class, trail.serving_model(), pool, policy)
    }

    pub(super) fn wants_event(&self, event: &str) -> bool {
        self.events.is_empty() || self.events.iter().any(|wanted| wanted == event)
    }

    /// Whether events that belong to no request are wanted.
    pub(super) fn wants_changes(&self) -> bool {
        self.tenants.is_empty() && self.classes.is_empty() && self.models.is_empty() && self.pools.is_empty()
    }

    pub(super) fn wants_of(
        &self,
        tenant: TenantId,
        class: ClassId,
        model: ModelId,
        pool: Option<PoolId>,
        policy: &Policy,
    ) -> bool {
        let is_of_pool = |wanted: &PoolId| match pool {
            Some(pool) => pool == *wanted,
            None => policy.models.get(model).is_some_and(|row| row.pools.contains(wanted)),
        };
        is_in(&self.tenants, &tenant)
            && is_in(&self.classes, &class)
            && is_in(&self.models, &model)
            && (self.pools.is_empty() || self.pools.iter().any(is_of_pool))
    }
}

fn is_in<T: PartialEq>(wanted: &[T], this: &T) -> bool {
    wanted.is_empty() || wanted.contains(this)
}

fn state(text: &str) -> Result<RequestState, VerbError> {
    let found = RequestState::ALL.into_iter().find(|state| state.name() == text);
    found.ok_or_else(|| {
        let names = RequestState::ALL.map(RequestState::name).join(", ");
        wrong(format!("`state`: `{text}` is none; there are: {names}"))
    })
}

fn limit(text: &str) -> Result<usize, VerbError> {
    let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| wrong(format!("`limit` must be a number from 1 to {MAX_LIMIT}")))
}

fn wrong(message: String) -> VerbError {
    VerbError(StatusCode::BAD_REQUEST, message)
}
