//! Replica health: ejected, probed, busy, or in slow start.

pub mod sleep;
pub mod stall_detector;
pub mod suspects;

use std::time::Duration;

use crate::model::policy::HealthPolicy;
use crate::model::snapshot::ReplicaStatus;
use crate::model::time::Tick;

/// A probe without an answer for this long counts as failed.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for which an engine can keep work away by answering "busy".
pub const MAX_BUSY: Duration = Duration::from_secs(30);
/// Longest pause of an engine that repeatedly answers "busy" without a time of its own.
const MAX_BUSY_PAUSE: Duration = Duration::from_secs(4);
/// Longest pause of a replica that is to blame for faults, but stays in service.
const MAX_SPARED_PAUSE: Duration = Duration::from_secs(1);
/// A replica is gone when nothing has answered there for this long.
pub const GONE_AFTER: Duration = Duration::from_secs(60);
/// An engine that has not refused a job within this time has taken it.
const TAKEN: Duration = Duration::from_secs(1);
/// Invalid answers in a row, to different requests, after which the replica is to blame. A single
/// answer that is no valid protocol may be the request's fault.
const MAX_GARBLED: u32 = 3;
/// Shortest pause of any kind, so that a zero in the policy cannot make the timers spin.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Ejected again within this time of coming back: the probe proved nothing, and the next pause is
/// twice as long.
const RELAPSE: Duration = Duration::from_secs(30);
/// Longest pause after relapses, where `probe_max` is shorter.
const MAX_RELAPSE_PAUSE: Duration = Duration::from_secs(10);
/// Steps in which the limit grows during slow start, beyond the first eighth.
const RAMP_STEPS: u128 = 7;

/// Health of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaHealth {
    out: Option<Ejection>,
    busy: Option<BusyState>,
    back_since: Option<Tick>,
    /// When the replica last came back.
    returned: Option<Tick>,
    /// Number of times in a row that the replica was ejected soon after it came back.
    relapses: u32,
    epoch: u32,
    /// True when no token and no whole answer has come since the replica joined or came back.
    unproven: bool,
    /// Invalid answers in a row. Readmission does not reset this count.
    invalid_answers: u32,
}

/// State of a replica that answered "busy". After the pause the replica gets one job. It gets more
/// only when that job, or any other, shows that the replica takes work again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BusyState {
    until: Tick,
    pause: Duration,
    /// When the trial job will count as taken.
    trial: Option<Tick>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ejection {
    since: Tick,
    /// Since when nothing answers there.
    silent_since: Option<Tick>,
    pause: Duration,
    probe: ProbeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeState {
    Due(Tick),
    Sent { until: Tick },
}

impl ReplicaHealth {
    /// Status of the replica now.
    pub fn state(&self, now: Tick, rules: &HealthPolicy) -> ReplicaStatus {
        if let Some(out) = self.out {
            let gone = out.silent_since.is_some_and(|since| now.since(since) >= GONE_AFTER);
            return if gone { ReplicaStatus::Gone } else { ReplicaStatus::Ejected };
        }
        if self.busy.is_some_and(|busy| busy.until > now) {
            return ReplicaStatus::Busy;
        }
        if self.eighths(now, rules) < 8 { ReplicaStatus::SlowStart } else { ReplicaStatus::Serving }
    }

    /// Number of times that the replica came back. A fault of a stream that began before the last
    /// return says nothing about the replica that came back.
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether the replica has answered since it joined or came back. Replicas present at the start
    /// of the gateway count as proven.
    pub const fn is_proven(&self) -> bool {
        !self.unproven
    }

    /// Whether the replica is ejected.
    pub const fn is_ejected(&self) -> bool {
        self.out.is_some()
    }

    /// Whether the replica is ejected and nothing answers there.
    pub const fn is_silent(&self) -> bool {
        matches!(self.out, Some(Ejection { silent_since: Some(_), .. }))
    }

    /// Notes that a token or a whole answer came from the replica.
    pub fn note_proof(&mut self) {
        (self.unproven, self.invalid_answers) = (false, 0);
    }

    /// Counts an invalid answer. Returns whether the replica has sent too many in a row.
    pub fn note_invalid(&mut self) -> bool {
        self.invalid_answers = self.invalid_answers.saturating_add(1);
        self.invalid_answers >= MAX_GARBLED
    }

    /// Eighths of its limit that the replica may use: one right after its return, eight when
    /// `slow_start` has passed.
    pub fn eighths(&self, now: Tick, rules: &HealthPolicy) -> u32 {
        let Some(since) = self.back_since else { return 8 };
        let (elapsed, whole) = (now.since(since).as_nanos(), rules.slow_start.as_nanos());
        if elapsed >= whole {
            return 8;
        }
        1 + u32::try_from(elapsed * RAMP_STEPS / whole).unwrap_or(7)
    }

    /// Ejects the replica. Returns false when it is ejected already.
    pub fn eject(&mut self, now: Tick, rules: &HealthPolicy) -> bool {
        if self.out.is_some() {
            return false;
        }
        let soon = self.returned.is_some_and(|at| now.since(at) < RELAPSE);
        self.relapses = if soon { self.relapses.saturating_add(1) } else { 0 };
        let first = rules.probe_min.max(MIN_PAUSE);
        let longest = rules.probe_max.max(first).max(MAX_RELAPSE_PAUSE);
        let pause = first.saturating_mul(1 << self.relapses.min(16)).min(longest);
        self.out =
            Some(Ejection { since: now, silent_since: None, pause, probe: ProbeState::Due(now + pause) });
        (self.busy, self.back_since) = (None, None);
        true
    }

    /// Pauses a replica that answered "busy", for `retry_after` if the answer gave a time. Another
    /// "busy" after a pause doubles the next pause.
    pub fn note_busy(&mut self, now: Tick, retry_after: Option<Duration>, rules: &HealthPolicy) {
        self.pause(now, retry_after, rules, MAX_BUSY_PAUSE);
    }

    /// Pauses a replica that is to blame for a fault, but stays in service. Its earlier answers no
    /// longer prove that it works.
    pub fn pause_instead_of_ejecting(&mut self, now: Tick, rules: &HealthPolicy) {
        self.pause(now, None, rules, MAX_SPARED_PAUSE);
        self.unproven = true;
    }

    fn pause(&mut self, now: Tick, retry_after: Option<Duration>, rules: &HealthPolicy, longest: Duration) {
        let bounded = |pause: Duration| pause.clamp(MIN_PAUSE, MAX_BUSY);
        let first = bounded(retry_after.filter(|asked| !asked.is_zero()).unwrap_or(rules.busy_backoff));
        let (pause, until) = match self.busy {
            Some(busy) if busy.until > now => (busy.pause, busy.until.max(now + first)),
            Some(busy) => {
                let longer = busy.pause.saturating_mul(2).min(longest).max(first);
                (longer, now + longer)
            }
            None => (first, now + first),
        };
        self.busy = Some(BusyState { until, pause, trial: None });
    }

    /// Whether the replica was busy and a trial job is under way that will show whether it still
    /// is.
    pub fn is_on_trial(&self) -> bool {
        self.busy.is_some_and(|busy| busy.trial.is_some())
    }

    /// Notes that a job was dispatched to the replica.
    pub fn sent(&mut self, now: Tick) {
        if let Some(busy) = self.busy.as_mut().filter(|busy| busy.until <= now) {
            busy.trial.get_or_insert(now + TAKEN);
        }
    }

    /// Notes a sign of success of a job there.
    pub fn answered(&mut self, now: Tick) {
        self.busy = self.busy.filter(|busy| busy.until > now);
    }

    /// Notes, while the replica is ejected, whether anything answers at its address.
    pub fn note_contact(&mut self, now: Tick, answers: bool) {
        if let Some(out) = &mut self.out {
            out.silent_since = if answers { None } else { out.silent_since.or(Some(now)) };
        }
    }

    /// Notes that the present probe failed. The pause before the next probe doubles.
    pub fn probe_failed(&mut self, now: Tick, rules: &HealthPolicy) {
        let Some(out) = &mut self.out else { return };
        if let ProbeState::Sent { .. } = out.probe {
            out.pause = out.pause.saturating_mul(2).min(rules.probe_max.max(rules.probe_min)).max(MIN_PAUSE);
            out.probe = ProbeState::Due(now + out.pause);
        }
    }

    /// Readmits the replica with a slow start. Returns for how long the replica was ejected; `None`
    /// when it was not.
    pub fn readmit(&mut self, now: Tick) -> Option<Duration> {
        let out = self.out.take()?;
        (self.back_since, self.returned) = (Some(now), Some(now));
        self.epoch = self.epoch.wrapping_add(1);
        self.unproven = true;
        Some(now.since(out.since))
    }

    /// Starts a slow start of a healthy replica that gets jobs again.
    pub fn slow_start(&mut self, now: Tick) {
        if self.out.is_none() {
            self.back_since = Some(now);
        }
    }

    /// Resets the health of a replica that is new in the policy, or was removed from it and put
    /// back. The replica gets a slow start.
    pub fn join(&mut self, now: Tick) {
        *self = Self {
            epoch: self.epoch.wrapping_add(1),
            back_since: Some(now),
            unproven: true,
            ..Self::default()
        };
    }

    /// Runs the timers that are due. Returns whether to send a probe.
    pub fn run_timers(&mut self, now: Tick, rules: &HealthPolicy) -> bool {
        self.busy = self.busy.filter(|busy| busy.trial.is_none_or(|taken| taken > now));
        if self.eighths(now, rules) == 8 {
            self.back_since = None;
        }
        let Some(out) = &mut self.out else { return false };
        match out.probe {
            ProbeState::Due(at) if at <= now => {
                out.probe = ProbeState::Sent { until: now + PROBE_TIMEOUT };
                true
            }
            ProbeState::Sent { until } if until <= now => {
                self.probe_failed(now, rules);
                false
            }
            ProbeState::Due(_) | ProbeState::Sent { .. } => false,
        }
    }

    /// Time of the next timer.
    pub fn next_wake(&self, now: Tick, rules: &HealthPolicy) -> Option<Tick> {
        match self.out.map(|out| out.probe) {
            Some(ProbeState::Due(at) | ProbeState::Sent { until: at }) => return Some(at),
            None => {}
        }
        let step = self.back_since.filter(|_| self.eighths(now, rules) < 8).map(|since| {
            let steps = u128::from(self.eighths(now, rules));
            let nanos = (rules.slow_start.as_nanos() * steps).div_ceil(RAMP_STEPS);
            since + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        });
        let busy = self.busy.and_then(|busy| if busy.until > now { Some(busy.until) } else { busy.trial });
        step.into_iter().chain(busy).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Tick {
        Tick::from_millis(millis)
    }

    fn rules() -> HealthPolicy {
        HealthPolicy::default()
    }

    #[test]
    fn probes_back_off_and_only_one_is_out() {
        let mut health = ReplicaHealth::default();
        assert!(health.eject(ms(0), &rules()));
        assert!(!health.eject(ms(1), &rules()));
        let mut sent = Vec::new();
        let mut now = ms(0);
        for _ in 0..5 {
            now = health.next_wake(now, &rules()).expect("a probe");
            assert!(health.run_timers(now, &rules()));
            assert!(!health.run_timers(now, &rules()), "one at a time");
            sent.push(now.as_nanos() / 1_000_000);
            health.probe_failed(now, &rules());
            health.probe_failed(now, &rules());
        }
        assert_eq!(sent, [200, 600, 1400, 2400, 3400]);
    }

    #[test]
    fn who_has_not_answered_for_a_minute_is_gone() {
        let mut health = ReplicaHealth::default();
        health.note_contact(ms(0), false);
        health.eject(ms(1000), &rules());
        assert_eq!(health.state(ms(100_000), &rules()), ReplicaStatus::Ejected, "nobody has looked");
        health.note_contact(ms(2000), false);
        health.note_contact(ms(3000), false);
        assert_eq!(health.state(ms(61_999), &rules()), ReplicaStatus::Ejected);
        assert_eq!(health.state(ms(62_000), &rules()), ReplicaStatus::Gone);
        health.note_contact(ms(63_000), true);
        assert_eq!(health.state(ms(63_000), &rules()), ReplicaStatus::Ejected, "it answers badly");
        assert!(health.readmit(ms(64_000)).is_some());
    }

    #[test]
    fn who_is_out_again_at_once_stays_out_longer() {
        let mut health = ReplicaHealth::default();
        let (mut now, mut pauses) = (ms(0), Vec::new());
        for _ in 0..8 {
            health.eject(now, &rules());
            let next = health.next_wake(now, &rules()).expect("a probe");
            pauses.push(next.since(now).as_millis());
            now = next;
            health.run_timers(now, &rules());
            health.readmit(now);
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        now += Duration::from_secs(31);
        health.eject(now, &rules());
        assert_eq!(health.next_wake(now, &rules()), Some(now + Duration::from_millis(200)));
    }

    #[test]
    fn a_probe_without_an_answer_is_lost() {
        let mut health = ReplicaHealth::default();
        health.eject(ms(0), &rules());
        assert!(health.run_timers(ms(200), &rules()));
        assert_eq!(health.next_wake(ms(200), &rules()), Some(ms(10_200)));
        assert!(!health.run_timers(ms(10_200), &rules()));
        assert_eq!(health.next_wake(ms(10_200), &rules()), Some(ms(10_600)));
    }

    #[test]
    fn it_comes_back_in_eighths() {
        let mut health = ReplicaHealth::default();
        health.eject(ms(0), &rules());
        assert_eq!(health.readmit(ms(700)), Some(Duration::from_millis(700)));
        assert_eq!(health.readmit(ms(700)), None);
        assert_eq!(health.epoch(), 1);
        let (mut now, mut seen) = (ms(700), Vec::new());
        while let Some(next) = health.next_wake(now, &rules()) {
            assert!(next > now);
            now = next;
            health.run_timers(now, &rules());
            seen.push(health.eighths(now, &rules()));
        }
        assert_eq!(seen, [2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(now, ms(5_700));
        assert_eq!(health.state(now, &rules()), ReplicaStatus::Serving);
    }

    #[test]
    fn busy_is_bounded_and_ends() {
        let mut health = ReplicaHealth::default();
        health.note_busy(ms(0), Some(Duration::from_secs(3600)), &rules());
        assert_eq!(health.state(ms(29_999), &rules()), ReplicaStatus::Busy);
        assert_eq!(health.next_wake(ms(0), &rules()), Some(ms(30_000)));
        assert_eq!(health.state(ms(30_000), &rules()), ReplicaStatus::Serving);

        health.note_busy(ms(1), None, &rules());
        assert_eq!(health.next_wake(ms(1), &rules()), Some(ms(30_000)), "the longer spell counts");

        let mut health = ReplicaHealth::default();
        health.note_busy(ms(0), None, &rules());
        assert_eq!(health.next_wake(ms(0), &rules()), Some(ms(250)));
        let zero = HealthPolicy { busy_backoff: Duration::ZERO, ..rules() };
        let mut health = ReplicaHealth::default();
        health.note_busy(ms(0), Some(Duration::ZERO), &zero);
        assert_eq!(health.next_wake(ms(0), &zero), Some(ms(1)), "never a spinning timer");
    }

    #[test]
    fn who_stays_busy_is_tried_with_one_job_and_ever_more_rarely() {
        let (mut health, mut now, mut pauses) = (ReplicaHealth::default(), ms(0), Vec::new());
        for _ in 0..6 {
            for _ in 0..3 {
                health.note_busy(now, None, &rules());
            }
            let next = health.next_wake(now, &rules()).expect("the end of the pause");
            pauses.push(next.since(now).as_millis());
            now = next;
            health.run_timers(now, &rules());
            assert!(!health.is_on_trial());
            health.sent(now);
            assert!(health.is_on_trial());
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 4000]);

        let mut answered = health;
        answered.answered(now);
        assert!(!answered.is_on_trial());
        answered.note_busy(now, None, &rules());
        assert_eq!(answered.next_wake(now, &rules()), Some(now + Duration::from_millis(250)));

        let taken = health.next_wake(now, &rules()).expect("the end of the trial");
        assert_eq!(taken, now + TAKEN);
        health.run_timers(taken, &rules());
        assert_eq!((health.is_on_trial(), health.next_wake(taken, &rules())), (false, None));
    }

    #[test]
    fn no_slow_start_means_full_size_at_once() {
        let at_once = HealthPolicy { slow_start: Duration::ZERO, ..rules() };
        let mut health = ReplicaHealth::default();
        health.eject(ms(0), &at_once);
        health.readmit(ms(5));
        assert_eq!(health.eighths(ms(5), &at_once), 8);
        assert_eq!(health.next_wake(ms(5), &at_once), None);
    }
}
