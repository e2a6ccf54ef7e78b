//! File system events of the folders that the files are in.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::config::load::folder::folder;

/// Links from one file to the next that are followed.
const MAX_LINKS: usize = 16;
/// Waits for quiet before a restless folder is read anyway.
const MAX_RESTLESS: usize = 8;

/// Watches folders and says when something in them changed.
pub(super) struct FolderWatch {
    events: Arc<Notify>,
    /// `None` when the system gives no events; then only the poll is left.
    watcher: Mutex<Option<RecommendedWatcher>>,
    folders: Mutex<BTreeSet<PathBuf>>,
}

impl FolderWatch {
    /// A watch of no folder yet.
    pub(super) fn open() -> Self {
        let events = Arc::new(Notify::new());
        let sender = Arc::clone(&events);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.map_or(true, |event| is_change(&event.kind)) {
                sender.notify_one();
            }
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "no file events: configuration changes are seen late");
        }
        Self { events, watcher: Mutex::new(watcher.ok()), folders: Mutex::default() }
    }

    /// Watches the folders of these files, and of all that they link to, and
    /// these folders, in place of what was watched before. A folder is watched anew each time,
    /// because its name may stand for another folder now.
    pub(super) fn follow<'a>(
        &self,
        files: impl Iterator<Item = &'a Path>,
        more: impl Iterator<Item = &'a Path>,
    ) {
        let wanted: BTreeSet<PathBuf> = files.flat_map(folders).chain(more.map(Path::to_owned)).collect();
        let mut folders = self.folders.lock();
        let mut watcher = self.watcher.lock();
        let Some(watcher) = watcher.as_mut() else { return };
        for folder in folders.iter() {
            // It may be gone, and its watch with it.
            let _ = watcher.unwatch(folder);
        }
        for folder in &wanted {
            if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
                && !folders.contains(folder)
            {
                tracing::warn!(folder = %folder.display(), %error, "folder is polled: no file events");
            }
        }
        *folders = wanted;
    }

    /// Waits for a change, and then until nothing happened for `quiet`.
    pub(super) async fn changed(&self, quiet: Duration) {
        self.events.notified().await;
        for _ in 0..MAX_RESTLESS {
            if timeout(quiet, self.events.notified()).await.is_err() {
                return;
            }
        }
    }
}

/// Reading a file is an event too, and no change.
fn is_change(kind: &EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if *access != AccessKind::Close(AccessMode::Write))
}

/// The folder of a file, and those of the files that it links to.
fn folders(file: &Path) -> Vec<PathBuf> {
    let mut at = file.to_owned();
    let mut found = vec![folder(&at).to_owned()];
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&at) else { break };
        at = folder(&at).join(target);
        found.push(folder(&at).to_owned());
    }
    found
}
