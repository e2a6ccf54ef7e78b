//! TLS on the client listener, and certificates as credentials.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt as _, Full};
use penstock::sim::server::{SimOptions, SimServer};
use rcgen::SanType;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::certificates::{Authority, Leaf, connect, put, send, uri};
use crate::support::client::{Answer, Call, H2, H2Body, Session};
use crate::support::gateway::{Rig, chat, head, pool_lines, soon, tenant_lines, until};

const CHAT: &str = "/v1/chat/completions";
const H1: &[&[u8]] = &[b"http/1.1"];
const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];
const ALPHA: &str = "spiffe://test/alpha";

/// A gateway with a certificate of `server`, that asks for those of
/// `clients`.
async fn rig(server: &Authority, clients: &Authority, tls: &str, tenant: &str, more: &str) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    server.server().put(folder.path(), "server");
    put(&folder.path().join("clients.crt"), &clients.pem());
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let tls = format!("tls: {{cert: server.crt, key: server.key, client_ca: clients.crt{tls}}}{more}");
    let text = format!(
        "{}tenants:\n{}{}pools:\n{}",
        head(&tls),
        tenant_lines("alpha", tenant),
        tenant_lines("beta", ""),
        pool_lines("main", "engine: vllm\nmodels: [sim, other]", &[engine.url()])
    );
    let path = folder.path().join("penstock.yaml");
    std::fs::write(&path, text).unwrap();
    Rig::at(folder, path, vec![engine], ["alpha", "beta"]).await
}

fn ask(tokens: u32) -> Call {
    Call::post(CHAT, &chat(tokens, true))
}

#[tokio::test]
async fn both_http_versions_run_over_tls_and_plain_text_does_not() {
    let ca = Authority::new();
    let rig = rig(&ca, &ca, "", "", "").await;
    let key = rig.key("alpha").to_owned();

    let one = connect(rig.address(), &ca.client(None, BOTH)).await.unwrap();
    assert_eq!(one.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut two = H2::over(one).await;
    let bytes = Bytes::from(chat(5, true).to_string());
    let body = H2Body::new(Full::new(bytes).map_err(|never| match never {}));
    let asked = two.sender.send_request(ask(5).key(&key).http2(body));
    let answer = Answer::of(soon("an answer", asked).await.unwrap()).await;
    assert!(answer.is_done(), "{answer:?}");

    let plain = connect(rig.address(), &ca.client(None, H1)).await.unwrap();
    assert_eq!(plain.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut session = Session::over(plain).await;
    for _ in 0..3 {
        assert!(session.call(ask(3).key(&key)).await.is_done());
    }
    // The strict door is behind the handshake: a repeated Host is refused.
    let mut raw = connect(rig.address(), &ca.client(None, H1)).await.unwrap();
    raw.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    let _ended = soon("the end", raw.read_to_end(&mut said)).await;
    assert!(said.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&said));

    let mut in_the_clear = TcpStream::connect(rig.address()).await.unwrap();
    in_the_clear.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    let _ended = soon("the end", in_the_clear.read_to_end(&mut said)).await;
    assert!(!said.starts_with(b"HTTP"), "an alert at most");
    until("it is counted", || rig.telemetry.captured_log().contains("\"reason\":\"not_tls\"")).await;
    assert!(rig.metric("penstock_tls_handshakes_failed_total").await >= 1.0);
    assert!(rig.metric("penstock_tls_certificate_ends_timestamp_seconds").await > 1.7e9);
}

#[tokio::test]
async fn the_protocol_is_the_one_that_tls_chose() {
    let ca = Authority::new();
    let rig = rig(&ca, &ca, "", "", "").await;
    let ask = async |alpn: &[&[u8]], bytes: &[u8]| {
        let mut raw = connect(rig.address(), &ca.client(None, alpn)).await.unwrap();
        raw.write_all(bytes).await.unwrap();
        let mut said = Vec::new();
        let _ended = soon("the end", raw.read_to_end(&mut said)).await;
        said
    };
    let said = ask(BOTH, &b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"[..]).await;
    // SETTINGS, then GOAWAY with PROTOCOL_ERROR.
    assert_eq!((said.len(), said[3], said[12], said[25]), (26, 4, 7, 1), "{said:?}");
    let said = ask(H1, &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..]).await;
    assert!(said.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&said));
}

#[tokio::test]
async fn a_new_certificate_counts_at_once_and_drops_nobody() {
    let (ca, next) = (Authority::new(), Authority::new());
    let rig = rig(&ca, &ca, "", "", "").await;
    let key = rig.key("alpha").to_owned();
    let mut before = Session::over(connect(rig.address(), &ca.client(None, H1)).await.unwrap()).await;
    assert!(before.call(ask(2).key(&key)).await.is_done());

    // A broken one changes nothing, and says so.
    let folder = rig.folder.path();
    put(&folder.join("server.crt"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    until("it is refused", || rig.telemetry.captured_log().contains("config rejected")).await;
    assert!(rig.telemetry.captured_log().contains("server.crt"));
    assert!(send(rig.address(), &ca.client(None, H1), ask(2).key(&key)).await.is_done());
    let loaded = || rig.telemetry.captured_log().matches("certificate loaded").count();
    assert_eq!(loaded(), 1);

    next.server().put(folder, "server");
    until("it is loaded", || loaded() == 2).await;
    assert!(connect(rig.address(), &ca.client(None, H1)).await.is_err(), "the old authority is over");
    assert!(send(rig.address(), &next.client(None, H1), ask(2).key(&key)).await.is_done());
    assert!(before.call(ask(2).key(&key)).await.is_done(), "the open connection goes on");
    let log = rig.telemetry.captured_log();
    assert!(log.contains("\"changed\":\"server.tls\""), "the audit names what changed");
    assert!(!log.contains("BEGIN"));
}

#[tokio::test]
async fn handshakes_take_a_bounded_time_and_one_that_stalls_stops_nobody() {
    let ca = Authority::new();
    let stalled = async |rig: &Rig| {
        futures_util::future::join_all([0; 2].map(|_| TcpStream::connect(rig.address()))).await
    };
    let patient = rig(&ca, &ca, "", "", ", handshake_timeout: 1m, max_address_handshakes: 1").await;
    let _stalled = stalled(&patient).await;
    // Were the place theirs, this one would not have it before their time is over.
    let call = ask(2).key(patient.key("alpha"));
    let tls = ca.client(None, H1);
    let answered = soon("an answer beside them", send(patient.address(), &tls, call));
    assert!(answered.await.is_done());

    let rig = rig(&ca, &ca, "", "", ", handshake_timeout: 200ms, max_address_handshakes: 1").await;
    for stream in stalled(&rig).await {
        let mut end = [0; 64];
        assert!(matches!(soon("the end", stream.unwrap().read(&mut end)).await, Ok(0) | Err(_)));
    }
    until("they are counted", || rig.telemetry.captured_log().contains("\"reason\":\"timeout\"")).await;
}

/// A client at `source` that sends a ClientHello and then nothing.
async fn silent_after_hello(rig: &Rig, source: &str, hello: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
    let mut stream = soon("a connection", socket.connect(rig.address())).await.unwrap();
    stream.write_all(hello).await.unwrap();
    stream
}

#[tokio::test]
async fn clients_that_are_silent_after_their_hello_hold_up_their_own_address_only() {
    let ca = Authority::new();
    let rig = rig(&ca, &ca, "", "", ", handshake_timeout: 1m, max_address_handshakes: 2").await;
    let mut client =
        ClientConnection::new(ca.client(None, H1), ServerName::from(rig.address().ip())).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let mut held = Vec::new();
    for source in ["127.0.0.2", "127.0.0.3"] {
        // These are answered, and hold their address's places.
        for _ in 0..2 {
            let mut stream = silent_after_hello(&rig, source, &hello).await;
            soon("the gateway's answer", stream.read_u8()).await.unwrap();
            held.push(stream);
        }
        for _ in 0..2 {
            held.push(silent_after_hello(&rig, source, &hello).await);
        }
    }
    let tls = ca.client(None, H1);
    let call = ask(2).key(rig.key("alpha"));
    let answer = timeout(Duration::from_secs(1), send(rig.address(), &tls, call)).await;
    assert!(answer.expect("a third address is served at once").is_done());
    // An address has no more than its places.
    let last = held.last_mut().unwrap();
    let answered = timeout(Duration::from_millis(100), last.read_u8()).await;
    assert!(answered.is_err(), "{answered:?}");
}

#[tokio::test]
async fn a_certificate_is_a_credential() {
    let ca = Authority::new();
    let tenant = "client_certs: [{uri: 'spiffe://test/alpha', class: batch, classes: [batch, standard], models: [sim]}, {dns: Trainer.Test}, {email: a@b.test}]";
    let rig = rig(&ca, &ca, "", tenant, "").await;
    let client = |leaf: &Leaf| ca.client(Some(leaf), H1);
    let mine = ca.leaf(vec![SanType::DnsName("unknown.test".try_into().unwrap()), uri(ALPHA)]);
    let answer = send(rig.address(), &client(&mine), ask(2).header("x-request-id", "by-cert")).await;
    assert!(answer.is_done(), "{answer:?}");
    let line = rig.line_of("by-cert").await;
    assert_eq!(
        (&line["tenant"], &line["class"], &line["key_id"]),
        (&"alpha".into(), &"batch".into(), &format!("uri:{ALPHA}").into())
    );
    for leaf in [
        ca.leaf(vec![SanType::DnsName("trainer.test".try_into().unwrap())]),
        ca.leaf(vec![SanType::Rfc822Name("a@b.test".try_into().unwrap())]),
    ] {
        assert!(send(rig.address(), &client(&leaf), ask(2)).await.is_done());
    }
    // What the certificate may not use.
    let urgent = ask(2).header("x-penstock-class", "interactive");
    let answer = send(rig.address(), &client(&mine), urgent).await;
    assert_eq!((answer.status, &*answer.code()), (403, "class_not_allowed"));
    assert!(answer.text().contains("one of: standard, batch"), "{}", answer.text());
    let mut body = chat(2, true);
    body["model"] = "other".into();
    let answer = send(rig.address(), &client(&mine), Call::post(CHAT, &body)).await;
    assert_eq!((answer.status, &*answer.code()), (404, "model_not_found"));
    let listed = send(rig.address(), &client(&mine), Call::get("/v1/models")).await.ok();
    assert_eq!(listed.json()["data"].as_array().unwrap().len(), 1);
    // A key goes before it, and what only looks like one does not.
    let as_beta = ask(2).key(rig.key("beta")).header("x-request-id", "by-key");
    assert!(send(rig.address(), &client(&mine), as_beta).await.is_done());
    assert_eq!(rig.line_of("by-key").await["tenant"], "beta");
    assert!(send(rig.address(), &client(&mine), ask(2).key("none")).await.is_done());
}

#[tokio::test]
async fn who_has_no_certificate_of_ours_is_told_so() {
    let (ca, other) = (Authority::new(), Authority::new());
    let tenant = "client_certs: [{uri: 'spiffe://test/alpha'}]";
    let rig = rig(&ca, &ca, "", tenant, "").await;
    let unknown = ca.leaf(vec![uri("spiffe://test/nobody")]);
    let answer = send(rig.address(), &ca.client(Some(&unknown), H1), ask(2)).await;
    assert_eq!((answer.status, &*answer.code()), (403, "identity_not_mapped"));
    assert!(answer.text().contains("subject alternative names"), "{}", answer.text());
    assert!(!answer.text().contains("nobody"));
    let answer = send(rig.address(), &ca.client(None, H1), ask(2)).await;
    assert_eq!((answer.status, &*answer.code()), (401, "missing_api_key"));

    // Of another authority: the same name, and no way in.
    let forged = other.leaf(vec![uri(ALPHA)]);
    let config = ca.client(Some(&forged), H1);
    let refused = match connect(rig.address(), &config).await {
        Err(_) => true,
        // In TLS 1.3 the client believes that it is through until it reads.
        Ok(mut stream) => {
            let _ = stream.write_all(&ask(2).bytes()).await;
            let mut said = Vec::new();
            soon("the end", stream.read_to_end(&mut said)).await.is_err() || said.is_empty()
        }
    };
    assert!(refused);
    until("it is counted", || rig.telemetry.captured_log().contains("\"reason\":\"certificate\"")).await;
    assert_eq!(rig.engine(0).state().total, 0);
}

#[tokio::test]
async fn a_listener_may_insist_on_a_certificate() {
    let ca = Authority::new();
    let rig = rig(&ca, &ca, ", require_client_cert: true, min_version: '1.3'", "", "").await;
    // In TLS 1.3 the client believes that it is through until it reads.
    let mut bare = connect(rig.address(), &ca.client(None, H1)).await.unwrap();
    let _ = bare.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let mut said = Vec::new();
    let ended = soon("the end", bare.read_to_end(&mut said)).await;
    assert!(ended.is_err() || said.is_empty());
    let any = ca.leaf(vec![uri("spiffe://test/any")]);
    let answer = send(rig.address(), &ca.client(Some(&any), H1), Call::new(Method::GET, "/health")).await;
    assert_eq!(answer.status, 200);
    assert!(send(rig.address(), &ca.client(Some(&any), H1), ask(2).key(rig.key("alpha"))).await.is_done());
}
