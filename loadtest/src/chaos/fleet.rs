//! Chaos fleet: the engines of a run, and the faults done to them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use penstock::sim::engine::profile::StepProfile;
use penstock::sim::faults::{Fault, FaultKind, ResetPoint};
use penstock::sim::server::{SimHandle, SimServer, Terminate};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::book;
use super::schedule::{Episode, Kind};
use crate::client::fetch;
use crate::target::Endpoint;

/// How much slower a slow engine is.
const SLOWER: f64 = 4.0;
/// Part of a spot episode until the machine is gone.
const NOTICE: f64 = 0.5;

/// Simulated engines that can be hurt.
#[derive(Debug)]
pub(crate) struct Fleet {
    engines: Vec<SimHandle>,
    /// Requests that were answered 503 by a fault.
    busy: AtomicU64,
}

impl Fleet {
    /// Starts the engines.
    ///
    /// # Errors
    /// When no port is free.
    pub(crate) async fn start(profile: StepProfile, max_seqs: u32, count: usize) -> Result<Self> {
        let mut engines = Vec::with_capacity(count);
        for _ in 0..count {
            let options = book::engine(profile, max_seqs, 1.0);
            engines.push(SimServer::start(options).await.context("no port is free")?);
        }
        Ok(Self { engines, busy: AtomicU64::new(0) })
    }

    /// Their base URLs.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.engines.iter().map(SimHandle::url).collect()
    }

    /// Lets one thing happen at its time, and repairs it. `admin` is the
    /// gateway's port for operators.
    ///
    /// # Errors
    /// When the gateway refuses an operator's verb.
    pub(crate) async fn suffer(&self, episode: Episode, start: Instant, admin: &Endpoint) -> Result<()> {
        sleep_until(start + episode.at).await;
        let control = self.engines[episode.engine].control();
        let end = start + episode.end();
        match episode.kind {
            Kind::Kill => control.terminate(Terminate::KillServer),
            Kind::Sigterm => control.terminate(Terminate::Sigterm),
            Kind::Drain => self.operate("drain", &episode, admin).await?,
            Kind::Spot => {
                self.operate("spot-notice", &episode, admin).await?;
                sleep(episode.lasts.mul_f64(NOTICE)).await;
                control.terminate(Terminate::KillServer);
            }
            Kind::Freeze | Kind::Cut | Kind::Slow | Kind::Busy | Kind::Lie => {
                control.add(fault(&episode)).context("a fault was refused")?;
            }
        }
        sleep_until(end).await;
        match episode.kind {
            Kind::Kill | Kind::Sigterm => control.terminate(Terminate::Restart { down_ms: 0 }),
            Kind::Drain => self.operate("uncordon", &episode, admin).await?,
            Kind::Spot => {
                control.terminate(Terminate::Restart { down_ms: 0 });
                self.operate("uncordon", &episode, admin).await?;
            }
            Kind::Freeze | Kind::Cut | Kind::Slow | Kind::Busy | Kind::Lie => {
                if episode.kind == Kind::Busy {
                    let shown = control.faults().iter().map(|fault| u64::from(fault.shown)).sum();
                    self.busy.fetch_add(shown, Ordering::Relaxed);
                }
                control.clear();
            }
        }
        Ok(())
    }

    async fn operate(&self, verb: &str, episode: &Episode, admin: &Endpoint) -> Result<()> {
        let endpoint = admin.clone().with_path(&format!("/admin/v1/replicas/{verb}"))?;
        let name = format!("main/{}", self.engines[episode.engine].url());
        let body = Bytes::from(json!({ "name": name }).to_string());
        fetch(&endpoint, endpoint.request(None, body)).await.with_context(|| format!("{verb} {name}"))?;
        Ok(())
    }

    /// Requests that were answered 503, from the end of that fault on.
    pub(crate) fn refused(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Requests that came to any engine, refused or not.
    pub(crate) fn attempts(&self) -> u64 {
        let taken: u64 = self.engines.iter().map(|engine| engine.control().state().total).sum();
        taken + self.refused()
    }

    /// Waits until every engine has something to do; how long that took.
    pub(crate) async fn all_at_work(&self, patience: Duration) -> Option<Duration> {
        let start = Instant::now();
        let mut seen = vec![false; self.engines.len()];
        while start.elapsed() < patience {
            for (seen, engine) in seen.iter_mut().zip(&self.engines) {
                *seen |= engine.control().state().running > 0;
            }
            if seen.iter().all(|seen| *seen) {
                return Some(start.elapsed());
            }
            sleep(Duration::from_millis(10)).await;
        }
        None
    }

    /// What is still inside, for people.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let left = |engine: &SimHandle| {
            let state = engine.control().state();
            let inside = state.running + state.waiting + state.inside;
            (inside > 0).then(|| {
                let (running, waiting) = (state.running, state.waiting);
                format!(
                    "engine {}: {running} running, {waiting} waiting, {} inside",
                    engine.url(),
                    state.inside
                )
            })
        };
        self.engines.iter().filter_map(left).collect()
    }
}

/// The engine's part of an episode.
fn fault(episode: &Episode) -> Fault {
    let after_tokens = (episode.draw >> 8) as u32 % 60;
    let kind = match episode.kind {
        Kind::Slow => FaultKind::Slow { factor: SLOWER },
        Kind::Busy => FaultKind::Status { status: 503, retry_after: None, message: None },
        Kind::Cut => match episode.draw % 7 {
            0 => FaultKind::EngineDead { after_tokens },
            1 => FaultKind::Abort { after_tokens },
            2 => FaultKind::Reset { at: ResetPoint::Head },
            3 => FaultKind::MalformedSse { after_tokens },
            4 => FaultKind::NoFinish { after_tokens },
            _ => FaultKind::Cut { after_tokens },
        },
        Kind::Lie => match episode.draw % 4 {
            0 => lie(0, 0, 0.0),
            1 => lie(100_000, 0, 1.0),
            2 => lie(0, 100_000, 1.0),
            _ => FaultKind::FrozenMetrics,
        },
        _ => FaultKind::Freeze,
    };
    let probability = if episode.kind == Kind::Cut { 0.5 } else { 1.0 };
    Fault { probability, ..Fault::from(kind) }
}

fn lie(running: u64, waiting: u64, kv_usage: f64) -> FaultKind {
    FaultKind::LyingMetrics { running: Some(running), waiting: Some(waiting), kv_usage: Some(kv_usage) }
}
