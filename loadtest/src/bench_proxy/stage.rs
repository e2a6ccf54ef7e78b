//! Stage of the benchmark: the proxies of one round, each started afresh on the proxies' core.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use penstock::config::keys::NewKey;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio::time::{Instant, sleep};

use super::args::{BenchProxyArgs, Cores, OtherProxy, TargetKind};
use super::programs::{Program, Programs};
use crate::child::{Child, free_port};
use crate::client::fetch;
use crate::cores::{move_process, started_on};
use crate::process::with_children;
use crate::target::{Target, TargetArgs};
use crate::template::keys_for;

/// Until a proxy answers its first request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Sequences of an engine: more than any row has.
const MAX_SEQS: u32 = 8192;

/// What all rounds share.
#[derive(Debug)]
pub(super) struct ProxyStage {
    pub(super) work: PathBuf,
    pub(super) cores: Cores,
    /// Base URLs of the engines.
    pub(super) engines: Vec<String>,
    pub(super) programs: Programs,
}

/// A target that answers; dropping it ends what was started for it.
#[derive(Debug)]
pub(super) struct Contender {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) key: Option<String>,
    /// Its processes; none of the engines themselves.
    pub(super) pids: Vec<u32>,
    child: Option<Child>,
}

impl Contender {
    /// A request to it.
    pub(super) fn target(&self, prompt_bytes: usize, max_tokens: Option<u32>) -> TargetArgs {
        TargetArgs {
            url: self.url.clone(),
            key: self.key.clone(),
            model: "m".to_owned(),
            prompt_bytes,
            max_tokens,
        }
    }

    /// Whether it is the engines themselves.
    pub(super) fn is_direct(&self) -> bool {
        self.pids.is_empty()
    }

    /// Waits until it serves a request.
    async fn answers(&mut self) -> Result<()> {
        let target = Target::new(&self.target(64, Some(1))).await?;
        let end = Instant::now() + PATIENCE;
        while let Err(error) = fetch(&target.endpoint, target.request(false)).await {
            self.child.as_mut().map_or(Ok(()), Child::alive)?;
            if Instant::now() >= end {
                bail!("{} does not answer after {} s: {error:#}", self.name, PATIENCE.as_secs());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else { return };
        let first = child.pid();
        drop(child);
        // nginx's workers outlive a master that was killed.
        for pid in self.pids.iter().filter(|pid| **pid != first) {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl ProxyStage {
    /// Starts all targets.
    pub(super) async fn start(&self, args: &BenchProxyArgs) -> Result<Vec<Contender>> {
        let mut contenders = Vec::new();
        for kind in &args.targets {
            contenders.push(self.contender(*kind).await?);
        }
        for proxy in &args.proxies {
            contenders.push(self.other(proxy).await?);
        }
        Ok(contenders)
    }

    /// The engines themselves: the first of them.
    pub(super) fn direct(&self) -> Contender {
        Contender {
            name: TargetKind::Direct.name().to_owned(),
            url: self.engines[0].clone(),
            key: None,
            pids: Vec::new(),
            child: None,
        }
    }

    async fn contender(&self, kind: TargetKind) -> Result<Contender> {
        if kind == TargetKind::Direct {
            return Ok(self.direct());
        }
        let folder = self.work.join(kind.name());
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let folder = folder.canonicalize().with_context(|| format!("find {}", folder.display()))?;
        let listen = free_port()?;
        let (mut command, key) = match kind {
            TargetKind::Nginx => (self.nginx(&folder, &listen)?, None),
            _ => self.gateway(kind, &folder, &listen)?,
        };
        let start = || Child::start(kind.name(), &mut command, &folder);
        let child = started_on(&[self.cores.proxy], start)?;
        let mut contender = Contender {
            name: kind.name().to_owned(),
            url: format!("http://{listen}"),
            key,
            pids: vec![child.pid()],
            child: Some(child),
        };
        contender.answers().await?;
        contender.pids = with_children(contender.pids[0])?;
        Ok(contender)
    }

    async fn other(&self, proxy: &OtherProxy) -> Result<Contender> {
        let mut contender = Contender {
            name: proxy.name.clone(),
            url: proxy.url.clone(),
            key: proxy.key.clone(),
            pids: with_children(proxy.pid)?,
            child: None,
        };
        contender.answers().await?;
        for pid in &contender.pids {
            move_process(*pid, &[self.cores.proxy]).with_context(|| contender.name.clone())?;
        }
        Ok(contender)
    }

    fn nginx(&self, folder: &Path, listen: &str) -> Result<Command> {
        let config = folder.join("nginx.conf");
        write(&config, &nginx_config(folder, listen, &self.engines))?;
        let nginx = self.programs.nginx.as_ref().context("nginx was not looked for")?;
        let mut command = Command::new(&nginx.path);
        command.arg("-p").arg(folder).arg("-c").arg(config);
        Ok(command)
    }

    fn gateway(&self, kind: TargetKind, folder: &Path, listen: &str) -> Result<(Command, Option<String>)> {
        let Program { path: penstock, .. } =
            self.programs.penstock.as_ref().context("the gateway was not looked for")?;
        let key = keys_for(&["bench".to_owned()]).remove("bench").context("no key was made")?;
        let mut text = penstock_config(listen, &free_port()?, &key, &self.engines);
        if kind == TargetKind::PenstockFull {
            text += &full_config(folder, &free_port()?);
        }
        // Two processes of one file share its pages, and each has half of them.
        let program = folder.join("program");
        std::fs::copy(penstock, &program).with_context(|| format!("copy {}", penstock.display()))?;
        let config = folder.join("penstock.yaml");
        write(&config, &text)?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(config);
        Ok((command, Some(key.text)))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// What the gateway must be told. It knows that the engines have places for all streams, and has
/// its defaults else: a log line for each request, API keys, scrapes of the engines.
fn penstock_config(listen: &str, admin: &str, key: &NewKey, engines: &[String]) -> String {
    format!(
        "version: 1\nserver: {{listen: \"{listen}\", admin: \"{admin}\"}}\n\
        tenants: {{bench: {{keys: [{{id: {}, digest: \"{}\"}}]}}}}\n\
        pools: {{bench: {{engine: vllm, models: [m], max_seqs: {MAX_SEQS}, replicas: [{}]}}}}\n",
        key.id,
        key.digest,
        engines.join(", ")
    )
}

/// The usage journal with its database, and the scaler.
fn full_config(folder: &Path, scaler: &str) -> String {
    format!("usage: {{folder: \"{}\"}}\nscale: {{listen: \"{scaler}\"}}\n", folder.join("usage").display())
}

/// nginx with one worker, so that it has one core as the others. Bodies stay in memory.
fn nginx_config(folder: &Path, listen: &str, engines: &[String]) -> String {
    let folder = folder.display();
    // Without it a worker of root is another user, who cannot write here.
    let user = if geteuid().is_root() { "user root;\n" } else { "" };
    let mut servers = String::new();
    for engine in engines {
        // Writing to a String cannot fail.
        let _ = writeln!(servers, "    server {};", engine.trim_start_matches("http://"));
    }
    format!(
        "{user}worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 32m;
  client_body_buffer_size 1m;
  keepalive_requests 1000000000;
  upstream engines {{
    least_conn;
{servers}    keepalive 1024;
    keepalive_requests 1000000000;
  }}
  server {{
    listen {listen} backlog=4096;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use penstock::config::load;

    use super::*;

    fn engines() -> Vec<String> {
        (1..=4).map(|port| format!("http://127.0.0.1:{port}")).collect()
    }

    #[test]
    fn the_gateway_takes_both_configurations() {
        let key = keys_for(&["bench".to_owned()]).remove("bench").expect("a key");
        let plain = penstock_config("127.0.0.1:8", "127.0.0.1:9", &key, &engines());
        let folder = tempfile::tempdir().expect("a folder");
        let full = plain.clone() + &full_config(folder.path(), "127.0.0.1:10");
        for text in [&plain, &full] {
            let loaded = load::load_str(text, "penstock.yaml", folder.path(), None).into_result();
            let loaded = loaded.unwrap_or_else(|report| panic!("{report}"));
            assert_eq!(loaded.file.usage.folder.is_some(), text == &full);
        }
    }

    #[test]
    fn nginx_sends_to_all_engines() {
        let text = nginx_config(Path::new("/w"), "127.0.0.1:9", &engines());
        assert_eq!(text.matches("    server 127.0.0.1:").count(), 4, "{text}");
        assert!(text.contains("least_conn;") && text.contains("listen 127.0.0.1:9 "), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
