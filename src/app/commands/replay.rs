//! `penstock replay`: reads a record, replays it, and prints what happened and what would have.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::app::commands::operate::text::{span, table};
use crate::cli::operate::OutputArg;
use crate::cli::replay::{RecordArgs, ReplayArgs};
use crate::config::load;
use crate::config::secret::OfflineSecrets;
use crate::config::settings::Settings;
use crate::core::model::time::Tick;
use crate::record::read::{RecordFindings, RecordPart, RecordRun, runs};
use crate::record::replay::exact::ExactReplay;
use crate::record::replay::history::{History, MAX_JOBS};
use crate::record::replay::report::{GroupFigures, ModelError, compared, figures, model_error};
use crate::record::replay::what_if::predict;
use crate::record::{MIN_BYTES, RecordOptions};

/// Part of the record between two lines of progress when standard error is no terminal.
const QUIET_PARTS: u64 = 10;

/// Where a gateway is to record, by its arguments.
pub(in crate::app::commands) fn record_options(args: &RecordArgs) -> anyhow::Result<Option<RecordOptions>> {
    let bytes = args.record_size.0;
    if bytes < MIN_BYTES {
        bail!("--record-size: must be at least 1MiB");
    }
    Ok(args.record.clone().map(|folder| RecordOptions { folder, bytes }))
}

/// A record that was read, with what its replay gave.
struct ReplayedRun {
    findings: RecordFindings,
    exact: ExactReplay,
    history: History,
}

/// Runs the command and returns the text for standard output, with the exit code.
pub(in crate::app::commands) fn run(args: &ReplayArgs) -> anyhow::Result<(String, ExitCode)> {
    let runs = runs(&args.folder)?;
    if args.list {
        return Ok((list(&runs, args.output)?, ExitCode::SUCCESS));
    }
    // Checked before the work, so that a wrong file does not cost the work.
    let settings = args.config.as_deref().map(load_settings).transpose()?;
    let run = match args.run {
        None => runs.last().context("the record has no run")?,
        Some(asked) => runs.iter().find(|run| run.began_ms == asked).with_context(|| {
            let names: Vec<String> = runs.iter().map(|run| run.began_ms.to_string()).collect();
            format!("--run: there is no run {asked}; there are: {}", names.join(", "))
        })?,
    };
    let replayed = replay(run, args.quiet)?;
    let (rows, error, notes) = match &settings {
        None => (figures(&replayed.history, "happened"), None, Vec::new()),
        Some(settings) => {
            let progress = |what: &str| {
                if !args.quiet {
                    overwrite(&format!("simulating {what}"));
                }
            };
            let prediction = predict(&replayed.history, &settings.policy, &progress);
            let rows = compared(&replayed.history, &prediction);
            let error = model_error(&rows);
            (rows, error, prediction.notes)
        }
    };
    if !args.quiet && io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let differs = replayed.findings.is_whole() && replayed.exact.differing > 0;
    let text = match args.output {
        OutputArg::Table => text(&replayed, &rows, error.as_ref(), &notes, runs.len()),
        OutputArg::Csv => csv(&rows),
        OutputArg::Json => {
            let document = document(&replayed, &rows, error.as_ref(), &notes);
            format!("{}\n", serde_json::to_string_pretty(&document)?)
        }
    };
    Ok((text, ExitCode::from(u8::from(differs))))
}

fn load_settings(path: &std::path::Path) -> anyhow::Result<Settings> {
    let loaded = load::load_file_with(path, None, &OfflineSecrets).into_result();
    let wrong = |report| anyhow::anyhow!("{report}the configuration {} cannot be used", path.display());
    loaded.map(|loaded| loaded.settings).map_err(wrong)
}

/// Reads a run and replays its events.
fn replay(run: &RecordRun, quiet: bool) -> anyhow::Result<ReplayedRun> {
    let (all, shown) = (run.bytes().max(1), Cell::new(0));
    let progress = |bytes: u64| {
        let percent = bytes * 100 / all;
        if !quiet
            && percent > shown.get()
            && (io::stderr().is_terminal() || percent.is_multiple_of(QUIET_PARTS))
        {
            shown.set(percent);
            overwrite(&format!("replaying: {percent} %"));
        }
    };
    let mut begun: Option<(ExactReplay, History)> = None;
    let findings = run.each(|part, bytes| {
        progress(bytes);
        match (part, &mut begun) {
            (RecordPart::Begin(policy), begun) => {
                *begun = Some((ExactReplay::new(policy), History::new(Arc::new(policy.clone()))));
            }
            (RecordPart::Step(step), Some((exact, history))) => {
                exact.step(step);
                history.step(step);
            }
            (RecordPart::Step(_), None) | (RecordPart::Gap, _) => {}
        }
    })?;
    let (exact, history) = begun.context("the record ends before its first whole line")?;
    Ok(ReplayedRun { findings, exact, history })
}

/// A line of progress, which a terminal overwrites.
fn overwrite(line: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    } else {
        eprintln!("{line}");
    }
}

fn list(runs: &[RecordRun], output: OutputArg) -> anyhow::Result<String> {
    let began = |run: &RecordRun| {
        let at = i64::try_from(run.began_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        at.map_or_else(|| "-".to_owned(), |at| format!("{at:.0}"))
    };
    let rows: Vec<Vec<String>> =
        runs.iter().map(|run| vec![run.began_ms.to_string(), began(run), run.bytes().to_string()]).collect();
    Ok(match output {
        OutputArg::Table => table(&["RUN", "BEGAN", "BYTES"], &rows),
        OutputArg::Csv => {
            let lines = rows.iter().map(|row| row.join(",") + "\n");
            std::iter::once("run,began,bytes\n".to_owned()).chain(lines).collect()
        }
        OutputArg::Json => {
            let row =
                |run: &RecordRun| json!({ "run": run.began_ms, "began": began(run), "bytes": run.bytes() });
            let rows: Vec<Value> = runs.iter().map(row).collect();
            format!("{}\n", serde_json::to_string_pretty(&json!({ "runs": rows }))?)
        }
    })
}

/// Length of the record in seconds.
fn length(history: &History) -> f64 {
    history.span.map_or(0.0, |span| span.last.since(span.first).as_secs_f64())
}

fn text(
    replayed: &ReplayedRun,
    rows: &[GroupFigures],
    error: Option<&ModelError>,
    notes: &[String],
    runs: usize,
) -> String {
    let ReplayedRun { findings, exact, history } = replayed;
    let mut text = format!(
        "{} of traffic, {} requests, {} steps of the scheduler, {} bytes.\n",
        span(length(history)),
        history.jobs.len() as u64 + history.uncounted,
        findings.steps,
        findings.bytes,
    );
    if runs > 1 {
        let _infallible = writeln!(text, "The newest of {runs} runs; --list shows the others.");
    }
    for line in missing(findings, history).into_iter().chain([verdict(findings, exact)]) {
        let _infallible = writeln!(text, "{line}");
    }
    if let Some(difference) = &exact.first {
        let _infallible = writeln!(
            text,
            "The first difference is at {}, event {}:\n  recorded: {:?}\n  replayed: {:?}",
            at(difference.at),
            difference.event,
            difference.recorded,
            difference.replayed
        );
    }
    text.push('\n');
    text += &figures_table(rows, error.is_some());
    if let Some(error) = error {
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let _infallible = write!(
            text,
            "\nThe model against what happened, weighted by requests: first tokens differ by {} at the median and \
             {} at the 95th percentile,\nwaits by {} at the median; refusals by {} of the requests, shares by {} \
             of the replica time.\n",
            percent(error.first_token_p50),
            percent(error.first_token_p95),
            percent(error.wait_p50),
            percent(error.refused),
            percent(error.share),
        );
    }
    for note in notes {
        let _infallible = writeln!(text, "{note}");
    }
    text
}

/// What is missing in the record, a line each.
fn missing(findings: &RecordFindings, history: &History) -> Vec<String> {
    let mut lines = Vec::new();
    if !findings.has_start {
        lines.push(
            "The record does not go back to the gateway's start: what waited and ran at its begin is not \
             known."
                .to_owned(),
        );
    }
    if findings.lost > 0 {
        lines.push(format!("The record has gaps: {} steps could not be written.", findings.lost));
    }
    if findings.broken > 0 {
        lines.push(format!("The record is damaged in {} places.", findings.broken));
    }
    if history.uncounted > 0 {
        lines.push(format!("The figures are those of the first {MAX_JOBS} requests."));
    }
    if findings.configs.len() > 1 {
        lines.push(format!("The configuration file changed {} times.", findings.configs.len() - 1));
    }
    lines
}

/// Whether the decisions are the same.
fn verdict(findings: &RecordFindings, exact: &ExactReplay) -> String {
    let ExactReplay { decisions, same, differing, steps, .. } = exact;
    match (findings.is_whole(), differing) {
        (_, 0) => format!("Same decisions: all {decisions}, in all {steps} steps."),
        (true, _) => format!(
            "Other decisions: {same} of {decisions} are the same; {differing} of {steps} steps differ. Penstock {} \
             wrote the record; this is {}.",
            findings.program,
            env!("CARGO_PKG_VERSION")
        ),
        (false, _) => format!(
            "{same} of {decisions} decisions are the same. A record with gaps, or without its begin, cannot be \
             replayed exactly."
        ),
    }
}

/// A time of the record, from the gateway's start.
fn at(tick: Tick) -> String {
    span(tick.since(Tick::ZERO).as_secs_f64())
}

fn figures_table(rows: &[GroupFigures], compared: bool) -> String {
    let mut heads =
        vec!["TENANT", "CLASS", "", "REQUESTS", "SERVED", "REFUSED", "LEFT", "FAILED", "WAIT P50", "P95"];
    heads.extend(["FIRST TOKEN P50", "P95", "TOKENS", "GPU TIME", "SHARE", "COST"]);
    if !compared {
        heads.remove(2);
    }
    let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), span);
    let cells = |row: &GroupFigures| {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "all".to_owned());
        let mut cells = vec![name(&row.tenant), name(&row.class), row.what.to_owned()];
        cells.extend(
            [row.requests, row.served, row.refused, row.left, row.failed].map(|count| count.to_string()),
        );
        cells.extend([row.wait_p50, row.wait_p95, row.first_token_p50, row.first_token_p95].map(time));
        cells.extend([
            row.output_tokens.to_string(),
            span(row.gpu_seconds),
            format!("{:.1} %", row.share * 100.0),
            format!("{:.4}", row.cost),
        ]);
        if !compared {
            cells.remove(2);
        }
        cells
    };
    table(&heads, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// The rows with a line of headings, exact.
fn csv(rows: &[GroupFigures]) -> String {
    const HEAD: &str = "tenant,class,what,requests,served,refused,left,failed,wait_p50_seconds,wait_p95_seconds,\
        first_token_p50_seconds,first_token_p95_seconds,output_tokens,gpu_seconds,share,cost\n";
    let quoted = |name: &Option<String>| match name.as_deref().unwrap_or_default() {
        name if name.contains([',', '"', '\n']) => format!("\"{}\"", name.replace('"', "\"\"")),
        name => name.to_owned(),
    };
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let mut text = HEAD.to_owned();
    for row in rows {
        let times =
            [row.wait_p50, row.wait_p95, row.first_token_p50, row.first_token_p95].map(number).join(",");
        let _infallible = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{times},{},{},{},{}",
            quoted(&row.tenant),
            quoted(&row.class),
            row.what,
            row.requests,
            row.served,
            row.refused,
            row.left,
            row.failed,
            row.output_tokens,
            row.gpu_seconds,
            row.share,
            row.cost
        );
    }
    text
}

fn document(
    replayed: &ReplayedRun,
    rows: &[GroupFigures],
    error: Option<&ModelError>,
    notes: &[String],
) -> Value {
    let ReplayedRun { findings, exact, history } = replayed;
    let difference = exact.first.as_ref().map(|first| {
        json!({
            "at_seconds": first.at.since(Tick::ZERO).as_secs_f64(),
            "event": first.event,
            "recorded": first.recorded.as_slice(),
            "replayed": first.replayed.as_slice(),
        })
    });
    json!({
        "record": {
            "seconds": length(history),
            "requests": history.jobs.len() as u64 + history.uncounted,
            "steps": findings.steps,
            "bytes": findings.bytes,
            "whole": findings.is_whole(),
            "has_start": findings.has_start,
            "lost_steps": findings.lost,
            "damaged": findings.broken,
            "program": findings.program,
            "configs": findings.configs,
        },
        "decisions": {
            "recorded": exact.decisions,
            "same": exact.same,
            "differing_steps": exact.differing,
            "first_difference": difference,
        },
        "rows": rows,
        "model_error": error,
        "notes": notes,
    })
}
