//! Control of a running engine, in process and over HTTP.
//!
//! * `GET /sim/state`: [`SimState`] as JSON.
//! * `GET /sim/faults`: the active faults; `POST` adds one and answers
//!   `{"id":1}`; `DELETE` removes all, with `?id=1` one.
//! * `POST /sim/terminate`: [`Terminate`], such as `{"mode":"sigterm"}` or
//!   `{"mode":"restart","down_ms":500}`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::feed::{Failure, FeedEnd};
use crate::faults::{ActiveFault, Fault, FaultError, FaultId, FaultKind, read_tagged};
use crate::server::core::{ServerCore, ServerPhase};
use crate::server::http::body::SimBody;
use crate::server::http::call::ServerCall;
use crate::server::http::reply;

/// Path at which a cloud announces a spot reclaim to its machines; 404 before
/// the notice.
pub(super) const SPOT_PATH: &str = "/latest/meta-data/spot/instance-action";

/// Present load of the engine, and totals since its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimState {
    /// Running sequences.
    pub running: u64,
    /// Waiting sequences of the engine, and requests held while paused.
    pub waiting: u64,
    /// Requests inside, in any phase.
    pub inside: u64,
    /// Requests accepted since the start.
    pub total: u64,
    /// Requests whose client left before their end.
    pub cancelled: u64,
    /// Sequences that finished.
    pub finished: u64,
    /// Sequences that lost their KV blocks.
    pub preemptions: u64,
    /// Prompt tokens of scheduled sequences, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    /// LoRA adapters loaded into slots.
    pub adapter_loads: u64,
    /// KV blocks in use.
    pub kv_blocks_used: u64,
    /// Milliseconds in which the engine computed since its start, in the
    /// engine's own time.
    #[serde(default)]
    pub busy_ms: u64,
    /// Open connections.
    pub connections: u64,
    /// Whether the port accepts connections.
    pub listening: bool,
    /// Whether the engine takes new work.
    pub serving: bool,
}

/// End of the engine's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum Terminate {
    /// vLLM's default: every request ends with `abort` at once, and the port
    /// closes a quarter of a second later.
    Sigterm,
    /// `--shutdown-timeout`: requests inside go on for the grace, new work gets
    /// 500, health stays 200; then as with `sigterm`.
    Drain {
        /// Length of the grace, in milliseconds.
        grace_ms: u64,
    },
    /// EngineCore dies: error events, then a closed port.
    KillEngine,
    /// The only API server dies: every connection ends without a last chunk.
    KillServer,
    /// The port closes; open streams stay open and silent.
    Hang,
    /// Every connection ends, the port refuses connections, then a fresh engine
    /// starts.
    Restart {
        /// Time for which the port refuses connections, in milliseconds.
        down_ms: u64,
    },
}

impl Terminate {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// When a field is unknown, missing or of the wrong type; the error names it.
    pub fn from_json(body: &[u8]) -> Result<Self, FaultError> {
        match serde_json::from_slice(body)? {
            Value::Object(fields) => read_tagged(fields),
            _ => Err(FaultError::Shape),
        }
    }
}

/// Controls one engine; cheap to clone.
#[derive(Debug, Clone)]
pub struct SimControl {
    sim: Arc<ServerCore>,
}

impl SimControl {
    pub(super) fn new(sim: Arc<ServerCore>) -> Self {
        Self { sim }
    }

    /// Adds a fault.
    ///
    /// # Errors
    /// When one of its values is out of range.
    pub fn add(&self, fault: impl Into<Fault>) -> Result<FaultId, FaultError> {
        let fault = fault.into();
        fault.check()?;
        let sim = &self.sim;
        if let FaultKind::SpotNotice { grace_ms } = fault.kind {
            *sim.spot_notice.lock() = Some(sim.unix() + grace_ms / 1000);
            self.run_after(Duration::from_millis(grace_ms), |control| control.terminate(Terminate::Sigterm));
        }
        if matches!(fault.kind, FaultKind::FrozenMetrics) {
            *sim.last_metrics.lock() = None;
        }
        let duration = fault.duration_ms.filter(|_| fault.kind.is_state()).map(Duration::from_millis);
        let id = sim.faults.add(fault, sim.now());
        sim.apply_faults();
        if let Some(duration) = duration {
            self.run_after(duration + Duration::from_millis(1), |control| control.sim.apply_faults());
        }
        Ok(id)
    }

    /// Removes one fault; false when there was no such fault.
    pub fn remove(&self, id: FaultId) -> bool {
        let removed = self.sim.faults.remove(id);
        self.sim.apply_faults();
        removed
    }

    /// Removes every fault.
    pub fn clear(&self) {
        self.sim.faults.clear();
        self.sim.apply_faults();
    }

    pub fn faults(&self) -> Vec<ActiveFault> {
        self.sim.faults.list(self.sim.now())
    }

    pub fn state(&self) -> SimState {
        let sim = &self.sim;
        let work = sim.work.lock();
        let (gauges, counters) = (work.engine.gauges(), work.engine.counters());
        SimState {
            running: gauges.running,
            waiting: gauges.waiting + work.held.len() as u64,
            inside: work.inside,
            total: sim.total.load(Ordering::Relaxed),
            cancelled: sim.cancelled.load(Ordering::Relaxed),
            finished: counters.finished,
            preemptions: counters.preemptions,
            prompt_tokens: counters.prompt_tokens,
            cached_tokens: counters.cached_tokens,
            generated_tokens: counters.generated_tokens,
            adapter_loads: counters.adapter_loads,
            kv_blocks_used: gauges.blocks_used,
            busy_ms: u64::try_from(work.busy.as_millis()).unwrap_or(u64::MAX),
            connections: sim.connections.load(Ordering::Relaxed),
            listening: *sim.listening.borrow(),
            serving: work.phase == ServerPhase::Serving,
        }
    }

    /// Ends the engine's process in one of the ways in which real processes
    /// end.
    pub fn terminate(&self, how: Terminate) {
        match how {
            Terminate::Sigterm => {
                self.leave(ServerPhase::Draining, Some(&FeedEnd::Aborted));
                self.run_after(Duration::from_millis(250), Self::close);
                self.run_after(Duration::from_millis(1800), |control| control.sim.cut_connections());
            }
            Terminate::Drain { grace_ms } => {
                self.leave(ServerPhase::Draining, None);
                self.run_after(Duration::from_millis(grace_ms), |control| {
                    control.terminate(Terminate::Sigterm);
                });
            }
            Terminate::KillEngine => {
                self.leave(ServerPhase::Dead, Some(&FeedEnd::Failed(Failure::ENGINE_DEAD)));
                self.run_after(Duration::from_millis(100), Self::close);
            }
            Terminate::KillServer => {
                self.halt();
                self.sim.cut_connections();
            }
            Terminate::Hang => self.halt(),
            Terminate::Restart { down_ms } => {
                self.terminate(Terminate::KillServer);
                self.run_after(Duration::from_millis(down_ms), |control| control.sim.reset());
            }
        }
    }

    fn leave(&self, phase: ServerPhase, end: Option<&FeedEnd>) {
        self.sim.work.lock().phase = phase;
        if let Some(end) = end {
            self.sim.end_requests(None, end);
        }
    }

    /// Ends all work at once, and closes the port.
    fn halt(&self) {
        self.leave(ServerPhase::Dead, None);
        self.sim.work.lock().halted = true;
        self.close();
    }

    fn close(&self) {
        self.sim.work.lock().closed = true;
        self.sim.apply_faults();
    }

    fn run_after(&self, delay: Duration, act: impl FnOnce(&Self) + Send + 'static) {
        let control = self.clone();
        self.sim.runtime.spawn(async move {
            let stopped = control.sim.stopped.clone();
            if stopped.run_until_cancelled(sleep(delay)).await.is_some() {
                act(&control);
            }
        });
    }
}

/// Answers a request for a control path.
pub(super) fn answer(call: &ServerCall) -> Response<SimBody> {
    let control = SimControl::new(Arc::clone(&call.sim));
    match (call.path.as_str(), &call.method) {
        (SPOT_PATH, &Method::GET) => match *call.sim.spot_notice.lock() {
            Some(at) => reply::value(200, &json!({"action": "terminate", "time": at})),
            None => reply::empty(404),
        },
        ("/sim/state", &Method::GET) => encoded(&control.state()),
        ("/sim/faults", &Method::GET) => encoded(&control.faults()),
        ("/sim/faults", &Method::POST) => {
            match Fault::from_json(&call.body).and_then(|fault| control.add(fault)) {
                Ok(id) => reply::value(200, &json!({"id": id})),
                Err(error) => reply::value(400, &json!({"error": error.to_string()})),
            }
        }
        ("/sim/faults", &Method::DELETE) => remove(call, &control),
        ("/sim/terminate", &Method::POST) => match Terminate::from_json(&call.body) {
            Ok(how) => {
                control.terminate(how);
                reply::value(200, &json!({}))
            }
            Err(error) => reply::value(400, &json!({"error": error.to_string()})),
        },
        _ => reply::value(404, &json!({"error": "no such control path or method"})),
    }
}

fn remove(call: &ServerCall, control: &SimControl) -> Response<SimBody> {
    let Some(id) = call.query("id") else {
        control.clear();
        return reply::value(200, &json!({}));
    };
    match id.parse() {
        Ok(id) if control.remove(id) => reply::value(200, &json!({})),
        _ => reply::value(404, &json!({"error": "id names no active fault"})),
    }
}

fn encoded(body: &impl Serialize) -> Response<SimBody> {
    match serde_json::to_vec(body) {
        Ok(bytes) => reply::json(200, bytes),
        Err(error) => reply::value(500, &json!({"error": error.to_string()})),
    }
}
