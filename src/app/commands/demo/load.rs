//! Demo load: every tenant in every class that it may use. The load asks for about two thirds of
//! what the demo's fleet can do, so that there is something to see; bursts of batch work wait for
//! seconds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

/// Most requests in flight, over all tenants.
const MAX_IN_FLIGHT: usize = 400;

/// Clients of one tenant.
#[derive(Debug)]
pub(in crate::app) struct DemoClients {
    pub(in crate::app) key: String,
    /// Classes that the clients use.
    pub(in crate::app) classes: &'static [&'static str],
}

/// Starts the load; dropping the result stops it.
pub(in crate::app) fn start(
    gateway: SocketAddr,
    model: &'static str,
    clients: impl Iterator<Item = DemoClients>,
) -> JoinSet<()> {
    let mut streams = JoinSet::new();
    let client = reqwest::Client::new();
    let slots = Arc::new(tokio::sync::Semaphore::new(MAX_IN_FLIGHT));
    for (number, tenant) in clients.enumerate() {
        for class in tenant.classes {
            let source = DemoSource {
                client: client.clone(),
                url: format!("http://{gateway}/v1/chat/completions"),
                key: tenant.key.clone(),
                model,
                class,
                slots: Arc::clone(&slots),
            };
            streams.spawn(source.run(number as u64 + 1));
        }
    }
    streams
}

struct DemoSource {
    client: reqwest::Client,
    url: String,
    key: String,
    model: &'static str,
    class: &'static str,
    slots: Arc<tokio::sync::Semaphore>,
}

impl DemoSource {
    /// Sends requests with pauses and sizes that look random and are the same in every run. Batch
    /// work comes in bursts.
    async fn run(self, seed: u64) {
        let source = Arc::new(self);
        let mut requests = JoinSet::new();
        let mut state = seed;
        loop {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = (state >> 33) % 1000;
            let (burst, gap) = match source.class {
                "interactive" => (1, 200 + draw / 10),
                "standard" => (1, 500 + draw / 3),
                _ => (80, 12_000 + draw * 5),
            };
            for number in 0..burst {
                let Ok(slot) = Arc::clone(&source.slots).try_acquire_owned() else {
                    break;
                };
                let source = Arc::clone(&source);
                let words = 20 + (draw * (number + 1)) % 700;
                requests.spawn(async move {
                    source.request(words, 16 + draw % 240).await;
                    drop(slot);
                });
            }
            while requests.try_join_next().is_some() {}
            tokio::time::sleep(Duration::from_millis(gap)).await;
        }
    }

    async fn request(&self, words: u64, max_tokens: u64) {
        let words = usize::try_from(words).unwrap_or(1);
        let body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": "water ".repeat(words) }],
            "max_tokens": max_tokens,
            "stream": true,
        });
        let sent = self
            .client
            .post(&self.url)
            .bearer_auth(&self.key)
            .header("x-penstock-class", self.class)
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await;
        // A refusal is part of the demo; the gateway's log and metrics show it.
        if let Ok(mut answer) = sent {
            while let Ok(Some(_)) = answer.chunk().await {}
        }
    }
}
