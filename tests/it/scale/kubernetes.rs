//! Kubernetes source: replicas from a stand-in API server join, get traffic, are given notice and
//! go. The server itself goes and comes back.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use penstock::core::model::snapshot::ReplicaStatus;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimHandle, SimOptions, start_fleet};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::client::Call;
use crate::support::free_port;
use crate::support::gateway::{PATIENCE, Rig, TENANT, chat, head, soon, tenant_lines, until};

const CHAT: &str = "/v1/chat/completions";

/// How an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pod {
    Ready,
    Terminating,
}

/// What the cluster knows. Objects of a kind are told anew, as a whole, each
/// time that something changes.
#[derive(Debug, Clone, Default)]
struct World {
    version: u64,
    /// By the engines' port.
    pods: BTreeMap<u16, Pod>,
    /// Whether the node of the pod has been given notice.
    notices: BTreeMap<u16, bool>,
}

impl World {
    /// One slice for each pod, since each simulated engine has a port of its own.
    fn slices(&self) -> Vec<Value> {
        let slice = |(port, pod): (&u16, &Pod)| {
            let going = *pod == Pod::Terminating;
            json!({
                "metadata": {"name": format!("s{port}"), "resourceVersion": self.version.to_string()},
                "addressType": "IPv4",
                "endpoints": [{
                    "addresses": ["127.0.0.1"], "nodeName": format!("node-{port}"), "zone": "zone-a",
                    "conditions": {"ready": !going, "serving": true, "terminating": going},
                }],
                "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            })
        };
        self.pods.iter().map(slice).collect()
    }

    fn nodes(&self) -> Vec<Value> {
        let node = |(port, doomed): (&u16, &bool)| {
            let taints = if *doomed { json!([{"key": "karpenter.sh/disrupted"}]) } else { json!(null) };
            json!({
                "metadata": {"name": format!("node-{port}"), "resourceVersion": self.version.to_string()},
                "spec": {"taints": taints},
            })
        };
        self.notices.iter().map(node).collect()
    }

    fn objects(&self, of_nodes: bool) -> Vec<Value> {
        if of_nodes { self.nodes() } else { self.slices() }
    }
}

/// The stand-in API server.
struct Cluster {
    address: SocketAddr,
    world: Arc<watch::Sender<World>>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl Cluster {
    async fn start() -> Self {
        // The port must be free when it comes back.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await.unwrap();
        let address = listener.local_addr().unwrap();
        let world = Arc::new(watch::Sender::new(World { version: 1, ..World::default() }));
        let serving = Mutex::new(Some(tokio::spawn(serve(listener, Arc::clone(&world)))));
        Self { address, world, serving }
    }

    fn change(&self, change: impl FnOnce(&mut World)) {
        self.world.send_modify(|world| {
            change(world);
            world.version += 1;
        });
    }

    /// Nobody listens any more, and every watch breaks.
    async fn go_away(&self) {
        let serving = self.serving.lock().unwrap().take().unwrap();
        serving.abort();
        let _aborted = serving.await;
    }

    async fn come_back(&self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        *self.serving.lock().unwrap() = Some(tokio::spawn(serve(listener, Arc::clone(&self.world))));
    }
}

async fn serve(listener: TcpListener, world: Arc<watch::Sender<World>>) {
    // Dropped with this task, and their connections with them.
    let mut open = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        open.spawn(answer(stream, world.subscribe()));
    }
}

/// Answers one request: a list, or a watch from there on.
async fn answer(mut stream: TcpStream, mut world: watch::Receiver<World>) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let of_nodes = head.starts_with("GET /api/v1/nodes?");
    assert!(of_nodes || head.contains("labelSelector=kubernetes.io%2Fservice-name%3Dvllm"), "{head}");
    if !head.contains("watch=true") {
        let now = world.borrow_and_update().clone();
        let list = json!({
            "metadata": {"resourceVersion": now.version.to_string()}, "items": now.objects(of_nodes),
        });
        let list = list.to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", list.len());
        return stream.write_all((head + &list).as_bytes()).await.ok();
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.ok()?;
    // It keeps no history: an older version is gone.
    let current = format!("resourceVersion={}&", world.borrow().version);
    if !head.contains(&current) {
        let line = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410}}).to_string() + "\n";
        let chunk = format!("{:x}\r\n{line}\r\n0\r\n\r\n", line.len());
        return stream.write_all(chunk.as_bytes()).await.ok();
    }
    let mut before = Vec::new();
    loop {
        let now = world.borrow_and_update().clone();
        let objects = now.objects(of_nodes);
        let name = |object: &Value| object["metadata"]["name"].clone();
        let gone: Vec<&Value> =
            before.iter().filter(|old| !objects.iter().any(|new| name(new) == name(old))).collect();
        let events = gone.into_iter().map(|object| ("DELETED", object));
        let events = events.chain(objects.iter().map(|object| ("MODIFIED", object)));
        for (kind, object) in events {
            let line = json!({"type": kind, "object": object}).to_string() + "\n";
            stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await.ok()?;
        }
        before = objects;
        world.changed().await.ok()?;
    }
}

/// A gateway that asks the stand-in.
struct Live {
    cluster: Cluster,
    rig: Rig,
}

impl Live {
    async fn start(engines: usize) -> Self {
        let engines = start_fleet(vec![SimOptions::default(); engines]).await.unwrap();
        let cluster = Cluster::start().await;
        let text = head("")
            + "tenants:\n"
            + &tenant_lines(TENANT, "")
            + &format!(
                "pools:\n  main:\n    engine: vllm\n    models: [sim]\n    discover:\n      kubernetes:\n\
                 \x20       {{service: vllm, namespace: models, server: \"http://{}\", nodes: {{}}}}\n\
                 health: {{slow_start: 0s}}\n",
                cluster.address
            );
        let rig = Rig::with_file(&text, engines, [TENANT]).await;
        Self { cluster, rig }
    }

    fn port(&self, engine: usize) -> u16 {
        let url = SimHandle::url(&self.rig.engines[engine]);
        url.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap()
    }

    fn set(&self, engine: usize, pod: Option<Pod>) {
        let port = self.port(engine);
        self.cluster.change(|world| {
            world.pods.remove(&port);
            world.pods.extend(pod.map(|pod| (port, pod)));
            world.notices.entry(port).or_insert(false);
        });
    }

    fn notice(&self, engine: usize, given: bool) {
        let port = self.port(engine);
        self.cluster.change(|world| {
            world.notices.insert(port, given);
        });
    }

    /// The state of an engine's replica.
    fn state(&self, engine: usize) -> Option<ReplicaStatus> {
        let (snapshot, port) = (self.rig.snapshot(), self.port(engine));
        let settings = self.rig.gateway.proxy().settings.load();
        let of = |view: &&penstock::core::model::snapshot::ReplicaSnapshot| {
            settings.policy.replicas.name(view.replica).ends_with(&format!(":{port}"))
        };
        snapshot.replicas.iter().find(of).map(|view| view.state)
    }

    fn total(&self, engine: usize) -> u64 {
        self.rig.engine(engine).state().total
    }

    async fn ask(&self) {
        assert!(soon("an answer", self.rig.post(CHAT, &chat(3, true))).await.is_done());
    }
}

#[tokio::test]
async fn replicas_join_drain_and_outlive_the_api_server() {
    let live = Live::start(3).await;
    live.set(0, Some(Pod::Ready));
    until("the first is there", || live.state(0) == Some(ReplicaStatus::Serving)).await;
    live.ask().await;
    live.set(1, Some(Pod::Ready));
    until("the second is there", || live.state(1) == Some(ReplicaStatus::Serving)).await;
    while live.total(1) == 0 {
        live.ask().await;
    }

    // One is terminated while a stream runs there: it finishes.
    live.notice(1, true);
    until("the other has notice", || live.state(1) == Some(ReplicaStatus::Draining)).await;
    live.rig.engine(0).add(FaultKind::Slow { factor: 100.0 }).unwrap();
    let key = live.rig.key(TENANT).to_owned();
    let stream = tokio::spawn(Call::post(CHAT, &chat(400, true)).key(&key).send(live.rig.address()));
    until("it runs", || live.rig.snapshot().replicas.iter().any(|view| view.running == 1)).await;
    live.notice(1, false);
    until("the notice is withdrawn", || live.state(1) == Some(ReplicaStatus::Serving)).await;
    until("it has a token", || {
        live.rig.snapshot().replicas.iter().any(|view| view.prefill_tokens == 0 && view.running == 1)
    })
    .await;
    live.set(0, Some(Pod::Terminating));
    until("it drains", || live.state(0) == Some(ReplicaStatus::Draining)).await;
    let before = live.total(0);
    for _ in 0..3 {
        live.ask().await;
    }
    assert_eq!(live.total(0), before, "no new work for the one that goes");
    live.rig.engine(0).clear();
    assert!(soon("the stream", stream).await.unwrap().is_done());
    live.set(0, None);
    until("it is forgotten", || live.state(0).is_none()).await;

    // Without the API server the last view holds.
    live.cluster.go_away().await;
    live.set(1, None);
    live.set(2, Some(Pod::Ready));
    let log = |text: &str| live.rig.telemetry.captured_log().contains(text);
    until("it is missed", || log("source of replicas lost")).await;
    live.ask().await;
    assert_eq!((live.state(1), live.state(2)), (Some(ReplicaStatus::Serving), None));
    live.cluster.come_back().await;
    until("what it says counts", || live.state(1).is_none() && live.state(2).is_some()).await;
    live.ask().await;
    assert!(live.total(2) > 0 && log("source of replicas answers again"));
    for change in ["\"change\":\"spot_notice\"", "\"change\":\"draining\"", "\"change\":\"left\""] {
        assert!(log(change), "{change}");
    }
    live.rig.emptied_within(PATIENCE).await;
    assert_eq!(live.rig.snapshot().broken_invariants, 0);
    assert!(live.rig.finished().iter().all(|line| line["outcome"] == "success"));
}
