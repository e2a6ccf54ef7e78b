//! Tests of `loadtest compare`: a whole comparison with a tiny scenario, and the reference proxy
//! alone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Parser;
use penstock::sim::engine::profile::StepProfile;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimHandle, SimOptions, SimServer};
use penstock_loadtest::compare::{CompareArgs, compare};
use penstock_loadtest::engines::Ready;
use penstock_loadtest::proxy::{self, ProxyArgs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SCENARIO: &str = "
about: a tiny one <test>
rounds: 2
warmup: 0
settle_s: 0
objectives: [{ttft_ms: 500, itl_ms: 50}]
max_tokens: 100
engines: {main: {profile: tiny, count: 2, faults: [{at_s: 0.1, fault: {kind: slow, factor: 2}}]}}
judged: {tenants: [a]}
load:
  - {input: 60, output: 6, rate: 40, for_s: 0.5, arrivals: even, tenants: {a: 1, b: 1}, class: interactive}
  - {input: 60, output: 6, at_once: 5, from_s: 0.2, tenants: {jobs: 1}, class: batch}
contestants:
  - {name: least, proxy: least-request}
  - {name: capped, proxy: round-robin, maxconn: 2, simulated: 0.9}
  - {name: alone, proxy: p2c, without: [batch]}
";

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: CompareArgs,
}

fn args(folder: &Path) -> CompareArgs {
    let scenario = folder.join("tiny.yaml");
    std::fs::write(&scenario, SCENARIO).expect("a file");
    let out = folder.join("page.html");
    let path = |path: &Path| path.display().to_string();
    let words = [
        "compare",
        &path(&scenario),
        "--out",
        &path(&out),
        "--quiet",
        "--loadtest",
        env!("CARGO_BIN_EXE_loadtest"),
    ];
    Cli::try_parse_from(words).expect("arguments").args
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_comparison_runs_everybody_and_writes_page_and_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = compare(&args(folder.path())).await.expect("a comparison");
    assert!(table.contains("least") && table.contains("p99 ratio") && table.contains("simulated"), "{table}");
    let data = std::fs::read_to_string(folder.path().join("page.json")).expect("data");
    let data: serde_json::Value = serde_json::from_str(&data).expect("JSON");
    let runs = data["runs"].as_array().expect("runs");
    let order: Vec<_> = runs.iter().map(|run| run["contestant"].as_str().expect("a name")).collect();
    assert_eq!(order, ["least", "capped", "alone", "alone", "least", "capped"]);
    for run in runs {
        let all = &run["results"]["all"];
        let calls = if run["contestant"] == "alone" { 21 } else { 26 };
        assert_eq!((&all["offered"], &all["served"]), (&calls.into(), &calls.into()), "{run}");
        assert_eq!(all["other_length"], 0, "max_tokens is no oracle, min_tokens is");
        assert!(run["results"]["judged"]["offered"].as_u64() < all["offered"].as_u64());
        assert!(run["cpu_ms"].as_f64().is_some());
    }
    // Both rounds have the same calls for everybody.
    assert_eq!(runs[0]["results"]["judged"]["offered"], runs[1]["results"]["judged"]["offered"]);
    assert_eq!(data["rows"][0]["ratio"]["median"], 1.0);
    let page = std::fs::read_to_string(folder.path().join("page.html")).expect("a page");
    assert!(page.matches("<svg").count() == 3 && page.contains("a tiny one &lt;test&gt;"));
    assert!(!page.contains("http://127"), "nothing to load from elsewhere");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_leaves_nothing_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = args(folder.path());
    let work = folder.path().join("work");
    let mut compare = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    compare.arg("compare").arg(&args.scenario).arg("--out").arg(&args.out).arg("--keep").arg(&work);
    let mut compare = compare.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process");
    let mut listening = Vec::new();
    for name in ["engines-main", "proxy"] {
        let file = work.join(format!("1-least/{name}.json"));
        let ready: Ready = loop {
            match std::fs::read_to_string(&file) {
                Ok(text) => break serde_json::from_str(&text).expect("JSON"),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
            assert!(compare.try_wait().expect("its state").is_none(), "it ended before it was stopped");
        };
        listening.extend(ready.urls.iter().map(|url| url.trim_start_matches("http://").to_owned()));
    }
    assert_eq!(listening.len(), 3);
    let asked = Command::new("kill").args(["-INT", &compare.id().to_string()]).status();
    assert!(asked.expect("kill").success());
    let ended = tokio::task::spawn_blocking(move || compare.wait()).await.expect("a wait");
    assert_eq!(ended.expect("its end").code(), Some(1));
    for address in listening {
        assert!(TcpStream::connect(&address).await.is_err(), "{address} still listens");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_scenario_is_explained() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut args = args(folder.path());
    let text = SCENARIO.replace("proxy: p2c", "penstock: gone.yaml");
    std::fs::write(&args.scenario, text).expect("a file");
    args.penstock = Some("/nowhere/penstock".into());
    let error = compare(&args).await.expect_err("no gateway").to_string();
    assert!(error.contains("there is no /nowhere/penstock"), "{error}");
    args.only = vec!["least".to_owned(), "most".to_owned()];
    let error = compare(&args).await.expect_err("no such contestant").to_string();
    assert!(error.contains("--only most"), "{error}");
}

/// An engine that says one token, and would work for 40 s more.
async fn silent_engine() -> SimHandle {
    let profile = StepProfile::named("h100-8b").expect("a profile");
    let options = SimOptions { profile, ..SimOptions::default() };
    let engine = SimServer::start(options).await.expect("a free port");
    engine.control().add(FaultKind::Silent { after_tokens: 1, before_head: false }).expect("a fault");
    engine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_the_proxy_cancels_its_request() {
    let engine = silent_engine().await;
    let args = ProxyArgs {
        listen: "127.0.0.1:0".parse().expect("an address"),
        servers: vec![engine.url()],
        mode: proxy::Mode::RoundRobin,
        maxconn: Some(1),
        seed: 0,
        with_parent: false,
        ready_file: None,
    };
    let address = proxy::start(&args).await.expect("a proxy");
    let body = r#"{"model":"sim","stream":true,"max_tokens":5000,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut streaming = TcpStream::connect(address).await.expect("connected");
    streaming.write_all(request.as_bytes()).await.expect("sent");
    let mut head = [0; 512];
    let read = streaming.read(&mut head).await.expect("a head");
    assert!(head[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head[..read]));
    // A second one waits for the only place, and leaves.
    let mut waiting = TcpStream::connect(address).await.expect("connected");
    waiting.write_all(request.as_bytes()).await.expect("sent");
    drop(waiting);
    drop(streaming);
    for _ in 0..500 {
        let state = engine.control().state();
        if state.cancelled == 1 && state.inside == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not cancelled: {:?}", engine.control().state());
}
