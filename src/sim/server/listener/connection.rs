//! Connections: hyper's HTTP/1.1 over a socket wrapper that can show faults
//! which no HTTP library would send.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::faults::FaultKind;
use crate::server::core::ServerCore;
use crate::server::http::conn::SimConn;
use crate::server::listener::route;

/// Answers the requests of one connection until it ends. A `control` connection
/// serves only `/sim/*` and survives the engine's faults.
pub(super) async fn serve(sim: Arc<ServerCore>, stream: TcpStream, control: bool) {
    let life = if control { sim.stopped.clone() } else { sim.connections_token() };
    let keep_alive = sim.options.connections.keep_alive;
    let conn = Arc::new(SimConn::default());
    let io = SimIo { stream, conn: Arc::clone(&conn), sim: (!control).then(|| Arc::clone(&sim)) };
    let service = service_fn({
        let conn = Arc::clone(&conn);
        move |request| route::answer(Arc::clone(&sim), Arc::clone(&conn), control, request)
    });
    let mut connection = pin!(http1::Builder::new().serve_connection(TokioIo::new(io), service));
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = life.cancelled() => return,
            () = conn.changed.notified() => {}
            _ = idle_timeout(&conn, keep_alive) => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
                return;
            }
        }
    }
}

/// Returns when the connection has been idle for `keep_alive`.
async fn idle_timeout(conn: &SimConn, keep_alive: Duration) {
    if conn.is_idle() {
        sleep(keep_alive).await;
    } else {
        pending::<Infallible>().await;
    }
}

struct SimIo {
    stream: TcpStream,
    conn: Arc<SimConn>,
    /// Absent on the control port, where no fault applies.
    sim: Option<Arc<ServerCore>>,
}

const GARBAGE: &[u8] = b"zz\r\nno chunk\r\n";

impl SimIo {
    fn closes_now(&self) -> bool {
        let Some(sim) = self.sim.as_ref().filter(|_| self.conn.is_idle()) else { return false };
        let kind = |kind: &FaultKind| matches!(kind, FaultKind::CloseIdle { .. });
        match sim.faults.for_connection(sim.now(), kind) {
            Some(FaultKind::CloseIdle { reset }) => {
                if reset {
                    self.conn.reset();
                }
                true
            }
            _ => false,
        }
    }

    fn write_garbage(&mut self, cx: &mut Context<'_>, claimed: usize) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.stream).poll_write(cx, GARBAGE))?;
        self.conn.corrupt.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(claimed))
    }
}

impl AsyncRead for SimIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before && self.closes_now() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.conn.corrupt.load(Ordering::Relaxed) {
            return self.write_garbage(cx, buf.len());
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.conn.corrupt.load(Ordering::Relaxed) {
            let claimed = bufs.iter().map(|buf| buf.len()).sum();
            return self.write_garbage(cx, claimed);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.conn.reset.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for SimIo {
    fn drop(&mut self) {
        if self.conn.reset.load(Ordering::Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}
