//! Synthetic traffic: arrival patterns, request sizes, and conversations with
//! shared prompts. The same seed always makes the same calls.

use std::sync::Arc;
use std::time::Duration;

use crate::rng::Rng;
use crate::trace::{MAX_CALLS, MAX_PROMPT, TraceCall, TrafficTrace};

/// Arrival pattern: the gaps between calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// Equal gaps.
    Even,
    /// Independent arrivals: exponential gaps.
    Poisson,
    /// Gamma distributed gaps. A larger coefficient of variation makes harder
    /// bursts; 1 is Poisson.
    Gamma {
        /// Standard deviation over mean of the gaps. A value that is not
        /// positive counts as 1.
        cv: f64,
    },
    /// Poisson arrivals with a high and a low rate by turns; the mean rate is
    /// kept.
    Square {
        /// Length of one high phase and one low phase together.
        period: Duration,
        /// Share of the period that has the high rate, `0.0..=1.0`.
        duty: f64,
        /// Low rate over high rate, `0.0..=1.0`.
        low: f64,
    },
    /// All calls at time 0.
    Burst,
}

/// Distribution of the prompt and output tokens of calls.
#[derive(Debug, Clone, PartialEq)]
pub enum Sizes {
    /// Prompt and output lengths drawn independently.
    Independent { prompt: Length, output: Length },
    /// Sizes drawn with replacement. Without any, every call has 1 and 1.
    Drawn(Arc<[CallSize]>),
}

/// Tokens of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSize {
    pub prompt: u32,
    pub output: u32,
}

impl Sizes {
    /// The sizes of the calls in the trace.
    pub fn of(trace: &TrafficTrace) -> Self {
        let size = |call: &TraceCall| CallSize { prompt: call.prompt, output: call.output };
        Self::Drawn(trace.calls.iter().map(size).collect())
    }

    fn draw(&self, rng: &mut Rng) -> CallSize {
        match self {
            Self::Independent { prompt, output } => {
                CallSize { prompt: prompt.draw(rng), output: output.draw(rng) }
            }
            Self::Drawn(sizes) => {
                let drawn = sizes.get(rng.below(sizes.len() as u64) as usize);
                drawn.copied().unwrap_or(CallSize { prompt: 1, output: 1 })
            }
        }
    }
}

/// Distribution of a number of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    Constant(u32),
    /// Lognormal: `median * exp(sigma * normal)`.
    LogNormal {
        /// Median, in tokens.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
}

impl Length {
    fn draw(&self, rng: &mut Rng) -> u32 {
        match self {
            Self::Constant(tokens) => (*tokens).clamp(1, MAX_PROMPT),
            Self::LogNormal { median, sigma } => {
                let tokens = median * (sigma * rng.normal()).exp();
                tokens.round().clamp(1.0, f64::from(MAX_PROMPT)) as u32
            }
        }
    }
}

/// Synthetic calls without shared prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Synthetic {
    pub pattern: Pattern,
    /// Calls per second, positive.
    pub rate: f64,
    /// Number of calls; at most [`MAX_CALLS`].
    pub count: usize,
    pub sizes: Sizes,
}

impl Synthetic {
    /// The calls that the seed yields.
    pub fn trace(&self, seed: u64) -> TrafficTrace {
        let mut times = Rng::new(seed);
        let mut sizes = Rng::new(!seed);
        let mut at = 0.0;
        let call = |index: usize| {
            if index > 0 {
                at = self.next_arrival(at, &mut times);
            }
            let CallSize { prompt, output } = self.sizes.draw(&mut sizes);
            TraceCall { at: clamped(at), prompt, output, ..TraceCall::default() }
        };
        TrafficTrace { calls: (0..self.count.min(MAX_CALLS)).map(call).collect(), ..TrafficTrace::default() }
    }

    /// Time in seconds of the call after one at `at` seconds.
    fn next_arrival(&self, at: f64, rng: &mut Rng) -> f64 {
        let mean = if self.rate > 0.0 { 1.0 / self.rate } else { 0.0 };
        match self.pattern {
            Pattern::Burst => at,
            Pattern::Even => at + mean,
            Pattern::Poisson => at + mean * rng.exponential(),
            Pattern::Gamma { cv } => at + mean * rng.gamma(1.0 / (cv * cv)),
            Pattern::Square { period, duty, low } => {
                let (duty, low) = (duty.clamp(0.01, 1.0), low.clamp(0.0, 1.0));
                let high = self.rate / (duty + (1.0 - duty) * low);
                square_after(at, rng.exponential(), period.as_secs_f64().max(1e-3), duty, high, high * low)
            }
        }
    }
}

fn clamped(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4)
}

/// Time in seconds at which `work` more arrivals are due on average. The rate
/// is `high` for the first `duty` of each period and `low` for the rest.
fn square_after(mut at: f64, mut work: f64, period: f64, duty: f64, high: f64, low: f64) -> f64 {
    if high <= 0.0 {
        return at;
    }
    loop {
        let start = (at / period).floor() * period;
        let edge = start + duty * period;
        let (rate, end) = if at < edge { (high, edge) } else { (low, start + period) };
        let due = (end - at) * rate;
        if work < due {
            return at + work / rate;
        }
        work -= due.max(0.0);
        // Rounding can move an edge to `at` itself; this minimum step keeps the
        // loop going.
        at = end.max(at + period * 1e-9);
    }
}

/// Conversations that begin with one of a few system prompts. Each turn's
/// prompt is the whole prompt of the turn before, with more tokens at its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversations {
    /// Number of system prompts, at least 1; drawn evenly.
    pub system_prompts: u32,
    /// Tokens of a system prompt.
    pub system_tokens: u32,
    /// Turns of a conversation, at least 1.
    pub turns: u32,
    /// Tokens that a turn adds to the prompt, ± 50 %.
    pub turn_tokens: u32,
    /// Time between two turns, ± 25 %.
    pub pause: Duration,
    /// Turns per second over all conversations, positive.
    pub rate: f64,
    /// Length of the traffic. Traffic is steady from the start: conversations
    /// that began before time 0 are already in progress.
    pub span: Duration,
    /// Output tokens of a turn.
    pub output: Length,
    /// Whether a turn's prompt also holds the answer to the turn before. Engines
    /// have that answer in their caches.
    pub answers: bool,
}

/// Prompt tokens that one prefix hash covers.
const CONVERSATION_BLOCK: u32 = 16;

impl Conversations {
    /// The calls that the seed yields; at most [`MAX_CALLS`].
    pub fn trace(&self, seed: u64) -> TrafficTrace {
        let mut rng = Rng::new(seed);
        let turns = self.turns.max(1);
        let begins = f64::from(turns) / self.rate.max(1e-9);
        let mut start = -(self.pause.as_secs_f64() * 1.25 * f64::from(turns - 1));
        let mut calls = Vec::new();
        while start <= self.span.as_secs_f64() && calls.len() < MAX_CALLS {
            self.conversation(start, &mut rng, &mut calls);
            start += begins * rng.exponential();
        }
        calls.sort_by_key(|call| call.at);
        calls.truncate(MAX_CALLS);
        let first = calls.first().map_or(Duration::ZERO, |call| call.at);
        calls.iter_mut().for_each(|call| call.at -= first);
        TrafficTrace { calls, prefix_block: CONVERSATION_BLOCK, ..TrafficTrace::default() }
    }

    fn conversation(&self, start: f64, rng: &mut Rng, calls: &mut Vec<TraceCall>) {
        let system = rng.below(u64::from(self.system_prompts.max(1)));
        let own = rng.bits() | 1 << 63;
        let mut at = start;
        let mut prompt = self.system_tokens;
        for _ in 0..self.turns.max(1) {
            let added = f64::from(self.turn_tokens) * (0.5 + rng.unit());
            prompt = prompt.saturating_add(added.round() as u32).clamp(1, MAX_PROMPT);
            let output = self.output.draw(rng);
            if (0.0..=self.span.as_secs_f64()).contains(&at) {
                let whole = if self.answers { prompt.saturating_add(output) } else { prompt };
                let prefix = self.prefix(system, own, whole);
                calls.push(TraceCall { at: clamped(at), prompt, output, prefix, ..TraceCall::default() });
            }
            prompt = prompt.saturating_add(if self.answers { output } else { 0 });
            at += self.pause.as_secs_f64() * (0.75 + 0.5 * rng.unit());
        }
    }

    /// Prefix hashes: the blocks of the system prompt, then blocks that only
    /// this conversation has.
    fn prefix(&self, system: u64, own: u64, prompt: u32) -> Arc<[u64]> {
        let shared = u64::from(self.system_tokens / CONVERSATION_BLOCK);
        let count = u64::from(prompt / CONVERSATION_BLOCK);
        let hash = |block: u64| {
            let owner = if block < shared { system } else { own };
            Rng::new(owner.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ block.rotate_left(32)).bits()
        };
        (0..count).map(hash).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn synthetic(pattern: Pattern) -> TrafficTrace {
        let length = Length::Constant(7);
        let sizes = Sizes::Independent { prompt: length, output: length };
        Synthetic { pattern, rate: 50.0, count: 20_000, sizes }.trace(3)
    }

    fn gaps(trace: &TrafficTrace) -> Vec<f64> {
        trace.calls.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect()
    }

    #[test]
    fn patterns_keep_their_rate_and_have_their_variation() {
        let square = Pattern::Square { period: Duration::from_secs(10), duty: 0.2, low: 0.1 };
        let table = [
            (Pattern::Even, 0.0, 0.001),
            (Pattern::Poisson, 1.0, 0.05),
            (Pattern::Gamma { cv: 3.0 }, 3.0, 0.3),
            (Pattern::Gamma { cv: f64::NAN }, 1.0, 0.05),
            (square, 1.9, 0.4),
        ];
        for (pattern, cv, slack) in table {
            let trace = synthetic(pattern);
            assert!((trace.rate() / 50.0 - 1.0).abs() < 0.1, "{pattern:?}: {} a second", trace.rate());
            let gaps = gaps(&trace);
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let spread = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let found = spread.sqrt() / mean;
            assert!((found - cv).abs() < slack, "{pattern:?}: {found}");
            assert!(trace.calls.is_sorted_by_key(|call| call.at));
        }
        assert_eq!(synthetic(Pattern::Burst).span(), Duration::ZERO);
    }

    #[test]
    fn a_square_wave_is_high_when_it_should_be() {
        let square = Pattern::Square { period: Duration::from_secs(10), duty: 0.2, low: 0.0 };
        let trace = synthetic(square);
        let phase = |call: &TraceCall| call.at.as_secs_f64() % 10.0;
        assert!(trace.calls.iter().all(|call| phase(call) <= 2.001));
    }

    #[test]
    fn sizes_follow_their_law() {
        let law = Length::LogNormal { median: 100.0, sigma: 1.0 };
        let sizes = Sizes::Independent { prompt: law, output: Length::Constant(0) };
        let trace = Synthetic { pattern: Pattern::Burst, rate: 1.0, count: 10_001, sizes }.trace(5);
        let mut prompts: Vec<_> = trace.calls.iter().map(|call| call.prompt).collect();
        prompts.sort_unstable();
        assert!(prompts[5_000].abs_diff(100) < 6, "{}", prompts[5_000]);
        assert!(prompts[8_413].abs_diff(272) < 30, "{}", prompts[8_413]);
        assert!(trace.calls.iter().all(|call| call.output == 1));
        let drawn = Synthetic { pattern: Pattern::Burst, rate: 1.0, count: 50, sizes: Sizes::of(&trace) };
        let known: HashSet<_> = prompts.into_iter().collect();
        assert!(drawn.trace(1).calls.iter().all(|call| known.contains(&call.prompt)));
        assert_eq!(drawn.trace(1), drawn.trace(1));
        assert_ne!(drawn.trace(1), drawn.trace(2));
    }

    #[test]
    fn turns_begin_with_all_of_the_turn_before() {
        let talk = Conversations {
            system_prompts: 4,
            system_tokens: 2_000,
            turns: 8,
            turn_tokens: 300,
            pause: Duration::from_secs(8),
            rate: 20.0,
            span: Duration::from_secs(120),
            output: Length::Constant(100),
            answers: false,
        };
        let trace = talk.trace(9);
        assert!((trace.rate() - 20.0).abs() < 2.5, "{}", trace.rate());
        let early = trace.calls.iter().filter(|call| call.at < Duration::from_secs(10)).count();
        assert!((100..350).contains(&early), "steady from the start, {early}");
        let mut seen: HashSet<u64> = HashSet::new();
        let (mut cached, mut total) = (0, 0);
        for call in &trace.calls {
            assert_eq!(call.prefix.len() as u32, call.prompt / trace.prefix_block);
            let known = call.prefix.iter().take_while(|hash| seen.contains(hash)).count();
            assert!(
                call.prefix[known..].iter().all(|hash| !seen.contains(hash)),
                "hashes cover what is before"
            );
            if call.at > Duration::from_secs(60) {
                cached += known as u64 * 16;
                total += u64::from(call.prompt);
            }
            seen.extend(call.prefix.iter());
        }
        let share = cached as f64 / total as f64;
        assert!((0.87..0.94).contains(&share), "an endless cache would hit {share}");
        let firsts: HashSet<_> = trace.calls.iter().map(|call| call.prefix[0]).collect();
        assert_eq!(firsts.len(), 4);
    }
}
