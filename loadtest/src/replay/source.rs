//! Call source of a replay, from a scenario file or the command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use penstock::sim::arrivals::{Conversations, Length, Pattern, Sizes, Synthetic};
use penstock::sim::trace::{MAX_CALLS, TrafficTrace};
use serde::Deserialize;

/// The tenant of a source that names none.
const NOBODY: &str = "default";
/// Longest run: a week, seconds.
const MAX_SECONDS: f64 = 7.0 * 86_400.0;

/// One stream of calls. Several make a plan.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Source {
    /// A trace file, relative to the scenario file. Absent = every call has
    /// `input` and `output` tokens.
    pub trace: Option<PathBuf>,
    /// Conversations that share system prompts, instead of a trace.
    pub conversations: Option<Talk>,
    /// Prompt tokens where there is no trace.
    pub input: Option<u32>,
    /// Output tokens where there is no trace.
    pub output: Option<u32>,
    /// Calls a second: all gaps of the trace are scaled by one factor, so
    /// bursts keep their shape. Absent = the trace's own rate.
    pub rate: Option<f64>,
    /// Made-up gaps; absent = those of the trace, Poisson without one. Calls
    /// have sizes drawn from the trace then.
    pub arrivals: Option<Arrivals>,
    /// This many calls, all at `from_s`.
    pub at_once: Option<usize>,
    /// When it begins, seconds from the start of the run.
    pub from_s: f64,
    /// How long it goes on, seconds; absent = to the end of the trace.
    pub for_s: Option<f64>,
    /// Who makes the calls: names with shares, dealt out at random. Absent =
    /// the trace's own tenants.
    pub tenants: BTreeMap<String, f64>,
    /// The latency class they ask for.
    pub class: Option<String>,
}

/// How made-up calls follow each other; their mean rate is the source's.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// At equal distances.
    Even,
    /// Independent of each other.
    Poisson,
    /// Gamma distributed gaps.
    Gamma {
        /// Deviation over mean of the gaps; above 1 calls come in bursts.
        cv: f64,
    },
    /// Poisson with a high and a low rate by turns.
    Square {
        /// One high and one low time together, seconds.
        period_s: f64,
        /// Part of the period that is high.
        duty: f64,
        /// The low rate as a part of the high one.
        low: f64,
    },
}

/// Conversations: each turn's prompt is the one before with more at its end.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Talk {
    /// Different system prompts.
    pub system_prompts: u32,
    /// Tokens of one.
    pub system_tokens: u32,
    /// Turns of a conversation.
    pub turns: u32,
    /// Tokens that a turn adds.
    pub turn_tokens: u32,
    /// Seconds between turns.
    pub pause_s: f64,
}

impl Source {
    /// Its calls, the first at 0, each with a tenant that is in the trace's
    /// list. A seed fixes the part of the trace it starts with, and every draw.
    pub(super) fn calls(&self, folder: &Path, seed: u64) -> Result<TrafficTrace> {
        let mut trace = self.undealt(folder, seed)?;
        if !self.tenants.is_empty() {
            let shares: Vec<f64> = self.tenants.values().copied().collect();
            let sound = |share: &f64| share.is_finite() && *share >= 0.0;
            ensure!(
                shares.iter().all(sound) && shares.iter().sum::<f64>() > 0.0,
                "`tenants` need shares above 0"
            );
            trace.draw_tenants(&shares, seed);
            trace.tenants = self.tenants.keys().map(|name| name.as_str().into()).collect();
        } else if trace.tenants.is_empty() {
            trace.tenants = vec![NOBODY.into()];
        }
        Ok(trace)
    }

    /// When it begins.
    pub(super) fn from(&self) -> Result<Duration> {
        seconds(self.from_s, "from_s")
    }

    fn undealt(&self, folder: &Path, seed: u64) -> Result<TrafficTrace> {
        if let Some(rate) = self.rate {
            ensure!(rate.is_finite() && rate > 0.0, "`rate` must be a number above 0");
        }
        if let Some(talk) = &self.conversations {
            return self.talk(talk, seed);
        }
        let (recorded, sizes) = match (&self.trace, self.input, self.output) {
            (Some(path), None, None) => {
                let trace = TrafficTrace::read(&folder.join(path))?;
                let sizes = Sizes::of(&trace);
                (Some(trace), sizes)
            }
            (None, Some(input), Some(output)) => (
                None,
                Sizes::Independent { prompt: Length::Constant(input), output: Length::Constant(output) },
            ),
            (None, _, _) => bail!("it needs `trace`, `conversations`, or `input` and `output`"),
            (Some(_), _, _) => bail!("`input` and `output` are for a load without a trace"),
        };
        if let Some(count) = self.at_once {
            ensure!(self.rate.is_none() && self.for_s.is_none(), "`at_once` excludes `rate` and `for_s`");
            ensure!((1..=MAX_CALLS).contains(&count), "`at_once` must be 1 to {MAX_CALLS}");
            return Ok(Synthetic { pattern: Pattern::Burst, rate: 1.0, count, sizes }.trace(seed));
        }
        match (recorded, self.arrivals) {
            (Some(trace), None) => self.cut(trace, seed),
            (_, shape) => self.made_up(shape.unwrap_or(Arrivals::Poisson), sizes, seed),
        }
    }

    /// The part of the trace that is replayed, at the wanted rate.
    fn cut(&self, mut trace: TrafficTrace, seed: u64) -> Result<TrafficTrace> {
        trace.rotate(seed);
        if let Some(rate) = self.rate {
            trace.scale_to(rate);
        }
        if let Some(length) = self.for_s {
            let length = seconds(length, "for_s")?;
            let span = trace.span().as_secs_f64();
            ensure!(trace.span() >= length, "`for_s`: the trace lasts {span:.1} s at this rate");
            trace.take_span(length);
        }
        Ok(trace)
    }

    fn made_up(&self, shape: Arrivals, sizes: Sizes, seed: u64) -> Result<TrafficTrace> {
        let (rate, length) = self.rate_and_length()?;
        let count = (rate * length.as_secs_f64() * 1.5).ceil() + 100.0;
        ensure!(count < MAX_CALLS as f64, "more than {MAX_CALLS} calls");
        let mut trace =
            Synthetic { pattern: shape.pattern()?, rate, count: count as usize, sizes }.trace(seed);
        trace.take_span(length);
        Ok(trace)
    }

    fn talk(&self, talk: &Talk, seed: u64) -> Result<TrafficTrace> {
        let (rate, span) = self.rate_and_length()?;
        let Some(output) = self.output else {
            bail!("`conversations` needs `output`, the tokens of an answer")
        };
        ensure!(self.trace.is_none() && self.input.is_none(), "`conversations` excludes `trace` and `input`");
        let pause = seconds(talk.pause_s, "pause_s")?;
        let Talk { system_prompts, system_tokens, turns, turn_tokens, .. } = *talk;
        let output = Length::Constant(output);
        let talk = Conversations {
            system_prompts,
            system_tokens,
            turns,
            turn_tokens,
            pause,
            rate,
            span,
            output,
            answers: false,
        };
        Ok(talk.trace(seed))
    }

    fn rate_and_length(&self) -> Result<(f64, Duration)> {
        match (self.rate, self.for_s) {
            (Some(rate), Some(length)) => Ok((rate, seconds(length, "for_s")?)),
            _ => bail!("made-up calls need `rate` and `for_s`, or `at_once`"),
        }
    }
}

impl Arrivals {
    fn pattern(self) -> Result<Pattern> {
        let share = |value: f64, name: &str| {
            ensure!((0.0..=1.0).contains(&value), "`{name}` must be from 0 to 1");
            Ok(value)
        };
        Ok(match self {
            Arrivals::Even => Pattern::Even,
            Arrivals::Poisson => Pattern::Poisson,
            Arrivals::Gamma { cv } => {
                ensure!(cv.is_finite() && cv > 0.0, "`cv` must be a number above 0");
                Pattern::Gamma { cv }
            }
            Arrivals::Square { period_s, duty, low } => Pattern::Square {
                period: seconds(period_s, "period_s")?,
                duty: share(duty, "duty")?,
                low: share(low, "low")?,
            },
        })
    }
}

fn seconds(value: f64, name: &str) -> Result<Duration> {
    ensure!((0.0..=MAX_SECONDS).contains(&value), "`{name}` must be seconds from 0 to {MAX_SECONDS}");
    Ok(Duration::from_secs_f64(value))
}
