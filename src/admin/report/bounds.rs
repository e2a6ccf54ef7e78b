//! Bounds row: the bounds of a queue as reports show them.

use serde::Serialize;

use crate::core::model::policy::QueueBounds;

/// Queue bounds; `null` = unbounded.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct BoundsRow {
    requests: Option<u64>,
    bytes: Option<u64>,
    tokens: Option<u64>,
}

impl BoundsRow {
    pub(in crate::admin) fn new(bounds: QueueBounds) -> Self {
        let bound = |limit: u64| Some(limit).filter(|limit| *limit != u64::MAX);
        Self { requests: bound(bounds.requests), bytes: bound(bounds.bytes), tokens: bound(bounds.tokens) }
    }
}
