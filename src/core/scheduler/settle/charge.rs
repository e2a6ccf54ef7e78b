//! Charges: the bill of each stay at a replica, and its wasted tokens.

use std::time::Duration;

use crate::core::billing::bill::{AttemptBill, Waste, WasteCause};
use crate::core::model::event::{Action, JobAction};
use crate::core::model::ids::{JobId, PoolId};
use crate::core::model::job::JobUsage;

use crate::core::scheduler::Scheduler;
use crate::core::scheduler::job::{Job, RunningAttempt};

/// What a stay at a replica consumed in vain.
#[derive(Debug, Clone, Copy)]
pub(in crate::core::scheduler) struct WastedUse {
    pub(in crate::core::scheduler) why: WasteCause,
    /// As far as it is known.
    pub(in crate::core::scheduler) usage: JobUsage,
}

impl Scheduler {
    /// Bills a stay that is over, and adds it to what its job has spent.
    pub(in crate::core::scheduler) fn bill(
        &mut self,
        id: JobId,
        pool: PoolId,
        run: &RunningAttempt,
        time: Duration,
        wasted: Option<WastedUse>,
        out: &mut Vec<Action>,
    ) {
        let bill = self.fleet.accounts.charge(pool, run.replica, time);
        if let Some(job) = self.jobs.get_mut(&id) {
            job.charges.add_attempt(time, bill.money);
        }
        let waste = wasted.map(|wasted| Waste { tokens: tokens(run, &wasted), why: wasted.why });
        out.push(Action::Job(JobAction::Billed { job: id, bill: AttemptBill { waste, ..bill } }));
    }

    /// Time for which the pool's replicas were present and worked, since the start of the gateway.
    #[cfg(test)]
    pub(crate) fn times(&self, pool: PoolId) -> crate::core::billing::pool_account::PoolTimes {
        self.fleet.accounts.times(pool, self.now)
    }

    /// Whether what replicas share out is what their jobs have a part in.
    pub(in crate::core::scheduler) fn shares_are_consistent(&self) -> bool {
        let mut weights = std::collections::BTreeMap::new();
        for run in self.jobs.values().filter_map(Job::attempt) {
            *weights.entry(run.replica).or_insert(0) += run.stay.weight();
        }
        self.fleet.meters_are_consistent(|replica| weights.get(&replica).copied().unwrap_or(0))
    }
}

/// Tokens that were read or written for nobody. Of a stream that goes on
/// elsewhere the client keeps what was written; of what nobody counted, the
/// prompt is what was surely sent.
fn tokens(run: &RunningAttempt, wasted: &WastedUse) -> u64 {
    match wasted.usage.tokens() {
        Some(tokens) if wasted.why != WasteCause::Interrupted => {
            tokens.input.saturating_sub(tokens.from_cache()).saturating_add(tokens.output)
        }
        _ => run.uncached,
    }
}
