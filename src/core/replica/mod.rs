//! Replicas as the core knows them: the ledger, speed, limits, health and caches.

pub mod affinity;
pub mod bottleneck;
pub mod fleet;
pub mod health;
pub mod itl_limit;
pub mod kv_use;
pub mod ledger;
pub mod reconcile;
pub mod reserved_replicas;
pub mod scores;
pub mod seq_limit;
pub mod speed;
