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
use crate::engines::{EngineGauges, ModelInfo};
use crate::fleet::fetch::FetchError;

/// Last known status of every replica. Reading one status takes a short lock and copies one row.
#[derive(Debug, Default)]
pub struct FleetView {
    cells: RwLock<BTreeMap<ReplicaId, Arc<StatusCell>>>,
}

/// Last known status of one replica.
#[derive(Debug, Clone, Default)]
pub struct EngineStatus {
    /// Gauges of the last successful scrape.
    pub gauges: EngineGauges,
    /// Model info of the replica; absent until the replica has given it.
    pub info: Option<Arc<ModelInfo>>,
    /// Configured model names that the replica does not list.
    pub missing: Arc<[String]>,
    /// Number of scrapes that failed in a row; 0 when the last one succeeded or there was none.
    pub failures: u32,
    /// Problem of the last scrape, while `failures` is not 0.
    pub problem: Option<FetchError>,
    pub(super) gauges_at: Option<Instant>,
    /// First failed scrape, while none has succeeded.
    pub(super) unread_since: Option<Instant>,
    pub(super) sleep_orders: SleepOrders,
}

/// Sleep orders of a replica. A state that was read before an order was answered may be the state
/// before or after the order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SleepOrders {
    /// Orders that wait for their answer.
    pub(super) open: u32,
    /// Time of the last answer.
    pub(super) answered: Option<Instant>,
}

impl SleepOrders {
    /// Whether a state read from `began` on is later than every order, so that it shows changes by
    /// others.
    pub(super) fn settled_before(self, began: Instant) -> bool {
        self.open == 0 && self.answered.is_none_or(|at| at < began)
    }
}

impl EngineStatus {
    /// Age of `gauges`; absent when no scrape has succeeded.
    pub fn gauges_age(&self) -> Option<Duration> {
        self.gauges_at.map(|at| at.elapsed())
    }

    /// Time since the first failed scrape; absent once one has succeeded.
    pub fn unread_for(&self) -> Option<Duration> {
        self.unread_since.map(|at| at.elapsed())
    }

    /// Report of the replica to the scheduler. `fresh`: the gauges are from this moment. Older
    /// gauges are left out.
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
            cached_tokens: gauges.cached_tokens,
            asleep: gauges.asleep,
        }
    }
}

/// Row of one replica. A task that a reload ended holds a cell that the view no longer shows. The
/// task thus cannot spoil the row of its successor.
pub(super) type StatusCell = Mutex<EngineStatus>;

impl FleetView {
    /// Status of `replica`; absent when it is not configured.
    pub fn get(&self, replica: ReplicaId) -> Option<EngineStatus> {
        self.cells.read().get(&replica).map(|cell| cell.lock().clone())
    }

    /// Every configured replica, in the order of the ids.
    pub fn all(&self) -> Vec<(ReplicaId, EngineStatus)> {
        self.cells.read().iter().map(|(replica, cell)| (*replica, cell.lock().clone())).collect()
    }

    /// Largest context window, in tokens, that a replica of the pool reported for `model`. Absent
    /// while none has reported one.
    pub fn context_window(&self, settings: &Settings, model: ModelId, pool: PoolId) -> Option<u32> {
        let name = settings.edge.pools.get(pool)?.model_names.get(&model)?;
        let replicas = &settings.policy.pools.get(pool)?.replicas;
        let cells = self.cells.read();
        replicas.iter().filter_map(|replica| cells.get(replica)?.lock().info.as_ref()?.window(name)).max()
    }

    /// A new, empty row for `replica`.
    pub(super) fn insert_new(&self, replica: ReplicaId) -> Arc<StatusCell> {
        let cell = Arc::new(StatusCell::default());
        self.cells.write().insert(replica, Arc::clone(&cell));
        cell
    }

    pub(super) fn remove(&self, replica: ReplicaId) {
        self.cells.write().remove(&replica);
    }
}
