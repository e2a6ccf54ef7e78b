//! Core: every decision of the gateway. The core is synchronous, deterministic and pure: time and
//! events are passed in, actions with their reasons come out. The core does no I/O, and has no
//! clock, environment, log, thread or randomness of its own.

pub mod autoscale;
pub mod billing;
pub mod limits;
pub mod model;
pub mod placement;
pub mod queue;
pub mod replica;
pub mod scheduler;
