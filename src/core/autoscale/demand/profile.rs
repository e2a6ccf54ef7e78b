//! Demand profile of one model, pool, class or tenant, for reports: concurrency, arrivals, waits
//! and durations of attempts.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::time::Tick;

use super::spread::SLOT;
use crate::autoscale::demand::histogram::CoarseHistogram;

/// Minutes that are kept one by one.
const MINUTES: usize = 240;
/// Time constant of the long-term sums, in seconds: two days.
const LONG: f64 = 172_800.0;
/// Bursts that are kept.
const BURSTS: usize = 32;
/// A burst has more than this many times the usual arrivals.
const BURST: f64 = 2.0;
/// Fewest arrivals of a slot that make a burst.
const FEW: f64 = 5.0;
/// Time constant of the usual arrival rate, in seconds.
const USUAL: f64 = 300.0;

/// Demand of one minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DemandMinute {
    /// Mean concurrency.
    pub level: f32,
    /// Peak concurrency.
    pub peak: f32,
    pub arrived: u32,
    pub refused: u32,
    /// Prompt tokens that arrived.
    pub input: u64,
    /// Output tokens that were served.
    pub output: u64,
}

/// Burst: a time with more arrivals than usual.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DemandBurst {
    /// Highest arrival rate, in jobs per second.
    pub height: f64,
    /// Usual arrival rate before the burst, in jobs per second.
    pub usual: f64,
    /// Length in seconds.
    pub length: f64,
}

/// Saved part of one profile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedProfile {
    /// The last minutes, newest last.
    pub minutes: VecDeque<DemandMinute>,
    /// Concurrency over the days, weighted by seconds.
    pub levels: CoarseHistogram,
    /// Prompt tokens of jobs that arrived.
    #[serde(default)]
    pub prompts: CoarseHistogram,
    /// Output tokens of jobs that ended.
    #[serde(default)]
    pub outputs: CoarseHistogram,
    /// Waits in milliseconds.
    pub waits: CoarseHistogram,
    /// Durations of attempts in milliseconds.
    pub stays: CoarseHistogram,
    /// The last bursts, newest last.
    pub bursts: VecDeque<DemandBurst>,
    /// Seconds that demand was watched, fading over the days.
    pub watched: f64,
    /// Jobs dispatched within their class's TTFT objective, fading over the days.
    pub kept: f64,
    /// Jobs dispatched later, or refused, fading over the days.
    pub missed: f64,
}

/// Demand profile: the saved part, and the minute and slot under way.
#[derive(Debug, Clone, Default)]
pub struct DemandProfile {
    pub seen: SavedProfile,
    now: DemandMinute,
    level: u32,
    peak: u32,
    sum: f64,
    since: f64,
    slot: f64,
    slot_arrived: f64,
    usual: f64,
    burst: Option<DemandBurst>,
}

impl DemandProfile {
    /// Counts a job that arrived with this many prompt tokens.
    pub fn enter(&mut self, prompt: u64) {
        self.level += 1;
        self.peak = self.peak.max(self.level);
        self.now.arrived += 1;
        self.now.input = self.now.input.saturating_add(prompt);
        self.slot_arrived += 1.0;
        if prompt > 0 {
            self.seen.prompts.add(prompt as f64, 1.0);
        }
    }

    /// Counts a job that ended after this many output tokens.
    pub fn leave(&mut self, output: u64) {
        self.level = self.level.saturating_sub(1);
        self.now.output = self.now.output.saturating_add(output);
        if output > 0 {
            self.seen.outputs.add(output as f64, 1.0);
        }
    }

    /// Counts a job that began to run after this wait.
    pub fn began(&mut self, waited: Duration, in_time: bool) {
        self.seen.waits.add(waited.as_secs_f64() * 1e3, 1.0);
        if in_time {
            self.seen.kept += 1.0;
        } else {
            self.seen.missed += 1.0;
        }
    }

    /// Counts an attempt that ended.
    pub fn attempt_ended(&mut self, lasted: Duration) {
        self.seen.stays.add(lasted.as_secs_f64() * 1e3, 1.0);
    }

    /// Counts a job that was refused after it was admitted.
    pub fn refused(&mut self) {
        self.now.refused += 1;
        self.seen.missed += 1.0;
    }

    /// Jobs that are there now.
    pub const fn level(&self) -> u32 {
        self.level
    }

    /// Advances the profile to `now`, `passed` seconds after the last call.
    pub fn advance(&mut self, passed: f64, now: Tick) {
        let level = f64::from(self.level);
        self.sum += level * passed;
        self.since += passed;
        self.seen.levels.add(level, passed);
        self.seen.watched += passed;
        self.slot += passed;
        if self.slot >= SLOT {
            self.end_slot();
        }
        if self.since > 0.0 && (now.as_nanos() / 60_000_000_000) != self.minute_before(passed, now) {
            self.end_minute();
        }
    }

    fn minute_before(&self, passed: f64, now: Tick) -> u64 {
        now.earlier_by(Duration::from_secs_f64(passed)).as_nanos() / 60_000_000_000
    }

    fn end_minute(&mut self) {
        let level = (self.sum / self.since) as f32;
        self.seen.minutes.push_back(DemandMinute { level, peak: self.peak as f32, ..self.now });
        while self.seen.minutes.len() > MINUTES {
            self.seen.minutes.pop_front();
        }
        let kept = (-self.since / LONG).exp();
        let seen = &mut self.seen;
        let hists =
            [&mut seen.levels, &mut seen.prompts, &mut seen.outputs, &mut seen.waits, &mut seen.stays];
        hists.into_iter().for_each(|hist| hist.fade(kept));
        for sum in [&mut self.seen.watched, &mut self.seen.kept, &mut self.seen.missed] {
            *sum *= kept;
        }
        (self.now, self.peak, self.sum, self.since) = (DemandMinute::default(), self.level, 0.0, 0.0);
    }

    fn end_slot(&mut self) {
        let rate = self.slot_arrived / self.slot;
        let high = self.slot_arrived >= FEW && rate > self.usual * BURST;
        match (&mut self.burst, high) {
            (Some(burst), true) => {
                burst.height = burst.height.max(rate);
                burst.length += self.slot;
            }
            (None, true) => {
                self.burst = Some(DemandBurst { height: rate, usual: self.usual, length: self.slot });
            }
            (Some(burst), false) => {
                self.seen.bursts.push_back(*burst);
                if self.seen.bursts.len() > BURSTS {
                    self.seen.bursts.pop_front();
                }
                self.burst = None;
            }
            (None, false) => {}
        }
        self.usual += (rate - self.usual) * (1.0 - (-self.slot / USUAL).exp());
        (self.slot, self.slot_arrived) = (0.0, 0.0);
    }
}

impl SavedProfile {
    /// Tokens per second over the last minutes: arrived prompt tokens, and served output tokens.
    pub fn tokens_per_second(&self) -> (f64, f64) {
        let seconds = self.minutes.len().max(1) as f64 * 60.0;
        let sum = |of: fn(&DemandMinute) -> u64| {
            self.minutes.iter().map(of).fold(0, u64::saturating_add) as f64 / seconds
        };
        (sum(|minute| minute.input), sum(|minute| minute.output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes so many seconds in steps of one, with `rate` jobs in each that stay
    /// for ten.
    fn pass(profile: &mut DemandProfile, from: u64, seconds: u64, rate: usize) {
        let mut there: VecDeque<(u64, usize)> = VecDeque::new();
        for second in from..from + seconds {
            (0..rate).for_each(|_| profile.enter(100));
            there.push_back((second + 10, rate));
            while there.front().is_some_and(|(end, _)| *end <= second) {
                let (_, count) = there.pop_front().unwrap();
                (0..count).for_each(|_| profile.leave(7));
            }
            profile.advance(1.0, Tick::from_millis((second + 1) * 1000));
        }
        there.into_iter().for_each(|(_, count)| (0..count).for_each(|_| profile.leave(7)));
    }

    #[test]
    fn bands_bursts_and_rates() {
        let mut profile = DemandProfile::default();
        pass(&mut profile, 0, 1800, 2);
        pass(&mut profile, 1800, 40, 20);
        pass(&mut profile, 1840, 1760, 2);
        let seen = &profile.seen;
        assert_eq!(seen.minutes.len(), 60);
        assert!((seen.minutes[10].level - 20.0).abs() < 0.5, "{:?}", seen.minutes[10]);
        assert!(seen.levels.quantile(0.99) > 100.0 && seen.levels.quantile(0.5) < 25.0);
        let burst = seen.bursts.back().unwrap();
        assert!((burst.height, burst.length) == (20.0, 40.0) && burst.usual < 3.0, "{burst:?}");
        let (input, output) = seen.tokens_per_second();
        assert!((input - 220.0).abs() < 1.0 && (output - 15.4).abs() < 0.5, "{input} {output}");
    }
}
