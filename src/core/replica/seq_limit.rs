//! Sequence limit: the sequences that a replica may have at once.

use crate::model::event::ReplicaReport;
use crate::replica::ledger::Ledger;

/// Initial sequence limit of a replica of which nothing is known: vLLM's default of
/// `--max-num-seqs`. The learned limit may exceed it.
pub const DEFAULT_SEQS: u32 = 256;
/// Upper bound of a learned limit, beyond what any engine runs.
const MOST_SEQS: u32 = 1 << 16;

/// Sequences that one request may ask for at a replica of which nothing is known: what vLLM runs by
/// default on the largest accelerators. The learned limit bounds what the replica gets, not what a
/// client may ask for.
const DEFAULT_REQUEST_SEQS: u32 = 1024;

/// Learned sequence limit, used where neither the operator nor the engine gives the number of
/// sequences.
///
/// # When it falls
///
/// The engine shows its number of slots when it runs as many sequences in two reports while it
/// holds requests back beyond its buffer, and what this gateway sent explains all of its load. One
/// such report is not enough, since a burst of prompts waits for a moment in every engine.
/// Sequences whose prompts wait for a step that can prefill them do not count as held back. But an
/// engine that runs exactly its largest number of sequences in three reports, while others wait,
/// shows it, too; one alone only when it has its first token. Where jobs have several sequences, fewer
/// than ran before are no limit until ten reports with waiting requests in a row had fewer. The
/// limit falls to the number shown.
///
/// # When it rises
///
/// A report without held-back requests raises the limit while the limit is used up: while it has no
/// room for one more job as wide as the jobs there are on average. Until the engine shows its
/// slots, the limit doubles up to 256 and rises by a quarter from there, and a used-up limit asks
/// for a report ([`Fleet::wants_report`](crate::replica::fleet::Fleet::wants_report)). After that it rises by one, as a probe: one that the
/// engine answers with a queue was in vain, and the next one waits twice as long, up to eight
/// reports, or more where the engine has fewer than 32 slots. An engine that runs more than it has
/// shown has more slots.
///
/// # Replicas of one pool
///
/// A replica that has not shown its slots yet begins with what another replica of its pool has
/// shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedSeqLimit {
    limit: u32,
    held_back: Option<u32>,
    /// The slots that the engine has shown.
    shown: Option<u32>,
    /// True once it has shown them, or had those of its pool.
    started: bool,
    top: BusyPeak,
    probe: ProbeInterval,
}

impl Default for LearnedSeqLimit {
    fn default() -> Self {
        Self {
            limit: DEFAULT_SEQS,
            held_back: None,
            shown: None,
            started: false,
            top: BusyPeak::default(),
            probe: ProbeInterval::default(),
        }
    }
}

/// Reports with the same largest number of running sequences while others wait, after which that
/// number is the engine's limit.
const ALIKE: u8 = 3;
/// Reports in a row with fewer running sequences while others wait, after which the largest number
/// is forgotten. It was no limit, or the engine has restarted with another one.
const FEWER: u8 = 10;

/// Most sequences that an engine ran lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct BusyPeak {
    running: u32,
    /// Reports that showed exactly `running` while others waited.
    alike: u8,
    /// Reports since then that showed fewer while others waited.
    fewer: u8,
}

impl BusyPeak {
    /// Notes the running sequences, the sequences that have their first token, and whether others
    /// waited. Returns whether the engine runs no more. One sequence alone may only keep others from
    /// their prefill while it has its own.
    fn update(&mut self, running: u32, decoding: u32, others_wait: bool) -> bool {
        if running > self.running || self.fewer >= FEWER {
            *self = Self { running, ..Self::default() };
        }
        if !others_wait {
            return false;
        }
        if running < self.running {
            self.fewer += 1;
            return false;
        }
        (self.alike, self.fewer) = (self.alike.saturating_add(1), 0);
        self.alike >= ALIKE && running > 0 && (running > 1 || decoding > 0)
    }
}

/// Slots times most reports between two probes of a limit that the engine has shown. A request
/// that goes beyond the slots waits inside for the end of another one: the fewer slots, the larger
/// the part of all requests.
const PROBE_SLOTS: u32 = 256;
/// Bounds of the most reports between two probes.
const MAX_PROBE_INTERVAL: (u32, u32) = (8, 128);

/// When a limit that the engine has shown is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProbeInterval {
    /// Reports between two probes.
    interval: u32,
    /// Reports since the last probe in which the limit was used up.
    since: u32,
    /// True from a probe until the engine shows its slots again.
    probing: bool,
}

impl Default for ProbeInterval {
    fn default() -> Self {
        Self { interval: 1, since: 0, probing: false }
    }
}

impl ProbeInterval {
    /// Counts a report in which the limit was used up. Returns whether to probe now.
    fn count_report(&mut self) -> bool {
        self.since += 1;
        if self.since < self.interval {
            return false;
        }
        (self.since, self.probing) = (0, true);
        true
    }

    /// Notes that the engine showed its slots. A probe was in vain then.
    fn fail(&mut self, slots: u32) {
        if std::mem::take(&mut self.probing) {
            let (least, most) = MAX_PROBE_INTERVAL;
            let most = (PROBE_SLOTS / slots.max(1)).clamp(least, most);
            self.interval = (self.interval * 2).min(most);
        }
        self.since = 0;
    }
}

impl LearnedSeqLimit {
    /// The limit as learned so far.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// The slots that the engine has shown, where nothing disproved them since.
    pub const fn shown(&self) -> Option<u32> {
        self.shown
    }

    /// Begins with the slots that another replica of the pool has shown, unless this one runs more.
    pub fn start_with(&mut self, slots: u32, report: &ReplicaReport) {
        let fits = report.running.is_some_and(|running| running <= u64::from(slots));
        if !self.started && fits && slots < self.limit {
            (self.limit, self.shown, self.started) = (slots, Some(slots), true);
        }
    }

    /// Learns from a report, by the jobs and sequences that are booked there and the sequences whose
    /// prefill may still run.
    pub fn learn(&mut self, report: &ReplicaReport, booked: &Ledger, elsewhere: u32, buffer: u32) {
        let with_others = |seqs: u32| {
            let all = u64::from(seqs) * u64::from(booked.seqs.saturating_add(elsewhere));
            u32::try_from(all.div_ceil(u64::from(booked.seqs.max(1)))).unwrap_or(u32::MAX)
        };
        let ours = booked.seqs.saturating_add(elsewhere);
        let (prefilling, short) = (with_others(booked.prefilling), with_others(booked.short));
        let (Some(running), Some(waiting)) = (report.running, report.waiting) else { return };
        let holds_back = waiting > u64::from(buffer.saturating_add(prefilling));
        let own = running.saturating_add(waiting) <= u64::from(ours);
        let seen = u32::try_from(running).unwrap_or(u32::MAX);
        if self.shown.is_some_and(|shown| seen > shown) {
            (self.shown, self.held_back, self.probe) = (None, None, ProbeInterval::default());
        }
        let decoding = ours.saturating_sub(prefilling);
        let others_wait = waiting > u64::from(buffer.saturating_add(short));
        if own && self.top.update(seen, decoding, others_wait) {
            self.lower(seen);
        } else if !holds_back {
            self.held_back = self.held_back.filter(|before| seen <= *before);
            if self.is_used_up(booked, elsewhere, buffer) {
                self.raise();
            }
        } else if !own {
            self.held_back = None;
        } else if seen > 0 {
            let is_near = |other: u32| other.abs_diff(seen) <= (seen / 16).max(1);
            if let Some(before) = self.held_back.replace(seen).filter(|before| is_near(*before))
                && (booked.seqs == booked.jobs || seen >= self.top.running || is_near(self.top.running))
            {
                self.lower(before.max(seen));
            }
        }
    }

    /// Whether the limit has no room for one more job as wide as those booked are on average.
    pub fn is_used_up(&self, booked: &Ledger, elsewhere: u32, buffer: u32) -> bool {
        let width = booked.seqs.div_ceil(booked.jobs.max(1));
        booked.seqs.saturating_add(elsewhere).saturating_add(width) > self.limit.saturating_add(buffer)
    }

    fn lower(&mut self, slots: u32) {
        self.limit = self.limit.min(slots);
        (self.shown, self.started) = (Some(self.limit), true);
        self.probe.fail(self.limit);
    }

    fn raise(&mut self) {
        let step = match self.shown {
            Some(_) if !self.probe.count_report() => return,
            Some(_) => 1,
            None if self.limit < DEFAULT_SEQS => self.limit.min(DEFAULT_SEQS - self.limit),
            None => self.limit / 4,
        };
        self.limit = self.limit.saturating_add(step).min(MOST_SEQS);
    }
}

/// Sequences that a replica may have at full size: the operator's number, else the engine's, else
/// the learned one, plus the buffer that may wait inside the engine.
pub fn full_seqs(
    configured: Option<u32>,
    reported: Option<u32>,
    learned: LearnedSeqLimit,
    buffer: u32,
) -> u32 {
    configured.or(reported).unwrap_or(learned.limit()).max(1).saturating_add(buffer)
}

/// Sequences that one request may ask for: the operator's number, else the engine's, else 1,024,
/// plus the buffer that may wait inside the engine.
pub fn max_request_seqs(configured: Option<u32>, reported: Option<u32>, buffer: u32) -> u32 {
    configured.or(reported).unwrap_or(DEFAULT_REQUEST_SEQS).max(1).saturating_add(buffer)
}

/// Limit during slow start: this many eighths of the full limit, at least 1.
pub fn ramped(full: u32, eighths: u32) -> u32 {
    let part = u64::from(full) * u64::from(eighths.min(8)) / 8;
    u32::try_from(part).unwrap_or(full).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(running: u64, waiting: u64) -> ReplicaReport {
        ReplicaReport { running: Some(running), waiting: Some(waiting), ..ReplicaReport::default() }
    }

    fn booked(seqs: u32, prefilling: u32) -> Ledger {
        Ledger { jobs: seqs, seqs, prefilling, ..Ledger::default() }
    }

    #[test]
    fn configured_goes_before_reported_before_learned() {
        let learned = LearnedSeqLimit::default();
        assert_eq!(full_seqs(Some(4), Some(8), learned, 2), 6);
        assert_eq!(full_seqs(None, Some(8), learned, 0), 8);
        assert_eq!(full_seqs(None, Some(0), learned, 0), 1);
        assert_eq!(full_seqs(None, None, learned, 0), 256);
    }

    #[test]
    fn two_reports_of_held_back_requests_lower_the_limit() {
        let mut learned = LearnedSeqLimit::default();
        learned.learn(&report(3, 97), &booked(100, 0), 0, 0);
        assert_eq!(learned.limit(), 256, "a burst waits for a moment in every engine");
        for _ in 0..2 {
            assert_eq!(learned.limit(), 256, "how many it runs still changes");
            learned.learn(&report(32, 68), &booked(100, 0), 0, 0);
        }
        assert_eq!(learned.limit(), 32);
    }

    #[test]
    fn of_wide_jobs_fewer_than_ran_before_are_no_limit_at_once() {
        let eight = |jobs: u32| Ledger { jobs, seqs: 8 * jobs, ..Ledger::default() };
        let mut learned = LearnedSeqLimit::default();
        for _ in 0..2 {
            learned.learn(&report(32, 64), &eight(12), 0, 0);
        }
        for _ in 0..FEWER {
            assert_eq!(learned.limit(), 32);
            learned.learn(&report(8, 24), &eight(4), 0, 0);
        }
        learned.learn(&report(8, 24), &eight(4), 0, 0);
        assert_eq!(learned.limit(), 8, "the engine was started anew with fewer");
    }

    #[test]
    fn an_engine_that_runs_fewer_shows_it_in_two_reports() {
        let mut learned = LearnedSeqLimit::default();
        for _ in 0..2 {
            learned.learn(&report(32, 68), &booked(100, 0), 0, 0);
        }
        for _ in 0..2 {
            learned.learn(&report(8, 24), &booked(32, 0), 0, 0);
        }
        assert_eq!(learned.limit(), 8, "its KV cache may be full");
    }

    #[test]
    fn one_sequence_that_has_its_prompt_read_shows_a_single_slot() {
        let mut learned = LearnedSeqLimit::default();
        for _ in 0..5 {
            learned.learn(&report(1, 7), &booked(8, 8), 0, 0);
        }
        assert_eq!(learned.limit(), 256, "its long prompt may keep the others waiting");
        for _ in 0..3 {
            learned.learn(&report(1, 7), &booked(8, 7), 0, 0);
        }
        assert_eq!(learned.limit(), 1);
    }

    #[test]
    fn an_engine_that_runs_nothing_shows_no_limit() {
        let mut learned = LearnedSeqLimit::default();
        for _ in 0..5 {
            learned.learn(&report(0, 5), &booked(5, 0), 0, 0);
        }
        assert_eq!(learned.limit(), 256);
    }

    #[test]
    fn reports_of_held_back_requests_need_not_follow_each_other() {
        let mut learned = LearnedSeqLimit::default();
        learned.learn(&report(32, 1), &booked(33, 0), 0, 0);
        for running in [31, 32, 29] {
            learned.learn(&report(running, 0), &booked(32, 0), 0, 0);
        }
        learned.learn(&report(32, 2), &booked(34, 0), 0, 0);
        assert_eq!(learned.limit(), 32);
    }

    #[test]
    fn more_running_sequences_than_before_begin_the_count_again() {
        let mut learned = LearnedSeqLimit::default();
        learned.learn(&report(32, 1), &booked(33, 0), 0, 0);
        learned.learn(&report(40, 0), &booked(40, 0), 0, 0);
        learned.learn(&report(32, 1), &booked(33, 0), 0, 0);
        assert_eq!(learned.limit(), 256);
    }

    /// Reports of an engine with `slots` whose limit is always used up. Returns how many of them
    /// showed a queue inside.
    fn drive(learned: &mut LearnedSeqLimit, slots: u32, reports: u32) -> u32 {
        let mut queues = 0;
        for _ in 0..reports {
            let ours = learned.limit();
            let running = ours.min(slots);
            queues += u32::from(ours > running);
            learned.learn(&report(u64::from(running), u64::from(ours - running)), &booked(ours, 0), 0, 0);
        }
        queues
    }

    #[test]
    fn a_shown_limit_is_probed_ever_more_seldom() {
        let mut learned = LearnedSeqLimit::default();
        drive(&mut learned, 32, 20);
        let queues = drive(&mut learned, 32, 90);
        assert!((8..=11).contains(&queues), "{queues}");
        assert!((32..=33).contains(&learned.limit()), "{}", learned.limit());
    }

    #[test]
    fn a_replica_starts_with_what_its_pool_has_shown_once() {
        let mut learned = LearnedSeqLimit::default();
        learned.start_with(32, &report(33, 0));
        assert_eq!(learned.limit(), 256, "it runs more");
        learned.start_with(32, &report(10, 0));
        assert_eq!((learned.limit(), learned.shown()), (32, Some(32)));
        drive(&mut learned, 256, 20);
        assert!(learned.limit() >= 256, "{}", learned.limit());
        learned.start_with(32, &report(10, 0));
        assert!(learned.limit() >= 256, "{}", learned.limit());
    }

    #[test]
    fn a_limit_that_is_disproved_doubles() {
        let mut learned = LearnedSeqLimit::default();
        drive(&mut learned, 16, 40);
        drive(&mut learned, 200, 2 * PROBE_SLOTS / 16);
        assert!((190..=210).contains(&learned.limit()), "{}", learned.limit());
    }

    #[test]
    fn prompts_that_wait_to_be_read_do_not_lower_it() {
        let mut learned = LearnedSeqLimit::default();
        for running in [4, 7, 5, 6, 7, 4, 5, 6, 4] {
            learned.learn(&report(running, 12), &booked(24, 12), 0, 0);
        }
        assert_eq!(learned.limit(), 256);
    }

    #[test]
    fn the_same_number_again_and_again_while_others_wait_is_the_limit() {
        let mut learned = LearnedSeqLimit::default();
        for running in [30, 32, 31, 32, 29] {
            assert_eq!(learned.limit(), 256);
            learned.learn(&report(running, 14), &booked(46, 14), 0, 0);
        }
        learned.learn(&report(32, 10), &booked(46, 14), 0, 0);
        assert_eq!(learned.limit(), 32);
        // The engine restarts with fewer slots.
        for _ in 0..FEWER + ALIKE {
            learned.learn(&report(16, 10), &booked(32, 16), 0, 0);
        }
        assert_eq!(learned.limit(), 16);
    }

    #[test]
    fn less_than_ran_before_is_no_limit() {
        let mut learned = LearnedSeqLimit::default();
        learned.learn(&report(18, 0), &booked(18, 0), 0, 0);
        for _ in 0..FEWER {
            learned.learn(&report(11, 1), &booked(12, 1), 0, 0);
        }
        assert_eq!(learned.limit(), 256);
    }

    #[test]
    fn a_limit_with_no_room_for_another_of_several_sequences_rises() {
        let mut learned = LearnedSeqLimit { limit: 11, shown: Some(11), ..LearnedSeqLimit::default() };
        let pairs = |jobs| Ledger { jobs, seqs: 2 * jobs, ..Ledger::default() };
        learned.learn(&report(8, 0), &pairs(4), 0, 0);
        assert_eq!(learned.limit(), 11);
        learned.learn(&report(10, 0), &pairs(5), 0, 0);
        assert_eq!(learned.limit(), 12);
        learned.learn(&report(12, 0), &pairs(6), 0, 0);
        assert!(learned.limit() >= 24, "the engine runs more than it had shown");
    }

    #[test]
    fn foreign_load_and_the_buffer_do_not_lower_it() {
        let mut learned = LearnedSeqLimit::default();
        for _ in 0..3 {
            learned.learn(&report(32, 68), &booked(50, 0), 0, 0);
            learned.learn(&report(32, 4), &booked(36, 0), 0, 4);
            learned.learn(
                &ReplicaReport { running: Some(9), ..ReplicaReport::default() },
                &booked(9, 0),
                0,
                0,
            );
        }
        assert_eq!(learned.limit(), 256);
    }

    #[test]
    fn it_recovers_only_when_used_up() {
        let mut learned = LearnedSeqLimit { limit: 4, shown: Some(4), ..LearnedSeqLimit::default() };
        learned.learn(&report(3, 0), &booked(3, 0), 0, 0);
        assert_eq!(learned.limit(), 4);
        learned.learn(&report(4, 0), &booked(4, 0), 0, 0);
        assert_eq!(learned.limit(), 5);
    }

    #[test]
    fn an_engine_with_more_places_than_usual_is_filled() {
        let mut learned = LearnedSeqLimit::default();
        for _ in 0..7 {
            let ours = learned.limit();
            learned.learn(&report(u64::from(ours), 0), &booked(ours, 0), 0, 0);
        }
        assert!(learned.limit() >= 1_024, "{}", learned.limit());
        for _ in 0..2 {
            learned.learn(&report(1_024, 200), &booked(1_224, 0), 0, 0);
        }
        assert_eq!(learned.limit(), 1_024);
    }

    #[test]
    fn a_ramp_starts_with_an_eighth() {
        assert_eq!(ramped(256, 1), 32);
        assert_eq!(ramped(4, 1), 1);
        assert_eq!(ramped(256, 8), 256);
        assert_eq!(ramped(u32::MAX, 8), u32::MAX);
    }
}
