//! Parts of the exchange that its files share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::demand::shared_reports::SharedReports;
use crate::cluster::shared_overrides::{SharedOverride, SharedOverrides};
use crate::config::settings::Settings;
use crate::dispatcher::Dispatcher;
use crate::telemetry::Telemetry;

/// Longest name of a machine.
const MAX_NAME: usize = 64;

/// Finds a request of this gateway by its id, for the others: what `GET /admin/v1/requests/{id}` says of it.
pub type FindRequest = dyn Fn(&str) -> Option<Value> + Send + Sync;

/// What the exchange works with.
#[derive(Clone)]
pub struct ClusterParts {
    pub dispatcher: Arc<Dispatcher>,
    /// Settings in force; a new connection uses `cluster.valkey` as it is then.
    pub settings: Arc<ArcSwap<Settings>>,
    pub telemetry: Telemetry,
    /// Demand reports, for one scale signal of all gateways.
    pub reports: Arc<dyn SharedReports>,
    pub find_request: Arc<FindRequest>,
}

impl fmt::Debug for ClusterParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterParts").finish_non_exhaustive()
    }
}

#[cfg(test)]
impl ClusterParts {
    /// Parts under this configuration, without a scaler and without requests but `r1`.
    pub(in crate::cluster) fn for_tests(text: &str) -> Self {
        use crate::config::load::load_str_with;
        use crate::config::secret::MachineSecrets;
        use crate::dispatcher::clock::GatewayClock;

        let outcome = load_str_with(text, "test", std::path::Path::new("."), None, &MachineSecrets);
        let settings = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings;
        let actions = tokio::sync::mpsc::channel(1).0;
        Self {
            dispatcher: Dispatcher::new(Arc::clone(&settings.policy), GatewayClock::start(), actions),
            settings: Arc::new(ArcSwap::from_pointee(settings)),
            telemetry: Telemetry::for_tests(),
            reports: Arc::new(NoReports),
            find_request: Arc::new(|id| (id == "r1").then(|| serde_json::json!({ "state": "waiting" }))),
        }
    }
}

/// A scaler that reports nothing.
#[cfg(test)]
#[derive(Debug)]
struct NoReports;

#[cfg(test)]
impl SharedReports for NoReports {
    fn id(&self) -> u64 {
        1
    }

    fn own(&self, _: u64) -> Option<crate::cluster::OwnReport> {
        None
    }

    fn receive_answer(&self, _: Vec<crate::cluster::RemoteGateway>) {}
}

/// State of the exchange at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterStatus {
    /// Id of this gateway among the others.
    pub id: String,
    /// Its name for people: machine and port.
    pub name: String,
    /// Why the store is away; absent = it answers.
    pub problem: Option<String>,
    /// Time of the last answer, or of the start.
    pub heard: Instant,
    /// Time at which the leases end unless the store answers before.
    pub leases_end: Instant,
    /// Whether they have ended, and operators were told so.
    pub(super) leases_over: bool,
    /// All gateways, this one included, as of the last answer.
    pub gateways: Vec<ClusterMember>,
    /// Overrides that all gateways have.
    pub overrides: SharedOverrides,
}

impl ClusterStatus {
    /// State before the first answer of the store.
    pub(super) fn new(id: String, name: String) -> Self {
        let now = Instant::now();
        Self {
            id,
            name,
            problem: None,
            heard: now,
            leases_end: now,
            leases_over: false,
            gateways: Vec::new(),
            overrides: SharedOverrides::default(),
        }
    }

    /// Shares an override that an operator made at this gateway, or ended, with the others. The caller keeps
    /// the lock while the scheduler hears of it, so that both hear of two in the same order.
    pub fn share(&mut self, target: String, mut shared: SharedOverride, lasts: Option<Duration>) {
        (shared.gateway, shared.gateway_name) = (self.id.clone(), self.name.clone());
        self.overrides.set(target, shared, lasts);
    }
}

/// A gateway, as it was last heard.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterMember {
    pub id: String,
    /// Its name for people; empty = it runs a version that does not say it.
    pub name: String,
    /// Version of its program; empty likewise.
    pub program: String,
    /// Requests that wait there.
    pub waiting: Option<u64>,
    /// Requests that wait or run there.
    pub unfinished: Option<u64>,
    /// When it last reported.
    pub heard: Instant,
}

impl ClusterMember {
    /// A gateway by its id and the store's words: its age in milliseconds and the values that it tells.
    pub(super) fn read(id: String, said: &str) -> Self {
        let mut words = said.split(' ');
        let age = words.next().and_then(|age| age.parse().ok()).unwrap_or(0);
        let heard = Instant::now().checked_sub(Duration::from_millis(age)).unwrap_or_else(Instant::now);
        let _version = words.next();
        let mut text = || words.next().unwrap_or_default().to_owned();
        let (name, program) = (text(), text());
        let mut number = || words.next().and_then(|word| word.parse().ok());
        Self { id, name, program, waiting: number(), unfinished: number(), heard }
    }
}

/// Name of this machine, or of its pod.
pub(super) fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_fit = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
    let name: String = name.chars().filter(is_fit).take(MAX_NAME).collect();
    if name.is_empty() { "gateway".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gateways_of_earlier_and_later_versions_are_read() {
        tokio::time::advance(Duration::from_secs(60)).await;
        let read = |said| ClusterMember::read("a".to_owned(), said);
        let now = read("300 1 host:8080 0.1.0 3 12 and more");
        assert_eq!((&*now.name, &*now.program), ("host:8080", "0.1.0"));
        assert_eq!((now.waiting, now.unfinished), (Some(3), Some(12)));
        assert_eq!(now.heard.elapsed(), Duration::from_millis(300));
        let old = read("0 1");
        assert_eq!((&*old.name, old.waiting), ("", None));
        assert_eq!(read("").unfinished, None);
    }
}
