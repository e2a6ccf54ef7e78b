//! Test of `loadtest no-harm`: one cell of the matrix, with engines and a gateway as processes.

use std::path::Path;

use clap::Parser;
use penstock_loadtest::no_harm::{NoHarmArgs, measure};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: NoHarmArgs,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_is_measured_straight_and_through_the_gateway() {
    let loadtest = Path::new(env!("CARGO_BIN_EXE_loadtest"));
    let penstock = loadtest.with_file_name("penstock");
    assert!(penstock.exists(), "cargo build makes {}, which is tested", penstock.display());
    let words = "no-harm --fleet l4 --requests plain --class batch --warmup 1 --duration 3 --speedup 4";
    let mut args = Cli::try_parse_from(words.split_whitespace()).expect("arguments").args;
    (args.penstock, args.loadtest) = (Some(penstock), Some(loadtest.to_owned()));
    let rows = measure(&args).await.expect("a run");
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.cell.as_str(), row.failed), ("l4/plain/batch", 0), "{row:?}");
    assert!(row.straight[0] > 0.0 && row.through[0] > 0.0, "{row:?}");
    // How much the gateway costs is for an idle machine to say.
    assert!(row.ratio > 0.3 && row.mark > 0.9, "{row:?}");
    assert!(row.line().contains("l4/plain/batch"), "{}", row.line());
}
