//! The body of a streamed answer: bytes from the engine as they come, and the
//! request's end whatever ends it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::core::event::{Fault, Outcome};
use crate::core::job::Usage;
use crate::proxy::gate::Ticket;
use crate::proxy::grace::GraceWatch;
use crate::proxy::pace::{Meter, Pacer};
use crate::proxy::record::Record;
use crate::proxy::stream::{EngineStream, Step};
use crate::telemetry::event::{RequestOutcome, StreamBroken};
use crate::wire::catalogue::Kind;
use crate::wire::error::ApiError;
use crate::wire::judge::refusal::EngineError;

/// A stream broke after its client had seen part of it. The connection is
/// closed without a proper end, after an error event.
#[derive(Debug, thiserror::Error)]
#[error("the engine's stream broke")]
pub struct RelayBroken;

/// A stream on its way to the client. Dropped early = the client left.
#[derive(Debug)]
pub struct Relay {
    stream: Box<EngineStream>,
    ticket: Ticket,
    record: Record,
    grace: GraceWatch,
    /// Absent for a stream that is not measured.
    pacer: Option<Pacer>,
    idle: Pin<Box<Sleep>>,
    idle_timeout: Duration,
    last: Instant,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Complete,
    /// The error event is out; the transport gets one turn to flush it.
    Broken,
    Closing,
}

impl Relay {
    /// Takes over a stream whose first token has come.
    pub(super) fn new(
        stream: Box<EngineStream>,
        ticket: Ticket,
        record: Record,
        grace: GraceWatch,
        idle_timeout: Duration,
    ) -> Self {
        let last = Instant::now();
        let idle = Box::pin(sleep_until(last + idle_timeout));
        Self { stream, ticket, record, grace, pacer: None, idle, idle_timeout, last, phase: Phase::Open }
    }

    /// Counts the stream's gaps in `meter`, if it is one that can be measured.
    pub(super) fn measure(&mut self, meter: Option<Arc<Meter>>) {
        let meter = meter.filter(|_| self.stream.is_single());
        self.pacer = meter.map(|meter| Pacer::new(meter, self.stream.outputs(), self.last));
    }

    /// The stream was whole before the client got its head.
    pub(super) fn completed(&mut self, usage: Usage) {
        self.phase = Phase::Complete;
        if let Some(pacer) = &self.pacer {
            pacer.ended(usage);
        }
        self.record.succeeded(usage);
        self.ticket.finish(Outcome::Done(usage));
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayBroken>>> {
        loop {
            if let Some(bytes) = self.stream.next_out() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            match self.phase {
                Phase::Open => {}
                Phase::Complete => return Poll::Ready(None),
                Phase::Broken => {
                    self.phase = Phase::Closing;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Phase::Closing => return Poll::Ready(Some(Err(RelayBroken))),
            }
            match self.stream.poll_step(cx) {
                Poll::Ready(Step::More) => self.progressed(),
                Poll::Ready(Step::KeepAlive) => {}
                Poll::Ready(Step::Complete(usage)) => self.completed(usage),
                Poll::Ready(Step::Failed(error, usage)) => self.broken(error, usage),
                Poll::Pending if self.interrupted(cx) => {}
                Poll::Pending => {
                    if let Some(pacer) = &mut self.pacer {
                        pacer.waits();
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    fn progressed(&mut self) {
        self.last = Instant::now();
        self.record.gaps.piece(self.record.clock.tick(self.last));
        if let Some(pacer) = &mut self.pacer {
            pacer.read(self.stream.outputs(), self.last);
        }
    }

    /// Whether the silence lasted too long, the grace is over, or a retry has
    /// taken the request's place.
    fn interrupted(&mut self, cx: &mut Context<'_>) -> bool {
        if self.grace.poll_ended(cx).is_ready() {
            let text = "the gateway is shutting down; send the request again";
            self.record.ended(RequestOutcome::Failed, "draining");
            self.close(&ApiError::new(Kind::Draining, text), None, self.stream.usage_so_far());
            return true;
        }
        if self.record.notice().is_some_and(|notice| notice.poll_replaced(cx).is_ready()) {
            let error = self.record.superseded();
            self.close(&error, None, self.stream.usage_so_far());
            return true;
        }
        while self.idle.as_mut().poll(cx).is_ready() {
            let deadline = self.last + self.idle_timeout;
            if Instant::now() >= deadline {
                self.broken(EngineError::Fault(Fault::Silent), self.stream.usage_so_far());
                return true;
            }
            self.idle.as_mut().reset(deadline);
        }
        false
    }

    fn broken(&mut self, error: EngineError, usage: Usage) {
        let (fault, error) = match error {
            EngineError::Fault(fault) => (Some(fault), ApiError::broken_stream(fault)),
            EngineError::Client(error) => (None, error),
        };
        let reason = fault.map_or(error.kind().code(), |fault| fault.name());
        let outcome = if fault.is_some() { RequestOutcome::Failed } else { RequestOutcome::ClientError };
        self.record.ended(outcome, reason);
        if let (Some(fault), Some(place)) = (fault, self.record.place) {
            let request_id = self.record.request_id.to_str().unwrap_or_default();
            let output_tokens = usage.tokens().map_or(0, |tokens| tokens.output);
            StreamBroken { request_id, replica: place.replica, fault, output_tokens }
                .emit(&self.record.telemetry);
        }
        self.close(&error, fault, usage);
    }

    fn close(&mut self, error: &ApiError, fault: Option<Fault>, usage: Usage) {
        self.record.usage = Some(usage);
        self.ticket.finish(match fault {
            Some(fault) => Outcome::Failed { fault, usage },
            None => Outcome::Done(usage),
        });
        self.stream.break_off(error.sse_event(self.record.api.dialect()));
        self.phase = Phase::Broken;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.phase == Phase::Open {
            let usage = self.stream.usage_so_far();
            self.record.usage = Some(usage);
            self.ticket.note_usage(usage);
        }
    }
}
