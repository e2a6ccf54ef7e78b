//! Everything that decides. Synchronous, deterministic and pure: time and
//! events are passed in, actions with their reasons come out. No I/O, clock,
//! environment, log, thread or randomness of its own.

pub mod event;
pub mod ids;
pub mod job;
pub mod policy;
pub mod snapshot;
pub mod table;
pub mod time;
