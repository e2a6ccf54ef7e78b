//! Caller status cache: what `GET /v1/me` answers from, shared by its callers: one snapshot of the
//! scheduler a second, one bill a minute.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::core::limits::LimitStatus;
use crate::core::model::ids::{ClassId, TenantId};
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::{Snapshot, WaitSummary};
use crate::core::model::time::Tick;
use crate::dispatcher::Dispatcher;
use crate::telemetry::request_history::{RequestState, RequestTrail};
use crate::telemetry::{Telemetry, wall};
use crate::usage::bill::{self, BillQuery, BillSums, Dimension, RowSource};

/// Age at which the scheduler is asked again.
const FACTS_AGE: Duration = Duration::from_secs(1);
/// Age at which a bill is made again.
const BILL_AGE: Duration = Duration::from_secs(60);
/// Longest wait for a bill; later callers get it.
const BILL_WAIT: Duration = Duration::from_secs(5);
/// Waiting requests of a tenant that are explained.
const MAX_EXPLAINED: usize = 5;

/// What callers share.
#[derive(Debug, Default)]
pub struct CallerStatusCache {
    facts: Mutex<Option<(Tick, Arc<CallerStatusFacts>)>>,
    /// Waiting requests with their obstacles, as the facts: by tenant, since the facts were taken.
    waits: Mutex<HashMap<TenantId, (Tick, Value)>>,
    /// The last bill, with when it was asked for.
    bill: Arc<Mutex<Option<KeptBill>>>,
    /// Held while a bill is made, whether its caller stays or not.
    making: Option<(RowSource, Arc<Semaphore>)>,
}

#[derive(Debug)]
pub(super) struct CallerStatusFacts {
    pub(super) snapshot: Snapshot,
    pub(super) limits: Vec<LimitStatus>,
}

/// The last bill if there was one, with when it was asked for.
type KeptBill = (Tick, Option<CallerStatusBill>);

/// A bill of this month by tenant.
#[derive(Debug, Clone)]
pub(super) struct CallerStatusBill {
    pub(super) since: Timestamp,
    pub(super) sums: Arc<BTreeMap<String, BillSums>>,
}

impl CallerStatusCache {
    /// A cache that makes bills from `source`; without one there is no bill.
    #[must_use]
    pub fn new(source: Option<RowSource>) -> Self {
        Self { making: source.map(|source| (source, Arc::new(Semaphore::new(1)))), ..Self::default() }
    }

    pub(super) fn facts(&self, dispatcher: &Dispatcher, now: Tick) -> Arc<CallerStatusFacts> {
        let mut held = self.facts.lock();
        if let Some((at, facts)) = &*held
            && now.since(*at) < FACTS_AGE
        {
            return Arc::clone(facts);
        }
        let facts = CallerStatusFacts { snapshot: dispatcher.snapshot(), limits: dispatcher.limits() };
        let facts = Arc::new(facts);
        *held = Some((now, Arc::clone(&facts)));
        self.waits.lock().retain(|_, (at, _)| now.since(*at) < FACTS_AGE);
        facts
    }

    /// The oldest waiting requests of a tenant, each with what it waits for.
    pub(super) fn waits(
        &self,
        dispatcher: &Dispatcher,
        telemetry: &Telemetry,
        tenant: TenantId,
        policy: &Policy,
        now: Tick,
    ) -> Value {
        if let Some((at, known)) = self.waits.lock().get(&tenant)
            && now.since(*at) < FACTS_AGE
        {
            return known.clone();
        }
        let waiting = telemetry.history().unended().filter_map(|request| {
            let waits =
                |trail: &RequestTrail| trail.tenant == tenant && trail.state() == RequestState::Waiting;
            let facts = |trail: &RequestTrail| (trail.request_id.clone(), trail.class);
            request.look(|trail| waits(trail).then(|| (trail.job, facts(trail))))
        });
        let (jobs, facts): (Vec<_>, Vec<_>) = waiting.take(MAX_EXPLAINED).unzip();
        let row = |((request_id, class), summary): ((HeaderValue, ClassId), Option<WaitSummary>)| {
            let summary = summary?;
            Some(json!({
                "request_id": request_id.to_str().unwrap_or_default(),
                "class": policy.classes.name(class),
                "why": summary.obstacle.name(),
                "waits_seconds": summary.queued.as_secs_f64(),
                "may_wait_seconds": summary.left.as_secs_f64(),
                "ahead_of_it": summary.ahead,
            }))
        };
        let rows: Vec<Value> =
            facts.into_iter().zip(dispatcher.wait_summaries(&jobs)).filter_map(row).collect();
        let rows = Value::from(rows);
        self.waits.lock().insert(tenant, (now, rows.clone()));
        rows
    }

    /// This month's bill, not older than a minute or so where a new one can be had.
    pub(super) async fn bill(&self, now: Tick) -> Option<CallerStatusBill> {
        let (source, making) = self.making.as_ref()?;
        let known = self.bill.lock().clone();
        if known.as_ref().is_some_and(|(asked, _)| now.since(*asked) < BILL_AGE) {
            return known?.1;
        }
        let Ok(alone) = Arc::clone(making).try_acquire_owned() else { return known?.1 };
        let (source, held) = (source.clone(), Arc::clone(&self.bill));
        let made = spawn_blocking(move || {
            let _alone = alone;
            let made = month_bill(&source);
            let mut held = held.lock();
            // A database that does not answer is asked again in a minute, too.
            let bill = made.or_else(|| held.take()?.1);
            *held = Some((now, bill.clone()));
            bill
        });
        match timeout(BILL_WAIT, made).await {
            Ok(Ok(bill)) => bill,
            _ => known?.1,
        }
    }
}

fn month_bill(source: &RowSource) -> Option<CallerStatusBill> {
    let since = month_start(wall::now())?;
    let since_ms = Some(since.as_millisecond());
    let query = BillQuery { by: vec![Dimension::Tenant], since_ms, ..BillQuery::default() };
    let bill = bill::make(&query, source).ok()?;
    let lines = bill.lines.into_iter().filter(|line| !line.unallocated);
    let sums = lines.filter_map(|line| Some((line.key.first()?.clone(), line.sums))).collect();
    Some(CallerStatusBill { since, sums: Arc::new(sums) })
}

fn month_start(now: std::time::SystemTime) -> Option<Timestamp> {
    let day = Timestamp::try_from(now).ok()?.to_zoned(TimeZone::UTC).date();
    Some(day.first_of_month().to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_starts_on_its_first_day_in_utc() {
        let at: Timestamp = "2026-11-25T21:40:00Z".parse().unwrap();
        assert_eq!(month_start(at.into()).unwrap().to_string(), "2026-11-01T00:00:00Z");
    }
}
