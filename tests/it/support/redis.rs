//! Redis servers of the test's own, which can be stopped, killed and emptied; sentinels and clusters of them.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use redis::{Connection, cmd};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::support::certificates::{Authority, put};
use crate::support::free_port;
use crate::support::gateway::PATIENCE;

/// A server in a temporary folder that keeps nothing on disk; killed when dropped.
pub(crate) struct RedisServer {
    folder: TempDir,
    port: u16,
    options: Vec<String>,
    /// What its configuration file says.
    config: String,
    server: Option<Child>,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::with_options(&[])
    }

    /// A server with more options of its command line.
    pub(crate) fn with_options(options: &[&str]) -> Self {
        Self::with_config(options, "")
    }

    /// A server that copies this one.
    pub(crate) fn replica(&self) -> Self {
        Self::with_options(&[
            "--replicaof",
            &format!("127.0.0.1 {}", self.port),
            "--repl-diskless-sync-delay",
            "0",
        ])
    }

    /// One of so many sentinels that watch this server as `mymaster`. Most of them must agree.
    pub(crate) fn sentinel(&self, sentinels: usize) -> Self {
        let config = format!(
            "sentinel monitor mymaster 127.0.0.1 {} {}\nsentinel down-after-milliseconds mymaster 500\n\
             sentinel failover-timeout mymaster 2000\n",
            self.port,
            sentinels / 2 + 1,
        );
        Self::with_config(&["--sentinel"], &config)
    }

    /// A node of a cluster, which has no slots yet.
    fn node(options: &[&str]) -> Self {
        let bus = free_port().to_string();
        let own = [
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
            "--cluster-node-timeout",
            "1000",
            "--repl-diskless-sync-delay",
            "0",
        ];
        Self::with_options(&[&own, options].concat())
    }

    fn with_config(options: &[&str], config: &str) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut server = Self { folder, port, options, config: config.to_owned(), server: None };
        server.restart();
        server
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Starts it again, empty. Returns when it takes connections.
    pub(crate) fn restart(&mut self) {
        let (port, folder) = (self.port.to_string(), self.folder.path());
        let config = folder.join("server.conf");
        std::fs::write(&config, &self.config).unwrap();
        let mut command = Command::new("redis-server");
        command.arg(&config);
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

    /// What the server answers to a command, as `redis-cli` shows it; its errors too.
    pub(crate) fn say(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        String::from_utf8(output.expect("redis-cli is installed").stdout).unwrap().trim().to_owned()
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

/// Certificates of servers that also take connections over TLS.
pub(crate) struct StoreCertificates {
    folder: TempDir,
}

impl StoreCertificates {
    pub(crate) fn new() -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.server().put(folder.path(), "store");
        put(&folder.path().join("ca.crt"), &authority.pem());
        Self { folder }
    }

    fn place(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The file with the authority.
    pub(crate) fn authority(&self) -> String {
        self.place("ca.crt")
    }

    /// Options of a server that takes connections over TLS at this port, and speaks so with other servers.
    fn options(&self, port: u16) -> Vec<String> {
        let (port, [cert, key]) = (port.to_string(), ["store.crt", "store.key"].map(|name| self.place(name)));
        let files = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key];
        let ca = self.authority();
        let more = ["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no", "--tls-replication", "yes"];
        files.into_iter().chain(more).map(str::to_owned).collect()
    }

    /// A primary and a sentinel that watches it. Returns them with the sentinel's port for TLS.
    pub(crate) fn watched_primary(&self) -> (RedisServer, RedisServer, u16) {
        let [primary_port, port] = [free_port(), free_port()];
        let options = |port| self.options(port);
        let primary =
            RedisServer::with_options(&Vec::from_iter(options(primary_port).iter().map(String::as_str)));
        let config = format!("sentinel monitor mymaster 127.0.0.1 {primary_port} 1\n");
        let own = options(port);
        let options: Vec<&str> = ["--sentinel"].into_iter().chain(own.iter().map(String::as_str)).collect();
        (primary, RedisServer::with_config(&options, &config), port)
    }

    /// A cluster of three primaries. Returns it with the port for TLS of one of them.
    pub(crate) fn cluster(&self) -> (RedisCluster, u16) {
        let ports = [free_port(), free_port(), free_port()];
        let nodes = ports.map(|port| {
            let own = self.options(port);
            let options = own.iter().map(String::as_str).chain(["--tls-cluster", "yes"]);
            RedisServer::node(&Vec::from_iter(options))
        });
        let authority = self.authority();
        RedisCluster::create(&ports, &["--tls", "--cacert", &authority]);
        (RedisCluster { nodes: nodes.into() }, ports[0])
    }
}

/// A cluster with three primaries, and a replica for each.
pub(crate) struct RedisCluster {
    pub(crate) nodes: Vec<RedisServer>,
}

impl RedisCluster {
    pub(crate) fn start() -> Self {
        let nodes: Vec<RedisServer> = (0..6).map(|_| RedisServer::node(&[])).collect();
        let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
        Self::create(&ports, &["--cluster-replicas", "1"]);
        Self { nodes }
    }

    /// Makes a cluster of the nodes at these ports.
    fn create(ports: &[u16], options: &[&str]) {
        let addresses = ports.iter().map(|port| format!("127.0.0.1:{port}"));
        let mut create = Command::new("redis-cli");
        create.args(options).args(["--cluster-yes", "--cluster", "create"]).args(addresses);
        let Output { status, stdout, stderr } = create.output().unwrap();
        let said = [stdout, stderr].concat();
        assert!(status.success(), "{}", String::from_utf8_lossy(&said));
    }

    /// The node that has a key as primary.
    pub(crate) fn owner(&self, key: &str) -> usize {
        let slot = self.nodes[0].say(&["CLUSTER", "KEYSLOT", key]);
        let begun = Instant::now();
        loop {
            for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.server.is_some()) {
                if node.say(&["ROLE"]).starts_with("master")
                    && !node.say(&["CLUSTER", "COUNTKEYSINSLOT", &slot]).starts_with("0")
                {
                    return at;
                }
            }
            assert!(begun.elapsed() < PATIENCE, "nobody has {key}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Moves the keys of a slot from one primary to another. The first one then sends those who ask on, until
    /// [`Self::end_move`].
    pub(crate) fn begin_move(&self, slot: &str, [from, to]: [usize; 2]) {
        let [from, to] = [from, to].map(|at| &self.nodes[at]);
        let [from_id, to_id] = [from, to].map(|node| node.say(&["CLUSTER", "MYID"]));
        assert_eq!(to.say(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]), "OK");
        assert_eq!(from.say(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]), "OK");
        let keys = from.say(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
        let port = to.port.to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let keys: Vec<&str> = keys.lines().collect();
        assert_eq!(from.say(&[&migrate[..], &keys].concat()), "OK");
    }

    /// From now on the second primary has the slot.
    pub(crate) fn end_move(&self, slot: &str, [from, to]: [usize; 2]) {
        let [from, to] = [from, to].map(|at| &self.nodes[at]);
        let to_id = to.say(&["CLUSTER", "MYID"]);
        for node in [to, from] {
            assert_eq!(node.say(&["CLUSTER", "SETSLOT", slot, "NODE", &to_id]), "OK");
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
