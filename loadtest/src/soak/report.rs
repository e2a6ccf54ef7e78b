//! Soak report: which troubles there were, what clients saw, and what was left over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::trouble::Kind;
use crate::chaos::book::Book;
use crate::chaos::load::{Seen, Verdict};
use crate::meter::{self, histogram};
use crate::report::Quantiles;

/// Kinds of faults that a report shows.
const SHOWN: usize = 24;

/// A trouble as it was.
#[derive(Debug, Clone, Serialize)]
pub struct Happened {
    /// What.
    pub kind: Kind,
    /// Seconds since the start of the load.
    pub at: f64,
    /// Seconds until it was mended.
    pub lasted: f64,
    /// To whom, and what was seen.
    pub what: String,
    /// Requests that were sent meanwhile.
    pub requests: u64,
    /// Those of them that were refused with advice, or ended by an error event.
    pub announced: u64,
    /// Those of them that failed in another way.
    pub failed: u64,
}

/// How the run was.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// What everything follows from.
    pub seed: u64,
    /// Seconds of load.
    pub seconds: f64,
    /// Requests a second.
    pub rate: f64,
    /// Simulated engines.
    pub engines: usize,
    /// Kinds of trouble that this machine cannot make, with the reason.
    pub left_out: Vec<String>,
}

/// What all clients saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Answers {
    /// Requests sent.
    pub requests: u64,
    /// Whole answers with the text and usage of an undisturbed engine.
    pub right: u64,
    /// Refused before a token, with advice when to ask again.
    pub refused: u64,
    /// Streams that ended with an error event.
    pub error_events: u64,
    /// Failed before a token and without advice.
    pub failed: u64,
    /// Streams that ended without an error event and without their end.
    pub torn: u64,
    /// Another text or usage.
    pub wrong: u64,
    /// From the planned instant to the first token.
    pub ttft: Option<Quantiles>,
    /// From the planned instant to the end.
    pub total: Option<Quantiles>,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How it was made.
    pub setting: Setting,
    /// In their order.
    pub troubles: Vec<Happened>,
    /// Faults of engines meanwhile, by kind.
    pub engine_faults: BTreeMap<&'static str, u64>,
    /// What clients saw.
    pub answers: Answers,
    /// What went wrong, with the number of requests.
    pub faults: BTreeMap<String, u64>,
    /// Usage rows: of answered requests without one, and of those with two.
    pub rows_missing: u64,
    /// Requests with more than one row.
    pub rows_twice: u64,
    /// Rows that the gateways say they dropped.
    pub rows_dropped: f64,
    /// Resident memory of each gateway at the end of the load, in KiB.
    pub rss_kib: Vec<u64>,
    /// What was still there at the end; must be empty.
    pub leftovers: Vec<String>,
    /// Promises that were not kept; empty when all is well.
    pub broken_promises: Vec<String>,
}

/// What remains after the load.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// Usage rows by request, of all gateways.
    pub(super) rows: BTreeMap<String, u32>,
    pub(super) rows_dropped: f64,
    pub(super) rss_kib: Vec<u64>,
    pub(super) leftovers: Vec<String>,
}

impl Report {
    pub(super) fn new(
        (setting, engine_faults): (Setting, BTreeMap<&'static str, u64>),
        mut troubles: Vec<Happened>,
        book: &Book,
        seen: &[Seen],
        remains: Remains,
    ) -> Self {
        let (mut answers, mut faults) = (Answers::default(), BTreeMap::new());
        let (mut ttft, mut total) = (histogram(), histogram());
        let mut answered = BTreeSet::new();
        for seen in seen {
            meter::add(&mut total, seen.total);
            seen.first_token.into_iter().for_each(|time| meter::add(&mut ttft, time));
            let fault = answers.add(seen, book.questions[seen.planned.question].can_go_on);
            if fault.is_none() {
                answered.extend(seen.request_id.as_deref());
            }
            let at = seen.planned.at.as_secs_f64();
            for trouble in troubles.iter_mut().filter(|t| (t.at..t.at + t.lasted).contains(&at)) {
                trouble.requests += 1;
                trouble.announced += u64::from(fault.is_some() && seen.announced);
                trouble.failed += u64::from(fault.is_some() && !seen.announced);
            }
            fault.into_iter().for_each(|fault| *faults.entry(fault).or_default() += 1);
        }
        let quantiles = |times: &Histogram<u64>| Quantiles::of(times);
        (answers.ttft, answers.total) = (quantiles(&ttft), quantiles(&total));
        let rows = &remains.rows;
        let rows_missing = answered.iter().filter(|id| !rows.contains_key(**id)).count() as u64;
        let rows_twice = rows.values().filter(|count| **count > 1).count() as u64;
        let mut report = Self {
            setting,
            troubles,
            engine_faults,
            answers,
            faults,
            rows_missing,
            rows_twice,
            rows_dropped: remains.rows_dropped,
            rss_kib: remains.rss_kib,
            leftovers: remains.leftovers,
            broken_promises: Vec::new(),
        };
        report.broken_promises = report.promises();
        report
    }

    fn promises(&self) -> Vec<String> {
        let missing = (self.rows_missing as f64 - self.rows_dropped).max(0.0) as u64;
        let mut broken = Vec::new();
        for (count, what) in [
            (self.answers.failed, "requests failed before a token and without advice"),
            (self.answers.torn, "streams were torn without an error event"),
            (self.answers.wrong, "answers have another text or usage than the undisturbed one"),
            (missing, "answered requests have no usage row"),
            (self.rows_twice, "requests have two usage rows"),
            (self.leftovers.len() as u64, "things are left over at the end"),
        ] {
            if count > 0 {
                broken.push(format!("{count} {what}"));
            }
        }
        broken.extend(self.leftovers.iter().cloned());
        broken
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let Setting { seed, seconds, rate, engines, left_out } = &self.setting;
        let mut text = format!(
            "seed {seed}: {seconds:.0} s, {rate:.1} requests/s, {engines} engines, 2 gateways behind a TCP balancer\n\n\
             {:>7}{:>8}  {:<16}{:>9}{:>10}{:>8}  {}\n",
            "at s", "lasted", "trouble", "requests", "announced", "failed", "what"
        );
        for trouble in &self.troubles {
            let Happened { at, lasted, kind, requests, announced, failed, what } = trouble;
            let _ = writeln!(
                text,
                "{at:>7.1}{lasted:>8.1}  {:<16}{requests:>9}{announced:>10}{failed:>8}  {what}",
                kind.name()
            );
        }
        let faults = self.engine_faults.iter().map(|(kind, count)| format!("{count} {kind}"));
        let _ = writeln!(text, "\nengines meanwhile: {}", faults.collect::<Vec<_>>().join(", "));
        for what in left_out {
            let _ = writeln!(text, "left out: {what}");
        }
        let Answers { requests, right, refused, error_events, failed, torn, wrong, ttft, total } =
            &self.answers;
        let _ = writeln!(
            text,
            "\n{requests} requests: {right} right, {refused} refused with advice, {error_events} streams with an error event, \
             {failed} failed otherwise, {torn} torn, {wrong} wrong"
        );
        for (name, times) in [("first token", ttft), ("end", total)] {
            if let Some(times) = times {
                let Quantiles { p50_ms, p99_ms, max_ms, .. } = times;
                let _ =
                    writeln!(text, "{name}: p50 {p50_ms:.0} ms, p99 {p99_ms:.0} ms, longest {max_ms:.0} ms");
            }
        }
        let _ = writeln!(
            text,
            "usage rows: {} missing, {} twice, {} dropped and counted; memory at the end {:?} KiB",
            self.rows_missing, self.rows_twice, self.rows_dropped, self.rss_kib
        );
        for (fault, count) in self.faults.iter().take(SHOWN) {
            let _ = writeln!(text, "{count:>6} x {fault}");
        }
        match self.broken_promises.is_empty() {
            true => text.push_str("all promises kept\n"),
            false => self.broken_promises.iter().for_each(|what| _ = writeln!(text, "BROKEN: {what}")),
        }
        text
    }
}

impl Answers {
    /// Counts an answer; what is wrong with it, so that like ones have like words.
    fn add(&mut self, seen: &Seen, can_go_on: bool) -> Option<String> {
        self.requests += 1;
        let kind = if seen.planned.stream { "stream" } else { "plain" };
        let (count, what, why) = match &seen.verdict {
            Verdict::Right => {
                self.right += 1;
                return None;
            }
            Verdict::FailedBefore(why) if seen.announced => (&mut self.refused, "refused", why),
            Verdict::FailedBefore(why) => (&mut self.failed, "failed", why),
            Verdict::Broken(why) if seen.announced => {
                let what = if can_go_on { "broken" } else { "broken, and no other engine can go on" };
                (&mut self.error_events, what, why)
            }
            Verdict::Broken(why) => (&mut self.torn, "torn", why),
            Verdict::OtherText(why) => (&mut self.wrong, "other text", why),
            Verdict::OtherUsage(why) => (&mut self.wrong, "other usage", why),
        };
        *count += 1;
        Some(format!("{kind} {what}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let setting = Setting {
            seed: 1,
            seconds: 1.0,
            rate: 1.0,
            engines: 1,
            left_out: vec!["clock: no library".into()],
        };
        let empty = Book { questions: Vec::new() };
        Report::new((setting, BTreeMap::new()), Vec::new(), &empty, &[], Remains::default())
    }

    #[test]
    fn every_promise_can_be_broken() {
        assert_eq!(report().promises(), Vec::<String>::new());
        assert!(report().text().ends_with("all promises kept\n"), "{}", report().text());
        for wrong in [
            Report { answers: Answers { failed: 1, ..Answers::default() }, ..report() },
            Report { answers: Answers { torn: 1, ..Answers::default() }, ..report() },
            Report { answers: Answers { wrong: 1, ..Answers::default() }, ..report() },
            Report { rows_missing: 2, rows_dropped: 1.0, ..report() },
            Report { rows_twice: 1, ..report() },
        ] {
            assert_eq!(wrong.promises().len(), 1, "{wrong:?}");
        }
        let dropped = Report { rows_missing: 2, rows_dropped: 2.0, ..report() };
        assert_eq!(dropped.promises().len(), 0, "they were counted");
        let left = Report { leftovers: vec!["3 jobs".to_owned()], ..report() };
        assert_eq!(left.promises().len(), 2);
    }
}
