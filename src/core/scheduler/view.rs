//! A picture of the scheduler.

use crate::core::snapshot::{QueueView, Snapshot};
use crate::core::time::Tick;

use super::Scheduler;

impl Scheduler {
    /// Everything that waits and runs, as of `now`.
    #[must_use]
    pub fn snapshot(&self, now: Tick) -> Snapshot {
        let now = self.now.max(now);
        let queues = self.queue.lanes().map(|(key, lane)| {
            let load = lane.load();
            let oldest = lane.oldest().and_then(|id| self.jobs.get(&id));
            QueueView {
                tenant: key.tenant,
                class: key.class,
                model: key.model,
                waiting: load.requests,
                bytes: u64::try_from(load.bytes).unwrap_or(u64::MAX),
                tokens: u64::try_from(load.tokens).unwrap_or(u64::MAX),
                oldest: oldest.map(|job| job.queued(now)).unwrap_or_default(),
            }
        });
        let queues = queues.collect();
        let replicas: Vec<_> = self.fleet.views(now).collect();
        Snapshot {
            queues,
            pools: self.pool_views(&replicas, now),
            replicas,
            overrides: self.overrides.views(now).collect(),
            jobs: self.jobs.len() as u64,
            broken_invariants: self.invariants.broken(),
        }
    }
}
