//! Setting of a plan: the classes' objectives, the pools with their speed and
//! price, and the start time of a replica.

use std::time::Duration;

use crate::config::syntax::units::Span;
use crate::core::model::ids::ClassId;
use crate::core::model::policy::{Class, Policy, QueueBounds, Quota, Tenant};
use crate::core::placement::rules::{Capacity, PoolTraits, Price};
use crate::sim::engine::EngineOptions;
use crate::sim::engine::profile::{StepLoad, StepProfile};
use crate::sim::world::gateway::{ReplicaGroup, policy};
use crate::sim::world::record::Objectives;
use crate::sim::world::replica::ReplicaSetup;

/// Replicas of the largest fleet that is tried.
pub const MOST_REPLICAS: usize = 512;

#[derive(Debug, Clone)]
pub struct Setting {
    /// The latency classes with their names, in the order of their ids.
    pub classes: Vec<(String, Class)>,
    /// The pools; never empty.
    pub pools: Vec<PoolSpec>,
    /// Time from the decision to the first request that a new replica takes.
    pub start: Duration,
    /// Share of requests that must meet their objectives, of those that an idle
    /// replica serves within them.
    pub objective_share: f64,
}

/// A pool: replicas that are alike.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSpec {
    pub name: String,
    /// Step-time profile of the replicas.
    pub profile: StepProfile,
    /// Name of the profile.
    pub speed: String,
    /// Price of one replica per hour.
    pub price: f64,
    /// Whether the replicas may be taken away.
    pub capacity: Capacity,
    /// Replicas today; absent = not known.
    pub today: Option<usize>,
    /// Sequences that each replica runs at once; absent = the profile's.
    pub max_seqs: Option<u32>,
    /// Tokens of each replica's KV cache; absent = the profile's.
    pub kv_tokens: Option<u64>,
}

impl PoolSpec {
    /// Tokens of the longest request that one replica can hold.
    pub fn max_request_tokens(&self) -> u64 {
        self.kv_tokens.unwrap_or(self.profile.kv_tokens)
    }

    /// TTFT and ITL of such a request at an idle replica.
    pub fn idle_latency(&self, prompt: u32, output: u32) -> Objectives {
        let (mut left, mut before, mut millis) = (u64::from(prompt), 0u64, 0.0);
        while left > 0 {
            let chunk = left.min(u64::from(self.profile.max_tokens.max(1)));
            let area = chunk as f64 * (before as f64 + chunk as f64 / 2.0);
            let load = StepLoad { prefill_tokens: chunk, prefill_area: area, ..StepLoad::default() };
            millis += self.profile.step_ms(&load);
            (left, before) = (left - chunk, before + chunk);
        }
        let middle = u64::from(prompt) + u64::from(output / 2);
        let gap = self.profile.step_ms(&StepLoad { decodes: 1, decode_kv: middle, ..StepLoad::default() });
        Objectives { ttft: Duration::from_secs_f64(millis / 1e3), itl: Duration::from_secs_f64(gap / 1e3) }
    }

    /// Replica-seconds that a request costs at a well used replica. The prompt
    /// is read at full speed. The answer shares its steps with as many others
    /// as keep a step within `gap`.
    pub fn replica_seconds(&self, prompt: u32, output: u32, gap: Duration) -> f64 {
        let profile = &self.profile;
        let tokens = f64::from(prompt) + f64::from(output) / 2.0;
        let room = gap.as_secs_f64() * 1e3 * 0.9 - profile.t_ovh - profile.i0;
        let held = self.max_request_tokens() as f64 / tokens.max(1.0);
        let most = f64::from(self.max_seqs.unwrap_or(profile.max_seqs)).min(held);
        let side_by_side = (room / (profile.a + profile.c * tokens).max(1e-9)).clamp(1.0, most.max(1.0));
        let count = side_by_side as u64;
        let load = StepLoad {
            decodes: count.max(1),
            decode_kv: (count as f64 * tokens) as u64,
            ..StepLoad::default()
        };
        let step = profile.step_ms(&load) / side_by_side;
        (f64::from(prompt) * profile.a + f64::from(output) * step) / 1e3
    }

    fn replica(&self) -> ReplicaSetup {
        let options = EngineOptions {
            max_seqs: self.max_seqs,
            kv_tokens: self.kv_tokens,
            prefix_cache: true,
            priority_scheduling: false,
            ..EngineOptions::default()
        };
        ReplicaSetup { price: self.price, ..ReplicaSetup::new(self.profile, options) }
    }

    fn replica_group(&self, replicas: usize) -> ReplicaGroup {
        let supply =
            PoolTraits { capacity: self.capacity, price: Price::new(self.price), ..PoolTraits::default() };
        ReplicaGroup { pool: self.name.clone(), supply, models: vec![0], replicas }
    }
}

impl Setting {
    /// The objectives of each class.
    pub fn goals(&self) -> Vec<Objectives> {
        let goal = |(_, class): &(String, Class)| Objectives {
            ttft: class.ttft_objective,
            itl: class.itl_objective,
        };
        self.classes.iter().map(goal).collect()
    }

    /// The engines of a fleet: `fleet` has the number of replicas of each pool.
    pub(super) fn replicas(&self, fleet: &[usize]) -> Vec<ReplicaSetup> {
        let pairs = self.pools.iter().zip(fleet);
        pairs.flat_map(|(pool, count)| std::iter::repeat_n(pool.replica(), *count)).collect()
    }

    /// The scheduler's policy for such a fleet.
    pub(super) fn policy(&self, fleet: &[usize]) -> Policy {
        let here = self.pools.iter().zip(fleet).filter(|(_, count)| **count > 0);
        let replica_groups: Vec<ReplicaGroup> =
            here.map(|(pool, count)| pool.replica_group(*count)).collect();
        let classes: Vec<Class> = self.classes.iter().map(|(_, class)| class.clone()).collect();
        let tenant = Tenant {
            weight: 1.0,
            parent: None,
            default_class: ClassId::new(0),
            classes: (0..classes.len() as u32).map(ClassId::new).collect(),
            models: None,
            bounds: QueueBounds::default(),
            quota: Quota::default(),
            placement: Default::default(),
        };
        policy(&replica_groups, &classes, &[tenant])
    }

    /// Cost of a fleet per hour.
    pub fn cost(&self, fleet: &[usize]) -> f64 {
        self.pools.iter().zip(fleet).map(|(pool, count)| pool.price * *count as f64).sum()
    }

    /// Sets a class's time, as written `interactive.max_wait=5s`.
    ///
    /// # Errors
    ///
    /// A sentence that names the valid classes and times.
    pub fn set_class(&mut self, text: &str) -> Result<(), String> {
        let form = || format!("`{text}`: write it like interactive.max_wait=5s");
        let (field, value) = text.split_once('=').ok_or_else(form)?;
        let (name, key) = field.trim().rsplit_once('.').ok_or_else(form)?;
        let names = || self.classes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let unknown = format!("`{text}`: there is no class `{name}`; there are: {}", names());
        let class = self.classes.iter_mut().find(|(known, _)| known == name).map(|(_, class)| class);
        let class = class.ok_or(unknown)?;
        let span: Span = value
            .trim()
            .parse()
            .map_err(|what: String| format!("`{text}`: {}", what.lines().collect::<Vec<_>>().join("; ")))?;
        if span.0.is_zero() {
            return Err(format!("`{text}`: must be longer than 0"));
        }
        match key {
            "max_wait" => class.max_wait = span.0,
            "ttft" => class.ttft_objective = span.0,
            "itl" => class.itl_objective = span.0,
            _ => return Err(format!("`{text}`: a class has max_wait, ttft and itl here, no `{key}`")),
        }
        Ok(())
    }
}

/// A replica's speed from measurements: prompt tokens read per second, and the
/// time between two tokens of a stream. Written `read=21000,gap=8ms`,
/// optionally with `seqs=128` and `kv=200000`.
///
/// # Errors
///
/// A sentence that shows how to write it.
pub fn measured(text: &str) -> Result<StepProfile, String> {
    let form = || format!("`{text}`: write it like read=21000,gap=8ms, perhaps with seqs=128 and kv=200000");
    let (mut read, mut gap) = (None, None);
    let mut profile = of_rates(1.0, Duration::ZERO).ok_or_else(form)?;
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=').ok_or_else(form)?;
        let value = value.trim();
        match key.trim() {
            "read" => read = value.parse::<f64>().ok().filter(|read| (1.0..=1e9).contains(read)),
            "gap" => gap = value.parse::<Span>().ok().filter(|gap| !gap.0.is_zero()),
            "seqs" => profile.max_seqs = value.parse().ok().filter(|seqs| *seqs > 0).ok_or_else(form)?,
            "kv" => profile.kv_tokens = value.parse().ok().filter(|kv| *kv > 16).ok_or_else(form)?,
            _ => return Err(form()),
        }
    }
    let (read, gap) = read.zip(gap).ok_or_else(form)?;
    let speed = of_rates(read, gap.0).ok_or_else(form)?;
    Ok(StepProfile { a: speed.a, t_w: speed.t_w, ..profile })
}

/// The profile of replicas that read `read` prompt tokens per second and take
/// `gap` between two tokens.
pub fn of_rates(read: f64, gap: Duration) -> Option<StepProfile> {
    let usual = StepProfile::named("h100-8b")?;
    let (a, t_w) = (1e3 / read, gap.as_secs_f64() * 1e3);
    Some(StepProfile { a, t_w, i0: 0.0, t_ovh: 0.0, c: 0.0, d: 0.0, max_seqs: 256, ..usual })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_alone_reads_in_whole_steps() {
        let profile = measured("read=10000,gap=10ms,seqs=64").unwrap();
        let pool = PoolSpec {
            name: "p".into(),
            profile: StepProfile { max_tokens: 1_000, ..profile },
            speed: "measured".into(),
            price: 1.0,
            capacity: Capacity::OnDemand,
            today: None,
            max_seqs: None,
            kv_tokens: None,
        };
        // Two steps of 1,000 tokens at 100 ms, and one of 10 tokens, which is at
        // its shortest.
        let alone = pool.idle_latency(2_010, 10);
        assert_eq!((alone.ttft.as_millis(), alone.itl.as_millis()), (210, 10));
        // 64 side by side in a step of 10 ms.
        let work = pool.replica_seconds(1_000, 64, Duration::from_millis(50));
        assert!((work - 0.11).abs() < 0.001, "{work}");
    }

    #[test]
    fn wrong_rates_are_answered_with_the_form() {
        for text in [
            "",
            "read=1",
            "read=fast,gap=1ms",
            "read=9,gap=0s",
            "read=9,gap=1ms,x=1",
            "read=9,gap=1ms,seqs=0",
        ] {
            assert!(measured(text).unwrap_err().contains("read=21000,gap=8ms"), "{text}");
        }
    }
}
