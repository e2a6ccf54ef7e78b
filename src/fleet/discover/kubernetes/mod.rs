//! Replicas from the EndpointSlices of a Kubernetes Service: list, then watch
//! from the list's version on. A watch that ends goes on where it was; where
//! that is no longer possible, and now and then in any case, the list is asked
//! for again. Whatever fails, the last view holds.

mod api;
mod lines;
mod slices;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::config::discover::Kubernetes;
use crate::fleet::discover::board::Desk;
use crate::fleet::discover::pause::Pauses;

use self::api::{Api, Trouble};
use self::lines::Lines;
use self::slices::{Slice, Slices};

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this has not been one.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// One line of a watch.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Box<serde_json::value::RawValue>,
}

/// What is known of a resource beside its content.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bookmark {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

/// The API server's own word on what went wrong.
#[derive(Deserialize)]
struct Status {
    code: u16,
    #[serde(default)]
    message: String,
}

/// How far a watch has come.
struct Watcher<'a> {
    rules: &'a Kubernetes,
    desk: &'a Desk,
    slices: Slices,
    /// What the next watch goes on from; absent = from a new list.
    version: Option<String>,
    relist_at: Instant,
}

/// Asks for ever.
pub(super) async fn run(rules: &Kubernetes, desk: &Desk) {
    run_with(rules, desk, Pauses::new(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
}

async fn run_with(rules: &Kubernetes, desk: &Desk, mut pauses: Pauses) {
    let relist_at = Instant::now();
    let mut watcher = Watcher { rules, desk, slices: Slices::default(), version: None, relist_at };
    loop {
        let started = Instant::now();
        let ended = watcher.session().await;
        let worked = started.elapsed() >= SHORT_WATCH;
        match ended {
            Ok(()) | Err(Trouble::Broken) if worked => pauses.reset(),
            Ok(()) | Err(Trouble::Broken) => sleep(pauses.next()).await,
            Err(Trouble::Gone) => {
                watcher.version = None;
                sleep(pauses.next()).await;
            }
            Err(trouble) => {
                desk.lost(&trouble.to_string());
                if let Trouble::NotUnderstood(_) = trouble {
                    watcher.version = None;
                }
                let asked = trouble.retry_after().unwrap_or_default().min(LONGEST_PAUSE);
                sleep(pauses.next().max(asked)).await;
            }
        }
    }
}

impl Watcher<'_> {
    /// Lists if need be, and watches for as long as that goes well.
    async fn session(&mut self) -> Result<(), Trouble> {
        let api = Api::new(self.rules).await?;
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

    async fn list(&mut self, api: &Api) -> Result<String, Trouble> {
        let mut slices = Slices::default();
        let mut after = None;
        loop {
            let page = api.list(after.as_deref()).await?;
            for slice in page.items {
                slices.put(slice);
            }
            after = page.metadata.next.filter(|next| !next.is_empty());
            if after.is_none() {
                self.slices = slices;
                self.version = Some(page.metadata.resource_version.clone());
                self.relist_at = Instant::now() + self.rules.resync;
                self.publish()?;
                return Ok(page.metadata.resource_version);
            }
        }
    }

    async fn watch(&mut self, api: &Api, version: &str, rest: Duration) -> Result<(), Trouble> {
        let mut answer = api.watch(version, rest).await?;
        // The server is there: what is known holds.
        self.publish()?;
        let mut lines = Lines::default();
        while let Some(chunk) = answer.chunk().await.map_err(|_| Trouble::Broken)? {
            lines.add(&chunk);
            let mut changed = false;
            while let Some(line) = lines.next() {
                changed |= self.event(&line)?;
            }
            if lines.is_too_long() {
                return Err(Trouble::NotUnderstood("a line of the watch is too long"));
            }
            if changed {
                self.publish()?;
            }
        }
        Ok(())
    }

    /// Takes note of one event; whether it changed the slices.
    fn event(&mut self, line: &[u8]) -> Result<bool, Trouble> {
        let strange = |_| Trouble::NotUnderstood("the watch has a line that is no event");
        let event: Event = serde_json::from_slice(line).map_err(strange)?;
        let object = event.object.get();
        match event.kind.as_str() {
            "ERROR" => {
                let status: Status = serde_json::from_str(object).map_err(strange)?;
                return Err(Trouble::of(status.code, status.message, None));
            }
            "BOOKMARK" => {
                let bookmark: Bookmark = serde_json::from_str(object).map_err(strange)?;
                self.version = Some(bookmark.metadata.resource_version);
                return Ok(false);
            }
            "ADDED" | "MODIFIED" | "DELETED" => {}
            _ => return Err(Trouble::NotUnderstood("the watch has an event of an unknown type")),
        }
        let slice: Slice = serde_json::from_str(object).map_err(strange)?;
        self.version = Some(slice.version().to_owned());
        if event.kind == "DELETED" {
            self.slices.remove(&slice);
        } else {
            self.slices.put(slice);
        }
        Ok(true)
    }

    fn publish(&self) -> Result<(), Trouble> {
        self.desk.found(self.slices.endpoints(self.rules)?);
        Ok(())
    }
}
