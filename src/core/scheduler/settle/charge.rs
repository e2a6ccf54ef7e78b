//! Charges: the bill of each attempt, and its wasted tokens.

use std::time::Duration;

use crate::billing::bill::{AttemptBill, Waste, WasteCause};
use crate::model::event::{Action, JobAction};
use crate::model::ids::{JobId, PoolId};
use crate::model::job::JobUsage;

use crate::scheduler::Scheduler;
use crate::scheduler::job::{Job, RunningAttempt};

/// Use of an attempt that was in vain.
#[derive(Debug, Clone, Copy)]
pub(in crate::scheduler) struct WastedUse {
    pub(in crate::scheduler) why: WasteCause,
    /// Use as far as it is known.
    pub(in crate::scheduler) usage: JobUsage,
}

impl Scheduler {
    /// Bills an attempt that ended, and adds the bill to the job's charges.
    pub(in crate::scheduler) fn bill(
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
    pub(crate) fn times(&self, pool: PoolId) -> crate::billing::pool_account::PoolTimes {
        self.fleet.accounts.times(pool, self.now)
    }

    /// Whether each meter's total weight equals the sum over its jobs.
    pub(in crate::scheduler) fn shares_are_consistent(&self) -> bool {
        let mut weights = std::collections::BTreeMap::new();
        for run in self.jobs.values().filter_map(Job::attempt) {
            *weights.entry(run.replica).or_insert(0) += run.metered.weight();
        }
        self.fleet.meters_are_consistent(|replica| weights.get(&replica).copied().unwrap_or(0))
    }
}

/// Wasted tokens. A stream that continues elsewhere keeps its output, so only its uncached prompt is
/// wasted. Without a token count, the uncached prompt is charged.
fn tokens(run: &RunningAttempt, wasted: &WastedUse) -> u64 {
    match wasted.usage.tokens() {
        Some(tokens) if wasted.why != WasteCause::Interrupted => {
            tokens.input.saturating_sub(tokens.from_cache()).saturating_add(tokens.output)
        }
        _ => run.uncached,
    }
}
