//! Sequence limit: the sequences that a replica may have at once.

use crate::core::model::event::ReplicaReport;

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
/// The limit falls to the number of running sequences when three conditions hold. The engine holds
/// requests back beyond its buffer. It runs as many sequences in two reports in a row. And what
/// this gateway sent explains all of its load. One such report is not enough, since a burst of
/// prompts waits for a moment in every engine.
///
/// Requests whose prompts wait for a step that can read them do not count as held back. But when an
/// engine runs exactly its largest number of sequences, report after report, while others wait, all
/// of its slots are taken.
///
/// Each report without held-back requests raises the limit while the limit is used up: by a quarter
/// until the engine has held requests back for the first time, then by a sixteenth, at least by
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedSeqLimit {
    limit: u32,
    held_back: Option<u32>,
    /// True when the engine has shown its limit before.
    limit_shown: bool,
    top: BusyPeak,
}

impl Default for LearnedSeqLimit {
    fn default() -> Self {
        Self { limit: DEFAULT_SEQS, held_back: None, limit_shown: false, top: BusyPeak::default() }
    }
}

/// Reports with the same largest number of running sequences while others wait, after which that
/// number is the engine's limit.
const ALIKE: u8 = 3;
/// Reports with fewer running sequences, after which the largest number is forgotten. The engine
/// may have restarted with another limit.
const FEWER: u8 = 10;

/// Most sequences that an engine ran while others waited there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct BusyPeak {
    running: u32,
    /// Reports that showed exactly `running`.
    alike: u8,
    /// Reports since then that showed fewer.
    fewer: u8,
}

impl BusyPeak {
    /// Notes the running sequences while others waited. Returns whether they are all that the
    /// engine runs.
    fn update(&mut self, running: u32) -> bool {
        if running > self.running || self.fewer >= FEWER {
            *self = Self { running, ..Self::default() };
        }
        if running < self.running {
            self.fewer += 1;
            return false;
        }
        (self.alike, self.fewer) = (self.alike.saturating_add(1), 0);
        running > 1 && self.alike >= ALIKE
    }
}

impl LearnedSeqLimit {
    /// The limit as learned so far.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Learns from a report. `ours` are the sequences booked there, `unread` the jobs whose prompts
    /// may still be read.
    pub fn learn(&mut self, report: &ReplicaReport, (ours, unread): (u32, u32), buffer: u32) {
        let (Some(running), Some(waiting)) = (report.running, report.waiting) else { return };
        let holds_back = waiting > u64::from(buffer.saturating_add(unread));
        let own = running.saturating_add(waiting) <= u64::from(ours);
        let seen = u32::try_from(running).unwrap_or(u32::MAX);
        if own && waiting > u64::from(buffer) && self.top.update(seen) {
            (self.limit, self.limit_shown) = (self.limit.min(seen), true);
            return;
        }
        if !holds_back {
            self.held_back = None;
            if ours >= self.limit.saturating_add(buffer) {
                let part = if self.limit_shown { 16 } else { 4 };
                self.limit = self.limit.saturating_add((self.limit / part).max(1)).min(MOST_SEQS);
            }
            return;
        }
        if !own {
            self.held_back = None;
            return;
        }
        let alike = |before: &u32| before.abs_diff(seen) <= (seen / 16).max(1);
        if let Some(before) = self.held_back.replace(seen).filter(alike) {
            self.limit = self.limit.min(before.max(seen).max(1));
            self.limit_shown = true;
        }
    }
}

/// Sequences that a replica may have at full size: the operator's number, else the engine's, else
/// the learned one, plus the buffer that may wait inside the engine.
#[must_use]
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
#[must_use]
pub fn max_request_seqs(configured: Option<u32>, reported: Option<u32>, buffer: u32) -> u32 {
    configured.or(reported).unwrap_or(DEFAULT_REQUEST_SEQS).max(1).saturating_add(buffer)
}

/// Limit during slow start: this many eighths of the full limit, at least 1.
#[must_use]
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
        learned.learn(&report(3, 97), (100, 0), 0);
        assert_eq!(learned.limit(), 256, "a burst waits for a moment in every engine");
        for _ in 0..2 {
            assert_eq!(learned.limit(), 256, "how many it runs still changes");
            learned.learn(&report(32, 68), (100, 0), 0);
        }
        assert_eq!(learned.limit(), 32);
        learned.learn(&report(0, 5), (5, 0), 0);
        learned.learn(&report(0, 5), (5, 0), 0);
        assert_eq!(learned.limit(), 1);
    }

    #[test]
    fn prompts_that_wait_to_be_read_do_not_lower_it() {
        let mut learned = LearnedSeqLimit::default();
        for running in [4, 7, 5, 6, 7, 4, 5, 6, 4] {
            learned.learn(&report(running, 12), (24, 12), 0);
        }
        assert_eq!(learned.limit(), 256);
    }

    #[test]
    fn the_same_number_again_and_again_while_others_wait_is_the_limit() {
        let mut learned = LearnedSeqLimit::default();
        for running in [30, 32, 31, 32, 29] {
            assert_eq!(learned.limit(), 256);
            learned.learn(&report(running, 14), (46, 14), 0);
        }
        learned.learn(&report(32, 10), (46, 14), 0);
        assert_eq!(learned.limit(), 32);
        // The engine restarts with fewer slots.
        for _ in 0..FEWER + ALIKE {
            learned.learn(&report(16, 10), (32, 16), 0);
        }
        assert_eq!(learned.limit(), 16);
    }

    #[test]
    fn foreign_load_and_the_buffer_do_not_lower_it() {
        let mut learned = LearnedSeqLimit::default();
        for _ in 0..3 {
            learned.learn(&report(32, 68), (50, 0), 0);
            learned.learn(&report(32, 4), (36, 0), 4);
            learned.learn(&ReplicaReport { running: Some(9), ..ReplicaReport::default() }, (9, 0), 0);
        }
        assert_eq!(learned.limit(), 256);
    }

    #[test]
    fn it_recovers_only_when_used_up() {
        let mut learned = LearnedSeqLimit { limit: 4, limit_shown: true, ..LearnedSeqLimit::default() };
        learned.learn(&report(3, 0), (3, 0), 0);
        assert_eq!(learned.limit(), 4);
        learned.learn(&report(4, 0), (4, 0), 0);
        assert_eq!(learned.limit(), 5);
        for _ in 0..200 {
            learned.learn(&report(4, 0), (300, 0), 0);
        }
        assert!((301..330).contains(&learned.limit()), "{}", learned.limit());
    }

    #[test]
    fn an_engine_with_more_places_than_usual_is_filled() {
        let mut learned = LearnedSeqLimit::default();
        for _ in 0..7 {
            let ours = learned.limit();
            learned.learn(&report(u64::from(ours), 0), (ours, 0), 0);
        }
        assert!(learned.limit() >= 1_024, "{}", learned.limit());
        for _ in 0..2 {
            learned.learn(&report(1_024, 200), (1_224, 0), 0);
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
