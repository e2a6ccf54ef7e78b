//! The engine's side of a stream: reads the engine at its own pace into the
//! stream's buffer, and ends the request when the engine has, whatever the
//! client does. It runs in a task of its own, which ends when the client leaves.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::core::model::event::EngineFault;
use crate::core::model::job::JobUsage;
use crate::dispatcher::shutdown::ShutdownWatch;
use crate::protocol::response::engine_error::EngineError;
use crate::protocol::response::partial_answer::PartialAnswer;
use crate::proxy::handler::Proxy;
use crate::proxy::relay::buffer::{BufferEnd, BufferWriter};
use crate::proxy::relay::continuation::{ContinuationSearch, LiveStream};
use crate::proxy::relay::engine_stream::StreamStep;
use crate::proxy::relay::itl::{ItlCounters, ItlSampler, StreamObserver};

/// How long a stream that cannot go on elsewhere is still waited for when its
/// replica has stalled.
const STALLED_TIMEOUT: Duration = Duration::from_secs(12);

/// A stream between its engine and its buffer. Dropped early = the client left.
pub(in crate::proxy) struct Pump {
    live: Box<LiveStream>,
    out: BufferWriter,
    /// Whether the buffer takes more. While it does not, the stream is paused
    /// for its client: the engine is not read and owes nothing.
    has_room: bool,
    grace: ShutdownWatch,
    paces: Arc<ItlCounters>,
    /// Absent for a stream that is not measured.
    pacer: Option<ItlSampler>,
    /// Absent while no engine is read.
    ear: Option<StreamObserver>,
    idle: Pin<Box<Sleep>>,
    idle_timeout: Duration,
    /// When the engine last said something.
    last: Instant,
    /// Its replica has stalled: it is waited for until then, unless it speaks.
    given_up: Option<Instant>,
    phase: PumpPhase,
}

#[derive(Debug)]
enum PumpPhase {
    Open,
    /// It broke, and another engine is to go on with it.
    Interrupted(EngineFault, PartialAnswer),
    Over(BufferEnd),
}

/// What a pump waited for.
enum PumpWake {
    Engine(StreamStep),
    /// Something else has to be looked at, or has ended the stream.
    Other,
}

impl Pump {
    /// Takes over a stream whose first token has come; with its usage when it is
    /// whole. What there is of it goes into the buffer at once.
    pub(in crate::proxy) fn new(
        proxy: &Proxy,
        live: Box<LiveStream>,
        whole: Option<JobUsage>,
        out: BufferWriter,
    ) -> Self {
        let idle_timeout = proxy.settings.load().edge.upstream.stream_idle_timeout;
        let last = Instant::now();
        let mut pump = Self {
            live,
            out,
            has_room: true,
            grace: proxy.dispatcher.shutdown().watch(),
            paces: Arc::clone(&proxy.itl_samplers),
            pacer: None,
            ear: None,
            idle: Box::pin(sleep_until(last + idle_timeout)),
            idle_timeout,
            last,
            given_up: None,
            phase: PumpPhase::Open,
        };
        pump.begins(whole);
        pump.pass_on();
        pump
    }

    /// Whether nothing more is to come of the engine.
    pub(in crate::proxy) const fn is_over(&self) -> bool {
        matches!(self.phase, PumpPhase::Over(_))
    }

    /// Passes the stream on to its end.
    pub(in crate::proxy) async fn run(mut self) {
        loop {
            match &self.phase {
                PumpPhase::Open => {
                    if let PumpWake::Engine(step) = self.turn().await {
                        self.step(step);
                    }
                }
                PumpPhase::Interrupted(..) => self.go_on().await,
                PumpPhase::Over(end) => return self.out.end(*end),
            }
            self.pass_on();
        }
    }

    /// An engine's part of the stream begins; with its usage when it is whole.
    fn begins(&mut self, whole: Option<JobUsage>) {
        self.phase = PumpPhase::Open;
        (self.last, self.given_up) = (Instant::now(), None);
        let place = self.live.request.record.place.filter(|_| whole.is_none());
        let meter = place.map(|place| self.paces.meter(place.replica));
        self.ear = meter.clone().map(StreamObserver::new);
        let meter = meter.filter(|_| self.live.stream.is_single());
        self.pacer = meter.map(|meter| ItlSampler::new(meter, self.live.stream.outputs(), self.last));
        if let Some(usage) = whole {
            self.completed(usage);
        }
    }

    /// Gives the buffer what was read.
    fn pass_on(&mut self) {
        let stream = &mut self.live.stream;
        self.has_room = self.out.push(std::iter::from_fn(|| stream.next_out()));
        if let PumpPhase::Over(end) = self.phase {
            self.out.end(end);
        }
    }

    /// Waits for the engine, for room in the buffer, or for what ends the
    /// stream.
    async fn turn(&mut self) -> PumpWake {
        if self.has_room {
            return poll_fn(|cx| self.poll_engine(cx)).await;
        }
        self.pauses(true);
        let Self { out, live, grace, .. } = self;
        let ended = tokio::select! {
            biased;
            ended = poll_fn(|cx| poll_ended(live, grace, cx)) => ended,
            () = out.room() => {
                // The engine was not listened to: its silence begins now.
                self.last = Instant::now();
                self.has_room = true;
                self.pauses(false);
                if self.given_up.is_some() {
                    self.give_up();
                }
                return PumpWake::Other;
            }
        };
        self.ended(ended);
        PumpWake::Other
    }

    fn poll_engine(&mut self, cx: &mut Context<'_>) -> Poll<PumpWake> {
        if let Poll::Ready(step) = self.live.stream.poll_step(cx) {
            return Poll::Ready(PumpWake::Engine(step));
        }
        if let Poll::Ready(ended) = poll_ended(&mut self.live, &mut self.grace, cx) {
            self.ended(ended);
            return Poll::Ready(PumpWake::Other);
        }
        if self.is_silent(cx) {
            self.ended(EngineEnd::Fault(EngineFault::Silent));
            return Poll::Ready(PumpWake::Other);
        }
        if let Some(pacer) = &mut self.pacer {
            pacer.waits();
        }
        Poll::Pending
    }

    /// Whether the engine has said nothing for too long.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        while self.idle.as_mut().poll(cx).is_ready() {
            let deadline = self.last + self.idle_timeout;
            let deadline = self.given_up.map_or(deadline, |until| until.min(deadline));
            if Instant::now() >= deadline {
                return true;
            }
            self.idle.as_mut().reset(deadline);
        }
        false
    }

    fn step(&mut self, step: StreamStep) {
        match step {
            StreamStep::More => self.came(),
            StreamStep::KeepAlive => self.hears(),
            StreamStep::Complete(usage) => self.completed(usage),
            StreamStep::Failed(error, usage) => self.failed(error, usage),
        }
    }

    /// Bytes came from the engine.
    fn hears(&self) {
        self.ear.iter().for_each(StreamObserver::hears);
    }

    /// Whether nothing is read of the engine until the client has taken more.
    fn pauses(&mut self, paused: bool) {
        self.ear.iter_mut().for_each(|ear| ear.pauses(paused));
    }

    /// Something of the answer came from the engine.
    fn came(&mut self) {
        self.hears();
        (self.last, self.given_up) = (Instant::now(), None);
        let record = &mut self.live.request.record;
        record.gaps.piece(record.clock.tick(self.last));
        if let Some(pacer) = &mut self.pacer {
            pacer.read(self.live.stream.outputs(), self.last);
        }
    }

    fn completed(&mut self, usage: JobUsage) {
        self.ear = None;
        self.phase = PumpPhase::Over(BufferEnd::Whole);
        if let Some(pacer) = &self.pacer {
            pacer.ended(usage);
        }
        self.live.completed(usage);
    }

    /// The engine failed: another one goes on, or the client is told.
    fn failed(&mut self, error: EngineError, usage: JobUsage) {
        self.ear = None;
        if let EngineError::Fault(fault) = error
            && let Some(so_far) = self.live.goes_on(fault, usage)
        {
            self.phase = PumpPhase::Interrupted(fault, so_far);
            return;
        }
        self.live.broken(error, usage);
        self.phase = PumpPhase::Over(BufferEnd::Broken);
    }

    fn give_up(&mut self) {
        let until = Instant::now() + STALLED_TIMEOUT;
        self.given_up = Some(until);
        self.idle.as_mut().reset(until);
    }

    fn ended(&mut self, ended: EngineEnd) {
        let usage = self.live.stream.usage_so_far();
        let error = match ended {
            EngineEnd::Fault(fault) => return self.failed(EngineError::Fault(fault), usage),
            EngineEnd::Stalled => return self.give_up(),
            EngineEnd::ShutDown => self.live.request.record.shut_down(),
            EngineEnd::Replaced => self.live.request.record.superseded(),
        };
        self.live.close(&error, None, usage);
        self.phase = PumpPhase::Over(BufferEnd::Broken);
    }

    /// Off to the next engine.
    async fn go_on(&mut self) {
        let broken = PumpPhase::Over(BufferEnd::Broken);
        let PumpPhase::Interrupted(fault, so_far) = std::mem::replace(&mut self.phase, broken) else {
            return;
        };
        let from = self.live.request.record.place.map(|place| place.replica);
        let onward = self.live.onward(&so_far).await;
        if let Some(from) = from {
            self.live.request.record.broke_off(from, fault, matches!(onward, ContinuationSearch::Found(_)));
        }
        let usage = self.live.stream.usage_so_far();
        match onward {
            ContinuationSearch::Found(whole) => self.begins(whole),
            ContinuationSearch::Broken => self.live.broken(EngineError::Fault(fault), usage),
            ContinuationSearch::Ended(error) => self.live.close(&error, None, usage),
        }
    }
}

/// What ends an engine's part of a stream, beside the engine.
#[derive(Debug, Clone, Copy)]
enum EngineEnd {
    /// The grace of a drain is over.
    ShutDown,
    /// A retry has taken the request's place.
    Replaced,
    /// It goes on at another engine, or breaks.
    Fault(EngineFault),
    /// Its replica has stalled, and it cannot go on elsewhere.
    Stalled,
}

fn poll_ended(live: &mut LiveStream, grace: &mut ShutdownWatch, cx: &mut Context<'_>) -> Poll<EngineEnd> {
    if grace.poll_ended(cx).is_ready() {
        return Poll::Ready(EngineEnd::ShutDown);
    }
    if live.request.record.notice().is_some_and(|notice| notice.poll_replaced(cx).is_ready()) {
        return Poll::Ready(EngineEnd::Replaced);
    }
    match live.poll_handed_over(cx) {
        Poll::Ready(fault) if live.can_go_on() => Poll::Ready(EngineEnd::Fault(fault)),
        Poll::Ready(EngineFault::Silent) => Poll::Ready(EngineEnd::Stalled),
        _ => Poll::Pending,
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        if matches!(self.phase, PumpPhase::Open) {
            let usage = self.live.stream.usage_so_far();
            self.live.request.note_usage(usage);
        }
    }
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump").field("phase", &self.phase).finish_non_exhaustive()
    }
}
