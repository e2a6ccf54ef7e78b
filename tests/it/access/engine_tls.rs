//! TLS towards engines: authorities, a client certificate and a server name of the pool.

use std::process::Command;

use http::Method;
use penstock::sim::server::{SimHandle, SimOptions, SimServer};
use rcgen::SanType;

use crate::support::certificates::{Authority, put};
use crate::support::client::Call;
use crate::support::gateway::{Rig, TENANT, chat, head, soon, tenant_lines, until};
use crate::support::tls_front::TlsFront;

const CHAT: &str = "/v1/chat/completions";
const NAME: &str = "engines.internal";

/// A gateway and an engine behind TLS, whose certificate has this name and which asks for one of
/// `clients`. The pool has these keys of `tls`.
struct Secured {
    rig: Rig,
    front: TlsFront,
}

async fn secured(servers: &Authority, clients: &Authority, names: Vec<SanType>, tls: &str) -> Secured {
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let front = TlsFront::start(&servers.leaf(names), Some(clients), address(&engine)).await;
    let folder = tempfile::tempdir().unwrap();
    put(&folder.path().join("ca.crt"), &servers.pem());
    clients
        .leaf(vec![SanType::DnsName("gateway.internal".try_into().unwrap())])
        .put(folder.path(), "gateway");
    let text = format!(
        "{}tenants:\n{}pools:\n  main: {{engine: vllm, models: [sim], replicas: ['https://{}'], \
         scrape_interval: 100ms, tls: {{{tls}}}}}\n\
         classes: {{standard: {{rank: 0, max_wait: 1m}}, brief: {{rank: 1, max_wait: 2s}}}}\n\
         upstream: {{connect_timeout: 30s}}\n",
        head(""),
        tenant_lines(TENANT, ""),
        front.address
    );
    let path = folder.path().join("penstock.yaml");
    std::fs::write(&path, text).unwrap();
    Secured { rig: Rig::at(folder, path, vec![engine], [TENANT]).await, front }
}

fn address(engine: &SimHandle) -> std::net::SocketAddr {
    engine.url().strip_prefix("http://").unwrap().parse().unwrap()
}

fn by_address() -> Vec<SanType> {
    vec![SanType::IpAddress([127, 0, 0, 1].into())]
}

fn by_name() -> Vec<SanType> {
    vec![SanType::DnsName(NAME.try_into().unwrap())]
}

const FILES: &str = "ca: ca.crt, cert: gateway.crt, key: gateway.key";

/// A request that waits for a short time only.
async fn brief(rig: &Rig) -> u16 {
    let call = Call::post(CHAT, &chat(2, false)).key(rig.key(TENANT));
    call.header("x-penstock-class", "brief").send(rig.address()).await.status
}

/// How many scrapes the replica has answered.
async fn is_scraped(rig: &Rig) {
    let age = || async { rig.metric("penstock_engine_report_age_seconds").await };
    for _ in 0..500 {
        let text = rig.admin(Method::GET, "/metrics").await.text();
        if text.contains("penstock_engine_running{") && age().await < 5.0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("no scrape arrived");
}

#[tokio::test]
async fn a_pool_has_its_own_authority_and_certificate() {
    let [servers, clients] = [Authority::new(), Authority::new()];
    let Secured { rig, front } = secured(&servers, &clients, by_address(), FILES).await;
    assert!(rig.post(CHAT, &chat(4, true)).await.is_done());
    is_scraped(&rig).await;
    assert!(front.names().iter().all(Option::is_none), "an address is no server name");
}

#[tokio::test]
async fn a_name_of_the_pool_takes_the_place_of_the_host() {
    let [servers, clients] = [Authority::new(), Authority::new()];
    let tls = format!("{FILES}, server_name: {NAME}");
    let Secured { rig, front } = secured(&servers, &clients, by_name(), &tls).await;
    assert!(rig.post(CHAT, &chat(4, true)).await.is_done());
    is_scraped(&rig).await;
    assert!(front.names().iter().all(|name| name.as_deref() == Some(NAME)), "{:?}", front.names());
}

#[tokio::test]
async fn other_certificates_are_refused_on_both_sides() {
    let [servers, clients] = [Authority::new(), Authority::new()];
    for (names, tls) in [
        (by_name(), FILES.to_owned()),
        (by_address(), format!("{FILES}, server_name: other.internal")),
        (by_address(), "ca: ca.crt".to_owned()),
    ] {
        let Secured { rig, front } = secured(&servers, &clients, names, &tls).await;
        assert!(brief(&rig).await >= 500, "{tls}");
        assert_eq!(rig.engine(0).state().total, 0);
        assert_eq!(front.names(), [] as [Option<String>; 0], "{tls}");
    }
}

#[tokio::test]
async fn new_files_are_read_again() {
    let [servers, clients, others] = [Authority::new(), Authority::new(), Authority::new()];
    let Secured { rig, front: _front } = secured(&servers, &clients, by_address(), FILES).await;
    assert!(rig.post(CHAT, &chat(2, true)).await.is_done());
    let before = rig.generation();
    put(&rig.folder.path().join("ca.crt"), &others.pem());
    soon("a reload", rig.gateway.reload_handle().reload("test".into())).await.unwrap();
    assert!(rig.generation() > before);
    assert!(rig.telemetry.captured_log().contains("pools.main.tls"), "the log names it");
    assert!(brief(&rig).await >= 500, "another authority");
    put(&rig.folder.path().join("ca.crt"), &servers.pem());
    soon("a reload", rig.gateway.reload_handle().reload("test".into())).await.unwrap();
    until("the replica is back", || rig.snapshot().replicas[0].state.name() != "ejected").await;
    assert!(rig.post(CHAT, &chat(2, true)).await.is_done());
    // Broken files leave the last good ones in force.
    put(&rig.folder.path().join("ca.crt"), "no certificate");
    soon("a reload", rig.gateway.reload_handle().reload("test".into())).await.unwrap();
    assert!(rig.post(CHAT, &chat(2, true)).await.is_done());
}

/// What `penstock doctor` finds about the engine: the results of its checks, and all of its output.
async fn doctor(rig: &Rig) -> (Vec<String>, String) {
    let path = rig.folder.path().join("penstock.yaml");
    let output = tokio::task::spawn_blocking(move || {
        Command::new(env!("CARGO_BIN_EXE_penstock")).args(["doctor", "-o", "json"]).arg(path).output()
    });
    let text = String::from_utf8(output.await.unwrap().unwrap().stdout).unwrap();
    let found: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let of_engine = found.iter().filter(|row| row["check"] == "engines" || row["check"] == "models");
    (of_engine.map(|row| row["result"].as_str().unwrap().to_owned()).collect(), text)
}

#[tokio::test]
async fn the_doctor_asks_engines_as_the_gateway_does() {
    let [servers, clients] = [Authority::new(), Authority::new()];
    let tls = format!("{FILES}, server_name: {NAME}");
    let Secured { rig, front: _front } = secured(&servers, &clients, by_name(), &tls).await;
    let (results, text) = doctor(&rig).await;
    assert_eq!(results, ["ok", "ok"], "{text}");
    let Secured { rig, front: _front } = secured(&servers, &clients, by_name(), FILES).await;
    let (results, text) = doctor(&rig).await;
    assert_eq!(results, ["failed"], "{text}");
    assert!(text.contains("no answer: ") && text.contains("certificate"), "{text}");
}
