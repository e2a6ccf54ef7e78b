//! A request's end as rows of the usage journal.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::core::billing::bill::StayBill;
use crate::core::model::job::JobUsage;
use crate::core::model::policy::Policy;
use crate::core::placement::rules::Price;
use crate::proxy::summary::RequestRecord;
use crate::telemetry::event::RequestFinished;
use crate::telemetry::wall;
use crate::usage::row::{RowKind, UsageRow};

/// What bills come to in the currency; absent where no pool has a price.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn cost(bills: &[StayBill]) -> Option<f64> {
    let priced = bills.iter().any(|bill| bill.price.is_some());
    priced.then(|| bills.iter().map(|bill| bill.money).sum::<u64>() as f64 / 1e9)
}

/// A row for each stay; the last one, or an empty one, is that of the request.
pub(super) fn of(
    record: &RequestRecord,
    event: &RequestFinished<'_>,
    bills: &[StayBill],
) -> impl Iterator<Item = UsageRow> + use<> {
    let policy = record.telemetry.policy();
    let common = common(event, &policy);
    let (last, tries) = bills.split_last().map_or((None, bills), |(last, tries)| (Some(*last), tries));
    let tries: Vec<UsageRow> = tries.iter().map(|bill| charged(common.clone(), bill, &policy)).collect();
    let end = match last {
        Some(bill) => charged(common, &bill, &policy),
        None => common,
    };
    // The event has zeros for what no engine saw.
    let seen = record.usage;
    let tokens = seen.and_then(JobUsage::tokens).unwrap_or_default();
    let end = UsageRow {
        kind: RowKind::Request,
        status: event.status,
        outcome: event.outcome.name(),
        usage: match seen {
            None => "none",
            Some(JobUsage::Exact(_)) => "exact",
            Some(JobUsage::Partial(_)) => "partial",
            Some(JobUsage::Unknown) => "unknown",
        },
        input_tokens: tokens.input,
        cached_tokens: tokens.cached,
        output_tokens: tokens.output,
        queue_us: u64::try_from(event.timings.queue.unwrap_or_default().as_micros()).unwrap_or(u64::MAX),
        attempts: event.attempts,
        ..end
    };
    tries.into_iter().chain([end])
}

/// What all rows of a request say.
fn common(event: &RequestFinished<'_>, policy: &Policy) -> UsageRow {
    let name = |name: Option<&str>| -> Arc<str> { name.unwrap_or_default().into() };
    let class = event.placed.map(|why| why.class).or(event.class);
    let since = wall::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    UsageRow {
        time_ms: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        kind: RowKind::Try,
        request_id: event.request_id.to_owned(),
        tenant: name(event.tenant.map(|id| policy.tenants.name(id))),
        key: name(event.key_id),
        class: name(class.map(|id| policy.classes.name(id))),
        model: name(event.model.map(|id| policy.models.name(id))),
        pool: name(None),
        replica: name(None),
        api: event.operation,
        status: 0,
        outcome: "",
        usage: "none",
        input_tokens: 0,
        cached_tokens: 0,
        output_tokens: 0,
        wasted_tokens: 0,
        wasted_by: "",
        queue_us: 0,
        gpu_ns: 0,
        price_per_hour: 0.0,
        money_nano: 0,
        attempts: 0,
    }
}

fn charged(row: UsageRow, bill: &StayBill, policy: &Policy) -> UsageRow {
    UsageRow {
        pool: policy.pools.name(bill.pool).into(),
        replica: policy.replicas.name(bill.replica).into(),
        wasted_tokens: bill.waste.map_or(0, |waste| waste.tokens),
        wasted_by: bill.waste.map_or("", |waste| waste.why.name()),
        gpu_ns: u64::try_from(bill.time.as_nanos()).unwrap_or(u64::MAX),
        price_per_hour: bill.price.map_or(0.0, Price::units),
        money_nano: bill.money,
        ..row
    }
}
