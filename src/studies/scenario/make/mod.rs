//! Scenario checks: validates a scenario part by part and makes the cases that
//! a run needs.

mod fleet_row;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use self::fleet_row::{engine, models_of, positive};
use crate::config::sections::placement as written;
use crate::config::syntax::units::Span;
use crate::core::model::ids::ClassId;
use crate::core::model::policy::{Class, Policy, QueueBounds, Quota, Tenant};
use crate::core::placement::rules::{Capacity, LatePolicy, PlacementRules, PoolTraits, Price};
use crate::sim::arrivals::{Conversations, Length, Pattern, Sizes};
use crate::sim::trace::TrafficTrace;
use crate::sim::world::gateway::{ReplicaGroup, policy};
use crate::sim::world::replica::ReplicaSetup;
use crate::studies::scenario::case::Case;
use crate::studies::scenario::design::{Design, WorldFacts};
use crate::studies::scenario::file;
use crate::studies::scenario::file::WorldSection;
use crate::studies::scenario::file::{PatternName, Scenario, ScenarioClass, ScenarioFleet};
use crate::studies::scenario::scale::WorldScale;
use crate::studies::scenario::traffic::{
    CallOwner, CallRate, CallSource, Delay, RequestTraits, TenantShare, TrafficStream,
};

/// Most choices of one request.
const MAX_CHOICES: u32 = 128;
/// Most engines of one world.
const MAX_ENGINES: u32 = 4_096;
/// Most tenants of one stream.
const MAX_TENANTS: u32 = 10_000;

/// State that the cases of a plan share while the plan is made.
pub(super) struct Maker<'a> {
    folder: &'a Path,
    pub(super) classes: Vec<(String, ScenarioClass)>,
    pub(super) tenants: Vec<(String, file::ScenarioTenant)>,
    /// Names of the case's models, in the order in which the fleet names them.
    models: Vec<String>,
    traces: HashMap<PathBuf, Arc<TrafficTrace>>,
}

fn share(field: &str, value: f64) -> Result<f64, String> {
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{field}: must be from 0 to 1")) }
}

impl<'a> Maker<'a> {
    pub(super) fn new(scenario: &Scenario, folder: &'a Path) -> Result<Self, String> {
        let named = |(name, row): (&str, &ScenarioClass)| (name.to_owned(), row.clone());
        let mut classes: Vec<(String, ScenarioClass)> = scenario.classes.iter().map(named).collect();
        if classes.is_empty() {
            let goal =
                scenario.goal.unwrap_or(file::GoalRow { ttft: Span::millis(150), itl: Span::millis(50) });
            let row = ScenarioClass { ttft: goal.ttft, itl: goal.itl, ..ScenarioClass::default() };
            classes.push(("interactive".to_owned(), row));
        }
        for (name, row) in &classes {
            if !(0.0..=1.0).contains(&row.min_share) {
                return Err(format!("classes.{name}.min_share: must be from 0 to 1"));
            }
            if let Some(other) = &row.demote_to
                && !classes.iter().any(|(known, _)| known == other && known != name)
            {
                return Err(format!("classes.{name}.demote_to: `{other}` is not another class"));
            }
        }
        let mut tenants: Vec<_> =
            scenario.tenants.iter().map(|(name, row)| (name.to_owned(), *row)).collect();
        for (name, row) in &tenants {
            positive(&format!("tenants.{name}.weight"), row.weight.unwrap_or(1.0))?;
        }
        if tenants.is_empty() {
            tenants.push(("one".to_owned(), file::ScenarioTenant::default()));
        }
        Ok(Self { folder, classes, tenants, models: Vec::new(), traces: HashMap::new() })
    }

    /// Penstock's policy for such engines.
    ///
    /// # Errors
    ///
    /// When a class names an unknown pool.
    pub(super) fn policy(&self, replica_groups: &[ReplicaGroup]) -> Result<Policy, String> {
        let class = |(rank, (_, row)): (usize, &(String, ScenarioClass))| Class {
            usage_half_life: None,
            rank: rank as u32,
            min_share: row.min_share,
            max_wait: row.max_wait.unwrap_or(row.ttft).0,
            ttft_objective: row.ttft.0,
            itl_objective: row.itl.0,
            cold_start_tolerance: None,
            scavenger: false,
            demote_to: row.demote_to.as_deref().and_then(|other| {
                let place = self.classes.iter().position(|(name, _)| name == other)?;
                Some(ClassId::new(place as u32))
            }),
            placement: Default::default(),
        };
        let classes: Vec<Class> = self.classes.iter().enumerate().map(class).collect();
        let ids: BTreeSet<ClassId> = (0..classes.len() as u32).map(ClassId::new).collect();
        let tenant = |(_, row): &(String, file::ScenarioTenant)| Tenant {
            weight: row.weight.unwrap_or(1.0),
            parent: None,
            default_class: ClassId::new(0),
            classes: ids.clone(),
            models: None,
            bounds: QueueBounds::default(),
            quota: Quota {
                guarantee: row.guarantee,
                borrow: row.borrow.unwrap_or(1.0),
                lend: row.lend.unwrap_or(1.0),
            },
            placement: Default::default(),
        };
        let tenants: Vec<Tenant> = self.tenants.iter().map(tenant).collect();
        let mut policy = policy(replica_groups, &classes, &tenants);
        for (index, (name, row)) in self.classes.iter().enumerate() {
            let mut class = classes[index].clone();
            class.placement = rules(row, &policy).map_err(|what| format!("classes.{name}.{what}"))?;
            policy.classes.insert(&index.to_string(), class);
        }
        Ok(policy)
    }

    pub(super) fn case(&mut self, name: &str, shape: &WorldSection) -> Result<Case, String> {
        let at = |what: String| if name.is_empty() { what } else { format!("cases.{name}: {what}") };
        self.plain_case(name, shape).map_err(at)
    }

    fn plain_case(&mut self, name: &str, shape: &WorldSection) -> Result<Case, String> {
        let usual =
            vec![ScenarioFleet { profile: "h100-8b".to_owned(), count: Some(8), ..ScenarioFleet::default() }];
        let (mut replicas, mut weights, mut replica_groups) = (Vec::new(), Vec::new(), Vec::new());
        let fleet = shape.fleet.as_ref().unwrap_or(&usual);
        self.models = models_of(fleet);
        let scale = shape.scale.as_ref().map(|row| WorldScale::new(row, shape)).transpose()?;
        for (index, row) in fleet.iter().enumerate() {
            let setup = engine(row).map_err(|what| format!("fleet[{index}].{what}"))?;
            let count = scale.as_ref().map_or(row.count.unwrap_or(1), |scale| scale.max_engines);
            let count = count.min(MAX_ENGINES) as usize;
            replica_groups.push(
                self.replica_group(row, &setup, count).map_err(|what| format!("fleet[{index}].{what}"))?,
            );
            replicas.resize(replicas.len() + count, setup);
            weights.resize(replicas.len(), positive("fleet.weight", row.weight.unwrap_or(1.0))?);
        }
        if replicas.is_empty() || replicas.len() > MAX_ENGINES as usize {
            return Err(format!("fleet: must have from 1 to {MAX_ENGINES} engines"));
        }
        let loads = shape.loads.clone().unwrap_or_else(|| vec![1.0]);
        loads.iter().try_for_each(|load| positive("loads", *load).map(|_| ()))?;
        let traffic = shape.traffic.as_deref().unwrap_or_default();
        let streams: Result<Vec<TrafficStream>, String> = traffic
            .iter()
            .enumerate()
            .map(|(index, row)| self.stream(row).map_err(|what| format!("traffic[{index}].{what}")))
            .collect();
        let streams = streams?;
        if streams.is_empty() {
            return Err("traffic: needs a stream, such as {pattern: poisson} or {trace: FILE}".to_owned());
        }
        let names =
            shape.designs.clone().unwrap_or_else(|| vec!["penstock".to_owned(), "least-request".to_owned()]);
        let designs: Result<Vec<Design>, String> = names.iter().map(|name| name.parse()).collect();
        let designs = designs.map_err(|what| format!("designs: {what}"))?;
        if let Some(scale) = &scale {
            scale.check(&designs)?;
        }
        if let Some(other) = designs.iter().find(|design| self.models.len() > 1 && !design.is_penstock()) {
            return Err(format!("designs: `{other}` knows no models; only penstock does"));
        }
        let profiles = replicas.iter().map(|setup: &ReplicaSetup| setup.profile).collect();
        Ok(Case {
            name: name.to_owned(),
            loads,
            designs,
            scale,
            capacity: positive("capacity", shape.capacity.unwrap_or(1.0))?,
            streams,
            gateways: shape.gateways.unwrap_or(1).max(1),
            scrape: shape.scrape.map(|span| span.0).filter(|span| !span.is_zero()),
            late: shape.late.unwrap_or(false),
            horizon: shape.horizon.map(|span| span.0),
            clients: clients(shape)?,
            facts: WorldFacts { profiles, weights, policy: Policy::default() },
            replicas,
            replica_groups,
        })
    }

    fn trace(&mut self, path: &Path) -> Result<Arc<TrafficTrace>, String> {
        let path = self.folder.join(path);
        if let Some(known) = self.traces.get(&path) {
            return Ok(Arc::clone(known));
        }
        let trace = Arc::new(TrafficTrace::read(&path).map_err(|error| error.to_string())?);
        self.traces.insert(path, Arc::clone(&trace));
        Ok(trace)
    }

    fn stream(&mut self, row: &file::StreamRow) -> Result<TrafficStream, String> {
        let source = self.source(row)?;
        let place = |names: &mut dyn Iterator<Item = &String>, field: &str, wanted: &Option<String>| {
            let names: Vec<&String> = names.collect();
            let Some(wanted) = wanted else { return Ok(0) };
            let found = names.iter().position(|name| *name == wanted);
            found
                .map(|index| index as u32)
                .ok_or_else(|| format!("{field}: `{wanted}` is not one of {names:?}"))
        };
        let class = place(&mut self.classes.iter().map(|(name, _)| name), "class", &row.class)?;
        let tenant =
            |wanted: &Option<String>| place(&mut self.tenants.iter().map(|(name, _)| name), "tenant", wanted);
        let owner = match (&source, row.shares.is_empty(), row.trace_tenants) {
            _ if row.zipf.is_some() => self.zipf(row)?,
            (_, false, false) => {
                let shares = row.shares.iter().map(|(name, share)| {
                    Ok(TenantShare { tenant: tenant(&Some(name.to_owned()))?, share: *share })
                });
                CallOwner::Drawn(shares.collect::<Result<_, String>>()?)
            }
            (CallSource::Recorded(trace), true, true) => {
                let names = trace.tenants.clone();
                CallOwner::OfTrace(names.iter().map(|name| self.tenant_named(name)).collect())
            }
            (_, _, true) => return Err("trace_tenants: needs a trace, and no shares".to_owned()),
            (_, true, false) => CallOwner::One(tenant(&row.tenant)?),
        };
        let rate = match (row.rate, row.load) {
            (None, None) => CallRate::OfRun,
            (Some(rate), None) => CallRate::Fixed(positive("rate", rate)?),
            (None, Some(part)) => CallRate::OfCapacity(positive("load", part)?),
            (Some(_), Some(_)) => return Err("rate: give it or load, not both".to_owned()),
        };
        Ok(TrafficStream {
            source,
            rate,
            count: row.count,
            span: row.span.map(|span| span.0),
            start: row.start.unwrap_or_default().0,
            class,
            owner,
            models: self.model_shares(row)?,
            max_output: row.max_output.unwrap_or(4_096),
            patience: row.patience.map(|span| span.0),
            habits: traits(row)?,
        })
    }

    /// Tenants of skewed demand.
    fn zipf(&mut self, row: &file::StreamRow) -> Result<CallOwner, String> {
        let usual = file::ZipfRow { tenants: 0, skew: 0.0 };
        let file::ZipfRow { tenants, skew } = row.zipf.unwrap_or(usual);
        if tenants == 0 || tenants > MAX_TENANTS || !(0.0..=10.0).contains(&skew) {
            return Err(format!("zipf: must have from 1 to {MAX_TENANTS} tenants and a skew from 0 to 10"));
        }
        if !row.shares.is_empty() || row.trace_tenants || row.tenant.is_some() {
            return Err("zipf: give no tenant, shares or trace_tenants beside it".to_owned());
        }
        let share = |nth: u32| TenantShare {
            tenant: self.tenant_named(&format!("t{nth}")),
            share: f64::from(nth).powf(-skew),
        };
        Ok(CallOwner::Drawn((1..=tenants).map(share).collect()))
    }

    /// Share of each model in the stream's requests.
    fn model_shares(&self, row: &file::StreamRow) -> Result<Vec<f64>, String> {
        if let Some((name, _)) =
            row.models.iter().find(|(name, _)| !self.models.iter().any(|own| own == name))
        {
            return Err(format!("models: `{name}` is not one of {:?}", self.models));
        }
        let share = |name: &String| row.models.get(name).copied().unwrap_or(0.0);
        if row.models.is_empty() {
            return Ok(Vec::new());
        }
        let shares = self.models.iter().map(share);
        shares.map(|share| positive("models", share.max(f64::MIN_POSITIVE))).collect()
    }

    /// Engines as a pool of the policy. Routers are told a price only for a pool
    /// with a name.
    fn replica_group(
        &self,
        row: &ScenarioFleet,
        setup: &ReplicaSetup,
        replicas: usize,
    ) -> Result<ReplicaGroup, String> {
        let price =
            Price::new(setup.price).ok_or_else(|| format!("price: must be from 0 to {}", Price::MAX))?;
        let serves = |name: &String| row.models.as_ref().is_none_or(|own| own.contains(name));
        let served = self.models.iter().enumerate().filter(|(_, name)| serves(name));
        let models = match self.models.is_empty() {
            true => vec![0],
            false => served.map(|(index, _)| index as u32).collect(),
        };
        let Some(pool) = row.pool.clone() else {
            return Ok(ReplicaGroup { models, ..ReplicaGroup::plain(replicas) });
        };
        let capacity = match row.capacity {
            written::CapacityName::OnDemand => Capacity::OnDemand,
            written::CapacityName::Spot => Capacity::Spot,
        };
        let supply = PoolTraits { capacity, price: Some(price), ..PoolTraits::default() };
        Ok(ReplicaGroup { pool, supply, models, replicas })
    }

    fn tenant_named(&mut self, name: &str) -> u32 {
        let known = self.tenants.iter().position(|(known, _)| known == name);
        known.unwrap_or_else(|| {
            self.tenants.push((name.to_owned(), file::ScenarioTenant::default()));
            self.tenants.len() - 1
        }) as u32
    }

    fn source(&mut self, row: &file::StreamRow) -> Result<CallSource, String> {
        match (&row.trace, row.pattern, &row.talks) {
            (Some(path), None, None) => Ok(CallSource::Recorded(shorter(self.trace(path)?, row.max_prompt)?)),
            (None, Some(name), None) => {
                Ok(CallSource::Made(pattern(name, row), self.sizes(row.sizes.as_ref())?))
            }
            (None, None, Some(talks)) => Ok(CallSource::Talks(Conversations {
                system_prompts: talks.system_prompts,
                system_tokens: talks.system_tokens,
                turns: talks.turns.clamp(1, 1_000),
                turn_tokens: talks.turn_tokens,
                pause: talks.pause.0,
                rate: 1.0,
                span: Duration::ZERO,
                output: length(Some(talks.output), 100.0),
                answers: talks.answers,
            })),
            _ => Err("trace: give exactly one of trace, pattern and talks".to_owned()),
        }
    }

    fn sizes(&mut self, row: Option<&file::SizesRow>) -> Result<Sizes, String> {
        let usual = file::SizesRow::default();
        let row = row.unwrap_or(&usual);
        if let Some(path) = &row.trace {
            return Ok(Sizes::of(&*self.trace(path)?));
        }
        Ok(Sizes::Independent { prompt: length(row.prompt, 500.0), output: length(row.output, 100.0) })
    }
}

fn shorter(trace: Arc<TrafficTrace>, longest: Option<u32>) -> Result<Arc<TrafficTrace>, String> {
    let Some(longest) = longest else { return Ok(trace) };
    let mut trace = TrafficTrace::clone(&trace);
    trace.drop_longer(longest);
    if trace.calls.is_empty() {
        Err("max_prompt: no call of the trace is left".to_owned())
    } else {
        Ok(trace.into())
    }
}

fn length(row: Option<file::LengthRow>, usual: f64) -> Length {
    let row = row.unwrap_or(file::LengthRow { median: usual, sigma: 0.0 });
    match row.sigma {
        sigma if sigma > 0.0 => Length::LogNormal { median: row.median, sigma },
        _ => Length::Constant(row.median.max(1.0) as u32),
    }
}

fn pattern(name: PatternName, row: &file::StreamRow) -> Pattern {
    match name {
        PatternName::Even => Pattern::Even,
        PatternName::Poisson => Pattern::Poisson,
        PatternName::Gamma => Pattern::Gamma { cv: row.cv.unwrap_or(2.0) },
        PatternName::Square => Pattern::Square {
            period: row.period.map_or(Duration::from_secs(20), |span| span.0),
            duty: row.duty.unwrap_or(0.5),
            low: row.low.unwrap_or(0.0),
        },
        PatternName::Burst => Pattern::Burst,
    }
}

/// Traits of a stream's requests, except their sizes.
fn traits(row: &file::StreamRow) -> Result<RequestTraits, String> {
    let delay = |field: &str, row: Option<file::DelayRow>| {
        let share = |row: file::DelayRow| share(&format!("{field}.share"), row.share);
        row.map(|row| Ok::<_, String>(Delay { share: share(row)?, lasts: row.lasts.0 })).transpose()
    };
    let n = row.n.unwrap_or(1);
    if !(1..=MAX_CHOICES).contains(&n) {
        return Err(format!("n: must be from 1 to {MAX_CHOICES}"));
    }
    if row.system.is_some() && row.pattern.is_none() {
        return Err("system: only for a pattern".to_owned());
    }
    if row.system.is_some_and(|system| system.prompts == 0) {
        return Err("system.prompts: must be greater than 0".to_owned());
    }
    Ok(RequestTraits {
        plain: share("plain", row.plain.unwrap_or(0.0))?,
        n,
        held: delay("held", row.held)?,
        pauses: delay("pauses", row.pauses)?,
        unread: delay("unread", row.unread)?,
        system: row.system,
    })
}

fn clients(shape: &WorldSection) -> Result<Option<usize>, String> {
    match shape.clients {
        Some(0) => Err("clients: must be greater than 0".to_owned()),
        Some(_) if shape.scale.is_some() => Err("clients: with scale there is no closed loop".to_owned()),
        clients => Ok(clients.map(|clients| clients as usize)),
    }
}

fn rules(row: &ScenarioClass, policy: &Policy) -> Result<PlacementRules, String> {
    let id =
        |name: &String| policy.pools.id(name).ok_or_else(|| format!("pools: `{name}` is not in the fleet"));
    let pools = row.pools.as_ref().map(|names| names.iter().map(id).collect()).transpose()?;
    let otherwise = row.otherwise.map(|otherwise| match otherwise {
        written::LatePolicyName::Fastest => LatePolicy::Fastest,
        written::LatePolicyName::Wait => LatePolicy::Wait,
    });
    Ok(PlacementRules { pools, late_policy: otherwise, ..PlacementRules::default() })
}
