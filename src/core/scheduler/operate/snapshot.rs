//! Snapshot: the queues, replicas, pools and overrides of the scheduler at one instant.

use crate::core::model::snapshot::{QueueSnapshot, Snapshot};
use crate::core::model::time::Tick;
use crate::core::queue::lane_key::LanePart;

use crate::core::scheduler::Scheduler;

impl Scheduler {
    /// Everything that waits and runs, as of `now`.
    #[must_use]
    pub fn snapshot(&self, now: Tick) -> Snapshot {
        let now = self.now.max(now);
        let queues = self.queue.lanes_unsorted().map(|(key, lane)| {
            let load = lane.load();
            let returned = lane.head(LanePart::Returned).and_then(|id| self.jobs.get(&id));
            let ages = [lane.oldest().map(|arrived| now.since(arrived)), returned.map(|job| job.queued(now))];
            let row = QueueSnapshot {
                tenant: key.tenant,
                class: key.class,
                model: key.model,
                waiting: load.requests,
                bytes: u64::try_from(load.bytes).unwrap_or(u64::MAX),
                tokens: u64::try_from(load.tokens).unwrap_or(u64::MAX),
                oldest: ages.into_iter().flatten().max().unwrap_or_default(),
            };
            (*key, row)
        });
        let mut queues: Vec<_> = queues.collect();
        queues.sort_unstable_by_key(|(key, _)| *key);
        let queues = queues.into_iter().map(|(_, row)| row).collect();
        let replicas: Vec<_> = self.fleet.snapshots(now).collect();
        Snapshot {
            queues,
            pools: self.pool_snapshots(&replicas, now),
            replicas,
            overrides: self.overrides.active(now).collect(),
            jobs: self.jobs.len() as u64,
            broken_invariants: self.invariants.broken(),
        }
    }
}
