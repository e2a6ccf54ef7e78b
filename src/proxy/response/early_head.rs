//! The head of a stream before there is anything to stream: for requests that
//! are held for a pool that has to start, where their class allows it.
//!
//! The client gets 200 and signs of life, so that neither it nor a proxy before
//! it gives up. Everything behind the head is as ever: the request waits, is
//! tried, and tried again. A failure then comes as an error event, after which
//! the connection is cut: an SDK takes a stream that ends properly for whole.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::core::model::event::EngineFault;
use crate::core::model::ids::{JobId, TenantId};
use crate::protocol::api::{Api, Dialect};
use crate::protocol::error::ApiError;
use crate::proxy::handler::{CheckedRequest, ClientAnswer, Proxy, ServedRequest};
use crate::proxy::relay::buffer::{BufferEnd, BufferWriter};
use crate::proxy::relay::continuation::LiveStream;
use crate::proxy::relay::pump::Pump;
use crate::proxy::response::body::{AnswerBody, ClientStream};
use crate::proxy::response::{SERVING_MODEL, answer_headers, note_error, stream_response};
use crate::proxy::summary::RequestRecord;
use crate::telemetry::event::RequestOutcome;

/// How often it is looked whether a request has come to be held.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A sign of life: a comment, which every SSE decoder skips.
const COMMENT: &[u8] = b": waiting for a replica\n\n";
/// The same in the words of the Messages API.
const PING: &[u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// A request on its way to its answer.
pub(in crate::proxy) type Serving = Pin<Box<dyn Future<Output = ServedRequest> + Send>>;

/// What a head needs that comes before its answer.
#[derive(Debug)]
pub(in crate::proxy) struct EarlyHead {
    job: JobId,
    headers: HeaderMap,
    dialect: Dialect,
    tenant: TenantId,
    /// Between two signs of life.
    every: Duration,
    sent: Arc<AtomicBool>,
}

impl Proxy {
    /// What it takes for an early head, if the request may have one.
    pub(in crate::proxy) fn early_head(
        &self,
        taken: &CheckedRequest,
        record: &mut RequestRecord,
    ) -> Option<EarlyHead> {
        let CheckedRequest { settings, order, .. } = taken;
        let streams = order.peek.stream
            && matches!(order.api, Api::Chat | Api::Completions | Api::Responses | Api::Messages);
        if !streams || !settings.edge.early_heads.contains(&order.spec.class) {
            return None;
        }
        let sent = Arc::<AtomicBool>::default();
        record.early_head = Some(Arc::clone(&sent));
        let mut engine = HeaderMap::new();
        engine.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        let mut headers = answer_headers(&engine, record);
        // Another model may serve in the end.
        headers.remove(SERVING_MODEL);
        let (job, dialect) = (order.spec.id, order.api.dialect());
        let tenant = order.spec.tenant;
        Some(EarlyHead { job, headers, dialect, tenant, every: settings.edge.requests.keepalive, sent })
    }

    /// Waits for the answer, or for the request to be held.
    pub(in crate::proxy) async fn respond_early(
        self: &Arc<Self>,
        mut serving: Serving,
        early: EarlyHead,
    ) -> Response<AnswerBody> {
        let mut patience = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                served = &mut serving => return self.respond(served),
                () = sleep(patience) => patience = LOOK_EVERY,
            }
            if self.dispatcher.waits_for_pool_start(early.job) {
                break;
            }
        }
        early.sent.store(true, Ordering::Relaxed);
        let (writer, reader) = self.stream_buffer(early.tenant);
        let held = HeldStream { proxy: Arc::clone(self), serving, writer };
        let sign = if early.dialect == Dialect::Anthropic { PING } else { COMMENT };
        let filling = self.pumps.spawn(held.run(early.every, sign)).abort_handle();
        stream_response(early.headers, AnswerBody::Stream(ClientStream::new(reader, Some(filling))))
    }
}

/// A request whose head is out, until there is an answer. Its client only
/// listens: the request goes on whether or not the client reads.
struct HeldStream {
    proxy: Arc<Proxy>,
    serving: Serving,
    writer: BufferWriter,
}

impl HeldStream {
    /// Waits for the answer with signs of life, then passes it on.
    async fn run(self, every: Duration, sign: &'static [u8]) {
        let Self { proxy, mut serving, writer } = self;
        let mut beats = interval_at(Instant::now(), every);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let served = loop {
            tokio::select! {
                biased;
                served = &mut serving => break served,
                _ = beats.tick() => {
                    // One is enough for a client that does not read.
                    if writer.is_empty() {
                        writer.push([Bytes::from_static(sign)].into_iter());
                    }
                }
            }
        };
        drop(serving);
        let ServedRequest { answered, mut request } = served;
        let record = &mut request.record;
        record.status = StatusCode::OK.as_u16();
        let error = match answered {
            Ok((ClientAnswer::Stream { stream, whole, .. }, continuation)) => {
                record.streams();
                let live = Box::new(LiveStream { stream, request, continuation });
                return Pump::new(&proxy, live, whole, writer).run().await;
            }
            // The engine did not stream what it was asked to stream.
            Ok((ClientAnswer::Whole { .. }, ..)) => {
                record.ended(RequestOutcome::Failed, EngineFault::Malformed.name());
                ApiError::broken_stream(EngineFault::Malformed)
            }
            Err(error) => error,
        };
        note_error(&error, record);
        writer.push([error.sse_event(record.api.dialect())].into_iter());
        writer.end(BufferEnd::Broken);
    }
}
