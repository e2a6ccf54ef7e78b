//! Child process: started by the tool, and ended by the tool.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::engines::Ready;

/// Until a process says that it is ready.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);
/// Bytes of a log that an error shows.
const TAIL: usize = 2000;

/// A running process; dropping it kills it and waits for its end.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    process: Process,
    log: PathBuf,
}

impl Child {
    /// Starts one of our own servers and waits until it listens.
    pub(crate) async fn serve(name: &str, command: &mut Command, folder: &Path) -> Result<(Self, Ready)> {
        let file = folder.join(format!("{name}.json"));
        // One of an earlier run would be taken for ours.
        let _ = std::fs::remove_file(&file);
        let mut child =
            Self::start(name, command.arg("--with-parent").arg("--ready-file").arg(&file), folder)?;
        let ready = child.ready(&file).await?;
        Ok((child, ready))
    }

    /// Starts a program. What it prints goes to `<name>.log` in the folder. It
    /// is in a process group of its own, so that a Ctrl-C meant for us does not
    /// reach it, and its standard input ends when we do.
    pub(crate) fn start(name: &str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("write {}", log.display()))?;
        let program = command.get_program().to_string_lossy().into_owned();
        let process = command
            .stdin(Stdio::piped())
            .stdout(file.try_clone().context("share a log file")?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        Ok(Self { name: name.to_owned(), process, log })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it has written its ready file.
    async fn ready(&mut self, file: &Path) -> Result<Ready> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Ok(text) = std::fs::read_to_string(file) {
                return serde_json::from_str(&text).with_context(|| format!("{} says odd things", self.name));
            }
            self.alive()?;
            sleep(POLL).await;
        }
        bail!("{} is not ready after {} s{}", self.name, PATIENCE.as_secs(), self.said())
    }

    /// Fails when it has ended.
    pub(crate) fn alive(&mut self) -> Result<()> {
        match self.process.try_wait().with_context(|| format!("watch {}", self.name))? {
            Some(status) => bail!("{} ended ({status}){}", self.name, self.said()),
            None => Ok(()),
        }
    }

    /// Asks it to end with SIGTERM and waits for that; its exit code, absent when a signal ended it.
    pub(crate) async fn terminate(&mut self, patience: Duration) -> Result<Option<i32>> {
        let pid = Pid::from_raw(i32::try_from(self.pid())?).context("it has no process id")?;
        kill_process(pid, Signal::TERM).with_context(|| format!("end {}", self.name))?;
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if let Some(status) = self.process.try_wait().with_context(|| format!("watch {}", self.name))? {
                return Ok(status.code());
            }
            sleep(POLL).await;
        }
        bail!("{} has not ended after {} s{}", self.name, patience.as_secs(), self.said())
    }

    /// All that it printed.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of what it printed.
    fn said(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(TAIL)..];
        if tail.is_empty() {
            String::new()
        } else {
            format!(":\n{}", String::from_utf8_lossy(tail).trim_end())
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An address that was free just now.
pub(crate) fn free_port() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
    Ok(listener.local_addr()?.to_string())
}

/// The folder of the runs, removed at the end unless it is to be kept.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) path: PathBuf,
    kept: bool,
}

impl Work {
    /// Makes it, unless it is `keep` and there already.
    pub(crate) fn make(what: &str, keep: Option<&Path>) -> Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let own = || std::env::temp_dir().join(format!("penstock-{what}-{}-{number}", std::process::id()));
        let path = keep.map_or_else(own, Path::to_owned);
        std::fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self { path, kept: keep.is_some() })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if !self.kept {
            // What is left behind in the temporary folder does no harm.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_ends_with_its_owner_and_its_words_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sleeper =
            Child::start("sleeper", Command::new("sleep").arg("60"), folder.path()).expect("a process");
        sleeper.alive().expect("it runs");
        let stat = PathBuf::from(format!("/proc/{}/stat", sleeper.pid()));
        assert!(stat.exists());
        drop(sleeper);
        assert!(!stat.exists());

        let mut talker = Command::new("sh");
        talker.args(["-c", "echo no port is free >&2; exit 3"]);
        let mut talker = Child::start("talker", &mut talker, folder.path()).expect("a process");
        let error = talker.ready(&folder.path().join("never")).await.expect_err("it ends");
        assert!(error.to_string().contains("talker ended (exit status: 3)"), "{error}");
        assert!(error.to_string().contains("no port is free"), "{error}");
    }
}
