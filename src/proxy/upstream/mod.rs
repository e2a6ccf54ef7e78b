//! Upstream: connections to the engines. Each replica has one small connection pool. A request owns
//! its connection, and the answer returns the connection to the pool.

mod conn;
mod exchange;
mod io;
mod pool;
mod replica;
#[cfg(test)]
mod tests;
mod waker;
pub(crate) mod whole_body;

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;

pub use self::exchange::{AnswerHead, UpstreamExchange};
pub use self::replica::{UpstreamCall, UpstreamError, UpstreamReplica};

use crate::config::settings::{EdgeSettings, ReplicaSettings};
use crate::core::model::ids::ReplicaId;

/// The engines' addresses and their pools, by replica.
#[derive(Debug, Default)]
pub struct Upstreams {
    replicas: DashMap<ReplicaId, Arc<UpstreamReplica>>,
}

impl Upstreams {
    /// The replica's connections. They are created on first use, and again when the configuration
    /// changed the replica's address.
    #[must_use]
    pub fn replica(&self, id: ReplicaId, edge: &ReplicaSettings) -> Arc<UpstreamReplica> {
        if let Some(known) = self.replicas.get(&id)
            && known.is_at(edge)
        {
            return Arc::clone(&known);
        }
        let made = Arc::new(UpstreamReplica::new(edge));
        self.replicas.insert(id, Arc::clone(&made));
        made
    }

    /// Closes connections that were not used for `keep_alive`. Their engine is about to close them,
    /// or has closed them.
    pub fn close_idle(&self, keep_alive: Duration) {
        for replica in &self.replicas {
            replica.close_idle(keep_alive);
        }
    }

    /// Removes the connections of replicas that are no longer configured.
    pub fn retain(&self, edge: &EdgeSettings) {
        self.replicas.retain(|id, replica| edge.replicas.get(*id).is_some_and(|edge| replica.is_at(edge)));
    }
}
