//! `loadtest proxy`: a small reference proxy, to compare a gateway with the usual ways of
//! balancing. The proxy counts requests and nothing else: no health checks, no retries, no limits
//! except `--maxconn`. Streams pass through frame by frame. A client that leaves cancels its
//! request upstream.

mod balance;
mod relay;

pub use self::balance::Mode;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket};

use self::relay::Proxy;
use crate::engines::{Ready, announce, until_the_end};

const BACKLOG: u32 = 4096;

/// Arguments of `loadtest proxy`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  loadtest proxy --listen 127.0.0.1:8090 --mode least-request \\
      --server http://127.0.0.1:8001 --server http://127.0.0.1:8002 --maxconn 64

With --maxconn a request that finds every server full waits in one queue, first
come first served, as in HAProxy. Prints {\"urls\":[...]} when it listens.")]
pub struct ProxyArgs {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Base URL of a server; may be given several times.
    #[arg(long = "server", value_name = "URL", required = true)]
    pub servers: Vec<String>,
    /// How a server is chosen.
    #[arg(long, value_enum, default_value_t = Mode::RoundRobin)]
    pub mode: Mode,
    /// Requests at a server at once; more wait.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub maxconn: Option<u32>,
    /// Fixes the random choices.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// End when standard input ends, and so with the program that started it.
    #[arg(long)]
    pub with_parent: bool,
    /// Write the line to this file instead.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
}

/// Runs `loadtest proxy` until Ctrl-C or SIGTERM.
///
/// # Errors
/// When a server's URL is wrong or the address is taken.
pub async fn command(args: &ProxyArgs) -> Result<()> {
    let (listener, proxy) = bind(args).await?;
    let ready = Ready { urls: vec![format!("http://{}", listener.local_addr()?)] };
    announce(&ready, args.ready_file.as_deref())?;
    tokio::select! {
        () = serve(listener, proxy) => Ok(()),
        ended = until_the_end(args.with_parent) => ended,
    }
}

/// Listens, and serves in a task of its own for as long as the runtime lives.
///
/// # Errors
/// When a server's URL is wrong or the address is taken.
pub async fn start(args: &ProxyArgs) -> Result<SocketAddr> {
    let (listener, proxy) = bind(args).await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener, proxy));
    Ok(address)
}

async fn bind(args: &ProxyArgs) -> Result<(TcpListener, Arc<Proxy>)> {
    ensure!(!args.servers.is_empty(), "--server is needed");
    let proxy =
        Proxy::new(&args.servers, args.mode, args.maxconn.map(|most| most as usize), args.seed).await?;
    let listener = listen(args.listen).with_context(|| format!("cannot listen on {}", args.listen))?;
    Ok((listener, Arc::new(proxy)))
}

/// With a queue long enough for thousands of calls at once.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn serve(listener: TcpListener, proxy: Arc<Proxy>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, mostly: the next accept may succeed.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let service = service_fn(move |request| {
                let proxy = Arc::clone(&proxy);
                async move { Ok::<_, Infallible>(proxy.relay(request).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            // The client has its own word for a connection that broke.
            let _ = connection.await;
        });
    }
}
