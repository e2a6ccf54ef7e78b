//! Gateway fixture: a real gateway in front of simulated engines, over loopback, with clients of
//! many kinds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use penstock::app::Gateway;
use penstock::config::keys::{self, NewKey};
use penstock::config::watch::Reloader;
use penstock::core::model::snapshot::Snapshot;
use penstock::sim::server::{SimControl, SimHandle, SimOptions, SimServer};
use penstock::telemetry::Telemetry;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::support::client::{Answer, Call};

/// How long a test waits for anything before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The model that every rig serves unless its options say otherwise.
pub(crate) const MODEL: &str = "sim";

/// The tenant that [`Rig::post`] speaks for.
pub(crate) const TENANT: &str = "alpha";

/// What to start.
#[derive(Default)]
pub(crate) struct RigOptions {
    /// The engines of the pool `main`. Empty = one, with default options.
    pub(crate) engines: Vec<SimOptions>,
    /// URLs that stand in the pool in place of the engines' own.
    pub(crate) urls: Vec<String>,
    /// Lines of the pool `main` in place of `engine: vllm` and
    /// `models: [sim]`.
    pub(crate) pool: Option<&'static str>,
    /// Tenants with the lines that stand under their names besides their
    /// keys. Empty = `alpha`.
    pub(crate) tenants: Vec<(&'static str, &'static str)>,
    /// Keys of the section `server`, besides the addresses.
    pub(crate) server: &'static str,
    /// More pools, from [`pool_lines`].
    pub(crate) more_pools: String,
    /// More sections of the file.
    pub(crate) more: String,
}

/// A running gateway and its engines. Dropping it stops everything.
pub(crate) struct Rig {
    pub(crate) gateway: Gateway,
    pub(crate) engines: Vec<SimHandle>,
    pub(crate) telemetry: Telemetry,
    pub(crate) keys: BTreeMap<&'static str, NewKey>,
    /// The configuration file.
    pub(crate) path: PathBuf,
    pub(crate) folder: TempDir,
}

/// The key of a tenant: the same in every run.
pub(crate) fn key_of(tenant: &str) -> NewKey {
    let mut seed = [0; keys::RANDOM_BYTES];
    seed[..32].copy_from_slice(&keys::digest(tenant));
    keys::new(&seed)
}

/// The lines of a tenant.
pub(crate) fn tenant_lines(name: &str, lines: &str) -> String {
    let NewKey { id, digest, .. } = key_of(name);
    let mut text = format!("  {name}:\n");
    for line in lines.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let _infallible = writeln!(text, "    {line}");
    }
    text + &format!("    keys: [{{id: {id}, digest: \"{digest}\"}}]\n")
}

/// The lines of a pool.
pub(crate) fn pool_lines(name: &str, lines: &str, urls: &[String]) -> String {
    let mut text = format!("  {name}:\n");
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let _infallible = writeln!(text, "    {line}");
    }
    text + &format!("    replicas: [{}]\n", urls.join(", "))
}

/// The first lines of every file; free ports.
pub(crate) fn head(server: &str) -> String {
    let comma = if server.is_empty() { "" } else { ", " };
    format!("version: 1\nserver: {{listen: \"127.0.0.1:0\", admin: \"127.0.0.1:0\"{comma}{server}}}\n")
}

impl Rig {
    /// Starts engines, writes the file, starts the gateway.
    pub(crate) async fn start(options: RigOptions) -> Self {
        let mut simulated = options.engines;
        if simulated.is_empty() && options.urls.is_empty() {
            simulated.push(SimOptions::default());
        }
        let mut engines = Vec::new();
        for engine in simulated {
            engines.push(SimServer::start(engine).await.unwrap());
        }
        let mut urls = options.urls;
        if urls.is_empty() {
            urls = engines.iter().map(SimHandle::url).collect();
        }
        let mut tenants = options.tenants;
        if tenants.is_empty() {
            tenants.push((TENANT, ""));
        }
        let mut text = head(options.server) + "tenants:\n";
        for (name, lines) in &tenants {
            text += &tenant_lines(name, lines);
        }
        text += "pools:\n";
        text += &pool_lines("main", options.pool.unwrap_or("engine: vllm\nmodels: [sim]"), &urls);
        text += &options.more_pools;
        text += &options.more;
        Self::with_file(&text, engines, tenants.iter().map(|(name, _)| *name)).await
    }

    /// Starts a gateway under a file of the test's own.
    pub(crate) async fn with_file(
        text: &str,
        engines: Vec<SimHandle>,
        tenants: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("penstock.yaml");
        std::fs::write(&path, text).unwrap();
        Self::at(folder, path, engines, tenants).await
    }

    /// Starts a gateway under a file that is there already.
    pub(crate) async fn at(
        folder: TempDir,
        path: PathBuf,
        engines: Vec<SimHandle>,
        tenants: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        let (reloader, _) = Reloader::start(path.clone()).unwrap_or_else(|report| panic!("{report}"));
        let telemetry = Telemetry::for_tests();
        let gateway = Gateway::start(reloader, telemetry.clone()).await.unwrap();
        let keys = tenants.into_iter().map(|name| (name, key_of(name))).collect();
        Self { gateway, engines, telemetry, keys, path, folder }
    }

    /// Puts another configuration file in place at once.
    pub(crate) fn put(&self, text: &str) {
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.path).unwrap();
    }

    /// Generation of the configuration that every part of the gateway follows.
    pub(crate) fn generation(&self) -> u64 {
        self.gateway.proxy().telemetry.policy().generation
    }

    /// Requests that wait for a replica.
    pub(crate) fn waiting(&self) -> u64 {
        self.snapshot().queues.iter().map(|queue| queue.waiting).sum()
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    /// The controls of an engine.
    pub(crate) fn engine(&self, number: usize) -> SimControl {
        self.engines[number].control()
    }

    /// The text of a tenant's key.
    pub(crate) fn key(&self, tenant: &str) -> &str {
        &self.keys[tenant].text
    }

    /// The scheduler's picture of this moment.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.gateway.proxy().dispatcher.snapshot()
    }

    /// Whether nothing waits or runs, in the scheduler, in its ledgers, among
    /// the bodies held, and in the engines.
    pub(crate) fn is_empty(&self) -> bool {
        self.leftovers().is_empty()
    }

    /// What is still there, for people.
    pub(crate) fn leftovers(&self) -> String {
        let mut text = String::new();
        let snapshot = self.snapshot();
        if snapshot.jobs > 0 {
            let _infallible = writeln!(text, "{} jobs", snapshot.jobs);
        }
        for queue in &snapshot.queues {
            let _infallible = writeln!(text, "{queue:?}");
        }
        for replica in &snapshot.replicas {
            if replica.running > 0 || replica.prefill_tokens > 0 || replica.kv_tokens > 0 {
                let _infallible = writeln!(text, "{replica:?}");
            }
        }
        let held = self.gateway.proxy().memory.bodies.held();
        if held > 0 {
            let _infallible = writeln!(text, "{held} body bytes");
        }
        for engine in &self.engines {
            let state = engine.control().state();
            if state.running + state.waiting + state.inside > 0 {
                let _infallible = writeln!(text, "{state:?}");
            }
        }
        text
    }

    /// Waits until nothing is left; says what is, when it does not go.
    pub(crate) async fn emptied_within(&self, limit: Duration) {
        if !holds_within(limit, || self.is_empty()).await {
            panic!("still there after {limit:?}:\n{}", self.leftovers());
        }
    }

    /// The "request finished" lines so far.
    pub(crate) fn finished(&self) -> Vec<Value> {
        let log = self.telemetry.captured_log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == "request finished").collect()
    }

    /// The one line of a request, once it is there.
    pub(crate) async fn line_of(&self, request_id: &str) -> Value {
        let lines = || {
            let lines = self.finished().into_iter();
            lines.filter(|line| line["request_id"] == request_id).collect::<Vec<_>>()
        };
        until("the request's log line", || !lines().is_empty()).await;
        let mut lines = lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }

    /// A request of the tenant [`TENANT`].
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        Call::post(path, body).key(self.key(TENANT)).send(self.address()).await
    }

    /// Asks the admin port.
    pub(crate) async fn admin(&self, method: Method, path: &str) -> Answer {
        let call = Call::new(method, path).header("content-type", "application/json");
        call.send(self.gateway.admin_address()).await
    }

    /// The value of a metric, all its series added up.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.admin(Method::GET, "/metrics").await.text();
        let series = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

/// A chat request that runs for exactly `tokens` tokens.
pub(crate) fn chat(tokens: u32, stream: bool) -> Value {
    json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "how high is the water?" }],
        "max_tokens": tokens,
        "ignore_eos": true,
        "stream": stream,
    })
}

/// Waits for `condition`, and fails when it does not come about.
pub(crate) async fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(PATIENCE, condition).await, "not within {PATIENCE:?}: {what}");
}

/// Whether `condition` comes about in time.
pub(crate) async fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// The value of `future`, which must come in time.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}
