//! Designs by name, as written in scenarios and on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::config::syntax::units::Span;
use crate::core::model::policy::{Model, Policy, Replica};
use crate::sim::engine::profile::StepProfile;
use crate::sim::world::baseline::at_once::least_request::LeastRequest;
use crate::sim::world::baseline::at_once::power_of_two::PowerOfTwo;
use crate::sim::world::baseline::at_once::random::Random;
use crate::sim::world::baseline::at_once::round_robin::RoundRobin;
use crate::sim::world::baseline::at_once::shortest_scraped::ShortestScraped;
use crate::sim::world::baseline::at_once::{AtOnce, EnginePick};
use crate::sim::world::baseline::fair::{DeficitRound, VirtualCounters};
use crate::sim::world::baseline::held::{Cap, Fifo, HeldRouter, WaitOrder};
use crate::sim::world::baseline::prequal::Prequal;
use crate::sim::world::baseline::scorers::Scorers;
use crate::sim::world::baseline::shedding::Shedding;
use crate::sim::world::gateway::SimGateway;
use crate::sim::world::router::Router;
use crate::sim::world::sharing::sharing;

/// Every design: name, options, and description.
pub const DESIGNS: [(&str, &[&str], &str); 13] = [
    (
        "penstock",
        &["max_seqs", "only", "exchange"],
        "the scheduler of this program; max_seqs=N sets every engine's limit by hand, only=POOL uses no other pool, \
         exchange=50ms: several gateways tell each other so often what they have",
    ),
    ("random", &[], "any engine"),
    ("round-robin", &[], "engines in turn"),
    ("weighted-round-robin", &[], "in turn by the weights of the fleet"),
    ("least-request", &[], "fewest requests in flight, by its own count"),
    ("power-of-two", &[], "the less loaded of two drawn at random, by its own count"),
    (
        "jsq",
        &["scrape", "own"],
        "shortest queue on gauges scraped every scrape=1s; own: with its own share since then",
    ),
    (
        "scorers",
        &["scrape", "own"],
        "weighted queue, KV and prefix scores on gauges scraped every scrape=50ms; own: with its own count",
    ),
    ("prequal", &["sync"], "a pool of probes; sync: probes for each request"),
    ("maxconn", &["cap"], "at most cap=128 requests for each engine, first come first served"),
    (
        "fcfs",
        &["cap", "prefill"],
        "first come first served under cap=256 and prefill=8192 tokens for each engine",
    ),
    ("drr", &["cap", "prefill"], "the same, tenants in weighted deficit round robin"),
    ("vtc", &["cap", "prefill"], "the same, tenants by virtual token counters"),
];

/// A design with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Design {
    /// Name, one of [`DESIGNS`].
    name: &'static str,
    /// The design as it was written.
    text: String,
    scrape: Option<Duration>,
    own: bool,
    sync: bool,
    shed: bool,
    cap: u64,
    prefill: u64,
    max_seqs: Option<u32>,
    only: Option<String>,
    exchange: Option<Duration>,
}

/// Facts of the world that a design is told before it starts.
#[derive(Debug, Clone)]
pub struct WorldFacts {
    /// Step-time profiles of the engines.
    pub profiles: Vec<StepProfile>,
    /// Weights of the engines.
    pub weights: Vec<f64>,
    /// Penstock's policy; it also holds the tenants' weights and the classes'
    /// longest waits.
    pub policy: Policy,
}

impl Design {
    /// Whether this is Penstock itself.
    pub fn is_penstock(&self) -> bool {
        self.name == "penstock"
    }

    /// The scrape period that the design asks for.
    pub fn scrape(&self) -> Option<Duration> {
        match self.name {
            "jsq" => Some(self.scrape.unwrap_or(Duration::from_secs(1))),
            "scorers" => Some(self.scrape.unwrap_or(Duration::from_millis(50))),
            _ => None,
        }
    }

    /// Routers of this design, each with its own part of the arrivals. With autoscaling, `initial` engines are
    /// there at first.
    pub fn routers(
        &self,
        facts: &WorldFacts,
        initial: Option<usize>,
        seeds: impl Iterator<Item = u64>,
    ) -> Vec<Box<dyn Router>> {
        match self.exchange {
            Some(every) => {
                let gateway = |_| self.gateway(facts, initial);
                sharing(seeds.map(gateway).collect(), every)
            }
            None => seeds.map(|seed| self.router(facts, initial, seed)).collect(),
        }
    }

    fn gateway(&self, facts: &WorldFacts, initial: Option<usize>) -> SimGateway {
        let policy = self.limited(&facts.policy);
        match initial {
            Some(initial) => SimGateway::elastic(&policy, initial),
            None => SimGateway::new(policy),
        }
    }

    fn router(&self, facts: &WorldFacts, initial: Option<usize>, seed: u64) -> Box<dyn Router> {
        let inner = self.plain(facts, initial, seed);
        if !self.shed || self.is_penstock() {
            return inner;
        }
        let deadlines = facts.policy.classes.iter().map(|(_, _, class)| class.max_wait).collect();
        Box::new(Shedding::new(inner, facts.profiles.clone(), deadlines))
    }

    fn plain(&self, facts: &WorldFacts, initial: Option<usize>, seed: u64) -> Box<dyn Router> {
        let count = facts.profiles.len();
        let tenants = || facts.policy.tenants.iter().map(|(_, _, tenant)| tenant.weight).collect();
        match self.name {
            "penstock" => Box::new(self.gateway(facts, initial)),
            "random" => at_once(count, Random::new(seed)),
            "weighted-round-robin" => at_once(count, RoundRobin::new(facts.weights.clone(), 0)),
            "least-request" => at_once(count, LeastRequest::default()),
            "power-of-two" => at_once(count, PowerOfTwo::new(seed)),
            "jsq" => at_once(count, ShortestScraped::new(self.own, seed)),
            "scorers" => at_once(count, Scorers::new(count, self.own, seed)),
            "prequal" => Box::new(Prequal::new(count, self.sync, seed)),
            "maxconn" | "fcfs" => self.held(count, Fifo::default()),
            "drr" => self.held(count, DeficitRound::new(tenants())),
            "vtc" => self.held(count, VirtualCounters::new(tenants())),
            _ => at_once(count, RoundRobin::new(vec![1.0; count], seed as usize % count.max(1))),
        }
    }

    fn held(&self, count: usize, line: impl WaitOrder + 'static) -> Box<dyn Router> {
        Box::new(HeldRouter::new(count, Cap { requests: self.cap, prefill: self.prefill }, line))
    }

    /// Checks that the design fits a world with this policy.
    ///
    /// # Errors
    ///
    /// When the design names a pool that the policy lacks.
    pub(super) fn check(&self, policy: &Policy) -> Result<(), String> {
        match &self.only {
            Some(pool) if policy.pools.id(pool).is_none() => {
                Err(format!("designs: `{}`: there is no pool `{pool}` in the fleet", self.text))
            }
            _ => Ok(()),
        }
    }

    fn limited(&self, policy: &Policy) -> Policy {
        let mut policy = policy.clone();
        if let Some(pool) = self.only.as_ref().and_then(|name| policy.pools.id(name)) {
            let rows = policy.models.iter().map(|(_, name, row)| (name.to_owned(), row.max_model_len));
            for (name, max_model_len) in rows.collect::<Vec<_>>() {
                policy.models.insert(&name, Model { pools: vec![pool], max_model_len });
            }
        }
        if let Some(limit) = self.max_seqs {
            let rows = policy.replicas.iter().map(|(_, name, row)| (name.to_owned(), row.clone()));
            for (name, row) in rows.collect::<Vec<_>>() {
                policy.replicas.insert(&name, Replica { max_seqs: Some(limit), ..row });
            }
        }
        policy
    }
}

fn at_once(count: usize, pick: impl EnginePick + 'static) -> Box<dyn Router> {
    Box::new(AtOnce::new(count, pick))
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Design {
    type Err = String;

    /// Reads `name option key=value ...`; every design but penstock takes `shed`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let known = || DESIGNS.iter().map(|(name, _, _)| *name).collect::<Vec<_>>().join(", ");
        let row = DESIGNS.iter().find(|(known, _, _)| *known == name);
        let (name, options, _) =
            row.ok_or_else(|| format!("no design is called `{name}`; there are: {}", known()))?;
        let mut design = Self {
            name,
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
            scrape: None,
            own: false,
            sync: false,
            shed: false,
            cap: if *name == "maxconn" { 128 } else { 256 },
            prefill: if *name == "maxconn" { u64::MAX } else { 8_192 },
            max_seqs: None,
            only: None,
            exchange: None,
        };
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let shed = key == "shed" && !design.is_penstock();
            if !shed && !options.contains(&key) {
                let mut fits = options.to_vec();
                fits.extend((!design.is_penstock()).then_some("shed"));
                return Err(format!("`{name}` has no option `{key}`; it has: {}", fits.join(", ")));
            }
            design.set(key, value).map_err(|what| format!("`{name}`: `{word}`: {what}"))?;
        }
        Ok(design)
    }
}

impl Design {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let count = || match value.parse::<u32>() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(format!("write it like {key}=256, at least 1")),
        };
        let time = || match value.parse::<Span>() {
            Ok(span) => Ok(span.0.max(Duration::from_millis(1))),
            Err(_) => Err(format!("write it like {key}=50ms")),
        };
        match key {
            "scrape" => self.scrape = Some(time()?),
            "exchange" => self.exchange = Some(time()?),
            "cap" => self.cap = u64::from(count()?),
            "prefill" => self.prefill = u64::from(count()?),
            "max_seqs" => self.max_seqs = Some(count()?),
            "only" => self.only = Some(value.to_owned()),
            _ if !value.is_empty() => return Err(format!("write it as `{key}` alone")),
            "own" => self.own = true,
            "sync" => self.sync = true,
            _ => self.shed = true,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_and_prints_itself() {
        for (name, _, _) in DESIGNS {
            assert_eq!(name.parse::<Design>().unwrap().to_string(), name);
        }
        let design: Design = " jsq  scrape=50ms own shed ".parse().unwrap();
        assert_eq!(design.to_string(), "jsq scrape=50ms own shed");
        assert_eq!(design.scrape(), Some(Duration::from_millis(50)));
        assert!(design.own && design.shed && !design.sync);
        assert_eq!("vtc cap=64".parse::<Design>().unwrap().cap, 64);
    }

    #[test]
    fn mistakes_are_answered_with_what_fits() {
        let cases = [
            ("fastest", "no design is called `fastest`; there are: penstock, random"),
            ("", "no design is called ``"),
            ("random own", "`random` has no option `own`; it has: shed"),
            ("penstock shed", "`penstock` has no option `shed`; it has: max_seqs, only, exchange"),
            ("vtc cap=0", "`vtc`: `cap=0`: write it like cap=256, at least 1"),
            ("jsq scrape=soon", "write it like scrape=50ms"),
            ("jsq own=1", "write it as `own` alone"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<Design>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
