//! Operation of the scheduler: overrides, reload, explanations, snapshots, audit.

pub(super) mod audit;
pub(super) mod explain;
pub(super) mod overrides;
pub(super) mod reload;
pub(super) mod snapshot;
