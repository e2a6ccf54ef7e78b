//! Watch of one kind of Kubernetes object: list, then watch from the list's version on. A watch
//! that ends is resumed at its last version. When that is no longer possible, and in any case from
//! time to time, the list is requested again.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::config::discover::KubernetesSource;
use crate::fleet::discovery::pause::RetryPauses;

use super::api::{KubeApi, KubeError, KubeResource};
use super::lines::LineBuffer;

/// Longest pause between two tries.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this has not been one.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// What every object has.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectMetadata {
    pub(super) name: String,
    pub(super) resource_version: String,
}

/// An object of the kind that is followed.
pub(super) trait KubeObject: DeserializeOwned {
    /// What to say of an answer that is no list of them.
    const NO_LIST: &'static str;

    fn metadata(&self) -> &ObjectMetadata;
}

/// Whom the objects are told to.
pub(super) trait ObjectStore {
    type Object: KubeObject;

    /// All objects there are.
    fn replace(&mut self, all: Vec<Self::Object>) -> Result<(), KubeError>;
    /// One that is new or has changed; whether that changes anything.
    fn put(&mut self, object: Self::Object) -> bool;
    /// One that is gone.
    fn remove(&mut self, object: &Self::Object) -> bool;
    /// What is known holds, changed or not.
    fn publish(&mut self) -> Result<(), KubeError>;
    /// The server cannot be asked. What is known holds.
    fn lost(&mut self, why: &str);
}

/// One line of a watch.
#[derive(Deserialize)]
struct WatchEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Box<serde_json::value::RawValue>,
}

/// What is known of a resource beside its content.
#[derive(Deserialize)]
struct Bookmark {
    metadata: ResourceVersion,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceVersion {
    resource_version: String,
}

/// The API server's own word on what went wrong.
#[derive(Deserialize)]
struct KubeStatus {
    code: u16,
    #[serde(default)]
    message: String,
}

/// How far a watch has come.
struct KubeWatcher<'a, A> {
    rules: &'a KubernetesSource,
    resource: KubeResource,
    audience: A,
    /// What the next watch goes on from; absent = from a new list.
    version: Option<String>,
    relist_at: Instant,
}

/// Asks for ever.
pub(super) async fn follow<A: ObjectStore>(
    rules: &KubernetesSource,
    resource: KubeResource,
    audience: A,
    mut pauses: RetryPauses,
) {
    let relist_at = Instant::now();
    let mut watcher = KubeWatcher { rules, resource, audience, version: None, relist_at };
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
                watcher.audience.lost(&problem.to_string());
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
    /// Lists if need be, and watches for as long as that goes well.
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
                self.audience.replace(all)?;
                return Ok(page.metadata.resource_version);
            }
        }
    }

    async fn watch(&mut self, api: &KubeApi, version: &str, rest: Duration) -> Result<(), KubeError> {
        let mut answer = api.watch(version, rest).await?;
        // The server is there: what is known holds.
        self.audience.publish()?;
        let mut lines = LineBuffer::default();
        while let Some(chunk) = answer.chunk().await.map_err(|_| KubeError::Broken)? {
            lines.add(&chunk);
            let mut changed = false;
            while let Some(line) = lines.next() {
                changed |= self.event(&line)?;
            }
            if lines.is_too_long() {
                return Err(KubeError::NotUnderstood("a line of the watch is too long"));
            }
            if changed {
                self.audience.publish()?;
            }
        }
        Ok(())
    }

    /// Takes note of one event; whether it changed anything.
    fn event(&mut self, line: &[u8]) -> Result<bool, KubeError> {
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
        Ok(if gone { self.audience.remove(&object) } else { self.audience.put(object) })
    }
}
