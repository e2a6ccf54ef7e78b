//! Caller status cache: what `GET /v1/me` answers from, shared by its callers: one snapshot of the
//! scheduler a second, the bills of the month and of today once a minute.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::core::limits::LimitStatus;
use crate::core::model::ids::{ClassId, ModelId, TenantId};
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::{Snapshot, WaitSummary};
use crate::core::model::time::Tick;
use crate::dispatcher::Dispatcher;
use crate::telemetry::request_history::{RequestState, RequestTrail};
use crate::telemetry::{Telemetry, wall};
use crate::usage::bill::{self, BillError, BillQuery, BillSums, Dimension, RowSource};

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
    facts: Mutex<Option<Aged<Arc<CallerStatusFacts>>>>,
    /// Waiting requests with their obstacles, as the facts: by tenant, since the facts were taken.
    waits: Mutex<HashMap<TenantId, Aged<Value>>>,
    /// The last bill if there was one, since it was asked for.
    bill: Arc<Mutex<Option<Aged<Option<CallerStatusBill>>>>>,
    reader: Option<BillReader>,
}

/// A value, and since when it is known.
#[derive(Debug, Clone)]
struct Aged<T> {
    since: Tick,
    value: T,
}

impl<T> Aged<T> {
    fn is_younger(&self, age: Duration, now: Tick) -> bool {
        now.since(self.since) < age
    }
}

#[derive(Debug)]
struct BillReader {
    source: RowSource,
    /// Held while a bill is made, whether its caller stays or not.
    turn: Arc<Semaphore>,
}

#[derive(Debug)]
pub(super) struct CallerStatusFacts {
    pub(super) snapshot: Snapshot,
    pub(super) limits: Vec<LimitStatus>,
}

/// Bills of this month and of today (UTC).
#[derive(Debug, Clone)]
pub(super) struct CallerStatusBill {
    pub(super) month: SpanUse,
    pub(super) today: SpanUse,
}

/// Use since a moment, by tenant.
#[derive(Debug, Clone)]
pub(super) struct SpanUse {
    pub(super) since: Timestamp,
    pub(super) tenants: Arc<BTreeMap<String, BilledTenant>>,
}

/// Use of one tenant.
#[derive(Debug, Default)]
pub(super) struct BilledTenant {
    pub(super) total: BillSums,
    /// Use by model, in the order of names. Empty where a bill by model has too many lines.
    pub(super) models: Vec<BilledModel>,
}

/// Use of one model by one tenant.
#[derive(Debug)]
pub(super) struct BilledModel {
    /// Name of the model that served; empty for requests that named none.
    pub(super) model: String,
    pub(super) sums: BillSums,
}

/// Waiting request, as its tenant is told of it.
#[derive(Debug)]
struct TenantWait {
    request_id: HeaderValue,
    class: ClassId,
    model: ModelId,
}

impl TenantWait {
    fn of(trail: &RequestTrail) -> Self {
        Self { request_id: trail.request_id.clone(), class: trail.class, model: trail.model }
    }

    fn row(&self, summary: &WaitSummary, policy: &Policy) -> Value {
        json!({
            "request_id": self.request_id.to_str().unwrap_or_default(),
            "class": policy.classes.name(self.class),
            "model": policy.models.name(self.model),
            "why": summary.obstacle.name(),
            "waits_seconds": summary.queued.as_secs_f64(),
            "may_wait_seconds": summary.left.as_secs_f64(),
            "starts_in_seconds": summary.starts_in.map(|time| time.as_secs_f64()),
            "ahead_of_it": summary.ahead,
        })
    }
}

impl CallerStatusCache {
    /// A cache that makes bills from `source`; without one there is no bill.
    pub fn new(source: Option<RowSource>) -> Self {
        let reader = source.map(|source| BillReader { source, turn: Arc::new(Semaphore::new(1)) });
        Self { reader, ..Self::default() }
    }

    pub(super) fn facts(&self, dispatcher: &Dispatcher, now: Tick) -> Arc<CallerStatusFacts> {
        let mut held = self.facts.lock();
        if let Some(facts) = held.as_ref().filter(|facts| facts.is_younger(FACTS_AGE, now)) {
            return Arc::clone(&facts.value);
        }
        let facts = CallerStatusFacts { snapshot: dispatcher.snapshot(), limits: dispatcher.limits() };
        let facts = Arc::new(facts);
        *held = Some(Aged { since: now, value: Arc::clone(&facts) });
        self.waits.lock().retain(|_, waits| waits.is_younger(FACTS_AGE, now));
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
        if let Some(known) = self.waits.lock().get(&tenant)
            && known.is_younger(FACTS_AGE, now)
        {
            return known.value.clone();
        }
        let waiting = telemetry.history().unended().filter_map(|request| {
            request.look(|trail| {
                let waits = trail.tenant == tenant && trail.state() == RequestState::Waiting;
                waits.then(|| (trail.job, TenantWait::of(trail)))
            })
        });
        let (jobs, waits): (Vec<_>, Vec<_>) = waiting.take(MAX_EXPLAINED).unzip();
        let summaries = waits.iter().zip(dispatcher.wait_summaries(&jobs));
        let rows: Vec<Value> =
            summaries.filter_map(|(wait, summary)| Some(wait.row(&summary?, policy))).collect();
        let rows = Value::from(rows);
        self.waits.lock().insert(tenant, Aged { since: now, value: rows.clone() });
        rows
    }

    /// The bills of this month and of today, not older than a minute or so where a new one can be had.
    pub(super) async fn bill(&self, now: Tick) -> Option<CallerStatusBill> {
        let BillReader { source, turn } = self.reader.as_ref()?;
        let known = self.bill.lock().clone();
        if known.as_ref().is_some_and(|known| known.is_younger(BILL_AGE, now)) {
            return known?.value;
        }
        let Ok(alone) = Arc::clone(turn).try_acquire_owned() else { return known?.value };
        let (source, held) = (source.clone(), Arc::clone(&self.bill));
        let made = spawn_blocking(move || {
            let _alone = alone;
            let made = current_bill(&source);
            let mut held = held.lock();
            // A database that does not answer is asked again in a minute, too.
            let bill = made.or_else(|| held.take()?.value);
            *held = Some(Aged { since: now, value: bill.clone() });
            bill
        });
        match timeout(BILL_WAIT, made).await {
            Ok(Ok(bill)) => bill,
            _ => known?.value,
        }
    }
}

fn current_bill(source: &RowSource) -> Option<CallerStatusBill> {
    let today = utc_day(wall::now())?;
    Some(CallerStatusBill {
        month: used_since(today.first_of_month(), source)?,
        today: used_since(today, source)?,
    })
}

fn used_since(day: Date, source: &RowSource) -> Option<SpanUse> {
    let since = midnight(day)?;
    let by = |by: Vec<Dimension>| {
        let since_ms = Some(since.as_millisecond());
        bill::make(&BillQuery { by, since_ms, ..BillQuery::default() }, source)
    };
    let made = match by(vec![Dimension::Tenant, Dimension::Model]) {
        Err(BillError::TooLong) => by(vec![Dimension::Tenant]),
        made => made,
    };
    let mut tenants: BTreeMap<String, BilledTenant> = BTreeMap::new();
    for line in made.ok()?.lines.into_iter().filter(|line| !line.unallocated) {
        let mut key = line.key.into_iter();
        let Some(tenant) = key.next() else { continue };
        let used = tenants.entry(tenant).or_default();
        used.total.add(&line.sums);
        used.models.extend(key.next().map(|model| BilledModel { model, sums: line.sums }));
    }
    Some(SpanUse { since, tenants: Arc::new(tenants) })
}

fn utc_day(now: SystemTime) -> Option<Date> {
    Some(Timestamp::try_from(now).ok()?.to_zoned(TimeZone::UTC).date())
}

/// Start of the day in UTC.
fn midnight(day: Date) -> Option<Timestamp> {
    Some(day.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_months_start_in_utc() {
        let at: Timestamp = "2026-11-25T21:40:00Z".parse().unwrap();
        let day = utc_day(at.into()).unwrap();
        assert_eq!(midnight(day).unwrap().to_string(), "2026-11-25T00:00:00Z");
        assert_eq!(midnight(day.first_of_month()).unwrap().to_string(), "2026-11-01T00:00:00Z");
    }
}
