//! Scenario file: the types that a scenario is deserialized into.

use std::path::PathBuf;

use serde::Deserialize;

use crate::config::file::placement::{CapacityName, LatePolicyName};
use crate::config::named::NamedEntries;
use crate::config::units::Span;
use crate::sim::scenario::scale::ScaleRow;

/// An experiment: designs, compared in one or more worlds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// What it shows.
    pub about: String,
    /// Runs of each row, each with another seed; absent = 5.
    pub seeds: Option<u64>,
    /// Part of the arrivals that is not counted, `0.0..=0.9`; absent = 0.1.
    pub warmup: Option<f64>,
    /// Counted as good against these objectives; absent = those of its class.
    pub goal: Option<GoalRow>,
    /// Latency classes in order of rank; absent = one, `interactive`.
    pub classes: NamedEntries<ScenarioClass>,
    /// Tenants; absent = one.
    pub tenants: NamedEntries<ScenarioTenant>,
    /// A row of figures for everybody, or one for each class or tenant beside it.
    pub by: By,
    /// The world of every case.
    pub world: Shape,
    /// Worlds to compare: what differs from `world`. Absent = only that.
    pub cases: NamedEntries<Shape>,
}

/// Objectives.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoalRow {
    /// Longest time to the first token.
    pub ttft: Span,
    /// Largest mean time between tokens.
    pub itl: Span,
}

/// One latency class.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioClass {
    /// First token objective.
    pub ttft: Span,
    /// Inter-token objective.
    pub itl: Span,
    /// Longest wait before a request is refused; absent = `ttft`.
    pub max_wait: Option<Span>,
    /// Guaranteed share, `0.0..=1.0`.
    #[serde(default)]
    pub min_share: f64,
    /// The class in which a late request goes on; absent = it is refused.
    pub demote_to: Option<String>,
    /// Pools that it may use; absent = all.
    pub pools: Option<Vec<String>>,
    /// What it does while no pool keeps its objective; absent = `fastest`.
    pub otherwise: Option<LatePolicyName>,
}

/// One tenant.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScenarioTenant {
    /// Share against others; absent = 1.
    pub weight: Option<f64>,
    /// Guaranteed part of capacity, `0.0..=1.0`.
    pub guarantee: f64,
    /// Most that it borrows; absent = 1.
    pub borrow: Option<f64>,
    /// Most that it lends; absent = 1.
    pub lend: Option<f64>,
}

/// How figures are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Not at all.
    #[default]
    All,
    /// By latency class.
    Class,
    /// By tenant, with Jain's index of what they got.
    Tenant,
}

/// A world; what is absent comes from `world` or has its usual value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// The engines; absent = 8 of h100-8b.
    pub fleet: Option<Vec<ScenarioFleet>>,
    /// Requests per second at load 1; absent = 1, so that loads are rates.
    pub capacity: Option<f64>,
    /// The loads that are compared; absent = 1.
    pub loads: Option<Vec<f64>>,
    /// What arrives.
    pub traffic: Option<Vec<StreamRow>>,
    /// What is compared, such as `penstock` or `jsq scrape=50ms shed`.
    pub designs: Option<Vec<String>>,
    /// Routers, each with its own part of the arrivals; absent = 1.
    pub gateways: Option<u8>,
    /// Time between two scrapes of an engine; 0 or absent = none. Designs that
    /// live by gauges bring their own.
    pub scrape: Option<Span>,
    /// Routers hear of a step only when the next one is planned, as over any
    /// network; absent = at once.
    pub late: Option<bool>,
    /// The end of the world, whatever is open then; absent = when all is done.
    pub horizon: Option<Span>,
    /// A closed loop: so many patient clients, each of which sends the next request
    /// of the traffic when its last one has ended; absent = requests come at their
    /// time, whatever became of others.
    pub clients: Option<u32>,
    /// Replicas that come and go; absent = all are always there.
    pub scale: Option<ScaleRow>,
}

impl Shape {
    /// This, with what it does not say taken from `base`.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        let (own, base) = (self.clone(), base.clone());
        Self {
            fleet: own.fleet.or(base.fleet),
            capacity: own.capacity.or(base.capacity),
            loads: own.loads.or(base.loads),
            traffic: own.traffic.or(base.traffic),
            designs: own.designs.or(base.designs),
            gateways: own.gateways.or(base.gateways),
            scrape: own.scrape.or(base.scrape),
            late: own.late.or(base.late),
            horizon: own.horizon.or(base.horizon),
            clients: own.clients.or(base.clients),
            scale: match (own.scale, base.scale) {
                (Some(own), Some(base)) => Some(own.over(base)),
                (own, base) => own.or(base),
            },
        }
    }
}

/// Engines that are alike.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScenarioFleet {
    /// Whose speed they have.
    pub profile: String,
    /// The pool that they belong to; absent = one that has no price.
    pub pool: Option<String>,
    /// Price of one for an hour; absent = the profile's where there is a `pool`,
    /// else none. Routers know it only where there is a `pool`.
    pub price: Option<f64>,
    /// Whether they may be taken away.
    pub capacity: CapacityName,
    /// How many; absent = 1.
    pub count: Option<u32>,
    /// For weighted-round-robin; absent = 1.
    pub weight: Option<f64>,
    /// Steps take so many times as long; absent = 1.
    pub slowness: Option<f64>,
    /// Sequences each runs at once; absent = the profile's.
    pub max_seqs: Option<u32>,
    /// Tokens of a step; absent = the profile's.
    pub max_tokens: Option<u32>,
    /// Tokens of KV cache; absent = the profile's.
    pub kv_tokens: Option<u64>,
    /// Whether prompts are cached by prefix.
    pub prefix_cache: bool,
    /// Time that a word takes there and back; absent = 0. The answers to scrapes and
    /// probes come at once.
    pub rtt: Option<Span>,
    /// Factors of single constants of the profile's step time (`t_ovh`, `t_w`, `i0`,
    /// `a`, `c`, `d`), so that the engines are of a kind that no model knows.
    pub off: NamedEntries<f64>,
    /// What befalls them.
    pub fault: Option<FaultRow>,
}

/// A fault.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRow {
    /// Which.
    pub kind: FaultName,
    /// When it begins.
    pub at: Span,
    /// How long it lasts.
    pub lasts: Span,
    /// From one beginning to the next; absent = it befalls them once.
    pub every: Option<Span>,
}

/// The faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultName {
    /// It stands still.
    Frozen,
    /// It loses what it has and refuses connections.
    Crashed,
}

/// One stream of requests: from a `trace`, a `pattern`, or `talks`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamRow {
    /// A trace file, relative to the scenario's folder.
    pub trace: Option<PathBuf>,
    /// Drops what has a longer prompt, in tokens.
    pub max_prompt: Option<u32>,
    /// Made-up arrivals.
    pub pattern: Option<PatternName>,
    /// Conversations that share prompts.
    pub talks: Option<TalkRow>,
    /// For `gamma`: deviation over mean of the gaps; absent = 2.
    pub cv: Option<f64>,
    /// For `square`: high and low time together; absent = 20 s.
    pub period: Option<Span>,
    /// For `square`: the high part; absent = 0.5.
    pub duty: Option<f64>,
    /// For `square`: low rate over high rate; absent = 0.
    pub low: Option<f64>,
    /// For `pattern`: how large requests are.
    pub sizes: Option<SizesRow>,
    /// Requests per second, whatever the load.
    pub rate: Option<f64>,
    /// Part of capacity, whatever the load.
    pub load: Option<f64>,
    /// The first so many requests.
    pub count: Option<usize>,
    /// Those of the first so long a time.
    pub span: Option<Span>,
    /// When it begins; absent = 0.
    pub start: Option<Span>,
    /// Its class; absent = the first.
    pub class: Option<String>,
    /// Its tenant; absent = the first.
    pub tenant: Option<String>,
    /// Tenants drawn by these shares, in place of one.
    pub shares: NamedEntries<f64>,
    /// Takes the tenants of the trace, whatever their names.
    pub trace_tenants: bool,
    /// `max_tokens` that requests say; absent = 4096.
    pub max_output: Option<u32>,
    /// How long clients wait for the first token; absent = what the class allows.
    pub patience: Option<Span>,
    /// Share of the requests whose answers are not streamed, `0.0..=1.0`;
    /// absent = 0.
    pub plain: Option<f64>,
    /// Choices that each request asks for, 1..=128; absent = 1.
    pub n: Option<u32>,
    /// Requests that their engine holds for a while before it queues them.
    pub held: Option<DelayRow>,
    /// Streams that fall silent for a while, after any of their tokens.
    pub pauses: Option<DelayRow>,
    /// For a `pattern`: prompts begin with one of these; absent = prompts have
    /// nothing in common.
    pub system: Option<SystemRow>,
}

/// What befalls some requests.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayRow {
    /// Their share, `0.0..=1.0`.
    pub share: f64,
    /// How long it lasts.
    pub lasts: Span,
}

/// System prompts.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemRow {
    /// How many there are.
    pub prompts: u32,
    /// Tokens of each; a prompt that is shorter has only its own length of it.
    pub tokens: u32,
}

/// Arrival patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PatternName {
    /// Equal gaps.
    Even,
    /// Independent arrivals.
    Poisson,
    /// Gamma gaps: bursts.
    Gamma,
    /// Two rates by turns.
    Square,
    /// All at once.
    Burst,
}

/// Sizes of made-up requests: drawn from a trace, or by law.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SizesRow {
    /// Pairs drawn from this file.
    pub trace: Option<PathBuf>,
    /// Prompt tokens; absent = 500.
    pub prompt: Option<LengthRow>,
    /// Output tokens; absent = 100.
    pub output: Option<LengthRow>,
}

/// A lognormal law; without `sigma` a constant.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthRow {
    /// Half are below.
    pub median: f64,
    /// Deviation of the logarithm.
    #[serde(default)]
    pub sigma: f64,
}

/// Conversations.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TalkRow {
    /// System prompts that they share.
    pub system_prompts: u32,
    /// Tokens of each.
    pub system_tokens: u32,
    /// Turns.
    pub turns: u32,
    /// Tokens that a turn adds.
    pub turn_tokens: u32,
    /// Time between turns.
    pub pause: Span,
    /// Output tokens of a turn.
    pub output: LengthRow,
}
