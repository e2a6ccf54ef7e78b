//! What a gateway has seen: asked of it, or read from its state file.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::app::demand;
use crate::app::operate;
use crate::cli::operate::AdminArgs;
use crate::cli::plan::PlanArgs;
use crate::core::demand::state::{Kind, PoolState, State, VERSION};
use crate::sim::plan::seen;
use crate::sim::plan::words;
use crate::sim::trace::Trace;

/// The demand, and whose it is.
pub(super) struct Seen {
    state: State,
    /// What it is called.
    pub(super) name: String,
}

/// What the command line asks for, if it does.
pub(super) fn ask(args: &PlanArgs) -> anyhow::Result<Option<Seen>> {
    let seen = match (&args.live, &args.state) {
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

fn live(address: &str, args: &PlanArgs) -> anyhow::Result<Seen> {
    let admin = Some(address.to_owned()).filter(|address| !address.is_empty());
    let admin = AdminArgs { admin, access: args.access.clone(), json: false };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(operate::demand(&admin))?;
    let state = serde_json::from_value(answer).context("the gateway's answer is not what it has seen")?;
    Ok(Seen { state, name: "what the gateway has seen".to_owned() })
}

fn file(path: &Path) -> anyhow::Result<Seen> {
    let name = path.display().to_string();
    let state = demand::read(path).with_context(|| format!("--state: cannot read {name}"))?;
    let state = state.with_context(|| {
        format!("--state: there is no {name}; a gateway with `scale.state_file` writes it each minute")
    })?;
    Ok(Seen { state, name })
}

impl Seen {
    /// The longest that starts of these pools took, or of all without any.
    pub(super) fn start(&self, pools: &[String]) -> Option<Duration> {
        let asked = self.state.pools.iter().filter(|pool| pools.is_empty() || pools.contains(&pool.name));
        let longest = asked.filter_map(|pool| pool.start).max_by(f64::total_cmp)?;
        Duration::try_from_secs_f64(longest).ok().filter(|start| !start.is_zero())
    }

    /// The demand as calls, of all models or of one, and what the reader should know
    /// of it.
    pub(super) fn trace(&self, model: Option<&str>) -> anyhow::Result<(Trace, Vec<String>)> {
        let trace = seen::trace(&self.state, model);
        if trace.calls.is_empty() {
            bail!("{}", self.nothing(model));
        }
        let mut notes = vec![
            "A gateway keeps what came minute by minute, and sizes, waits and times in service as histograms: the requests are drawn from these. Bursts shorter than a minute are weaker here than they were.".to_owned(),
        ];
        notes.extend(self.bursts(model));
        notes.extend(self.state.pools.iter().filter_map(shown));
        Ok((trace, notes))
    }

    fn nothing(&self, model: Option<&str>) -> String {
        let models = self.state.rows.iter().filter(|row| row.kind == Kind::Model);
        let models: Vec<&str> = models.map(|row| row.name.as_str()).collect();
        match model {
            Some(model) if !models.is_empty() => {
                format!("--model: nothing was seen of `{model}`, but of: {}", models.join(", "))
            }
            _ => format!("{}: no whole minute of demand yet", self.name),
        }
    }

    /// The highest of the bursts, which were seen second by second.
    fn bursts(&self, model: Option<&str>) -> Option<String> {
        let bursts: Vec<_> = seen::rows(&self.state, model).flat_map(|row| &row.seen.bursts).collect();
        let highest = bursts.iter().max_by(|a, b| a.height.total_cmp(&b.height))?;
        Some(format!(
            "It has seen {} of more than twice what was usual; the highest came to {:.1} requests a second for {}, where {:.1} were usual.",
            words::of(bursts.len(), "burst"),
            highest.height,
            words::time(highest.length),
            highest.usual,
        ))
    }
}

/// What a pool's replicas have shown.
fn shown(pool: &PoolState) -> Option<String> {
    let idle = pool.residency.idle().map(|idle| {
        format!(
            "its replicas had nothing to do for {} of the time that they were there",
            words::percent(idle)
        )
    });
    let rates = pool.read_per_second.zip(pool.gap).map(|(read, gap)| {
        let gap = format!("{:.1}ms", gap * 1e3);
        format!("at best they have read {} prompt tokens a second and written one each {gap} (--rates read={read},gap={gap})", words::count(read))
    });
    let both: Vec<String> = idle.into_iter().chain(rates).collect();
    (!both.is_empty()).then(|| format!("Pool {}: {}.", pool.name, both.join("; ")))
}
