//! Background tasks of a gateway: work that belongs to no request.

pub(super) mod calendar;
pub(super) mod demand;
pub(super) mod idle;
pub(super) mod keys;
mod memory;
pub(super) mod objectives;
pub(super) mod refusals;
pub(super) mod scaler;
pub(super) mod upkeep;
