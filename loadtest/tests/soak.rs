//! Test of `loadtest soak`: each trouble that needs nothing installed once, with gateways as processes.

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use penstock_loadtest::soak::trouble::{Kind, Troubles};
use penstock_loadtest::soak::{SoakArgs, run};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: SoakArgs,
}

/// Without those that need a database or a library.
const KINDS: [Kind; 8] = [
    Kind::DiskFull,
    Kind::Descriptors,
    Kind::Restart,
    Kind::Reload,
    Kind::Collector,
    Kind::Identity,
    Kind::Names,
    Kind::Cluster,
];
const ONLY: &str = "disk_full,descriptors,restart,reload,collector,identity,names,cluster";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_is_kept_whatever_fails() {
    let penstock = Path::new(env!("CARGO_BIN_EXE_loadtest")).with_file_name("penstock");
    assert!(penstock.exists(), "cargo build makes {}, which is tested", penstock.display());
    // A restart takes as long as the drain: it comes last, so that all others have their time.
    let seconds = 20;
    let ends_with_restart = |seed: &u64| {
        let order = Troubles::new(*seed, &KINDS, Duration::from_secs(seconds)).take(KINDS.len());
        order.last().is_some_and(|trouble| trouble.kind == Kind::Restart)
    };
    let seed = (0..).find(ends_with_restart).expect("a seed");
    let words = format!("soak --seed {seed} --duration {seconds} --engines 3 --load 0.25 --only {ONLY}");
    let mut args = Cli::try_parse_from(words.split_whitespace()).expect("arguments").args;
    args.penstock = Some(penstock);
    let report = run(&args).await.expect("a run");
    assert_eq!(report.broken_promises, Vec::<String>::new(), "{}", report.text());
    let mut happened: Vec<Kind> = report.troubles.iter().map(|trouble| trouble.kind).collect();
    happened.sort();
    happened.dedup();
    assert!(happened.contains(&Kind::DiskFull) && happened.len() >= 6, "{}", report.text());
    assert!(report.answers.right > 50 && report.text().contains("all promises kept"), "{}", report.text());
}
