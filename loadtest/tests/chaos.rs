//! Tests of `loadtest chaos`: short runs with a gateway in the test's process.

use clap::Parser;
use penstock::app::Gateway;
use penstock::config::watch::Reloader;
use penstock::telemetry::Telemetry;
use penstock_loadtest::chaos::report::Report;
use penstock_loadtest::chaos::{ChaosArgs, Stage};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: ChaosArgs,
}

/// Runs it; `more` is put behind the gateway's usual configuration.
async fn run(arguments: &str, more: &str) -> Report {
    let words = ["chaos"].into_iter().chain(arguments.split_whitespace());
    let args = Cli::try_parse_from(words).expect("arguments").args;
    let stage = Stage::new(&args).await.expect("a stage");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("penstock.yaml");
    let text = stage.config("127.0.0.1:0", "127.0.0.1:0", None).expect("a configuration");
    std::fs::write(&path, text + more).expect("a file");
    let (reloader, _) = Reloader::start(path).unwrap_or_else(|report| panic!("{report}"));
    let telemetry = Telemetry::for_tests();
    let gateway = Gateway::start(reloader, telemetry.clone()).await.expect("a gateway");
    let (listen, admin) = (gateway.address().to_string(), gateway.admin_address().to_string());
    stage.run(&listen, &admin, || Ok(telemetry.captured_log())).await.expect("a run")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_is_kept() {
    let report = run("--seed 1 --duration 16 --engines 4 --most 1", "").await;
    assert_eq!(report.broken_promises, Vec::<String>::new(), "{}", report.text());
    let total = &report.total;
    assert!(total.requests > 100 && total.continued > 0 && total.tried_again > 0, "{}", report.text());
    assert_eq!(report.gateway.unlogged, 0, "{}", report.text());
    assert!(report.phases.iter().all(|phase| phase.episodes > 0 && phase.requests > 0), "{}", report.text());
    assert_eq!(report.phases.iter().map(|phase| phase.requests).sum::<u64>(), total.requests);
}

/// The harness sees what it is there to see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_promise_is_told() {
    let more = "retry: {continue_streams: false, max_attempts: 1}\n";
    let report = run("--seed 2 --duration 10 --engines 3 --most 2", more).await;
    let said = report.broken_promises.join("; ");
    assert!(
        said.contains("failed before their first token") && said.contains("went on"),
        "{}",
        report.text()
    );
    assert!(report.text().contains("broken"), "{}", report.text());
}

/// Not how fast it recovers: that is for a machine with nothing else to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_leaves_nothing_behind() {
    let report = run("--storm --duration 12 --engines 3", "").await;
    assert_eq!((report.total.other_texts, report.leftovers.len()), (0, 0), "{}", report.text());
    let preempted = report.gateway.recalls as u64;
    let storm = report.storm.expect("a storm");
    assert!(storm.attempts > 0 && storm.requests > 0, "{storm}");
    let tries = storm.all_attempts - preempted;
    assert!(tries as f64 <= 1.2 * storm.all_requests as f64, "{storm}; {preempted} recalls");
}
