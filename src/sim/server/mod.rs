//! Simulated engine over HTTP/1.1 in real time.
//!
//! One task steps the engine model. Each connection has a task of its own that
//! turns the tokens of its request into events. Closing a connection cancels
//! its request at once. `/sim/state`, `/sim/faults` and `/sim/terminate`
//! control the server (see [`crate::faults`]).

mod control;
mod core;
mod feed;
pub mod http;
mod listener;
mod options;
mod stats;
mod stepper;
mod target;
#[cfg(test)]
mod tests;
mod text;
mod tgi;
mod vllm;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;

pub use self::control::{SimControl, SimState, Terminate};
pub use self::options::{ServerDialect, SimConnections, SimOptions, Tasks, VllmFlags};

use crate::server::core::ServerCore;

/// Starts simulated engines.
#[derive(Debug)]
pub struct SimServer;

impl SimServer {
    /// Starts one engine; it accepts connections when this returns.
    ///
    /// # Errors
    /// When an address cannot be bound.
    pub async fn start(options: SimOptions) -> io::Result<SimHandle> {
        let port = listener::HeldPort::bind(options.listen)?;
        let control = match options.connections.control {
            Some(addr) => Some(tokio::net::TcpListener::bind(addr).await?),
            None => None,
        };
        let control_addr = control.as_ref().map(tokio::net::TcpListener::local_addr).transpose()?;
        let listener = port.listen()?;
        let sim = Arc::new(ServerCore::new(options, port.addr));
        let mut tasks = JoinSet::new();
        tasks.spawn(stepper::run(Arc::clone(&sim)));
        tasks.spawn(listener::accept(Arc::clone(&sim), port, listener));
        if let Some(control) = control {
            tasks.spawn(listener::accept_control(Arc::clone(&sim), control));
        }
        Ok(SimHandle { addr: sim.addr, control_addr, sim, tasks })
    }
}

/// Starts several engines.
///
/// # Errors
/// When one of them cannot start; the others are stopped.
pub async fn start_fleet(fleet: Vec<SimOptions>) -> io::Result<Vec<SimHandle>> {
    let mut handles = Vec::with_capacity(fleet.len());
    for options in fleet {
        handles.push(SimServer::start(options).await?);
    }
    Ok(handles)
}

/// A running engine; dropping it stops the engine.
#[derive(Debug)]
pub struct SimHandle {
    /// Address on which the engine listens.
    pub addr: SocketAddr,
    /// Second address that serves `/sim/*`, if the options ask for one.
    pub control_addr: Option<SocketAddr>,
    sim: Arc<ServerCore>,
    tasks: JoinSet<()>,
}

impl SimHandle {
    /// `http://<addr>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Control of the engine; harmless when it outlives the handle.
    pub fn control(&self) -> SimControl {
        SimControl::new(Arc::clone(&self.sim))
    }

    /// Stops the engine: open connections are cut, and the port is free again.
    pub async fn stop(mut self) {
        self.sim.stopped.cancel();
        self.sim.cut_connections();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for SimHandle {
    fn drop(&mut self) {
        self.sim.stopped.cancel();
        self.sim.cut_connections();
    }
}
