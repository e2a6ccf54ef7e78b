//! gRPC answers that several calls of the scaler share.

use std::pin::Pin;

use futures_util::Stream;
use tonic::Status;

use crate::scaler::proto::{GetMetricSpecResponse, MetricSpec};
use crate::scaler::trigger::TriggerQuery;

pub(in crate::scaler) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The only metric of a trigger.
pub(in crate::scaler) fn spec_of(ask: &TriggerQuery) -> GetMetricSpecResponse {
    // An HPA with a target of 0 is refused by the API server.
    #[expect(clippy::cast_possible_truncation, reason = "the contract's type; it saturates")]
    let target_size = (ask.target as i64).max(1);
    let spec =
        MetricSpec { metric_name: ask.mode.metric().to_owned(), target_size, target_size_float: ask.target };
    GetMetricSpecResponse { metric_specs: vec![spec] }
}

pub(in crate::scaler) fn pool_removed(pool: &str) -> Status {
    Status::not_found(format!("no pool is called {pool:?} any more"))
}
