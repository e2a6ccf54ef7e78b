//! Scenario file: the types that a scenario is deserialized into.

use std::path::PathBuf;

use serde::Deserialize;

use crate::config::sections::placement::{CapacityName, LatePolicyName};
use crate::config::syntax::named::NamedEntries;
use crate::config::syntax::units::Span;
use crate::sim::world::replica::CacheHitReporting;
pub use crate::studies::scenario::scale_row::{BehaviorRow, DirectionRow, ScaleRow};

/// An experiment that compares designs in one or more worlds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Description of what the experiment shows.
    pub about: String,
    /// Runs of each row, each with another seed; absent = 5.
    pub seeds: Option<u64>,
    /// Share of the arrivals, from the first on, that is not counted,
    /// `0.0..=0.9`; absent = 0.1.
    pub warmup: Option<f64>,
    /// Objectives for goodput; absent = those of the request's class.
    pub goal: Option<GoalRow>,
    /// Whether the figures include the shares of requests with a first token within 150 ms, 500 ms
    /// and 1 s.
    pub graded: bool,
    /// Whether the figures include fairness over any 60 seconds.
    pub fairness: bool,
    /// Latency classes in order of rank; absent = one, `interactive`.
    pub classes: NamedEntries<ScenarioClass>,
    /// Tenants; absent = one.
    pub tenants: NamedEntries<ScenarioTenant>,
    /// Groups with rows of their own: none, classes or tenants, beside the row
    /// for all requests.
    pub by: GroupBy,
    /// Settings for the world of every case.
    pub world: WorldSection,
    /// Worlds to compare: each lists its differences from `world`. Absent =
    /// only `world`.
    pub cases: NamedEntries<WorldSection>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoalRow {
    /// Longest time to the first token.
    pub ttft: Span,
    /// Largest mean time between tokens.
    pub itl: Span,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioClass {
    /// TTFT objective.
    pub ttft: Span,
    /// ITL objective.
    pub itl: Span,
    /// Longest wait before a request is refused; absent = `ttft`.
    pub max_wait: Option<Span>,
    /// Guaranteed share, `0.0..=1.0`.
    #[serde(default)]
    pub min_share: f64,
    /// Class into which a late request is demoted; absent = a late request is
    /// refused.
    pub demote_to: Option<String>,
    /// Pools that the class may use; absent = all.
    pub pools: Option<Vec<String>>,
    /// Policy while no pool meets the class's objective; absent = `fastest`.
    pub otherwise: Option<LatePolicyName>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScenarioTenant {
    /// Weight against other tenants; absent = 1.
    pub weight: Option<f64>,
    /// Guaranteed share of capacity, `0.0..=1.0`.
    pub guarantee: f64,
    /// Most that the tenant borrows; absent = 1.
    pub borrow: Option<f64>,
    /// Most that the tenant lends; absent = 1.
    pub lend: Option<f64>,
}

/// Engines that are alike.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScenarioFleet {
    /// Name of the step-time profile.
    pub profile: String,
    /// Pool of the engines; absent = a pool without a price.
    pub pool: Option<String>,
    /// Price of one engine per hour; absent = the profile's where there is a
    /// `pool`, else none. Routers know the price only where there is a `pool`.
    pub price: Option<f64>,
    /// Whether the engines may be taken away.
    pub capacity: CapacityName,
    /// Models that the engines serve; absent = all.
    pub models: Option<Vec<String>>,
    /// Number of engines; absent = 1.
    pub count: Option<u32>,
    /// Weight for weighted-round-robin; absent = 1.
    pub weight: Option<f64>,
    /// Factor on the step times; absent = 1.
    pub slowness: Option<f64>,
    /// Sequences that each engine runs at once; absent = the profile's.
    pub max_seqs: Option<u32>,
    /// Tokens of a step; absent = the profile's.
    pub max_tokens: Option<u32>,
    /// Tokens of KV cache; absent = the profile's.
    pub kv_tokens: Option<u64>,
    /// Whether prompts are cached by prefix.
    pub prefix_cache: bool,
    /// Tokens of prompts that the prefix cache keeps when no request uses them; absent = all of
    /// the KV cache.
    pub cache_tokens: Option<u64>,
    /// Where the engines tell how many prompt tokens were cached; absent = `counter`.
    pub told_hits: CacheHitReporting,
    /// Round-trip time of a message; absent = 0. The answers to scrapes and
    /// probes come at once.
    pub rtt: Option<Span>,
    /// Factors on single constants of the profile's step time (`t_ovh`, `t_w`,
    /// `i0`, `a`, `c`, `d`), for engines of a kind that no model knows.
    pub off: NamedEntries<f64>,
    pub fault: Option<FaultRow>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRow {
    pub kind: FaultName,
    /// Begin of the first occurrence.
    pub at: Span,
    /// Length of each occurrence.
    pub lasts: Span,
    /// Time from one begin to the next; absent = the fault occurs once.
    pub every: Option<Span>,
}

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultName {
    /// The engine stands still.
    Frozen,
    /// The engine loses its requests and refuses connections.
    Crashed,
}

/// One stream of requests: from a `trace`, a `pattern`, or `talks`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamRow {
    /// A trace file, relative to the scenario's folder.
    pub trace: Option<PathBuf>,
    /// Longest prompt in tokens; requests with longer prompts are dropped.
    pub max_prompt: Option<u32>,
    /// Synthetic arrivals.
    pub pattern: Option<PatternName>,
    /// Conversations that share prompts.
    pub talks: Option<ConversationRow>,
    /// For `gamma`: standard deviation over mean of the gaps; absent = 2.
    pub cv: Option<f64>,
    /// For `square`: length of a high and a low phase together; absent = 20 s.
    pub period: Option<Span>,
    /// For `square`: share of the period with the high rate; absent = 0.5.
    pub duty: Option<f64>,
    /// For `square`: low rate over high rate; absent = 0.
    pub low: Option<f64>,
    /// For `pattern`: sizes of the requests.
    pub sizes: Option<SizesRow>,
    /// Requests per second, whatever the load.
    pub rate: Option<f64>,
    /// Share of capacity, whatever the load.
    pub load: Option<f64>,
    /// Number of requests; the rest is dropped.
    pub count: Option<usize>,
    /// Length of time; later requests are dropped.
    pub span: Option<Span>,
    /// Begin of the stream; absent = 0.
    pub start: Option<Span>,
    /// Class of the requests; absent = the first.
    pub class: Option<String>,
    /// Tenant of the requests; absent = the first.
    pub tenant: Option<String>,
    /// Shares by which a tenant is drawn for each request, in place of
    /// `tenant`.
    pub shares: NamedEntries<f64>,
    /// Whether requests have the tenants of the trace, whatever their names.
    pub trace_tenants: bool,
    /// Tenants `t1`, `t2`, ... drawn by Zipf's law.
    pub zipf: Option<ZipfRow>,
    /// Shares by which a model is drawn for each request; absent = all ask for
    /// the first.
    pub models: NamedEntries<f64>,
    /// `max_tokens` of the requests; absent = 4096.
    pub max_output: Option<u32>,
    /// Time that clients wait for the first token; absent = what the class
    /// allows.
    pub patience: Option<Span>,
    /// Share of the requests whose answers are not streamed, `0.0..=1.0`;
    /// absent = 0.
    pub plain: Option<f64>,
    /// Choices that each request asks for, 1..=128; absent = 1.
    pub n: Option<u32>,
    /// Requests that their engine holds for a while before queueing them.
    pub held: Option<DelayRow>,
    /// Streams that pause for a while, after any of their tokens.
    pub pauses: Option<DelayRow>,
    /// Streams whose client does not read for a while, after any of their tokens.
    pub unread: Option<DelayRow>,
    /// For a `pattern`: system prompts with which prompts begin; absent =
    /// prompts have nothing in common.
    pub system: Option<SystemRow>,
}

/// Tenants of skewed demand: the n-th gets requests in proportion to `1 / n^skew`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZipfRow {
    /// Number of tenants.
    pub tenants: u32,
    /// Exponent, from 0 (all alike).
    pub skew: f64,
}

/// Delay of some requests.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayRow {
    /// Share of the requests, `0.0..=1.0`.
    pub share: f64,
    /// Length of the delay.
    pub lasts: Span,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemRow {
    /// Number of system prompts.
    pub prompts: u32,
    /// Tokens of each system prompt; a shorter prompt holds only a part of one.
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
    /// A high and a low rate by turns.
    Square,
    /// All requests at once.
    Burst,
}

/// Sizes of synthetic requests: drawn from a trace, or from distributions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SizesRow {
    /// Trace file from which pairs of prompt and output tokens are drawn.
    pub trace: Option<PathBuf>,
    /// Prompt tokens; absent = 500.
    pub prompt: Option<LengthRow>,
    /// Output tokens; absent = 100.
    pub output: Option<LengthRow>,
}

/// A lognormal distribution; without `sigma` a constant.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthRow {
    /// Median, in tokens.
    pub median: f64,
    /// Standard deviation of the logarithm.
    #[serde(default)]
    pub sigma: f64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversationRow {
    /// System prompts that the conversations share.
    pub system_prompts: u32,
    /// Tokens of each system prompt.
    pub system_tokens: u32,
    /// Turns of a conversation.
    pub turns: u32,
    /// Tokens that a turn adds to the prompt.
    pub turn_tokens: u32,
    /// Time between turns.
    pub pause: Span,
    /// Output tokens of a turn.
    pub output: LengthRow,
    /// Whether a turn's prompt also holds the answer to the turn before.
    #[serde(default)]
    pub answers: bool,
}

/// Grouping of the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupBy {
    /// No groups.
    #[default]
    All,
    /// Groups by latency class.
    Class,
    /// Groups by tenant, with Jain's index of the service that they received.
    Tenant,
}

/// A world. A setting that is absent comes from `world`, or has its default.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorldSection {
    /// The engines; absent = 8 of h100-8b.
    pub fleet: Option<Vec<ScenarioFleet>>,
    /// Requests per second at load 1; absent = 1, so that loads are rates.
    pub capacity: Option<f64>,
    /// The loads that are compared; absent = 1.
    pub loads: Option<Vec<f64>>,
    /// Streams of requests.
    pub traffic: Option<Vec<StreamRow>>,
    /// Designs to compare, such as `penstock` or `jsq scrape=50ms shed`.
    pub designs: Option<Vec<String>>,
    /// Number of routers, each with its own part of the arrivals; absent = 1.
    pub gateways: Option<u8>,
    /// Time between two scrapes of an engine; 0 or absent = none. Designs that
    /// depend on gauges bring their own period.
    pub scrape: Option<Span>,
    /// Whether routers hear of a step only when the next one is planned, as
    /// over any network; absent = at once.
    pub late: Option<bool>,
    /// Time at which the world ends, whatever is open then; absent = when all
    /// requests have ended.
    pub horizon: Option<Span>,
    /// Closed loop: number of patient clients. Each client sends the next
    /// request of the traffic when its last one has ended. Absent = requests
    /// come at their times, whatever became of others.
    pub clients: Option<u32>,
    /// Autoscaling; absent = all replicas are always there.
    pub scale: Option<ScaleRow>,
}

impl WorldSection {
    /// This world, with absent settings taken from `base`.
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
