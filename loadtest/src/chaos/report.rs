//! Chaos report: what each run showed, and which guarantees it kept.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use super::book::Book;
use super::load::{Seen, Verdict};
use super::schedule::Schedule;
use super::storm::Storm;
use crate::meter::{self, histogram};
use crate::report::Quantiles;

/// Share of the broken streams that must go on, of those that can.
const MUST_GO_ON: f64 = 0.99;
/// Faults of each sort that a report shows.
const SHOWN: usize = 8;

/// Figures of a phase, or of the whole run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Row {
    /// The kind of fault, or `total`.
    pub name: String,
    /// Engines that were hit.
    pub episodes: u64,
    /// Requests sent.
    pub requests: u64,
    /// Those that failed before their client had seen a token.
    pub failed_before_token: u64,
    /// Streams that broke, whose requests another engine can go on with.
    pub broken: u64,
    /// Those of them that their clients saw to the end.
    pub continued: u64,
    /// `continued` over `broken`; absent when none broke.
    pub share: Option<f64>,
    /// Streams that no other engine can go on with, and that broke.
    pub broken_for_good: u64,
    /// Whole answers with another text than an undisturbed engine gives.
    pub other_texts: u64,
    /// Whole answers with another usage.
    pub other_usages: u64,
    /// Requests that needed more than one engine.
    pub tried_again: u64,
    /// From the planned instant to the first token.
    pub ttft: Option<Quantiles>,
}

/// What the gateway says itself.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GatewaySays {
    /// `penstock_continuations_total`.
    pub continuations: f64,
    /// `penstock_streams_broken_total`.
    pub streams_broken: f64,
    /// `penstock_requeues_total`.
    pub requeues: f64,
    /// `penstock_recalls_total`.
    pub recalls: f64,
    /// `penstock_ejections_total`.
    pub ejections: f64,
    /// Requests without their line in the log.
    pub unlogged: u64,
}

/// How the run was.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// What everything follows from.
    pub seed: u64,
    /// Simulated engines.
    pub engines: usize,
    /// Hit at once at most.
    pub most: usize,
    /// Seconds of load.
    pub seconds: f64,
    /// Requests a second.
    pub rate: f64,
    /// Share of what the whole fleet can do.
    pub load: f64,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How it was made.
    pub setting: Setting,
    /// One row for each phase, by the time at which requests were sent.
    pub phases: Vec<Row>,
    /// All of them.
    pub total: Row,
    /// The gateway's own counters.
    pub gateway: GatewaySays,
    /// The storm, where it was one.
    pub storm: Option<Storm>,
    /// What was still there at the end; must be empty.
    pub leftovers: Vec<String>,
    /// What went wrong, with the number of requests.
    pub faults: BTreeMap<String, u64>,
    /// Promises that were not kept; empty when all is well.
    pub broken_promises: Vec<String>,
    /// What happened when.
    pub schedule: Schedule,
}

/// What the gateway's log says of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Logged {
    continued: u64,
    attempts: u64,
}

/// The lines of finished requests, by the request's name.
pub fn read_log(text: &str) -> HashMap<String, Logged> {
    let lines = text.lines().filter(|line| line.contains("request finished"));
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let logged = lines.filter_map(|line| {
        let count = |name: &str| line[name].as_u64().unwrap_or(0);
        let id = line["request_id"].as_str()?.to_owned();
        Some((id, Logged { continued: count("continued"), attempts: count("attempts") }))
    });
    logged.collect()
}

/// Adds up rows and their times.
struct Sums {
    row: Row,
    ttft: Histogram<u64>,
}

impl Sums {
    fn new(name: &str, episodes: usize) -> Self {
        let row = Row { name: name.to_owned(), episodes: episodes as u64, ..Row::default() };
        Self { row, ttft: histogram() }
    }

    fn add(&mut self, seen: &Seen, logged: Logged, can_go_on: bool) {
        let row = &mut self.row;
        row.requests += 1;
        row.tried_again += u64::from(logged.attempts > 1);
        if let Some(time) = seen.first_token {
            meter::add(&mut self.ttft, time);
        }
        let went_on = seen.planned.stream && logged.continued > 0;
        match &seen.verdict {
            Verdict::FailedBefore(_) => row.failed_before_token += 1,
            Verdict::Broken(_) if can_go_on => row.broken += 1,
            Verdict::Broken(_) => row.broken_for_good += 1,
            Verdict::Right | Verdict::OtherText(_) | Verdict::OtherUsage(_) => {
                row.broken += u64::from(went_on);
                row.continued += u64::from(went_on);
                row.other_texts += u64::from(matches!(seen.verdict, Verdict::OtherText(_)));
                row.other_usages += u64::from(matches!(seen.verdict, Verdict::OtherUsage(_)));
            }
        }
    }

    fn row(mut self) -> Row {
        self.row.share = (self.row.broken > 0).then(|| self.row.continued as f64 / self.row.broken as f64);
        self.row.ttft = Quantiles::of(&self.ttft);
        self.row
    }
}

impl Report {
    /// Puts a run's figures together.
    pub fn new(
        (setting, schedule): (Setting, Schedule),
        book: &Book,
        seen: &[Seen],
        log: &HashMap<String, Logged>,
        (mut gateway, storm, leftovers): (GatewaySays, Option<Storm>, Vec<String>),
    ) -> Self {
        let episodes = |phase: usize| {
            let phase = &schedule.phases[phase];
            schedule.episodes.iter().filter(|e| (phase.from..phase.to).contains(&e.at)).count()
        };
        let named = schedule.phases.iter().enumerate();
        let mut phases =
            named.map(|(index, phase)| Sums::new(phase.name, episodes(index))).collect::<Vec<_>>();
        let mut total = Sums::new("total", schedule.episodes.len());
        let mut faults: BTreeMap<String, u64> = BTreeMap::new();
        for seen in seen {
            let can_go_on = book.questions[seen.planned.question].can_go_on;
            let logged = seen.request_id.as_ref().and_then(|id| log.get(id)).copied();
            gateway.unlogged += u64::from(logged.is_none());
            let phase = schedule.phase_at(seen.planned.at);
            phases[phase].add(seen, logged.unwrap_or_default(), can_go_on);
            total.add(seen, logged.unwrap_or_default(), can_go_on);
            if let Some(text) = fault(seen, schedule.phases[phase].name, can_go_on) {
                *faults.entry(text).or_default() += 1;
            }
        }
        let total = total.row();
        Self {
            broken_promises: broken_promises(&total, storm.as_ref(), &leftovers),
            phases: phases.into_iter().map(Sums::row).collect(),
            setting,
            total,
            gateway,
            storm,
            leftovers,
            faults,
            schedule,
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let Setting { seed, engines, most, seconds, rate, load } = &self.setting;
        let mut text = format!(
            "seed {seed}: {seconds:.0} s, {rate:.1} requests/s = {load} of {engines} engines, at most {most} hit at once\n\n\
             {:<8}{:>6}{:>9}{:>8} | {:>7}{:>10}{:>7}{:>9} | {:>6}{:>7} | {:>8}{:>9} ms\n",
            "phase",
            "hits",
            "requests",
            "failed",
            "broken",
            "continued",
            "share",
            "for good",
            "texts",
            "usages",
            "TTFT 50",
            "99 %"
        );
        for row in self.phases.iter().chain([&self.total]) {
            line(&mut text, row);
        }
        let says = &self.gateway;
        let _ = write!(
            text,
            "\nfailed: before the first token; broken: streams that can go on elsewhere, and continued ones among them;\n\
             for good: streams that cannot; texts, usages: other than an undisturbed engine's\n\n\
             the gateway says: {} continuations, {} streams broken, {} requeues, {} recalls, {} ejections; {} requests not in its log\n",
            says.continuations,
            says.streams_broken,
            says.requeues,
            says.recalls,
            says.ejections,
            says.unlogged
        );
        if let Some(storm) = &self.storm {
            let _ = writeln!(text, "{storm}");
        }
        for (fault, count) in self.faults.iter().take(SHOWN * 3) {
            let _ = writeln!(text, "{count:>6} x {fault}");
        }
        if self.broken_promises.is_empty() {
            text.push_str("all promises kept\n");
        }
        text
    }
}

/// What went wrong with a request, so that like ones have like words.
fn fault(seen: &Seen, phase: &str, can_go_on: bool) -> Option<String> {
    let kind = if seen.planned.stream { "stream" } else { "plain" };
    let (what, why) = match &seen.verdict {
        Verdict::Right => return None,
        Verdict::FailedBefore(why) => ("failed before a token", why),
        Verdict::Broken(why) if can_go_on => ("broken", why),
        Verdict::Broken(why) => ("broken for good", why),
        Verdict::OtherText(why) => ("other text", why),
        Verdict::OtherUsage(why) => ("other usage", why),
    };
    Some(format!("{phase}: {kind} {what}: {why}"))
}

fn line(text: &mut String, row: &Row) {
    let share = row.share.map_or("-".to_owned(), |share| format!("{share:.4}"));
    let time =
        |of: fn(&Quantiles) -> f64| row.ttft.map_or("-".to_owned(), |ttft| format!("{:.0}", of(&ttft)));
    let _ = writeln!(
        text,
        "{:<8}{:>6}{:>9}{:>8} | {:>7}{:>10}{share:>7}{:>9} | {:>6}{:>7} | {:>8}{:>9}",
        row.name,
        row.episodes,
        row.requests,
        row.failed_before_token,
        row.broken,
        row.continued,
        row.broken_for_good,
        row.other_texts,
        row.other_usages,
        time(|ttft| ttft.p50_ms),
        time(|ttft| ttft.p99_ms),
    );
}

fn broken_promises(total: &Row, storm: Option<&Storm>, leftovers: &[String]) -> Vec<String> {
    let mut broken = Vec::new();
    // Nobody promises to wait for engines that are all busy: who could be too
    // late is told at once.
    let failed = if storm.is_none() { total.failed_before_token } else { 0 };
    for (count, what) in [
        (failed, "requests failed before their first token"),
        (total.other_texts, "answers have another text than the undisturbed one"),
        (total.other_usages, "answers have another usage than the undisturbed one"),
        (leftovers.len() as u64, "things are left over at the end"),
    ] {
        if count > 0 {
            broken.push(format!("{count} {what}"));
        }
    }
    if let Some(share) = total.share.filter(|share| *share < MUST_GO_ON) {
        broken.push(format!("only {:.2} % of the broken streams went on", share * 100.0));
    }
    broken.extend(leftovers.iter().cloned());
    broken.extend(storm.into_iter().flat_map(Storm::broken_promises));
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_read_line_by_line() {
        let log = read_log(
            "{\"message\":\"request finished\",\"request_id\":\"a\",\"attempts\":2,\"continued\":1}\n\
             {\"message\":\"request requeued\",\"request_id\":\"b\"}\nnonsense: request finished\n",
        );
        assert_eq!(log.len(), 1);
        assert_eq!((log["a"].attempts, log["a"].continued), (2, 1));
    }

    #[test]
    fn every_promise_can_be_broken() {
        let kept = Row { broken: 200, continued: 199, share: Some(0.995), ..Row::default() };
        assert_eq!(broken_promises(&kept, None, &[]), Vec::<String>::new());
        for wrong in [
            Row { failed_before_token: 1, ..kept.clone() },
            Row { other_texts: 1, ..kept.clone() },
            Row { other_usages: 1, ..kept.clone() },
            Row { share: Some(0.98), ..kept.clone() },
        ] {
            assert_eq!(broken_promises(&wrong, None, &[]).len(), 1, "{wrong:?}");
        }
        assert_eq!(broken_promises(&kept, None, &["3 jobs".to_owned()]).len(), 2);
    }
}
