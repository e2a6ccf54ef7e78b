//! Fleet view: the last known status of every replica, for the admin pages, the metrics and the
//! model list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::config::settings::Settings;
use crate::core::model::event::ReplicaReport;
use crate::core::model::ids::{ModelId, PoolId, ReplicaId};
use crate::fleet::engine::{EngineGauges, ModelInfo};
use crate::fleet::fetch::FetchError;

/// The last word of every replica. Reading it takes a short lock and copies
/// one row.
#[derive(Debug, Default)]
pub struct FleetView {
    cells: RwLock<BTreeMap<ReplicaId, Arc<StatusCell>>>,
}

/// What is known of one replica.
#[derive(Debug, Clone, Default)]
pub struct EngineStatus {
    /// Its last metrics.
    pub gauges: EngineGauges,
    /// What it said of itself and its models, if it did.
    pub info: Option<Arc<ModelInfo>>,
    /// Configured names that it does not list.
    pub missing: Arc<[String]>,
    /// Scrapes that failed in a row; 0 when the last one succeeded or there
    /// was none.
    pub failures: u32,
    /// Why the last scrape failed, while `failures` is not 0.
    pub problem: Option<FetchError>,
    pub(super) gauges_at: Option<Instant>,
    pub(super) told: SleepOrders,
}

/// Orders to sleep or to wake: what was read before one was answered may show
/// either state, whoever brought it about.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SleepOrders {
    /// Orders that wait for their answer.
    pub(super) open: u32,
    /// When the last answer came.
    pub(super) answered: Option<Instant>,
}

impl SleepOrders {
    /// Whether something read from `began` on says what others did.
    pub(super) fn is_before(self, began: Instant) -> bool {
        self.open == 0 && self.answered.is_none_or(|at| at < began)
    }
}

impl EngineStatus {
    /// Age of `gauges`; absent when it was never scraped.
    #[must_use]
    pub fn gauges_age(&self) -> Option<Duration> {
        self.gauges_at.map(|at| at.elapsed())
    }

    /// Its report to the core. `fresh`: the gauges are from this very moment;
    /// older ones are left out.
    #[must_use]
    pub fn report(&self, fresh: bool) -> ReplicaReport {
        let gauges = if fresh { self.gauges } else { EngineGauges::default() };
        let info = self.info.as_deref();
        ReplicaReport {
            running: gauges.running,
            waiting: gauges.waiting,
            kv_usage: gauges.kv_usage,
            slots: gauges.slots.or_else(|| info?.slots),
            kv_tokens: gauges.kv_tokens,
            max_model_len: info.and_then(|info| info.max_model_len),
            progress: gauges.progress,
            asleep: gauges.asleep,
        }
    }
}

/// The row of one replica. Tasks that a reload ended hold a cell that the
/// view no longer shows, so they cannot spoil the row of their successors.
pub(super) type StatusCell = Mutex<EngineStatus>;

impl FleetView {
    /// What is known of `replica`; absent when it is not configured.
    #[must_use]
    pub fn get(&self, replica: ReplicaId) -> Option<EngineStatus> {
        self.cells.read().get(&replica).map(|cell| cell.lock().clone())
    }

    /// Every configured replica, in the order of the ids.
    #[must_use]
    pub fn all(&self) -> Vec<(ReplicaId, EngineStatus)> {
        self.cells.read().iter().map(|(replica, cell)| (*replica, cell.lock().clone())).collect()
    }

    /// The largest context window, in tokens, that any replica of the pool said
    /// it has for `model`; absent while none said one.
    #[must_use]
    pub fn window(&self, settings: &Settings, model: ModelId, pool: PoolId) -> Option<u32> {
        let name = settings.edge.pools.get(pool)?.model_names.get(&model)?;
        let replicas = &settings.policy.pools.get(pool)?.replicas;
        let cells = self.cells.read();
        replicas.iter().filter_map(|replica| cells.get(replica)?.lock().info.as_ref()?.window(name)).max()
    }

    /// A new, empty row for `replica`.
    pub(super) fn renew(&self, replica: ReplicaId) -> Arc<StatusCell> {
        let cell = Arc::new(StatusCell::default());
        self.cells.write().insert(replica, Arc::clone(&cell));
        cell
    }

    pub(super) fn remove(&self, replica: ReplicaId) {
        self.cells.write().remove(&replica);
    }
}
