//! Signal cache: the scale signal of all pools at one moment, and limits on the streams that read it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::cluster::SharedReports;
use crate::config::settings::Settings;
use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::scaler::answer::answer;
use crate::scaler::history::ScaleHistory;
use crate::scaler::peers::{PeerExchange, PeerState};
pub(super) use crate::scaler::pool_signal::PoolSignal;
use crate::scaler::trigger::{TriggerError, TriggerQuery};
use crate::telemetry::Telemetry;
use crate::telemetry::event::ScalerKeyUnknown;

/// Most unknown trigger keys whose first use is remembered.
const MAX_UNKNOWN_KEYS: usize = 100;

/// Scale signals of all pools at one moment.
#[derive(Debug, Clone)]
pub struct SignalView {
    /// Time of the last refresh.
    pub(super) as_of: Instant,
    /// Signals by pool name.
    pub(super) pools: BTreeMap<String, PoolSignal>,
    /// State of the peer exchange; absent without `cluster` and `scale.peers`.
    pub(super) peers: Option<PeerState>,
}

impl SignalView {
    /// Replica demand of every pool.
    pub fn demands(&self) -> impl Iterator<Item = ReplicaDemand> {
        self.pools.values().map(|row| row.demand)
    }
}

/// Reasons why a pool has no signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingSignal {
    /// The pool was added to the configuration after the last refresh.
    NotYetKnown,
    /// The last refresh is longer ago than `scale.stale_after`; the age is given.
    Stale(Duration),
    /// Too many peers are silent.
    PeersSilent { silent: usize, known: usize },
    /// The store through which the peers report has not answered for long enough.
    StoreSilent,
}

impl fmt::Display for MissingSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYetKnown => f.write_str("what the pool needs is not known yet"),
            Self::Stale(age) => write!(f, "what is known is {} s old (scale.stale_after)", age.as_secs()),
            Self::PeersSilent { silent, known } => {
                write!(f, "{silent} of {known} gateways cannot be heard")
            }
            Self::StoreSilent => f.write_str(
                "what other gateways see is not known: the store has not answered for long enough (cluster)",
            ),
        }
    }
}

/// Signal cache: the last refresh, and what all its readers share.
#[derive(Debug)]
pub struct SignalCache {
    view: watch::Sender<Arc<SignalView>>,
    settings: Arc<ArcSwap<Settings>>,
    pub(super) telemetry: Telemetry,
    /// Set when all streams are to end without an error.
    ending: watch::Sender<bool>,
    /// Permits of streams that may still be opened.
    pub(super) streams: Arc<Semaphore>,
    unknown_keys: Mutex<BTreeSet<String>>,
    pub(super) history: Mutex<ScaleHistory>,
    /// Exchange with the peers; absent without `cluster` and `scale.peers`.
    pub(super) exchange: Option<Arc<PeerExchange>>,
}

impl SignalCache {
    /// An empty cache.
    pub fn new(settings: Arc<ArcSwap<Settings>>, telemetry: Telemetry) -> Arc<Self> {
        let now = settings.load_full();
        let (max, has_store) = (now.scale.max_streams, now.cluster.is_some());
        let has_peers = has_store || now.scale.peers.is_some();
        let nothing = SignalView { as_of: Instant::now(), pools: BTreeMap::new(), peers: None };
        let exchange = has_peers.then(|| PeerExchange::new(telemetry.clone(), has_store));
        Arc::new(Self {
            view: watch::Sender::new(Arc::new(nothing)),
            settings,
            telemetry,
            ending: watch::Sender::new(false),
            streams: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))),
            unknown_keys: Mutex::default(),
            history: Mutex::default(),
            exchange,
        })
    }

    /// The last refresh.
    pub fn view(&self) -> Arc<SignalView> {
        Arc::clone(&self.view.borrow())
    }

    pub(super) fn publish(&self, view: SignalView) {
        self.history.lock().sample(&view.pools, view.as_of);
        self.view.send_replace(Arc::new(view));
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<SignalView>> {
        self.view.subscribe()
    }

    /// The demand reports of this gateway and the others, for an exchange through a store; absent without
    /// `cluster`.
    pub fn shared_reports(&self) -> Option<Arc<dyn SharedReports>> {
        let exchange = self.exchange.as_ref().filter(|exchange| exchange.has_store())?;
        Some(Arc::<PeerExchange>::clone(exchange))
    }

    /// Ends all streams without an error. A stream opened later ends after its first message.
    pub fn end_streams(&self) {
        self.ending.send_replace(true);
    }

    pub(super) fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Reads a trigger's keys. Each unknown key is logged once.
    pub(super) fn parse_query<'a>(
        &self,
        keys: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<TriggerQuery, TriggerError> {
        let ask = TriggerQuery::read(keys, &self.settings.load().policy)?;
        for key in &ask.unknown_keys {
            let mut odd = self.unknown_keys.lock();
            if odd.len() < MAX_UNKNOWN_KEYS && odd.insert(key.clone()) {
                ScalerKeyUnknown { key }.emit(&self.telemetry);
            }
        }
        Ok(ask)
    }

    /// The pool's signal, unless the last refresh is too old or does not have the pool.
    pub(super) fn signal(&self, pool: &str, now: Instant) -> Result<PoolSignal, MissingSignal> {
        let (view, limit) = (self.view(), self.settings.load().scale.stale_after);
        let age = now.saturating_duration_since(view.as_of);
        if age > limit {
            return Err(MissingSignal::Stale(age));
        }
        view.pools.get(pool).copied().ok_or(MissingSignal::NotYetKnown)
    }

    /// Whether the pool is active. One gateway that reports work makes the pool active. That the
    /// pool is idle is only certain when enough peers are heard.
    pub(super) fn activity(
        &self,
        ask: &TriggerQuery,
        now: Instant,
    ) -> Result<(bool, PoolSignal), MissingSignal> {
        let row = self.signal(&ask.pool, now)?;
        let active = answer(ask, &row, now).active;
        match self.missing_peers() {
            Some(alone) if !active => Err(alone),
            _ => Ok((active, row)),
        }
    }

    /// The reason, when too few peers are heard to know the demand of all gateways.
    pub(super) fn missing_peers(&self) -> Option<MissingSignal> {
        let peers = self.view().peers.filter(|peers| peers.is_isolated)?;
        if peers.lacks_store {
            return Some(MissingSignal::StoreSilent);
        }
        Some(MissingSignal::PeersSilent { silent: peers.count.silent, known: peers.count.known })
    }
}
