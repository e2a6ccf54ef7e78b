//! Report assembly: measures the demand, searches for fleets, and checks the
//! recommended maximum.

use std::time::Duration;

use crate::sim::trace::TrafficTrace;
use crate::sim::world::arrival::Arrival;
use crate::sim::world::record::quantile;
use crate::studies::plan::demand::{TraceStretch, WHOLE, busiest};
use crate::studies::plan::fleets::{FollowingFleet, follow};
use crate::studies::plan::measure::concurrency::Levels;
use crate::studies::plan::measure::{self, ServiceTime};
use crate::studies::plan::report::{
    Advice, Concurrency, DemandSourceRow, MeasuredInputs, Percentiles, PlanClassRow, PlanFleetRow,
    PlanPoolRow, PlanReport, ResidencyFigures, SettingRow, Tolerance, VerifiedMaximum, WindowNeed, answers,
    numbers,
};
use crate::studies::plan::setting::{MOST_REPLICAS, Setting};
use crate::studies::plan::trials::{FleetSearch, FleetTrials, TriedFleet, in_parallel};
use crate::studies::plan::whatif::{self, WhatIf};

/// Number of other places of the source from which the maximum is checked.
const OTHER_STARTS: u64 = 2;
/// Points of the chart over time.
const POINTS: u32 = 200;
/// Fleet sizes of the charts over replicas.
const SIZES: usize = 9;

/// Input of a plan.
#[derive(Debug, Clone, Default)]
pub struct PlanRequest {
    /// Name of the source.
    pub name: String,
    pub what_if: Vec<WhatIf>,
    /// Facts about the source that the reader should know.
    pub notes: Vec<String>,
}

/// The demand, and the part of it that is simulated.
struct PlanDemand {
    trace: TrafficTrace,
    /// Replica-seconds of work of each call.
    amounts: Vec<f64>,
    part: TrafficTrace,
    stretch: TraceStretch,
    source: DemandSourceRow,
}

/// The fleet that meets the objectives.
struct ChosenFleet {
    pool: usize,
    maximum: usize,
    kept: bool,
    promise: VerifiedMaximum,
    run: TriedFleet,
    found: Vec<FleetSearch>,
}

/// Makes the report. The trace's class numbers are indices into the setting's
/// classes.
///
/// # Errors
///
/// When nothing can be planned for; the text is a sentence.
pub fn plan(
    mut trace: TrafficTrace,
    lab: &FleetTrials<'_>,
    asked: PlanRequest,
) -> Result<PlanReport, String> {
    whatif::check(lab, &asked.what_if)?;
    let mut notes = asked.notes;
    drop_oversized(&mut trace, lab.setting, &mut notes)?;
    let work = prepare_demand(trace, lab.setting, asked.name, &mut notes);
    let keepable = keepable(&work.stretch, lab.setting)?;
    let chosen = choose_fleet(lab, &work);
    if !chosen.kept {
        notes.push(format!(
            "No fleet that was tried keeps {} of what an idle replica serves in time; what follows is for the best of them.",
            numbers::percent(lab.setting.objective_share)
        ));
    }
    // Windows are not held to a larger share than the whole source reaches.
    let held =
        Setting { objective_share: lab.setting.objective_share.min(chosen.run.kept), ..lab.setting.clone() };
    let followed = follow(&lab.with(&held), &work.trace, &work.amounts, chosen.pool, chosen.maximum);
    let sized = by_replicas(lab, &work.stretch, &chosen);
    let today = today(lab.setting);
    let base = today.clone().unwrap_or_else(|| lab.single_pool_fleet(chosen.pool, chosen.maximum));
    let what_if = whatif::rows(lab, &asked.what_if, &work.part, &base, chosen.pool)?;
    let (mut measured, levels) = measured(lab.setting, &work, &chosen, &followed);
    let pool = &lab.setting.pools[chosen.pool];
    let advice = advice(lab.setting, &measured, &chosen, &followed, &levels, measure::bin(&work.trace));
    measured.bursts.surges.truncate(measure::MAX_LISTED_SURGES);
    let mut report = PlanReport {
        setting: SettingRow {
            pool: pool.name.clone(),
            profile: pool.speed.clone(),
            price_per_hour: pool.price,
            start_s: lab.setting.start.as_secs_f64(),
            keep: lab.setting.objective_share,
            keepable,
        },
        advice,
        fleets: fleets(lab, &work.stretch, &chosen, &followed, today.as_deref()),
        over_time: levels.bins((work.trace.span() / POINTS).max(Duration::from_secs(1))),
        source: work.source,
        measured,
        promise: chosen.promise,
        what_if,
        answers: Vec::new(),
        by_replicas: sized,
        need: followed.windows,
        notes,
    };
    report.answers = answers::answers(&report);
    Ok(report)
}

/// Drops requests that no replica can hold, with a note.
fn drop_oversized(
    trace: &mut TrafficTrace,
    setting: &Setting,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    if trace.skipped_lines > 0 {
        let count = numbers::count(trace.skipped_lines);
        notes.push(format!("{count} requests without a prompt are left out."));
    }
    let most = setting.pools.iter().map(|pool| pool.max_request_tokens()).max().unwrap_or(0);
    let before = trace.calls.len();
    trace.calls.retain(|call| u64::from(call.prompt) + u64::from(call.output) <= most);
    trace.sort_and_rebase();
    let gone = before - trace.calls.len();
    if trace.calls.is_empty() {
        return Err(format!(
            "no request fits into a replica, which holds {} tokens; choose another --profile",
            numbers::count(most)
        ));
    }
    if gone > 0 {
        let (gone, most) = (numbers::count(gone as u64), numbers::count(most));
        notes.push(format!("{gone} requests are left out: a replica holds only {most} tokens."));
    }
    Ok(())
}

fn prepare_demand(
    trace: TrafficTrace,
    setting: &Setting,
    name: String,
    notes: &mut Vec<String>,
) -> PlanDemand {
    let goals = setting.goals();
    let amounts: Vec<f64> = trace
        .calls
        .iter()
        .map(|call| {
            let gap = goals.get(call.class as usize).map_or(Duration::from_millis(50), |goal| goal.itl);
            setting.pools[0].replica_seconds(call.prompt, call.output, gap)
        })
        .collect();
    let range = busiest(&trace, &amounts, WHOLE);
    let part = trace.part(range.clone());
    let from = trace.calls[range.start].at.as_secs_f64();
    if part.calls.len() < trace.calls.len() {
        notes.push(format!(
            "Fixed fleets are simulated over the busiest stretch that is not too long: {} of {} requests, {} from {} on. Windows of time are simulated where they are busiest. Everything else is measured over all.",
            numbers::count(part.calls.len() as u64),
            numbers::count(trace.calls.len() as u64),
            numbers::time(part.span().as_secs_f64()),
            numbers::time(from),
        ));
    }
    let source = DemandSourceRow {
        name,
        requests: trace.calls.len() as u64,
        span_s: trace.span().as_secs_f64(),
        rate: trace.rate(),
        simulated: part.calls.len() as u64,
        simulated_from_s: from,
        simulated_span_s: part.span().as_secs_f64(),
    };
    PlanDemand { amounts, stretch: TraceStretch::of(&part), part, trace, source }
}

/// Share of the requests that an idle replica serves within their objectives.
fn keepable(stretch: &TraceStretch, setting: &Setting) -> Result<f64, String> {
    let can = stretch.servable_when_idle(setting);
    let count = can.iter().filter(|can| **can).count();
    if count > 0 {
        return Ok(count as f64 / can.len() as f64);
    }
    let (pool, first) = (&setting.pools[0], &stretch.arrivals[0]);
    let (name, class) = &setting.classes[(first.class as usize).min(setting.classes.len() - 1)];
    let alone = pool.idle_latency(first.prompt, first.output);
    Err(format!(
        "no request can be within its objectives, whatever the fleet: an idle replica of {} takes {} to the first token of {} and {} between tokens, and {name} asks for {} and {}; choose a faster --profile or longer --ttft and --itl",
        pool.speed,
        numbers::time(alone.ttft.as_secs_f64()),
        numbers::of(first.prompt as usize, "prompt token"),
        numbers::time(alone.itl.as_secs_f64()),
        numbers::time(class.ttft_objective.as_secs_f64()),
        numbers::time(class.itl_objective.as_secs_f64()),
    ))
}

/// Finds the smallest fleet of each pool, takes the cheapest, and checks it
/// from other places of the source. When the check fails, a larger fleet is
/// tried.
fn choose_fleet(lab: &FleetTrials<'_>, work: &PlanDemand) -> ChosenFleet {
    let seconds = work.part.span().as_secs_f64().max(1.0);
    let offset =
        work.trace.calls.partition_point(|call| call.at.as_secs_f64() < work.source.simulated_from_s);
    let sum: f64 = work.amounts[offset..].iter().take(work.part.calls.len()).sum();
    let guess = (sum / seconds / 0.6).ceil().clamp(1.0, MOST_REPLICAS as f64) as usize;
    let most = (8 * guess + 16).min(MOST_REPLICAS);
    let pools = 0..lab.setting.pools.len();
    let found: Vec<FleetSearch> = pools.map(|pool| lab.smallest(&work.stretch, pool, guess, most)).collect();
    let cost = |found: &FleetSearch, count: usize| lab.setting.pools[found.pool].price * count as f64;
    let best_of = |found: &FleetSearch| found.tried.values().map(|tried| tried.kept).fold(0.0, f64::max);
    let fits = found.iter().filter_map(|found| Some((found, found.smallest?)));
    let cheapest = fits.min_by(|a, b| cost(a.0, a.1).total_cmp(&cost(b.0, b.1)).then(a.1.cmp(&b.1)));
    let (pool, mut maximum, kept) = match cheapest {
        Some((found, count)) => (found.pool, count, true),
        None => {
            let best = found.iter().max_by(|a, b| best_of(a).total_cmp(&best_of(b)));
            let near = |found: &FleetSearch| {
                let best = best_of(found);
                let close = found.tried.iter().find(|(_, tried)| tried.kept >= best - 0.005);
                (found.pool, close.map_or(1, |(count, _)| *count), false)
            };
            best.map_or((0, 1, false), near)
        }
    };
    let ends = (maximum + maximum.div_ceil(4).max(2)).min(MOST_REPLICAS);
    let (promise, run) = loop {
        let (promise, run) = check(lab, work, &lab.single_pool_fleet(pool, maximum));
        if promise.holds || !kept || maximum >= ends {
            break (promise, run);
        }
        maximum += 1;
    };
    let kept = kept && promise.holds;
    ChosenFleet { pool, maximum, kept, promise, run, found }
}

/// Runs a fleet from several places of the source.
fn check(lab: &FleetTrials<'_>, work: &PlanDemand, fleet: &[usize]) -> (VerifiedMaximum, TriedFleet) {
    let starts: Vec<TraceStretch> = (0..=OTHER_STARTS)
        .map(|seed| {
            let mut part = work.part.clone();
            part.rotate(seed);
            part.sort_and_rebase();
            TraceStretch::of(&part)
        })
        .collect();
    let mut runs = in_parallel(lab.threads, &starts, |start| lab.run(start, fleet, "check"));
    let kept: Vec<f64> = runs.iter().map(|run| run.kept).collect();
    let holds = runs.iter().all(|run| lab.meets_target(run));
    (VerifiedMaximum { keep: lab.setting.objective_share, kept, holds }, runs.swap_remove(0))
}

/// Runs of fleets of the chosen pool around the maximum, by their size.
fn by_replicas(lab: &FleetTrials<'_>, stretch: &TraceStretch, chosen: &ChosenFleet) -> Vec<TriedFleet> {
    let mut tried = chosen.found[chosen.pool].tried.clone();
    tried.insert(chosen.maximum, chosen.run.clone());
    let (from, to) = ((chosen.maximum / 2).max(1), chosen.maximum + chosen.maximum.div_ceil(2).max(2));
    tried.retain(|count, _| (from..=to).contains(count));
    let step = (to - from).div_ceil(SIZES - 1).max(1);
    let wanted: Vec<Vec<usize>> = (from..=to)
        .step_by(step)
        .filter(|count| !tried.contains_key(count))
        .map(|count| lab.single_pool_fleet(chosen.pool, count))
        .collect();
    let runs = lab.run_all(stretch, &wanted, "fleets by size");
    tried.extend(runs.into_iter().map(|run| (run.replicas, run)));
    tried.into_values().collect()
}

/// Today's fleet; `None` where it is not known.
fn today(setting: &Setting) -> Option<Vec<usize>> {
    let fleet: Vec<usize> = setting.pools.iter().map(|pool| pool.today.unwrap_or(0)).collect();
    fleet.iter().any(|count| *count > 0).then_some(fleet)
}

fn measured(
    setting: &Setting,
    work: &PlanDemand,
    chosen: &ChosenFleet,
    followed: &FollowingFleet,
) -> (MeasuredInputs, Levels) {
    let trace = &work.trace;
    let service = service(setting, chosen, &work.stretch);
    let seconds: Vec<f64> =
        trace.calls.iter().map(|call| service.seconds(setting, chosen.pool, call)).collect();
    let levels = measure::in_service(trace, &seconds);
    let hours = trace.span().as_secs_f64().max(1.0) / 3_600.0 * chosen.maximum as f64;
    let measured = MeasuredInputs {
        concurrency: Concurrency {
            floor: levels.floor(measure::sustained(setting.start)),
            bands: levels.percentiles(),
        },
        queue: measure::queue(trace),
        bursts: measure::bursts(trace, &work.amounts, setting.start),
        classes: measure::classes(trace, setting),
        residency: ResidencyFigures {
            replicas: chosen.maximum,
            idle: chosen.run.idle,
            unneeded: (1.0 - followed.hours / hours).max(0.0),
        },
        duration_from_source: trace.calls.iter().all(|call| call.took.is_some()),
        duration_s: measure::percentiles(seconds),
        tokens: measure::tokens(trace),
    };
    (measured, levels)
}

/// Service times under the recommended fleet, from its simulation.
fn service(setting: &Setting, chosen: &ChosenFleet, stretch: &TraceStretch) -> ServiceTime {
    let pool = &setting.pools[chosen.pool];
    let alone =
        |arrival: &Arrival| pool.idle_latency(arrival.prompt, arrival.output).ttft.as_secs_f64() * 1e3;
    let mut alone: Vec<f64> = stretch.arrivals.iter().map(alone).collect();
    let alone = quantile(&mut alone, 0.5);
    ServiceTime {
        slowness: (chosen.run.ttft_p50_ms / alone.max(1e-6)).clamp(1.0, 100.0),
        itl_s: chosen.run.itl_p50_ms / 1e3,
    }
}

fn advice(
    setting: &Setting,
    measured: &MeasuredInputs,
    chosen: &ChosenFleet,
    followed: &FollowingFleet,
    levels: &Levels,
    bin: Duration,
) -> Advice {
    let floor = followed.windows.iter().map(|window| window.has).min().unwrap_or(1);
    let (burst_requests, burst_replicas) = burst_ceiling(setting, measured, followed, levels, bin);
    let above: f64 =
        followed.windows.iter().map(|window| (window.has - floor) as f64 * window.lasts_s).sum::<f64>();
    let enough = |class: &PlanClassRow| {
        let place = setting.classes.iter().position(|(name, _)| *name == class.name);
        let longest = place.and_then(|place| chosen.run.longest_ms.get(place)).copied().unwrap_or(0.0);
        Tolerance {
            class: class.name.clone(),
            now_s: class.max_wait_s,
            enough_s: numbers::round_up(class.ttft_s.max(longest / 1e3)).min(class.max_wait_s),
        }
    };
    let pool = |found: &FleetSearch| PlanPoolRow {
        pool: setting.pools[found.pool].name.clone(),
        replicas: if found.pool == chosen.pool && chosen.kept {
            Some(chosen.maximum)
        } else {
            found.smallest
        },
        cost_per_hour: found.smallest.map(|count| {
            let count = if found.pool == chosen.pool { chosen.maximum } else { count };
            setting.pools[found.pool].price * count as f64
        }),
        kept: found.tried.values().map(|tried| tried.kept).fold(0.0, f64::max),
    };
    Advice {
        kept: chosen.kept,
        floor,
        maximum: chosen.maximum,
        burst_requests,
        burst_replicas,
        replicas: over_time(&followed.windows),
        tolerance: measured.classes.iter().map(enough).collect(),
        pools: chosen.found.iter().map(pool).collect(),
        elastic: above / (followed.hours * 3_600.0).max(1e-9),
        patient: measured.classes.iter().filter(|class| class.waits_for_a_start).map(|row| row.tokens).sum(),
    }
}

/// Percentiles of the fleet's size, each window weighted by its length.
fn over_time(windows: &[WindowNeed]) -> Percentiles {
    let mut sizes: Vec<(usize, f64)> = windows.iter().map(|window| (window.has, window.lasts_s)).collect();
    sizes.sort_unstable_by_key(|(has, _)| *has);
    let all: f64 = sizes.iter().map(|(_, lasts)| lasts).sum();
    let part = |part: f64| {
        let mut left = all * part;
        let found = sizes.iter().find(|(_, lasts)| {
            left -= lasts;
            left <= 1e-9
        });
        found.or(sizes.last()).map_or(0.0, |(has, _)| *has as f64)
    };
    Percentiles { p50: part(0.5), p90: part(0.9), p99: part(0.99) }
}

/// Most requests in service during surges that no scaler can answer, and most
/// replicas needed by windows with such a surge. Without a surge, the maxima
/// over all.
fn burst_ceiling(
    setting: &Setting,
    measured: &MeasuredInputs,
    followed: &FollowingFleet,
    levels: &Levels,
    bin: Duration,
) -> (u64, usize) {
    let surges = measured.bursts.surges.iter().filter(|surge| surge.is_noise(setting.start));
    // The last requests of a surge are in service after its end.
    let after = measured.duration_s.p90;
    let noise = measure::bursts::merge_touching(
        surges.map(|surge| (surge.at_s, surge.at_s + surge.lasts_s + after)).collect(),
    );
    let in_noise = |at: f64, lasts: f64| {
        let next = noise.partition_point(|(_, to)| *to <= at);
        noise.is_empty() || noise.get(next).is_some_and(|(from, _)| at + lasts > *from)
    };
    let bins = levels.bins(bin);
    let requests = bins.iter().filter(|row| in_noise(row.at_s, bin.as_secs_f64())).map(|row| row.high).max();
    let windows = followed.windows.iter().filter(|window| in_noise(window.at_s, window.lasts_s));
    (requests.unwrap_or(0), windows.map(|window| window.needs).max().unwrap_or(0))
}

fn fleets(
    lab: &FleetTrials<'_>,
    stretch: &TraceStretch,
    chosen: &ChosenFleet,
    followed: &FollowingFleet,
    today: Option<&[usize]>,
) -> Vec<PlanFleetRow> {
    let fixed = |name: &str, run: TriedFleet| PlanFleetRow {
        name: name.to_owned(),
        replicas: (run.replicas, run.replicas),
        mean: run.replicas as f64,
        cost_per_hour: run.cost_per_hour,
        kept: run.kept,
        run: Some(run),
    };
    let today = today.map(|fleet| fixed("today", lab.run(stretch, fleet, "today")));
    let least = followed.windows.iter().map(|window| window.has).min().unwrap_or(0);
    let most = followed.windows.iter().map(|window| window.has).max().unwrap_or(0);
    let recommended = PlanFleetRow {
        name: "recommended".to_owned(),
        replicas: (least, most),
        mean: followed.mean(),
        cost_per_hour: followed.mean() * lab.setting.pools[chosen.pool].price,
        kept: followed.counted.share(),
        run: None,
    };
    let peak = fixed("fixed peak", chosen.run.clone());
    today.into_iter().chain([peak, recommended]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_over_time_count_windows_by_their_length() {
        let window = |has, lasts_s| WindowNeed { has, lasts_s, ..WindowNeed::default() };
        let bands = over_time(&[window(9, 10.0), window(1, 60.0), window(3, 30.0)]);
        assert_eq!(bands, Percentiles { p50: 1.0, p90: 3.0, p99: 9.0 });
        assert_eq!(over_time(&[]), Percentiles::default());
    }

    #[test]
    fn tolerances_are_numbers_that_people_write() {
        assert_eq!([0.03, 0.7, 2.1, 61.0, 9_999.0].map(numbers::round_up), [0.1, 1.0, 3.0, 120.0, 9_999.0]);
    }
}
