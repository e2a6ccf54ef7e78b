//! Answers: the service as hyper calls it. The service refuses messages that the socket side found
//! bad, and reports the end of each answer to the socket side.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use pin_project_lite::pin_project;

use crate::proxy::listener::clock::Delivery;
use crate::proxy::listener::conn_state::{ConnState, OpenRequest};
use crate::proxy::listener::http2::checks::screen_http2;
use crate::proxy::listener::rejected::RequestRejected;

/// Error of a body, in the form that hyper takes.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Longest piece of an answer that is passed to hyper at once, in bytes. The client's progress is
/// measured in steps of this size. HTTP/2 sends no longer pieces.
const PIECE_BYTES: usize = 16 * 1024;

/// A service behind the listener's checks.
pub(super) struct GuardedService<S> {
    service: S,
    state: Arc<ConnState>,
}

impl<S> GuardedService<S> {
    pub(super) fn new(service: S, state: Arc<ConnState>) -> Self {
        Self { service, state }
    }
}

impl<S, B> Service<Request<Incoming>> for GuardedService<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes>,
{
    type Response = Response<AnswerPieces<B>>;
    type Error = Infallible;
    type Future = Answering<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let is_http2 = request.version() == Version::HTTP_2;
        let delivery = is_http2.then(|| self.state.stream_begins());
        let refusal = if is_http2 { screen_http2(&request).err() } else { None };
        if let Some(refusal) = refusal {
            self.state.metrics.refused(refusal.label());
        }
        let running = refusal.is_none().then(|| self.service.call(request));
        let open = Some(self.state.begin_request());
        Answering { running, refusal, delivery, open, state: Arc::clone(&self.state) }
    }
}

pin_project! {
    /// The service's work on one request.
    pub(super) struct Answering<F> {
        #[pin]
        running: Option<F>,
        refusal: Option<RequestRejected>,
        delivery: Option<Arc<Delivery>>,
        // Passed on to the answer's body.
        open: Option<OpenRequest>,
        state: Arc<ConnState>,
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<AnswerPieces<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut me = self.project();
        if me.refusal.is_none() {
            *me.refusal = me.state.fault();
        }
        let Some(running) = me.running.as_mut().as_pin_mut().filter(|_| me.refusal.is_none()) else {
            me.running.set(None);
            let response = me.refusal.unwrap_or(RequestRejected::BodyCutShort).response();
            let content = |text| AnswerContent::Refusal { text: Some(text) };
            return Poll::Ready(Ok(response.map(|text| {
                AnswerPieces::new(content(text), me.delivery.take(), me.open.take(), me.state)
            })));
        };
        let Poll::Ready(Ok(mut response)) = running.poll(cx) else {
            return Poll::Pending;
        };
        if let Some(delivery) = me.delivery.as_ref().filter(|_| response.body().is_end_stream()) {
            delivery.begins();
        }
        if response.version() == Version::HTTP_11 && !me.state.request_is_whole() {
            // hyper closes the connection after an answer that did not wait for the body.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(Ok(response.map(|body| {
            let content = AnswerContent::Service { body };
            AnswerPieces::new(content, me.delivery.take(), me.open.take(), me.state)
        })))
    }
}

pin_project! {
    /// The body of an answer, in pieces.
    pub(super) struct AnswerPieces<B> {
        #[pin]
        content: AnswerContent<B>,
        // Remaining bytes of a frame that is too long for one piece.
        rest: Bytes,
        was_cut: bool,
        // Length of the last piece passed to hyper, in bytes.
        offered: usize,
        delivery: Option<Arc<Delivery>>,
        open: Option<OpenRequest>,
        state: Arc<ConnState>,
    }

    impl<B> PinnedDrop for AnswerPieces<B> {
        // Reports the end of the answer to the socket side.
        fn drop(this: Pin<&mut Self>) {
            this.project().state.set_answered();
        }
    }
}

pin_project! {
    #[project = ContentProj]
    enum AnswerContent<B> {
        Service { #[pin] body: B },
        Refusal { text: Option<Bytes> },
    }
}

impl<B> AnswerPieces<B> {
    fn new(
        content: AnswerContent<B>,
        delivery: Option<Arc<Delivery>>,
        open: Option<OpenRequest>,
        state: &Arc<ConnState>,
    ) -> Self {
        let state = Arc::clone(state);
        Self { content, rest: Bytes::new(), was_cut: false, offered: 0, delivery, open, state }
    }
}

impl<B: Body<Data = Bytes>> AnswerContent<B> {
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project() {
            ContentProj::Service { body } => body.poll_frame(cx),
            ContentProj::Refusal { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Service { body } => body.is_end_stream(),
            Self::Refusal { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Service { body } => body.size_hint(),
            Self::Refusal { text } => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}

impl<B: Body<Data = Bytes>> Body for AnswerPieces<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut me = self.project();
        if let Some(delivery) = me.delivery.as_ref() {
            delivery.begins();
        }
        // hyper asks for the next piece only after it has sent the last one.
        if let Some(delivery) = me.delivery.as_ref().filter(|_| *me.offered > 0) {
            delivery.sent(*me.offered);
        }
        *me.offered = 0;
        if me.rest.is_empty() {
            match ready!(me.content.as_mut().poll_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => *me.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        *me.was_cut |= me.rest.len() > PIECE_BYTES;
        let mut piece = me.rest.split_to(me.rest.len().min(PIECE_BYTES));
        if *me.was_cut && me.rest.is_empty() && me.content.is_end_stream() {
            // The last piece may wait for its client after the answer has ended. A copy does not
            // keep the whole frame in memory.
            piece = Bytes::copy_from_slice(&piece);
        }
        *me.offered = piece.len();
        if let Some(delivery) = me.delivery.as_ref().filter(|_| !piece.is_empty()) {
            delivery.offers();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let hint = self.content.size_hint();
        let mut with_rest = SizeHint::new();
        with_rest.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            with_rest.set_upper(upper + rest);
        }
        with_rest
    }
}

impl<S> fmt::Debug for GuardedService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedService").field("state", &self.state).finish_non_exhaustive()
    }
}
