//! Warm first: a job may go before the first in the order, to a replica that has its prompt cached.
//!
//! When requests wait, each replica that becomes free would take the next one, whose prompt is
//! often cached elsewhere. Every replica would then prefill every prompt, and replicas that just
//! keep up while prompts are cached would fall behind for ever. So a job whose prompt would be
//! prefilled anew lets others go first whose prompt is cached where there is room: those of its
//! lane, and the heads of tenants that have received at most [`MAX_AHEAD`] more. It does so for at
//! most [`MAX_BYPASS`] of its objective, and goes at once when there are no such jobs.

use std::time::Duration;

use crate::model::ids::{GroupIndex, JobId};
use crate::queue::fairness::scaled;
use crate::queue::lane_key::LanePart;
use crate::queue::order::{Candidate, LaneHead};

use super::{DeferredPick, DispatchPick};
use crate::scheduler::Scheduler;
use crate::scheduler::job::Job;

/// Jobs of a lane that are looked at.
const MAX_LOOKED_AT: usize = 32;
/// Heads of other lanes that are looked at.
const MAX_HEADS: usize = 8;
/// Tokens that count as worth keeping to a replica.
const MIN_SAVED: u64 = 128;
/// Part of the TTFT objective for which a job lets others go first.
const MAX_BYPASS: f64 = 0.5;
/// Service that a tenant may be ahead of the one whose turn it is, as a cost (prompt tokens and
/// twice the output) for a weight of 1.
const MAX_AHEAD: u64 = 16_384;

impl Scheduler {
    /// Whether the job may go before the deferred one if it is warm.
    pub(super) fn may_precede(
        &self,
        group: GroupIndex,
        next: &Candidate,
        deferred: Option<&DeferredPick>,
    ) -> bool {
        let Some(DeferredPick { pick, heads }) = deferred else { return true };
        let first = &pick.candidate;
        let turn = |one: &Candidate| (one.class, one.head.part, one.guaranteed, one.quota_state);
        let (own, other) = (next.head.lane.tenant, first.head.lane.tenant);
        let ahead = self.groups[group].lead(next.class, own, other);
        *heads < MAX_HEADS && turn(next) == turn(first) && ahead <= scaled(MAX_AHEAD, 1.0)
    }

    /// A warm job that goes before `candidate`, or `candidate` itself after others have let it pass.
    /// `pick` is where `candidate` would go. When `candidate` lets others go first and there is none in
    /// its lane, the pick is deferred.
    pub(super) fn pick_warm(
        &mut self,
        group: GroupIndex,
        candidate: &Candidate,
        pick: Option<&DispatchPick>,
        deferred: &mut Option<DeferredPick>,
    ) -> Option<DispatchPick> {
        let saved = self.jobs.get(&candidate.head.job)?.cached.at_best;
        let is_cold = pick.is_none_or(|pick| saved.saturating_sub(pick.place.cached) >= MIN_SAVED);
        if let Some(first) = deferred {
            if let Some(pick) = pick.filter(|pick| !is_cold && pick.place.cached >= MIN_SAVED) {
                self.note_bypass(first.pick.candidate.head.job);
                return Some(DispatchPick { warm: true, ..*pick });
            }
            first.heads += 1;
        }
        if !is_cold || saved < MIN_SAVED || !self.lets_others_go_first(candidate) {
            return None;
        }
        if let Some(warm) = self.find_in_lane(group, candidate) {
            self.note_bypass(
                deferred.as_ref().map_or(candidate.head.job, |first| first.pick.candidate.head.job),
            );
            return Some(warm);
        }
        if deferred.is_none() {
            *deferred = pick.map(|pick| DeferredPick { pick: *pick, heads: 1 });
        }
        None
    }

    fn lets_others_go_first(&self, candidate: &Candidate) -> bool {
        let class = self.policy.classes.get(candidate.head.lane.class);
        let objective = class.map(|class| class.ttft_objective).unwrap_or_default();
        let since = self.jobs.get(&candidate.head.job).and_then(|job| job.cached.bypassed_since);
        let waited = since.map_or(Duration::ZERO, |since| self.now.since(since));
        candidate.head.part == LanePart::New && waited <= objective.mul_f64(MAX_BYPASS)
    }

    fn note_bypass(&mut self, first: JobId) {
        if let Some(job) = self.jobs.get_mut(&first) {
            job.cached.bypassed_since.get_or_insert(self.now);
        }
    }

    fn find_in_lane(&self, group: GroupIndex, candidate: &Candidate) -> Option<DispatchPick> {
        let lane = self.queue.lane(candidate.head.lane)?;
        let mut others = lane.fresh_in_order().filter(|id| *id != candidate.head.job).take(MAX_LOOKED_AT);
        others.find_map(|id| {
            let job = self.jobs.get(&id).filter(|job| is_ordinary(job, candidate.need.seqs))?;
            let cached = self.affinity.prefixes.matches(&job.prefix);
            let most = cached.first().map(|(_, tokens)| *tokens).filter(|tokens| *tokens >= MIN_SAVED)?;
            let required = job.requirements(&cached, candidate.background, &self.policy);
            let mut warm = cached.iter().take_while(|(_, tokens)| most - tokens < MIN_SAVED);
            warm.find(|(replica, _)| self.fleet.fits_or_returns(*replica, &required, false, self.now))?;
            let head = LaneHead { job: id, ..candidate.head };
            let other = Candidate { head, place: job.place, need: job.size(), ..*candidate };
            let place = self.choose_replica(group, &other, 0)?;
            let pool = self.fleet.pool_of(place.replica)?;
            let pick = DispatchPick { candidate: other, place, pool, held: false, warm: true };
            (most - place.cached < MIN_SAVED).then_some(pick)
        })
    }
}

/// Whether nothing but its prompt decides where the job goes.
fn is_ordinary(job: &Job, seqs: u32) -> bool {
    job.spec.sequences <= seqs && job.faults.failed_at.is_empty() && job.spec.session.is_none()
}
