//! Redis server of the test's own, which can be stopped, killed and emptied.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Connection, cmd};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::support::free_port;
use crate::support::gateway::PATIENCE;

/// A server in a temporary folder that keeps nothing on disk; killed when dropped.
pub(crate) struct RedisServer {
    folder: TempDir,
    port: u16,
    options: Vec<String>,
    server: Option<Child>,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::with_options(&[])
    }

    /// A server with more options of its command line.
    pub(crate) fn with_options(options: &[&str]) -> Self {
        let port = free_port();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self { folder: tempfile::tempdir().unwrap(), port, options, server: None };
        server.restart();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Starts it again, empty. Returns when it takes connections.
    pub(crate) fn restart(&mut self) {
        let (port, folder) = (self.port.to_string(), self.folder.path());
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir"]);
        command.arg(folder).args(&self.options).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("Redis is installed: apt-get install redis-server");
        self.server = Some(child);
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "redis-server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// A connection of the test's own.
    pub(crate) fn connect(&self) -> Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    pub(crate) fn flush(&self) {
        cmd("FLUSHALL").exec(&mut self.connect()).unwrap();
    }

    /// Sends the process a signal, such as `STOP`.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.server.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
