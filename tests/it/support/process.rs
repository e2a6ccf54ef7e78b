//! Process fixture: the real binary, its signals, exit codes and output.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimHandle, SimOptions, SimServer};
use serde_json::Value;

use crate::support::client::{Call, Raw};
use crate::support::gateway::{PATIENCE, TENANT, chat, head, key_of, pool_lines, soon, tenant_lines};

const CHAT: &str = "/v1/chat/completions";

/// A running `penstock`; killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    lines: Receiver<String>,
    pub(crate) seen: Vec<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has mostly ended already.
        let _ended = self.child.kill();
        let _code = self.child.wait();
    }
}

fn penstock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
    command.args(args).stdin(Stdio::null());
    command
}

impl Process {
    /// Starts it; its lines on standard error (or output) can be waited for.
    fn start(args: &[&str], on_stdout: bool) -> Self {
        Self::of(penstock(args), on_stdout)
    }

    fn of(mut command: Command, on_stdout: bool) -> Self {
        let (stdout, stderr) =
            if on_stdout { (Stdio::piped(), Stdio::null()) } else { (Stdio::null(), Stdio::piped()) };
        let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
        let pipe: Box<dyn Read + Send> = if on_stdout {
            Box::new(child.stdout.take().unwrap())
        } else {
            Box::new(child.stderr.take().unwrap())
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let _gone = sender.send(line);
            }
        });
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line that contains `text`.
    pub(crate) fn line(&mut self, text: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("no line with {text:?} among {:#?}", self.seen);
            };
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", self.child.id())).status();
        assert!(sent.unwrap().success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        const PAUSE: Duration = Duration::from_millis(10);
        let mut patience = PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(!patience.is_zero(), "it does not end; it said {:#?}", self.seen);
            std::thread::sleep(PAUSE);
            patience = patience.saturating_sub(PAUSE);
        }
    }
}

/// `penstock serve` before one engine, whose tokens take `slow` times half a
/// millisecond.
pub(crate) struct Serving {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) engine: SimHandle,
    pub(crate) folder: tempfile::TempDir,
}

impl Serving {
    async fn start(slow: f64) -> Self {
        Self::limited(slow, "", "true").await
    }

    /// With `more` at the end of the file, started after the shell's command `limits`.
    pub(crate) async fn limited(slow: f64, more: &str, limits: &str) -> Self {
        let engine = SimServer::start(SimOptions::default()).await.unwrap();
        engine.control().add(FaultKind::Slow { factor: slow }).unwrap();
        let mut text = head("drain_grace: 5m") + "tenants:\n" + &tenant_lines(TENANT, "") + "pools:\n";
        text += &pool_lines("main", "engine: vllm\nmodels: [sim]", &[engine.url()]);
        text += more;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("penstock.yaml");
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limits}; exec \"$0\" serve --config \"$1\"")]);
        command.arg(env!("CARGO_BIN_EXE_penstock")).arg(&path).stdin(Stdio::null());
        let mut process = Process::of(command, false);
        let line = tokio::task::block_in_place(|| process.line("server started"));
        let line: Value = serde_json::from_str(&line).unwrap();
        let address_of = |listener: &str| line[listener].as_str().unwrap().parse().unwrap();
        let (address, admin) = (address_of("listen"), address_of("admin"));
        Self { process, address, admin, engine, folder }
    }

    /// A stream whose first token has come.
    pub(crate) async fn stream(&self, tokens: u32) -> Raw {
        let mut client = Raw::open(self.address).await;
        client.write(Call::post(CHAT, &chat(tokens, true)).key(&key_of(TENANT).text).bytes()).await.unwrap();
        let head = soon("the head", client.read_past("\r\n\r\n")).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        client
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_and_ends_with_code_0() {
    // It ends when the engine is quick again.
    let mut serving = Serving::start(40.0).await;
    let mut stream = serving.stream(1_000).await;
    serving.process.signal("TERM");
    tokio::task::block_in_place(|| serving.process.line("server draining"));
    let refused = Call::post(CHAT, &chat(1, false)).key(&key_of(TENANT).text).send(serving.address).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "draining"));
    serving.engine.control().clear();
    let rest = soon("the stream's end", stream.read_to_end()).await;
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let code = tokio::task::block_in_place(|| {
        serving.process.line("server stopped");
        serving.process.exit_code()
    });
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_ends_at_once() {
    let mut serving = Serving::start(1000.0).await;
    let stream = serving.stream(1000).await;
    serving.process.signal("TERM");
    tokio::task::block_in_place(|| serving.process.line("server draining"));
    serving.process.signal("TERM");
    let code = tokio::task::block_in_place(|| {
        serving.process.line("server stopped");
        serving.process.exit_code()
    });
    assert_eq!(code, Some(0));
    let control = serving.engine.control();
    crate::support::gateway::until("the engine is free", || control.state().inside == 0).await;
    drop(stream);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_reloads() {
    let mut serving = Serving::start(1.0).await;
    serving.process.signal("HUP");
    let path = serving.folder.path().join("penstock.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text + "# more\n").unwrap();
    serving.process.signal("HUP");
    tokio::task::block_in_place(|| serving.process.line("\"generation\":2"));
    serving.process.signal("TERM");
    assert_eq!(tokio::task::block_in_place(|| serving.process.exit_code()), Some(0));
}

#[test]
fn a_bad_configuration_ends_with_code_1_and_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("penstock.yaml");
    let text = head("") + "tenants:\n" + &tenant_lines(TENANT, "wieght: 2") + "pools: {}\n";
    std::fs::write(&path, text).unwrap();
    let output = penstock(&["serve", "--config", path.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report = String::from_utf8(output.stderr).unwrap();
    for part in ["penstock.yaml:5", "wieght", "weight"] {
        assert!(report.contains(part), "{part} is not in:\n{report}");
    }
    assert!(!report.contains("panicked"), "{report}");

    let output = penstock(&["serve", "--config", "/nowhere/penstock.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/nowhere/penstock.yaml"));
}

#[test]
fn the_demo_drains_at_ctrl_c() {
    let mut demo = Process::start(
        &["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--scale", "127.0.0.1:0"],
        true,
    );
    demo.line("Ctrl-C drains and ends.");
    demo.signal("INT");
    demo.line("draining");
    demo.line("drained");
    assert_eq!(demo.exit_code(), Some(0));
}
