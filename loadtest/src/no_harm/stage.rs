//! Stage of one matrix cell: its engines, its gateway, and both sides measured.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hyper::header::HeaderValue;
use penstock::config::keys::NewKey;
use penstock::sim::engine::profile::StepTimeFactor;
use penstock::studies::no_harm::matrix::{CLASSES, MatrixCell};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::child::{Child, free_port};
use crate::client::fetch;
use crate::closed::{Answers, Closed, Served, Work};
use crate::engines::Ready;
use crate::target::{Endpoint, bearer};
use crate::template::keys_for;

/// Until the gateway is ready.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two sides: the gateway's next scrape shows that the engines are idle again.
const SETTLE: Duration = Duration::from_millis(2500);
/// When a request is given up. Clients are patient.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What all cells share.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) penstock: PathBuf,
    pub(super) loadtest: PathBuf,
    pub(super) work: PathBuf,
    pub(super) warmup: Duration,
    pub(super) window: Duration,
    pub(super) speedup: f64,
    pub(super) off_model: Vec<StepTimeFactor>,
    pub(super) prefix_cache: bool,
}

/// Both sides of a cell, measured in one round.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) straight: Served,
    pub(super) through: Served,
}

/// A cell's processes; dropping them ends them.
pub(super) struct Running {
    _engines: Vec<Child>,
    _gateway: Child,
    straight: Vec<Endpoint>,
    through: Vec<Endpoint>,
    admin: Endpoint,
    key: HeaderValue,
}

impl Stage {
    pub(super) async fn start(&self, cell: &MatrixCell) -> Result<Running> {
        let folder = self.work.join(cell.name().replace('/', "-"));
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let mut engines = Vec::new();
        let mut pools = BTreeMap::new();
        for group in cell.fleet.groups {
            let mut command = Command::new(&self.loadtest);
            command.args(["engines", "--profile", group.profile, "--count", &group.count.to_string()]);
            command.args(["--speed", &self.speedup.to_string()]);
            command.args(self.off_model.iter().map(|factor| format!("--scale={factor}")));
            if !self.prefix_cache {
                command.arg("--no-prefix-cache");
            }
            let (child, Ready { urls }) = Child::serve(group.profile, &mut command, &folder).await?;
            engines.push(child);
            pools.insert(group.profile, urls);
        }
        let key = keys_for(&["bench".to_owned()]).remove("bench").context("no key was made")?;
        let [listen, admin] = [free_port()?, free_port()?];
        let config = folder.join("penstock.yaml");
        std::fs::write(&config, self.config(&listen, &admin, &key, &pools))
            .with_context(|| format!("write {}", config.display()))?;
        let mut command = Command::new(&self.penstock);
        command.arg("serve").arg("--config").arg(&config);
        let mut gateway = Child::start("penstock", &mut command, &folder)?;
        let admin = Endpoint::new(&format!("http://{admin}"), "").await?;
        ready(&admin.clone().with_path("/readyz")?, &mut gateway).await?;
        let mut straight = Vec::new();
        for url in pools.values().flatten() {
            straight.push(Endpoint::new(url, "chat/completions").await?);
        }
        Ok(Running {
            _engines: engines,
            _gateway: gateway,
            straight,
            through: vec![Endpoint::new(&format!("http://{listen}"), "chat/completions").await?],
            admin,
            key: bearer(&key.text)?,
        })
    }

    /// The gateway's configuration: what it must be told, and nothing else.
    fn config(&self, listen: &str, admin: &str, key: &NewKey, pools: &BTreeMap<&str, Vec<String>>) -> String {
        let mut text = format!(
            "version: 1\nserver: {{listen: \"{listen}\", admin: \"{admin}\"}}\n\
            telemetry: {{log: {{level: warn}}}}\n\
            tenants: {{bench: {{keys: [{{id: {}, digest: \"{}\"}}]}}}}\npools:\n",
            key.id, key.digest
        );
        for (name, urls) in pools {
            // Writing to a String cannot fail.
            let _ =
                writeln!(text, "  {name}: {{engine: vllm, models: [sim], replicas: [{}]}}", urls.join(", "));
        }
        if (self.speedup - 1.0).abs() > 1e-9 {
            text.push_str("classes:\n");
            for (rank, (class, ttft_ms)) in CLASSES.iter().zip([1e3, 5e3, 6e4]).enumerate() {
                let [ttft, itl] = [ttft_ms, class.itl_ms].map(|ms| (ms / self.speedup).round().max(1.0));
                let _ = writeln!(
                    text,
                    "  {}: {{rank: {rank}, ttft: {ttft}ms, itl: {itl}ms, max_wait: 1h}}",
                    class.name
                );
            }
        }
        text
    }

    /// Both sides, one after the other; which is first turns with the rounds.
    pub(super) async fn round(&self, cell: &MatrixCell, running: &Running, round: u32) -> Result<Pair> {
        let seed = u64::from(round) * 2;
        if round.is_multiple_of(2) {
            let through = self.side(cell, running, true, seed).await?;
            return Ok(Pair { straight: self.side(cell, running, false, seed + 1).await?, through });
        }
        let straight = self.side(cell, running, false, seed).await?;
        Ok(Pair { straight, through: self.side(cell, running, true, seed + 1).await? })
    }

    async fn side(&self, cell: &MatrixCell, running: &Running, through: bool, seed: u64) -> Result<Served> {
        sleep(SETTLE).await;
        let asked = cell.requests();
        let answers = match asked.plain {
            0.0 => Answers::Streams,
            1.0 => Answers::Plain,
            _ => Answers::Half,
        };
        let closed = Closed {
            targets: if through { running.through.clone() } else { running.straight.clone() },
            key: through.then(|| running.key.clone()),
            class: through.then(|| HeaderValue::from_static(cell.class.name)),
            clients: asked.clients,
            work: Work {
                model: "sim".to_owned(),
                answers,
                prompt: asked.prompt,
                shared: asked.shared,
                output: asked.output,
                n: asked.n,
                bytes_per_token: 4.0,
                seed,
            },
            warmup: self.warmup,
            window: self.window,
            timeout: TIMEOUT,
        };
        let served = closed.run().await?;
        if served.total.is_none() {
            let side = if through { "through the gateway" } else { "straight" };
            bail!("{}, {side}: no request succeeded: {:?}", cell.name(), served.outcomes);
        }
        Ok(served)
    }
}

impl Running {
    /// Objectives that no pool has kept, as the gateway reports them.
    pub(super) async fn unkept(&self) -> Result<Vec<String>> {
        let endpoint = self.admin.clone().with_path("/admin/v1/status")?;
        let status: Value = serde_json::from_str(&fetch(&endpoint, endpoint.get()).await?)?;
        let rows = status["unkept_promises"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(rows.iter().map(Value::to_string).collect())
    }
}

async fn ready(endpoint: &Endpoint, gateway: &mut Child) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while fetch(endpoint, endpoint.get()).await.is_err() {
        gateway.alive()?;
        if Instant::now() >= end {
            bail!("the gateway is not ready after {} s", PATIENCE.as_secs());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
