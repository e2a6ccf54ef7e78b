//! Pump: the engine's side of a stream. The pump reads the engine at the engine's own speed into
//! the stream's buffer, and ends the request when the engine has ended, however slowly the client reads.
//! The pump runs in a task of its own, which ends when the client leaves.

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
use crate::proxy::Proxy;
use crate::proxy::relay::buffer::{BufferEnd, BufferWriter};
use crate::proxy::relay::engine_signals::{ItlSampler, StreamObserver};
use crate::proxy::relay::engine_stream::StreamStep;
use crate::proxy::relay::live_stream::{ContinuationSearch, LiveStream};

/// Longest wait for a stream whose replica has stalled and that cannot continue at another replica.
const STALLED_TIMEOUT: Duration = Duration::from_secs(12);

/// A stream between its engine and its buffer. An early drop means that the client left.
pub(in crate::proxy) struct Pump {
    proxy: Arc<Proxy>,
    live: Box<LiveStream>,
    out: BufferWriter,
    /// Whether the buffer has room. While the buffer is full, the stream is paused: the engine is
    /// not read, and its idle time does not count.
    has_room: bool,
    grace: ShutdownWatch,
    /// `None` for a stream whose inter-token latency is not measured.
    itl_sampler: Option<ItlSampler>,
    /// `None` while no engine is read.
    observer: Option<StreamObserver>,
    idle: Pin<Box<Sleep>>,
    idle_timeout: Duration,
    /// Time at which the engine last sent a part of the answer.
    last: Instant,
    /// Deadline of a stream whose replica has stalled. Any further part of the answer clears it.
    stalled_deadline: Option<Instant>,
    phase: PumpPhase,
}

#[derive(Debug)]
enum PumpPhase {
    Open,
    /// The stream broke, and another engine is to continue it.
    Interrupted(EngineFault, PartialAnswer),
    Over(BufferEnd),
}

/// Event that ended a pump's wait.
enum PumpWake {
    Engine(StreamStep),
    /// The buffer has room again, or the engine's part of the stream was ended from outside.
    Other,
}

impl Pump {
    /// Takes over a stream whose first token has arrived. The bytes read so far go into the buffer at
    /// once.
    pub(in crate::proxy) fn new(proxy: Arc<Proxy>, live: Box<LiveStream>, out: BufferWriter) -> Self {
        let idle_timeout = proxy.settings.load().edge.upstream.stream_idle_timeout;
        let last = Instant::now();
        let mut pump = Self {
            live,
            out,
            has_room: true,
            grace: proxy.dispatcher.shutdown().watch(),
            proxy,
            itl_sampler: None,
            observer: None,
            idle: Box::pin(sleep_until(last + idle_timeout)),
            idle_timeout,
            last,
            stalled_deadline: None,
            phase: PumpPhase::Open,
        };
        pump.start_engine_stream();
        pump.fill_buffer();
        pump
    }

    /// Whether the stream has ended.
    pub(in crate::proxy) const fn is_over(&self) -> bool {
        matches!(self.phase, PumpPhase::Over(_))
    }

    /// Relays the stream up to its end.
    pub(in crate::proxy) async fn run(mut self) {
        loop {
            match &self.phase {
                PumpPhase::Open => {
                    if let PumpWake::Engine(step) = self.next_event().await {
                        self.step(step);
                    }
                }
                // Boxed, as every stream would keep its room.
                PumpPhase::Interrupted(..) => Box::pin(self.continue_stream()).await,
                PumpPhase::Over(end) => return self.out.end(*end),
            }
            self.fill_buffer();
        }
    }

    /// Starts an engine's part of the stream, which may be complete already.
    fn start_engine_stream(&mut self) {
        let whole = self.live.stream.complete();
        self.phase = PumpPhase::Open;
        (self.last, self.stalled_deadline) = (Instant::now(), None);
        let replica = self.live.active.record.at_engine.dispatch.replica().filter(|_| whole.is_none());
        let signals = replica.map(|replica| self.proxy.engine_signals.attach(replica));
        self.observer = signals.clone().map(StreamObserver::new);
        let signals = signals.filter(|_| self.live.stream.is_single());
        self.itl_sampler =
            signals.map(|signals| ItlSampler::new(signals, self.live.stream.outputs(), self.last));
        if let Some(usage) = whole {
            self.completed(usage);
        }
    }

    /// Moves the bytes that were read into the buffer.
    fn fill_buffer(&mut self) {
        let stream = &mut self.live.stream;
        self.has_room = self.out.push(std::iter::from_fn(|| stream.next_out()));
        if let PumpPhase::Over(end) = self.phase {
            self.out.end(end);
        }
    }

    /// Waits for the engine, for room in the buffer, or for an event that ends the stream.
    async fn next_event(&mut self) -> PumpWake {
        if self.has_room {
            return poll_fn(|cx| self.poll_engine(cx)).await;
        }
        self.set_paused(true);
        let Self { out, live, grace, .. } = self;
        let ended = tokio::select! {
            biased;
            ended = poll_fn(|cx| poll_ended(live, grace, cx)) => ended,
            () = out.room() => {
                // The engine was not read during the pause, so its idle time starts now.
                self.last = Instant::now();
                self.has_room = true;
                self.set_paused(false);
                if self.stalled_deadline.is_some() {
                    self.start_stalled_deadline();
                }
                return PumpWake::Other;
            }
        };
        self.on_engine_end(ended);
        PumpWake::Other
    }

    fn poll_engine(&mut self, cx: &mut Context<'_>) -> Poll<PumpWake> {
        if let Poll::Ready(step) = self.live.stream.poll_step(cx) {
            return Poll::Ready(PumpWake::Engine(step));
        }
        if let Poll::Ready(ended) = poll_ended(&mut self.live, &mut self.grace, cx) {
            self.on_engine_end(ended);
            return Poll::Ready(PumpWake::Other);
        }
        if self.poll_idle_timeout(cx).is_ready() {
            self.on_engine_end(EngineEnd::Fault(EngineFault::Silent));
            return Poll::Ready(PumpWake::Other);
        }
        if let Some(sampler) = &mut self.itl_sampler {
            sampler.record_pending();
        }
        Poll::Pending
    }

    /// Ready when the engine has sent no part of the answer for too long.
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.idle.as_mut().poll(cx).is_ready() {
            let deadline = self.last + self.idle_timeout;
            let deadline = self.stalled_deadline.map_or(deadline, |until| until.min(deadline));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            self.idle.as_mut().reset(deadline);
        }
        Poll::Pending
    }

    fn step(&mut self, step: StreamStep) {
        match step {
            StreamStep::More => self.on_answer_bytes(),
            StreamStep::KeepAlive => self.on_bytes(),
            StreamStep::Complete(usage) => self.completed(usage),
            StreamStep::Failed(error, usage) => self.failed(error, usage),
        }
    }

    /// Notes that bytes came from the engine.
    fn on_bytes(&self) {
        self.observer.iter().for_each(StreamObserver::record_bytes);
    }

    /// Sets whether the engine is not read until the client has taken more.
    fn set_paused(&mut self, paused: bool) {
        self.observer.iter_mut().for_each(|observer| observer.set_paused(paused));
    }

    /// Notes that a part of the answer came from the engine.
    fn on_answer_bytes(&mut self) {
        self.on_bytes();
        (self.last, self.stalled_deadline) = (Instant::now(), None);
        let record = &mut self.live.active.record;
        record.at_engine.gaps.piece(record.clock.tick(self.last));
        record.record_output_events(self.live.stream.outputs());
        if let Some(sampler) = &mut self.itl_sampler {
            sampler.read(self.live.stream.outputs(), self.last);
        }
    }

    fn completed(&mut self, usage: JobUsage) {
        self.observer = None;
        self.phase = PumpPhase::Over(BufferEnd::Whole);
        if let Some(sampler) = &self.itl_sampler {
            sampler.ended(usage);
        }
        self.live.completed(usage);
    }

    /// Handles a failure of the engine: another engine continues, or the client gets an error
    /// event.
    fn failed(&mut self, error: EngineError, usage: JobUsage) {
        self.observer = None;
        if let EngineError::Fault(fault) = error
            && let Some(so_far) = self.live.interrupt(fault, usage)
        {
            self.phase = PumpPhase::Interrupted(fault, so_far);
            return;
        }
        self.live.broken(error, usage);
        self.phase = PumpPhase::Over(BufferEnd::Broken);
    }

    fn start_stalled_deadline(&mut self) {
        let until = Instant::now() + STALLED_TIMEOUT;
        self.stalled_deadline = Some(until);
        self.idle.as_mut().reset(until);
    }

    fn on_engine_end(&mut self, ended: EngineEnd) {
        let usage = self.live.stream.usage_so_far();
        let error = match ended {
            EngineEnd::Fault(fault) => return self.failed(EngineError::Fault(fault), usage),
            EngineEnd::Stalled => return self.start_stalled_deadline(),
            EngineEnd::ShutDown => self.live.active.record.end_for_shutdown(),
            EngineEnd::Replaced => self.live.active.record.end_as_superseded(),
        };
        self.live.withdraw(&error, usage);
        self.phase = PumpPhase::Over(BufferEnd::Broken);
    }

    /// Waits for the next engine and starts its part of the stream, or ends the stream.
    async fn continue_stream(&mut self) {
        let broken = PumpPhase::Over(BufferEnd::Broken);
        let PumpPhase::Interrupted(fault, so_far) = std::mem::replace(&mut self.phase, broken) else {
            return;
        };
        let from = self.live.active.record.at_engine.dispatch.replica();
        let search = self.live.find_replica(&self.proxy, &so_far).await;
        if let Some(from) = from {
            let goes_on = matches!(search, ContinuationSearch::Found);
            self.live.active.record.record_continuation(from, fault, goes_on);
        }
        let usage = self.live.stream.usage_so_far();
        match search {
            ContinuationSearch::Found => self.start_engine_stream(),
            ContinuationSearch::Broken => self.live.broken(EngineError::Fault(fault), usage),
            ContinuationSearch::Ended(error) => self.live.withdraw(&error, usage),
        }
    }
}

/// Event other than the engine's own that ends the engine's part of a stream.
#[derive(Debug, Clone, Copy)]
enum EngineEnd {
    /// The shutdown grace is over.
    ShutDown,
    /// A retry has superseded the request.
    Replaced,
    /// The stream continues at another engine, or breaks.
    Fault(EngineFault),
    /// The replica has stalled, and the stream cannot continue at another replica.
    Stalled,
}

fn poll_ended(live: &mut LiveStream, grace: &mut ShutdownWatch, cx: &mut Context<'_>) -> Poll<EngineEnd> {
    if grace.poll_ended(cx).is_ready() {
        return Poll::Ready(EngineEnd::ShutDown);
    }
    if live.active.record.notice().is_some_and(|notice| notice.poll_replaced(cx).is_ready()) {
        return Poll::Ready(EngineEnd::Replaced);
    }
    match live.poll_migration(cx) {
        Poll::Ready(fault) if live.can_go_on() => Poll::Ready(EngineEnd::Fault(fault)),
        Poll::Ready(EngineFault::Silent) => Poll::Ready(EngineEnd::Stalled),
        _ => Poll::Pending,
    }
}

/// The client has left. The engine stops when its connection closes, as the exchange in `live` drops.
impl Drop for Pump {
    fn drop(&mut self) {
        if matches!(self.phase, PumpPhase::Open) {
            self.live.record_partial_usage();
        }
    }
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump").field("phase", &self.phase).finish_non_exhaustive()
    }
}
