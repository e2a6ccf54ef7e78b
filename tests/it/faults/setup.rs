//! Set-up of fault tests: a gateway with engines that fail on command.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock::sim::server::{ServerDialect, SimHandle, SimOptions, SimServer};
use serde_json::{Value, json};

use super::reply::{Open, Reply};
use crate::support::gateway::{self, TENANT, head, pool_lines, tenant_lines, until};

/// The public model; the engines call it [`ENGINE_MODEL`].
pub(super) const MODEL: &str = "llama";
/// What engines call the model; clients must never see it.
pub(super) const ENGINE_MODEL: &str = "engine-side-name";

/// What differs from two vLLM engines with room for 8 sequences each, where a
/// stream that breaks stays broken.
pub(super) struct Setup {
    pub(super) engines: Vec<SimOptions>,
    /// Base URLs of further replicas in the same pool.
    pub(super) more_replicas: Vec<String>,
    /// Further lines of the pool.
    pub(super) pool: &'static str,
    /// Keys of the section `retry`.
    pub(super) retry: String,
    /// Further sections of the file.
    pub(super) yaml: String,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            engines: vec![engine(), engine()],
            more_replicas: Vec::new(),
            pool: "max_seqs: 8",
            retry: "continue_streams: false".into(),
            yaml: String::new(),
        }
    }
}

/// A quick vLLM.
pub(super) fn engine() -> SimOptions {
    SimOptions { models: vec![ENGINE_MODEL.to_owned()], ..SimOptions::default() }
}

/// A quick TGI.
pub(super) fn tgi() -> SimOptions {
    SimOptions { dialect: ServerDialect::Tgi, ..engine() }
}

/// The same, which closes no connection that is not used for a while.
pub(super) fn patient(mut options: SimOptions) -> SimOptions {
    options.connections.keep_alive = Duration::from_secs(300);
    options
}

/// A running gateway and its engines; dropping it stops everything.
pub(super) struct Rig {
    rig: gateway::Rig,
    /// Requests that were sent with [`Rig::open`].
    opened: AtomicUsize,
}

impl Deref for Rig {
    type Target = gateway::Rig;

    fn deref(&self) -> &gateway::Rig {
        &self.rig
    }
}

impl Rig {
    pub(super) async fn start(setup: Setup) -> Self {
        let kind = match setup.engines.first().map(|engine| engine.dialect) {
            Some(ServerDialect::Tgi) => "tgi",
            _ => "vllm",
        };
        let mut engines = Vec::new();
        for options in setup.engines {
            engines.push(SimServer::start(options).await.unwrap());
        }
        let urls: Vec<String> = engines.iter().map(SimHandle::url).chain(setup.more_replicas).collect();
        let pool = format!("engine: {kind}\nmodels: {{{MODEL}: {ENGINE_MODEL}}}\n{}", setup.pool);
        let text = head("") + "tenants:\n" + &tenant_lines(TENANT, "") + "pools:\n";
        let retry = format!("retry: {{{}}}\n", setup.retry);
        let text = text + &pool_lines("pool", &pool, &urls) + &retry + &setup.yaml;
        let rig = gateway::Rig::with_file(&text, engines, [TENANT]).await;
        Self { rig, opened: AtomicUsize::new(0) }
    }

    /// The name of an engine's replica in log lines.
    pub(super) fn replica(&self, engine: usize) -> String {
        format!("pool/{}", self.engines[engine].url())
    }

    /// Waits until nothing waits or runs in the gateway and each request has its log line, and checks
    /// that the books are even.
    pub(super) async fn settled(&self) {
        until("no job is left", || self.snapshot().jobs == 0).await;
        // A job ends before its line is written.
        let finished = || self.telemetry.captured_log().matches("\"message\":\"request finished\"").count();
        until("each request's log line", || finished() >= self.opened.load(Ordering::Relaxed)).await;
        let snapshot = self.snapshot();
        assert_eq!(snapshot.broken_invariants, 0);
        assert!(snapshot.queues.is_empty(), "{snapshot:?}");
        for replica in &snapshot.replicas {
            assert_eq!(
                (replica.running, replica.prefill_tokens, replica.kv_tokens),
                (0, 0, 0),
                "{snapshot:?}"
            );
        }
    }

    /// Log lines with this message.
    pub(super) fn log(&self, message: &str) -> Vec<Value> {
        let log = self.telemetry.captured_log();
        let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.filter(|line: &Value| line["message"] == message).collect()
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.open(path, body).await.finish().await
    }

    /// Sends a request.
    pub(super) async fn open(&self, path: &str, body: &Value) -> Open {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.key(TENANT),
            body.len(),
        );
        let open = Open::send(self.address(), request.as_bytes()).await.unwrap();
        self.opened.fetch_add(1, Ordering::Relaxed);
        open
    }
}

/// A chat of `tokens` tokens, no more and no less.
pub(super) fn chat(tokens: u32, stream: bool) -> Value {
    json!({
        "model": MODEL, "max_tokens": tokens, "ignore_eos": true, "stream": stream,
        "messages": [{"role": "user", "content": "tell me something"}],
    })
}
