//! Preflight answers: the four preflight questions, answered in sentences.

use std::time::Duration;

use crate::studies::plan::measure::bursts::SURGE_FACTOR;
use crate::studies::plan::measure::sustained;
use crate::studies::plan::report::numbers::{count, number, of, percent, time};
use crate::studies::plan::report::{PlanClassRow, PlanReport, PreflightAnswer};

/// The answer to each question.
pub fn answers(report: &PlanReport) -> Vec<PreflightAnswer> {
    let answer = |question, answer| PreflightAnswer { question, answer };
    vec![
        answer("What is the real concurrency floor?", floor(report)),
        answer("Is it burst or noise?", burst(report)),
        answer("How long does work stay resident?", resident(report)),
        answer("What can wait, and how long?", patience(report)),
    ]
}

fn floor(report: &PlanReport) -> String {
    let (concurrency, advice) = (&report.measured.concurrency, &report.advice);
    let bands = &concurrency.bands;
    let window = sustained(Duration::from_secs_f64(report.setting.start_s));
    format!(
        "{} requests: in nine of ten stretches of {} at least so many are in service. Half of the time it is no more than {}, all but a tenth of the time {}, all but a hundredth {}; at the top {}. {} the quiet hours.",
        number(concurrency.floor),
        time(window.as_secs_f64()),
        count(bands.p50),
        count(bands.p90),
        count(bands.p99),
        count(bands.most),
        format_args!(
            "{} {}",
            of(advice.floor, "replica"),
            if advice.floor == 1 { "carries" } else { "carry" }
        ),
    )
}

fn burst(report: &PlanReport) -> String {
    let bursts = &report.measured.bursts;
    let start = time(report.setting.start_s);
    if bursts.surges.is_empty() {
        return format!("Neither: no ten seconds bring {SURGE_FACTOR} times the work of the time before.");
    }
    let worth = match bursts.bursts_per_hour {
        0.0 => "None lasts longer: there is nothing that starting replicas could answer.".to_owned(),
        rate => format!("{} an hour last longer: those are worth starting replicas for.", number(rate)),
    };
    format!(
        "{} surges an hour are over before a replica has started ({start}): to a scaler they are noise, and only replicas that are warm carry them. {worth} Surges bring {} times the work of the time before (the highest hundredth {}) and last {} (the longest tenth {}).",
        number(bursts.noise_per_hour),
        number(bursts.height.p50),
        number(bursts.height.p99),
        time(bursts.length_s.p50),
        time(bursts.length_s.p90),
    )
}

fn resident(report: &PlanReport) -> String {
    let (duration, residency) = (&report.measured.duration_s, &report.measured.residency);
    let from = if report.measured.duration_from_source { "the source" } else { "the simulated replicas" };
    format!(
        "A request is in service for {} (half of them), {} (all but a tenth), {} (all but a hundredth), by {from}. A fixed fleet of {} is idle but hot for {} of its time, and {} of its hours are more than demand needs.",
        time(duration.p50),
        time(duration.p90),
        time(duration.p99),
        of(residency.replicas, "replica"),
        percent(residency.idle),
        percent(residency.unneeded),
    )
}

fn patience(report: &PlanReport) -> String {
    let start = time(report.setting.start_s);
    let class = |row: &PlanClassRow| {
        let enough = report.advice.tolerance.iter().find(|one| one.class == row.name);
        let enough = enough.map_or(String::new(), |one| match one.enough_s < one.now_s {
            true => format!(" {} would be enough with this fleet.", time(one.enough_s)),
            false => String::new(),
        });
        let start = match row.waits_for_a_start {
            true => format!("long enough for a replica to start ({start})"),
            false => format!("less than a replica needs to start ({start}), so what it needs must be warm"),
        };
        let name = &row.name;
        format!(
            "{name} ({} of the tokens): up to {}, {start}.{enough}",
            percent(row.tokens),
            time(row.max_wait_s)
        )
    };
    let classes: Vec<String> = report.measured.classes.iter().map(class).collect();
    format!(
        "{} of the tokens can wait for a replica to start. {}",
        percent(report.advice.patient),
        classes.join(" ")
    )
}
