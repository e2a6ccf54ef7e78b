//! Early head: the head of a stream before there is anything to stream. Requests that wait for a
//! pool start get an early head if their class allows it.
//!
//! The client gets status 200 and signs of life, so that neither the client nor a proxy in front of
//! it gives up. Behind the head, the request waits, is dispatched and is retried as usual. A
//! failure after the head is sent as an error event, and the connection is then cut, because an SDK
//! takes a stream that ends properly for complete.

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
use crate::proxy::Proxy;
use crate::proxy::attempt::EngineAnswer;
use crate::proxy::relay::buffer::{BufferEnd, BufferWriter};
use crate::proxy::relay::live_stream::LiveStream;
use crate::proxy::relay::pump::Pump;
use crate::proxy::request::InferenceRequest;
use crate::proxy::response::{
    AnswerBody, SERVING_MODEL, ServedRequest, answer_headers, note_error, stream_response,
};
use crate::proxy::summary::RequestRecord;
use crate::telemetry::event::RequestOutcome;

/// Interval at which the gateway checks whether a request waits for a pool start.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Sign of life for most APIs: a comment, which every SSE decoder skips.
const COMMENT: &[u8] = b": waiting for a replica\n\n";
/// Sign of life for the Messages API.
const PING: &[u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// Future that serves a request up to its answer.
pub(in crate::proxy) type Serving = Pin<Box<dyn Future<Output = ServedRequest> + Send>>;

/// Data of a head that is sent before its answer.
#[derive(Debug)]
pub(in crate::proxy) struct EarlyHead {
    job: JobId,
    headers: HeaderMap,
    dialect: Dialect,
    tenant: TenantId,
    /// Interval between two signs of life.
    every: Duration,
    sent: Arc<AtomicBool>,
}

impl Proxy {
    /// The early head of the request. `None` if the request may not have one.
    pub(in crate::proxy) fn early_head(
        &self,
        request: &InferenceRequest,
        record: &mut RequestRecord,
    ) -> Option<EarlyHead> {
        let (api, settings) = (request.parsed.api, self.settings.load());
        let streams = request.parsed.stream
            && matches!(api, Api::Chat | Api::Completions | Api::Responses | Api::Messages);
        if !streams || !settings.edge.early_heads.contains(&request.class) {
            return None;
        }
        let sent = Arc::<AtomicBool>::default();
        record.end.early_head = Some(Arc::clone(&sent));
        let mut engine = HeaderMap::new();
        engine.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        let mut headers = answer_headers(&engine, &settings.edge.upstream.answer_headers, record);
        // A fallback model may serve the request later.
        headers.remove(SERVING_MODEL);
        let (job, dialect, tenant) = (request.id, api.dialect(), request.tenant);
        Some(EarlyHead { job, headers, dialect, tenant, every: settings.edge.requests.keepalive, sent })
    }

    /// Waits for the answer. If the request waits for a pool start first, responds with an early
    /// head.
    pub(in crate::proxy) async fn respond_early(
        self: &Arc<Self>,
        mut serving: Serving,
        early: EarlyHead,
    ) -> Response<AnswerBody> {
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                served = &mut serving => return self.respond(served),
                () = sleep(pause) => pause = LOOK_EVERY,
            }
            if self.dispatcher.waits_for_pool_start(early.job) {
                break;
            }
        }
        early.sent.store(true, Ordering::Relaxed);
        let (writer, stream) = self.stream_buffer(early.tenant);
        let held = HeldStream { proxy: Arc::clone(self), serving, writer };
        let sign = if early.dialect == Dialect::Anthropic { PING } else { COMMENT };
        let filling = self.pumps.spawn(held.run(early.every, sign)).abort_handle();
        stream_response(early.headers, AnswerBody::Stream(stream.filled_by(filling)))
    }
}

/// A request whose head was sent and that waits for its answer. The request continues whether or
/// not the client reads.
struct HeldStream {
    proxy: Arc<Proxy>,
    serving: Serving,
    writer: BufferWriter,
}

impl HeldStream {
    /// Sends signs of life until the answer begins, then relays the answer.
    async fn run(self, every: Duration, sign: &'static [u8]) {
        let Self { proxy, mut serving, writer } = self;
        let mut beats = interval_at(Instant::now(), every);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let served = loop {
            tokio::select! {
                biased;
                served = &mut serving => break served,
                _ = beats.tick() => {
                    // One unread sign of life is enough for a client that does not read.
                    if writer.is_empty() {
                        writer.push([Bytes::from_static(sign)].into_iter());
                    }
                }
            }
        };
        drop(serving);
        let ServedRequest { answer, mut active, request } = served;
        let record = &mut active.record;
        record.end.status = StatusCode::OK.as_u16();
        let error = match answer {
            Ok(EngineAnswer::Stream { stream, .. }) => {
                record.mark_streaming();
                let live = Box::new(LiveStream { stream, active, request });
                return Pump::new(proxy, live, writer).run().await;
            }
            // The engine sent a whole answer although a stream was asked for.
            Ok(EngineAnswer::Whole { .. }) => {
                record.set_outcome(RequestOutcome::Failed, EngineFault::Malformed.name());
                ApiError::broken_stream(EngineFault::Malformed)
            }
            Err(error) => error,
        };
        note_error(&error, record);
        writer.push([error.sse_event(record.work.api.dialect())].into_iter());
        writer.end(BufferEnd::Broken);
    }
}
