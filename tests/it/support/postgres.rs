//! PostgreSQL server of the test's own, which can be killed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::certificates::Leaf;
use crate::support::free_port;
use crate::support::gateway::PATIENCE;

const PAUSE: Duration = Duration::from_millis(50);

/// A cluster in a temporary folder; killed when dropped.
pub(crate) struct Cluster {
    folder: TempDir,
    port: u16,
    sealed: bool,
    server: Option<Child>,
}

/// Where Debian and others put the server's programs.
fn programs() -> PathBuf {
    let said = Command::new("pg_config").arg("--bindir").output().ok();
    let said = said.and_then(|done| String::from_utf8(done.stdout).ok()).map(|text| text.trim().into());
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let found = said.into_iter().chain(debian).find(|folder: &PathBuf| folder.join("initdb").exists());
    found.expect("PostgreSQL is installed: apt-get install postgresql")
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout == b"0\n"
}

/// A program of the server. It refuses root, so root becomes its own user.
fn program(name: &str) -> Command {
    let path = programs().join(name);
    if !is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(path);
    command
}

fn run(command: &mut Command) {
    let done = command.current_dir("/").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// One that can do TLS, if it has a certificate.
    pub(crate) fn start_with(leaf: Option<&Leaf>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        if is_root() {
            run(Command::new("chown").arg("postgres:postgres").arg(&data));
        }
        run(program("initdb").args(["-A", "trust", "-U", "penstock", "-E", "UTF8", "-N", "-D"]).arg(&data));
        if let Some(leaf) = leaf {
            leaf.put(&data, "server");
            let files = ["server.crt", "server.key"].map(|name| data.join(name));
            for file in &files {
                fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
            }
            if is_root() {
                run(Command::new("chown").arg("postgres:postgres").args(&files));
            }
        }
        let port = free_port();
        let mut cluster = Self { folder, port, sealed: leaf.is_some(), server: None };
        cluster.restart();
        cluster
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://penstock@127.0.0.1:{}/postgres", self.port)
    }

    /// Ends all of its processes at once, as a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let group = format!("kill -KILL -{}", server.id());
            run(Command::new("sh").args(["-c", &group]));
            server.wait().unwrap();
        }
    }

    /// Starts it and waits until it answers.
    pub(crate) fn restart(&mut self) {
        let data: &Path = &self.folder.path().join("data");
        let mut patience = PATIENCE;
        loop {
            let server = match &mut self.server {
                Some(server) => server,
                none => none.insert(
                    program("postgres")
                        .arg("-D")
                        .arg(data)
                        .args([
                            "-h",
                            "127.0.0.1",
                            "-p",
                            &self.port.to_string(),
                            "-c",
                            "unix_socket_directories=",
                            "-c",
                            if self.sealed { "ssl=on" } else { "ssl=off" },
                        ])
                        .stdin(Stdio::null())
                        .stdout(Stdio::null())
                        .stderr(Stdio::null())
                        .current_dir("/")
                        .process_group(0)
                        .spawn()
                        .unwrap(),
                ),
            };
            // After a kill its memory may still be held for a moment.
            if server.try_wait().unwrap().is_some() {
                self.server = None;
            } else if self.ask("SELECT 1::bigint").is_some() {
                return;
            }
            assert!(!patience.is_zero(), "PostgreSQL does not start");
            std::thread::sleep(PAUSE);
            patience = patience.saturating_sub(PAUSE);
        }
    }

    /// The number that a query answers.
    pub(crate) fn ask(&self, sql: &str) -> Option<i64> {
        let mut client = postgres::Client::connect(&self.url(), postgres::NoTls).ok()?;
        Some(client.query_one(sql, &[]).ok()?.get(0))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}
