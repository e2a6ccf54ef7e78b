//! Listening port: accepts connections, refuses them, and keeps the port number
//! while refusing.

mod connection;
mod route;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::faults::{FaultKind, ResetPoint};
use crate::server::core::ServerCore;

const BACKLOG: u32 = 4096;

/// A port that stays bound while nobody listens on it, like that of a starting
/// vLLM. Connections are refused, and no other process gets the port number.
#[derive(Debug)]
pub(in crate::server) struct HeldPort {
    pub(in crate::server) addr: SocketAddr,
    _bound: TcpSocket,
}

fn bound(addr: SocketAddr, shared: bool) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(shared)?;
    socket.bind(addr)?;
    Ok(socket)
}

impl HeldPort {
    pub(in crate::server) fn bind(addr: SocketAddr) -> io::Result<Self> {
        // The engine's own sockets share the port, and would share it with
        // another engine's sockets, too. A socket that does not share shows
        // whether the port is taken.
        drop(bound(addr, false)?);
        let socket = bound(addr, true)?;
        Ok(Self { addr: socket.local_addr()?, _bound: socket })
    }

    pub(in crate::server) fn listen(&self) -> io::Result<TcpListener> {
        bound(self.addr, true)?.listen(BACKLOG)
    }
}

/// Accepts connections until the engine is stopped, except while a fault
/// refuses them.
pub(in crate::server) async fn accept(sim: Arc<ServerCore>, port: HeldPort, first: TcpListener) {
    let mut listening = sim.listening.subscribe();
    let slots = Arc::new(Semaphore::new(sim.options.connections.max_open.max(1)));
    let mut listener = Some(first);
    let stopped = sim.stopped.clone();
    let accepting = async {
        loop {
            if !*listening.borrow() {
                // The engine refuses before the first round: no connection may
                // be accepted.
                listener = None;
            }
            if listening.wait_for(|open| *open).await.is_err() {
                return;
            }
            let Some(listener) = listener.take().or_else(|| port.listen().ok()) else {
                sleep(Duration::from_millis(10)).await;
                continue;
            };
            tokio::select! {
                _ = listening.wait_for(|open| !*open) => {}
                () = accept_from(&sim, &listener, &slots) => {}
            }
        }
    };
    stopped.run_until_cancelled(accepting).await;
}

async fn accept_from(sim: &Arc<ServerCore>, listener: &TcpListener, slots: &Arc<Semaphore>) {
    loop {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Mostly the process is out of file descriptors; the next accept
            // may succeed.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        if refused_meanwhile(sim) || reset_by_fault(sim) {
            let _ = stream.set_zero_linger();
            continue;
        }
        let sim = Arc::clone(sim);
        tokio::spawn(async move {
            let _slot = slot;
            let _ = stream.set_nodelay(true);
            sim.connections.fetch_add(1, Ordering::Relaxed);
            connection::serve(Arc::clone(&sim), stream, false).await;
            sim.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Whether the port was closed after the kernel took a connection and before
/// [`accept`] saw it. Nobody who connects after the fault gets an answer.
fn refused_meanwhile(sim: &ServerCore) -> bool {
    !*sim.listening.borrow()
}

fn reset_by_fault(sim: &ServerCore) -> bool {
    let kind = |kind: &FaultKind| matches!(kind, FaultKind::Reset { at: ResetPoint::Accept });
    sim.faults.for_connection(sim.now(), kind).is_some()
}

/// Serves `/sim/*` on a separate port until the engine is stopped.
pub(in crate::server) async fn accept_control(sim: Arc<ServerCore>, listener: TcpListener) {
    const MAX_CONTROL_CONNECTIONS: usize = 64;
    let slots = Arc::new(Semaphore::new(MAX_CONTROL_CONNECTIONS));
    let stopped = sim.stopped.clone();
    let accepting = async {
        while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
            if let Ok((stream, _)) = listener.accept().await {
                let sim = Arc::clone(&sim);
                tokio::spawn(async move {
                    let _slot = slot;
                    connection::serve(sim, stream, true).await;
                });
            }
        }
    };
    stopped.run_until_cancelled(accepting).await;
}
