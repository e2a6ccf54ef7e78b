//! One HTTP/1.1 connection to an engine, driven by whoever uses it: no task
//! of its own, so a relayed chunk wakes one task and not two.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;

use crate::proxy::upstream::io::Stream;
use crate::wire::splice::Spliced;

type Driver = Pin<Box<Connection<TokioIo<Stream>, Spliced>>>;

/// A connection that can take a request.
pub(super) struct Conn {
    sender: SendRequest<Spliced>,
    driver: Driver,
    open: bool,
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Conn {
    pub(super) async fn handshake(stream: Stream) -> hyper::Result<Self> {
        let (sender, driver) = http1::Builder::new()
            .max_headers(100)
            .max_buf_size(64 * 1024)
            .handshake(TokioIo::new(stream))
            .await?;
        Ok(Self { sender, driver: Box::pin(driver), open: true })
    }

    /// Sends the request and waits for the answer's head.
    pub(super) async fn send(&mut self, request: Request<Spliced>) -> hyper::Result<Response<Incoming>> {
        poll_fn(|cx| {
            self.drive(cx);
            self.sender.poll_ready(cx)
        })
        .await?;
        let mut response = std::pin::pin!(self.sender.send_request(request));
        let (driver, open) = (&mut self.driver, &mut self.open);
        poll_fn(|cx| {
            if let Poll::Ready(head) = response.as_mut().poll(cx) {
                return Poll::Ready(head);
            }
            if *open && driver.as_mut().poll(cx).is_ready() {
                *open = false;
            }
            response.as_mut().poll(cx)
        })
        .await
    }

    /// The next piece of the body; `None` at its proper end.
    pub(super) fn poll_data(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Bytes>>> {
        loop {
            if let Poll::Ready(frame) = self.poll_body(body, cx) {
                match frame {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => return Poll::Ready(Some(Ok(data))),
                        Err(_trailers) => continue,
                    },
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => return Poll::Ready(None),
                }
            }
            return Poll::Pending;
        }
    }

    fn poll_body(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<http_body::Frame<Bytes>>>> {
        // The first poll tells the connection that data is wanted, the drive
        // fetches it, the second poll takes it.
        if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        self.drive(cx);
        Pin::new(body).poll_frame(cx)
    }

    /// Whether it could take another request now.
    pub(super) fn is_reusable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.open && self.sender.is_ready()
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        if self.open && self.driver.as_mut().poll(cx).is_ready() {
            self.open = false;
        }
    }
}
