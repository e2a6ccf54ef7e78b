//! Reload while running: on a change of the files, on a signal, on demand.
//!
//! Every way leads through the same steps: read, decode, validate, compare,
//! swap. When any of them fails the last good settings stay. The folders of
//! the files are watched, not the files, because editors and Kubernetes
//! replace files; a slow poll catches what no event told.

mod folder_watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::config::file::ConfigFile;
use crate::config::load::merge::{FoundEndpoints, merge, same_replicas};
use crate::config::load::{InputFiles, LoadOutcome, Loaded, load_file_with};
use crate::config::report::ConfigReport;
use crate::config::report::diff::{ConfigChange, diff, diff_files};
use crate::config::report::problem::ConfigProblem;
use crate::config::secret::{MachineSecrets, SecretSource};
use crate::config::settings::Settings;
use crate::config::watch::folder_watch::FolderWatch;

/// How long the files must be quiet before they are read.
const QUIET: Duration = Duration::from_millis(250);
/// How often the files are compared when no event came.
const POLL: Duration = Duration::from_secs(15);
/// Reloads that may be asked for at once.
const MAX_ASKS: usize = 16;

/// What came of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReloadOutcome {
    /// New settings are in force.
    Applied,
    /// The files are what they were.
    Unchanged,
    /// The files have errors; the last good settings stay in force.
    Failed,
}

/// The answer to a reload.
#[derive(Debug, Clone, Serialize)]
pub struct ReloadReport {
    /// What came of it.
    pub outcome: ReloadOutcome,
    /// Generation of the settings that are in force now.
    pub generation: u64,
    /// Digest of the file that they were made from.
    pub digest: String,
    /// What is different now.
    pub changed: Vec<ConfigChange>,
    /// Fields of the file in force that differ from what the process started
    /// with and take effect only at the next start.
    pub needs_restart: Vec<String>,
    /// What was found in the file that was read.
    pub problems: Vec<ConfigProblem>,
    /// Who asked for it; absent = the files changed.
    #[serde(skip)]
    pub asked_by: Option<Arc<str>>,
}

/// Holds the settings in force and replaces them.
pub struct Reloader {
    path: PathBuf,
    source: Box<dyn SecretSource>,
    current: Arc<ArcSwap<Settings>>,
    state: Mutex<ReloadState>,
}

struct ReloadState {
    /// The file in force.
    loaded: Loaded,
    /// The replicas that were found beside it.
    found: FoundEndpoints,
    /// The file that the process started with.
    started: ConfigFile,
    /// The files behind what is in force.
    applied: InputFiles,
    /// The files as they were last read, with or without success.
    seen: InputFiles,
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Reloader {
    /// Loads the file for the first time. The report has the warnings.
    ///
    /// # Errors
    /// The report, when the file cannot be used.
    pub fn start(path: PathBuf) -> Result<(Self, ConfigReport), ConfigReport> {
        Self::start_with(path, Box::new(MachineSecrets))
    }

    /// Loads the file for the first time, with secrets from `source`.
    ///
    /// # Errors
    /// The report, when the file cannot be used.
    pub fn start_with(
        path: PathBuf,
        source: Box<dyn SecretSource>,
    ) -> Result<(Self, ConfigReport), ConfigReport> {
        let LoadOutcome { loaded, report, inputs } = load_file_with(&path, None, &*source);
        let Some(loaded) = loaded else { return Err(report) };
        let current = Arc::new(ArcSwap::from_pointee(loaded.settings.clone()));
        let started = loaded.file.clone();
        let state = Mutex::new(ReloadState {
            loaded,
            found: FoundEndpoints::new(),
            started,
            applied: inputs.clone(),
            seen: inputs,
        });
        Ok((Self { path, source, current, state }, report))
    }

    /// The settings in force, now and after every reload. `startup` in them
    /// stays what the process started with.
    pub fn current(&self) -> Arc<ArcSwap<Settings>> {
        Arc::clone(&self.current)
    }

    /// Reads the files and puts them in force if they are good. Blocks for as
    /// long as the file system does.
    pub fn reload(&self) -> ReloadReport {
        let mut state = self.state.lock();
        let running = self.current.load_full();
        let LoadOutcome { loaded, report, inputs } =
            load_file_with(&self.path, Some(&running), &*self.source);
        state.seen = inputs.clone();
        let (outcome, changed) = match loaded {
            None => (ReloadOutcome::Failed, Vec::new()),
            Some(_) if inputs == state.applied => (ReloadOutcome::Unchanged, Vec::new()),
            Some(mut loaded) => {
                let changed = diff(&state.loaded, &loaded);
                loaded.settings.startup = state.loaded.settings.startup.clone();
                self.current.store(Arc::new(merge(&loaded.settings, &running, &state.found)));
                state.loaded = loaded;
                state.applied = inputs;
                (ReloadOutcome::Applied, changed)
            }
        };
        let pending = diff_files(&state.started, &state.loaded.file);
        ReloadReport {
            outcome,
            generation: self.current.load().policy.generation,
            digest: state.loaded.settings.digest.clone(),
            changed,
            needs_restart: pending.into_iter().filter(|c| c.needs_restart).map(|c| c.path).collect(),
            problems: report.problems,
            asked_by: None,
        }
    }

    /// Puts in force which replicas there are beside those of the file.
    /// Returns the settings before and after, when that is any news.
    pub fn discovered(&self, found: FoundEndpoints) -> Option<[Arc<Settings>; 2]> {
        let mut state = self.state.lock();
        let running = self.current.load_full();
        state.found = found;
        let mut next = merge(&state.loaded.settings, &running, &state.found);
        if same_replicas(&running, &next) {
            return None;
        }
        Arc::make_mut(&mut next.policy).generation = running.policy.generation + 1;
        let next = Arc::new(next);
        self.current.store(Arc::clone(&next));
        Some([running, next])
    }

    /// Reloads whenever the files change or somebody asks, and hands every
    /// report to `on_report` before whoever asked gets it. Runs until every
    /// handle is gone; dropping the future ends it, too.
    pub async fn watch(self: Arc<Self>, mut asks: ReloadRequests, on_report: impl Fn(&ReloadReport)) {
        let folders = Arc::new(FolderWatch::open());
        let mut poll = interval_at(Instant::now() + POLL, POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ask: Option<ReloadRequest> = None;
        let mut cause = ReloadCause::Glance;
        loop {
            let (me, watched) = (Arc::clone(&self), Arc::clone(&folders));
            let Ok((report, restless)) = spawn_blocking(move || me.check_files(&watched, cause)).await else {
                return;
            };
            if let Some(mut report) = report {
                let (who, reply) = ask.take().map(|ask| (ask.who, ask.reply)).unzip();
                report.asked_by = who;
                on_report(&report);
                if let Some(Some(reply)) = reply {
                    // Whoever asked may have gone away.
                    let _ = reply.send(report);
                }
            }
            if restless {
                sleep(QUIET).await;
                cause = ReloadCause::Settled;
                continue;
            }
            cause = tokio::select! {
                asked = asks.0.recv() => {
                    let Some(asked) = asked else { return };
                    ask = Some(asked);
                    ReloadCause::Forced
                }
                () = folders.changed(QUIET) => ReloadCause::Settled,
                _ = poll.tick() => ReloadCause::Glance,
            };
        }
    }

    /// Checks the files once. Says whether they changed and were not read
    /// since; also while the folders were not watched and no event could tell.
    fn check_files(&self, folders: &FolderWatch, cause: ReloadCause) -> (Option<ReloadReport>, bool) {
        let changed = || self.state.lock().seen.changed(&*self.source);
        let report = match cause {
            ReloadCause::Forced => Some(self.reload()),
            ReloadCause::Settled => changed().then(|| self.reload()),
            ReloadCause::Glance => None,
        };
        let seen = self.state.lock().seen.clone();
        folders.follow(seen.paths(), seen.folders());
        (report, changed())
    }
}

/// Why the files are looked at.
#[derive(Debug, Clone, Copy)]
enum ReloadCause {
    /// Somebody asked: read them in any case.
    Forced,
    /// Something happened and it is quiet now: read them if they changed.
    Settled,
    /// Nothing is known to have happened: somebody may be writing just now,
    /// so do not read them yet.
    Glance,
}

/// A demand to reload, with where to send the answer.
#[derive(Debug)]
struct ReloadRequest {
    who: Arc<str>,
    reply: Option<oneshot::Sender<ReloadReport>>,
}

/// Asks for reloads: for SIGHUP and for `POST /admin/reload`.
#[derive(Debug, Clone)]
pub struct ReloadHandle(mpsc::Sender<ReloadRequest>);

/// The other end of a [`ReloadHandle`], for [`Reloader::watch`].
#[derive(Debug)]
pub struct ReloadRequests(mpsc::Receiver<ReloadRequest>);

#[cfg(test)]
impl ReloadRequests {
    /// Where the answer to the next request goes; `None` when every handle is gone.
    pub(crate) async fn next(&mut self) -> Option<oneshot::Sender<ReloadReport>> {
        self.0.recv().await?.reply
    }
}

/// A handle and its other end.
pub fn channel() -> (ReloadHandle, ReloadRequests) {
    let (sender, receiver) = mpsc::channel(MAX_ASKS);
    (ReloadHandle(sender), ReloadRequests(receiver))
}

impl ReloadHandle {
    /// Reloads because `who` asks for it, and waits for the answer; `None` when
    /// nobody watches any more.
    pub async fn reload(&self, who: Arc<str>) -> Option<ReloadReport> {
        let (reply, answer) = oneshot::channel();
        self.0.send(ReloadRequest { who, reply: Some(reply) }).await.ok()?;
        answer.await.ok()
    }

    /// Reloads soon, for a signal. When many reloads are asked for already, they will see
    /// what this one would.
    pub fn request_reload(&self) {
        let _ = self.0.try_send(ReloadRequest { who: "signal".into(), reply: None });
    }
}

#[cfg(test)]
mod tests;
