//! Soak gateway: a process with its files, the limits that are set on it, and what is left in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use penstock::usage::each_row;
use penstock::usage::row::RowKind;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::chaos::fleet::Fleet;
use crate::chaos::{PATIENCE, leftovers, ready};
use crate::child::{Child, free_port};
use crate::client::fetch;
use crate::process::rss_kib;
use crate::target::Endpoint;

/// Open files beyond those of an idle gateway that are no leak: connections of scrapes, of the
/// identity provider, of the database.
const FEW_FILES: usize = 24;

/// How long a gateway may take to drain and end: its grace, and the steps after it.
const END: Duration = Duration::from_secs(120);

/// One of the gateways.
#[derive(Debug)]
pub(super) struct SoakGateway {
    pub(super) number: usize,
    pub(super) listen: String,
    pub(super) admin: Endpoint,
    folder: PathBuf,
    program: PathBuf,
    /// Wall clock of the process: libfaketime and the file that it follows.
    clock: Option<(PathBuf, PathBuf)>,
    database: Option<String>,
    starts: u32,
    child: Option<Child>,
    /// What the starts before this one printed.
    printed: String,
    idle_files: usize,
}

/// What a gateway is started with.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) faketime: Option<PathBuf>,
    pub(super) database: Option<String>,
}

impl SoakGateway {
    /// Its ports and its folder. It does not run yet.
    pub(super) async fn new(number: usize, folder: &Path, program: &Program) -> Result<Self> {
        let folder = folder.join(format!("gateway-{number}"));
        fs::create_dir_all(folder.join("keys")).with_context(|| format!("create {}", folder.display()))?;
        let clock = program.faketime.clone().map(|library| (library, folder.join("clock")));
        let mut gateway = Self {
            number,
            listen: free_port()?,
            admin: Endpoint::new(&format!("http://{}", free_port()?), "").await?,
            folder,
            program: program.path.clone(),
            clock,
            database: program.database.clone(),
            starts: 0,
            child: None,
            printed: String::new(),
            idle_files: 0,
        };
        gateway.set_clock(0)?;
        Ok(gateway)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes its configuration file.
    pub(super) fn configure(&self, text: &str) -> Result<()> {
        let path = self.folder.join("penstock.yaml");
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Starts it and waits until it is ready.
    pub(super) async fn start(&mut self) -> Result<()> {
        self.starts += 1;
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--config").arg(self.folder.join("penstock.yaml"));
        if let Some((library, file)) = &self.clock {
            // Timers go by the monotonic clock, which no administrator can set.
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", file);
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        if let Some(url) = &self.database {
            command.env("PENSTOCK_SOAK_DATABASE", url);
        }
        let name = format!("start-{}", self.starts);
        self.child = Some(Child::start(&name, &mut command, &self.folder)?);
        ready(&self.admin).await?;
        if self.idle_files == 0 {
            self.idle_files = self.files();
        }
        Ok(())
    }

    /// Lets it drain and end, and starts it again. Its exit code, and how long the end took.
    pub(super) async fn restart(&mut self) -> Result<(Option<i32>, Duration)> {
        let begun = Instant::now();
        let mut child = self.child.take().context("it does not run")?;
        let code = child.terminate(END).await?;
        let took = begun.elapsed();
        self.printed += &child.printed();
        self.start().await?;
        Ok((code, took))
    }

    pub(super) fn alive(&mut self) -> Result<()> {
        self.child.as_mut().context("it does not run")?.alive()
    }

    fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    /// Sets the soft limit of a resource of the running process; absent = as high as it may be.
    pub(super) fn limit(&self, resource: Resource, soft: Option<u64>) -> Result<()> {
        let maximum = getrlimit(resource).maximum;
        let pid = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        prlimit(pid, resource, Rlimit { current: soft.or(maximum), maximum }).context("set a limit")?;
        Ok(())
    }

    /// Files and connections that it has open.
    pub(super) fn files(&self) -> usize {
        let of = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        self.pid().map_or(0, of)
    }

    pub(super) fn rss_kib(&self) -> u64 {
        self.pid().and_then(|pid| rss_kib(&[pid]).ok()).unwrap_or(0)
    }

    /// Lets its wall clock be off by so many seconds.
    pub(super) fn set_clock(&mut self, seconds: i64) -> Result<()> {
        let Some((_, file)) = &self.clock else { return Ok(()) };
        // The library may read at any time: at no moment is the file empty.
        let new = file.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n"))?;
        fs::rename(&new, file).with_context(|| format!("write {}", file.display()))
    }

    /// Asks the admin port for a new key of a tenant; whether there is one.
    pub(super) async fn make_key(&self) -> Result<bool> {
        let endpoint = self.admin.clone().with_path("/admin/v1/keys")?;
        let body = Bytes::from(json!({"tenant": "jobs", "note": "soak"}).to_string());
        let answer = tokio::time::timeout(PATIENCE, fetch(&endpoint, endpoint.request(None, body))).await;
        Ok(answer.context("the admin port does not answer")?.is_ok())
    }

    /// A document of its admin port.
    async fn admin_get(&self, path: &str) -> Result<String> {
        let endpoint = self.admin.clone().with_path(path)?;
        tokio::time::timeout(PATIENCE, fetch(&endpoint, endpoint.get())).await?
    }

    /// The sum of a metric's series.
    pub(super) async fn metric(&self, name: &str) -> Result<f64> {
        let text = self.admin_get("/metrics").await?;
        let series = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        Ok(series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// What is still in it once there was time for it to go.
    pub(super) async fn leftovers(&self, fleet: &Fleet) -> Result<Vec<String>> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut left = leftovers(&self.admin, fleet).await?;
            left.extend(self.look().await?);
            if left.is_empty() || Instant::now() >= end {
                return Ok(left.into_iter().map(|what| format!("gateway {}: {what}", self.number)).collect());
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// What is in it now that is not in an idle gateway.
    async fn look(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for name in ["penstock_queue_depth", "penstock_jobs", "penstock_open_connections"] {
            let value = self.metric(name).await?;
            if value != 0.0 {
                left.push(format!("{name} is {value}"));
            }
        }
        if self.metric("penstock_config_last_reload_successful").await? != 1.0 {
            left.push("the last configuration is not in force".to_owned());
        }
        let status = serde_json::from_str::<Value>(&self.admin_get("/admin/v1/status").await?)?;
        for replica in status["replicas"].as_array().into_iter().flatten() {
            if !matches!(replica["state"].as_str(), Some("serving" | "slow_start")) {
                left.push(format!("{} is {}", replica["replica"], replica["state"]));
            }
        }
        let (files, few) = (self.files(), self.idle_files + FEW_FILES);
        if files > few {
            left.push(format!("{files} files are open, {} were at the start", self.idle_files));
        }
        if self.printed().contains("panicked") {
            left.push("a panic is in its log".to_owned());
        }
        Ok(left)
    }

    /// All that it printed in all of its starts.
    pub(super) fn printed(&self) -> String {
        let now = self.child.as_ref().map(Child::printed).unwrap_or_default();
        format!("{}{now}", self.printed)
    }

    /// Usage rows of its journal, by request.
    pub(super) fn usage_rows(&self) -> Result<BTreeMap<String, u32>> {
        let mut rows = BTreeMap::new();
        let broken = each_row(&self.folder.join("usage"), |row| {
            // Rows without an id count refusals that have no row of their own.
            if row.kind == RowKind::Request && !row.request_id.is_empty() {
                *rows.entry(row.request_id.clone()).or_default() += 1;
            }
        })?;
        ensure!(broken == 0, "gateway {}: {broken} broken lines in the usage journal", self.number);
        Ok(rows)
    }
}
