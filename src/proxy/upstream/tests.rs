//! Tests of the connection pool against a scripted engine on loopback.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{UpstreamCall, UpstreamError, UpstreamReplica};
use crate::config::settings::UpstreamLimits;
use crate::core::model::event::EngineFault;
use crate::protocol::request::edit::EditedBody;

const PATIENCE: Duration = Duration::from_secs(10);
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

async fn engine() -> (TcpListener, Arc<UpstreamReplica>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prefix", listener.local_addr().unwrap()).parse().unwrap();
    (listener, Arc::new(UpstreamReplica::new(&url, None)))
}

fn limits() -> UpstreamLimits {
    UpstreamLimits {
        request_headers: Default::default(),
        answer_headers: Default::default(),
        connect_timeout: PATIENCE,
        first_token_timeout: PATIENCE,
        answer_timeout: PATIENCE,
        stream_idle_timeout: PATIENCE,
        keep_alive: PATIENCE,
    }
}

async fn ask(replica: &Arc<UpstreamReplica>) -> Result<(bool, Vec<u8>), UpstreamError> {
    let headers = HeaderMap::new();
    let body = EditedBody::from(Bytes::from_static(b"{}"));
    let call = UpstreamCall { method: Method::POST, path: "/v1/x", headers: &headers, body };
    let mut sent = replica.send(&call, &limits()).await?;
    let mut answer = Vec::new();
    while let Some(data) = sent.data().await {
        answer.extend_from_slice(&data?);
    }
    Ok((sent.connect.is_some(), answer))
}

/// Reads one request with the body `{}`.
async fn request(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n{}") {
        let byte = socket.read_u8().await.unwrap();
        text.push(byte);
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn connections_are_used_again_and_carry_the_prefix() {
    let (listener, replica) = engine().await;
    let script = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let first = request(&mut socket).await;
        socket.write_all(OK).await.unwrap();
        request(&mut socket).await;
        socket.write_all(OK).await.unwrap();
        first
    });
    assert_eq!(ask(&replica).await.unwrap(), (true, b"ok".to_vec()));
    assert_eq!(ask(&replica).await.unwrap(), (false, b"ok".to_vec()));
    let first = script.await.unwrap();
    assert!(first.starts_with("POST /prefix/v1/x HTTP/1.1\r\n"), "{first}");
}

#[tokio::test]
async fn a_pooled_connection_that_closes_as_the_request_arrives_is_retried_for_free() {
    let (listener, replica) = engine().await;
    let script = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(OK).await.unwrap();
        request(&mut socket).await;
        drop(socket);
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(OK).await.unwrap();
    });
    assert!(ask(&replica).await.unwrap().0);
    assert_eq!(ask(&replica).await.unwrap(), (true, b"ok".to_vec()));
    script.await.unwrap();
}

#[tokio::test]
async fn a_fresh_connection_that_breaks_is_a_fault() {
    let (listener, replica) = engine().await;
    let script = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
    });
    assert_eq!(ask(&replica).await.unwrap_err().fault(), EngineFault::Reset);
    script.await.unwrap();
    assert_eq!(ask(&replica).await.unwrap_err().fault(), EngineFault::Refused);
}

#[tokio::test]
async fn unused_connections_are_closed() {
    let (listener, replica) = engine().await;
    let script = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(OK).await.unwrap();
        socket.read(&mut [0; 1]).await.unwrap()
    });
    ask(&replica).await.unwrap();
    replica.close_idle(PATIENCE);
    assert!(!script.is_finished());
    replica.close_idle(Duration::ZERO);
    assert_eq!(timeout(PATIENCE, script).await.unwrap().unwrap(), 0);
}
