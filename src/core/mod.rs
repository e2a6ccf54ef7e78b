//! Everything that decides. Synchronous, deterministic and pure: time and
//! events are passed in, actions with their reasons come out. No I/O, clock,
//! environment, log, thread or randomness of its own.

pub mod admission;
pub mod ages;
pub mod backlog;
pub mod bits;
pub mod board;
pub mod cold;
pub mod estimate;
pub mod event;
pub mod fairness;
pub mod fleet;
pub mod foreign;
pub mod ids;
pub mod invariant;
pub mod job;
pub mod limits;
pub mod number_map;
pub mod order;
pub mod overrides;
pub mod pace;
pub mod placement;
pub mod policy;
pub mod predict;
pub mod prefix;
pub mod queue;
pub mod quota;
pub mod reserve;
pub mod routing;
pub mod scheduler;
pub mod snapshot;
pub mod speed;
pub mod table;
pub mod time;
pub mod vitals;
pub mod watch;
