//! Which replica has what a request can use: adapters, prompt prefixes, sessions.

pub mod adapter_slots;
pub mod prefix_index;
pub mod sessions;
