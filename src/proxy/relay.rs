//! The body of a streamed answer: bytes from the engine as they come, and the
//! request's end whatever ends it.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, mem};

use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::core::event::Fault;
use crate::core::ids::ReplicaId;
use crate::core::job::Usage;
use crate::proxy::continuation::{Live, Onward, Search};
use crate::proxy::grace::GraceWatch;
use crate::proxy::pace::{Ear, Meter, Pacer};
use crate::proxy::stream::Step;
use crate::wire::judge::refusal::EngineError;
use crate::wire::judge::so_far::SoFar;

/// How long a stream that cannot go on elsewhere is still waited for when its
/// replica has stalled.
const STALLED_TIMEOUT: Duration = Duration::from_secs(12);

/// A stream broke after its client had seen part of it. The connection is
/// closed without a proper end, after an error event.
#[derive(Debug, thiserror::Error)]
#[error("the engine's stream broke")]
pub struct RelayBroken;

/// A stream on its way to the client. Dropped early = the client left.
pub struct Relay {
    stage: Stage,
    grace: GraceWatch,
    /// Absent for a stream that is not measured.
    pacer: Option<Pacer>,
    /// Absent while no engine is read.
    ear: Option<Ear>,
    idle: Pin<Box<Sleep>>,
    idle_timeout: Duration,
    last: Instant,
    /// Its replica has stalled: it is waited for until then, unless it speaks.
    given_up: Option<Instant>,
    phase: Phase,
}

/// Where the stream is.
enum Stage {
    /// At an engine, or at its end.
    Here(Box<Live>),
    /// On its way to another engine, from one that had this fault.
    Away { from: Option<ReplicaId>, fault: Fault, search: Search },
}

#[derive(Debug)]
enum Phase {
    Open,
    /// It broke, and another engine is to go on with it once the client has
    /// what was read.
    Interrupted(Fault, SoFar),
    Complete,
    /// The error event is out; the transport gets one turn to flush it.
    Broken,
    Closing,
}

impl Relay {
    /// Takes over a stream whose first token has come.
    pub(super) fn new(live: Box<Live>, grace: GraceWatch, idle_timeout: Duration) -> Self {
        let last = Instant::now();
        let idle = Box::pin(sleep_until(last + idle_timeout));
        Self {
            stage: Stage::Here(live),
            grace,
            pacer: None,
            ear: None,
            idle,
            idle_timeout,
            last,
            given_up: None,
            phase: Phase::Open,
        }
    }

    /// A part of the stream is here: its gaps are counted in `meter` if it can
    /// be measured; with its usage when it is whole.
    pub(super) fn begins(&mut self, meter: Option<Arc<Meter>>, whole: Option<Usage>) {
        let Stage::Here(live) = &mut self.stage else { return };
        self.phase = Phase::Open;
        let meter = meter.filter(|_| whole.is_none());
        self.ear = meter.clone().map(Ear::new);
        let meter = meter.filter(|_| live.stream.is_single());
        self.pacer = meter.map(|meter| Pacer::new(meter, live.stream.outputs(), self.last));
        if let Some(usage) = whole {
            self.phase = Phase::Complete;
            live.completed(usage);
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayBroken>>> {
        self.pauses(false);
        loop {
            let live = match &mut self.stage {
                Stage::Here(live) => live,
                Stage::Away { search, .. } => {
                    let (live, onward) = ready!(search.as_mut().poll(cx));
                    self.back(live, onward);
                    continue;
                }
            };
            if let Some(bytes) = live.stream.next_out() {
                self.pauses(true);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            match self.phase {
                Phase::Open => {}
                Phase::Interrupted(..) => {
                    self.leave();
                    continue;
                }
                Phase::Complete => return Poll::Ready(None),
                Phase::Broken => {
                    self.phase = Phase::Closing;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Phase::Closing => return Poll::Ready(Some(Err(RelayBroken))),
            }
            match live.stream.poll_step(cx) {
                Poll::Ready(Step::More) => self.progressed(),
                Poll::Ready(Step::KeepAlive) => self.hears(),
                Poll::Ready(Step::Complete(usage)) => self.completed(usage),
                Poll::Ready(Step::Failed(error, usage)) => self.failed(error, usage),
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

    /// Bytes came from the engine.
    fn hears(&self) {
        self.ear.iter().for_each(Ear::hears);
    }

    /// Whether nothing is read of the engine until the client has taken more.
    fn pauses(&mut self, paused: bool) {
        self.ear.iter_mut().for_each(|ear| ear.pauses(paused));
    }

    fn progressed(&mut self) {
        self.hears();
        let Stage::Here(live) = &mut self.stage else { return };
        self.last = Instant::now();
        self.given_up = None;
        live.record.gaps.piece(live.record.clock.tick(self.last));
        if let Some(pacer) = &mut self.pacer {
            pacer.read(live.stream.outputs(), self.last);
        }
    }

    fn completed(&mut self, usage: Usage) {
        self.ear = None;
        let Stage::Here(live) = &mut self.stage else { return };
        self.phase = Phase::Complete;
        if let Some(pacer) = &self.pacer {
            pacer.ended(usage);
        }
        live.completed(usage);
    }

    /// Whether the silence lasted too long, the grace is over, a retry has taken
    /// the request's place, or another engine is to go on.
    fn interrupted(&mut self, cx: &mut Context<'_>) -> bool {
        let Stage::Here(live) = &mut self.stage else { return false };
        if self.grace.poll_ended(cx).is_ready() {
            let error = live.record.shut_down();
            live.close(&error, None, live.stream.usage_so_far());
            self.phase = Phase::Broken;
            return true;
        }
        if live.record.notice().is_some_and(|notice| notice.poll_replaced(cx).is_ready()) {
            let error = live.record.superseded();
            live.close(&error, None, live.stream.usage_so_far());
            self.phase = Phase::Broken;
            return true;
        }
        if let Poll::Ready(fault) = live.poll_handed_over(cx) {
            if live.can_go_on() {
                let usage = live.stream.usage_so_far();
                self.failed(EngineError::Fault(fault), usage);
                return true;
            }
            if fault == Fault::Silent {
                let until = Instant::now() + STALLED_TIMEOUT;
                self.given_up = Some(until);
                self.idle.as_mut().reset(until);
            }
        }
        while self.idle.as_mut().poll(cx).is_ready() {
            let deadline = self.last + self.idle_timeout;
            let deadline = self.given_up.map_or(deadline, |until| until.min(deadline));
            if Instant::now() >= deadline {
                let usage = live.stream.usage_so_far();
                self.failed(EngineError::Fault(Fault::Silent), usage);
                return true;
            }
            self.idle.as_mut().reset(deadline);
        }
        false
    }

    /// The engine failed: another one goes on, or the client is told.
    fn failed(&mut self, error: EngineError, usage: Usage) {
        self.ear = None;
        let Stage::Here(live) = &mut self.stage else { return };
        if let EngineError::Fault(fault) = error
            && let Some(so_far) = live.goes_on(fault, usage)
        {
            self.phase = Phase::Interrupted(fault, so_far);
            return;
        }
        live.broken(error, usage);
        self.phase = Phase::Broken;
    }

    /// The client has all that the engine said: off to the next one.
    fn leave(&mut self) {
        let Phase::Interrupted(fault, so_far) = mem::replace(&mut self.phase, Phase::Closing) else { return };
        let search: Search = Box::pin(pending());
        let away = Stage::Away { from: None, fault, search };
        if let Stage::Here(live) = mem::replace(&mut self.stage, away) {
            let from = live.record.place.map(|place| place.replica);
            self.stage = Stage::Away { from, fault, search: live.search(so_far) };
        }
    }

    fn back(&mut self, mut live: Box<Live>, onward: Onward) {
        let Stage::Away { from, fault, .. } = self.stage else { return };
        if let Some(from) = from {
            live.record.broke_off(from, fault, matches!(onward, Onward::Found(_)));
        }
        let usage = live.stream.usage_so_far();
        self.last = Instant::now();
        self.given_up = None;
        self.phase = Phase::Broken;
        match onward {
            Onward::Found(whole) => {
                let meter = live.meter();
                self.stage = Stage::Here(live);
                return self.begins(meter, whole);
            }
            Onward::Broken => live.broken(EngineError::Fault(fault), usage),
            Onward::Ended(error) => live.close(&error, None, usage),
        }
        self.stage = Stage::Here(live);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Stage::Here(live) = &mut self.stage
            && matches!(self.phase, Phase::Open)
        {
            let usage = live.stream.usage_so_far();
            live.record.usage = Some(usage);
            live.ticket.note_usage(usage);
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("phase", &self.phase).finish_non_exhaustive()
    }
}
