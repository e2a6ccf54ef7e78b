//! Demand that a gateway has measured, from its admin port or its state file.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::app::background::demand;
use crate::app::commands::operate;
use crate::cli::operate::AdminArgs;
use crate::cli::plan::PlanArgs;
use crate::core::autoscale::demand::state::{DemandState, PoolDemandState, ProfileKind, VERSION};
use crate::sim::engine::profile::StepProfile;
use crate::sim::trace::TrafficTrace;
use crate::studies::plan::report::numbers;
use crate::studies::plan::seen;
use crate::studies::plan::setting::of_rates;

/// Measured demand, and its origin.
pub(super) struct MeasuredDemand {
    state: DemandState,
    /// Name of the origin, for the report.
    pub(super) name: String,
}

/// Reads the demand that `--live` or `--state` names; `None` without either.
pub(super) fn read_measured(args: &PlanArgs) -> anyhow::Result<Option<MeasuredDemand>> {
    let seen = match (&args.source.live, &args.source.state) {
        (Some(address), _) => live(address, args)?,
        (None, Some(path)) => file(path)?,
        (None, None) => return Ok(None),
    };
    if seen.state.version != VERSION {
        let version = seen.state.version;
        bail!("{} is of version {version}, and this program reads version {VERSION}", seen.name);
    }
    Ok(Some(seen))
}

fn live(address: &str, args: &PlanArgs) -> anyhow::Result<MeasuredDemand> {
    let admin = Some(address.to_owned()).filter(|address| !address.is_empty());
    let admin = AdminArgs { admin, access: args.source.access.clone(), ..AdminArgs::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(operate::demand(&admin))?;
    let state = serde_json::from_value(answer).context("the gateway's answer is not what it has seen")?;
    Ok(MeasuredDemand { state, name: "what the gateway has seen".to_owned() })
}

fn file(path: &Path) -> anyhow::Result<MeasuredDemand> {
    let name = path.display().to_string();
    let state = demand::read(path).with_context(|| format!("--state: cannot read {name}"))?;
    let state = state.with_context(|| {
        format!("--state: there is no {name}; a gateway with `scale.state_file` writes it each minute")
    })?;
    Ok(MeasuredDemand { state, name })
}

/// Pool whose speed was measured.
#[derive(Debug)]
pub(super) struct MeasuredPool<'a> {
    pub(super) name: &'a str,
    /// Replicas in service.
    pub(super) replicas: usize,
    pub(super) profile: StepProfile,
}

impl MeasuredDemand {
    /// Longest cold start of these pools; of all pools when none is named.
    pub(super) fn start(&self, pools: &[String]) -> Option<Duration> {
        let asked = self.state.pools.iter().filter(|pool| pools.is_empty() || pools.contains(&pool.name));
        let longest = asked.filter_map(|pool| pool.start).max_by(f64::total_cmp)?;
        Duration::try_from_secs_f64(longest).ok().filter(|start| !start.is_zero())
    }

    /// Pools whose speed was measured.
    pub(super) fn measured(&self) -> impl Iterator<Item = MeasuredPool<'_>> {
        self.state.pools.iter().filter_map(|pool| {
            Some(MeasuredPool { name: &pool.name, replicas: pool.ready as usize, profile: speed(pool)? })
        })
    }

    /// Limits of one replica: sequences, and tokens of KV cache. The least over these pools, or
    /// over all when none is named; `None` when no pool has a value.
    pub(super) fn limits(&self, pools: &[String]) -> (Option<u32>, Option<u64>) {
        let asked = || self.state.pools.iter().filter(|pool| pools.is_empty() || pools.contains(&pool.name));
        (asked().filter_map(|pool| pool.max_seqs).min(), asked().filter_map(|pool| pool.kv_tokens).min())
    }

    /// The demand as a trace, of all models or of one, with notes for the reader.
    pub(super) fn trace(&self, model: Option<&str>) -> anyhow::Result<(TrafficTrace, Vec<String>)> {
        let trace = seen::trace(&self.state, model);
        if trace.calls.is_empty() {
            bail!("{}", self.nothing(model));
        }
        let mut notes = vec![
            "A gateway keeps what came minute by minute, and sizes, waits and times in service as histograms: the requests are drawn from these. Bursts shorter than a minute are weaker here than they were.".to_owned(),
        ];
        notes.extend(self.bursts(model));
        notes.extend(self.unmet(model));
        notes.extend(self.state.pools.iter().filter_map(pool_note));
        Ok((trace, notes))
    }

    fn nothing(&self, model: Option<&str>) -> String {
        let models = self.state.rows.iter().filter(|row| row.kind == ProfileKind::Model);
        let models: Vec<&str> = models.map(|row| row.name.as_str()).collect();
        match model {
            Some(model) if !models.is_empty() => {
                format!("--model: nothing was seen of `{model}`, but of: {}", models.join(", "))
            }
            _ => format!("{}: no whole minute of demand yet", self.name),
        }
    }

    /// Note about requests that were refused or still wait. Clients that send again only after an
    /// answer would send more to faster replicas, so the demand is a lower bound.
    fn unmet(&self, model: Option<&str>) -> Option<String> {
        let refused: u64 = seen::rows(&self.state, model)
            .flat_map(|row| &row.seen.minutes)
            .map(|minute| u64::from(minute.refused))
            .sum();
        let waiting = self.state.pools.iter().map(|pool| pool.waiting).max().unwrap_or(0);
        if refused + waiting == 0 {
            return None;
        }
        let refused = numbers::of(usize::try_from(refused).unwrap_or(usize::MAX), "request");
        Some(format!(
            "The gateway has refused {refused} in this time, and {waiting} wait just now. Both are in what is asked for here. But clients that send again only after an answer would send more to replicas that answer sooner: take the number of replicas as the least."
        ))
    }

    /// Note about the highest burst. Bursts are measured second by second.
    fn bursts(&self, model: Option<&str>) -> Option<String> {
        let bursts: Vec<_> = seen::rows(&self.state, model).flat_map(|row| &row.seen.bursts).collect();
        let highest = bursts.iter().max_by(|a, b| a.height.total_cmp(&b.height))?;
        Some(format!(
            "It has seen {} of more than twice what was usual; the highest came to {:.1} requests a second for {}, where {:.1} were usual.",
            numbers::of(bursts.len(), "burst"),
            highest.height,
            numbers::time(highest.length),
            highest.usual,
        ))
    }
}

/// Measured speed of a pool's replicas.
fn speed(pool: &PoolDemandState) -> Option<StepProfile> {
    let gap = Duration::try_from_secs_f64(pool.gap?).ok().filter(|gap| !gap.is_zero())?;
    of_rates(pool.read_per_second.filter(|read| *read > 0)? as f64, gap)
}

/// Note about the measured idle time and speed of a pool's replicas.
fn pool_note(pool: &PoolDemandState) -> Option<String> {
    let idle = pool.residency.idle().map(|idle| {
        format!(
            "its replicas had nothing to do for {} of the time that they were there",
            numbers::percent(idle)
        )
    });
    let rates = pool.read_per_second.zip(pool.gap).map(|(read, gap)| {
        let gap = format!("{}ms", (gap * 1e3).round().max(1.0));
        let seqs = pool.max_seqs.map(|seqs| format!(",seqs={seqs}")).unwrap_or_default();
        format!("they usually read {} prompt tokens a second and write one each {gap} (--rates read={read},gap={gap}{seqs})", numbers::count(read))
    });
    let both: Vec<String> = idle.into_iter().chain(rates).collect();
    (!both.is_empty()).then(|| format!("Pool {}: {}.", pool.name, both.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::autoscale::demand::profile::{DemandMinute, SavedProfile};
    use crate::core::autoscale::demand::state::SavedDemandRow;

    fn seen(pools: Vec<PoolDemandState>, refused: u32) -> MeasuredDemand {
        let minutes =
            [DemandMinute { arrived: 60, refused, input: 6_000, output: 600, ..DemandMinute::default() }]
                .into();
        let row = SavedDemandRow {
            kind: ProfileKind::Class,
            name: "batch".to_owned(),
            seen: SavedProfile { minutes, ..SavedProfile::default() },
        };
        MeasuredDemand {
            state: DemandState { version: VERSION, pools, rows: vec![row] },
            name: "x".to_owned(),
        }
    }

    fn pool(name: &str, max_seqs: Option<u32>) -> PoolDemandState {
        PoolDemandState { name: name.to_owned(), max_seqs, ..PoolDemandState::default() }
    }

    #[test]
    fn limits_are_those_of_the_pools_that_were_seen() {
        let seen = seen(vec![pool("h100", Some(20)), pool("a10", Some(4)), pool("new", None)], 0);
        assert_eq!(seen.limits(&[]), (Some(4), None));
        assert_eq!(seen.limits(&["h100".to_owned()]), (Some(20), None));
        assert_eq!(seen.limits(&["new".to_owned()]), (None, None));
    }

    #[test]
    fn pools_that_have_shown_their_speed_are_measured() {
        let shown = PoolDemandState {
            read_per_second: Some(20_000),
            gap: Some(0.01),
            ready: 2,
            ..pool("h100", None)
        };
        let seen = seen(vec![shown, pool("new", None)], 0);
        let measured: Vec<_> = seen.measured().collect();
        let [MeasuredPool { name: "h100", replicas: 2, profile }] = &measured[..] else {
            panic!("{measured:?}")
        };
        assert_eq!((profile.a, profile.t_w), (0.05, 10.0));
    }

    #[test]
    fn what_waits_and_what_was_refused_is_told() {
        assert!(seen(vec![pool("a", None)], 0).unmet(None).is_none());
        let queue = PoolDemandState { waiting: 366, ..pool("a", None) };
        let (trace, notes) = seen(vec![queue], 48).trace(None).unwrap();
        assert_eq!(trace.calls.len(), 60, "refused ones were asked for, too");
        assert!(
            notes.iter().any(|note| note.contains("48 requests") && note.contains("366 wait")),
            "{notes:?}"
        );
    }

    #[test]
    fn rates_are_the_usual_ones_with_the_limit() {
        let (read_per_second, gap) = (Some(20_000), Some(0.012));
        let told = pool_note(&PoolDemandState { read_per_second, gap, ..pool("h100", Some(20)) }).unwrap();
        assert!(told.contains("--rates read=20000,gap=12ms,seqs=20"), "{told}");
        let rates = told.split("--rates ").nth(1).unwrap().trim_end_matches([')', '.']);
        assert!(crate::studies::plan::setting::measured(rates).is_ok(), "{rates}");
    }
}
