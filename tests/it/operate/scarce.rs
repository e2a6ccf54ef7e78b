//! Scarce resources: a full disk, and no file descriptors left. The gateway goes on, and is whole again
//! afterwards.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::support::client::{Call, Raw, Session};
use crate::support::gateway::{TENANT, chat, key_of, soon, until};
use crate::support::postgres::Cluster;
use crate::support::process::Serving;

const CHAT: &str = "/v1/chat/completions";
/// Requests in the usage database.
const ROWS: &str = "SELECT count(*) FROM penstock_usage WHERE kind = 'request'";

fn call(tokens: u32, stream: bool) -> Call {
    Call::post(CHAT, &chat(tokens, stream)).key(&key_of(TENANT).text)
}

/// Changes the soft limit of the gateway's process; the hard one stays.
fn limit(serving: &Serving, resource: Resource, maximum: Option<u64>, soft: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(serving.process.child.id()).unwrap());
    prlimit(pid, resource, Rlimit { current: soft, maximum }).unwrap();
}

async fn metric(serving: &Serving, name: &str) -> f64 {
    let text = Call::get("/metrics").send(serving.admin).await.ok().text();
    let lines = text.lines().filter(|line| line.starts_with(name) && !line.starts_with('#'));
    let values: Vec<f64> = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    assert!(!values.is_empty(), "no metric {name}");
    values.into_iter().sum()
}

/// A limit of file size is like a disk that is full: writes fail, and what is there stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_no_request_and_loses_no_usage_row() {
    let usage = "usage: {folder: usage, database: none}\n";
    let mut serving = Serving::limited(1.0, usage, "true").await;
    call(1, false).send(serving.address).await.ok();
    let maximum = getrlimit(Resource::Fsize).maximum;
    limit(&serving, Resource::Fsize, maximum, Some(16));
    for number in 0..40 {
        let answer = soon("an answer on a full disk", call(2, number % 2 == 0).send(serving.address)).await;
        assert_eq!((answer.status, answer.whole), (200, true));
    }
    block_in_place(|| serving.process.line("usage journal cannot be written"));
    limit(&serving, Resource::Fsize, maximum, maximum);
    block_in_place(|| serving.process.line("usage journal is written again"));
    call(1, false).send(serving.address).await.ok();

    let folder = serving.folder.path().join("usage");
    let rows = || {
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let journal = files.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
        let texts: String = journal.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        let rows = texts.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.filter(|row| row["kind"] == "request").collect::<Vec<_>>()
    };
    until("every row is there", || rows().len() >= 42).await;
    let mut ids: Vec<_> = rows().iter().map(|row| row["request_id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), rows().len()), (42, 42), "each row once");
    assert_eq!(metric(&serving, "penstock_usage_rows_dropped_total").await, 0.0);
}

/// The lack is the gateway's own: no engine is ejected for it, and no request fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_file_descriptors_requests_wait_and_no_engine_is_blamed() {
    let mut serving = Serving::limited(20.0, "upstream: {connect_timeout: 500ms}\n", "ulimit -n 400").await;
    let seen = |serving: &mut Serving, text| block_in_place(|| serving.process.line(text));
    let mut kept_open = Session::open(serving.address).await;
    kept_open.call(Call::get("/health")).await.ok();
    // It holds the only connection to the engine.
    let mut stream = serving.stream(3_000).await;
    limit(&serving, Resource::Nofile, Some(400), Some(8));
    let waiting = tokio::spawn(async move { kept_open.call(call(2, false)).await });
    let not_accepted = tokio::spawn(call(2, true).send(serving.address));
    seen(&mut serving, "no connection to an engine could be opened");
    seen(&mut serving, "request requeued");
    assert!(!waiting.is_finished() && !not_accepted.is_finished());
    limit(&serving, Resource::Nofile, Some(400), Some(400));
    serving.engine.control().clear();
    for request in [waiting, not_accepted] {
        let answer = soon("an answer afterwards", request).await.unwrap();
        assert_eq!((answer.status, answer.whole), (200, true), "{}", answer.text());
    }
    assert!(soon("the stream's end", stream.read_past("data: [DONE]")).await.is_some());
    assert_eq!(metric(&serving, "penstock_ejections_total").await, 0.0);
}

/// The database's client needs descriptors of its own. Its thread outlives the lack of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_file_descriptors_rows_wait_for_the_database() {
    let mut cluster = block_in_place(Cluster::start);
    let usage = "usage: {folder: usage, database: postgres, postgres: {url: {env: TEST_DATABASE}}}\n";
    let limits = format!("ulimit -n 400; export TEST_DATABASE={}", cluster.url());
    let mut serving = Serving::limited(10.0, usage, &limits).await;
    let seen = |serving: &mut Serving, text| block_in_place(|| serving.process.line(text));
    call(1, false).send(serving.address).await.ok();
    until("a row is in the database", || block_in_place(|| cluster.ask(ROWS)) == Some(1)).await;
    let mut stream = serving.stream(5_000).await;
    limit(&serving, Resource::Nofile, Some(400), Some(8));
    block_in_place(|| {
        cluster.kill();
        cluster.restart();
    });
    serving.engine.control().clear();
    soon("the stream's end", stream.read_past("data: [DONE]")).await.unwrap();
    seen(&mut serving, "usage database is away");
    // It tries again after 250 ms and 500 ms.
    sleep(Duration::from_secs(1)).await;
    limit(&serving, Resource::Nofile, Some(400), Some(400));
    seen(&mut serving, "usage database takes rows");
    until("the other row is there", || block_in_place(|| cluster.ask(ROWS)) == Some(2)).await;
    assert!(!serving.process.seen.iter().any(|line| line.contains("panicked")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_files_mean_few_connections_and_none_without_its_engine() {
    let mut serving = Serving::limited(5.0, "", "ulimit -n 100").await;
    let seen = &serving.process.seen;
    let line = seen.iter().find(|line| line.contains("fewer connections are accepted")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["files"], &line["accepted"]), (&100.into(), &25.into()), "{line}");
    // More clients than there are descriptors for: they wait until others have gone.
    let clients: Vec<_> = (0..60).map(|n| tokio::spawn(call(3, n % 2 == 0).send(serving.address))).collect();
    let mut served = 0;
    for client in clients {
        // An address has at most its half of the connections.
        if let Ok(answer) = soon("an answer", client).await {
            served += usize::from(answer.status == 200 && answer.whole);
        }
    }
    assert!(served >= 12, "{served}");
    assert_eq!(metric(&serving, "penstock_ejections_total").await, 0.0);
    assert!(serving.process.child.try_wait().unwrap().is_none());
}

/// Resident memory of the gateway's process, in KiB.
fn resident(serving: &Serving) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", serving.process.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Nothing follows the requests: the memory goes back without one more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_requests_that_are_gone_goes_back_to_the_system() {
    const BODIES: u64 = 24;
    const KIB: u64 = 2_048;
    let serving = Serving::limited(1.0, "", "true").await;
    call(1, false).send(serving.address).await.ok();
    let before = resident(&serving);
    let mut body = chat(1, false);
    body["messages"][0]["content"] = "water ".repeat(KIB as usize * 1024 / 6).into();
    let bytes = Call::post(CHAT, &body).key(&key_of(TENANT).text).bytes();
    let mut clients = Vec::new();
    for _ in 0..BODIES {
        let mut client = Raw::open(serving.address).await;
        client.write(&bytes[..bytes.len() - 1]).await.unwrap();
        clients.push(client);
    }
    until("the bodies are held", || resident(&serving) > before + BODIES * KIB * 3 / 4).await;
    drop(clients);
    until("their memory is given back", || resident(&serving) < before + BODIES * KIB / 4).await;
}
