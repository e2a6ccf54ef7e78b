//! Setting of a plan, from the configuration and the command line.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::app::commands::plan::seen::{MeasuredDemand, MeasuredPool};
use crate::cli::plan::PlanArgs;
use crate::config::load;
use crate::config::settings::Settings;
use crate::core::model::ids::PoolId;
use crate::core::model::policy::{Class, Policy};
use crate::core::placement::rules::{Capacity, PlacementRules, Price};
use crate::sim::engine::profile::StepProfile;
use crate::studies::plan::setting::{PoolSpec, Setting, measured};

/// Cold start when nothing else tells: pulling an image and loading weights.
const DEFAULT_COLD_START: Duration = Duration::from_secs(180);
/// Class of requests without one, if the configuration has a class of that name.
const DEFAULT_CLASS: &str = "interactive";
/// Speed of replicas about which nothing is known.
const DEFAULT_PROFILE: &str = "h100-8b";
/// Name of a measured speed, and name of a pool with a measured speed.
const MEASURED: [&str; 2] = ["replicas as measured", "measured"];
/// Configuration that supplies the built-in classes.
const BUILT_IN_CONFIG: &str = "version: 1\nauth: {mode: off}\n\
    pools: {p: {engine: vllm, models: [m], replicas: [http://127.0.0.1:1]}}\n";

pub(super) fn load(path: &Path) -> anyhow::Result<Settings> {
    let loaded = load::load_file(path, None).into_result();
    let wrong = |report| anyhow::anyhow!("{report}the configuration {} cannot be used", path.display());
    loaded.map(|loaded| loaded.settings).map_err(wrong)
}

/// Builds the setting of a plan.
pub(super) fn build(
    args: &PlanArgs,
    settings: Option<&Settings>,
    seen: Option<&MeasuredDemand>,
) -> anyhow::Result<Setting> {
    let policy = match settings {
        Some(settings) => Policy::clone(&settings.policy),
        None => plain()?,
    };
    let mut classes: Vec<_> = policy.classes.iter().collect();
    classes.sort_unstable_by_key(|(id, ..)| id.index());
    let class = |class: &Class| Class {
        // Pools have other ids in the setting, and placement has nothing to choose among them.
        placement: PlacementRules::default(),
        ..class.clone()
    };
    let mut classes: Vec<(String, Class)> =
        classes.into_iter().map(|(_, name, row)| (name.to_owned(), class(row))).collect();
    objectives(args, &mut classes)?;
    let measured = seen.filter(|_| args.basis.rates.is_none() && args.basis.profile.is_empty());
    let measured = measured.map(|seen| pools_of_measured(args, seen)).transpose()?.unwrap_or_default();
    let own_limits = settings.is_some() || !measured.is_empty();
    let mut pools = match settings {
        Some(_) => of_config(args, &policy, &measured)?,
        None if measured.is_empty() => of_profiles(args)?,
        None if args.basis.replicas.is_some() && measured.len() > 1 => {
            bail!("--replicas: of which pool? Choose one with --config and --pool")
        }
        None => measured,
    };
    if let Some(seen) = seen.filter(|_| args.basis.rates.is_none()) {
        pools.iter_mut().for_each(|pool| limit(pool, seen, args, own_limits));
    }
    let known = policy.pools.iter().filter_map(|(_, _, pool)| pool.cold_start).max();
    let measured = seen.and_then(|seen| seen.start(&args.basis.pool));
    let start = args.basis.start.map(|span| span.0).or(measured).or(known).unwrap_or(DEFAULT_COLD_START);
    Ok(Setting { classes, pools, start, objective_share: args.basis.keep })
}

/// Gives a pool the measured limits of replicas, unless the pool has limits. With `own` the limits
/// are those of the pool's name, else those of the pools on the command line.
fn limit(pool: &mut PoolSpec, seen: &MeasuredDemand, args: &PlanArgs, own: bool) {
    let name = [pool.name.clone()];
    let (max_seqs, kv_tokens) = seen.limits(if own { &name } else { &args.basis.pool });
    pool.max_seqs = pool.max_seqs.or(max_seqs);
    pool.kv_tokens = pool.kv_tokens.or(kv_tokens);
}

/// Index of the default class.
pub(super) fn default_class(classes: &[(String, Class)]) -> usize {
    classes.iter().position(|(name, _)| name == DEFAULT_CLASS).unwrap_or(0)
}

/// Sets the default class's objectives from the command line.
fn objectives(args: &PlanArgs, classes: &mut [(String, Class)]) -> anyhow::Result<()> {
    let place = default_class(classes);
    let Some((_, class)) = classes.get_mut(place) else { bail!("the configuration has no class") };
    for (flag, asked, objective) in [
        ("--ttft", args.basis.ttft, &mut class.ttft_objective),
        ("--itl", args.basis.itl, &mut class.itl_objective),
    ] {
        match asked {
            Some(span) if span.0.is_zero() => bail!("{flag}: must be longer than 0"),
            Some(span) => *objective = span.0,
            None => {}
        }
    }
    Ok(())
}

fn plain() -> anyhow::Result<Policy> {
    let loaded = load::load_str(BUILT_IN_CONFIG, "built-in", Path::new("/"), None).into_result();
    let loaded = loaded.map_err(|report| anyhow::anyhow!("{report}"))?;
    Ok(Policy::clone(&loaded.settings.policy))
}

fn profile(name: &str) -> anyhow::Result<StepProfile> {
    let names = || StepProfile::names().collect::<Vec<_>>().join(", ");
    let profile = StepProfile::named(name);
    profile.with_context(|| {
        format!("--profile: no profile is called `{name}`; there are: {}; or give --rates", names())
    })
}

fn price(args: &PlanArgs, usual: f64) -> anyhow::Result<f64> {
    let price = args.basis.price.unwrap_or(usual);
    let known = Price::new(price);
    known.with_context(|| format!("--price: must be from 0 to {}", Price::MAX))?;
    Ok(price)
}

/// Speed given with `--rates`, if any.
fn rates(args: &PlanArgs) -> anyhow::Result<Option<StepProfile>> {
    let rates = args.basis.rates.as_deref().map(measured).transpose();
    rates.map_err(|what| anyhow::anyhow!("--rates: {what}"))
}

fn pool(args: &PlanArgs, name: &str, speed: &str, profile: StepProfile) -> anyhow::Result<PoolSpec> {
    Ok(PoolSpec {
        name: name.to_owned(),
        profile,
        speed: speed.to_owned(),
        price: price(args, profile.cost_h)?,
        capacity: Capacity::OnDemand,
        today: None,
        max_seqs: None,
        kv_tokens: None,
    })
}

/// Pools whose speed a gateway has measured.
fn pools_of_measured(args: &PlanArgs, seen: &MeasuredDemand) -> anyhow::Result<Vec<PoolSpec>> {
    let today = args.basis.replicas.map(|count| count.get() as usize);
    let pool = |MeasuredPool { name, replicas, profile }: MeasuredPool<'_>| {
        let today = today.or(Some(replicas)).filter(|count| *count > 0);
        Ok(PoolSpec { today, ..pool(args, name, MEASURED[0], profile)? })
    };
    seen.measured().map(pool).collect()
}

/// One pool for each profile.
fn of_profiles(args: &PlanArgs) -> anyhow::Result<Vec<PoolSpec>> {
    let today = args.basis.replicas.map(|count| count.get() as usize);
    if let Some(profile) = rates(args)? {
        return Ok(vec![PoolSpec { today, ..pool(args, MEASURED[1], MEASURED[0], profile)? }]);
    }
    if today.is_some() && args.basis.profile.len() > 1 {
        bail!("--replicas: of which profile? Give one --profile with it");
    }
    let mut pools: Vec<PoolSpec> = Vec::new();
    let usual = [DEFAULT_PROFILE.to_owned()];
    for name in if args.basis.profile.is_empty() { &usual[..] } else { &args.basis.profile } {
        if pools.iter().all(|known| known.name != *name) {
            pools.push(PoolSpec { today, ..pool(args, name, name, profile(name)?)? });
        }
    }
    Ok(pools)
}

/// Pools of the configuration, each with its speed.
fn of_config(args: &PlanArgs, policy: &Policy, measured: &[PoolSpec]) -> anyhow::Result<Vec<PoolSpec>> {
    let names = || policy.pools.iter().map(|(_, name, _)| name).collect::<Vec<_>>().join(", ");
    let named = args.basis.profile.iter().filter_map(|text| text.split_once('=')).map(|(pool, _)| pool);
    for name in args.basis.pool.iter().map(String::as_str).chain(named) {
        if policy.pools.id(name).is_none() {
            bail!("there is no pool `{name}` in the configuration; there are: {}", names());
        }
    }
    let wanted: Vec<(PoolId, &str)> = policy
        .pools
        .iter()
        .map(|(id, name, _)| (id, name))
        .filter(|(_, name)| args.basis.pool.is_empty() || args.basis.pool.iter().any(|pool| pool == name))
        .collect();
    if args.basis.replicas.is_some() && wanted.len() > 1 {
        bail!("--replicas: of which pool? Choose one with --pool; there are: {}", names());
    }
    wanted.into_iter().map(|(id, name)| of_pool(args, policy, id, name, measured)).collect()
}

fn of_pool(
    args: &PlanArgs,
    policy: &Policy,
    id: PoolId,
    name: &str,
    measured: &[PoolSpec],
) -> anyhow::Result<PoolSpec> {
    let own = args.basis.profile.iter().rev().find_map(|text| text.strip_prefix(name)?.strip_prefix('='));
    let all = args.basis.profile.iter().rev().find(|text| !text.contains('=')).map(String::as_str);
    let speed = own.or(all).unwrap_or(DEFAULT_PROFILE);
    let shown = measured.iter().find(|pool| pool.name == name);
    let spec = match (rates(args)?, shown) {
        (Some(rates), _) => pool(args, name, MEASURED[0], rates)?,
        (None, Some(shown)) => shown.clone(),
        (None, None) => pool(args, name, speed, profile(speed)?)?,
    };
    let Some(row) = policy.pools.get(id) else { return Ok(spec) };
    let first = row.replicas.first().and_then(|replica| policy.replicas.get(*replica));
    let here = Some(row.replicas.len()).filter(|count| *count > 0);
    Ok(PoolSpec {
        price: match args.basis.price {
            Some(_) => spec.price,
            None => row.traits.price.map_or(spec.price, Price::units),
        },
        capacity: row.traits.capacity,
        today: args.basis.replicas.map(|count| count.get() as usize).or(here),
        max_seqs: first.and_then(|replica| replica.max_seqs),
        kv_tokens: first.and_then(|replica| replica.kv_tokens),
        ..spec
    })
}
