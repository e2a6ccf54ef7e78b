//! `penstock simulate` as a command line.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

const SCENARIO: &str = "
about: Two engines.
world:
  fleet: [{profile: h100-8b, count: 2}]
  loads: [5, 10]
  traffic: [{pattern: poisson, count: 60}]
  designs: [penstock, round-robin]
cases: {calm: {}, scraped: {scrape: 1s}}
";

fn simulate(args: &[&str]) -> (Output, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_penstock")).arg("simulate").args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

#[test]
fn a_scenario_becomes_a_table_json_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (scenario, json, html) = (path("two.yaml"), path("new/two.json"), path("page"));
    fs::write(&scenario, SCENARIO).unwrap();
    let args = [&scenario, "--seeds", "2", "--json", &json, "--html", &html];
    let (output, table, err) = simulate(&args);
    assert!(output.status.success(), "{err}");
    assert!(table.starts_with("Two engines.\n\ncase     load  design"), "{table}");
    assert_eq!(table.lines().count(), 2 + 1 + 8, "{table}");
    assert!(err.contains("[16/16]"), "progress: {err}");
    let document: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((&document["seeds"], document["rows"].as_array().unwrap().len()), (&2.into(), 8));
    let goodput = &document["rows"][0]["figures"]["goodput"];
    assert!(goodput["median"].as_f64().unwrap() > 0.9, "{goodput}");
    assert!(fs::read_to_string(path("page/index.html")).unwrap().contains("<svg"));
    assert!(fs::metadata(path("page/goodput-calm.svg")).unwrap().len() > 500);
    let args = [&*scenario, "--seeds", "2", "--threads", "1", "-q"];
    assert_eq!(simulate(&args).1, table, "the same whatever the number of threads");
    let args = [&*scenario, "--case", "calm", "--load", "7", "--design", "jsq own", "--seeds", "1", "-q"];
    let (_, table, err) = simulate(&args);
    assert!(
        err.is_empty() && table.lines().count() == 4 && table.contains("calm  7     jsq own"),
        "{table}{err}"
    );
}

#[test]
fn it_runs_without_a_file_and_explains_what_is_wrong() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/loadtest/traces/azure2023_code.csv.gz");
    let args = ["--trace", trace, "--count", "40", "--load", "5", "--fleet", "h100-8b:1,a10-8b:2", "-q"];
    let (output, table, err) = simulate(&args);
    assert!(output.status.success() && table.contains("least-request"), "{table}{err}");
    assert!(simulate(&["--list-designs"]).1.contains("vtc"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.yaml").to_string_lossy().into_owned();
    fs::write(&path, "world:\n  loadz: [1]\n").unwrap();
    for (args, expected) in [
        (vec![&*path], "loads"),
        (vec!["/no/such.yaml"], "read the scenario /no/such.yaml"),
        (vec!["--fleet", "h100-8b:many"], "like h100-8b:8"),
        (vec!["--fleet", "v100"], "fleet[0].profile: `v100` is not one of a10-8b"),
        (vec!["--design", "best"], "no design is called `best`"),
        (vec!["--case", "x"], "there is no case `x`"),
        (vec!["--trace", "/no/such.csv"], "/no/such.csv: cannot read it"),
    ] {
        let (output, out, err) = simulate(&args);
        assert_eq!((output.status.code(), &*out), (Some(1), ""), "{args:?}");
        assert!(err.contains(expected), "{err}\nlacks\n{expected}");
    }
}
