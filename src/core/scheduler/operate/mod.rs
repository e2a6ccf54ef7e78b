//! Operation of the scheduler: overrides, reload, explanations, snapshots, audit.

pub(super) mod audit;
pub(super) mod inspect;
pub(super) mod overrides;
pub(super) mod reload;
