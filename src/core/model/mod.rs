//! Model: the types that all of the core shares: ids, time, policy, jobs, events and snapshots.

pub mod averages;
pub mod bit_set;
pub mod event;
pub mod id_table;
pub mod ids;
pub mod invariant;
pub mod job;
pub mod number_map;
pub mod overrides;
pub mod policy;
pub mod reason;
pub mod snapshot;
pub mod time;
