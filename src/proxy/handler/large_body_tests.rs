//! Tests of large bodies: one that is being parsed delays no other request of its worker thread.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::duplex;
use tokio::runtime;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::auth::ConnectedClient;
use crate::proxy::Proxy;
use crate::proxy::handler::{MAX_INLINE_BYTES, tests};
use crate::proxy::listener::ClientConnection;

/// A connection to the proxy within this thread.
async fn connect(proxy: &Arc<Proxy>) -> SendRequest<Full<Bytes>> {
    let (client, server) = duplex(64 << 10);
    let proxy = Arc::clone(proxy);
    tokio::spawn(async move {
        let client = ConnectedClient { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), names: None };
        let connection = ClientConnection { client, bodies: Arc::default() };
        let service = service_fn(|request| Arc::clone(&proxy).handle(request, &connection));
        Builder::new().serve_connection(TokioIo::new(server), service).await
    });
    let (sender, connection) = handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A chat with a model that nobody serves, padded to about `bytes`. Its answer needs no engine.
async fn ask(sender: &mut SendRequest<Full<Bytes>>, bytes: usize) -> String {
    let padding = "a".repeat(bytes);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{padding}"}}],"model":"none"}}"#);
    let request = Request::post("/v1/chat/completions").header("host", "gateway");
    let request = request.header("content-type", "application/json").body(Full::from(body)).unwrap();
    let answer = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap();
    String::from_utf8(answer.to_bytes().to_vec()).unwrap()
}

/// The test holds the only thread that may parse large bodies. Everything else runs on this thread, in
/// paused time.
#[test]
fn other_requests_are_answered_while_a_large_body_is_parsed() {
    let mut runtime = runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let proxy = tests::proxy(["http://127.0.0.1:1".into(), "http://127.0.0.1:2".into()]).await;
        let (mut first, mut second) = (connect(&proxy).await, connect(&proxy).await);
        let (release, held) = channel::<()>();
        let holder = spawn_blocking(move || held.recv());
        let began = Instant::now();
        let large = tokio::spawn(async move { ask(&mut first, 2 * MAX_INLINE_BYTES).await });
        while proxy.memory.bodies.held() < 2 * MAX_INLINE_BYTES as u64 {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            let answer = ask(&mut second, MAX_INLINE_BYTES / 64).await;
            assert!(answer.contains("model_not_found"), "{answer}");
        }
        assert!(!large.is_finished() && began.elapsed().is_zero());
        release.send(()).unwrap();
        holder.await.unwrap().unwrap();
        let answer = large.await.unwrap();
        assert!(answer.contains("model_not_found"), "{answer}");
    });
}
