//! Discovery of replicas that the configuration file does not list: one task for each pool that has
//! a source. The last answer of a source stays in force until the next one.

pub mod addresses;
mod dns;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod pause;
mod resolver;
mod source_status;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::discover::ReplicaSource;
use crate::config::load::merge::FoundEndpoints;
use crate::config::settings::Settings;
use crate::core::model::ids::PoolId;
use crate::telemetry::Telemetry;

pub use crate::fleet::discovery::source_status::SourceStatus;

use crate::fleet::discovery::source_status::{SourceReporter, SourceStatuses};

/// Shortest time between two sets of replicas from [`DiscoverySources::next`].
const MIN_SET_INTERVAL: Duration = Duration::from_millis(200);

/// Running replica sources. Clones are handles to the same sources, which stop when the last handle
/// is dropped.
#[derive(Clone)]
pub struct DiscoverySources {
    inner: Arc<SourcesState>,
}

struct SourcesState {
    settings: Arc<ArcSwap<Settings>>,
    statuses: Arc<SourceStatuses>,
    telemetry: Telemetry,
    running: Mutex<BTreeMap<PoolId, RunningSource>>,
    /// Earliest time of the next set.
    next_set: Mutex<Instant>,
    root: CancellationToken,
    tasks: TaskTracker,
    runtime: Handle,
}

struct RunningSource {
    source: ReplicaSource,
    token: CancellationToken,
}

impl fmt::Debug for DiscoverySources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("pools", &self.inner.running.lock().len()).finish_non_exhaustive()
    }
}

impl Drop for SourcesState {
    fn drop(&mut self) {
        self.root.cancel();
    }
}

impl DiscoverySources {
    /// Starts to ask every configured source. The call needs a tokio runtime; the other methods may
    /// be called from anywhere.
    pub fn start(settings: Arc<ArcSwap<Settings>>, telemetry: Telemetry) -> Self {
        let sources = Self {
            inner: Arc::new(SourcesState {
                settings,
                statuses: Arc::default(),
                telemetry,
                running: Mutex::default(),
                next_set: Mutex::new(Instant::now()),
                root: CancellationToken::new(),
                tasks: TaskTracker::new(),
                runtime: Handle::current(),
            }),
        };
        sources.apply_settings();
        sources
    }

    /// Applies new settings. A source that changed starts anew. The last answer of its predecessor
    /// stays in force until the new source answers.
    pub fn apply_settings(&self) {
        let inner = &*self.inner;
        let mut running = inner.running.lock();
        if inner.root.is_cancelled() {
            return;
        }
        let settings = inner.settings.load();
        let pools = settings.edge.pools.iter();
        let mut wanted: BTreeMap<PoolId, &ReplicaSource> =
            pools.filter_map(|(pool, _, row)| Some((pool, &row.discover.as_ref()?.source))).collect();
        inner.statuses.retain(|pool| wanted.contains_key(&pool));
        running.retain(|pool, running| {
            let same = wanted.get(pool) == Some(&&running.source);
            if same {
                wanted.remove(pool);
            } else {
                inner.statuses.with_lock(|| running.token.cancel());
            }
            same
        });
        for (pool, source) in wanted {
            let token = inner.root.child_token();
            let reporter =
                SourceReporter::new(pool, source.name(), &inner.statuses, &inner.telemetry, &token);
            inner.spawn(source.clone(), reporter, token.clone());
            running.insert(pool, RunningSource { source: source.clone(), token });
        }
    }

    /// Waits until a source has a new answer, and returns the endpoints of all sources. Returns at
    /// most five times a second: answers in between are merged.
    pub async fn next(&self) -> FoundEndpoints {
        let earliest = *self.inner.next_set.lock();
        sleep_until(earliest).await;
        self.inner.statuses.changed().await;
        *self.inner.next_set.lock() = Instant::now() + MIN_SET_INTERVAL;
        self.inner.statuses.found()
    }

    /// Status of every source.
    pub fn statuses(&self) -> Vec<SourceStatus> {
        self.inner.statuses.views()
    }

    /// Ends all tasks and waits for them.
    pub async fn stop(&self) {
        {
            let mut running = self.inner.running.lock();
            self.inner.root.cancel();
            running.clear();
        }
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

impl SourcesState {
    fn spawn(&self, source: ReplicaSource, reporter: SourceReporter, token: CancellationToken) {
        let asking = async move {
            match source {
                ReplicaSource::Dns(dns) => {
                    let resolver = resolver::SystemResolver::new(dns.clone());
                    dns::run(&dns, &reporter, || resolver.ask()).await;
                }
                #[cfg(feature = "kubernetes")]
                ReplicaSource::Kubernetes(rules) => kubernetes::run(&rules, &reporter).await,
                #[cfg(not(feature = "kubernetes"))]
                ReplicaSource::Kubernetes(_) => reporter.lost("this program was built without Kubernetes"),
            }
        };
        let until_ended = async move {
            token.run_until_cancelled(asking).await;
        };
        self.tasks.spawn_on(until_ended, &self.runtime);
    }
}
