//! The service as hyper calls it: it refuses what the socket side found bad
//! and tells that side when an answer has ended.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use pin_project_lite::pin_project;

use crate::proxy::server::refusal::Refusal;
use crate::proxy::server::screen::screen_http2;
use crate::proxy::server::state::ConnState;

/// A service behind the door's checks.
pub(super) struct Guarded<S> {
    service: S,
    state: Arc<ConnState>,
}

impl<S> Guarded<S> {
    pub(super) fn new(service: S, state: Arc<ConnState>) -> Self {
        Self { service, state }
    }
}

impl<S, B> Service<Request<Incoming>> for Guarded<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes>,
{
    type Response = Response<Answer<B>>;
    type Error = Infallible;
    type Future = Answering<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let refusal = if request.version() == Version::HTTP_2 { screen_http2(&request).err() } else { None };
        if let Some(refusal) = refusal {
            self.state.events.refused(refusal);
        }
        let running = refusal.is_none().then(|| self.service.call(request));
        Answering { running, refusal, state: Arc::clone(&self.state) }
    }
}

pin_project! {
    /// The service's work on one request.
    pub(super) struct Answering<F> {
        #[pin]
        running: Option<F>,
        refusal: Option<Refusal>,
        state: Arc<ConnState>,
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<Answer<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut me = self.project();
        if me.refusal.is_none() {
            *me.refusal = me.state.fault();
        }
        let Some(running) = me.running.as_mut().as_pin_mut().filter(|_| me.refusal.is_none()) else {
            me.running.set(None);
            let response = me.refusal.unwrap_or(Refusal::BodyCutShort).response();
            return Poll::Ready(Ok(response.map(|text| Answer::refusal(text, me.state))));
        };
        let Poll::Ready(Ok(mut response)) = running.poll(cx) else {
            return Poll::Pending;
        };
        if response.version() == Version::HTTP_11 && !me.state.request_is_whole() {
            // hyper closes after an answer that did not wait for the body.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(Ok(response.map(|body| Answer::service(body, me.state))))
    }
}

pin_project! {
    /// The body of an answer.
    pub(super) struct Answer<B> {
        #[pin]
        content: Content<B>,
        end: AnswerEnd,
    }
}

pin_project! {
    #[project = ContentProj]
    enum Content<B> {
        Service { #[pin] body: B },
        Refusal { text: Option<Bytes> },
    }
}

impl<B> Answer<B> {
    fn service(body: B, state: &Arc<ConnState>) -> Self {
        Self { content: Content::Service { body }, end: AnswerEnd(Arc::clone(state)) }
    }

    fn refusal(text: Bytes, state: &Arc<ConnState>) -> Self {
        Self { content: Content::Refusal { text: Some(text) }, end: AnswerEnd(Arc::clone(state)) }
    }
}

impl<B: Body<Data = Bytes>> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.project().content.project() {
            ContentProj::Service { body } => body.poll_frame(cx),
            ContentProj::Refusal { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Service { body } => body.is_end_stream(),
            Content::Refusal { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Service { body } => body.size_hint(),
            Content::Refusal { text } => SizeHint::with_exact(text.as_ref().map_or(0, |t| t.len() as u64)),
        }
    }
}

/// Tells the socket side, when dropped, that an answer has ended.
struct AnswerEnd(Arc<ConnState>);

impl Drop for AnswerEnd {
    fn drop(&mut self) {
        self.0.set_answered();
    }
}

impl<S> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("state", &self.state).finish_non_exhaustive()
    }
}
