//! Completion of a shell's line: names from the running gateway, or else from the file.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use crate::operate::{CHAT, two_engines};
use crate::support::client::Call;
use crate::support::gateway::{Rig, TENANT, chat};

/// The gateway has 250 ms for its names, which is not always enough on a busy machine.
const TRIES: usize = 30;

/// What fish offers for a line besides flags, by its script's way of asking.
async fn offered(rig: &Rig, admin: &str, line: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
    command.env("PENSTOCK_COMPLETE", "fish").env("PENSTOCK_ADMIN", admin).arg("--");
    command.args(line.split(' ')).current_dir(rig.folder.path());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.starts_with("--")).map(str::to_owned).collect()
}

/// The same, asked again while the gateway takes longer than a shell waits.
async fn offered_in_time(rig: &Rig, admin: &str, line: &str) -> Vec<String> {
    for _ in 0..TRIES {
        let found = offered(rig, admin, line).await;
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

#[tokio::test]
async fn names_are_those_of_the_running_gateway() {
    let rig = two_engines(1.0).await;
    let call = Call::post(CHAT, &chat(1, false)).key(rig.key(TENANT)).header("x-request-id", "night-1");
    call.send(rig.address()).await.ok();
    let admin = rig.gateway.admin_address().to_string();
    let replicas = [rig.name_of(0), rig.name_of(1)];
    for (line, names) in [
        ("penstock tenants pause ", &["alpha", "beta"][..]),
        ("penstock tail --tenant be", &["beta"]),
        ("penstock requests list --model ", &["sim"]),
        ("penstock requests list --class inter", &["interactive"]),
        ("penstock pools drain --wait m", &["main"]),
        ("penstock replicas cordon main/", &[&*replicas[0], &*replicas[1]]),
    ] {
        assert_eq!(offered_in_time(&rig, &admin, line).await, names, "{line}");
    }
    let found = offered_in_time(&rig, &admin, "penstock why night").await;
    assert_eq!(found, ["night-1\tfinished, tenant alpha"]);
}

#[tokio::test]
async fn without_a_gateway_the_file_has_the_names_and_the_shell_does_not_hang() {
    let rig = two_engines(1.0).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    let found = offered(&rig, &silent.local_addr().unwrap().to_string(), "penstock tenants pause ").await;
    // The client of an admin port waits 10 s for an answer; a debug build on a busy machine takes a while.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(found.is_empty() || found == ["alpha", "beta"], "the file may take more than 300 ms: {found:?}");
}

/// The script in a real bash, which breaks words at colons.
#[tokio::test]
async fn bash_completes_names_with_colons() {
    let rig = two_engines(1.0).await;
    let program = PathBuf::from(env!("CARGO_BIN_EXE_penstock"));
    let url = rig.name_of(0);
    let (begin, end) = url.rsplit_once(':').unwrap();
    // As bash breaks `main/http://127.0.0.1:4` into words.
    let (pool, host) = begin.split_once(':').unwrap();
    let words =
        ["penstock", "replicas", "drain", "--reason", "'new driver'", pool, ":", host, ":", &end[..1]]
            .map(str::to_owned);
    let line = format!("penstock replicas drain --reason 'new driver' {begin}:{}", &end[..1]);
    let script = "PATH=$FOLDER:$PATH; source <(penstock completion bash); COMP_LINE=$1; shift; COMP_WORDS=(\"$@\"); \
                  COMP_CWORD=$(($# - 1)); COMP_POINT=${#COMP_LINE}; _penstock penstock; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let admin = rig.gateway.admin_address().to_string();
    let ask = move || {
        let mut bash = Command::new("bash");
        bash.args(["-c", script, "bash", &line])
            .args(&words)
            .env("FOLDER", program.parent().unwrap())
            .env("PENSTOCK_ADMIN", &admin);
        String::from_utf8(bash.output().unwrap().stdout).unwrap()
    };
    let end = end.to_owned();
    let found =
        tokio::task::spawn_blocking(move || (0..TRIES).any(|_| ask().lines().any(|line| line == end)));
    assert!(found.await.unwrap(), "bash does not complete {url}");
}
