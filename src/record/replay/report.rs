//! Figures of a replay: per tenant and class, what happened, what the model says of it, and what
//! another configuration is expected to do.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::core::model::ids::{ClassId, TenantId};
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::record::replay::history::{History, JobEnd, PastJob};
use crate::record::replay::what_if::Prediction;
use crate::sim::world::record::quantile;

/// Time in ms below which two times count as equally short.
const SHORT: f64 = 5.0;

/// Figures of the requests of one tenant and class, or of all. Times are in seconds; absent = no
/// request has such a time.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct GroupFigures {
    /// Absent in the line of all requests.
    pub tenant: Option<String>,
    pub class: Option<String>,
    /// `happened`, `model` or `predicted`.
    pub what: &'static str,
    pub requests: u64,
    pub served: u64,
    pub refused: u64,
    /// Requests whose client left.
    pub left: u64,
    pub failed: u64,
    /// Wait from the request's arrival to its first dispatch.
    pub wait_p50: Option<f64>,
    pub wait_p95: Option<f64>,
    /// From the arrival to the first token; to the end of an answer that is no stream.
    pub first_token_p50: Option<f64>,
    pub first_token_p95: Option<f64>,
    /// Output tokens of served requests.
    pub output_tokens: u64,
    /// Replica time that the requests took.
    pub gpu_seconds: f64,
    /// Part of the replica time of all requests.
    pub share: f64,
    /// In the currency of the pools' prices.
    pub cost: f64,
}

/// How far the model is from what happened, over all groups, weighted by their requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ModelError {
    /// Relative error of the median and of the 95th percentile of the first token.
    pub first_token_p50: f64,
    pub first_token_p95: f64,
    /// Relative error of the median wait.
    pub wait_p50: f64,
    /// Difference of the part of the requests that was refused.
    pub refused: f64,
    /// Difference of the part of the replica time.
    pub share: f64,
}

#[derive(Debug, Default)]
struct GroupSums {
    figures: GroupFigures,
    waits: Vec<f64>,
    firsts: Vec<f64>,
    nanos: u64,
    money: u128,
}

impl GroupSums {
    fn add(&mut self, job: &PastJob) {
        let figures = &mut self.figures;
        figures.requests += 1;
        match job.end {
            JobEnd::Open => {}
            JobEnd::Done => {
                figures.served += 1;
                figures.output_tokens += job.usage.tokens().map_or(0, |tokens| tokens.output);
            }
            JobEnd::Failed => figures.failed += 1,
            JobEnd::Left => figures.left += 1,
            JobEnd::Rejected => figures.refused += 1,
        }
        let millis = |at: Tick| at.since(job.spec.arrived).as_secs_f64() * 1e3;
        self.waits.extend(job.sent.map(millis));
        let first = if job.spec.streams { job.first } else { job.ended.filter(|_| job.end == JobEnd::Done) };
        self.firsts.extend(first.map(millis));
        self.nanos = self.nanos.saturating_add(job.nanos);
        self.money += u128::from(job.money);
    }

    fn figures(mut self, all_nanos: u64) -> GroupFigures {
        let mut at = |part: f64| {
            let seconds =
                |samples: &mut Vec<f64>| (!samples.is_empty()).then(|| quantile(samples, part) / 1e3);
            (seconds(&mut self.waits), seconds(&mut self.firsts))
        };
        let ((wait_p50, first_token_p50), (wait_p95, first_token_p95)) = (at(0.5), at(0.95));
        GroupFigures {
            wait_p50,
            wait_p95,
            first_token_p50,
            first_token_p95,
            gpu_seconds: self.nanos as f64 / 1e9,
            share: self.nanos as f64 / all_nanos.max(1) as f64,
            cost: self.money as f64 / 1e9,
            ..self.figures
        }
    }
}

/// Figures of each tenant and class, in the order of their names, then of all.
pub fn figures(history: &History, what: &'static str) -> Vec<GroupFigures> {
    rows(history, what, &[], &history.policy)
}

/// What happened, the model, and the prediction, side by side for each tenant and class.
pub fn compared(past: &History, prediction: &Prediction) -> Vec<GroupFigures> {
    let happened = figures(past, "happened");
    let model = figures(&prediction.model, "model");
    let predicted = rows(&prediction.other, "predicted", &prediction.unknown, &past.policy);
    let mut all: Vec<(usize, GroupFigures)> = [happened, model, predicted]
        .into_iter()
        .enumerate()
        .flat_map(|(order, rows)| rows.into_iter().map(move |row| (order, row)))
        .collect();
    // The line of all requests has no tenant, and comes last.
    let key = |row: &GroupFigures| (row.tenant.is_none(), row.tenant.clone(), row.class.clone());
    all.sort_by_key(|(order, row)| (key(row), *order));
    all.into_iter().map(|(_, row)| row).collect()
}

fn rows(
    history: &History,
    what: &'static str,
    unknown: &[(TenantId, ClassId)],
    recorded: &Policy,
) -> Vec<GroupFigures> {
    let mut groups = BTreeMap::<(String, String), GroupSums>::new();
    let mut all = GroupSums::default();
    let policy = &history.policy;
    for job in &history.jobs {
        let key = (policy.tenants.name(job.spec.tenant), policy.classes.name(job.spec.class));
        groups.entry((key.0.to_owned(), key.1.to_owned())).or_default().add(job);
        all.add(job);
    }
    for (tenant, class) in unknown {
        let key = (recorded.tenants.name(*tenant).to_owned(), recorded.classes.name(*class).to_owned());
        for sums in [groups.entry(key).or_default(), &mut all] {
            sums.figures.requests += 1;
            sums.figures.refused += 1;
        }
    }
    let nanos = all.nanos;
    let group = |((tenant, class), sums): ((String, String), GroupSums)| GroupFigures {
        tenant: Some(tenant),
        class: Some(class),
        what,
        ..sums.figures(nanos)
    };
    let mut rows: Vec<GroupFigures> = groups.into_iter().map(group).collect();
    rows.push(GroupFigures { what, ..all.figures(nanos) });
    rows
}

/// How far the lines `model` are from the lines `happened`. `None` without requests.
pub fn model_error(rows: &[GroupFigures]) -> Option<ModelError> {
    let of = |what| rows.iter().filter(move |row| row.what == what && row.tenant.is_some());
    let pairs: Vec<_> = of("happened")
        .filter_map(|row| {
            let model = of("model").find(|other| other.tenant == row.tenant && other.class == row.class)?;
            Some((row, model))
        })
        .collect();
    let requests: u64 = pairs.iter().map(|(row, _)| row.requests).sum();
    let mean = |error: &dyn Fn(&GroupFigures, &GroupFigures) -> f64| {
        let sum: f64 = pairs.iter().map(|(row, model)| row.requests as f64 * error(row, model)).sum();
        sum / requests as f64
    };
    let relative = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (Some(one), Some(other)) => {
            let (one, other) = (one.max(SHORT / 1e3), other.max(SHORT / 1e3));
            (other / one - 1.0).abs()
        }
        (None, None) => 0.0,
        _ => 1.0,
    };
    let refused = |row: &GroupFigures| row.refused as f64 / row.requests.max(1) as f64;
    (requests > 0).then(|| ModelError {
        first_token_p50: mean(&|row, model| relative(row.first_token_p50, model.first_token_p50)),
        first_token_p95: mean(&|row, model| relative(row.first_token_p95, model.first_token_p95)),
        wait_p50: mean(&|row, model| relative(row.wait_p50, model.wait_p50)),
        refused: mean(&|row, model| (refused(row) - refused(model)).abs()),
        share: mean(&|row, model| (row.share - model.share).abs()),
    })
}
