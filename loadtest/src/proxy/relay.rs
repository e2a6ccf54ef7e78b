//! Relay of one request through the reference proxy.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::{Request, Response, StatusCode};

use super::balance::{Balance, Lease, Mode};
use crate::client::Connection;
use crate::target::Endpoint;

/// Bytes of a request's body.
const MAX_BODY: usize = 64 << 20;

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// The servers and their idle connections.
#[derive(Debug)]
pub(super) struct Proxy {
    servers: Vec<Server>,
    balance: Arc<Balance>,
}

#[derive(Debug)]
struct Server {
    endpoint: Endpoint,
    idle: Idle,
}

type Idle = Arc<Mutex<Vec<Connection>>>;

impl Proxy {
    pub(super) async fn new(urls: &[String], mode: Mode, maxconn: Option<usize>, seed: u64) -> Result<Self> {
        let mut servers = Vec::new();
        for url in urls {
            servers.push(Server { endpoint: Endpoint::new(url, "").await?, idle: Idle::default() });
        }
        let balance = Balance::new(mode, servers.len(), maxconn, seed);
        Ok(Self { servers, balance })
    }

    /// Passes a request on and its answer back.
    pub(super) async fn relay(&self, request: Request<Incoming>) -> Answer {
        let (mut head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
            return refusal(StatusCode::BAD_REQUEST, "the body did not come whole");
        };
        let body = body.to_bytes();
        head.headers.remove(CONNECTION);
        head.headers.remove(TRANSFER_ENCODING);
        let lease = self.balance.lease().await;
        let server = &self.servers[lease.server];
        head.headers.insert(HOST, server.endpoint.host().clone());
        loop {
            let (mut connection, fresh) = match server.connection().await {
                Ok(connection) => connection,
                Err(error) => return refusal(StatusCode::BAD_GATEWAY, &error),
            };
            let request = Request::from_parts(head.clone(), Full::new(body.clone()));
            match connection.send(request).await {
                Ok(response) => return pass(response, lease, connection, &server.idle),
                Err(error) if fresh => return refusal(StatusCode::BAD_GATEWAY, &error.to_string()),
                // The server closed it while it lay idle.
                Err(_) => {}
            }
        }
    }
}

impl Server {
    /// An idle connection, or a new one and true.
    async fn connection(&self) -> Result<(Connection, bool), String> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut connection) = idle else {
                return Ok((Connection::open(&self.endpoint).await?, true));
            };
            if connection.ready().await {
                return Ok((connection, false));
            }
        }
    }
}

fn pass(response: Response<Incoming>, lease: Lease, connection: Connection, idle: &Idle) -> Answer {
    let (mut head, body) = response.into_parts();
    head.headers.remove(CONNECTION);
    head.headers.remove(TRANSFER_ENCODING);
    let body = Relayed { body, held: Some((lease, connection)), idle: Arc::clone(idle) };
    Response::from_parts(head, body.boxed())
}

fn refusal(status: StatusCode, text: &str) -> Answer {
    let text = serde_json::json!({"error": {"message": text, "type": "server_error", "code": "proxy"}});
    let body = Full::new(Bytes::from(text.to_string())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed());
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    response
}

/// An answer on its way. At its end the place at the server is free and the
/// connection may be used again; dropped before that, the connection closes,
/// which cancels the request.
struct Relayed {
    body: Incoming,
    held: Option<(Lease, Connection)>,
    idle: Idle,
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let is_over = matches!(frame, Poll::Ready(None)) || self.body.is_end_stream();
        if is_over && let Some((lease, connection)) = self.held.take() {
            drop(lease);
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
