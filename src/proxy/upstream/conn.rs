//! Upstream connection: HTTP/1.1 to an engine, driven by the task that uses it. The connection has
//! no task of its own, so a relayed chunk wakes one task instead of two.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;

use crate::protocol::request::edit::EditedBody;
use crate::proxy::upstream::io::UpstreamStream;
use crate::proxy::upstream::waker::OwnWaker;

type Driver = Pin<Box<Connection<TokioIo<UpstreamStream>, EditedBody>>>;

/// A connection that can take a request.
pub(super) struct UpstreamConn {
    sender: SendRequest<EditedBody>,
    link: ConnIo,
}

/// The side of a connection that reads and writes, driven by the task that uses it.
struct ConnIo {
    driver: Driver,
    open: bool,
    waker: OwnWaker,
}

impl fmt::Debug for UpstreamConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConn").field("open", &self.link.open).finish_non_exhaustive()
    }
}

impl UpstreamConn {
    pub(super) async fn handshake(stream: UpstreamStream) -> hyper::Result<Self> {
        let (sender, driver) =
            http1::Builder::new().max_buf_size(64 * 1024).handshake(TokioIo::new(stream)).await?;
        let link = ConnIo { driver: Box::pin(driver), open: true, waker: OwnWaker::new() };
        Ok(Self { sender, link })
    }

    /// Sends the request and waits for the answer's head.
    pub(super) async fn send(&mut self, request: Request<EditedBody>) -> hyper::Result<Response<Incoming>> {
        let Self { sender, link } = self;
        poll_fn(|cx| link.poll(cx, |cx| sender.poll_ready(cx))).await?;
        let mut response = std::pin::pin!(sender.send_request(request));
        poll_fn(|cx| link.poll(cx, |cx| response.as_mut().poll(cx))).await
    }

    /// The next piece of the body; `None` at its proper end.
    pub(super) fn poll_data(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Bytes>>> {
        loop {
            let frame = ready!(self.link.poll(cx, |cx| Pin::new(&mut *body).poll_frame(cx)));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(data))),
                Some(Ok(Err(_trailers))) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    /// Whether the connection can take another request now. An idle connection wakes no task.
    pub(super) fn is_reusable(&mut self) -> bool {
        self.link.drive_idle();
        self.link.open && self.sender.is_ready()
    }
}

impl ConnIo {
    /// Polls `ask`, which makes progress only while the connection is driven.
    fn poll<T>(&mut self, cx: &Context<'_>, ask: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let Self { driver, open, waker } = self;
        waker.poll(cx, ask, |cx| *open = *open && driver.as_mut().poll(cx).is_pending())
    }

    /// Drives the connection once without a task to wake, so that its state is current.
    fn drive_idle(&mut self) {
        let _pending = self.poll(&Context::from_waker(Waker::noop()), |_| Poll::<()>::Pending);
        self.waker.forget();
    }
}
