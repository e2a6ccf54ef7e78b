//! Fleet tasks: one scraper per configured replica, and a probe when the scheduler asks for one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::settings::Settings;
use crate::core::model::ids::ReplicaId;
use crate::dispatcher::Dispatcher;
use crate::fleet::context::{FleetContext, FleetTiming};
use crate::fleet::fetch::{NoTrustedCertificates, ReplicaClient};
use crate::fleet::probe;
use crate::fleet::scrape::{self, MonitoredReplica, ProbeFlag};
use crate::fleet::sleep::{self, SleepOrder};
use crate::fleet::target::ReplicaTarget;
use crate::fleet::view::FleetView;
use crate::telemetry::Telemetry;

/// Most scrapes that run at the same time; more wait for their turn. Probes do not wait.
const CONCURRENT_SCRAPES: usize = 64;

/// Running fleet monitor. Clones are handles to the same monitor, which stops when the last handle
/// is dropped.
#[derive(Clone)]
pub struct FleetMonitor {
    inner: Arc<MonitorState>,
}

struct MonitorState {
    shared: Arc<FleetContext>,
    settings: Arc<ArcSwap<Settings>>,
    view: Arc<FleetView>,
    members: Mutex<BTreeMap<ReplicaId, Arc<MonitoredReplica>>>,
    root: CancellationToken,
    tasks: TaskTracker,
    runtime: Handle,
}

impl fmt::Debug for FleetMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("replicas", &self.inner.members.lock().len()).finish_non_exhaustive()
    }
}

impl Drop for MonitorState {
    fn drop(&mut self) {
        self.root.cancel();
    }
}

impl FleetMonitor {
    /// Starts to scrape every configured replica. The call needs a tokio runtime; the other methods
    /// may be called from anywhere.
    ///
    /// # Errors
    /// A replica has an `https` URL and the system has no trusted certificates.
    pub fn start(
        settings: Arc<ArcSwap<Settings>>,
        dispatcher: Arc<Dispatcher>,
        telemetry: Telemetry,
        timing: FleetTiming,
    ) -> Result<Self, NoTrustedCertificates> {
        let fetcher =
            ReplicaClient::new(ReplicaTarget::all(&settings.load()).any(|target| target.needs_tls()))?;
        let (fetcher, permits) = (Arc::new(fetcher), Semaphore::new(CONCURRENT_SCRAPES));
        let fleet = Self {
            inner: Arc::new(MonitorState {
                shared: Arc::new(FleetContext { fetcher, dispatcher, telemetry, timing, permits }),
                settings,
                view: Arc::new(FleetView::default()),
                members: Mutex::new(BTreeMap::new()),
                root: CancellationToken::new(),
                tasks: TaskTracker::new(),
                runtime: Handle::current(),
            }),
        };
        fleet.apply_settings();
        Ok(fleet)
    }

    /// Last known status of every replica.
    pub fn view(&self) -> Arc<FleetView> {
        Arc::clone(&self.inner.view)
    }

    /// Probes `replica`. The dispatcher gets `ProbeSucceeded` or `ReplicaLost` within
    /// `FleetTiming::probe_timeout`. While a probe of the same replica is in flight, its answer
    /// counts for this call too. A replica that is not configured (any more) is not probed, and no
    /// event follows.
    pub fn probe(&self, replica: ReplicaId) {
        let known = self.inner.members.lock().contains_key(&replica);
        if !known {
            // The settings may be newer than the list of members.
            self.apply_settings();
        }
        let member = self.inner.members.lock().get(&replica).cloned();
        if let Some(member) = member {
            self.inner.probe(&member);
        }
    }

    /// Scrapes `replica` now, unless a scrape of the replica is under way. The dispatcher gets
    /// `ReplicaReported` when the replica answers.
    pub fn scrape_now(&self, replica: ReplicaId) {
        if let Some(member) = self.inner.members.lock().get(&replica) {
            member.inspect.notify_one();
        }
    }

    /// Tells `replica` to sleep or to wake. The dispatcher gets `SleepAnswered`, except when the
    /// replica is not configured (any more) or a reload changes it meanwhile.
    pub fn send_sleep_order(&self, replica: ReplicaId, order: SleepOrder) {
        let member = self.inner.members.lock().get(&replica).cloned();
        if let Some(member) = member {
            let inner = &*self.inner;
            inner.spawn(&member, sleep::carry_out(Arc::clone(&inner.shared), Arc::clone(&member), order));
        }
    }

    /// Applies new settings. The tasks of replicas that left or changed are aborted and report
    /// nothing more. A probe in flight is repeated under the new settings.
    pub fn apply_settings(&self) {
        let inner = &*self.inner;
        let mut members = inner.members.lock();
        if inner.root.is_cancelled() {
            return;
        }
        let settings = inner.settings.load();
        let mut targets: BTreeMap<_, _> =
            ReplicaTarget::all(&settings).map(|target| (target.replica, target)).collect();
        let mut probed = BTreeSet::new();
        members.retain(|replica, member| {
            if targets.get(replica) == Some(&member.target) {
                targets.remove(replica);
                return true;
            }
            member.token.cancel();
            inner.view.remove(*replica);
            if member.probing.is_in_flight() {
                probed.insert(*replica);
            }
            false
        });
        for (replica, target) in targets {
            let member = inner.start_monitoring(target);
            if probed.contains(&replica) {
                inner.probe(&member);
            }
            members.insert(replica, member);
        }
    }

    /// Ends all tasks and waits for them. No event follows.
    pub async fn stop(&self) {
        {
            let mut members = self.inner.members.lock();
            self.inner.root.cancel();
            members.clear();
        }
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

impl MonitorState {
    fn start_monitoring(&self, target: ReplicaTarget) -> Arc<MonitoredReplica> {
        let own = target.tls.as_ref().and_then(|tls| ReplicaClient::with_tls(tls, &target.url("")));
        let member = Arc::new(MonitoredReplica {
            fetcher: own.map_or_else(|| Arc::clone(&self.shared.fetcher), Arc::new),
            cell: self.view.insert_new(target.replica),
            target,
            refresh: Notify::new(),
            inspect: Notify::new(),
            probing: ProbeFlag::default(),
            token: self.root.child_token(),
        });
        self.spawn(&member, scrape::run(Arc::clone(&self.shared), Arc::clone(&member)));
        member
    }

    fn probe(&self, member: &Arc<MonitoredReplica>) {
        if member.probing.begin() {
            self.spawn(member, probe::run(Arc::clone(&self.shared), Arc::clone(member)));
        }
    }

    fn spawn(&self, member: &MonitoredReplica, task: impl Future<Output = ()> + Send + 'static) {
        let token = member.token.clone();
        let until_ended = async move {
            token.run_until_cancelled(task).await;
        };
        self.tasks.spawn_on(until_ended, &self.runtime);
    }
}
