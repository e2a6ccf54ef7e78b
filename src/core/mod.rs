//! Everything that decides. Synchronous, deterministic and pure: time and
//! events are passed in, actions with their reasons come out. No I/O, clock,
//! environment, log, thread or randomness of its own.

pub mod adapters;
pub mod admission;
pub mod ages;
pub mod backlog;
pub mod best;
pub mod bits;
pub mod board;
pub mod budget;
pub mod cold;
pub mod cost;
pub mod estimate;
pub mod event;
pub mod fairness;
pub mod fleet;
pub mod foreign;
pub mod ids;
pub mod invariant;
pub mod job;
pub mod limits;
pub mod need;
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
pub mod rest;
pub mod retries;
pub mod routing;
pub mod scheduler;
pub mod sessions;
pub mod snapshot;
pub mod speed;
pub mod table;
pub mod throttle;
pub mod time;
pub mod unkept;
pub mod vitals;
pub mod watch;
