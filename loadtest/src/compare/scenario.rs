//! Scenario file of a comparison: the contestants, their engines and the load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::proxy::Mode;
use crate::replay::{Api, Judged, Objective, Source};

/// A scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows, for the page.
    pub about: String,
    /// The model that is asked for.
    #[serde(default = "model")]
    pub model: String,
    /// Which call is made.
    #[serde(default)]
    pub api: Api,
    /// Rounds: in each every contestant runs once, with the same calls.
    #[serde(default = "rounds")]
    pub rounds: u32,
    /// Seed of the first round; every round has the next one.
    #[serde(default)]
    pub seed: u64,
    /// Seconds from a contestant's first answer to the load, in which it finds
    /// its other engines.
    #[serde(default = "settle")]
    pub settle_s: f64,
    /// Share of the time before measuring.
    #[serde(default = "warmup")]
    pub warmup: f64,
    /// Seconds after the last planned call until what is open is cut.
    #[serde(default = "drain")]
    pub drain_s: f64,
    /// Seconds until a call is given up.
    #[serde(default = "timeout")]
    pub timeout_s: f64,
    /// Times a refused or failed call is sent again.
    #[serde(default)]
    pub retries: u32,
    /// Threads that make calls.
    #[serde(default = "clients")]
    pub clients: usize,
    /// Every call's `max_tokens`; absent = its true length.
    pub max_tokens: Option<u32>,
    /// What a good answer is.
    #[serde(default = "objectives")]
    pub objectives: Vec<Objective>,
    /// The calls that the table is about; absent = all.
    #[serde(default)]
    pub judged: Judged,
    /// Simulated engines by group, each group a process.
    #[serde(default)]
    pub engines: BTreeMap<String, EngineGroup>,
    /// The calls.
    pub load: Vec<Source>,
    /// Who is compared; the ratios are of the first one to the others.
    pub contestants: Vec<Contestant>,
}

/// Simulated engines that are alike.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineGroup {
    /// The accelerator and model whose speed they have.
    pub profile: String,
    /// How many.
    pub count: u16,
    /// How many times faster than the profile they run.
    #[serde(default = "speed")]
    pub speed: f64,
    /// Sequences at once; absent = the profile's.
    pub max_seqs: Option<u32>,
    /// Whether they keep prefixes.
    #[serde(default = "yes")]
    pub prefix_cache: bool,
    /// Price of one for an hour.
    #[serde(default)]
    pub price: f64,
    /// What goes wrong, and when.
    #[serde(default)]
    pub faults: Vec<PlannedFault>,
}

/// Something that goes wrong with an engine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFault {
    /// Seconds from the start of the load.
    pub at_s: f64,
    /// Which engine of its group, from 0.
    #[serde(default)]
    pub engine: u16,
    /// As for `POST /sim/faults`.
    pub fault: Option<Value>,
    /// As for `POST /sim/terminate`.
    pub terminate: Option<Value>,
}

/// One of those who are compared: exactly one of `penstock`, `proxy`, `program`, `url`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contestant {
    /// Its name in the table.
    pub name: String,
    /// The gateway, with this configuration: see the scenarios' README.
    pub penstock: Option<PathBuf>,
    /// The reference proxy in this mode.
    pub proxy: Option<Mode>,
    /// The reference proxy's requests at a server at once.
    pub maxconn: Option<u32>,
    /// Another router: its program and arguments, with the places of a configuration. It runs in
    /// the foreground, as one process.
    pub program: Option<Vec<String>>,
    /// The program's configuration, a template; `{{config}}` in its arguments is the file's path.
    pub config: Option<PathBuf>,
    /// Something that runs already.
    pub url: Option<String>,
    /// API keys for `url`, by tenant.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// Classes whose calls are left out of its load: what the others do
    /// without them.
    #[serde(default)]
    pub without: Vec<String>,
    /// The ratio that the simulation found, to be compared with.
    pub simulated: Option<f64>,
}

/// What a contestant is.
#[derive(Debug, Clone, Copy)]
pub enum Kind<'a> {
    /// The gateway with a configuration.
    Penstock(&'a Path),
    /// The reference proxy.
    Proxy(Mode, Option<u32>),
    /// Another router: program and arguments, and its configuration.
    Program(&'a [String], Option<&'a Path>),
    /// Something that runs already.
    Url(&'a str),
}

fn model() -> String {
    "sim".to_owned()
}
fn rounds() -> u32 {
    3
}
fn warmup() -> f64 {
    0.1
}
fn settle() -> f64 {
    2.0
}
fn drain() -> f64 {
    60.0
}
fn timeout() -> f64 {
    300.0
}
fn clients() -> usize {
    1
}
fn speed() -> f64 {
    1.0
}
fn yes() -> bool {
    true
}
fn objectives() -> Vec<Objective> {
    [150.0, 500.0, 1000.0].map(|ttft_ms| Objective { ttft_ms, itl_ms: 50.0 }).to_vec()
}

impl Scenario {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// With the file, the field and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads and checks a text.
    ///
    /// # Errors
    /// With the field and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        let scenario: Scenario = serde_saphyr::from_str(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> Result<()> {
        ensure!((1..=100).contains(&self.rounds), "`rounds` must be 1 to 100");
        ensure!((0.0..1.0).contains(&self.warmup), "`warmup` must be a share from 0 to below 1");
        for (name, value) in
            [("settle_s", self.settle_s), ("drain_s", self.drain_s), ("timeout_s", self.timeout_s)]
        {
            ensure!((0.0..=86_400.0).contains(&value), "`{name}` must be seconds, at most a day");
        }
        ensure!((1..=64).contains(&self.clients), "`clients` must be 1 to 64");
        ensure!(!self.objectives.is_empty(), "`objectives` needs an entry");
        ensure!(!self.contestants.is_empty(), "`contestants` needs an entry");
        for (place, contestant) in self.contestants.iter().enumerate() {
            let name = &contestant.name;
            contestant.kind().with_context(|| format!("contestant {name}"))?;
            let before = &self.contestants[..place];
            ensure!(before.iter().all(|other| other.name != *name), "two contestants are called {name}");
        }
        for (name, group) in &self.engines {
            ensure!((1..=256).contains(&group.count), "engines.{name}: `count` must be 1 to 256");
            ensure!(group.speed.is_finite() && group.speed > 0.0, "engines.{name}: `speed` must be above 0");
            ensure!(
                group.price.is_finite() && group.price >= 0.0,
                "engines.{name}: `price` must be 0 or more"
            );
            for fault in &group.faults {
                fault.check(group.count).with_context(|| format!("engines.{name}.faults"))?;
            }
        }
        Ok(())
    }
}

impl PlannedFault {
    fn check(&self, engines: u16) -> Result<()> {
        ensure!(self.fault.is_some() != self.terminate.is_some(), "an entry has `fault` or `terminate`");
        ensure!(self.engine < engines, "there is no engine {}", self.engine);
        ensure!((0.0..=86_400.0).contains(&self.at_s), "`at_s` must be seconds, at most a day");
        Ok(())
    }
}

impl Contestant {
    /// What it is.
    ///
    /// # Errors
    /// When it is nothing, or several things.
    pub fn kind(&self) -> Result<Kind<'_>> {
        ensure!(self.maxconn.is_none() || self.proxy.is_some(), "`maxconn` is for `proxy`");
        ensure!(self.keys.is_empty() || self.url.is_some(), "`keys` are for `url`");
        ensure!(self.config.is_none() || self.program.is_some(), "`config` is for `program`");
        match (&self.penstock, self.proxy, &self.program, &self.url) {
            (Some(config), None, None, None) => Ok(Kind::Penstock(config)),
            (None, Some(mode), None, None) => Ok(Kind::Proxy(mode, self.maxconn)),
            (None, None, Some(words), None) => {
                ensure!(!words.is_empty(), "`program` needs the name of a program");
                Ok(Kind::Program(words, self.config.as_deref()))
            }
            (None, None, None, Some(url)) => Ok(Kind::Url(url)),
            _ => bail!("it needs one of `penstock`, `proxy`, `program` and `url`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
about: test
engines: {main: {profile: tiny, count: 2, faults: [{at_s: 1, engine: 1, fault: {kind: freeze}}]}}
load: [{input: 10, output: 5, rate: 5, for_s: 2, tenants: {a: 1}, class: batch}]
judged: {classes: [batch]}
contestants:
  - {name: one, penstock: penstock.yaml}
  - {name: two, proxy: least-request, maxconn: 3, simulated: 0.5, without: [batch]}
";

    #[test]
    fn a_scenario_has_defaults() {
        let scenario = Scenario::parse(GOOD).expect("a scenario");
        assert_eq!((scenario.rounds, scenario.clients, scenario.objectives.len()), (3, 1, 3));
        let two = scenario.contestants[1].kind().expect("a kind");
        assert!(matches!(two, Kind::Proxy(Mode::LeastRequest, Some(3))));
        assert!(scenario.engines["main"].prefix_cache);
    }

    #[test]
    fn mistakes_are_named() {
        let table = [
            ("about: test", "abut: test", "abut"),
            ("count: 2", "count: 0", "engines.main: `count`"),
            ("engine: 1", "engine: 2", "there is no engine 2"),
            ("name: two", "name: one", "two contestants are called one"),
            ("penstock: penstock.yaml", "maxconn: 3", "`maxconn` is for `proxy`"),
            ("penstock: penstock.yaml", "without: []", "one of `penstock`"),
            ("about: test", "about: test\nwarmup: 1", "`warmup`"),
            ("penstock: penstock.yaml", "program: []", "the name of a program"),
            ("penstock: penstock.yaml", "penstock: penstock.yaml, config: c", "`config` is for `program`"),
            ("fault: {kind: freeze}", "fault: {}, terminate: {}", "`fault` or `terminate`"),
        ];
        for (from, to, expected) in table {
            let text = GOOD.replace(from, to);
            let error = format!("{:#}", Scenario::parse(&text).expect_err(to));
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
