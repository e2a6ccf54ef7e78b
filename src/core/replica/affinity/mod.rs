//! Affinity: adapters, prompt prefixes and sessions that a replica has and a request can use.

pub mod adapter_slots;
pub mod prefix_index;
pub mod sessions;
