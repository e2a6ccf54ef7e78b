//! Four instant engines on a thread of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::cores::started_on;
use crate::engine::{Counts, Engine, EngineArgs, Pace};

/// How many there are.
const ENGINES: u16 = 4;

/// Running engines; dropping the value ends them.
#[derive(Debug)]
pub(super) struct InstantEngines {
    /// Base URLs.
    pub(super) urls: Vec<String>,
    counts: Vec<Arc<Counts>>,
    paces: Vec<Arc<Pace>>,
    _stop: oneshot::Sender<()>,
}

impl InstantEngines {
    /// Starts them on these cores, at `port` and the ports after it; 0 takes free ones.
    pub(super) async fn start(port: u16, cores: &[usize]) -> Result<Self> {
        let (tell, told) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || runtime.block_on(serve(port, tell));
        started_on(cores, || Ok(std::thread::Builder::new().name("engines".to_owned()).spawn(serve)?))?;
        told.await.context("the engines' thread ended")?
    }

    /// Sets length and speed of the streams to come.
    pub(super) fn pace(&self, tokens: u32, interval: Duration) {
        self.paces.iter().for_each(|pace| pace.set(tokens, interval));
    }

    /// Answers that were dropped before their end, so far.
    pub(super) fn aborted(&self) -> u64 {
        self.counts.iter().map(|counts| counts.aborted.load(Ordering::Relaxed)).sum()
    }
}

async fn serve(port: u16, tell: oneshot::Sender<Result<InstantEngines>>) {
    let (stop, stopped) = oneshot::channel();
    let (mut engines, said) = match bind(port, stop).await {
        Ok((engines, said)) => (engines, Ok(said)),
        Err(error) => (Vec::new(), Err(error)),
    };
    let mut serving: JoinSet<()> = engines.drain(..).map(Engine::serve).collect();
    if tell.send(said).is_ok() {
        // It ends when the other side is dropped.
        let _ = stopped.await;
    }
    serving.shutdown().await;
}

async fn bind(port: u16, stop: oneshot::Sender<()>) -> Result<(Vec<Engine>, InstantEngines)> {
    let mut engines = Vec::new();
    for number in 0..ENGINES {
        let port =
            if port == 0 { 0 } else { port.checked_add(number).context("--engine-port is too high")? };
        let engine = Engine::bind(&EngineArgs { port, ..EngineArgs::instant() }).await;
        engines.push(engine.context("choose another --engine-port")?);
    }
    let url = |engine: &Engine| Ok(format!("http://{}", engine.address()?));
    let handle = InstantEngines {
        urls: engines.iter().map(url).collect::<Result<_>>()?,
        counts: engines.iter().map(Engine::counts).collect(),
        paces: engines.iter().map(Engine::pace).collect(),
        _stop: stop,
    };
    Ok((engines, handle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fetch;
    use crate::target::Endpoint;

    #[tokio::test]
    async fn they_serve_until_they_are_dropped() {
        let cores = crate::cores::allowed().expect("cores");
        let engines = InstantEngines::start(0, &cores[..1]).await.expect("engines");
        assert_eq!((engines.urls.len(), engines.aborted()), (4, 0));
        let health = Endpoint::new(&engines.urls[3], "").await.expect("a URL").with_path("/health");
        let health = health.expect("a path");
        fetch(&health, health.get()).await.expect("an answer");
        let taken = engines.urls[0].rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let error = InstantEngines::start(taken.expect("a port"), &cores).await.expect_err("taken");
        assert!(format!("{error:#}").contains("choose another --engine-port"), "{error:#}");
        drop(engines);
        for _ in 0..500 {
            if fetch(&health, health.get()).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("they still serve");
    }
}
