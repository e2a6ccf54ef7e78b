//! Remembered demand: calls drawn from the histograms that a gateway keeps of
//! its traffic.
//!
//! A gateway keeps the number of jobs in each of the last minutes, and
//! histograms of their sizes, waits and attempts. The drawn calls have the same
//! counts and the same distributions. The gateway keeps neither the times of
//! calls within their minute nor which size went with which wait.

use std::time::Duration;

use crate::core::autoscale::demand::histogram::CoarseHistogram;
use crate::core::autoscale::demand::profile::{DemandMinute, SavedProfile};
use crate::core::autoscale::demand::state::{DemandState, ProfileKind, SavedDemandRow};
use crate::sim::rng::Rng;
use crate::sim::trace::{MAX_CALLS, MAX_PROMPT, TraceCall, TrafficTrace};

const MINUTE: Duration = Duration::from_secs(60);
/// Seed for what the gateway does not keep.
const SEED: u64 = 1;

/// Calls like those that the gateway saw, of all classes or of one model. Calls
/// of a model have no known class.
pub fn trace(state: &DemandState, model: Option<&str>) -> TrafficTrace {
    let rows: Vec<&SavedDemandRow> = rows(state, model).collect();
    let count = newest_that_fit(&rows);
    let mut trace = TrafficTrace::default();
    let mut rng = Rng::new(SEED);
    for (place, row) in rows.iter().enumerate() {
        let calls = calls(&row.seen, count, &mut rng);
        let class = if model.is_none() { place as u32 } else { 0 };
        trace.calls.extend(calls.into_iter().map(|call| TraceCall { class, ..call }));
    }
    if model.is_none() {
        trace.classes = rows.iter().map(|row| row.name.as_str().into()).collect();
    }
    trace.sort_and_rebase();
    trace
}

/// The remembered demand of each class, or of one model.
pub fn rows<'a>(state: &'a DemandState, model: Option<&'a str>) -> impl Iterator<Item = &'a SavedDemandRow> {
    let kind = if model.is_some() { ProfileKind::Model } else { ProfileKind::Class };
    state.rows.iter().filter(move |row| row.kind == kind && model.is_none_or(|model| row.name == model))
}

/// Number of newest minutes whose calls fit a trace.
fn newest_that_fit(rows: &[&SavedDemandRow]) -> usize {
    let most = rows.iter().map(|row| row.seen.minutes.len()).max().unwrap_or(0);
    let arrived = |back: usize| -> u64 {
        let minute =
            |row: &&SavedDemandRow| row.seen.minutes.iter().rev().nth(back).map(|minute| minute.arrived);
        rows.iter().filter_map(minute).map(u64::from).sum()
    };
    let mut sum = 0;
    let fits = |back: &usize| {
        sum += arrived(*back);
        sum <= MAX_CALLS as u64
    };
    (0..most).take_while(fits).count()
}

/// The calls of the last `count` minutes of one row.
fn calls(seen: &SavedProfile, count: usize, rng: &mut Rng) -> Vec<TraceCall> {
    let minutes = seen.minutes.iter().rev().take(count).enumerate();
    let mut calls = Vec::new();
    let mut sums = (0, 0);
    for (back, minute) in minutes {
        sums = (sums.0 + minute.input, sums.1 + minute.output);
        let from = MINUTE * (count - 1 - back) as u32;
        calls.extend((0..minute.arrived).map(|_| from + MINUTE.mul_f64(rng.unit())));
    }
    let there = seen.minutes.back().map_or(0.0, |minute| minute.level).round() as u64;
    let served = served(seen.minutes.iter().rev().take(count)).saturating_sub(there);
    let prompts = sizes(&seen.prompts, calls.len(), sums.0, rng);
    let outputs = sizes(&seen.outputs, calls.len(), sums.1 * calls.len() as u64 / served.max(1), rng);
    let sized = calls.into_iter().zip(prompts).zip(outputs);
    let call = |((at, prompt), output)| {
        let waited = time(&seen.waits, rng);
        let took = time(&seen.stays, rng).map(|stay| waited.unwrap_or_default() + stay);
        TraceCall { at, prompt, output, waited, took, ..TraceCall::default() }
    };
    sized.map(call).collect()
}

/// Arrivals that were not refused; some may still be in progress.
fn served<'a>(minutes: impl Iterator<Item = &'a DemandMinute>) -> u64 {
    minutes.map(|minute| u64::from(minute.arrived.saturating_sub(minute.refused))).sum()
}

/// Token numbers drawn from the histogram, `count` of them, scaled to `sum`.
fn sizes(seen: &CoarseHistogram, count: usize, sum: u64, rng: &mut Rng) -> Vec<u32> {
    let drawn: Vec<f64> = (0..count).map(|_| seen.draw(rng.unit(), rng.unit()).unwrap_or(1.0)).collect();
    let all: f64 = drawn.iter().sum();
    let factor = if all > 0.0 && sum > 0 { sum as f64 / all } else { 1.0 };
    let size = |drawn: f64| (drawn * factor).round().clamp(1.0, f64::from(MAX_PROMPT)) as u32;
    drawn.into_iter().map(size).collect()
}

/// A time drawn from a histogram of milliseconds.
fn time(seen: &CoarseHistogram, rng: &mut Rng) -> Option<Duration> {
    seen.draw(rng.unit(), rng.unit()).map(|millis| Duration::from_secs_f64(millis / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: ProfileKind, name: &str, minutes: usize, arrived: u32) -> SavedDemandRow {
        let mut seen = SavedProfile::default();
        for _ in 0..minutes {
            let (input, output) = (u64::from(arrived) * 300, u64::from(arrived) * 50);
            seen.minutes.push_back(DemandMinute { arrived, input, output, ..DemandMinute::default() });
        }
        (0..100).for_each(|_| seen.prompts.add(100.0, 1.0));
        (0..10).for_each(|_| seen.prompts.add(2_000.0, 1.0));
        seen.outputs.add(50.0, 1.0);
        seen.waits.add(400.0, 1.0);
        seen.stays.add(4_000.0, 1.0);
        SavedDemandRow { kind, name: name.to_owned(), seen }
    }

    #[test]
    fn counts_sizes_and_times_are_those_that_were_seen() {
        let rows = vec![
            row(ProfileKind::Class, "interactive", 10, 60),
            row(ProfileKind::Class, "batch", 5, 12),
            row(ProfileKind::Model, "m", 10, 66),
        ];
        let state = DemandState { rows, ..DemandState::default() };
        let trace = trace(&state, None);
        assert_eq!(trace.calls.len(), 660);
        assert_eq!(trace.classes.len(), 2);
        let of = |class| trace.calls.iter().filter(move |call| call.class == class);
        let tokens: u64 = of(0).map(|call| u64::from(call.prompt)).sum();
        assert!((tokens as f64 / (600.0 * 300.0) - 1.0).abs() < 0.01, "{tokens}");
        assert!(of(0).any(|call| call.prompt > 1_000) && of(0).any(|call| call.prompt < 200));
        let late = of(1).map(|call| call.at).min().unwrap();
        assert!(late > Duration::from_secs(270), "batch came in the last five minutes only: {late:?}");
        let call = &trace.calls[7];
        let (waited, took) = (call.waited.unwrap().as_secs_f64(), call.took.unwrap().as_secs_f64());
        assert!((0.3..0.6).contains(&waited) && (3.0..6.5).contains(&took), "{waited} {took}");
        assert_eq!(super::trace(&state, Some("m")).calls.len(), 660);
        assert!(super::trace(&state, Some("m")).classes.is_empty());
        assert!(super::trace(&state, Some("other")).calls.is_empty());
    }

    #[test]
    fn only_the_newest_minutes_are_played_back_where_there_are_too_many_calls() {
        let many = row(ProfileKind::Class, "interactive", 10, MAX_CALLS as u32 / 4);
        assert_eq!(newest_that_fit(&[&many]), 4);
    }
}
