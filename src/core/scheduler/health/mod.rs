//! Health: the effect of faults, probes and reports on a replica.
//!
//! A fault ejects when it says something about the replica:
//!
//! * a refused connection and a drain text always do;
//! * a malformed answer does when three come in a row;
//! * silence does only if the engine has shown no sign of life to any request meanwhile. With a sign
//!   of life, one request hangs, and not its engine. The silence about a suspect never does (see
//!   [`stalls`]);
//! * a busy answer and an answer that exceeds its time limit never do;
//! * any other fault does only if no engine has failed that job before: a job
//!   that breaks whatever it meets ejects one replica, not the fleet, while a
//!   replica that breaks whatever it gets is ejected by the next job;
//! * a fault of a stream that began before the replica's last return does not.
//!
//! A replica with bad answers or with silence stays in service when too many of its pool are ejected
//! already. It then pauses like a busy replica, and is tried with one job at a time. A fault that all
//! replicas show rarely lies with them.
//!
//! Streams of an ejected replica go on.

pub(super) mod departures;
pub(super) mod prefill;
pub(super) mod sleep;
pub(super) mod stalls;

use crate::model::event::{Action, EngineFault, ReplicaAction};
use crate::model::ids::ReplicaId;
use crate::replica::health::stall_detector::StallVerdict;

use super::Scheduler;
use super::job::RunningAttempt;

impl Scheduler {
    /// Draws the conclusions from a fault for the replica that had it.
    pub(super) fn judge_fault(
        &mut self,
        run: &RunningAttempt,
        fault: EngineFault,
        has_failed: bool,
        out: &mut Vec<Action>,
    ) {
        let now = self.now;
        if let EngineFault::Busy { retry_after } = fault {
            self.fleet
                .change_health(run.replica, now, |health, rules| health.note_busy(now, retry_after, rules));
            self.mark_replica(run.replica);
            return;
        }
        let hangs = fault == EngineFault::Silent && self.fleet.is_alive(run.replica, run.since, now);
        if hangs || fault == EngineFault::AnswerTimeout {
            return;
        }
        let fallen = self.fleet.has_changed_since(run.replica, run.epoch);
        let stays = (fault.is_still_answering() || fault == EngineFault::Silent)
            && !fallen
            && !self.fleet.may_eject(run.replica);
        if stays && self.fleet.is_on_trial(run.replica) {
            return self.back_off(run.replica);
        }
        let garbled = fault == EngineFault::Malformed && !has_failed;
        let too_often = self.fleet.change_health(run.replica, now, |health, _| {
            health.answered(now);
            garbled && health.note_invalid()
        });
        let its_own = matches!(fault, EngineFault::Refused | EngineFault::Draining) || !has_failed;
        let ejects = (fault.ejects() && its_own) || too_often == Some(true);
        if !ejects || fallen {
            return;
        }
        if stays {
            return self.withhold_ejection(run.replica, fault, out);
        }
        self.eject(run.replica, fault, out);
        if fault == EngineFault::Silent {
            self.vacate_stalled(run.replica, out);
        }
        if fault == EngineFault::Refused {
            self.fleet.change_health(run.replica, now, |health, _| health.note_contact(now, false));
        }
    }

    /// The replica is to blame, but too many of its pool are out: the replica only pauses.
    pub(super) fn withhold_ejection(&mut self, replica: ReplicaId, why: EngineFault, out: &mut Vec<Action>) {
        self.back_off(replica);
        out.push(Action::Replica(ReplicaAction::WithholdEjection { replica, why }));
    }

    /// The replica gets no work for a moment, then one job. Until that job succeeds, failures there
    /// take from the retry budget.
    fn back_off(&mut self, replica: ReplicaId) {
        let now = self.now;
        self.fleet.change_health(replica, now, |health, rules| health.pause_instead_of_ejecting(now, rules));
        self.mark_replica(replica);
    }

    /// True when a replica that had answered now fails: all its jobs fail at the same moment, so they
    /// do not take from the retry budget. A replica that has given nothing since it came back counts
    /// as not working.
    pub(super) fn is_of_same_outage(&self, run: &RunningAttempt, has_failed: bool) -> bool {
        let worked = run.proven || run.booking.started;
        worked && (!has_failed || self.fleet.has_changed_since(run.replica, run.epoch))
    }

    /// A probe failed, or somebody took the replica away.
    pub(super) fn replica_lost(&mut self, replica: ReplicaId, answers: bool, out: &mut Vec<Action>) {
        let now = self.now;
        self.fleet.change_health(replica, now, |health, rules| health.probe_failed(now, rules));
        self.eject(replica, EngineFault::Refused, out);
        self.fleet.change_health(replica, now, |health, _| health.note_contact(now, answers));
    }

    pub(super) fn probe_succeeded(&mut self, replica: ReplicaId, out: &mut Vec<Action>) {
        let now = self.now;
        let after = self.fleet.change_health(replica, now, |health, _| health.readmit(now)).flatten();
        if let Some(after) = after {
            out.push(Action::Replica(ReplicaAction::Readmit { replica, after }));
            self.mark_replica(replica);
        }
    }

    /// Runs the replica timers that are due: probes, busy periods, slow-start steps, stall and sleep
    /// checks.
    pub(super) fn run_replica_timers(&mut self, out: &mut Vec<Action>) {
        let now = self.now;
        while let Some(replica) = self.fleet.due(now) {
            let probe = self.fleet.change_health(replica, now, |health, rules| health.run_timers(now, rules));
            if probe == Some(true) {
                out.push(Action::Replica(ReplicaAction::Probe { replica }));
            }
            match self.fleet.check_stall(replica, now) {
                StallVerdict::Alive => {}
                StallVerdict::Scrape if self.fleet.shows_progress(replica) => {
                    out.push(Action::Replica(ReplicaAction::Scrape { replica }));
                }
                StallVerdict::Scrape => {}
                StallVerdict::Stalled(silence) => self.check_stalled(replica, silence, out),
            }
            self.check_sleep(replica, out);
            self.mark_replica(replica);
        }
    }

    pub(super) fn eject(&mut self, replica: ReplicaId, why: EngineFault, out: &mut Vec<Action>) {
        let now = self.now;
        let pool = self.fleet.pool_of(replica).filter(|pool| self.fleet.is_served(*pool));
        if self.fleet.change_health(replica, now, |health, rules| health.eject(now, rules)) == Some(true) {
            self.affinity.prefixes.forget(replica);
            self.fleet.forget_adapters(replica, now);
            out.push(Action::Replica(ReplicaAction::Eject { replica, why }));
            out.extend(
                pool.filter(|pool| !self.fleet.is_served(*pool))
                    .map(|pool| Action::Replica(ReplicaAction::PoolDown { pool, why })),
            );
            self.vain_waits_possible = true;
            self.mark_replica(replica);
        }
    }
}
