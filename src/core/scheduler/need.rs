//! What pools need.

use std::collections::BTreeMap;

use crate::core::ids::PoolId;
use crate::core::need::Need;

use super::Scheduler;

impl Scheduler {
    /// One row for each pool of the policy.
    #[must_use]
    pub fn needs(&self) -> Vec<Need> {
        let mut tokens: BTreeMap<PoolId, u64> = BTreeMap::new();
        for (key, lane) in self.queue.lanes() {
            let load = u64::try_from(lane.load().tokens).unwrap_or(u64::MAX);
            for pool in self.placement.line(key).map(|line| &*line.pools).unwrap_or_default() {
                let sum = tokens.entry(*pool).or_default();
                *sum = sum.saturating_add(load);
            }
        }
        let mut running: BTreeMap<PoolId, u64> = BTreeMap::new();
        for (replica, ledger) in self.fleet.ledgers() {
            if let Some(pool) = self.fleet.pool_of(replica) {
                *running.entry(pool).or_default() += u64::from(ledger.jobs);
            }
        }
        let of = |rows: &BTreeMap<PoolId, u64>, pool| rows.get(&pool).copied().unwrap_or_default();
        let need = |pool: PoolId| {
            let ready = u32::try_from(self.fleet.count_up(&[pool])).unwrap_or(u32::MAX);
            let (queued, in_flight) = (self.waiting_for(pool), of(&running, pool));
            let (desired, reason) = match (queued > 0 || in_flight > 0, ready) {
                (false, _) => (0, "idle"),
                (true, 0) => (1, "start"),
                (true, ready) => (ready, "hold"),
            };
            Need {
                pool,
                desired: Some(desired),
                reason,
                keep: false,
                ready,
                queued,
                queued_tokens: of(&tokens, pool),
                in_flight,
                cold_start: self.starts.measured(pool),
            }
        };
        self.policy.pools.iter().map(|(pool, ..)| need(pool)).collect()
    }
}
