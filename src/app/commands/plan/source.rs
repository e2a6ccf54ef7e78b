//! Demand source of a plan: a table, a usage log, or a gateway's measurements.

use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::app::commands::plan::seen::MeasuredDemand;
use crate::app::commands::plan::setting::default_class;
use crate::app::usage::{self, now_ms};
use crate::cli::plan::PlanArgs;
use crate::config::secret::{MachineSecrets, Secret, SecretSource as _};
use crate::config::settings::Settings;
use crate::config::settings::usage::{PostgresSettings, UsageDatabase};
use crate::sim::trace::{MAX_CALLS, MAX_PROMPT, TraceCall, TrafficTrace};
use crate::studies::plan::setting::Setting;
use crate::usage::bill::RowSource;
use crate::usage::bill::ask::moment;
use crate::usage::past::{PastRequest, each_request};

/// Seed with which the classes of a mix are drawn.
const SEED: u64 = 1;

/// Demand as a trace, read from its source.
pub(super) struct DemandTrace {
    pub(super) trace: TrafficTrace,
    /// Name of the source, for the report.
    pub(super) name: String,
    /// Notes for the reader.
    pub(super) notes: Vec<String>,
}

/// Reads the source. The classes of the trace become indexes of the setting's classes.
pub(super) fn read(
    args: &PlanArgs,
    settings: Option<&Settings>,
    setting: &Setting,
    seen: Option<&MeasuredDemand>,
) -> anyhow::Result<DemandTrace> {
    let mut read = match (&args.source.source, seen) {
        (Some(path), _) => {
            let names = args.source.columns.clone().unwrap_or_default();
            let trace = TrafficTrace::read_with(path, &names)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            DemandTrace { trace, name, notes: Vec::new() }
        }
        (None, Some(seen)) => {
            let (trace, mut notes) = seen.trace(args.source.model.as_deref())?;
            if let (None, None, [first, _, ..]) = (settings, args.basis.price, &setting.pools[..]) {
                notes.push(format!(
                    "A gateway does not tell what its pools cost: each counts {:.2} an hour here. Name its configuration with --config, or one price with --price.",
                    first.price
                ));
            }
            DemandTrace { trace, name: seen.name.clone(), notes }
        }
        (None, None) => of_log(args, &log(args, settings)?, setting)?,
    };
    classes(&mut read, args, setting)?;
    Ok(read)
}

/// Usage log that the arguments name.
fn log(args: &PlanArgs, settings: Option<&Settings>) -> anyhow::Result<RowSource> {
    if let Some(folder) = &args.source.journal {
        if !folder.is_dir() {
            bail!("--journal: {} is not a folder; it is the `usage.folder` of a gateway", folder.display());
        }
        return Ok(RowSource::Journal(folder.clone()));
    }
    if let Some(file) = &args.source.sqlite {
        return Ok(RowSource::Database(UsageDatabase::Sqlite(file.clone())));
    }
    if let Some(name) = &args.source.postgres {
        let url = MachineSecrets.env(name).with_context(|| {
            format!("the environment variable {name} is not set: --postgres takes its name, not the address")
        })?;
        let url = Secret::new(url.trim());
        return Ok(RowSource::Database(UsageDatabase::Postgres(PostgresSettings {
            url,
            url_file: None,
            ca: None,
        })));
    }
    let Some(settings) = settings else {
        bail!(
            "nothing to plan from: name a trace or table (penstock plan FILE), a usage log (--journal, --sqlite, --postgres), what a gateway has seen (--live, --state), or a configuration with `usage.folder` (--config)"
        );
    };
    usage::source_of_settings(settings).context(
        "the configuration has no `usage.folder`, so nothing is written down: name a trace or table (penstock plan FILE)",
    )
}

fn of_log(args: &PlanArgs, source: &RowSource, setting: &Setting) -> anyhow::Result<DemandTrace> {
    let now = now_ms();
    let at = |text: &Option<String>, flag: &str| {
        let moment = text.as_deref().map(|text| moment(text, now)).transpose();
        moment.map_err(|message| anyhow::anyhow!("{flag}: {message}"))
    };
    let since = at(&args.source.since, "--since")?.unwrap_or(0);
    let until = at(&args.source.until, "--until")?.unwrap_or(i64::MAX);
    let mut log = TraceRows { setting, trace: TrafficTrace::default() };
    each_request(source, &(since..until), args.source.model.as_deref(), MAX_CALLS, |past| log.take(&past))?;
    let mut trace = log.trace;
    if trace.calls.is_empty() {
        let which =
            args.source.model.as_ref().map_or(String::new(), |model| format!(" of the model `{model}`"));
        bail!("the usage log has no request{which} in that time; --since and --until choose it");
    }
    trace.sort_and_rebase();
    let mut notes = vec![
        "A usage log tells when requests ended and how long they waited; when they came is worked out with the speed of an idle replica. Requests that were refused are not in it.".to_owned(),
    ];
    if trace.calls.len() >= MAX_CALLS {
        notes.push(format!(
            "Only the first {MAX_CALLS} requests were read: choose less with --since and --until."
        ));
    }
    let name = match source {
        RowSource::Journal(folder) => format!("usage journal in {}", folder.display()),
        RowSource::Database(database) => format!("usage database ({})", database.name()),
    };
    Ok(DemandTrace { trace, name, notes })
}

/// Rows on their way to a trace.
struct TraceRows<'a> {
    setting: &'a Setting,
    trace: TrafficTrace,
}

impl TraceRows<'_> {
    fn take(&mut self, past: &PastRequest) {
        let tokens = |count: u64| u32::try_from(count).unwrap_or(MAX_PROMPT).min(MAX_PROMPT);
        let (prompt, output) = (tokens(past.input_tokens), tokens(past.output_tokens).max(1));
        if prompt == 0 {
            self.trace.skipped_lines += 1;
            return;
        }
        let alone = self.setting.pools[0].idle_latency(prompt, output);
        let waited = Duration::from_micros(past.queue_us);
        let ended = Duration::from_millis(u64::try_from(past.ended_ms).unwrap_or(0));
        let took = waited + alone.ttft + alone.itl * output;
        let call = TraceCall {
            at: ended.saturating_sub(took),
            class: index_of(&mut self.trace.classes, &past.class),
            prompt,
            output,
            waited: Some(waited),
            ..TraceCall::default()
        };
        self.trace.calls.push(call);
    }
}

/// Index of a name, which is appended when it is new.
fn index_of(names: &mut Vec<std::sync::Arc<str>>, name: &str) -> u32 {
    let known = names.iter().position(|known| **known == *name);
    known.unwrap_or_else(|| {
        names.push(name.into());
        names.len() - 1
    }) as u32
}

/// Turns the trace's classes into indexes of the setting's classes, by name or by a mix.
fn classes(read: &mut DemandTrace, args: &PlanArgs, setting: &Setting) -> anyhow::Result<()> {
    let names = || setting.classes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let find = |name: &str| setting.classes.iter().position(|(known, _)| known == name);
    let first = default_class(&setting.classes);
    if let Some(mix) = &args.basis.mix {
        if !read.trace.classes.is_empty() {
            bail!("--mix: the source tells the classes itself: {}", read.trace.classes.join(", "));
        }
        let form = || format!("--mix: write it like interactive=0.8,batch=0.2; classes are: {}", names());
        let mut shares = vec![0.0; setting.classes.len()];
        for pair in mix.split(',') {
            let (name, share) = pair.split_once('=').with_context(form)?;
            let share = share.trim().parse::<f64>().ok().filter(|share| *share >= 0.0 && share.is_finite());
            shares[find(name.trim()).with_context(form)?] = share.with_context(form)?;
        }
        if shares.iter().all(|share| *share <= 0.0) {
            bail!(form());
        }
        let tenants: Vec<u32> = read.trace.calls.iter().map(|call| call.tenant).collect();
        read.trace.draw_tenants(&shares, SEED);
        for (call, tenant) in read.trace.calls.iter_mut().zip(tenants) {
            (call.class, call.tenant) = (call.tenant, tenant);
        }
        read.notes.push(format!("The source does not tell classes; they are dealt by --mix {mix}."));
        return Ok(());
    }
    if read.trace.classes.is_empty() {
        read.trace.calls.iter_mut().for_each(|call| call.class = first as u32);
        let name = &setting.classes[first].0;
        read.notes.push(format!(
            "The source does not tell classes: all are taken as {name} (--mix says otherwise)."
        ));
        return Ok(());
    }
    let place = |name: &std::sync::Arc<str>| {
        match &**name {
        "" => Ok(first as u32),
        name => find(name).map(|place| place as u32).with_context(|| {
            format!(
                "the source has the class `{name}`, which is not known; there are: {}; --config names a file with yours",
                names()
            )
        }),
    }
    };
    let places = read.trace.classes.iter().map(place).collect::<anyhow::Result<Vec<u32>>>()?;
    for call in &mut read.trace.calls {
        call.class = places.get(call.class as usize).copied().unwrap_or(first as u32);
    }
    Ok(())
}
