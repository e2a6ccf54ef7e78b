//! Tests of the connection pool against a scripted engine on loopback.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{ExchangeError, UpstreamCall, UpstreamError, UpstreamReplica};
use crate::config::load::fixtures::usual;
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
    let usual = usual().edge.upstream.clone();
    UpstreamLimits { connect_timeout: PATIENCE, stream_idle_timeout: PATIENCE, keep_alive: PATIENCE, ..usual }
}

async fn ask(replica: &Arc<UpstreamReplica>) -> Result<(bool, Vec<u8>), UpstreamError> {
    let headers = HeaderMap::new();
    let body = EditedBody::from(Bytes::from_static(b"{}"));
    let call = UpstreamCall { path: "/v1/x", headers: &headers, body };
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

/// Answers each request with the next text, over one connection.
fn answers(listener: TcpListener, texts: &'static [&'static [&'static str]]) -> JoinHandle<TcpListener> {
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        for pieces in texts {
            request(&mut socket).await;
            for piece in *pieces {
                socket.write_all(piece.as_bytes()).await.unwrap();
                // The gateway reads each piece by itself.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        listener
    })
}

#[tokio::test]
async fn an_answer_may_come_in_any_pieces_and_framings() {
    let (listener, replica) = engine().await;
    let script = answers(
        listener,
        &[
            &[
                "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 20",
                "0 OK\r\ntransfer-enc",
                "oding: chunked\r\n\r\n",
                "3\r\nab",
                "c\r\n",
                "2;x\r\nde\r\n0\r",
                "\n\r\n",
            ],
            &["HTTP/1.1 204 No Content\r\n\r\n"],
            &["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", "cde"],
            &["HTTP/1.1 200 OK\r\n\r\nup to ", "the end"],
        ],
    );
    assert_eq!(ask(&replica).await.unwrap(), (true, b"abcde".to_vec()));
    assert_eq!(ask(&replica).await.unwrap(), (false, Vec::new()));
    assert_eq!(ask(&replica).await.unwrap(), (false, b"abcde".to_vec()));
    assert_eq!(ask(&replica).await.unwrap(), (false, b"up to the end".to_vec()));
    script.await.unwrap();
}

#[tokio::test]
async fn a_connection_is_not_used_again_where_the_answer_says_so_or_more_comes_than_the_answer() {
    for text in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 Smuggled\r\n\r\n",
    ] {
        let (listener, replica) = engine().await;
        let script = tokio::spawn(async move {
            for _ in 0..2 {
                let (mut socket, _) = listener.accept().await.unwrap();
                request(&mut socket).await;
                socket.write_all(text.as_bytes()).await.unwrap();
                // The gateway closes it.
                assert!(matches!(socket.read(&mut [0; 1]).await, Ok(0) | Err(_)));
            }
        });
        for _ in 0..2 {
            assert_eq!(ask(&replica).await.unwrap(), (true, b"ok".to_vec()), "{text}");
        }
        timeout(PATIENCE, script).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn what_is_no_answer_is_malformed_and_what_breaks_off_is_an_error() {
    let (listener, replica) = engine().await;
    let script = tokio::spawn(async move {
        for text in ["HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "hello\r\n\r\n"] {
            let (mut socket, _) = listener.accept().await.unwrap();
            request(&mut socket).await;
            socket.write_all(text.as_bytes()).await.unwrap();
        }
        for text in ["content-length: 9\r\n\r\nok", "transfer-encoding: chunked\r\n\r\n2\r\nok\r\n"] {
            let (mut socket, _) = listener.accept().await.unwrap();
            request(&mut socket).await;
            socket.write_all(format!("HTTP/1.1 200 OK\r\n{text}").as_bytes()).await.unwrap();
        }
    });
    for _ in 0..2 {
        assert_eq!(ask(&replica).await.unwrap_err().fault(), EngineFault::Malformed);
    }
    for _ in 0..2 {
        assert!(matches!(ask(&replica).await.unwrap_err(), UpstreamError::Exchange(ExchangeError::Closed)));
    }
    script.await.unwrap();
}

#[tokio::test]
async fn an_engine_may_refuse_before_it_has_the_whole_request() {
    let (listener, replica) = engine().await;
    let script = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        assert!(socket.read(&mut head).await.unwrap() > 0);
        socket.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
        // It reads the rest at its leisure, and the next request comes on another connection.
        let mut rest = vec![0; 1 << 16];
        while !matches!(socket.read(&mut rest).await, Ok(0) | Err(_)) {}
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(OK).await.unwrap();
    });
    let headers = HeaderMap::new();
    let body = EditedBody::from(Bytes::from(vec![b'x'; 32 << 20]));
    let call = UpstreamCall { path: "/v1/x", headers: &headers, body };
    let mut sent = replica.send(&call, &limits()).await.unwrap();
    assert_eq!(sent.head.status.as_u16(), 413);
    assert_eq!(sent.data().await.unwrap().unwrap(), "no");
    assert!(sent.data().await.is_none());
    assert_eq!(ask(&replica).await.unwrap(), (true, b"ok".to_vec()));
    script.await.unwrap();
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
