//! Fairness of the service that tenants received, against max-min fair shares.

use std::time::Duration;

use crate::core::model::time::Tick;
use crate::sim::world::record::WorldRecord;

/// Length of the windows over which fairness is measured.
const WINDOW: Duration = Duration::from_secs(60);
/// Time from one window to the next.
const STEP: Duration = Duration::from_secs(10);
/// A request that has waited for less than this at the end of a window is no demand of that window.
const GRACE: Duration = Duration::from_secs(1);
/// Room for rounding in the comparison of a demand with a share.
const ROUNDING: f64 = 1e-9;

/// Fairness over the whole run: Jain's index over the ratios of received service to max-min fair
/// share, and the least of those ratios.
pub(super) fn overall(records: &[&WorldRecord], weights: &[f64], window: &FigureWindow) -> (f64, f64) {
    let mut demand = vec![0.0; weights.len()];
    let mut received = demand.clone();
    for record in records {
        let Some(wanted) = demand.get_mut(record.tenant as usize) else { continue };
        *wanted += cost(record);
        received[record.tenant as usize] += window.service(record);
    }
    let ratios = ratios(&demand, &received, weights);
    (jain(&ratios), ratios.iter().copied().reduce(f64::min).unwrap_or(0.0))
}

/// Received service over max-min fair share, of each tenant with a share.
fn ratios(demand: &[f64], received: &[f64], weights: &[f64]) -> Vec<f64> {
    let shares = fair_shares(demand, weights, received.iter().sum());
    let pairs = received.iter().zip(&shares).filter(|(_, share)| **share > 0.0);
    pairs.map(|(got, share)| got / share).collect()
}

fn jain(ratios: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (ratios.iter().sum(), ratios.iter().map(|ratio| ratio * ratio).sum());
    sum * sum / (ratios.len() as f64 * squares).max(f64::MIN_POSITIVE)
}

/// Fairness over any 60 seconds of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct FairWindows {
    /// The least Jain's index of a window.
    pub(super) jain: f64,
    /// The longest time, in milliseconds, from arrival to the first attempt or the refusal of a
    /// request whose tenant asked for at most half of its share in the window that ends with the
    /// request. Only windows count in which another tenant wanted more than its share.
    pub(super) longest_wait: f64,
}

impl FairWindows {
    /// The demand of a tenant in a window is what it received, and the requests that waited for
    /// more than a second at its end or were refused in it. What runs already is no demand.
    pub(super) fn of(records: &[&WorldRecord], weights: &[f64]) -> Self {
        let whole = FigureWindow::of(records);
        let mut worst = Self { jain: 1.0, longest_wait: 0.0 };
        let mut start = whole.start;
        while start + WINDOW <= whole.end {
            let window = FigureWindow { start, end: start + WINDOW };
            let (mut demand, mut asked) = (vec![0.0; weights.len()], vec![0.0; weights.len()]);
            let mut received = demand.clone();
            for record in records.iter().filter(|record| record.arrived < window.end) {
                let tenant = record.tenant as usize;
                let service = window.service(record);
                received[tenant] += service;
                demand[tenant] += service + if window.lacks(record) { cost(record) } else { 0.0 };
                asked[tenant] += if record.arrived >= window.start { cost(record) } else { 0.0 };
            }
            worst.jain = worst.jain.min(jain(&ratios(&demand, &received, weights)));
            let shares = fair_shares(&demand, weights, received.iter().sum());
            let wants = |tenant: &usize| demand[*tenant] > shares[*tenant] * (1.0 + ROUNDING);
            let per_weight = |tenant: usize| shares[tenant] / weights[tenant];
            let level = (0..weights.len()).filter(wants).map(per_weight).reduce(f64::max);
            let is_below =
                |tenant: usize| level.is_some_and(|level| 2.0 * asked[tenant] <= level * weights[tenant]);
            let last = |record: &&&WorldRecord| {
                (window.end.earlier_by(STEP)..window.end).contains(&record.arrived)
                    && is_below(record.tenant as usize)
            };
            let wait = |record: &&WorldRecord| record.sent_after.or(record.refused_after);
            let longest = records.iter().filter(last).filter_map(wait).max().unwrap_or_default();
            worst.longest_wait = worst.longest_wait.max(longest.as_secs_f64() * 1e3);
            start += STEP;
        }
        worst
    }
}

/// Service of a request in tokens: prompt + 2 × output.
fn cost(record: &WorldRecord) -> f64 {
    f64::from(record.prompt) + 2.0 * f64::from(record.output)
}

/// Time in which requests arrived. Service counts as far as it falls in this
/// window.
#[derive(Debug)]
pub(super) struct FigureWindow {
    start: Tick,
    end: Tick,
}

impl FigureWindow {
    pub(super) fn of(records: &[&WorldRecord]) -> Self {
        let times = || records.iter().map(|record| record.arrived);
        let (start, last) = (times().min().unwrap_or_default(), times().max().unwrap_or_default());
        // All requests of a burst arrive at once; its window ends with the last
        // answer.
        let ends = || records.iter().filter_map(|record| record.ended).max().unwrap_or(last);
        let end = if last.since(start) < Duration::from_secs(1) { ends() } else { last };
        Self { start, end }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.end.since(self.start).as_secs_f64().max(1e-9)
    }

    /// Whether a request wanted service in the window that it did not get.
    fn lacks(&self, record: &WorldRecord) -> bool {
        let until =
            record.sent_after.or(record.refused_after).map_or(Tick::NEVER, |wait| record.arrived + wait);
        if record.refused {
            return (self.start..self.end).contains(&until);
        }
        record.arrived + GRACE <= self.end && until > self.end
    }

    /// Service of a request within the window. Prompt tokens count at the first
    /// token, output tokens evenly from then to the end.
    pub(super) fn service(&self, record: &WorldRecord) -> f64 {
        let (Some(ttft), Some(ended), true) = (record.ttft, record.ended, record.served()) else {
            return 0.0;
        };
        let first = record.arrived + ttft;
        if first > self.end || ended < self.start {
            return 0.0;
        }
        let prompt = if first < self.start { 0.0 } else { f64::from(record.prompt) };
        let whole = ended.since(first).as_secs_f64();
        let within = self.end.min(ended).since(first.max(self.start)).as_secs_f64();
        let part = if whole > 0.0 { within / whole } else { 1.0 };
        prompt + 2.0 * f64::from(record.output) * part
    }
}

/// Max-min fair shares of `total` under demands and weights. No share exceeds
/// its demand; what that frees goes to the others by weight.
fn fair_shares(demand: &[f64], weights: &[f64], total: f64) -> Vec<f64> {
    let mut shares = vec![0.0; demand.len()];
    let mut open: Vec<usize> = (0..demand.len()).filter(|index| demand[*index] > 0.0).collect();
    let mut left = total;
    loop {
        let weight: f64 = open.iter().map(|index| weights[*index]).sum();
        let level = left / weight.max(f64::MIN_POSITIVE);
        let (sated, hungry): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|index| demand[**index] <= level * weights[**index]);
        if sated.is_empty() || hungry.is_empty() {
            for index in &open {
                shares[*index] = (level * weights[*index]).min(demand[*index]);
            }
            return shares;
        }
        for index in sated {
            shares[index] = demand[index];
            left -= demand[index];
        }
        open = hungry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_max_min() {
        assert_eq!(fair_shares(&[10.0, 10.0, 100.0], &[1.0; 3], 60.0), [10.0, 10.0, 40.0]);
        assert_eq!(fair_shares(&[50.0, 50.0], &[1.0, 3.0], 40.0), [10.0, 30.0]);
        assert_eq!(fair_shares(&[5.0, 0.0], &[1.0, 1.0], 40.0), [5.0, 0.0]);
        assert_eq!(fair_shares(&[], &[], 0.0), [0.0; 0]);
    }

    #[test]
    fn windows_compare_with_what_was_wanted_in_them() {
        let record = |tenant, at: u64, waits: u64, runs: u64| WorldRecord {
            tenant,
            prompt: 100,
            arrived: Tick::from_millis(at),
            sent_after: Some(Duration::from_millis(waits)),
            ttft: Some(Duration::from_millis(waits + 10)),
            ended: Some(Tick::from_millis(at + waits + runs)),
            ..WorldRecord::default()
        };
        // The second asks for little, and gets it at once but for the last time.
        let mut records: Vec<WorldRecord> =
            (0..700).map(|nth| record(0, nth * 180, nth * 100, 100)).collect();
        records.extend((0..12).map(|nth| record(1, nth * 10_000, 20, 100)));
        records.push(record(1, 115_000, 300, 100));
        let all: Vec<&WorldRecord> = records.iter().collect();
        let found = FairWindows::of(&all, &[1.0, 1.0]);
        assert!(found.jain > 0.99, "{found:?}");
        assert_eq!(found.longest_wait, 300.0);
        let starved: Vec<WorldRecord> = (0..600).map(|nth| record(1, nth * 200, 500_000, 100)).collect();
        let all: Vec<&WorldRecord> = records.iter().filter(|r| r.tenant == 0).chain(&starved).collect();
        assert!(FairWindows::of(&all, &[1.0, 1.0]).jain < 0.55);
    }
}
