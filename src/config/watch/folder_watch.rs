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

/// Watches folders and says when a file in them changed that matters. A log in the same folder is written for each
/// request.
pub(super) struct FolderWatch {
    events: Arc<Notify>,
    followed: Arc<Mutex<FollowedPaths>>,
    /// `None` when the system gives no events; then only the poll is left.
    watcher: Mutex<Option<RecommendedWatcher>>,
    folders: Mutex<BTreeSet<PathBuf>>,
}

impl FolderWatch {
    /// A watch of no folder yet.
    pub(super) fn open() -> Self {
        let (events, followed) = (Arc::new(Notify::new()), Arc::<Mutex<FollowedPaths>>::default());
        let (sender, known) = (Arc::clone(&events), Arc::clone(&followed));
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.map_or(true, |event| is_change(&event.kind) && known.lock().matter(&event.paths)) {
                sender.notify_one();
            }
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "no file events: configuration changes are seen late");
        }
        Self { events, followed, watcher: Mutex::new(watcher.ok()), folders: Mutex::default() }
    }

    /// Watches the folders of these files, and of all that they link to, and
    /// these folders, in place of what was watched before. A folder is watched anew each time,
    /// because its name may stand for another folder now.
    pub(super) fn follow<'a>(
        &self,
        files: impl Iterator<Item = &'a Path>,
        more: impl Iterator<Item = &'a Path>,
    ) {
        let files: BTreeSet<PathBuf> = files.flat_map(with_links).collect();
        let more: BTreeSet<PathBuf> = more.map(Path::to_owned).collect();
        let wanted: BTreeSet<PathBuf> =
            files.iter().map(|file| folder(file).to_owned()).chain(more.iter().cloned()).collect();
        *self.followed.lock() = FollowedPaths::new(&files, &more);
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

/// A file, and those that it links to.
fn with_links(file: &Path) -> Vec<PathBuf> {
    let mut found = vec![file.to_owned()];
    for _ in 0..MAX_LINKS {
        let last = &found[found.len() - 1];
        let Ok(target) = fs::read_link(last) else { break };
        found.push(folder(last).join(target));
    }
    found
}

/// The names that a system may give a path in its events: absolute, and with the real name of its folder.
fn names(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let real =
        fs::canonicalize(folder(path)).ok().zip(path.file_name()).map(|(folder, name)| folder.join(name));
    std::path::absolute(path).ok().into_iter().chain(real)
}

/// The paths whose events matter.
#[derive(Debug, Default)]
struct FollowedPaths {
    files: Vec<PathBuf>,
    /// Folders in which every file counts.
    folders: Vec<PathBuf>,
}

impl FollowedPaths {
    fn new(files: &BTreeSet<PathBuf>, folders: &BTreeSet<PathBuf>) -> Self {
        let named = |paths: &BTreeSet<PathBuf>| paths.iter().flat_map(|path| names(path)).collect();
        Self { files: named(files), folders: named(folders) }
    }

    /// Whether an event of these paths matters: one of a file, of something on the way to it such as a link to
    /// its folder, or of a file in a folder in which every file counts. An event without paths may be any.
    fn matter(&self, paths: &[PathBuf]) -> bool {
        let leads = |path: &PathBuf| self.files.iter().chain(&self.folders).any(|to| to.starts_with(path));
        let is_within = |path: &PathBuf| self.folders.iter().any(|folder| path.starts_with(folder));
        paths.is_empty() || paths.iter().any(|path| leads(path) || is_within(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_files_that_are_followed_and_of_the_way_to_them_matter() {
        let files = ["/etc/p/penstock.yaml", "/etc/p/..data/penstock.yaml", "/etc/keys/a"].map(PathBuf::from);
        let followed = FollowedPaths::new(&files.into(), &[PathBuf::from("/etc/keys.d")].into());
        let matters = |path: &str| followed.matter(&[PathBuf::from(path)]);
        assert!(
            ["/etc/p/penstock.yaml", "/etc/p/./penstock.yaml", "/etc/p/..data", "/etc/p"]
                .into_iter()
                .all(matters)
        );
        assert!(["/etc/keys.d", "/etc/keys.d/new", "/etc/keys/a"].into_iter().all(matters));
        assert!(
            !["/etc/p/penstock.log", "/etc/p/penstock.yaml~", "/etc/keys/b", "/tmp"].into_iter().any(matters)
        );
        assert!(followed.matter(&[]) && followed.matter(&["/x", "/etc/p"].map(PathBuf::from)));
    }

    #[tokio::test]
    async fn a_log_beside_the_file_wakes_nobody() {
        const LONG: Duration = Duration::from_millis(200);
        let place = tempfile::tempdir().unwrap();
        let [file, log] = ["penstock.yaml", "penstock.log"].map(|name| place.path().join(name));
        fs::write(&file, "1").unwrap();
        let watch = FolderWatch::open();
        watch.follow([&*file].into_iter(), std::iter::empty());
        fs::write(&log, "a line").unwrap();
        assert!(timeout(LONG, watch.events.notified()).await.is_err());
        fs::write(&file, "2").unwrap();
        timeout(Duration::from_secs(10), watch.events.notified()).await.unwrap();
    }
}
