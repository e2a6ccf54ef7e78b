//! TCP balancer: connections to several servers in turn, of which those are left out that are not
//! ready. With one server it is a link that can be cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::client::fetch;
use crate::target::Endpoint;

/// Between two looks whether a server is ready.
const LOOK: Duration = Duration::from_millis(100);
/// For the answer of a server to that.
const ANSWER: Duration = Duration::from_secs(1);

/// A server behind the balancer.
#[derive(Debug)]
struct Backend {
    address: SocketAddr,
    ready: AtomicBool,
}

/// The running balancer; it ends when it is dropped.
#[derive(Debug)]
pub(super) struct Balancer {
    pub(super) address: SocketAddr,
    backends: Arc<[Backend]>,
    cut: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    relaying: AbortHandle,
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.relaying.abort();
    }
}

impl Balancer {
    /// Listens, and takes all servers for ready.
    pub(super) async fn start(servers: &[SocketAddr]) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port is free")?;
        let address = listener.local_addr()?;
        let backends: Arc<[Backend]> =
            servers.iter().map(|server| Backend { address: *server, ready: AtomicBool::new(true) }).collect();
        let cut = Arc::<AtomicBool>::default();
        let mut tasks = JoinSet::new();
        let relaying = tasks.spawn(relay(listener, Arc::clone(&backends), Arc::clone(&cut)));
        Ok(Self { address, backends, cut, tasks, relaying })
    }

    /// Follows a server's readiness from now on.
    pub(super) fn follow(&mut self, number: usize, ready: Endpoint) {
        let backends = Arc::clone(&self.backends);
        self.tasks.spawn(async move {
            loop {
                let answer = timeout(ANSWER, fetch(&ready, ready.get())).await;
                backends[number].ready.store(matches!(answer, Ok(Ok(_))), Ordering::Relaxed);
                sleep(LOOK).await;
            }
        });
    }

    /// Ends all connections and takes no more, or takes them again.
    pub(super) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::Relaxed);
    }
}

async fn relay(listener: TcpListener, backends: Arc<[Backend]>, cut: Arc<AtomicBool>) {
    let turn = Arc::<AtomicUsize>::default();
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = open.join_next(), if !open.is_empty() => continue,
            () = sleep(LOOK) => {
                if cut.load(Ordering::Relaxed) {
                    open.abort_all();
                }
                continue;
            }
        };
        let Ok((client, _)) = accepted else {
            sleep(LOOK).await;
            continue;
        };
        if cut.load(Ordering::Relaxed) {
            continue;
        }
        let (backends, turn) = (Arc::clone(&backends), turn.fetch_add(1, Ordering::Relaxed));
        open.spawn(pass(client, backends, turn));
    }
}

/// Passes one connection on: to a ready server, in turn, else to any that takes it.
async fn pass(mut client: TcpStream, backends: Arc<[Backend]>, turn: usize) {
    let count = backends.len();
    let in_turn = |ready: bool| {
        let all = (0..count).map(move |at| (turn + at) % count);
        let backends = &backends;
        all.filter(move |number| backends[*number].ready.load(Ordering::Relaxed) == ready)
    };
    for number in in_turn(true).chain(in_turn(false)).collect::<Vec<_>>() {
        if let Ok(mut server) = TcpStream::connect(backends[number].address).await {
            let _ = client.set_nodelay(true);
            let _ = server.set_nodelay(true);
            // Each side has its own word for a connection that broke.
            let _ = copy_bidirectional(&mut client, &mut server).await;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server that says its letter to everybody.
    async fn server(letter: u8) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _gone = stream.write_all(&[letter]).await;
            }
        });
        address
    }

    async fn hear(address: SocketAddr) -> String {
        let mut text = String::new();
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let _ended = stream.read_to_string(&mut text).await;
        text
    }

    #[tokio::test]
    async fn servers_take_turns_and_one_that_is_gone_is_passed_over() {
        let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
        let balancer = Balancer::start(&[server(b'a').await, gone, server(b'b').await]).await.expect("it");
        let mut heard = String::new();
        for _ in 0..6 {
            heard += &hear(balancer.address).await;
        }
        assert_eq!((heard.len(), heard.contains('a'), heard.contains('b')), (6, true, true), "{heard}");
        balancer.cut(true);
        assert_eq!(hear(balancer.address).await, "");
        balancer.cut(false);
        assert_ne!(hear(balancer.address).await, "");
    }
}
