//! Source status: the last answer of every replica source.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::discover::{Endpoint, MAX_REPLICAS};
use crate::config::load::merge::FoundEndpoints;
use crate::core::model::ids::PoolId;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{SourceBack, SourceEmpty, SourceLost, SourceTooLarge};

/// Last answers of all sources.
#[derive(Default)]
pub(super) struct SourceStatuses {
    rows: Mutex<BTreeMap<PoolId, SourceEntry>>,
    changed: Notify,
}

struct SourceEntry {
    source: &'static str,
    found: Option<Arc<[Endpoint]>>,
    answered: Option<Instant>,
    problem: Option<SourceProblem>,
    /// Problem of a secondary request, such as that for Nodes.
    secondary_problem: Option<SourceProblem>,
}

struct SourceProblem {
    text: String,
    since: Instant,
}

/// Status of one source.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceStatus {
    pub pool: PoolId,
    /// Kind of the source.
    pub source: &'static str,
    /// Number of endpoints in the last answer; absent before the first answer.
    pub endpoints: Option<usize>,
    /// Time since the last answer. A watched source sends nothing while nothing changes.
    pub age: Option<Duration>,
    /// Problem that keeps the source from answering now.
    pub problem: Option<String>,
}

impl SourceStatuses {
    /// Waits until a source has a new answer.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Endpoints of the last answers, by pool.
    pub(super) fn found(&self) -> FoundEndpoints {
        let rows = self.rows.lock();
        rows.iter().filter_map(|(pool, row)| Some((*pool, Arc::clone(row.found.as_ref()?)))).collect()
    }

    /// Removes the sources of all pools that are not wanted.
    pub(super) fn retain(&self, wanted: impl Fn(PoolId) -> bool) {
        self.rows.lock().retain(|pool, _| wanted(*pool));
    }

    /// Runs `act` while no source can report.
    pub(super) fn with_lock(&self, act: impl FnOnce()) {
        let _rows = self.rows.lock();
        act();
    }

    pub(super) fn views(&self) -> Vec<SourceStatus> {
        let view = |(pool, row): (&PoolId, &SourceEntry)| SourceStatus {
            pool: *pool,
            source: row.source,
            endpoints: row.found.as_ref().map(|found| found.len()),
            age: row.answered.map(|at| at.elapsed()),
            problem: row
                .problem
                .as_ref()
                .or(row.secondary_problem.as_ref())
                .map(|problem| problem.text.clone()),
        };
        self.rows.lock().iter().map(view).collect()
    }
}

/// Reporter of one source. After its task was told to end, its reports are ignored.
pub(super) struct SourceReporter {
    pool: PoolId,
    statuses: Arc<SourceStatuses>,
    telemetry: Telemetry,
    token: CancellationToken,
}

impl SourceReporter {
    pub(super) fn new(
        pool: PoolId,
        source: &'static str,
        statuses: &Arc<SourceStatuses>,
        telemetry: &Telemetry,
        token: &CancellationToken,
    ) -> Self {
        let mut rows = statuses.rows.lock();
        let row = rows.entry(pool).or_insert(SourceEntry {
            source,
            found: None,
            answered: None,
            problem: None,
            secondary_problem: None,
        });
        (row.source, row.problem, row.secondary_problem) = (source, None, None);
        Self { pool, statuses: Arc::clone(statuses), telemetry: telemetry.clone(), token: token.clone() }
    }

    /// Reports the endpoints of an answer. An endpoint that is named several times counts once, and
    /// drains only if every entry drains.
    pub(super) fn report_endpoints(&self, mut endpoints: Vec<Endpoint>) {
        endpoints.sort_by_cached_key(|endpoint| (endpoint.url.to_string(), endpoint.draining));
        endpoints.dedup_by(|next, first| next.url == first.url);
        let named = endpoints.len();
        endpoints.truncate(MAX_REPLICAS);
        let heard = self.row(|row| {
            let new = row.found.as_deref() != Some(&*endpoints);
            if new {
                row.found = Some(endpoints.into());
            }
            row.answered = Some(Instant::now());
            (new, row.problem.take().map(|problem| problem.since.elapsed()))
        });
        let Some((new, lost_for)) = heard else { return };
        if let Some(after) = lost_for {
            self.report_back(after);
        }
        if new {
            self.statuses.changed.notify_one();
            if named > MAX_REPLICAS {
                SourceTooLarge { pool: self.pool, named }.emit(&self.telemetry);
            }
        }
    }

    /// Whether the last answer had endpoints.
    pub(super) fn has_endpoints(&self) -> bool {
        self.row(|row| row.found.as_ref().is_some_and(|found| !found.is_empty())).unwrap_or(false)
    }

    /// Logs that the source has no endpoints any more. The last ones stay in force for `holds`.
    pub(super) fn report_empty(&self, holds: Duration) {
        if !self.token.is_cancelled() {
            SourceEmpty { pool: self.pool, holds }.emit(&self.telemetry);
        }
    }

    /// Reports that the source cannot be asked. The last endpoints stay in force.
    pub(super) fn report_lost(&self, why: &str) {
        let first = self.row(|row| {
            let since = row.problem.as_ref().map(|problem| problem.since);
            row.problem =
                Some(SourceProblem { text: why.to_owned(), since: since.unwrap_or_else(Instant::now) });
            since.is_none()
        });
        if let Some(first) = first {
            self.unreachable(why, first);
        }
    }

    /// Reports the problem of a secondary request; `None` = the request works again.
    pub(super) fn set_secondary_problem(&self, why: Option<&str>) {
        let before = self.row(|row| {
            let before = row.secondary_problem.take().map(|problem| problem.since);
            row.secondary_problem = why.map(|why| SourceProblem {
                text: why.to_owned(),
                since: before.unwrap_or_else(Instant::now),
            });
            before
        });
        match (before, why) {
            (Some(since), Some(why)) => {
                self.unreachable(why, since.is_none());
            }
            (Some(Some(since)), None) => {
                self.report_back(since.elapsed());
            }
            (Some(None) | None, _) => {}
        }
    }

    fn unreachable(&self, problem: &str, first: bool) {
        SourceLost { pool: self.pool, problem, first }.emit(&self.telemetry);
    }

    fn report_back(&self, after: Duration) {
        SourceBack { pool: self.pool, after }.emit(&self.telemetry);
    }

    fn row<T>(&self, act: impl FnOnce(&mut SourceEntry) -> T) -> Option<T> {
        let mut rows = self.statuses.rows.lock();
        if self.token.is_cancelled() { None } else { rows.get_mut(&self.pool).map(act) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::config::discover::{EndpointForm, EndpointScheme};

    /// A reporter, with views of what it reports.
    pub(in crate::fleet::discovery) struct ReporterFixture {
        pub(in crate::fleet::discovery) statuses: Arc<SourceStatuses>,
        pub(in crate::fleet::discovery) telemetry: Telemetry,
        pub(in crate::fleet::discovery) token: CancellationToken,
        pub(in crate::fleet::discovery) reporter: SourceReporter,
        read_lines: AtomicUsize,
    }

    impl ReporterFixture {
        pub(in crate::fleet::discovery) fn new() -> Self {
            let (statuses, telemetry) = (Arc::default(), Telemetry::for_tests());
            let token = CancellationToken::new();
            let reporter = SourceReporter::new(PoolId::new(0), "test", &statuses, &telemetry, &token);
            Self { statuses, telemetry, token, reporter, read_lines: AtomicUsize::new(0) }
        }

        /// Hosts that are in force now; `-` marks one that drains.
        pub(in crate::fleet::discovery) fn hosts(&self) -> Vec<String> {
            let found = self.statuses.found();
            let found = found.get(&PoolId::new(0)).into_iter().flat_map(|found| found.iter());
            let text = |endpoint: &Endpoint| {
                let going = if endpoint.draining { "-" } else { "" };
                format!("{going}{}", endpoint.url.authority().unwrap())
            };
            found.map(text).collect()
        }

        /// What was logged since the last call.
        pub(in crate::fleet::discovery) fn logged(&self) -> Vec<&'static str> {
            let log = self.telemetry.captured_log();
            let before = self.read_lines.swap(log.lines().count(), Ordering::SeqCst);
            let kinds = [
                ("source of replicas lost", "lost"),
                ("source of replicas still lost", "lost"),
                ("source of replicas answers again", "back"),
                ("source names no replica", "empty"),
                ("source names too many", "too many"),
            ];
            let kind = |line: &str| kinds.iter().find(|(text, _)| line.contains(text)).unwrap().1;
            log.lines().skip(before).map(kind).collect()
        }
    }

    pub(in crate::fleet::discovery) const FORM: EndpointForm =
        EndpointForm { scheme: EndpointScheme::Http, metrics_port: None };

    fn endpoint(last: usize) -> Endpoint {
        FORM.endpoint(&format!("10.0.{}.{}", last / 250, last % 250), 80).unwrap()
    }

    #[test]
    fn the_last_word_holds_and_each_change_of_mood_is_noted_once() {
        let fixture = ReporterFixture::new();
        assert_eq!(fixture.statuses.found(), FoundEndpoints::new(), "unknown is not empty");
        fixture.reporter.report_lost("no route");
        fixture.reporter.report_lost("no route");
        fixture.reporter.report_endpoints(vec![endpoint(2), endpoint(1)]);
        assert_eq!(fixture.hosts(), ["10.0.0.1:80", "10.0.0.2:80"]);
        fixture.reporter.report_lost("refused");
        assert_eq!(fixture.hosts().len(), 2);
        assert_eq!(fixture.statuses.views()[0].problem.as_deref(), Some("refused"));
        assert_eq!(fixture.logged(), ["lost", "lost", "back", "lost"]);
        fixture.token.cancel();
        fixture.reporter.report_endpoints(Vec::new());
        assert_eq!((fixture.hosts().len(), fixture.logged().len()), (2, 0), "it was told to end");
    }

    #[test]
    fn who_is_named_twice_goes_only_if_both_say_so() {
        let fixture = ReporterFixture::new();
        let going = |last| Endpoint { draining: true, ..endpoint(last) };
        fixture.reporter.report_endpoints(vec![going(1), going(2), endpoint(1), going(2)]);
        assert_eq!(fixture.hosts(), ["10.0.0.1:80", "-10.0.0.2:80"]);
    }

    #[test]
    fn there_is_an_upper_bound() {
        let fixture = ReporterFixture::new();
        fixture.reporter.report_endpoints((0..MAX_REPLICAS + 5).map(endpoint).collect());
        assert_eq!(fixture.hosts().len(), MAX_REPLICAS);
        assert_eq!(fixture.logged(), ["too many"]);
    }
}
