//! Tests of the watch against a stand-in API server, which speaks the real protocol over loopback.
//! The test answers every request itself, byte by byte where that matters.

mod notices;
mod secured;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::{RetryPauses, run_with};
use crate::config::discover::KubernetesSource;
use crate::fleet::discovery::source_status::tests::{FORM, ReporterFixture};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn rules(server: &str) -> KubernetesSource {
    KubernetesSource {
        selector: "kubernetes.io/service-name=vllm".to_owned(),
        namespace: Some("models".to_owned()),
        port: None,
        form: FORM,
        resync: Duration::from_secs(600),
        nodes: None,
        server: Some(server.parse().unwrap()),
        token_file: None,
        ca_file: None,
    }
}

/// A slice with one endpoint for each host; `-` before a host: it is about to
/// go.
fn slice(name: &str, version: u64, hosts: &[&str]) -> Value {
    let endpoint = |host: &&str| {
        let going = host.starts_with('-');
        json!({
            "addresses": [host.trim_start_matches('-')],
            "conditions": {"ready": !going, "serving": true, "terminating": going},
            "nodeName": "node-1", "zone": "zone-a",
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": name, "namespace": "models", "resourceVersion": version.to_string(),
            "labels": {"kubernetes.io/service-name": "vllm"},
        },
        "endpoints": hosts.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
    })
}

fn list(version: u64, slices: &[Value]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
        "metadata": {"resourceVersion": version.to_string()}, "items": slices,
    })
}

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "so it is"})
}

/// A plain connection, or one with TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One request, to be answered by the test.
struct Asked {
    head: String,
    stream: Box<dyn Stream>,
}

impl Asked {
    /// The value of a key of the query.
    fn query(&self, key: &str) -> Option<&str> {
        let target = self.head.split(' ').nth(1)?;
        let mut pairs = target.split_once('?')?.1.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    fn is_about_nodes(&self) -> bool {
        self.head.starts_with("GET /api/v1/nodes?")
    }

    fn is_watch(&self) -> bool {
        self.query("watch") == Some("true")
    }

    async fn answer(mut self, code: u16, body: &Value) {
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        self.stream.write_all((head + &body).as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
        let _closed = self.stream.shutdown().await;
    }

    /// The head of a watch; the lines follow.
    async fn begin(mut self) -> Self {
        assert!(self.is_watch(), "{}", self.head);
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
        self.stream.write_all(head).await.unwrap();
        self.stream.flush().await.unwrap();
        self
    }

    async fn chunk(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.stream.write_all(chunk.as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    async fn event(&mut self, kind: &str, object: &Value) {
        self.chunk(&format!("{}\n", json!({"type": kind, "object": object}))).await;
    }

    async fn end(mut self) {
        self.stream.write_all(b"0\r\n\r\n").await.unwrap();
        self.stream.flush().await.unwrap();
        let _closed = self.stream.shutdown().await;
    }
}

/// The stand-in, with a watch that asks it.
struct Cluster {
    fixture: Arc<ReporterFixture>,
    asked: mpsc::Receiver<Asked>,
}

impl Cluster {
    async fn start(adapt: impl FnOnce(&mut KubernetesSource)) -> Self {
        Self::start_with(None, adapt).await
    }

    async fn start_with(tls: Option<TlsAcceptor>, adapt: impl FnOnce(&mut KubernetesSource)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut rules = rules(&format!("{scheme}://{}", listener.local_addr().unwrap()));
        adapt(&mut rules);
        let (sender, asked) = mpsc::channel(16);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream: Box<dyn Stream> = match &tls {
                    None => Box::new(stream),
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => Box::new(stream),
                        Err(_) => continue,
                    },
                };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    head.push(byte);
                }
                let head = String::from_utf8(head).unwrap();
                if head.is_empty() {
                    continue;
                }
                if sender.send(Asked { head, stream }).await.is_err() {
                    return;
                }
            }
        });
        let fixture = Arc::new(ReporterFixture::new());
        let asking = Arc::clone(&fixture);
        tokio::spawn(async move {
            let quick = || RetryPauses::new(Duration::from_millis(1), Duration::from_millis(20));
            run_with(&rules, &asking.reporter, quick).await;
        });
        Self { fixture, asked }
    }

    /// The next request.
    async fn next(&mut self) -> Asked {
        timeout(PATIENCE, self.asked.recv()).await.expect("a request").expect("a running watch")
    }

    /// Answers the list that comes next and begins the watch after it.
    async fn listed(&mut self, version: u64, slices: &[Value]) -> Asked {
        let asked = self.next().await;
        assert!(!asked.is_watch(), "{}", asked.head);
        asked.answer(200, &list(version, slices)).await;
        let watch = self.next().await.begin().await;
        assert_eq!(watch.query("resourceVersion"), Some(&*version.to_string()));
        watch
    }

    /// Waits until these hosts hold.
    async fn holds(&self, hosts: &[&str]) {
        let wanted: Vec<String> = hosts.iter().map(|host| format!("{host}:8000")).collect();
        let reached = async {
            while self.fixture.hosts() != wanted {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let in_time = timeout(PATIENCE, reached).await;
        assert!(in_time.is_ok(), "{:?} instead of {wanted:?}", self.fixture.hosts());
    }
}

#[tokio::test]
async fn a_list_in_pages_then_a_watch() {
    let mut cluster = Cluster::start(|_| {}).await;
    let first = cluster.next().await;
    assert!(
        first.head.starts_with("GET /apis/discovery.k8s.io/v1/namespaces/models/endpointslices?"),
        "{}",
        first.head
    );
    assert_eq!(first.query("labelSelector"), Some("kubernetes.io%2Fservice-name%3Dvllm"));
    let mut page = list(7, &[slice("a", 3, &["10.0.0.1"])]);
    page["metadata"]["continue"] = json!("more+");
    first.answer(200, &page).await;
    let second = cluster.next().await;
    assert_eq!(second.query("continue"), Some("more%2B"));
    assert_eq!(cluster.fixture.hosts(), Vec::<String>::new(), "half a list is none");
    second.answer(200, &list(7, &[slice("b", 4, &["10.0.0.2"])])).await;

    let mut watch = cluster.next().await.begin().await;
    assert_eq!(watch.query("resourceVersion"), Some("7"));
    assert_eq!(watch.query("allowWatchBookmarks"), Some("true"));
    assert!(watch.query("timeoutSeconds").unwrap().parse::<u64>().unwrap() <= 290);
    cluster.holds(&["10.0.0.1", "10.0.0.2"]).await;
    watch.event("ADDED", &slice("c", 8, &["10.0.0.3"])).await;
    cluster.holds(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]).await;
    // Slowly: one event in many pieces, and two in one.
    let line = json!({"type": "MODIFIED", "object": slice("a", 9, &["-10.0.0.1"])}).to_string();
    for piece in line.as_bytes().chunks(40) {
        watch.chunk(std::str::from_utf8(piece).unwrap()).await;
    }
    assert_eq!(cluster.fixture.hosts().len(), 3, "a line without an end is none yet");
    watch.chunk("\n").await;
    cluster.holds(&["-10.0.0.1", "10.0.0.2", "10.0.0.3"]).await;
    let gone = [slice("a", 10, &["-10.0.0.1"]), slice("b", 11, &["10.0.0.2"])];
    let lines = gone.map(|slice| json!({"type": "DELETED", "object": slice}).to_string() + "\n");
    watch.chunk(&lines.concat()).await;
    cluster.holds(&["10.0.0.3"]).await;
    assert_eq!(cluster.fixture.logged(), Vec::<&str>::new());
}

#[tokio::test]
async fn a_watch_that_breaks_off_goes_on_from_the_last_version() {
    let mut cluster = Cluster::start(|_| {}).await;
    let mut watch = cluster.listed(5, &[slice("a", 3, &["10.0.0.1"])]).await;
    let bookmark = json!({"kind": "EndpointSlice", "metadata": {"resourceVersion": "42"}});
    watch.event("BOOKMARK", &bookmark).await;
    watch.chunk(r#"{"type":"DELETED","object":{"metadata":{"na"#).await;
    drop(watch);
    let mut watch = cluster.next().await.begin().await;
    assert_eq!(watch.query("resourceVersion"), Some("42"));
    assert_eq!(cluster.fixture.hosts(), ["10.0.0.1:8000"], "half a line is none");
    watch.event("MODIFIED", &slice("a", 43, &["10.0.0.1", "10.0.0.2"])).await;
    cluster.holds(&["10.0.0.1", "10.0.0.2"]).await;
    watch.end().await;
    let watch = cluster.next().await.begin().await;
    assert_eq!(watch.query("resourceVersion"), Some("43"), "an end in peace is no reason to list");
    assert_eq!(cluster.fixture.logged(), Vec::<&str>::new(), "nor is it a loss");
}

#[tokio::test]
async fn a_version_that_is_gone_means_a_new_list() {
    let mut cluster = Cluster::start(|_| {}).await;
    let mut watch = cluster.listed(5, &[slice("a", 3, &["10.0.0.1"]), slice("b", 4, &["10.0.0.2"])]).await;
    watch.event("ERROR", &status(410)).await;
    // What was deleted in between is gone, without an event of its own.
    let watch = cluster.listed(80, &[slice("b", 4, &["10.0.0.2"])]).await;
    cluster.holds(&["10.0.0.2"]).await;
    drop(watch);
    cluster.next().await.answer(410, &status(410)).await;
    let asked = cluster.next().await;
    assert!(!asked.is_watch());
    assert_eq!(cluster.fixture.hosts(), ["10.0.0.2:8000"], "until the list comes the last view holds");
    asked.answer(200, &list(90, &[])).await;
    cluster.holds(&[]).await;
    assert_eq!(cluster.fixture.logged(), Vec::<&str>::new());
}

#[tokio::test]
async fn other_errors_go_on_from_where_it_was() {
    let mut cluster = Cluster::start(|_| {}).await;
    let mut watch = cluster.listed(5, &[slice("a", 3, &["10.0.0.1"])]).await;
    watch.event("ERROR", &status(500)).await;
    for code in [500, 429, 403] {
        let asked = cluster.next().await;
        assert_eq!(asked.query("resourceVersion"), Some("5"));
        asked.answer(code, &status(code)).await;
    }
    let asked = cluster.next().await;
    assert_eq!(cluster.fixture.hosts(), ["10.0.0.1:8000"]);
    let problem = cluster.fixture.statuses.views()[0].problem.clone();
    assert_eq!(problem.as_deref(), Some("the API server answers 403"));
    let _watch = asked.begin().await;
    let back = async {
        while cluster.fixture.statuses.views()[0].problem.is_some() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, back).await.expect("it answers again");
    assert_eq!(cluster.fixture.logged(), ["lost", "lost", "lost", "lost", "back"]);
}

#[tokio::test]
async fn garbage_is_a_reason_to_list_anew() {
    let mut cluster = Cluster::start(|_| {}).await;
    let mut version = 5;
    for garbage in ["no json\n", "{\"type\":\"ADDED\"}\n", "{\"type\":\"FROBBED\",\"object\":{}}\n", "[]\n"] {
        let mut watch = cluster.listed(version, &[slice("a", 3, &["10.0.0.1"])]).await;
        watch.chunk(garbage).await;
        version += 1;
    }
    let asked = cluster.next().await;
    asked.answer(200, &json!({"kind": "Pizza"})).await;
    let _watch = cluster.listed(version, &[slice("a", 3, &["10.0.0.1"])]).await;
    cluster.holds(&["10.0.0.1"]).await;
    let noted = cluster.fixture.logged();
    assert_eq!(noted.iter().filter(|note| **note == "lost").count(), 5, "{noted:?}");
}

#[tokio::test]
async fn without_an_api_server_the_last_view_holds() {
    let mut cluster = Cluster::start(|_| {}).await;
    let watch = cluster.listed(5, &[slice("a", 3, &["10.0.0.1"])]).await;
    cluster.holds(&["10.0.0.1"]).await;
    // Connections are taken, and closed without a word.
    drop(watch);
    for _ in 0..3 {
        drop(cluster.next().await);
    }
    let _asked = cluster.next().await;
    assert_eq!(cluster.fixture.hosts(), ["10.0.0.1:8000"]);
    assert!(cluster.fixture.logged().iter().filter(|note| **note == "lost").count() >= 3);
}

#[tokio::test]
async fn a_silent_watch_is_checked_against_a_list() {
    let mut cluster = Cluster::start(|rules| rules.resync = Duration::from_millis(200)).await;
    let _silent = cluster.listed(5, &[slice("a", 3, &["10.0.0.1"])]).await;
    let _silent = cluster.listed(6, &[slice("a", 6, &["10.0.0.2"])]).await;
    cluster.holds(&["10.0.0.2"]).await;
}

#[tokio::test]
async fn the_token_is_read_again_for_every_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "one\n").unwrap();
    let mut cluster = Cluster::start(|rules| rules.token_file = Some(file.clone())).await;
    let asked = cluster.next().await;
    assert!(asked.head.to_lowercase().contains("\r\nauthorization: bearer one\r\n"), "{}", asked.head);
    std::fs::write(&file, "two\n").unwrap();
    asked.answer(401, &status(401)).await;
    let asked = cluster.next().await;
    assert!(asked.head.to_lowercase().contains("\r\nauthorization: bearer two\r\n"), "{}", asked.head);
}

#[tokio::test]
async fn what_is_missing_is_said() {
    for (adapt, said) in [
        (
            Box::new(|rules: &mut KubernetesSource| rules.server = None)
                as Box<dyn FnOnce(&mut KubernetesSource)>,
            "no API server",
        ),
        (Box::new(|rules| rules.token_file = Some("/nowhere/token".into())), "/nowhere/token cannot be read"),
    ] {
        let cluster = Cluster::start(adapt).await;
        let problem = || cluster.fixture.statuses.views()[0].problem.clone();
        let told = async {
            while problem().is_none() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, told).await.expect("a problem");
        assert!(problem().unwrap().contains(said), "{:?}", problem());
    }
}
