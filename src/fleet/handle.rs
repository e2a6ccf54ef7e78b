//! The fleet's tasks: one scraper per configured replica, and a probe when
//! the core asks for one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::settings::Settings;
use crate::core::ids::ReplicaId;
use crate::fleet::fetch::{Fetcher, NoTls};
use crate::fleet::hooks::{Sink, Watch};
use crate::fleet::probe;
use crate::fleet::rest::{self, Order};
use crate::fleet::scrape::{self, Member, Probing};
use crate::fleet::target::Target;
use crate::fleet::view::FleetView;

/// Scrapes that may run at the same time; more wait for their turn. Probes do
/// not wait.
const CONCURRENT_SCRAPES: usize = 64;

/// The fleet's times. The default is right for the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// For one answer about metrics or models.
    pub scrape_timeout: Duration,
    /// For all of one probe.
    pub probe_timeout: Duration,
    /// Between two questions about the models.
    pub info_every: Duration,
    /// The same after one that failed; no shorter than the scrape interval.
    pub info_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            scrape_timeout: Duration::from_secs(5),
            probe_timeout: Duration::from_secs(1),
            info_every: Duration::from_secs(300),
            info_retry: Duration::from_secs(10),
        }
    }
}

/// What all tasks share.
pub(super) struct Shared {
    pub(super) fetcher: Fetcher,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) watch: Arc<dyn Watch>,
    pub(super) timing: Timing,
    pub(super) permits: Semaphore,
}

/// The running fleet. Clones are handles to the same one; it stops when the
/// last one is dropped.
#[derive(Clone)]
pub struct Fleet {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    settings: Arc<ArcSwap<Settings>>,
    view: Arc<FleetView>,
    members: Mutex<BTreeMap<ReplicaId, Arc<Member>>>,
    root: CancellationToken,
    tasks: TaskTracker,
    runtime: Handle,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("replicas", &self.inner.members.lock().len()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.root.cancel();
    }
}

impl Fleet {
    /// Starts scraping every configured replica. Must be called inside a
    /// tokio runtime; the other methods may be called from anywhere.
    ///
    /// # Errors
    /// When a replica has an `https` URL and the system has no trusted
    /// certificates.
    pub fn start(
        settings: Arc<ArcSwap<Settings>>,
        sink: Arc<dyn Sink>,
        watch: Arc<dyn Watch>,
        timing: Timing,
    ) -> Result<Self, NoTls> {
        let fetcher = Fetcher::new(Target::all(&settings.load()).any(|target| target.needs_tls()))?;
        let permits = Semaphore::new(CONCURRENT_SCRAPES);
        let fleet = Self {
            inner: Arc::new(Inner {
                shared: Arc::new(Shared { fetcher, sink, watch, timing, permits }),
                settings,
                view: Arc::new(FleetView::default()),
                members: Mutex::new(BTreeMap::new()),
                root: CancellationToken::new(),
                tasks: TaskTracker::new(),
                runtime: Handle::current(),
            }),
        };
        fleet.reloaded();
        Ok(fleet)
    }

    /// The last word of every replica.
    #[must_use]
    pub fn view(&self) -> Arc<FleetView> {
        Arc::clone(&self.inner.view)
    }

    /// Asks `replica` whether it is there; the sink gets `ReplicaFound` or
    /// `ReplicaLost` within `Timing::probe_timeout`. While a probe of the same
    /// replica is in flight its answer counts for this call too. A replica
    /// that is not configured (any more) is not asked and gets no answer.
    pub fn probe(&self, replica: ReplicaId) {
        let known = self.inner.members.lock().contains_key(&replica);
        if !known {
            // The settings may be newer than our list.
            self.reloaded();
        }
        let member = self.inner.members.lock().get(&replica).cloned();
        if let Some(member) = member {
            self.inner.probe(&member);
        }
    }

    /// Scrapes `replica` now, unless a scrape of it is under way; the sink gets
    /// `ReplicaReported` when it answers.
    pub fn inspect(&self, replica: ReplicaId) {
        if let Some(member) = self.inner.members.lock().get(&replica) {
            member.inspect.notify_one();
        }
    }

    /// Tells `replica` to sleep or to wake; the sink gets `Rested`. A replica
    /// that is not configured (any more), or that changes meanwhile, gives no
    /// answer.
    pub fn order(&self, replica: ReplicaId, order: Order) {
        let member = self.inner.members.lock().get(&replica).cloned();
        if let Some(member) = member {
            let inner = &*self.inner;
            inner.spawn(&member, rest::obey(Arc::clone(&inner.shared), Arc::clone(&member), order));
        }
    }

    /// Call it when the settings have changed. The tasks of replicas that
    /// left or changed end, whatever they are doing, and report nothing more;
    /// a probe in flight starts again under the new settings.
    pub fn reloaded(&self) {
        let inner = &*self.inner;
        let mut members = inner.members.lock();
        if inner.root.is_cancelled() {
            return;
        }
        let settings = inner.settings.load();
        let mut targets: BTreeMap<_, _> =
            Target::all(&settings).map(|target| (target.replica, target)).collect();
        let mut probed = BTreeSet::new();
        members.retain(|replica, member| {
            if targets.get(replica) == Some(&member.target) {
                targets.remove(replica);
                return true;
            }
            member.token.cancel();
            inner.view.remove(*replica);
            if member.probing.in_flight() {
                probed.insert(*replica);
            }
            false
        });
        for (replica, target) in targets {
            let member = inner.join(target);
            if probed.contains(&replica) {
                inner.probe(&member);
            }
            members.insert(replica, member);
        }
    }

    /// Ends all tasks and waits for them. Nothing is reported afterwards.
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

impl Inner {
    fn join(&self, target: Target) -> Arc<Member> {
        let member = Arc::new(Member {
            cell: self.view.renew(target.replica),
            target,
            refresh: Notify::new(),
            inspect: Notify::new(),
            probing: Probing::default(),
            token: self.root.child_token(),
        });
        self.spawn(&member, scrape::run(Arc::clone(&self.shared), Arc::clone(&member)));
        member
    }

    fn probe(&self, member: &Arc<Member>) {
        if member.probing.begin() {
            self.spawn(member, probe::answer(Arc::clone(&self.shared), Arc::clone(member)));
        }
    }

    fn spawn(&self, member: &Member, task: impl Future<Output = ()> + Send + 'static) {
        let token = member.token.clone();
        let until_ended = async move {
            token.run_until_cancelled(task).await;
        };
        self.tasks.spawn_on(until_ended, &self.runtime);
    }
}
