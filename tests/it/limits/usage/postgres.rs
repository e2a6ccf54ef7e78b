//! Usage in PostgreSQL: clients notice nothing when the server is killed, no row is lost, and the
//! connection may use TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::support::certificates::{Authority, put};
use crate::support::client::Call;
use crate::support::gateway::{Rig, RigOptions, TENANT, chat, until};
use crate::support::postgres::Cluster;

const CLIENTS: usize = 16;

/// The section of a gateway that writes its usage there.
fn section(folder: &tempfile::TempDir, url: &str, ca: Option<&str>) -> String {
    let place = |name: &str| folder.path().join(name).display().to_string();
    put(&folder.path().join("db.url"), url);
    let ca = ca.map(|pem| {
        put(&folder.path().join("db.crt"), pem);
        format!(", ca_file: {}", place("db.crt"))
    });
    let (url, ca) = (place("db.url"), ca.unwrap_or_default());
    let database = format!("database: postgres, postgres: {{url: {{file: {url}}}{ca}}}");
    format!("usage: {{folder: {}, {database}}}\n", place("usage"))
}

fn rows(cluster: &Cluster) -> Option<i64> {
    block_in_place(|| {
        cluster.ask("SELECT COUNT(DISTINCT request_id) FROM penstock_usage WHERE kind = 'request'")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_do_not_notice_that_postgres_is_killed_and_no_row_is_lost() {
    let mut cluster = block_in_place(Cluster::start);
    let folder = tempfile::tempdir().unwrap();
    let more = section(&folder, &cluster.url(), None);
    let rig = Arc::new(Rig::start(RigOptions { more, ..RigOptions::default() }).await);
    let over = Arc::new(AtomicBool::new(false));
    let clients = (0..CLIENTS).map(|client| {
        let (rig, over) = (Arc::clone(&rig), Arc::clone(&over));
        tokio::spawn(async move {
            let mut answers = 0_i64;
            while !over.load(Ordering::Relaxed) {
                let call = Call::post("/v1/chat/completions", &chat(4, client % 2 == 0));
                let answer = call.key(rig.key(TENANT)).send(rig.address()).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                answers += 1;
            }
            answers
        })
    });
    let clients: Vec<_> = clients.collect();
    for _ in 0..2 {
        sleep(Duration::from_millis(500)).await;
        block_in_place(|| cluster.kill());
        sleep(Duration::from_millis(500)).await;
        block_in_place(|| cluster.restart());
    }
    over.store(true, Ordering::Relaxed);
    let answers: i64 = join_all(clients).await.into_iter().map(Result::unwrap).sum();
    assert!(answers > CLIENTS as i64, "{answers}");
    until("every request's row", || rows(&cluster) == Some(answers)).await;
    let log = rig.telemetry.captured_log();
    assert!(log.contains("usage database is away") && !log.contains("rows lost"));
    Arc::into_inner(rig).unwrap().gateway.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_way_to_postgres_is_sealed_when_the_url_asks_for_it() {
    let (ours, other) = (Authority::new(), Authority::new());
    let cluster = block_in_place(|| Cluster::start_with(Some(&ours.server())));
    let bare = block_in_place(Cluster::start);
    let sealed = |cluster: &Cluster| cluster.url() + "?sslmode=require";
    let cases = [
        (&cluster, ours.pem(), None),
        (&cluster, other.pem(), Some("certificate")),
        (&bare, ours.pem(), Some("TLS")),
    ];
    for (number, (server, ca, refusal)) in cases.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let more = section(&folder, &sealed(server), Some(&ca));
        let rig = Rig::start(RigOptions { more, ..RigOptions::default() }).await;
        assert_eq!(rig.post("/v1/chat/completions", &chat(1, false)).await.status, 200, "case {number}");
        match refusal {
            None => until("the row", || rows(server) == Some(1)).await,
            Some(word) => {
                let said = || {
                    let log = rig.telemetry.captured_log();
                    log.lines().any(|line| line.contains("usage database is away") && line.contains(word))
                };
                until("the reason", said).await;
                assert_ne!(rows(&bare), Some(1), "case {number}");
            }
        }
        rig.gateway.drain().await;
    }
    assert_eq!(rows(&cluster), Some(1));
}
