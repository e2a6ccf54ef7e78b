//! Discovery by DNS: a real resolver against a small server on loopback, and a gateway whose
//! replicas come and go under load.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::RecordType;
use http::Method;
use penstock::config::load::load_str;
use penstock::core::model::snapshot::ReplicaStatus;
use penstock::fleet::discovery::DiscoverySources;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimHandle, SimOptions, SimServer};
use penstock::telemetry::Telemetry;
use tokio::task::JoinSet;

use crate::support::client::Call;
use crate::support::dns::{Names, Says, a, aaaa, srv};
use crate::support::gateway::{PATIENCE, Rig, chat, head, soon, tenant_lines, until};

const CHAT: &str = "/v1/chat/completions";

/// The source of one pool that asks a server of the test's own.
struct Asking {
    names: Names,
    sources: DiscoverySources,
    telemetry: Telemetry,
}

impl Asking {
    /// `lines`: the source's keys besides its servers and refresh times.
    async fn start(lines: &str, say: impl FnOnce(&Names)) -> Self {
        let names = Names::start().await;
        say(&names);
        let text = format!(
            "version: 1\nauth: {{mode: off}}\npools:\n  p:\n    engine: vllm\n    models: [m]\n    discover: {{dns: {{{lines}, \
             servers: ['{}'], min_refresh: 100ms, max_refresh: 10s, empty_grace: 500ms}}}}\n",
            names.address
        );
        let loaded = load_str(&text, "test", Path::new("/"), None).into_result();
        let settings = loaded.unwrap_or_else(|report| panic!("{report}")).settings;
        let telemetry = Telemetry::for_tests();
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let sources = DiscoverySources::start(settings, telemetry.clone());
        Self { names, sources, telemetry }
    }

    /// What is found next.
    async fn found(&self) -> Vec<String> {
        let found = soon("an answer", self.sources.next()).await;
        let endpoints = found.values().flat_map(|endpoints| endpoints.iter());
        endpoints.map(|endpoint| endpoint.url.authority().unwrap().to_string()).collect()
    }

    /// Log lines that have the text.
    fn logged(&self, text: &str) -> usize {
        self.telemetry.captured_log().lines().filter(|line| line.contains(text)).count()
    }
}

#[tokio::test]
async fn addresses_of_both_families() {
    let asking = Asking::start("name: both.test., port: 8000", |names| {
        names.say("both.test.", RecordType::A, Says::Records(vec![a("127.0.0.2"), a("127.0.0.1")], 60));
        names.say("both.test.", RecordType::AAAA, Says::Records(vec![aaaa("::1")], 60));
    });
    assert_eq!(asking.await.found().await, ["127.0.0.1:8000", "127.0.0.2:8000", "[::1]:8000"]);

    // A server that knows nothing of IPv6 has answered all the same.
    let asking = Asking::start("name: old.test., port: 8000", |names| {
        names.say("old.test.", RecordType::A, Says::Records(vec![a("127.0.0.1")], 60));
        names.say("old.test.", RecordType::AAAA, Says::Code(ResponseCode::ServFail));
    });
    assert_eq!(asking.await.found().await, ["127.0.0.1:8000"]);
}

#[tokio::test]
async fn services_have_hosts_and_ports() {
    let asking = Asking::start("name: _http._tcp.vllm.test., type: srv", |names| {
        let services = vec![
            srv(10, "one.test.", 8001),
            srv(10, "two.test.", 8002),
            srv(10, "gone.test.", 8003),
            srv(20, "spare.test.", 8004),
        ];
        names.say("_http._tcp.vllm.test.", RecordType::SRV, Says::Records(services, 60));
        names.say("one.test.", RecordType::A, Says::Records(vec![a("127.0.0.1")], 60));
        names.say("two.test.", RecordType::AAAA, Says::Records(vec![aaaa("::1")], 60));
        names.say("spare.test.", RecordType::A, Says::Records(vec![a("127.0.0.9")], 60));
    });
    assert_eq!(asking.await.found().await, ["127.0.0.1:8001", "[::1]:8002"]);
}

#[tokio::test]
async fn an_answer_that_is_too_long_for_udp_comes_over_tcp() {
    let hosts: Vec<_> = (0..500).map(|n| a(&format!("10.1.{}.{}", n / 250, n % 250))).collect();
    let asking = Asking::start("name: many.test., port: 8000", |names| {
        names.say("many.test.", RecordType::A, Says::TooLongForUdp(hosts, 60));
    })
    .await;
    assert_eq!(asking.found().await.len(), 500);
    assert!(asking.names.asked().iter().any(|asked| asked.tcp));
}

#[tokio::test]
async fn nobody_asks_again_before_the_records_have_run_out() {
    let asking = Asking::start("name: brief.test., port: 8000", |names| {
        names.say("brief.test.", RecordType::A, Says::Records(vec![a("127.0.0.1")], 1));
    })
    .await;
    assert_eq!(asking.found().await, ["127.0.0.1:8000"]);
    let mut times = Vec::new();
    until("three rounds", || {
        let asked = asking.names.asked().into_iter();
        times.extend(asked.filter(|asked| asked.kind == RecordType::A).map(|asked| {
            assert_eq!(asked.name, "brief.test.");
            asked.at
        }));
        times.len() >= 3
    })
    .await;
    let second = Duration::from_secs(1);
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= second), "{times:?}");
}

#[tokio::test]
async fn failures_keep_the_last_answer_and_an_absent_name_does_for_a_while() {
    let asking = Asking::start("name: weak.test., port: 8000", |names| {
        names.say("weak.test.", RecordType::A, Says::Records(vec![a("127.0.0.1")], 0));
    })
    .await;
    assert_eq!(asking.found().await, ["127.0.0.1:8000"]);
    let problem = || asking.sources.statuses()[0].problem.clone();
    asking.names.say("weak.test.", RecordType::A, Says::Code(ResponseCode::ServFail));
    until("the failure is noted", || asking.logged("lost") >= 2).await;
    assert!(problem().unwrap().to_lowercase().contains("server fail"), "{:?}", problem());
    assert_eq!(asking.sources.statuses()[0].endpoints, Some(1));
    asking.names.say("weak.test.", RecordType::A, Says::Records(vec![a("127.0.0.1"), a("127.0.0.2")], 0));
    assert_eq!(asking.found().await, ["127.0.0.1:8000", "127.0.0.2:8000"]);
    assert_eq!((asking.logged("answers again"), problem()), (1, None));

    asking.names.forget("weak.test.");
    until("the emptiness is noted", || asking.logged("names no replica") == 1).await;
    assert_eq!(asking.sources.statuses()[0].endpoints, Some(2), "they hold for a while");
    assert_eq!(asking.found().await, Vec::<String>::new());
}

/// A gateway whose replicas are the SRV records of `engines.test.`.
struct Live {
    names: Names,
    rig: Rig,
}

impl Live {
    async fn start(engines: usize) -> Self {
        let names = Names::start().await;
        let mut running = Vec::new();
        for _ in 0..engines {
            running.push(SimServer::start(SimOptions::default()).await.unwrap());
        }
        names.say("host.test.", RecordType::A, Says::Records(vec![a("127.0.0.1")], 0));
        names.say("engines.test.", RecordType::SRV, Says::Records(Vec::new(), 0));
        let text = head("")
            + "health: {slow_start: 0s}\ntenants:\n"
            + &tenant_lines("alpha", "")
            + &format!(
                "pools:\n  main:\n    engine: vllm\n    models: [sim]\n    discover: {{dns: {{name: engines.test., type: srv, \
                 servers: ['{}'], min_refresh: 100ms, max_refresh: 200ms, empty_grace: 300ms}}}}\n",
                names.address
            );
        let rig = Rig::with_file(&text, running, ["alpha"]).await;
        Self { names, rig }
    }

    /// From now on these engines are named.
    fn name(&self, engines: &[usize]) {
        let port = |engine: &usize| {
            let url: http::Uri = SimHandle::url(&self.rig.engines[*engine]).parse().unwrap();
            srv(1, "host.test.", url.port_u16().unwrap())
        };
        let records = engines.iter().map(port).collect();
        self.names.say("engines.test.", RecordType::SRV, Says::Records(records, 0));
    }

    fn states(&self) -> Vec<ReplicaStatus> {
        self.rig.snapshot().replicas.iter().map(|replica| replica.state).collect()
    }
}

#[tokio::test]
async fn replicas_come_and_go_under_load_and_no_request_fails() {
    let live = Live::start(2).await;
    let rig = &live.rig;
    // It waits, since there is no replica yet.
    let early = tokio::spawn(Call::post(CHAT, &chat(3, true)).key(rig.key("alpha")).send(rig.address()));
    until("it waits", || rig.waiting() == 1).await;
    live.name(&[0]);
    assert!(soon("the early answer", early).await.unwrap().is_done());

    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for client in 0..8 {
        let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
        let call = Call::post(CHAT, &chat(20, client % 2 == 0)).key(rig.key("alpha"));
        let address = rig.address();
        clients.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = call.clone().send(address).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let total = |engine: usize| rig.engine(engine).state().total;
    live.name(&[0, 1]);
    until("the new replica gets work", || total(1) >= 20).await;

    live.name(&[1]);
    until("the old one has left and ended its streams", || live.states().len() == 1).await;
    let before = (total(0), total(1));
    until("all goes to the other", || total(1) >= before.1 + 20).await;
    assert_eq!(total(0), before.0, "no new work for the one that left");

    live.name(&[0]);
    until("they change places", || total(0) >= before.0 + 20).await;
    stop.store(true, Ordering::Relaxed);
    soon("the last answers", clients.join_all()).await;
    rig.emptied_within(PATIENCE).await;
    assert_eq!(rig.snapshot().broken_invariants, 0);
    assert_eq!(rig.finished().len() as u64, served.load(Ordering::Relaxed) + 1);
    assert!(rig.finished().iter().all(|line| line["outcome"] == "success"));
    // Joined: 0, 1, 0 again; left: 0, 1. The count follows the change.
    while rig.metric("penstock_replica_changes_total").await < 5.0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_replica_that_is_no_longer_named_finishes_its_stream() {
    let live = Live::start(2).await;
    live.name(&[0]);
    let rig = &live.rig;
    until("one replica", || live.states().len() == 1).await;
    rig.engine(0).add(FaultKind::Slow { factor: 1000.0 }).unwrap();
    let stream = tokio::spawn(Call::post(CHAT, &chat(40, true)).key(rig.key("alpha")).send(rig.address()));
    until("it runs", || rig.snapshot().replicas.iter().any(|replica| replica.running == 1)).await;
    live.name(&[1]);
    until("it is taken out", || live.states().contains(&ReplicaStatus::Removed)).await;
    assert!(soon("another answer", rig.post(CHAT, &chat(3, true))).await.is_done());
    rig.engine(0).clear();
    assert!(soon("the stream", stream).await.unwrap().is_done());
    until("it is forgotten", || live.states().len() == 1).await;
    rig.emptied_within(PATIENCE).await;
}

#[tokio::test]
async fn the_last_replicas_do_not_go_in_silence() {
    let live = Live::start(1).await;
    live.name(&[0]);
    let rig = &live.rig;
    until("one replica", || live.states().len() == 1).await;
    live.names.say("engines.test.", RecordType::SRV, Says::Code(ResponseCode::Refused));
    until("the source is lost", || rig.telemetry.captured_log().contains("source of replicas lost")).await;
    assert!(rig.post(CHAT, &chat(3, true)).await.is_done(), "the last answer holds");
    live.name(&[]);
    until("the pool is empty", || live.states().is_empty()).await;
    for line in ["source of replicas answers again", "source names no replica", "pool has no replica left"] {
        until(line, || rig.telemetry.captured_log().contains(line)).await;
    }
    assert_eq!(rig.metric("penstock_pools_emptied_total").await, 1.0);
    assert!(rig.metric("penstock_source_failures_total").await >= 1.0);
    let config = rig.admin(Method::GET, "/admin/v1/config").await.text();
    assert!(config.contains(r#""discover":"dns""#), "{config}");
}
