//! Source rows: the status of replica sources.

use serde::Serialize;

use crate::core::model::ids::PoolId;
use crate::fleet::discovery::SourceStatus;

/// Status of a pool's replica source beside the file's list.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct SourceStatusRow {
    kind: &'static str,
    endpoints: Option<usize>,
    age_seconds: Option<f64>,
    problem: Option<String>,
}

/// Status row of the pool's source; absent when the pool has none.
pub(in crate::admin) fn source(pool: PoolId, sources: &[SourceStatus]) -> Option<SourceStatusRow> {
    let view = sources.iter().find(|view| view.pool == pool)?;
    Some(SourceStatusRow {
        kind: view.source,
        endpoints: view.endpoints,
        age_seconds: view.age.map(|age| age.as_secs_f64()),
        problem: view.problem.clone(),
    })
}
