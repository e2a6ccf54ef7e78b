//! Watch of one kind of Kubernetes object: list, then watch from the list's version on. A watch
//! that ends is resumed at its last version. When that is no longer possible, and in any case from
//! time to time, the list is requested again.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::config::discover::KubernetesSource;
use crate::fleet::discovery::pause::RetryPauses;

use super::api::{KubeApi, KubeError, KubeResource};
use super::lines::LineBuffer;
pub(super) use crate::fleet::discovery::kubernetes::object::KubeObject;

/// Longest pause between two attempts to connect.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this is followed by a pause.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Receiver of the objects of one kind.
pub(super) trait ObjectStore {
    type Object: KubeObject;

    fn replace(&mut self, all: Vec<Self::Object>) -> Result<(), KubeError>;
    /// Adds or updates an object. Returns whether the view changed.
    fn put(&mut self, object: Self::Object) -> bool;
    /// Removes an object. Returns whether the view changed.
    fn remove(&mut self, object: &Self::Object) -> bool;
    /// Publishes the view, changed or not. Also called when the server is reached again.
    fn publish(&mut self) -> Result<(), KubeError>;
    /// Reports that the server cannot be asked. The view stays in force.
    fn lost(&mut self, why: &str);
}

#[derive(Deserialize)]
struct WatchEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Box<serde_json::value::RawValue>,
}

/// Object of a bookmark event: only its version.
#[derive(Deserialize)]
struct Bookmark {
    metadata: ResourceVersion,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceVersion {
    resource_version: String,
}

/// Status object of an error event, in the API server's words.
#[derive(Deserialize)]
struct KubeStatus {
    code: u16,
    #[serde(default)]
    message: String,
}

/// State of a watch.
struct KubeWatcher<'a, A> {
    rules: &'a KubernetesSource,
    resource: KubeResource,
    store: A,
    /// Version from which the next watch resumes; absent = a new list first.
    version: Option<String>,
    relist_at: Instant,
}

/// Lists and watches for ever.
pub(super) async fn follow<A: ObjectStore>(
    rules: &KubernetesSource,
    resource: KubeResource,
    audience: A,
    mut pauses: RetryPauses,
) {
    let relist_at = Instant::now();
    let mut watcher = KubeWatcher { rules, resource, store: audience, version: None, relist_at };
    loop {
        let started = Instant::now();
        let ended = watcher.session().await;
        let worked = started.elapsed() >= SHORT_WATCH;
        match ended {
            Ok(()) | Err(KubeError::Broken) if worked => pauses.reset(),
            Ok(()) | Err(KubeError::Broken) => sleep(pauses.next()).await,
            Err(KubeError::Gone) => {
                watcher.version = None;
                sleep(pauses.next()).await;
            }
            Err(problem) => {
                watcher.store.lost(&problem.to_string());
                if let KubeError::NotUnderstood(_) = problem {
                    watcher.version = None;
                }
                let asked = problem.retry_after().unwrap_or_default().min(LONGEST_PAUSE);
                sleep(pauses.next().max(asked)).await;
            }
        }
    }
}

impl<A: ObjectStore> KubeWatcher<'_, A> {
    /// Lists if necessary, then watches until the watch ends or a new list is due.
    async fn session(&mut self) -> Result<(), KubeError> {
        let api = KubeApi::new(self.rules, self.resource).await?;
        if self.relist_at <= Instant::now() {
            self.version = None;
        }
        let version = match self.version.clone() {
            Some(version) => version,
            None => self.list(&api).await?,
        };
        let rest = self.relist_at.saturating_duration_since(Instant::now());
        let watching = self.watch(&api, &version, rest);
        tokio::time::timeout(rest, watching).await.unwrap_or(Ok(()))
    }

    async fn list(&mut self, api: &KubeApi) -> Result<String, KubeError> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = api.list::<A::Object>(after.as_deref()).await?;
            all.extend(page.items);
            after = page.metadata.next.filter(|next| !next.is_empty());
            if after.is_none() {
                self.version = Some(page.metadata.resource_version.clone());
                self.relist_at = Instant::now() + self.rules.resync;
                self.store.replace(all)?;
                return Ok(page.metadata.resource_version);
            }
        }
    }

    async fn watch(&mut self, api: &KubeApi, version: &str, rest: Duration) -> Result<(), KubeError> {
        let mut answer = api.watch(version, rest).await?;
        // The server answers, so the view is in force again.
        self.store.publish()?;
        let mut lines = LineBuffer::default();
        while let Some(chunk) = answer.chunk().await.map_err(|_| KubeError::Broken)? {
            lines.add(&chunk);
            let mut changed = false;
            while let Some(line) = lines.next() {
                changed |= self.apply_event(&line)?;
            }
            if lines.is_too_long() {
                return Err(KubeError::NotUnderstood("a line of the watch is too long"));
            }
            if changed {
                self.store.publish()?;
            }
        }
        Ok(())
    }

    /// Applies one event. Returns whether the view changed.
    fn apply_event(&mut self, line: &[u8]) -> Result<bool, KubeError> {
        let strange = |_| KubeError::NotUnderstood("the watch has a line that is no event");
        let event: WatchEvent = serde_json::from_slice(line).map_err(strange)?;
        let object = event.object.get();
        match event.kind.as_str() {
            "ERROR" => {
                let status: KubeStatus = serde_json::from_str(object).map_err(strange)?;
                return Err(KubeError::of(status.code, status.message, None));
            }
            "BOOKMARK" => {
                let bookmark: Bookmark = serde_json::from_str(object).map_err(strange)?;
                self.version = Some(bookmark.metadata.resource_version);
                return Ok(false);
            }
            "ADDED" | "MODIFIED" | "DELETED" => {}
            _ => return Err(KubeError::NotUnderstood("the watch has an event of an unknown type")),
        }
        let object: A::Object = serde_json::from_str(object).map_err(strange)?;
        self.version = Some(object.metadata().resource_version.clone());
        let gone = event.kind == "DELETED";
        Ok(if gone { self.store.remove(&object) } else { self.store.put(object) })
    }
}
