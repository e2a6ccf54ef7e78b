//! Shared state of one simulated engine.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::feed::{Failure, FeedEnd, TokenFeed};
use super::options::SimOptions;
use super::stats::Stats;
use crate::engine::{EngineRequest, RequestId, SimCounters, SimEngine, SimGauges};
use crate::faults::{FaultBoard, FaultKind};
pub(crate) use crate::server::target::SequenceTarget;
use penstock_core::model::time::Tick;

/// Whether the engine takes new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerPhase {
    Serving,
    Draining,
    Dead,
}

/// One engine request of a client's request.
#[derive(Debug)]
pub(crate) struct PlannedSequence {
    pub(crate) request: EngineRequest,
    /// Whether the request ends with a stop token rather than at its limit.
    pub(crate) stops: bool,
}

/// Snapshot that `/metrics` shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MetricsView {
    pub(crate) gauges: SimGauges,
    pub(crate) counters: SimCounters,
    pub(crate) asleep: bool,
}

/// State behind the core's one lock.
#[derive(Debug)]
pub(crate) struct SimWork {
    pub(crate) engine: SimEngine,
    pub(crate) targets: HashMap<RequestId, SequenceTarget>,
    pub(crate) stats: Stats,
    pub(crate) phase: ServerPhase,
    /// Snapshot that `/metrics` shows while the engine process hangs.
    pub(crate) frozen: Option<MetricsView>,
    /// Whether new requests are held back.
    pub(crate) holds_new: bool,
    pub(crate) paused: bool,
    pub(crate) asleep: bool,
    /// Whether the process hangs for good or is gone: no step ends any more.
    pub(crate) halted: bool,
    /// Whether the port is closed, for good.
    pub(crate) closed: bool,
    /// Requests held in the API server while it is paused or asleep.
    pub(crate) held: Vec<EngineRequest>,
    /// Requests (not sequences) inside.
    pub(crate) inside: u64,
    /// Total length of the steps.
    pub(crate) busy: Duration,
    /// Number of restarts.
    generation: u64,
}

impl SimWork {
    fn new(options: &SimOptions) -> Self {
        let mut engine = SimEngine::new(options.profile, options.engine);
        engine.set_slowness(1.0 / options.speed);
        Self {
            engine,
            targets: HashMap::new(),
            stats: Stats::default(),
            phase: ServerPhase::Serving,
            frozen: None,
            holds_new: false,
            paused: false,
            asleep: false,
            halted: false,
            closed: false,
            held: Vec::new(),
            inside: 0,
            busy: Duration::ZERO,
            generation: 0,
        }
    }

    pub(crate) fn engine_is_busy(&self) -> bool {
        let gauges = self.engine.gauges();
        gauges.running + gauges.waiting > 0
    }

    pub(crate) fn is_still(&self) -> bool {
        self.frozen.is_some() || self.paused || self.asleep || self.halted
    }

    pub(crate) fn view(&self) -> MetricsView {
        let now = MetricsView {
            gauges: self.engine.gauges(),
            counters: self.engine.counters(),
            asleep: self.asleep,
        };
        self.frozen.unwrap_or(now)
    }
}

#[derive(Debug)]
pub(crate) struct ServerCore {
    pub(crate) options: SimOptions,
    pub(crate) addr: SocketAddr,
    pub(crate) work: Mutex<SimWork>,
    pub(crate) faults: FaultBoard,
    /// Wakes the stepping task.
    pub(crate) stepping: Notify,
    /// Whether the port accepts connections.
    pub(crate) listening: watch::Sender<bool>,
    pub(crate) stopped: CancellationToken,
    /// Token that is cancelled when every open connection is to end.
    connections_token: Mutex<CancellationToken>,
    started: Instant,
    /// Runtime for delayed actions, whichever thread asks for them.
    pub(crate) runtime: Handle,
    next_id: AtomicU64,
    pub(crate) total: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) connections: AtomicU64,
    /// Exposition text that `frozen_metrics` repeats.
    pub(crate) last_metrics: Mutex<Option<String>>,
    pub(crate) spot_notice: Mutex<Option<u64>>,
}

/// Reason for refusing work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The engine failed.
    Failed(Failure),
    /// The request exceeds the KV cache.
    TooLarge,
}

impl ServerCore {
    pub(crate) fn new(options: SimOptions, addr: SocketAddr) -> Self {
        Self {
            work: Mutex::new(SimWork::new(&options)),
            faults: FaultBoard::new(options.seed),
            addr,
            stepping: Notify::new(),
            listening: watch::Sender::new(true),
            stopped: CancellationToken::new(),
            connections_token: Mutex::new(CancellationToken::new()),
            started: Instant::now(),
            runtime: Handle::current(),
            next_id: AtomicU64::new(1),
            total: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            last_metrics: Mutex::new(None),
            spot_notice: Mutex::new(None),
            options,
        }
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Tick {
        Tick::ZERO + self.started.elapsed()
    }

    /// The runtime's clock at `tick`.
    pub(crate) fn instant(&self, tick: Tick) -> Instant {
        self.started + tick.since(Tick::ZERO)
    }

    /// Unix seconds, for `created` fields.
    pub(crate) fn unix(&self) -> u64 {
        self.options.epoch + self.started.elapsed().as_secs()
    }

    /// A request id that was not used before.
    pub(crate) fn fresh_id(&self) -> RequestId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Token that is cancelled when every connection open now is to end.
    pub(crate) fn connections_token(&self) -> CancellationToken {
        self.connections_token.lock().clone()
    }

    /// Ends every open connection.
    pub(crate) fn cut_connections(&self) {
        std::mem::replace(&mut *self.connections_token.lock(), CancellationToken::new()).cancel();
    }

    /// Applies the active faults to the engine's speed, its freeze and the
    /// listener.
    pub(crate) fn apply_faults(&self) {
        let now = self.now();
        let slow = self.faults.state(now, |kind| match kind {
            FaultKind::Slow { factor } => Some(*factor),
            _ => None,
        });
        let frozen = self.faults.state(now, |kind| matches!(kind, FaultKind::Freeze).then_some(()));
        let refuse = self.faults.state(now, |kind| matches!(kind, FaultKind::Refuse).then_some(()));
        let mut work = self.work.lock();
        work.engine.set_slowness(slow.unwrap_or(1.0) / self.options.speed);
        work.frozen = frozen.map(|()| work.view());
        let open = refuse.is_none() && !work.closed;
        drop(work);
        self.listening.send_if_modified(|listening| std::mem::replace(listening, open) != open);
        self.stepping.notify_one();
    }

    /// Queues the parts of one request. All parts report to one feed, in order.
    pub(crate) fn submit(
        self: &Arc<Self>,
        name: &Arc<str>,
        parts: Vec<PlannedSequence>,
    ) -> Result<SimTicket, Refused> {
        let now = self.now();
        let draining = self.faults.state(now, |kind| matches!(kind, FaultKind::Drain).then_some(()));
        let mut work = self.work.lock();
        match work.phase {
            ServerPhase::Dead => return Err(Refused::Failed(Failure::ENGINE_DEAD)),
            ServerPhase::Draining => return Err(Refused::Failed(Failure::DRAINING)),
            ServerPhase::Serving if draining.is_some() => return Err(Refused::Failed(Failure::DRAINING)),
            ServerPhase::Serving => {}
        }
        if self.options.vllm.max_queued_reqs.is_some_and(|limit| work.inside >= u64::from(limit)) {
            work.stats.rejected += 1;
            return Err(Refused::Failed(Failure::BUSY));
        }
        let choices = parts.iter().map(|part| part.request.n.max(1) as usize).sum();
        let feed = Arc::new(TokenFeed::new(now, choices));
        let mut ids = SmallVec::new();
        let mut base = 0;
        for PlannedSequence { request, stops } in parts {
            let (id, choices) = (request.id, request.n.max(1) as usize);
            let prompt_tokens = request.prompt_tokens;
            if work.holds_new || work.asleep {
                work.held.push(request);
            } else if work.engine.submit(request).is_err() {
                work.withdraw(&ids);
                return Err(Refused::TooLarge);
            }
            let target = SequenceTarget {
                feed: Arc::clone(&feed),
                base,
                choices,
                prompt_tokens,
                stops,
                name: Arc::clone(name),
            };
            work.targets.insert(id, target);
            ids.push(id);
            base += choices;
        }
        work.inside += 1;
        let generation = work.generation;
        drop(work);
        self.total.fetch_add(1, Ordering::Relaxed);
        self.stepping.notify_one();
        Ok(SimTicket { sim: Arc::clone(self), ids, feed, generation })
    }

    /// Ends every request early, or only those with one of the names.
    pub(crate) fn end_requests(&self, names: Option<&[&str]>, end: &FeedEnd) -> usize {
        let mut work = self.work.lock();
        let chosen: Vec<(RequestId, Arc<TokenFeed>)> = work
            .targets
            .iter()
            .filter(|(_, target)| names.is_none_or(|names| names.contains(&&*target.name)))
            .map(|(id, target)| (*id, Arc::clone(&target.feed)))
            .collect();
        let ids: SmallVec<[RequestId; 1]> = chosen.iter().map(|(id, _)| *id).collect();
        work.withdraw(&ids);
        if *end == FeedEnd::Aborted {
            work.stats.aborted += ids.len() as u64;
        }
        drop(work);
        for (_, feed) in &chosen {
            feed.end(end.clone());
        }
        chosen.len()
    }

    /// Drops all state, as a new process would.
    pub(crate) fn reset(&self) {
        let mut work = self.work.lock();
        let generation = work.generation + 1;
        *work = SimWork { generation, ..SimWork::new(&self.options) };
        drop(work);
        *self.last_metrics.lock() = None;
        *self.spot_notice.lock() = None;
        self.apply_faults();
    }
}

impl SimWork {
    /// Takes requests out of the engine; true when at least one was still
    /// there.
    fn withdraw(&mut self, ids: &[RequestId]) -> bool {
        let mut found = false;
        for id in ids {
            if self.targets.remove(id).is_some() {
                found = true;
                self.engine.cancel(*id);
                self.held.retain(|held| held.id != *id);
            }
        }
        found
    }
}

/// A request inside the engine. Dropping the ticket cancels what is left of the
/// request.
#[derive(Debug)]
pub(crate) struct SimTicket {
    sim: Arc<ServerCore>,
    ids: SmallVec<[RequestId; 1]>,
    pub(crate) feed: Arc<TokenFeed>,
    generation: u64,
}

impl Drop for SimTicket {
    fn drop(&mut self) {
        let mut work = self.sim.work.lock();
        if work.generation != self.generation {
            return;
        }
        work.inside = work.inside.saturating_sub(1);
        if work.withdraw(&self.ids) {
            self.sim.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}
