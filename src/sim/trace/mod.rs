//! Traffic traces: times, sizes, tenants, classes and shared prompt prefixes of
//! recorded calls. A trace holds no text.

pub use self::traffic::{TraceCall, TrafficTrace};
mod lines;
mod read;
mod table;
#[cfg(test)]
mod tests;
mod traffic;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use self::table::ColumnNames;
pub use crate::trace::lines::{MAX_CALLS, MAX_PROMPT, TraceError, TraceErrorKind};

use crate::rng::Rng;

impl TrafficTrace {
    /// Sorts the calls by time and moves the first to 0.
    pub fn sort_and_rebase(&mut self) {
        self.calls.sort_by_key(|call| call.at);
        let start = self.calls.first().map_or(Duration::ZERO, |call| call.at);
        self.calls.iter_mut().for_each(|call| call.at -= start);
    }

    /// A trace of the calls in this range, the first at 0.
    pub fn part(&self, range: Range<usize>) -> Self {
        let mut part = Self {
            calls: self.calls.get(range).unwrap_or_default().to_vec(),
            tenants: self.tenants.clone(),
            classes: self.classes.clone(),
            prefix_block: self.prefix_block,
            skipped_lines: 0,
        };
        part.sort_and_rebase();
        part
    }

    /// Calls per second over the whole trace. 0 with fewer than two calls, or
    /// without time between them.
    pub fn rate(&self) -> f64 {
        match self.mean_gap() {
            gap if gap.is_zero() => 0.0,
            gap => 1.0 / gap.as_secs_f64(),
        }
    }

    /// Time from the first call to the last.
    pub fn span(&self) -> Duration {
        self.calls.last().map_or(Duration::ZERO, |last| last.at)
    }

    fn mean_gap(&self) -> Duration {
        let gaps = self.calls.len().saturating_sub(1).max(1);
        self.span() / u32::try_from(gaps).unwrap_or(u32::MAX)
    }

    /// Starts at another call and wraps around, so that the shape of bursts
    /// stays. Seed 0 leaves the trace as it is. The starts of the next seeds
    /// lie evenly over the trace (multiples of the golden ratio).
    pub fn rotate(&mut self, seed: u64) {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let part = u128::from(seed.wrapping_mul(GOLDEN));
        let first = ((part * self.calls.len() as u128) >> 64) as usize;
        let Some(start) = self.calls.get(first).map(|call| call.at) else { return };
        // The gap between the old end and the old start is of mean length.
        let period = self.span() + self.mean_gap();
        self.calls.rotate_left(first);
        let wrapped = self.calls.len() - first;
        for (index, call) in self.calls.iter_mut().enumerate() {
            call.at = if index < wrapped { call.at - start } else { call.at + period - start };
        }
    }

    /// Multiplies every gap by one factor so that the mean rate becomes
    /// `per_second`. Does nothing when either rate is not positive.
    pub fn scale_to(&mut self, per_second: f64) {
        let factor = self.rate() / per_second;
        if factor.is_finite() && factor > 0.0 {
            self.stretch(factor);
        }
    }

    /// Multiplies every gap by `factor`.
    pub fn stretch(&mut self, factor: f64) {
        for call in &mut self.calls {
            let nanos = call.at.as_nanos() as f64 * factor;
            call.at = Duration::from_nanos(nanos.round() as u64);
        }
    }

    /// Drops calls with prompts longer than `longest`; the first remaining call
    /// is moved to 0.
    pub fn drop_longer(&mut self, longest: u32) {
        self.calls.retain(|call| call.prompt <= longest);
        self.sort_and_rebase();
    }

    /// Keeps the first `count` calls.
    pub fn take(&mut self, count: usize) {
        self.calls.truncate(count);
    }

    /// Drops calls later than `span` after the first call.
    pub fn take_span(&mut self, span: Duration) {
        let count = self.calls.partition_point(|call| call.at <= span);
        self.take(count);
    }

    /// Draws a tenant for every call with these shares, which need not add up
    /// to 1. The tenants are named `t0`, `t1`, ... Shares that are not positive
    /// get no calls. Without a positive share nothing changes.
    pub fn draw_tenants(&mut self, shares: &[f64], seed: u64) {
        let positive = |share: &f64| if share.is_finite() { share.max(0.0) } else { 0.0 };
        let total: f64 = shares.iter().map(positive).sum();
        if total <= 0.0 {
            return;
        }
        self.tenants = (0..shares.len()).map(|index| Arc::from(format!("t{index}"))).collect();
        let mut rng = Rng::new(seed);
        for call in &mut self.calls {
            let mut left = rng.unit() * total;
            let of = |share: &f64| {
                left -= positive(share);
                left < 0.0
            };
            call.tenant = shares.iter().position(of).unwrap_or(0) as u32;
        }
    }
}

/// Converts a prefix from hashes of `from` tokens each to hashes of `to` tokens
/// each. One size must be a multiple of the other, or the result is empty.
/// Blocks smaller than the known ones differ only where their whole known
/// blocks differ.
pub fn reblock(prefix: &[u64], from: u32, to: u32) -> Vec<u64> {
    if from == 0 || to == 0 {
        return Vec::new();
    }
    if to.is_multiple_of(from) {
        let step = (to / from) as usize;
        return prefix.iter().skip(step - 1).step_by(step).copied().collect();
    }
    if !from.is_multiple_of(to) {
        return Vec::new();
    }
    let parts = u64::from(from / to);
    let part = |hash: u64, left: u64| hash.wrapping_add(left.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    prefix.iter().flat_map(|hash| (0..parts).rev().map(move |left| part(*hash, left))).collect()
}
