//! Usage rows: the rows of the usage journal for a request that has ended.

use std::sync::Arc;

use crate::core::billing::bill::AttemptBill;
use crate::core::model::job::JobUsage;
use crate::core::model::policy::Policy;
use crate::core::placement::rules::Price;
use crate::telemetry::event::RequestSummary;
use crate::telemetry::wall;
use crate::usage::row::{RowKind, UsageRow};

/// One row for each attempt. The last row, or an empty one, is the request's own row.
pub(super) fn of(summary: &RequestSummary<'_>, policy: &Policy) -> impl Iterator<Item = UsageRow> + use<> {
    let (common, bills) = (common(summary, policy), summary.bills);
    let (last, tries) = bills.split_last().map_or((None, bills), |(last, tries)| (Some(*last), tries));
    let tries: Vec<UsageRow> = tries.iter().map(|bill| charged(common.clone(), bill, policy)).collect();
    let end = match last {
        Some(bill) => charged(common, &bill, policy),
        None => common,
    };
    let seen = summary.tokens.usage.filter(|_| summary.tokens.reached_engine);
    let tokens = seen.and_then(JobUsage::tokens).unwrap_or_default();
    let end = UsageRow {
        kind: RowKind::Request,
        requests: 1,
        status: summary.status,
        outcome: summary.outcome.name(),
        usage: match seen {
            None => "none",
            Some(JobUsage::Exact(_)) => "exact",
            Some(JobUsage::Partial(_)) => "partial",
            Some(JobUsage::Unknown) => "unknown",
        },
        input_tokens: tokens.input,
        cached_tokens: tokens.from_cache(),
        output_tokens: tokens.output,
        queue_us: u64::try_from(summary.timings.queue.unwrap_or_default().as_micros()).unwrap_or(u64::MAX),
        attempts: summary.attempts.made,
        ..end
    };
    tries.into_iter().chain([end])
}

/// The fields that all rows of a request share.
fn common(summary: &RequestSummary<'_>, policy: &Policy) -> UsageRow {
    let name = |name: Option<&str>| -> Arc<str> { name.unwrap_or_default().into() };
    let class = summary.dispatch.why().map(|why| why.class).or(summary.caller.class);
    UsageRow {
        request_id: summary.ids.request.to_owned(),
        gateway_id: summary.ids.gateway.unwrap_or_default().to_owned(),
        tenant: name(summary.caller.tenant.map(|id| policy.tenants.name(id))),
        key: name(summary.caller.key_id),
        class: name(class.map(|id| policy.classes.name(id))),
        model: name(summary.models.served.map(|id| policy.models.name(id))),
        api: summary.call.operation,
        ..UsageRow::new(RowKind::Try, wall::now())
    }
}

fn charged(row: UsageRow, bill: &AttemptBill, policy: &Policy) -> UsageRow {
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
