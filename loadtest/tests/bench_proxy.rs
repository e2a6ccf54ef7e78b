//! Test of `loadtest bench-proxy`: one row with the engines themselves and a proxy that runs
//! already.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use penstock_loadtest::engines::Ready;
use serde_json::Value;

/// A child that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The reference proxy in front of four ports.
fn proxy(folder: &Path, first: u16) -> (Ended, String) {
    let file = folder.join("proxy.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    command.args(["proxy", "--ready-file"]).arg(&file);
    command.args(
        (first..first + 4).flat_map(|port| ["--server".to_owned(), format!("http://127.0.0.1:{port}")]),
    );
    let mut proxy = Ended(command.stdout(Stdio::null()).spawn().expect("a proxy"));
    loop {
        if let Ok(text) = std::fs::read_to_string(&file) {
            let Ready { urls } = serde_json::from_str(&text).expect("JSON");
            return (proxy, urls[0].clone());
        }
        assert!(proxy.0.try_wait().expect("its state").is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_row_is_measured_and_written_in_every_form() {
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        eprintln!("skipped: the proxy and the load need a core each");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Below the ports that the system hands out.
    let port = 20_000 + u16::try_from(std::process::id() % 2_000).expect("a small number") * 4;
    let (proxy, url) = proxy(folder.path(), port);
    let path = |name: &str| folder.path().join(name);
    let mut bench = Command::new(env!("CARGO_BIN_EXE_loadtest"));
    bench.args(["bench-proxy", "--quick", "--rows", "full,idle", "--targets", "direct"]);
    bench.args(["--engine-port", &port.to_string()]);
    bench.args(["--proxy", &format!("reference={url},{}", proxy.0.id())]);
    bench.arg("--json").arg(path("b.json")).arg("--svg").arg(path("b.svg")).arg("--html").arg(path("b.html"));
    let output = bench.output().expect("a run");
    let [table, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("round 1 of 1: full, reference"), "{said}");
    assert!(table.contains("| direct ") && table.contains("| CPU µs/request, saturated, 2 KiB |"), "{table}");
    let read = |name: &str| std::fs::read_to_string(path(name)).expect("a file");
    let data: Value = serde_json::from_str(&read("b.json")).expect("JSON");
    let value = |figure: &str, target: &str| {
        let samples = data["samples"].as_array().expect("samples");
        let found = samples.iter().find(|sample| sample["figure"] == figure && sample["target"] == target);
        found.map(|sample| sample["value"].as_f64().expect("a number"))
    };
    assert!(
        value("full_rate", "direct") > Some(0.0) && value("full_rate", "reference") > Some(0.0),
        "{data}"
    );
    assert!(value("full_cpu", "reference") > Some(0.0) && value("full_cpu", "direct").is_none(), "{data}");
    assert!(value("idle_memory", "reference") > Some(0.0) && value("idle_cpu", "direct").is_none(), "{data}");
    assert!(read("b.svg").starts_with("<svg") && read("b.html").contains("</svg></html>"));
}

#[test]
fn what_is_missing_is_named() {
    let error = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_loadtest")).arg("bench-proxy").args(words).output();
        let output = output.expect("a run");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = error(&["--targets", "penstock", "--penstock", "/nowhere/penstock"]);
    assert!(said.contains("--penstock"), "{said}");
    let said = error(&["--targets", "direct", "--load-cpu", "0", "--proxy-cpu", "0"]);
    assert!(said.contains("core 0"), "{said}");
}
