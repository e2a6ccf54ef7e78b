//! Tasks that run beside the requests of a gateway.

pub(super) mod calendar;
pub(super) mod demand;
pub(super) mod idle;
pub(super) mod objectives;
pub(super) mod scaler;
