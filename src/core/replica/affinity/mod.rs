//! Affinity: adapters, prompt prefixes and sessions that a replica has and a request can use.

pub mod adapter_slots;
pub mod cache_record;
pub mod prefix_index;
pub mod sessions;

use crate::replica::affinity::prefix_index::PrefixIndex;
use crate::replica::affinity::sessions::Sessions;

/// What replicas keep of earlier requests: the starts of their prompts, and their sessions.
#[derive(Debug, Default)]
pub struct Affinity {
    pub prefixes: PrefixIndex,
    pub sessions: Sessions,
}
