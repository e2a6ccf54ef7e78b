//! Stage of a comparison: engines and contestant start fresh, the load is sent, and everything is
//! stopped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use penstock::sim::server::SimState;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::scenario::{Contestant, EngineGroup, Kind, PlannedFault, Scenario};
use crate::child::{Child, free_port};
use crate::client::fetch;
use crate::engines::Ready;
use crate::process;
use crate::replay::{self, Drive, LEAD, Length, Plan, Results, Writer};
use crate::target::Endpoint;
use crate::template::{Values, fill, fill_arguments, keys_for};

/// Until a contestant answers its first call.
const PATIENCE: Duration = Duration::from_secs(20);
/// What all runs share.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) scenario: Scenario,
    /// Where the scenario's paths start.
    pub(super) folder: PathBuf,
    /// Where logs and configurations of the runs go.
    pub(super) work: PathBuf,
    /// This program.
    pub(super) loadtest: PathBuf,
    /// The gateway.
    pub(super) penstock: PathBuf,
    /// Whether there is a progress line.
    pub(super) quiet: bool,
}

/// What came of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Who.
    pub contestant: String,
    /// In which round, from 1.
    pub round: u32,
    /// How it did.
    pub results: Results,
    /// CPU time of the contestant's process for each call, milliseconds;
    /// absent for one that ran already.
    pub cpu_ms: Option<f64>,
    /// What a thousand served calls cost, where engines have a price: see
    /// [`super::Row::cost`].
    pub cost_per_1000: Option<f64>,
    /// Share of all cores that was busy meanwhile. Near 1 the machine was too
    /// small, and the figures are worth little.
    pub busy: f64,
}

/// A contestant that can be called.
struct Started {
    url: String,
    /// `None` for one that ran already.
    child: Option<Child>,
}

impl Stage {
    /// Runs one contestant once.
    pub(super) async fn run(&self, contestant: &Contestant, round: u32, label: &str) -> Result<Run> {
        let plan = Arc::new(self.plan(contestant, round)?);
        let folder = self.work.join(format!("{round}-{}", file_name(&contestant.name)));
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let mut engines = Vec::new();
        let mut urls = BTreeMap::new();
        for (name, group) in &self.scenario.engines {
            let (child, ready) = self.engines(name, group, &folder).await?;
            engines.push(child);
            urls.insert(name.clone(), ready.urls);
        }
        let mut started = self.start(contestant, &urls, &plan, &folder).await?;
        let drive = self.drive(&started.url, contestant, &plan).await?;
        first_answer(&drive, &plan, &mut started).await?;
        sleep(Duration::from_secs_f64(self.scenario.settle_s)).await;

        let faults = self.faults(&urls).await?;
        let pids: Vec<u32> = started.child.iter().map(Child::pid).collect();
        let spent = self.spent(&urls).await?;
        let (cpu, busy) = (process::cpu_micros(&pids)?, process::machine_ticks()?);
        let drive = Drive { label: (!self.quiet).then(|| label.to_owned()), ..drive };
        let records = replay::run(drive, Arc::clone(&plan)).await?;
        let (cpu, busy) = (process::cpu_micros(&pids)?.saturating_sub(cpu), process::machine_ticks()? - busy);
        drop(faults);
        let spent = self.spent(&urls).await? - spent;
        started.child.as_mut().map_or(Ok(()), Child::alive)?;
        let scenario = &self.scenario;
        let cpu_ms = cpu as f64 / 1e3 / plan.calls.len() as f64;
        Ok(Run {
            contestant: contestant.name.clone(),
            round,
            results: Results::of(&plan, &records, scenario.warmup, &scenario.objectives, &scenario.judged),
            cost_per_1000: (spent > 0.0).then(|| {
                let served = records.iter().filter(|record| record.served()).count();
                spent / served.max(1) as f64 * 1000.0
            }),
            cpu_ms: started.child.is_some().then_some(cpu_ms),
            busy: busy.share(),
        })
    }

    /// What the engines' computing has cost since their start.
    async fn spent(&self, urls: &BTreeMap<String, Vec<String>>) -> Result<f64> {
        let mut spent = 0.0;
        for (name, group) in self.scenario.engines.iter().filter(|(_, group)| group.price > 0.0) {
            for url in &urls[name] {
                let endpoint = Endpoint::new(url, "").await?.with_path("/sim/state")?;
                let state: SimState = serde_json::from_str(&fetch(&endpoint, endpoint.get()).await?)?;
                spent += state.busy_ms as f64 / 3.6e6 * group.speed * group.price;
            }
        }
        Ok(spent)
    }

    fn plan(&self, contestant: &Contestant, round: u32) -> Result<Plan> {
        let seed = self.scenario.seed + u64::from(round - 1);
        let mut plan = Plan::of(&self.scenario.load, &self.folder, seed)?;
        let without =
            |class: &Option<String>| class.as_ref().is_some_and(|class| contestant.without.contains(class));
        let left_out: Vec<bool> = plan.classes.iter().map(without).collect();
        plan.calls.retain(|call| !left_out[call.class]);
        if plan.calls.is_empty() {
            bail!("contestant {}: `without` leaves no call", contestant.name);
        }
        Ok(plan)
    }

    async fn engines(&self, name: &str, group: &EngineGroup, folder: &Path) -> Result<(Child, Ready)> {
        let mut command = Command::new(&self.loadtest);
        command.args(["engines", "--profile", &group.profile, "--model", &self.scenario.model]);
        command.args(["--count", &group.count.to_string(), "--speed", &group.speed.to_string()]);
        if let Some(most) = group.max_seqs {
            command.args(["--max-seqs", &most.to_string()]);
        }
        if !group.prefix_cache {
            command.arg("--no-prefix-cache");
        }
        Child::serve(&format!("engines-{}", file_name(name)), &mut command, folder).await
    }

    async fn start(
        &self,
        contestant: &Contestant,
        engines: &BTreeMap<String, Vec<String>>,
        plan: &Plan,
        folder: &Path,
    ) -> Result<Started> {
        match contestant.kind()? {
            Kind::Url(url) => Ok(Started { url: url.to_owned(), child: None }),
            Kind::Proxy(mode, maxconn) => {
                let mut command = Command::new(&self.loadtest);
                let mode = serde_json::to_value(mode)?;
                command.args(["proxy", "--mode", mode.as_str().unwrap_or_default()]);
                command.args(engines.values().flatten().flat_map(|url| ["--server", url]));
                if let Some(most) = maxconn {
                    command.args(["--maxconn", &most.to_string()]);
                }
                let (child, mut ready) = Child::serve("proxy", &mut command, folder).await?;
                let url = ready.urls.pop().context("the proxy has no address")?;
                Ok(Started { url, child: Some(child) })
            }
            Kind::Program(words, config) => {
                let [listen, admin] = [free_port()?, free_port()?];
                let (folder, keys) = (absolute(folder)?, BTreeMap::new());
                let values = Values { listen: &listen, admin: &admin, folder: &folder, engines, keys: &keys };
                let config = match config {
                    Some(template) => self.configure(template, "router.conf", &values)?.display().to_string(),
                    None => String::new(),
                };
                let words: Vec<String> =
                    words.iter().map(|word| word.replace("{{config}}", &config)).collect();
                let words = fill_arguments(&words, &values).context("program")?;
                let mut command = Command::new(&words[0]);
                let child = Child::start("router", command.args(&words[1..]), Path::new(&folder))?;
                Ok(Started { url: format!("http://{listen}"), child: Some(child) })
            }
            Kind::Penstock(template) => {
                let [listen, admin] = [free_port()?, free_port()?];
                let (folder, keys) = (absolute(folder)?, keys_for(&plan.tenants));
                let values = Values { listen: &listen, admin: &admin, folder: &folder, engines, keys: &keys };
                let config = self.configure(template, "penstock.yaml", &values)?;
                let mut command = Command::new(&self.penstock);
                command.arg("serve").arg("--config").arg(&config);
                let child = Child::start("penstock", &mut command, Path::new(&folder))?;
                Ok(Started { url: format!("http://{listen}"), child: Some(child) })
            }
        }
    }

    /// Writes a configuration into the run's folder; its path.
    fn configure(&self, template: &Path, name: &str, values: &Values<'_>) -> Result<PathBuf> {
        let template = self.folder.join(template);
        let text =
            std::fs::read_to_string(&template).with_context(|| format!("read {}", template.display()))?;
        let text = fill(&text, values).with_context(|| template.display().to_string())?;
        let file = Path::new(values.folder).join(name);
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        Ok(file)
    }

    async fn drive(&self, url: &str, contestant: &Contestant, plan: &Plan) -> Result<Drive> {
        let scenario = &self.scenario;
        let made = keys_for(&plan.tenants);
        let key = |tenant: &String| match contestant.kind() {
            Ok(Kind::Penstock(_)) => made.get(tenant).map(|key| key.text.clone()),
            _ => contestant.keys.get(tenant).cloned(),
        };
        Ok(Drive {
            endpoint: Endpoint::new(url, scenario.api.path()).await?,
            writer: Writer {
                api: scenario.api,
                model: scenario.model.clone(),
                length: scenario.max_tokens.map_or(Length::Exact, Length::Limit),
                prefix_block: plan.prefix_block,
                seed: scenario.seed,
            },
            keys: plan.tenants.iter().map(key).collect(),
            class_header: "x-penstock-class".to_owned(),
            timeout: Duration::from_secs_f64(scenario.timeout_s),
            retries: scenario.retries,
            drain: Duration::from_secs_f64(scenario.drain_s),
            clients: scenario.clients,
            label: None,
        })
    }

    /// Starts the clocks of all planned faults; dropping them stops them.
    async fn faults(&self, urls: &BTreeMap<String, Vec<String>>) -> Result<JoinSet<()>> {
        let mut clocks = JoinSet::new();
        for (name, group) in &self.scenario.engines {
            for fault in &group.faults {
                let url = &urls[name][usize::from(fault.engine)];
                clocks.spawn(cause(url.clone(), fault.clone()));
            }
        }
        Ok(clocks)
    }
}

/// Causes a fault when its time has come.
async fn cause(url: String, fault: PlannedFault) {
    sleep(LEAD + Duration::from_secs_f64(fault.at_s)).await;
    let (path, body) = match (&fault.fault, &fault.terminate) {
        (Some(body), _) => ("/sim/faults", body),
        (None, Some(body)) => ("/sim/terminate", body),
        (None, None) => return,
    };
    let sent = async {
        let endpoint = Endpoint::new(&url, "").await?.with_path(path)?;
        fetch(&endpoint, endpoint.request(None, Bytes::from(body.to_string()))).await?;
        anyhow::Ok(())
    };
    if let Err(error) = sent.await {
        eprintln!("warning: a planned fault was not caused: {body}: {error:#}");
    }
}

/// Waits until the contestant serves a call of one token.
async fn first_answer(drive: &Drive, plan: &Plan, started: &mut Started) -> Result<()> {
    let mut probe = Plan { calls: vec![plan.calls[0].clone()], ..plan.clone() };
    probe.calls[0] = replay::Planned {
        at: Duration::ZERO,
        input: 16,
        output: 1,
        prefix: Arc::default(),
        ..probe.calls[0]
    };
    let probe = Arc::new(probe);
    let end = Instant::now() + PATIENCE;
    loop {
        let drive = Drive { timeout: Duration::from_secs(5), drain: Duration::from_secs(5), ..drive.clone() };
        let records = replay::run(drive, Arc::clone(&probe)).await?;
        if records[0].served() {
            return Ok(());
        }
        started.child.as_mut().map_or(Ok(()), Child::alive)?;
        if Instant::now() >= end {
            bail!("{} does not answer: {:?}", started.url, records[0].outcome);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// A folder's path from the root, for programs that change their own folder.
fn absolute(folder: &Path) -> Result<String> {
    let path = folder.canonicalize().with_context(|| format!("find {}", folder.display()))?;
    Ok(path.display().to_string())
}

/// A name that can be a file's.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}
